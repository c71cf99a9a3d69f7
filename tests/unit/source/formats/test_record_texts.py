"""Records of CSV and JSON as texts: what counts as a record, with any bytes, and with a cut at any place of a file."""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from aioprefetch.errors import UntrustedMetadata
from aioprefetch.source.formats.record_texts import RECORD_COLUMN, RECORD_SCHEMA
from aioprefetch.source.options import FormatOptions
from aioprefetch.source.reading import ReadTask, read_items
from aioprefetch.source.values import FetchItem
from tests.unit.source.formats.written_files import cut_at, new_operator, put, read

CSV, JSON = "csv-records", "json-records"


@pytest.mark.parametrize(
    ("kind", "data", "options", "records"),
    [
        (CSV, b"a,b\n \n1,x\r\n\t\x01\n#c\r2,y", {"header": True}, [b"1,x", b"#c", b"2,y"]),
        (CSV, b"#1\n\na,b\n#2\n1,#\n", {"header": True, "comment": "#"}, [b"1,#"]),
        (CSV, b'1,"x\n2,y"\n', {}, [b'1,"x', b'2,y"']),
        (CSV, b'1,"x\ny"\n\n2,"z\n', {"multi_line": True}, [b'1,"x\ny"', b'2,"z']),
        (CSV, b'1,"\\"\n"\n2\n', {"multi_line": True, "escape": "\\"}, [b'1,"\\"\n"', b"2"]),
        (CSV, b"1,\xff\xfe\n2\n", {}, [b"1,\xff\xfe", b"2"]),
        (CSV, "1,é|2|".encode("latin-1"), {"encoding": "latin-1", "line_separator": "|"}, ["1,é".encode(), b"2"]),
        (CSV, b"1,\x81\n", {"encoding": "cp1252"}, ["1,\ufffd".encode()]),
        (JSON, b'\xef\xbb\xbf{"a": 1}\n \t\n\x01\n[{}]\n', {}, [b'{"a": 1}', b"\x01", b"[{}]"]),
        (JSON, b'{"a":\n 1}\n', {"multi_line": True}, [b'{"a":\n 1}\n']),
    ],
)
async def test_records_are_what_sparks_readers_take_for_one(
    kind: str, data: bytes, options: dict[str, Any], records: list[bytes]
) -> None:
    async with new_operator() as operator:
        file = await put(operator, "a", data)
        for items in (None, cut_at(file, [1, 5, 9])) if "multi_line" not in options and kind == CSV else (None,):
            found = await read(operator, items or file, RECORD_SCHEMA, format=kind, **options)
            assert [row[RECORD_COLUMN] for row in found.rows] == records


async def test_small_files_lose_their_headers_alone_or_together() -> None:
    files = {"0": b"a,b\n0,x\n", "1": b"a,b\n1,x\n", "2": b"\na,b\n2,x\n", "3": b"b,a\n3,x\n"}
    async with new_operator() as operator:
        items = [FetchItem(await put(operator, key, data)) for key, data in files.items()]
        task = ReadTask(schema=RECORD_SCHEMA, url="x", format=FormatOptions(format=CSV, header=True))
        read_task = read_items(operator, items, task)
        rows = [row[RECORD_COLUMN] async for batch in read_task for row in batch.to_pylist()]
        assert rows == [b"0,x", b"1,x", b"2,x", b"3,x"]
        known = pa.schema([("A", pa.int32()), ("b", pa.string())])
        strict = read_items(operator, items, replace(task, known_schema=known))
        with pytest.raises(UntrustedMetadata, match="the header is b, a, and enforceSchema=false wants A, b"):
            _ = [batch async for batch in strict]

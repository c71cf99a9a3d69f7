"""Damage that no checksum shows, in values that others would follow: indices of dictionaries, and text for polars."""

from itertools import product
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import aioprefetch as ap
from aioprefetch.errors import UntrustedMetadata
from aioprefetch.parquet import read_table
from tests.profile import chosen, few_rows
from tests.stores.gated_reader import bench
from tests.unit.parquet.parquet_files import footer_at_hand, written

pytestmark = pytest.mark.virtual

WORDS = pa.array([f"key-{n % 5}" if n % 9 else None for n in range(400)]).dictionary_encode()
COLUMNS = {
    "flat": WORDS,
    "list": pa.ListArray.from_arrays(list(range(401)), WORDS),
    "field": pa.StructArray.from_arrays([WORDS], ["x"]),
}
READS: dict[str, dict[str, Any]] = {
    "whole": {},
    "pages": {"rows": (100, 150)},
    "a filter": {"filters": [("i", ">=", 0)]},
    "no checksums": {"page_checksums": False},
}


def damaged(kind: str, **options: Any) -> list[bytes]:
    """Files in which one byte of an index of the dictionary is 255."""
    sizes = {"data_page_size": 100, "write_batch_size": 20, "write_page_index": True}
    table = pa.table({"v": COLUMNS[kind], "i": range(400)})
    data = written(table, compression="none", use_dictionary=["v", "v.list.element", "v.x"], **sizes, **options)
    chunk = footer_at_hand(data).chunks[0][0]
    end = min(chunk.dictionary_page or chunk.data_page, chunk.data_page) + chunk.compressed_bytes
    return [data[:place] + b"\xff" + data[place + 1 :] for place in range(chunk.data_page, end)]


@pytest.mark.parametrize(("kind", "read"), few_rows(product(COLUMNS, [*READS, "many files"]), 4))
async def test_no_index_beyond_its_dictionary_is_handed_out(kind: str, read: str) -> None:
    options = READS.get(read, {"schema": pa.schema([("v", COLUMNS[kind].type)])})
    refused = 0
    async with bench() as b:
        for data in damaged(kind)[:: chosen(quick=9, full=3)]:
            b.put(data)
            try:
                found = await read_table(b.operator, "k", **options)
            except UntrustedMetadata as error:
                refused += "out of bounds" in str(error)
            else:
                found.validate(full=True)
    assert refused > 0


async def test_the_column_is_named() -> None:
    async with bench() as b:
        for data in damaged("flat"):
            b.put(data)
            try:
                await read_table(b.operator, "k", filters=[("v", "==", "key-1")])
            except UntrustedMetadata as error:
                if "row group 0" in str(error) and "'v'" in str(error) and "out of bounds" in str(error):
                    return
    pytest.fail("no error names row group and column")


@pytest.mark.parametrize("writer", ["dictionary", "plain", "polars"])
def test_polars_neither_panics_nor_ends_the_process(tmp_path: Path, writer: str) -> None:
    words = [f"wörd {n % 5}" for n in range(200)]
    path, refused = tmp_path / "a.parquet", 0
    if writer == "polars":
        pl.DataFrame({"v": words}).write_parquet(path, compression="uncompressed")
        data = path.read_bytes()
    else:
        values = pa.array(words).dictionary_encode() if writer == "dictionary" else pa.array(words)
        data = written(pa.table({"v": values}), compression="none", use_dictionary=writer == "dictionary")
    chunk = footer_at_hand(data).chunks[0][0]
    start = min(chunk.dictionary_page or chunk.data_page, chunk.data_page)
    step = (1 if chunk.compressed_bytes < 500 else 23) * chosen(quick=5, full=1)
    for place in range(start, start + chunk.compressed_bytes, step):
        path.write_bytes(data[:place] + b"\xff" + data[place + 1 :])
        frame = ap.polars.scan_parquet(path)
        text = pl.col("v").cast(pl.String)
        for query in (frame, frame.filter(text.str.to_uppercase() == "WÖRD 1"), frame.group_by("v").len()):
            try:
                query.collect()
            except UntrustedMetadata:
                refused += 1
    assert refused > 3


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view(), pa.list_(pa.string())], ids=str)
def test_text_of_every_type(tmp_path: Path, kind: pa.DataType) -> None:
    words = ["ascii", "wörd", None, ""]
    values = pa.array([[word] for word in words] if pa.types.is_list(kind) else words, kind)
    data = written(pa.table({"v": values}), compression="none", use_dictionary=False)
    path = tmp_path / "a.parquet"
    path.write_bytes(data)
    assert ap.polars.scan_parquet(path).collect()["v"].to_list() == values.to_pylist()
    path.write_bytes(data.replace("wörd".encode(), b"w\xff\xffrd"))
    with pytest.raises(UntrustedMetadata, match="UTF8"):
        ap.polars.scan_parquet(path).collect()

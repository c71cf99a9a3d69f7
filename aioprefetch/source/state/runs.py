"""Runs: the known files of one range of keys as a Parquet file, sorted by key, in small row groups.

Keys are stored as bytes, which sort by code point as Python's strings do, for all characters that a store allows. With
delta encoding and zstd a file takes about 28 bytes, of which the digest in its ETag is 16.
"""

from __future__ import annotations

import io
import json
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from aioprefetch.errors import excerpt
from aioprefetch.source.file_index import KnownFile
from aioprefetch.source.files import SourceFile
from aioprefetch.source.json_fields import each, integer, listed, milliseconds, optional, parsed, text
from aioprefetch.source.state.checksummed_json import checksum, damaged

_FIRST_KEYS = b"aioprefetch.first_keys"
_DELTA = "DELTA_BINARY_PACKED"

SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("etag", pa.binary()),
        pa.field("version", pa.binary()),
        pa.field("modified_ms", pa.int64()),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("gone_ms", pa.int64()),
        # ``seq`` minus the record that made the name new: mostly 0, which takes no space.
        pa.field("new_ago", pa.int64(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The description of a run in a snapshot: its keys from ``first`` to ``last``, its size and checksum.

    ``gone_ms_min`` is the earliest time at which one of its files disappeared.
    """

    name: str
    rows: int
    first: str
    last: str
    bytes: int
    crc32: str
    gone_ms_min: int | None

    def to_json(self) -> list[Any]:
        """A short list for JSON, in a fixed order."""
        return [getattr(self, name) for name in self.__slots__]

    @classmethod
    def from_json(cls, fields: Any) -> RunInfo:
        """The run that ``to_json`` wrote. ``ValueError`` for other values."""
        name, rows, first, last, size, crc32, gone_ms_min = listed(fields, 7)
        run = cls(
            name=text(name),
            rows=integer(rows, 1),
            first=text(first),
            last=text(last),
            bytes=integer(size),
            crc32=text(crc32),
            gone_ms_min=optional(milliseconds, gone_ms_min),
        )
        if run.first > run.last:
            raise ValueError(f"the run {excerpt(run.name, 80)!r} ends before it begins")
        return run


def key_bytes(key: str) -> bytes:
    """The bytes of a key in a run. Half of a surrogate pair, possible in a file name, keeps its place in the order."""
    return key.encode("utf-8", "surrogatepass")


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "surrogatepass")


def _data(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "surrogatepass")


def table_of(files: Sequence[KnownFile]) -> pa.Table:
    """Sorted files as the columns of a run."""
    columns = [
        [key_bytes(file.file.key) for file in files],
        [file.file.size for file in files],
        [_data(file.file.etag) for file in files],
        [_data(file.file.version) for file in files],
        [file.file.modified_ms for file in files],
        [file.seq for file in files],
        [file.gone_ms for file in files],
        [file.seq - file.since for file in files],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def files_of(table: pa.Table) -> list[KnownFile]:
    """The files of a run's rows."""
    columns = (column.to_pylist() for column in table.columns)
    return [
        KnownFile(
            SourceFile(_text(key) or "", size, _text(etag), _text(version), modified_ms), seq, gone_ms, seq - new_ago
        )
        for key, size, etag, version, modified_ms, seq, gone_ms, new_ago in zip(*columns, strict=True)
    ]


def encode_run(table: pa.Table, name: str, *, group_rows: int) -> tuple[bytes, RunInfo]:
    """The bytes and the description of a run. The table must have rows."""
    table = table.combine_chunks()
    keys = table.column("key")
    firsts = [_text(keys[row].as_py()) for row in range(0, table.num_rows, group_rows)]
    sink = io.BytesIO()
    pq.write_table(
        table.replace_schema_metadata({_FIRST_KEYS: json.dumps(firsts).encode()}),
        sink,
        row_group_size=group_rows,
        compression="zstd",
        compression_level=1,
        use_dictionary=False,
        write_statistics=False,
        column_encoding={
            "key": "DELTA_BYTE_ARRAY",
            **dict.fromkeys(("size", "modified_ms", "seq", "gone_ms", "new_ago"), _DELTA),
        },
    )
    data = sink.getvalue()
    return data, RunInfo(
        name=name,
        rows=table.num_rows,
        first=_text(keys[0].as_py()) or "",
        last=_text(keys[-1].as_py()) or "",
        bytes=len(data),
        crc32=checksum(data),
        gone_ms_min=pc.min(table.column("gone_ms")).as_py(),
    )


class RunReader:
    """Reads rows of a run from a local file. All methods block, for milliseconds."""

    def __init__(self, file: IO[bytes], info: RunInfo, *, path: str) -> None:
        self.info = info
        self._path = path
        try:
            self._parquet = pq.ParquetFile(file, pre_buffer=False)
            metadata = self._parquet.metadata
            self._firsts = each(text, parsed(metadata.metadata[_FIRST_KEYS]))
            if metadata.num_rows != info.rows or metadata.num_row_groups != len(self._firsts):
                raise ValueError("the rows are not those of the snapshot")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise damaged(f"the run cannot be read: {error}", path) from error

    def groups(self, after: str, through: str) -> range:
        """The row groups that may hold keys above ``after`` and at most ``through``."""
        return range(max(0, bisect_right(self._firsts, after) - 1), bisect_right(self._firsts, through))

    @property
    def count(self) -> int:
        """The number of row groups."""
        return len(self._firsts)

    def group_of(self, key: str) -> int:
        """The only row group that can have this key."""
        return max(0, bisect_right(self._firsts, key) - 1)

    def read_group(self, group: int) -> pa.Table:
        """The rows of a row group."""
        return self._read(lambda: self._parquet.read_row_group(group, use_threads=False))

    def read(self) -> pa.Table:
        """All rows."""
        return self._read(lambda: self._parquet.read(use_threads=False))

    def _read(self, read: Any) -> pa.Table:
        try:
            table = read().replace_schema_metadata(None).combine_chunks()
            if not table.schema.equals(SCHEMA):
                raise ValueError(f"its columns are {table.schema.names}")
            return table
        except (OSError, ValueError) as error:
            raise damaged(f"the run cannot be read: {error}", self._path) from error


def position_after(table: pa.Table, key: str) -> int:
    """The position of the first row with a key above ``key``."""
    keys, wanted = table.column("key"), key_bytes(key)
    return bisect_right(range(table.num_rows), wanted, key=lambda row: keys[row].as_py())


def rows_between(table: pa.Table, after: str, through: str) -> pa.Table:
    """The rows with keys above ``after`` and up to ``through``."""
    start = position_after(table, after)
    return table.slice(start, position_after(table, through) - start)


def row_of(table: pa.Table, key: str) -> int | None:
    """The position of the row with this key; ``None`` if there is none."""
    keys, wanted = table.column("key"), key_bytes(key)
    row = bisect_left(range(table.num_rows), wanted, key=lambda row: keys[row].as_py())
    return row if row < table.num_rows and keys[row].as_py() == wanted else None

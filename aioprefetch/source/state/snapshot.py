"""The snapshot: the runs with the known files of all records up to one, and the cursor and totals at that record.

A run has the known files of one range of keys, as a Parquet file that is sorted by key, in small row groups. Keys are
stored as bytes, which sort by code point as Python's strings do, for all characters that a store allows. With delta
encoding and zstd a file takes about 28 bytes; 16 of them are the digest in its ETag.
"""

from __future__ import annotations

import io
import json
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from aioprefetch.errors import excerpt
from aioprefetch.source.state.store import SNAPSHOT, StateStore, Versioned
from aioprefetch.source.stored_json import (
    check_version,
    checksum,
    damaged,
    each,
    fields_of,
    integer,
    listed,
    milliseconds,
    optional,
    parsed,
    seal,
    text,
    unseal,
)
from aioprefetch.source.values import Cursor, FetchItem, KnownFile, SourceFile, cursor_from_json, cursor_to_json

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
                raise ValueError("the rows do not belong to the snapshot")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise damaged(f"the run cannot be read: {error}", path) from error

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


def row_of(table: pa.Table, key: str) -> int | None:
    """The position of the row with this key, or ``None``."""
    keys, wanted = table.column("key"), key_bytes(key)
    row = bisect_left(range(table.num_rows), wanted, key=lambda row: keys[row].as_py())
    return row if row < table.num_rows and keys[row].as_py() == wanted else None


# --- the snapshot -----------------------------------------------------------------------------------------------------

SNAPSHOT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state after record ``through_seq``, whose checksum is ``record_crc32``.

    ``runs`` are in the order of their keys and do not overlap. ``writer`` wrote it last: opening a state writes it
    again, so that an earlier writer can no longer replace it. ``previous_seq`` is the last record of the snapshot
    before it, or -1; ``previous_runs`` are the runs of the previous snapshot, less this one's.

    The log keeps all records from ``log_from`` on, and the records with work in ``work_seqs``. ``removed_seq`` is the
    newest record with work that is not kept (-1: none). The engine had committed the records up to ``committed_seq``.
    """

    state: str
    writer: str
    through_seq: int
    record_crc32: str
    cursor: Cursor
    carry: tuple[FetchItem, ...]
    files: int
    total_bytes: int
    runs: tuple[RunInfo, ...]
    previous_seq: int = -1
    previous_runs: tuple[str, ...] = ()
    committed_seq: int = -1
    work_seqs: tuple[int, ...] = ()
    removed_seq: int = -1
    log_from: int = 0

    @property
    def rows(self) -> int:
        """The number of files in the runs."""
        return sum(run.rows for run in self.runs)

    def to_bytes(self) -> bytes:
        """The object in the store."""
        return seal(
            {
                "v": SNAPSHOT_VERSION,
                "state": self.state,
                "writer": self.writer,
                "through_seq": self.through_seq,
                "record_crc32": self.record_crc32,
                "cursor": cursor_to_json(self.cursor),
                "carry": [item.to_json() for item in self.carry],
                "files": self.files,
                "bytes": self.total_bytes,
                "runs": [run.to_json() for run in self.runs],
                "previous_seq": self.previous_seq,
                "previous_runs": list(self.previous_runs),
                "committed_seq": self.committed_seq,
                "work_seqs": list(self.work_seqs),
                "removed_seq": self.removed_seq,
                "log_from": self.log_from,
            }
        )[0]

    @classmethod
    def from_bytes(cls, data: bytes, *, path: str) -> Snapshot:
        """The snapshot in these bytes. ``UntrustedMetadata`` for other bytes, ``Unsupported`` for a newer format."""
        body = unseal(data, path=path)[0]
        check_version(body, SNAPSHOT_VERSION, path=path)
        try:
            snapshot = cls._from_json(body)
        except ValueError as error:
            raise damaged(f"a field of the snapshot is not what it should be: {error}", path) from error
        if any(left.last >= right.first for left, right in pairwise(snapshot.runs)):
            raise damaged("the runs of the snapshot overlap", path)
        return snapshot

    @classmethod
    def _from_json(cls, value: Any) -> Snapshot:
        names = [name for name in cls.__slots__ if name != "total_bytes"]
        fields = fields_of(value, ("v", "bytes", *names))
        return cls(
            state=text(fields["state"]),
            writer=text(fields["writer"]),
            through_seq=integer(fields["through_seq"], -1),
            record_crc32=text(fields["record_crc32"]),
            cursor=cursor_from_json(fields["cursor"]),
            carry=each(FetchItem.from_json, fields["carry"]),
            files=integer(fields["files"]),
            total_bytes=integer(fields["bytes"]),
            runs=each(RunInfo.from_json, fields["runs"]),
            previous_seq=integer(fields["previous_seq"], -1),
            previous_runs=each(text, fields["previous_runs"]),
            committed_seq=integer(fields["committed_seq"], -1),
            work_seqs=each(integer, fields["work_seqs"]),
            removed_seq=integer(fields["removed_seq"], -1),
            log_from=integer(fields["log_from"]),
        )


@dataclass(frozen=True, slots=True)
class Base:
    """The snapshot in force, and its version in the store."""

    snapshot: Snapshot
    version: Versioned


async def read_snapshot(store: StateStore, state: str) -> Base | None:
    """The snapshot in force, or ``None``. ``UntrustedMetadata`` unless it is of the state ``state``."""
    version = await store.read_versioned(SNAPSHOT)
    if version is None:
        return None
    path = store.path(SNAPSHOT)
    snapshot = Snapshot.from_bytes(version.data, path=path)
    if snapshot.state != state:
        raise damaged(f"the snapshot is of the state {snapshot.state}, and {store.url} is the state {state}", path)
    return Base(snapshot, version)

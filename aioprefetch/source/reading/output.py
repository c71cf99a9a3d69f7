"""From pieces of files to output batches: fields of the file and of its path, metadata columns, filters.

Files with the same directory names share a layout. Small batches cost an engine as much as large ones, so batches of
small files are concatenated up to ``batch_rows``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from aioprefetch.operator.operator import Operator
from aioprefetch.source.columns.directories import (
    Directories,
    DirectoryFilter,
    directories_of,
    directory_fields,
    directory_value,
    names_of,
)
from aioprefetch.source.columns.row_filter import RowFilter
from aioprefetch.source.columns.schemas import Conformer, conform_array
from aioprefetch.source.formats import FoundBatch, Wanted, format_of
from aioprefetch.source.formats.line_stream import SmallFiles
from aioprefetch.source.formats.record_format import BadRecords
from aioprefetch.source.formats.records import JoinedRecords
from aioprefetch.source.options import METADATA_PARTS, METADATA_STRUCT, RESCUED_COLUMN, ReadOptions
from aioprefetch.source.reading.task import ReadTask
from aioprefetch.source.values import FetchItem


@dataclass(frozen=True, slots=True)
class Records:
    """Conformed records of one item, or of several in their order: ``items`` has each with the number of its rows.

    ``offsets`` and ``unknown`` are as in ``FoundBatch``.
    """

    batch: pa.RecordBatch
    items: tuple[tuple[FetchItem, int], ...]
    offsets: pa.Array | None = None
    unknown: pa.Array | None = None

    @property
    def nbytes(self) -> int:
        """The bytes of the columns in memory."""
        size: int = self.batch.nbytes
        return size


# The values of at most this many directories are kept.
_VALUES_MAX = 1024


class Layouts:
    """The layouts of the files of one task."""

    def __init__(self, operator: Operator, task: ReadTask, bad_records: BadRecords | None = None) -> None:
        self._operator = operator
        self._task = task
        self._bad_records = bad_records
        self._layouts: dict[tuple[tuple[str, ...], bool], DirectoryLayout] = {}
        filters = task.read.filters
        time_zone = task.format.time_zone
        self._filter = None if filters is None else DirectoryFilter(filters, task.data_schema, time_zone)

    def of(self, key: str) -> DirectoryLayout:
        """The layout of a file: one object for all files that are read alike."""
        names = names_of(directories_of(key))
        is_told = bool(names or self._task.directory_columns)
        has_names = not is_told or format_of(key, self._task.format).has_column_names(self._task.format)
        layout = self._layouts.get((names, has_names))
        if layout is None:
            layout = self._layouts[names, has_names] = DirectoryLayout(
                self._operator, self._task, names, has_names=has_names, bad_records=self._bad_records
            )
        return layout

    def may_match(self, key: str) -> bool:
        """Whether a file may have rows that match the filters, judged by its path."""
        return self._filter is None or self._filter.may_match(key)


class DirectoryLayout:
    """How files with the same directory names are read: fields that directories give are not read from the files.

    ``has_names``: the files name their columns, which are otherwise known by their positions.
    """

    def __init__(
        self,
        operator: Operator,
        task: ReadTask,
        names: Sequence[str],
        *,
        has_names: bool,
        bad_records: BadRecords | None,
    ) -> None:
        schema, known_fields = task.data_schema, task.known_data_schema
        self._schema = schema
        self._time_zone = task.format.time_zone
        self._fields: dict[str, str | None] = {**directory_fields(names, schema)}
        absent = () if has_names else [name for name in task.directory_columns if name not in self._fields]
        self._fields |= {name: None for name in absent if name in schema.names}
        if self._fields or absent:
            schema = pa.schema([field for field in schema if field.name not in self._fields])
            # Columns of these names in a file are not unknown fields.
            everything, rest = _known_fields(task), _without(_known_fields(task), names, absent)
            known_fields = everything if has_names and len(rest) else rest
        self.want = Wanted(
            schema, task.format, task.read, bool(_WITH_OFFSETS.intersection(task.metadata)), known_fields, bad_records
        )
        self._conformer = Conformer(schema, exact_case=task.format.exact_case)
        self.small = SmallFiles(operator, self.want)
        self._values: dict[Directories, dict[str, pa.Scalar]] = {}

    def records(self, item: FetchItem, read: FoundBatch) -> Records | None:
        """The conformed records of an item, or ``None``."""
        batch = self._conformer.conform(read.batch, path=item.file.key)
        if not batch.num_rows:
            return None
        items = ((item, batch.num_rows),)
        return Records(self._filled(batch, items), items, read.offsets, read.unknown)

    def joined(self, items: Sequence[FetchItem], joined: JoinedRecords) -> Records:
        """The conformed records of several whole files."""
        batch = self._conformer.conform(joined.found.batch)
        rows = tuple(zip(items, joined.rows, strict=True))
        return Records(self._filled(batch, rows), rows, joined.found.offsets, joined.found.unknown)

    def _filled(self, batch: pa.RecordBatch, items: Sequence[tuple[FetchItem, int]]) -> pa.RecordBatch:
        """The batch with the values from the paths of its files."""
        if not self._fields:
            return batch
        values = [self._values_of(item.file.key) for item, _ in items]
        counts = [rows for _, rows in items]
        arrays = [
            pa.concat_arrays(map(pa.repeat, (constants[field.name] for constants in values), counts))
            if field.name in self._fields
            else batch.column(field.name)
            for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _values_of(self, key: str) -> dict[str, pa.Scalar]:
        directories = directories_of(key)
        cached = self._values.get(directories)
        if cached is None:
            texts = dict(directories)
            cached = {
                name: directory_value(
                    None if directory is None else texts[directory],
                    self._schema.field(name),
                    key=key,
                    time_zone=self._time_zone,
                )
                for name, directory in self._fields.items()
            }
            if len(self._values) >= _VALUES_MAX:
                self._values.clear()
            self._values[directories] = cached
        return cached


def _known_fields(task: ReadTask) -> pa.Schema:
    """All fields that are not unknown ones."""
    return Wanted(task.data_schema, task.format, task.read, known=task.known_data_schema).known_fields


def _without(schema: pa.Schema, names: Sequence[str], absent: Sequence[str]) -> pa.Schema:
    outside = {*directory_fields(names, schema), *absent}
    return pa.schema([field for field in schema if field.name not in outside])


# --- batches ----------------------------------------------------------------------------------------------------------

# Batches are gathered up to this share (1 / n) of ``bytes_in_flight``, and are complete at this share of that, or of
# ``batch_rows``.
_BATCH_SHARE = 8
_LARGE_SHARE = 2

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WITH_OFFSETS = {"_offset", METADATA_STRUCT}
_NUMBERS = ("size", "start", "length")


class Output:
    """Makes batches of exactly ``task.schema`` from the records of files, in their order."""

    def __init__(self, task: ReadTask) -> None:
        self._task = task
        data, filters = task.data_schema, task.read.filters
        self._added = [name for name in task.schema.names if name not in data.names]
        self._read_schema = pa.schema([*data, *(task.schema.field(name) for name in self._added)])
        self._filter = None
        if filters is not None:
            self._filter = RowFilter(filters, self._read_schema, time_zone=task.format.time_zone)
        self._is_projected = self._read_schema.names != task.schema.names
        self._pieces: list[Records] = []
        self._gathered = Gathering(task.read)
        # Batches after the filter, which may be small.
        self._kept = Gathering(task.read)

    def add(self, piece: Records) -> Iterator[pa.RecordBatch]:
        """The batches that are complete with these records."""
        if self._gathered.is_full_with(piece.batch):
            yield from self._finished()
        self._pieces.append(piece)
        if self._gathered.add(piece.batch):
            yield from self._finished()

    def end(self) -> Iterator[pa.RecordBatch]:
        """The remaining batches."""
        yield from self._finished()
        yield from self._kept.cut()

    def _finished(self) -> Iterator[pa.RecordBatch]:
        """The gathered records, filtered, and gathered again if the filter leaves few of them."""
        if not self._pieces:
            return
        pieces, self._pieces = self._pieces, []
        batch = self._with_added(self._gathered.take(), pieces)
        if self._filter is None:
            yield from cut(self._projected(batch), self._task.read.batch_rows)
            return
        kept = self._projected(self._filter.apply(batch))
        if not kept.num_rows:
            return
        if self._kept.is_full_with(kept):
            yield from self._kept.cut()
        if self._kept.add(kept):
            yield from self._kept.cut()

    def _with_added(self, batch: pa.RecordBatch, pieces: Sequence[Records]) -> pa.RecordBatch:
        if not self._added:
            return batch
        arrays = [self._column(name, pieces) for name in self._added]
        return pa.RecordBatch.from_arrays([*batch.columns, *arrays], schema=self._read_schema)

    def _column(self, name: str, pieces: Sequence[Records]) -> pa.Array:
        return conform_array(self._known(name, pieces), self._task.schema.field(name), name)

    def _known(self, name: str, pieces: Sequence[Records]) -> pa.Array:
        if name == METADATA_STRUCT:
            parts = [self._known(part, pieces) for part in METADATA_PARTS.values()]
            return pa.StructArray.from_arrays(parts, [*METADATA_PARTS])
        if name == "_offset":
            return pa.concat_arrays([_or_nulls(piece.offsets, piece, pa.int64()) for piece in pieces])
        if name == RESCUED_COLUMN:
            return pa.concat_arrays([_or_nulls(piece.unknown, piece, pa.string()) for piece in pieces])
        return self._constants(name, pieces)

    def _constants(self, name: str, pieces: Sequence[Records]) -> pa.Array:
        """A column with one value for all records of an item."""
        kind = pa.timestamp("us", "UTC") if name == "_mtime" else pa.int64() if name in _NUMBERS else pa.string()
        items = [item for piece in pieces for item in piece.items]
        values = pa.array([self._constant(name, item) for item, _ in items], kind)
        places = np.repeat(np.arange(len(items), dtype=np.int32), [rows for _, rows in items])
        return values.take(pa.array(places))

    def _constant(self, name: str, item: FetchItem) -> Any:
        file = item.file
        if name == "_mtime":
            return None if file.modified_ms is None else _EPOCH + timedelta(milliseconds=file.modified_ms)
        url = self._task.url_of(file.key)
        known = {"_file": url, "_etag": file.etag, "size": file.size, "start": item.start, "length": item.bytes}
        return known.get(name, url.rstrip("/").rpartition("/")[2])

    def _projected(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.select(self._task.schema.names) if self._is_projected else batch


def _or_nulls(array: pa.Array | None, piece: Records, kind: pa.DataType) -> pa.Array:
    return pa.nulls(piece.batch.num_rows, kind) if array is None else array


class Gathering:
    """Batches to concatenate, of at most ``rows_max`` rows together."""

    def __init__(self, options: ReadOptions) -> None:
        self.rows_max = options.batch_rows
        self._bytes_max = max(1, options.bytes_in_flight // _BATCH_SHARE)
        self.batches: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0

    def is_full_with(self, batch: pa.RecordBatch) -> bool:
        """Whether the gathered batches have to be taken before this one is added."""
        return bool(self.batches) and (
            self._rows + batch.num_rows > self.rows_max or self._bytes + batch.nbytes > self._bytes_max
        )

    def add(self, batch: pa.RecordBatch) -> bool:
        """Add a batch. ``True`` if there is enough to take."""
        self.batches.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        return self._rows * _LARGE_SHARE >= self.rows_max or self._bytes * _LARGE_SHARE >= self._bytes_max

    def take(self) -> pa.RecordBatch:
        """The gathered batches as one. There must be at least one, and none is left."""
        batches, self.batches = self.batches, []
        self._rows = self._bytes = 0
        return concatenated(batches)

    def cut(self) -> Iterator[pa.RecordBatch]:
        """The gathered batches as batches of at most ``rows_max`` rows."""
        if self.batches:
            yield from cut(self.take(), self.rows_max)


def cut(batch: pa.RecordBatch, rows_max: int) -> Iterator[pa.RecordBatch]:
    """A batch in equal parts of at most ``rows_max`` rows, without a copy."""
    count = -(-batch.num_rows // rows_max)
    if count == 1:
        yield batch
        return
    for number in range(count):
        start, end = (batch.num_rows * place // count for place in (number, number + 1))
        yield batch.slice(start, end - start)


def concatenated(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Batches of one schema as one batch, without a copy if there is only one."""
    if len(batches) == 1:
        return batches[0]
    if not batches[0].num_columns:
        rows = sum(batch.num_rows for batch in batches)
        return pa.RecordBatch.from_arrays([pa.nulls(rows)], names=["rows"]).select([])
    combined: pa.RecordBatch = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
    return combined

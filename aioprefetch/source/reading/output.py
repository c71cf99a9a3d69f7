"""From pieces of files to output batches: concatenated, with metadata columns, filtered.

Small batches cost an engine as much as large ones, so batches of small files are concatenated up to ``batch_rows``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from aioprefetch.source.columns.conform import conform_array
from aioprefetch.source.columns.row_filter import RowFilter
from aioprefetch.source.files import SourceFile
from aioprefetch.source.options import METADATA_COLUMNS, RESCUED_COLUMN
from aioprefetch.source.reading.layout import Records
from aioprefetch.source.reading.task import ReadTask

# A batch is complete at this many bytes, and at this share (1 / n) of ``batch_rows``.
_BATCH_BYTES_MAX = 32 << 20
_LARGE_SHARE = 2

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Output:
    """Makes batches of exactly ``task.schema`` from the records of files, in their order."""

    def __init__(self, task: ReadTask, row_filter: RowFilter | None) -> None:
        self._task = task
        self._filter = row_filter
        self._data_schema = task.data_schema
        self._added = [name for name in task.schema.names if name not in self._data_schema.names]
        self._read_schema = pa.schema([*self._data_schema, *(task.schema.field(name) for name in self._added)])
        self._is_projected = self._read_schema.names != task.schema.names
        self._pieces: list[Records] = []
        self._gathered = Gathering(task.read.batch_rows)
        # Batches after the filter, which may be small.
        self._kept = Gathering(task.read.batch_rows)

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
        field = self._task.schema.field(name)
        if name == METADATA_COLUMNS[1]:
            array = pa.concat_arrays([_or_nulls(piece.offsets, piece, pa.int64()) for piece in pieces])
        elif name == RESCUED_COLUMN:
            array = pa.concat_arrays([_or_nulls(piece.unknown, piece, pa.string()) for piece in pieces])
        else:
            array = self._constants(name, pieces)
        return conform_array(array, field, name)

    def _constants(self, name: str, pieces: Sequence[Records]) -> pa.Array:
        """A column with one value for all records of a file."""
        kind = pa.timestamp("us", "UTC") if name == METADATA_COLUMNS[3] else pa.string()
        files = [file for piece in pieces for file in piece.files]
        values = pa.array([self._constant(name, file) for file, _ in files], kind)
        places = np.repeat(np.arange(len(files), dtype=np.int32), [rows for _, rows in files])
        return values.take(pa.array(places))

    def _constant(self, name: str, file: SourceFile) -> Any:
        if name == METADATA_COLUMNS[0]:
            return self._task.url_of(file.key)
        if name == METADATA_COLUMNS[2]:
            return file.etag
        return None if file.modified_ms is None else _EPOCH + timedelta(milliseconds=file.modified_ms)

    def _projected(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.select(self._task.schema.names) if self._is_projected else batch


def _or_nulls(array: pa.Array | None, piece: Records, kind: pa.DataType) -> pa.Array:
    return pa.nulls(piece.batch.num_rows, kind) if array is None else array


class Gathering:
    """Batches to concatenate, of at most ``rows_max`` rows together."""

    def __init__(self, rows_max: int) -> None:
        self.rows_max = rows_max
        self.batches: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0

    def is_full_with(self, batch: pa.RecordBatch) -> bool:
        """Whether the gathered batches have to be taken before this one is added."""
        return bool(self.batches) and (
            self._rows + batch.num_rows > self.rows_max or self._bytes + batch.nbytes > _BATCH_BYTES_MAX
        )

    def add(self, batch: pa.RecordBatch) -> bool:
        """Add a batch. ``True`` if there is enough to take."""
        self.batches.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        return self._rows * _LARGE_SHARE >= self.rows_max or self._bytes * _LARGE_SHARE >= _BATCH_BYTES_MAX

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

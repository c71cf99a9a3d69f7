"""Reads through small groups of deleted rows, and drops them from the batches.

Every range of rows costs time in every column, so single deleted rows all over a fragment would make its scan slow.
Deleted rows in small holes are read with their neighbours and filtered out of the decoded batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from aioprefetch.lance.reordered import rows_without_columns
from aioprefetch.lance.row_ranges import RowNumbers
from aioprefetch.ranges import Range
from aioprefetch.scheduler.pages import ColumnScheduler, DecodeTask, PageIo, RootDecoder

# Holes of up to this number of deleted rows are read through: for vectors of 3 KB that is about the gap for merged
# reads.
HOLE_ROWS_MAX = 32


def read_through(ranges: Sequence[Range], living: Sequence[Range]) -> tuple[tuple[Range, ...], RowNumbers]:
    """``ranges`` with their small holes closed, and the ascending positions of unwanted rows in the result.

    ``living`` are the same rows counted without deleted rows: a gap in them means that a hole has living rows that are
    unwanted, and the hole is kept.
    """
    if len(ranges) == len(living):
        return tuple(ranges), np.empty(0, np.int64)
    edges = np.asarray(ranges, np.int64)
    sizes = edges[:, 1] - edges[:, 0]
    before = np.cumsum(sizes) - sizes
    holes = edges[1:, 0] - edges[:-1, 1]
    ends = np.cumsum([stop - start for start, stop in living])
    is_edge = np.isin(before[1:], ends)
    closed = (holes <= HOLE_ROWS_MAX) & ~is_edge
    first = np.concatenate(([True], ~closed))
    last = np.concatenate((~closed, [True]))
    coarse = tuple(zip(edges[first, 0].tolist(), edges[last, 1].tolist(), strict=True))
    dropped = holes[closed]
    before_hole = np.cumsum(dropped) - dropped
    # The start of a hole: all wanted rows before it, and all rows of the closed holes before it.
    starts = before[1:][closed] + before_hole
    within = np.arange(int(dropped.sum())) - np.repeat(before_hole, dropped)
    return coarse, np.repeat(starts, dropped) + within


class KeptRows:
    """Converts numbers of rows that are read to rows that are kept, and back. ``dropped`` are ascending positions."""

    def __init__(self, dropped: RowNumbers) -> None:
        self.dropped = dropped
        self._before = dropped - np.arange(len(dropped))

    def kept(self, read: int) -> int:
        """The number of kept rows among the first ``read`` rows."""
        return read - int(np.searchsorted(self.dropped, read, "left"))

    def read(self, kept: int) -> int:
        """The number of rows to read for ``kept`` kept rows."""
        return kept + int(np.searchsorted(self._before, kept - 1, "right")) if kept else 0


class FilteredColumn:
    """A ``ColumnScheduler`` that counts only kept rows."""

    def __init__(self, inner: ColumnScheduler[Any], rows: KeptRows) -> None:
        self._inner = inner
        self._rows = rows

    @property
    def rows_scheduled(self) -> int:
        return self._rows.kept(self._inner.rows_scheduled)

    @property
    def is_finished(self) -> bool:
        return self._inner.is_finished

    def schedule_next(self, io: PageIo) -> Any:
        return self._inner.schedule_next(io)


class FilteredRoot:
    """A ``RootDecoder`` that drops rows from the batches of another one."""

    def __init__(self, inner: RootDecoder[Any], schema: pa.Schema, rows: KeptRows) -> None:
        self._inner = inner
        self._schema = schema
        self._rows = rows
        self._kept = 0
        self._read = 0

    def accept(self, column: int, page: Any) -> None:
        """Append a scheduled page of a column."""
        self._inner.accept(column, page)

    async def wait(self, rows: int) -> None:
        """Wait until the next ``rows`` kept rows can be drained."""
        await self._inner.wait(self._reach(rows))

    def loaded_rows(self, rows_max: int) -> int:
        """The number of the next kept rows, up to ``rows_max``, that could be drained at once."""
        return self._kept_in(self._inner.loaded_rows(self._reach(rows_max)))

    def likely_rows(self, rows: int, batch_bytes: int) -> int:
        """The number of the next ``rows`` kept rows that may fit ``batch_bytes``, dropped rows included; at least 1."""
        return max(1, self._kept_in(self._inner.likely_rows(self._reach(rows), batch_bytes)))

    def fitting_rows(self, rows: int, batch_bytes: int) -> int:
        """The number of the next ``rows`` kept rows that fit ``batch_bytes``, dropped rows included; at least 1."""
        return max(1, self._kept_in(self._inner.fitting_rows(self._reach(rows), batch_bytes)))

    def drain(self, rows: int) -> DecodeTask:
        """Take the next ``rows`` kept rows."""
        start, count = self._read, self._reach(rows)
        task = self._inner.drain(count)
        self._kept += rows
        self._read += count
        if count == rows:
            return task
        low, high = np.searchsorted(self._rows.dropped, (start, start + count))
        mask = np.ones(count, bool)
        mask[self._rows.dropped[low:high] - start] = False
        schema = self._schema

        def decode() -> pa.RecordBatch:
            batch = task.decode()
            return batch.filter(pa.array(mask)) if schema.names else rows_without_columns(schema, rows)

        return DecodeTask(rows=rows, decode=decode, release=task.release)

    def close(self) -> None:
        """Release every page that was not drained."""
        self._inner.close()

    def _reach(self, rows: int) -> int:
        return self._rows.read(self._kept + rows) - self._read

    def _kept_in(self, read: int) -> int:
        return self._rows.kept(self._read + read) - self._kept

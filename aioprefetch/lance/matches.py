"""Filters: their own columns are decoded first, and the others only around the rows that match.

The first scan runs ahead of the second by a few windows of rows. A window with matches becomes a part of the second
scan, which reads what a ``take`` of these rows would read; holes that cost less than a request are read through.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa

from aioprefetch.filters import kept_rows, row_mask
from aioprefetch.lance.batches import HOLE_ROWS_MAX, Projection, RowFilter, chosen_columns, selected, table_of
from aioprefetch.lance.parts import TablePart, TableScan
from aioprefetch.row_ranges import RowNumbers, RowRanges, runs
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.scan import BATCH_ROWS
from aioprefetch.scheduler.decode_loop import BatchOptions, DecodeLoop
from aioprefetch.scheduler.io_service import IoService
from aioprefetch.scheduler.pages import PreparedScan, ScanPart

# A window ends after this many rows of the first scan, or bytes of matches. A page that lies in two windows
# is read for both.
WINDOW_ROWS = 1 << 19
WINDOW_BYTES = 16 << 20
# The windows between the two scans.
_WINDOWS_AHEAD = 4


class MatchingParts:
    """The parts of a scan with filters, in order: windows of rows that match.

    ``first`` reads the columns of the filters, ``second`` the others. ``limit`` is the number of matches that the
    caller wants.
    """

    def __init__(
        self, table: TableScan, row_filter: RowFilter, first: IoService, second: IoService, limit: int | None
    ) -> None:
        schema = table.projection.read_schema
        self._table = table
        self._filter = row_filter
        self._first, self._second = first, second
        self._limit = table.rows if limit is None else limit
        self._own = [place for place, name in enumerate(schema.names) if name in row_filter.names]
        self._others = [place for place in range(len(schema)) if place not in self._own]
        row_bytes = (table.wanted_bytes or 0) / max(table.rows, 1)
        self._hole_rows = max(HOLE_ROWS_MAX, int(second.gap_bytes / row_bytes) if row_bytes else 0)
        self._parts: deque[TablePart] = deque()
        self._room = asyncio.Semaphore(_WINDOWS_AHEAD)

    async def parts(self, runtime: Runtime) -> AsyncIterator[ScanPart]:
        """One part for each window with matches. Closed early, it ends the first scan."""
        schema = chosen_columns(self._table.projection.read_schema, self._own)
        scan = PreparedScan(schema, self._first_parts(), self._first)
        loop = DecodeLoop(runtime, scan, BatchOptions(BATCH_ROWS), path=self._filter.path)
        loop.start()
        try:
            at = start = 0
            left = self._limit
            window: list[tuple[RowNumbers, pa.RecordBatch]] = []
            while (batch := await loop.next_batch()) is not None:
                part = self._parts[0]
                self._second.has_received |= self._first.has_received
                places, found = await runtime.run_blocking(partial(self._found, batch, left))
                if found.num_rows:
                    window.append((at + places, found))
                left -= found.num_rows
                at += batch.num_rows
                size_bytes = sum(one.nbytes for _, one in window)
                if left and at < part.rows and at - start < WINDOW_ROWS and size_bytes < WINDOW_BYTES:
                    continue
                if window:
                    await self._room.acquire()
                    yield await self._second_part(part, window)
                if not left:
                    return
                if at == part.rows:
                    self._parts.popleft()
                    at = 0
                start, window = at, []
        finally:
            await loop.aclose()

    async def _first_parts(self) -> AsyncGenerator[ScanPart, None]:
        schema = chosen_columns(self._table.projection.read_schema, self._own)
        async with aclosing(self._table.parts()) as parts:
            async for part in parts:
                self._parts.append(part)
                yield await part.bind(self._first, schema, self._own)

    def _found(self, batch: pa.RecordBatch, most: int) -> tuple[RowNumbers, pa.RecordBatch]:
        """The rows of a batch that match, the first ``most`` of them, and their positions."""
        row_filter = self._filter
        seen = pa.Table.from_batches([batch])
        mask = row_mask(seen, row_filter.expression, rows=batch.num_rows, path=row_filter.path).fill_null(False)
        return np.flatnonzero(mask)[:most], kept_rows(batch, mask, path=row_filter.path)[:most]

    async def _second_part(self, part: TablePart, window: Sequence[tuple[RowNumbers, pa.RecordBatch]]) -> ScanPart:
        wanted = part.rows_at(np.concatenate([places for places, _ in window]))
        exact = runs(wanted)
        is_hole = exact.starts[1:] - exact.ends[:-1] > self._hole_rows
        ranges = RowRanges(exact.starts[np.append(True, is_hole)], exact.ends[np.append(is_hole, True)])
        owners = ranges.starts.searchsorted(wanted, side="right") - 1
        dropped = np.ones(ranges.rows, bool)
        dropped[wanted - ranges.starts[owners] + ranges.positions[owners]] = False
        near = replace(part, ranges=ranges, dropped=np.flatnonzero(dropped), on_close=self._room.release)
        schema = chosen_columns(self._table.projection.read_schema, self._others)
        matches = table_of([found for _, found in window], window[0][1].schema)
        finish = partial(_merged, self._table.projection, self._own, self._others, matches)
        return await near.bind(self._second, schema, self._others, finish)


def _merged(
    projection: Projection,
    own: list[int],
    others: list[int],
    matches: pa.Table,
    batch: pa.RecordBatch,
    first_row: int,
) -> pa.RecordBatch:
    """The columns of the result, of a batch of the second scan and of those rows among the matches of the first."""
    before = matches.slice(first_row, batch.num_rows).combine_chunks()
    columns = dict(zip(others, batch.columns, strict=True))
    columns |= {place: column.chunk(0) for place, column in zip(own, before.columns, strict=True)}
    read = [columns[place] for place in range(len(columns))]
    return selected(projection.schema, pa.RecordBatch.from_arrays(read, schema=projection.read_schema), first_row)

"""Filters that are evaluated before other columns are read, so that only what they leave of these is requested.

Statistics and page indexes know nothing of many filters. Where the columns of a filter are few bytes beside the others,
they are read and decoded first, row group after row group. The rows that match, and short gaps between them, are then
planned and read as if the caller had asked for these rows alone: with the filter, which decides once more.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace

import numpy as np
import pyarrow as pa

from aioprefetch import arrow_compute as pc
from aioprefetch.filters import filter_expression, row_mask
from aioprefetch.operator.operator import Operator
from aioprefetch.parquet.byte_plan import Plan, PlanLimits
from aioprefetch.parquet.chunks import SparseFile
from aioprefetch.parquet.columns import Projection
from aioprefetch.parquet.file_part import BUDGET_SHARE, file_part, memory_limits, service_of
from aioprefetch.parquet.footer import Footer
from aioprefetch.parquet.page_metadata import PageOptions
from aioprefetch.parquet.plan import ScanArguments, plan_scan
from aioprefetch.parquet.pruning import filter_columns, normalized_filters
from aioprefetch.ranges import Range, intersected, joined
from aioprefetch.row_ranges import RowRanges
from aioprefetch.scheduler.decode_loop import BatchOptions, DecodeLoop
from aioprefetch.scheduler.pages import PreparedScan, ScanPart

# Other columns of fewer bytes arrive in the time of the round trip that it would take to know which rows match.
OTHERS_BYTES_MIN = 8 << 20
# If everything matches, the columns of the filter are read twice: at most this share (1 / n) of the others.
OWN_SHARE = 4
# A gap of at most this many rows between two matches is read with them: a new range costs as much as decoding it.
_GAP_ROWS = 8192
# The share (1 / n) of the scan's memory for the columns of the filter.
_MEMORY_SHARE = 4
# The rows for which a filter is evaluated at once.
_BATCH_ROWS = 131_072


class FilterColumns:
    """The columns of the filters of one file, which are read first."""

    def __init__(
        self, operator: Operator, footer: Footer, arguments: ScanArguments, own: Plan, limits: PlanLimits
    ) -> None:
        """``own`` are their reads."""
        self._operator = operator
        self._footer = footer
        self._arguments = arguments
        self._own = own
        self._limits = limits
        self._rows = RowRanges.of(own.rows)
        filters = normalized_filters(arguments.filters, footer)
        self._expression: pc.Expression = filter_expression(filters, path=footer.path)
        self._projection = Projection(footer, own.columns, filter_columns(footer, filters))

    @classmethod
    async def of(
        cls, operator: Operator, footer: Footer, arguments: ScanArguments, plan: Plan, limits: PlanLimits
    ) -> FilterColumns | None:
        """The columns of the filters, if they are few bytes of ``plan`` and may leave row groups or pages out of it."""
        if arguments.filters is None or not arguments.filters_rows or plan.requested_bytes < OTHERS_BYTES_MIN:
            return None
        if arguments.counted is not None:  # A count reads no other columns, and each plan would count once more.
            return None
        chunks = footer.chunks[plan.row_groups[0]] if plan.row_groups else []
        if len(plan.row_groups) < 2 and not any(chunks[leaf].offset_index for leaf in plan.columns if chunks):
            return None
        own = await plan_scan(footer, replace(arguments, columns=[]), limits)
        others = plan.requested_bytes - own.requested_bytes
        if others < max(OTHERS_BYTES_MIN, OWN_SHARE * own.requested_bytes):
            return None
        return cls(operator, footer, arguments, own, limits)

    def _shares(self, given: Mapping[str, int]) -> tuple[int, int]:
        """The memory for the columns of the filters, and for the others."""
        budget = given.get("budget_bytes", self._operator.runtime().options.memory_bytes // BUDGET_SHARE)
        return budget // _MEMORY_SHARE, budget - budget // _MEMORY_SHARE

    def others_bytes(self, given: Mapping[str, int]) -> int:
        """The memory for the other columns, of what the scan was ``given``."""
        return self._shares(given)[1]

    async def parts(
        self, part_of: Callable[..., ScanPart], given: Mapping[str, int], pages: PageOptions
    ) -> AsyncGenerator[ScanPart]:
        """The parts with rows that match, a row group or some in each; ``part_of`` makes them of their plans."""
        footer, runtime = self._footer, self._operator.runtime()
        memory = memory_limits(self._own, self._shares(given)[0], runtime.options.memory_bytes)
        service = service_of(self._operator, self._own, memory, given)
        own = file_part(
            *(footer, self._own, self._projection, service, memory),
            batch_rows=_BATCH_ROWS,
            pages=pages,
            finish=self._matching_ranges,
        )
        shared = SparseFile(footer.size, path=footer.path)
        scan = PreparedScan(self._projection.schema, [own], service)
        loop = DecodeLoop(runtime, scan, BatchOptions(_BATCH_ROWS), path=footer.path)
        async with aclosing(self._by_row_groups(loop)) as found:
            async for rows in found:
                plan = await plan_scan(footer, replace(self._arguments, rows=rows), self._limits)
                if plan.row_count:
                    yield part_of(plan, memory=shared, rank=plan.row_groups[0])

    def _matching_ranges(self, batch: pa.RecordBatch, first_row: int) -> pa.RecordBatch:
        """The ranges of the file's rows in which those of a batch match, and an empty one where the batch ends."""
        seen = pa.Table.from_batches([batch])
        mask = row_mask(seen, self._expression, rows=batch.num_rows, path=self._footer.path)
        numbers = self._rows.rows_between(first_row, first_row + batch.num_rows)
        found, end = numbers[pc.indices_nonzero(mask).to_numpy()], numbers[-1:] + 1
        breaks = np.flatnonzero(np.diff(found) > _GAP_ROWS) + 1
        starts = np.concatenate((found[:1], found[breaks], end))
        ends = np.concatenate((found[breaks - 1] + 1, found[-1:] + 1, end))
        return pa.RecordBatch.from_arrays([pa.array(starts), pa.array(ends)], ["start", "end"])

    async def _by_row_groups(self, loop: DecodeLoop) -> AsyncGenerator[Sequence[Range]]:
        """The ranges of rows that match, as soon as all of the row groups is known in which they are."""
        borders, done, found = self._footer.first_rows, 0, list[Range]()
        loop.start()
        try:
            while (batch := await loop.next_batch()) is not None:
                starts, ends = (column.to_pylist() for column in batch.columns)
                found = joined([*found, *zip(starts, ends, strict=True)])
                border = borders[bisect_right(borders, ends[-1]) - 1]
                if ready := intersected(found, [(done, border)]):
                    yield ready
                done, found = border, intersected(found, [(border, borders[-1])])
            if found:
                yield found
        finally:
            await loop.aclose()

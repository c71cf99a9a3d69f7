"""Scans of Parquet files: the arguments of the caller become the columns that the two loops work on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from aioprefetch.errors import ConfigInvalid, InvalidType
from aioprefetch.operator.arguments import check_file
from aioprefetch.parquet.byte_plan import Plan, PlanLimits
from aioprefetch.parquet.filters import Filters, check_expression, filter_expression, filtered
from aioprefetch.parquet.footer import TAIL_BYTES_EVERYTHING, Footer, seen_size
from aioprefetch.parquet.footer import footer as read_footer
from aioprefetch.parquet.page_header import PAGE_BYTES_DEFAULT, PageOptions
from aioprefetch.parquet.plan import ScanArguments, plan_scan, scan_arguments
from aioprefetch.parquet.projection import Projection
from aioprefetch.parquet.pruning import filter_columns, normalized_filters
from aioprefetch.parquet.row_groups import LeafScheduler, WindowsDecoder
from aioprefetch.parquet.sparse_file import SparseFile
from aioprefetch.parquet.windows import WindowMaker
from aioprefetch.ranges import at_least
from aioprefetch.scan import BATCH_ROWS, BatchScan, batch_options, io_options
from aioprefetch.scheduler.decode_loop import READAHEAD_BATCHES
from aioprefetch.scheduler.io_service import IoService
from aioprefetch.scheduler.pages import PreparedScan, ScanPart

if TYPE_CHECKING:
    from aioprefetch.operator.operator import Operator

# The rows and bytes of a table that are decoded at once, and become a chunk of each column.
TABLE_BATCH_ROWS = 131_072
TABLE_BATCH_BYTES = 256 << 20

Finish = Callable[[pa.RecordBatch], "pa.RecordBatch | None"]


def scan(
    operator: Operator,
    path: str,
    *,
    columns: Iterable[str] | None = None,
    row_groups: Iterable[int] | None = None,
    rows: Sequence[int] | Iterable[Sequence[int]] | None = None,
    filters: Any = None,
    batch_rows: int = BATCH_ROWS,
    batch_bytes: int | None = None,
    readahead: int = READAHEAD_BATCHES,
    gap_bytes: int | None = None,
    request_bytes_max: int | None = None,
    budget_bytes: int | None = None,
    slots: int | None = None,
    page_checksums: bool = True,
    page_bytes_max: int | None = None,
    footer: Footer | None = None,
    size: int | None = None,
    version: str | None = None,
    if_match: str | None = None,
) -> BatchScan:
    """The record batches of a Parquet file, decoded by pyarrow; a plain call without I/O.

    Values, types and schema are those of ``pyarrow.parquet.read_table`` with the same ``columns`` and ``filters``.

    Parameters
    ----------
    columns
        Names, in the order of the result. ``"a.b"`` is field ``b`` of struct ``a``, and comes as a column ``b``. An
        empty list gives batches with rows and no columns, for which no data is requested.
    row_groups
        Numbers of row groups; they are read in the order of the file.
    rows
        ``(start, stop)`` of the file's rows, or a list of such ranges, cut at the end of the file. Together with
        ``row_groups``: rows that are in both.
    filters
        As in pyarrow: ``[(column, operator, value), ...]``, lists of these, or an Expression. Row groups and pages
        whose statistics match nothing are not requested.
    batch_rows, batch_bytes, readahead
        See ``BatchScan``: rows of a batch, bytes of Arrow memory of a batch (estimated from the footer and the batches
        before), batches decoded ahead of the consumer.
    gap_bytes, request_bytes_max
        Ranges with a gap of at most ``gap_bytes`` between them share a request of at most ``request_bytes_max``; see
        ``plan``.
    budget_bytes, slots
        The memory for pages, and the requests in flight (``IoService``).
    page_checksums
        Verify the checksum of each page whose header has one, of dictionaries too: a bit that flipped on the way or in
        the store is ``UntrustedMetadata``.
    page_bytes_max
        A compressed page whose header claims to become more bytes is refused (``UntrustedMetadata``) before anything is
        decompressed: 256 MiB, or the runtime's ``memory_bytes`` if that is less. Pages of more than 16 MiB that are
        decoded at the same time, one of each column of a row group, may not become more than ``memory_bytes`` together,
        or than this (``BudgetExhausted``).
    footer
        A footer of this file that was read before: its version is read, without a request for the metadata.
    size
        The size of the file, if it is known. A file of at most a block is then read whole by one request.
    version, if_match
        The version or the ETag that the file must have.

    Raises ``InvalidArgument`` at once for invalid options, and for the footer of another path. The first
    batch raises ``NotFound``, ``InvalidArgument`` for columns, row groups, rows and filters that do not go with the
    file, ``UntrustedMetadata`` for a damaged file, with the row group and the columns, and ``Unsupported`` for what
    pyarrow does not read.
    """
    check_file(path, "scan")
    options = batch_options(batch_rows, batch_bytes, readahead, path=path)
    limits = io_options(
        path, gap_bytes=gap_bytes, request_bytes_max=request_bytes_max, budget_bytes=budget_bytes, slots=slots
    )
    arguments = scan_arguments(path, columns=columns, row_groups=row_groups, rows=rows, filters=filters)
    if size is not None:
        size = at_least(0, size, "size", operation="scan", path=path)
    if page_bytes_max is not None:
        page_bytes_max = at_least(1, page_bytes_max, "page_bytes_max", operation="scan", path=path)
    if not isinstance(page_checksums, bool):
        raise InvalidType(f"page_checksums must be a bool, not {page_checksums!r}", operation="scan", path=path)
    if footer is not None:
        _check_footer(footer, path)

    async def prepare() -> PreparedScan:
        current = footer
        if current is None:
            current = await read_footer(
                operator,
                path,
                version=version,
                if_match=if_match,
                everything=True,
                size=seen_size(operator, path) if size is None else size,
            )
        memory_bytes = operator.runtime().options.memory_bytes
        page_bytes = page_bytes_max or min(PAGE_BYTES_DEFAULT, memory_bytes)
        pages = PageOptions(page_checksums, page_bytes, max(page_bytes, memory_bytes))
        return await _prepared(operator, current, arguments, limits, options.rows, pages)

    return BatchScan(operator, prepare, path=path, options=options)


async def read_table(operator: Operator, path: str, **options: Any) -> pa.Table:
    """The batches of ``scan`` with the same options as one table, equal to that of ``pyarrow.parquet.read_table``.

    Since the whole table will be in memory, its pages may take all memory of the runtime, and its chunks are larger
    than a scan's batches: 131,072 rows, or 256 MiB.
    """
    large = {
        "batch_rows": TABLE_BATCH_ROWS,
        "batch_bytes": TABLE_BATCH_BYTES,
        "budget_bytes": operator.runtime().options.memory_bytes,
    }
    options = large | options
    return await scan(operator, path, **options).read_all()


async def _prepared(
    operator: Operator,
    footer: Footer,
    arguments: ScanArguments,
    limits: Mapping[str, int],
    batch_rows: int,
    pages: PageOptions,
) -> PreparedScan:
    runtime = operator.runtime()
    plan = await plan_scan(
        footer,
        arguments,
        gap_bytes=limits.get("gap_bytes"),
        request_bytes_max=limits.get("request_bytes_max"),
        limits=PlanLimits.of(runtime, footer, limits.get("slots")),
    )
    memory = memory_limits(plan, limits.get("budget_bytes"), runtime.options.memory_bytes)
    service = IoService(
        operator.accessor(),
        runtime,
        gap_bytes=plan.gap_bytes,
        request_bytes_max=memory.request_bytes_max,
        budget_bytes=memory.held_bytes,
        slots=limits.get("slots"),
    )
    prepared = prepared_scan(footer, plan, service, memory, arguments, batch_rows=batch_rows, pages=pages)
    if len(footer.pinned.tail) > TAIL_BYTES_EVERYTHING:
        service.carry(len(footer.pinned.tail))
    return prepared


def prepared_scan(
    footer: Footer,
    plan: Plan,
    service: IoService,
    limits: MemoryLimits,
    arguments: ScanArguments,
    *,
    batch_rows: int,
    pages: PageOptions,
) -> PreparedScan:
    """The parts of a planned scan: a file has one."""
    projection = Projection(footer.metadata, footer.shape.paths, plan.columns, arguments.columns, footer.int96_unit)
    finish = _finish(projection, footer, arguments.filters)
    memory = SparseFile(footer.size, path=footer.path)
    windows, units = WindowMaker(footer, plan, projection, memory, pages, segment_bytes=limits.segment_bytes).make(
        batch_rows
    )
    part = ScanPart(
        columns=[LeafScheduler(unit, plan.row_count) for unit in units],
        root=WindowsDecoder(
            windows,
            projection.read,
            on_loop=partial(_on_loop, service.runtime.loop),
            is_memory_short=limits.is_short,
        ),
        io=service.file(
            footer.pinned,
            memory=memory,
            planned=(*plan.requests, *plan.held_ranges),
            wanted=plan.wanted_ranges(footer.pinned.tail_start),
        ),
        rows=plan.row_count,
    )
    return PreparedScan(projection.schema, [part], service, finish)


def _on_loop(loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # The loop is closed, and with it the scan.
        loop.call_soon_threadsafe(work)


def _finish(projection: Projection, footer: Footer, filters: Filters) -> Finish | None:
    normalized = normalized_filters(filters, footer)
    expression = filter_expression(normalized, path=footer.path)
    if expression is None:
        return None if projection.is_identity else projection.apply
    names = filter_columns(footer, normalized)
    check_expression(projection.read, expression, names, path=footer.path)  # A file without rows would not show it.
    return partial(_filter_and_project, projection, expression, names, footer.path)


def _filter_and_project(
    projection: Projection, expression: pc.Expression, names: Sequence[str], path: str, batch: pa.RecordBatch
) -> pa.RecordBatch | None:
    kept = filtered(batch, expression, names, path=path)
    return projection.apply(kept) if kept.num_rows else None


def _check_footer(footer: object, path: str) -> None:
    if not isinstance(footer, Footer):
        raise InvalidType(f"footer must be a Footer, not {footer!r}", operation="scan", path=path)
    if footer.path != path:
        raise ConfigInvalid(f"the footer is that of {footer.path!r}, not of {path!r}", operation="scan", path=path)


# --- memory -----------------------------------------------------------------------------------------------------------


# A scan without a budget takes 1/2 of the runtime's memory, so that readers and another scan have some.
_BUDGET_SHARE = 2

# If a scan's own budget is short, 1/2 of it is for received pages. The rest is for pyarrow's decoding: a decompressed
# page of each column, and the memory of dropped batches that its allocator keeps.
_PAGES_SHARE = 2

# The number of row groups that must fit: the current one and the next. Larger ones stream through the memory in
# segments, of which a leaf holds two at once while four are in flight.
_ROW_GROUPS_HELD = 2
_SEGMENTS_HELD = 6

# If not everything fits, at least this number of requests must: a few large ones would arrive one after the other.
_REQUESTS_HELD = 8

# Smaller segments would cost more time in requests than they save in memory.
_SEGMENT_BYTES_MIN = 256 << 10


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """``held_bytes`` of pages at once (0: no bound), of which chunks are read in pieces of ``segment_bytes`` at most.

    No request has more than ``request_bytes_max``. ``is_short``: not everything fits, so that a slow consumer stops the
    reads. ``is_cut``: row groups do not fit, and their chunks are cut into smaller segments than were planned.
    """

    held_bytes: int
    segment_bytes: int
    request_bytes_max: int
    is_short: bool
    is_cut: bool = False


def memory_limits(plan: Plan, budget_bytes: int | None, memory_bytes: int) -> MemoryLimits:
    """The limits for a plan with the scan's own budget, if it has one, in a runtime of ``memory_bytes``."""
    segment_bytes = plan.request_bytes_max
    # Held ranges are cut: they are copied on the loop in pieces, and may be as large as the runtime's memory.
    largest = max((end - start for start, end in plan.requests), default=0)
    largest = max(largest, segment_bytes)
    if budget_bytes == 0:
        return MemoryLimits(0, segment_bytes, largest, is_short=False)
    budget = memory_bytes // _BUDGET_SHARE if budget_bytes is None else min(budget_bytes, memory_bytes)
    if plan.projected_bytes <= budget:
        return MemoryLimits(budget, segment_bytes, largest, is_short=False)
    held = budget if budget_bytes is None else max(budget // _PAGES_SHARE, 1)
    if _largest_row_group(plan) * _ROW_GROUPS_HELD <= held:
        request_bytes_max = max(segment_bytes, min(largest, held // _REQUESTS_HELD))
        return MemoryLimits(held, segment_bytes, request_bytes_max, is_short=True)
    smaller = min(max(held // (_SEGMENTS_HELD * len(plan.columns)), _SEGMENT_BYTES_MIN), segment_bytes)
    return MemoryLimits(held, smaller, smaller, is_short=True, is_cut=True)


def _largest_row_group(plan: Plan) -> int:
    groups = groupby(plan.chunks, key=lambda planned: planned.chunk.row_group)
    return max((sum(high - low for chunk in group for low, high in chunk.ranges) for _, group in groups), default=0)

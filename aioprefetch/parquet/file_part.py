"""One planned file as a part of a scan: columns for the scheduling loop, windows of row groups for the decode loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import attrgetter

import pyarrow as pa

from aioprefetch.operator.operator import Operator
from aioprefetch.parquet.byte_plan import Plan, PlannedChunk
from aioprefetch.parquet.chunk_columns import ChunkColumns, ChunkRead, GroupRows
from aioprefetch.parquet.chunks import ColumnChunk, SparseFile, WantedRows
from aioprefetch.parquet.columns import Projection
from aioprefetch.parquet.footer import Footer
from aioprefetch.parquet.page_metadata import UNCOMPRESSED, LargePages, PageOptions
from aioprefetch.parquet.paged_leaf import FooterParts, PagedField, PagedLeaf, can_be_merged
from aioprefetch.parquet.row_groups import ColumnSource, LeafScheduler, Unit, Window, WindowsDecoder, has_dictionaries
from aioprefetch.ranges import joined
from aioprefetch.scheduler.io_service import IoService, ScannedFile
from aioprefetch.scheduler.pages import ScanPart

# Neighbouring chunks of a row group are submitted together as long as they have no more bytes than this.
SMALL_GROUP_BYTES = 512 << 10

# Small row groups are decoded together until they have the rows of this number of batches, if columns are decoded in
# parallel. With fewer columns than processors windows are decoded in parallel, so they are small.
_WINDOW_BATCHES = 4

# The memory of a value by the number of its physical type: booleans, integers of 32, 64 and 96 bits, floating point.
_VALUE_BYTES = {0: 1 / 8, 1: 4, 2: 8, 3: 8, 4: 4, 5: 8}
# An estimate of the expansion of compressed pages if the footer has no uncompressed size.
_USUAL_COMPRESSION = 4


@dataclass(frozen=True, slots=True)
class _RowGroup:
    """The reads of one row group."""

    chunks: Sequence[PlannedChunk]
    wanted: GroupRows
    large_pages: LargePages

    @property
    def number(self) -> int:
        return self.chunks[0].chunk.row_group

    @property
    def rows(self) -> int:
        return self.chunks[0].chunk.rows

    @property
    def count(self) -> int:
        return self.wanted.wanted.count

    @property
    def is_paged(self) -> bool:
        return any(map(attrgetter("pages"), self.chunks))


class WindowMaker:
    """Makes the windows of one plan, and the units of each leaf: parts of at most ``segment_bytes``.

    Neighbouring chunks of a row group are submitted together while they have at most ``small_group_bytes`` together.
    """

    def __init__(
        self,
        footer: Footer,
        plan: Plan,
        projection: Projection,
        memory: SparseFile,
        pages: PageOptions,
        *,
        segment_bytes: int,
        small_group_bytes: int | None = None,
    ) -> None:
        self._page_options = pages
        self._footer = footer
        self._plan = plan
        self._projection = projection
        self._memory = memory
        self._segment_bytes = segment_bytes
        self._small_group_bytes = SMALL_GROUP_BYTES if small_group_bytes is None else small_group_bytes
        self._units: list[list[Unit]] = [[] for _ in plan.columns]
        self._tail_is_there = False
        self._footer_parts: FooterParts | None = None
        self._place_of = dict(zip(plan.columns, projection.places, strict=True))

    def make(self, batch_rows: int) -> tuple[list[Window], list[list[Unit]]]:
        """The windows in row order, and for each leaf of the plan its units."""
        if not self._plan.columns:
            return [Window(self._plan.row_count, [])], []
        groups: list[_RowGroup] = []
        first = 0
        for _, chunks in groupby(self._plan.chunks, key=attrgetter("chunk.row_group")):
            planned = list(chunks)
            large_pages = LargePages(self._page_options.together_bytes_max, self._footer.path)
            wanted = GroupRows(WantedRows(planned[0].rows), first, self._memory, self._footer.path, self._page_options)
            groups.append(_RowGroup(planned, wanted, large_pages))
            first += groups[-1].count
        window_rows = batch_rows * (1 if len(self._plan.columns) < pa.cpu_count() else _WINDOW_BATCHES)
        if has_dictionaries(self._projection.read):
            window_rows = 1
        windows = [
            self._paged_window(together[0]) if together[0].is_paged else self._window(together)
            for together in _grouped(groups, window_rows)
        ]
        return windows, self._units

    def _window(self, groups: Sequence[_RowGroup]) -> Window:
        ranges: list[tuple[int, int]] = []
        position = 0
        for group in groups:
            ranges += [(position + low, position + high) for low, high in group.wanted.wanted.ranges]
            position += group.rows
        wanted = WantedRows(joined(ranges))
        return Window(wanted.count, [self._whole_columns([self._parts(group) for group in groups], wanted, groups[0])])

    def _whole_columns(
        self, parts: Sequence[Sequence[ChunkRead]], wanted: WantedRows, group: _RowGroup
    ) -> ChunkColumns:
        """The source of columns whose chunks are read whole; ``group`` is the first row group."""
        leaves = [chunk.column for part in parts[0] for chunk in part.chunks]
        places = [self._place_of[leaf] for leaf in leaves]
        return ChunkColumns(
            parts,
            wanted=wanted,
            open_source=self._memory.source,
            metadata=self._footer.metadata,
            int96=self._footer.int96,
            pages=self._page_options,
            places=sorted(set(places)),
            row_bytes=self._row_bytes(group, set(leaves)),
            path=self._footer.path,
        )

    # --- page by page ---------------------------------------------------------------------------------------------

    def _paged_window(self, group: _RowGroup) -> Window:
        """One row group with chunks that are read page by page."""
        by_place: dict[int, list[int]] = {}
        for index, place in enumerate(self._projection.places):
            by_place.setdefault(place, []).append(index)
        sources: list[ColumnSource] = []
        whole: list[int] = []
        for place, indices in by_place.items():
            kind = self._projection.read.field(place).type
            paged = [index for index in indices if group.chunks[index].pages is not None]
            if paged and can_be_merged(kind, len(indices)):
                sources.append(self._paged_field(group, place, paged, [i for i in indices if i not in paged]))
            else:
                whole += indices
        if whole:
            sources.append(self._apart(group, whole))
        return Window(group.count, sources)

    def _paged_field(self, group: _RowGroup, place: int, paged: Sequence[int], others: Sequence[int]) -> PagedField:
        leaves = [self._paged_leaf(group, index) for index in paged]
        return PagedField(
            place,
            self._projection.read.field(place).type,
            leaves,
            self._apart(group, others) if others else None,
            row_bytes=self._row_bytes(group, {leaf.chunk.column for leaf in leaves}),
        )

    def _paged_leaf(self, group: _RowGroup, index: int) -> PagedLeaf:
        if self._footer_parts is None:
            self._footer_parts = FooterParts(self._footer)
        planned = group.chunks[index]
        leaf = PagedLeaf(planned, self._footer_parts, group.wanted, group.large_pages, part_bytes=self._segment_bytes)
        self._units[index].append(leaf)
        return leaf

    def _apart(self, group: _RowGroup, indices: Sequence[int]) -> ChunkColumns:
        """Leaves of a row group, each scheduled separately."""
        reads = [ChunkRead([group.chunks[index].chunk], group.wanted, self._segment_bytes) for index in indices]
        for index, read in zip(indices, reads, strict=True):
            self._units[index].append(read)
        return self._whole_columns([reads], group.wanted.wanted, group)

    # --- chunk by chunk -------------------------------------------------------------------------------------------

    def _parts(self, group: _RowGroup) -> list[ChunkRead]:
        parts: list[ChunkRead] = []
        bytes_max = min(self._small_group_bytes, self._segment_bytes)
        for first, last in _runs([planned.chunk.end - planned.chunk.start for planned in group.chunks], bytes_max):
            chunks = [planned.chunk for planned in group.chunks[first:last]]
            if len(chunks) > 1 or chunks[0].size <= bytes_max:
                read = ChunkRead(chunks, group.wanted, is_resident=self._is_resident(chunks))
            else:
                read = ChunkRead(chunks, group.wanted, self._segment_bytes)
            self._units[first].append(read)
            parts.append(read)
        return parts

    def _is_resident(self, chunks: Sequence[ColumnChunk]) -> bool:
        """Whether all chunks arrived with the footer. If so, they are put into the memory."""
        pinned = self._footer.pinned
        if min([chunk.start for chunk in chunks]) < pinned.tail_start:
            return False
        if not self._tail_is_there:
            self._tail_is_there = True
            start = pinned.tail_start
            self._memory.put(start, pinned.tail[: self._footer.start - start])
        for chunk in chunks:
            pinned.publish_served(chunk.start, chunk.end)
        return True

    def _row_bytes(self, group: _RowGroup, leaves: Set[int]) -> float:
        """The memory of a row of these leaves: a guess if values differ in size, which the first batches correct."""
        total = 0.0
        for planned in group.chunks:
            chunk = planned.chunk
            if chunk.column in leaves and chunk.rows:
                value_bytes = _VALUE_BYTES.get(self._footer.shape.physical_types[chunk.column], 0)  # 0 if they differ.
                total += (value_bytes * chunk.num_values or _decoded_bytes(chunk)) / chunk.rows
        return total


def _decoded_bytes(chunk: ColumnChunk) -> int:
    """The size of a chunk's pages before compression, guessed if the footer has none."""
    if chunk.uncompressed_bytes:
        return max(chunk.uncompressed_bytes, chunk.size)
    return chunk.size * (1 if chunk.codec == UNCOMPRESSED else _USUAL_COMPRESSION)


def _grouped(groups: Sequence[_RowGroup], window_rows: int) -> list[list[_RowGroup]]:
    """Row groups by window: those with ``window_rows`` rows alone, smaller ones together until they have that number.

    A row group that is read page by page is alone, too.
    """
    grouped: list[list[_RowGroup]] = []
    rows = window_rows
    for group in groups:
        if rows >= window_rows or group.count >= window_rows or group.is_paged:
            grouped.append([])
            rows = 0
        grouped[-1].append(group)
        rows += window_rows if group.is_paged else group.count
    return grouped


def _runs(sizes: Sequence[int], bytes_max: int) -> list[tuple[int, int]]:
    """Numbers in runs of neighbours with at most ``bytes_max`` bytes together; a larger one is alone."""
    runs: list[tuple[int, int]] = []
    first = taken = 0
    for number, size in enumerate(sizes):
        if number > first and taken + size > bytes_max:
            runs.append((first, number))
            first, taken = number, 0
        taken += size
    if sizes:
        runs.append((first, len(sizes)))
    return runs


Finish = Callable[[pa.RecordBatch, int], "pa.RecordBatch | None"]


def file_part(
    footer: Footer,
    plan: Plan,
    projection: Projection,
    service: IoService,
    limits: MemoryLimits,
    *,
    batch_rows: int,
    pages: PageOptions,
    finish: Finish | None = None,
    rank: int = 0,
    on_close: Callable[[], None] | None = None,
    memory: SparseFile | None = None,
) -> ScanPart:
    """The part of a planned file. Files with a smaller ``rank`` are needed before it.

    ``finish`` is applied to its batches (``ScanPart``); ``on_close`` is called when all its pages are released.
    Parts of one file may share a ``memory``.
    """
    memory = memory or SparseFile(footer.size, path=footer.path)
    windows, units = WindowMaker(footer, plan, projection, memory, pages, segment_bytes=limits.segment_bytes).make(
        batch_rows
    )
    return ScanPart(
        columns=[LeafScheduler(unit, plan.row_count) for unit in units],
        root=WindowsDecoder(
            windows,
            projection.read,
            on_loop=partial(_on_loop, service.runtime.loop),
            is_memory_short=limits.is_short,
            on_close=on_close,
        ),
        io=ScannedFile(
            service,
            footer.pinned,
            rank=rank,
            memory=memory,
            planned=(*plan.requests, *plan.held_ranges),
            wanted=[pair for planned in plan.chunks for pair in planned.ranges if pair[0] < footer.pinned.tail_start],
            gap_bytes=plan.gap_bytes,
        ),
        rows=plan.row_count,
        finish=finish,
    )


def service_of(operator: Operator, plan: Plan, memory: MemoryLimits, limits: Mapping[str, int]) -> IoService:
    """The I/O service for the parts of one file."""
    return IoService(
        operator.accessor(),
        operator.runtime(),
        gap_bytes=plan.gap_bytes,
        request_bytes_max=memory.request_bytes_max,
        budget_bytes=memory.held_bytes,
        slots=limits.get("slots"),
    )


def _on_loop(loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # The loop is closed, and with it the scan.
        loop.call_soon_threadsafe(work)


# --- memory -----------------------------------------------------------------------------------------------------------


# A scan without a budget takes 1/2 of the runtime's memory, so that readers and another scan have some.
BUDGET_SHARE = 2

# If a scan's own budget is short, 1/2 of it is for received pages. The rest is for pyarrow's decoding: a decompressed
# page of each column, and the memory of dropped batches that its allocator keeps.
_PAGES_SHARE = 2

# The number of row groups that must fit: the current one and the next. Larger ones stream through the memory in
# segments. A leaf holds two at once while four are in flight.
_ROW_GROUPS_HELD = 2
_SEGMENTS_HELD = 6

# If not everything fits, at least this number of requests must: a few large ones would arrive one after the other.
REQUESTS_HELD = 8

# Smaller segments would cost more time in requests than they save in memory.
SEGMENT_BYTES_MIN = 256 << 10


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """``held_bytes`` of pages at once (0: no bound); chunks are read in pieces of ``segment_bytes`` at most.

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
    budget = memory_bytes // BUDGET_SHARE if budget_bytes is None else min(budget_bytes, memory_bytes)
    if plan.projected_bytes <= budget:
        return MemoryLimits(budget, segment_bytes, largest, is_short=False)
    held = budget if budget_bytes is None else max(budget // _PAGES_SHARE, 1)
    if _largest_row_group(plan) * _ROW_GROUPS_HELD <= held:
        request_bytes_max = max(segment_bytes, min(largest, held // REQUESTS_HELD))
        return MemoryLimits(held, segment_bytes, request_bytes_max, is_short=True)
    smaller = min(max(held // (_SEGMENTS_HELD * len(plan.columns)), SEGMENT_BYTES_MIN), segment_bytes)
    return MemoryLimits(held, smaller, smaller, is_short=True, is_cut=True)


def _largest_row_group(plan: Plan) -> int:
    groups = groupby(plan.chunks, key=attrgetter("chunk.row_group"))
    return max((sum(high - low for chunk in group for low, high in chunk.ranges) for _, group in groups), default=0)

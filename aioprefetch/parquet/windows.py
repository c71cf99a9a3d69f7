"""From a plan to windows: the row groups that are decoded together, and the pieces in which their chunks are read."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa

from aioprefetch.parquet.byte_plan import Plan, PlannedChunk
from aioprefetch.parquet.chunk_columns import ChunkColumns, GroupPart, GroupRead
from aioprefetch.parquet.chunk_read import ChunkRead
from aioprefetch.parquet.chunks import ColumnChunk
from aioprefetch.parquet.footer import Footer
from aioprefetch.parquet.page_file import FooterParts
from aioprefetch.parquet.page_header import UNCOMPRESSED, LargePages, PageOptions
from aioprefetch.parquet.paged_leaf import PagedField, PagedLeaf, can_be_merged
from aioprefetch.parquet.projection import Projection
from aioprefetch.parquet.row_groups import ColumnSource, Unit, Window, has_dictionaries
from aioprefetch.parquet.sparse_file import SparseFile
from aioprefetch.parquet.wanted_rows import WantedRows
from aioprefetch.ranges import joined

# Neighbouring chunks of a row group are submitted together as long as they have no more bytes than this.
SMALL_GROUP_BYTES = 512 << 10

# Small row groups are decoded together until they have the rows of this number of batches, if columns are decoded in
# parallel. With fewer columns than processors windows are decoded in parallel, so they are small.
_WINDOW_BATCHES = 4

# The memory of a value, by its physical type.
_VALUE_BYTES = {"BOOLEAN": 1 / 8, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8}
# An estimate of the expansion of compressed pages if the footer has no uncompressed size.
_USUAL_COMPRESSION = 4


@dataclass(frozen=True, slots=True)
class _RowGroup:
    """The reads of one row group: the first of its ``wanted`` rows is row ``first`` of the scan."""

    chunks: Sequence[PlannedChunk]
    wanted: WantedRows
    first: int
    large_pages: LargePages

    @property
    def number(self) -> int:
        return self.chunks[0].chunk.row_group

    @property
    def rows(self) -> int:
        return self.chunks[0].chunk.rows

    @property
    def is_paged(self) -> bool:
        return any(planned.pages is not None for planned in self.chunks)


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
        self._value_sizes: dict[int, float] = {}
        self._place_of = dict(zip(plan.columns, projection.places, strict=True))

    def make(self, batch_rows: int) -> tuple[list[Window], list[list[Unit]]]:
        """The windows in row order, and for each leaf of the plan its units."""
        if not self._plan.columns:
            return [Window(self._plan.row_count, [])], []
        groups: list[_RowGroup] = []
        first = 0
        for _, chunks in groupby(self._plan.chunks, key=lambda planned: planned.chunk.row_group):
            planned = list(chunks)
            large_pages = LargePages(self._page_options.together_bytes_max, self._footer.path)
            groups.append(_RowGroup(planned, WantedRows(planned[0].rows), first, large_pages))
            first += groups[-1].wanted.count
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
            ranges += [(position + low, position + high) for low, high in group.wanted.ranges]
            position += group.rows
        wanted = WantedRows(joined(ranges))
        return Window(wanted.count, [self._whole_columns([self._parts(group) for group in groups], wanted, groups[0])])

    def _whole_columns(
        self, parts: Sequence[Sequence[GroupPart]], wanted: WantedRows, group: _RowGroup
    ) -> ChunkColumns:
        """The source of columns whose chunks are read whole; ``group`` is the first row group."""
        leaves = [chunk.column for part in parts[0] for chunk in part.chunks]
        places = [self._place_of[leaf] for leaf in leaves]
        return ChunkColumns(
            parts,
            wanted=wanted,
            open_source=self._memory.source,
            metadata=self._footer.metadata,
            int96_unit=self._footer.int96_unit,
            pages=self._page_options,
            places=sorted(set(places)),
            row_bytes=self._row_bytes(group, leaves),
            path=self._footer.path,
        )

    # --- page by page ---------------------------------------------------------------------------------------------

    def _paged_window(self, group: _RowGroup) -> Window:
        """One row group, of which some chunks are read page by page."""
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
        return Window(group.wanted.count, sources)

    def _paged_field(self, group: _RowGroup, place: int, paged: Sequence[int], others: Sequence[int]) -> PagedField:
        leaves = [self._paged_leaf(group, index) for index in paged]
        return PagedField(
            place,
            self._projection.read.field(place).type,
            leaves,
            self._apart(group, others) if others else None,
            row_bytes=self._row_bytes(group, [leaf.chunk.column for leaf in leaves]),
        )

    def _paged_leaf(self, group: _RowGroup, index: int) -> PagedLeaf:
        if self._footer_parts is None:
            self._footer_parts = FooterParts(self._footer)
        planned = group.chunks[index]
        leaf = PagedLeaf(
            planned,
            self._footer_parts,
            wanted=group.wanted,
            first=group.first,
            part_bytes=self._segment_bytes,
            path=self._footer.path,
            pages=self._page_options,
            large_pages=group.large_pages,
        )
        self._units[index].append(leaf)
        return leaf

    def _apart(self, group: _RowGroup, indices: Sequence[int]) -> ChunkColumns:
        """Leaves of a row group, each scheduled separately."""
        reads = [self._chunk_read(group.chunks[index].chunk, group) for index in indices]
        for index, read in zip(indices, reads, strict=True):
            self._units[index].append(read)
        return self._whole_columns([reads], group.wanted, group)

    # --- chunk by chunk -------------------------------------------------------------------------------------------

    def _parts(self, group: _RowGroup) -> list[GroupPart]:
        parts: list[GroupPart] = []
        bytes_max = min(self._small_group_bytes, self._segment_bytes)
        for first, last in _runs([planned.chunk.size for planned in group.chunks], bytes_max):
            chunks = [planned.chunk for planned in group.chunks[first:last]]
            if sum(chunk.size for chunk in chunks) <= bytes_max:
                read: GroupRead | ChunkRead = self._group_read(chunks, group)
            else:
                read = self._chunk_read(chunks[0], group)
            self._units[first].append(read)
            parts.append(read)
        return parts

    def _group_read(self, chunks: Sequence[ColumnChunk], group: _RowGroup) -> GroupRead:
        return GroupRead(
            chunks,
            self._memory,
            wanted=group.wanted,
            first=group.first,
            is_resident=self._is_resident(chunks),
            path=self._footer.path,
            page_bytes_max=self._page_options.bytes_max,
        )

    def _chunk_read(self, chunk: ColumnChunk, group: _RowGroup) -> ChunkRead:
        return ChunkRead(
            chunk,
            self._memory,
            wanted=group.wanted,
            first=group.first,
            segment_bytes=self._segment_bytes,
            path=self._footer.path,
            page_bytes_max=self._page_options.bytes_max,
        )

    def _is_resident(self, chunks: Sequence[ColumnChunk]) -> bool:
        """Whether all chunks arrived with the footer. If so, they are put into the memory."""
        pinned = self._footer.pinned
        if any(chunk.start < pinned.tail_start for chunk in chunks):
            return False
        if not self._tail_is_there:
            self._tail_is_there = True
            start = pinned.tail_start
            self._memory.put(start, pinned.tail[: self._footer.start - start])
        for chunk in chunks:
            pinned.publish_served(chunk.start, chunk.start + chunk.size)
        return True

    def _row_bytes(self, group: _RowGroup, leaves: Collection[int]) -> float:
        """The memory of a row of these leaves: a guess if values differ in size, which the first batches correct."""
        total = 0.0
        for planned in group.chunks:
            chunk = planned.chunk
            if chunk.column in leaves and chunk.rows:
                value_bytes = self._value_bytes(chunk.column)
                usual = chunk.size * (1 if chunk.codec == UNCOMPRESSED else _USUAL_COMPRESSION)
                stored = max(chunk.uncompressed_bytes, chunk.size) if chunk.uncompressed_bytes else usual
                total += (value_bytes * chunk.num_values if value_bytes else stored) / chunk.rows
        return total

    def _value_bytes(self, leaf: int) -> float:
        """The memory of a value of a leaf; 0 if values differ in size."""
        size = self._value_sizes.get(leaf)
        if size is None:
            physical: str = self._footer.metadata.schema.column(leaf).physical_type
            size = self._value_sizes[leaf] = _VALUE_BYTES.get(physical, 0.0)
        return size


def _grouped(groups: Sequence[_RowGroup], window_rows: int) -> list[list[_RowGroup]]:
    """Row groups by window: those with ``window_rows`` rows alone, smaller ones together until they have that number.

    A row group that is read page by page is alone, too.
    """
    grouped: list[list[_RowGroup]] = []
    rows = window_rows
    for group in groups:
        if rows >= window_rows or group.wanted.count >= window_rows or group.is_paged:
            grouped.append([])
            rows = 0
        grouped[-1].append(group)
        rows += window_rows if group.is_paged else group.wanted.count
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

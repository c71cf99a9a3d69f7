"""The byte ranges of a scan, and the requests for them: known before the first request for data is sent.

Row groups are chosen by number, by rows and by statistics, chunks by columns, and rows within row groups by the page
indexes of the columns in filters. ``byte_plan`` turns them into requests. The arguments of the caller are checked
before any I/O and copied, since a scan may begin long after the call.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from aioprefetch.errors import InvalidArgument, InvalidType
from aioprefetch.filters import Filters, checked_filters
from aioprefetch.parquet.byte_plan import Plan, PlanLimits, plan_reads, planned_chunk
from aioprefetch.parquet.chunks import ColumnChunk, column_chunks, resolve_columns
from aioprefetch.parquet.footer import Footer
from aioprefetch.parquet.page_metadata import Indexes, load_page_indexes
from aioprefetch.parquet.pruning import (
    filter_columns,
    filter_tree,
    matching_row_groups,
    normalized_filters,
    page_leaves,
    prune_by_tree,
    prune_pages,
)
from aioprefetch.ranges import Range, checked_int, intersected, joined, total_length
from aioprefetch.scan import column_names, row_ranges


@dataclass(frozen=True, slots=True)
class ScanArguments:
    """The arguments of a scan, checked as well as is possible without the file. ``None`` stands for all.

    Without ``filters_rows`` the filters leave out row groups and pages alone, and their columns are not read for them.
    ``counted`` gets the number of rows that are known to match by statistics: then these are not read.
    """

    columns: Sequence[str] | None = None
    row_groups: Sequence[int] | None = None
    rows: Sequence[Range] | None = None
    filters: Filters = None
    filters_rows: bool = True
    counted: list[int] | None = None

    def limited(self, limit: int | None) -> ScanArguments:
        """These, with the first ``limit`` rows alone where it is known before any is read which they are."""
        if limit == 0:
            return replace(self, rows=[])
        if limit is None or self.filters is not None or self.row_groups is not None:
            return self
        first: list[Range] = []
        for start, end in [(0, limit)] if self.rows is None else joined(self.rows):
            first.append((start, min(end, start + limit - total_length(first))))
        return replace(self, rows=first)


def scan_arguments(
    path: str,
    *,
    columns: object = None,
    row_groups: object = None,
    rows: Any = None,
    filters: Any = None,
    filters_rows: bool = True,
) -> ScanArguments:
    """The arguments of a call. Raises ``InvalidArgument`` for invalid arguments."""
    return ScanArguments(
        columns=None if columns is None else column_names(columns, path=path),
        row_groups=None if row_groups is None else group_numbers(row_groups, path=path),
        rows=None if rows is None else row_ranges(rows, path=path),
        filters=checked_filters(filters, path=path),
        filters_rows=filters_rows,
    )


def group_numbers(row_groups: object, *, path: str = "") -> list[int]:
    """Numbers of row groups from a caller, ascending, each once; negative ones do not count from the end."""
    if isinstance(row_groups, str | bytes) or not isinstance(row_groups, Iterable):
        raise InvalidType(f"row_groups must be a list of numbers, not {row_groups!r}", operation="scan", path=path)
    numbers = sorted({checked_int(number, "row group", operation="scan", path=path) for number in row_groups})
    if numbers and numbers[0] < 0:
        raise InvalidArgument(f"there is no row group {numbers[0]}", operation="scan", path=path)
    return numbers


# Page indexes outside the tail cost an additional request, before all others. They pay if chunks of at least this size
# together may be left out.
INDEXED_BYTES_MIN = 4 << 20

_AUTOMATIC = PlanLimits()


async def plan_scan(footer: Footer, arguments: ScanArguments, limits: PlanLimits = _AUTOMATIC) -> Plan:
    """The plan for a file whose footer is known. Reads page indexes if that pays.

    ``InvalidArgument`` names unknown columns, ``InvalidType`` and ``InvalidRange`` are raised for rows and
    row groups that are invalid, ``UntrustedMetadata`` for chunks and indexes that are damaged.
    """
    normalized = normalized_filters(arguments.filters, footer)
    leaves = wanted_leaves = resolve_columns(footer, arguments.columns)
    names = filter_columns(footer, normalized)
    leaves = tuple(sorted({*leaves, *resolve_columns(footer, names)}))
    wanted, tree = checked_rows(arguments.rows, footer), filter_tree(normalized)
    groups = chosen_row_groups(footer, arguments.row_groups, wanted)
    groups = prune_by_tree(footer, tree, groups, schema=footer.schema, names=names)
    rows_of = {number: _rows_within(footer, number, wanted) for number in groups}
    if arguments.counted is not None:
        matching = matching_row_groups(footer, tree, groups)
        arguments.counted.append(sum(total_length(rows_of.pop(number)) for number in matching))
        groups = list(rows_of)
    by_bounds = page_leaves(footer, tree)
    indexes = await _page_indexes(footer, leaves, rows_of, by_bounds.values())
    if tree is not None and indexes:
        for number in groups:
            rows_of[number] = intersected(rows_of[number], prune_pages(footer, tree, by_bounds, number, indexes))
    groups = [number for number in groups if rows_of[number]]
    if not arguments.filters_rows:
        leaves = wanted_leaves
    planned = [
        planned_chunk(chunk, rows_of[chunk.row_group], indexes.get((chunk.row_group, chunk.column), (None, None))[0])
        for chunk in column_chunks(footer, groups, leaves)
    ]
    return plan_reads(
        footer,
        planned,
        row_groups=groups,
        rows=joined(
            (low + footer.first_rows[number], high + footer.first_rows[number])
            for number in groups
            for low, high in rows_of[number]
        ),
        leaves=leaves,
        limits=limits,
    )


# --- row groups and rows ----------------------------------------------------------------------------------------------


def checked_rows(rows: Any, footer: Footer) -> list[Range]:
    """``rows=`` as sorted, disjoint ranges: ``(start, stop)`` or a list of them, cut at the end; ``None`` is all."""
    if rows is None:
        return joined([(0, footer.rows)])
    ranges = row_ranges(rows, path=footer.path)
    return joined((min(start, footer.rows), min(stop, footer.rows)) for start, stop in ranges)


def chosen_row_groups(footer: Footer, row_groups: Iterable[int] | None, rows: Sequence[Range]) -> list[int]:
    """The numbers of row groups with wanted rows, of ``row_groups`` (``None``: all): ascending, each once.

    ``InvalidArgument`` for a number that the file does not have; negative ones do not count from the end.
    """
    if row_groups is None:
        chosen = list(range(footer.row_groups))
    else:
        chosen = group_numbers(row_groups, path=footer.path)
        if chosen and chosen[-1] >= footer.row_groups:
            number = next(number for number in chosen if number >= footer.row_groups)
            raise InvalidArgument(
                f"there is no row group {number}; the file has {footer.row_groups}", operation="scan", path=footer.path
            )
    return [number for number in chosen if _rows_within(footer, number, rows)]


def _rows_within(footer: Footer, number: int, rows: Sequence[Range]) -> list[Range]:
    """Wanted rows of a row group, from its first on."""
    first, end = footer.first_rows[number], footer.first_rows[number + 1]
    if len(rows) == 1 and rows[0][0] <= first < end <= rows[0][1]:
        return [(0, end - first)]
    return [(low - first, high - first) for low, high in intersected(rows, [(first, end)])]


# --- page indexes -----------------------------------------------------------------------------------------------------


async def _page_indexes(
    footer: Footer, leaves: Sequence[int], rows_of: Mapping[int, Sequence[Range]], by_bounds: Collection[int]
) -> dict[tuple[int, int], Indexes]:
    """Indexes of the row groups with rows that may not be wanted, if they are in the tail or much may be left out.

    The indexes of columns in filters, ``by_bounds``, include bounds.
    """
    counts = [end - first for first, end in pairwise(footer.first_rows)]
    groups = [number for number, rows in rows_of.items() if by_bounds or list(rows) != [(0, counts[number])]]
    if not groups or not _has_indexes(footer, groups, leaves):
        return {}
    chunks = column_chunks(footer, groups, leaves, with_indexes=True)
    ranges = [index for chunk in chunks for index in (chunk.offset_index, chunk.column_index) if index is not None]
    tail_start = footer.pinned.tail_start
    if any(start < tail_start for start, _ in ranges):
        unwanted = sum(chunk.size * _share_unwanted(chunk, rows_of, by_bounds) for chunk in chunks)
        if unwanted < INDEXED_BYTES_MIN:
            return {}
    return await load_page_indexes(footer.pinned, chunks, bounds_of=by_bounds)


def _has_indexes(footer: Footer, groups: Sequence[int], leaves: Sequence[int]) -> bool:
    """Whether any of the chunks has an offset index, going by the first row group."""
    return any(leaf < len(footer.chunks[groups[0]]) and footer.chunks[groups[0]][leaf].offset_index for leaf in leaves)


def _share_unwanted(chunk: ColumnChunk, rows_of: Mapping[int, Sequence[Range]], by_bounds: Collection[int]) -> float:
    """The share of a chunk that may be left out. With filters it is unknown before, and taken to be all of it."""
    if by_bounds:
        return 1.0
    return 1.0 - total_length(rows_of[chunk.row_group]) / max(chunk.rows, 1)

"""The row groups, and the rows within them, that may match filters. Rows that may match are always kept.

Row groups go by their statistics, which pyarrow itself evaluates, from a footer that holds nothing else. Pages go by
the column index. No statistic is believed that cannot be true: a lower bound above the upper one, a bound that is NaN
or no value of the column, more nulls than rows. It says nothing then, and its rows are read.

Statistics say nothing of NaN, which matches every ``!=``, ``not in`` and inversion, so these never drop anything where
floating-point columns are concerned. (pyarrow 26 does drop it.)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from aioprefetch.filters import Dnf, Filters, check_clauses, checked_filters, named_columns
from aioprefetch.parquet.page_bounds import BoundsReader, statistics_footer
from aioprefetch.ranges import Range, intersected, joined

if TYPE_CHECKING:
    from aioprefetch.parquet.footer import Footer
    from aioprefetch.parquet.page_index import ColumnIndex, Indexes, OffsetIndex

# Parts of pyarrow's expressions that a NaN may match: an inversion, a NaN that counts as null, any function but these.
_MAY_MATCH_NAN = re.compile(r"!=|nan_is_null=true|\b(?!and\b|or\b|is_valid\b|is_null\b)[a-z_]\w*\(")


def normalized_filters(filters: Any, footer: Footer) -> Filters:
    """Filters as ``checked_filters`` makes them, which raises; and ``InvalidArgument`` for unknown columns."""
    checked = checked_filters(filters, path=footer.path)
    check_clauses(checked, footer.schema, path=footer.path)
    return checked


def filter_columns(footer: Footer, filters: Filters) -> list[str]:
    """The top-level columns that ``filters`` (normalized) read, in the order of the file; see ``named_columns``."""
    return named_columns(footer.schema, filters, path=footer.path)


# --- row groups -------------------------------------------------------------------------------------------------------


def prune_row_groups(footer: Footer, filters: Filters, row_groups: Sequence[int]) -> list[int]:
    """The row groups of ``row_groups`` with rows that ``filters`` (normalized) may match, in the same order.

    Filters whose values do not go with the types of their columns drop nothing, and neither do damaged statistics.
    """
    expression = _safe_expression(footer, filters)
    if expression is None:
        return list(row_groups)
    return _pruned(footer, expression, filter_columns(footer, filters), row_groups, footer.schema)


def prune_by_expression(
    footer: Footer,
    expression: pc.Expression,
    row_groups: Sequence[int],
    *,
    schema: pa.Schema,
    names: Iterable[str],
    guarantee: pc.Expression | None,
) -> list[int]:
    """``prune_row_groups`` by an expression over columns of ``schema``, by the statistics of ``names`` among them.

    ``guarantee`` says what is true of all rows of the file, such as the values in its path.
    """
    floats = {field.name for field in schema if _has_floats(field.type)}
    if _MAY_MATCH_NAN.search(str(expression)) and floats:
        return list(row_groups)
    return _pruned(footer, expression, names, row_groups, schema, guarantee)


def _pruned(
    footer: Footer,
    expression: pc.Expression,
    names: Iterable[str],
    row_groups: Sequence[int],
    schema: pa.Schema,
    guarantee: pc.Expression | None = None,
) -> list[int]:
    kept = list(row_groups)
    leaves = _plain_leaves(footer, names)
    if not kept or not leaves:
        return kept
    import pyarrow.dataset as ds  # Imported late: it imports pandas if there is one, a third of a second.

    try:
        source = pa.BufferReader(statistics_footer(footer, kept, leaves))
        fragment = ds.ParquetFileFormat().make_fragment(source, partition_expression=guarantee)
        fragments = fragment.subset(expression, schema=schema).row_groups
    except (pa.ArrowException, ValueError, TypeError, OverflowError, OSError):
        return kept
    return [kept[fragment.id] for fragment in fragments]


def _plain_leaves(footer: Footer, names: Iterable[str]) -> tuple[int, ...]:
    """The leaves of those top-level columns that are neither groups nor lists, and whose name no other has."""
    shape = footer.shape
    leaf_of = {
        path[0]: leaf for leaf, path in enumerate(shape.paths) if len(path) == 1 and not shape.max_repetitions[leaf]
    }
    return tuple(leaf_of[name] for name in names if name in leaf_of and footer.schema.names.count(name) == 1)


def _safe_expression(footer: Footer, filters: Filters) -> pc.Expression | None:
    """The part of the filters that statistics can decide; ``None`` if there is no such part."""
    if filters is None:
        return None
    floats = [field.name for field in footer.schema if _has_floats(field.type)]
    if isinstance(filters, pc.Expression):
        unsafe = _MAY_MATCH_NAN.search(str(filters)) and not set(floats).isdisjoint(filter_columns(footer, filters))
        return None if unsafe else filters
    safe = [
        [clause for clause in clauses if not (clause[0] in floats and clause[1] in ("!=", "in", "not in"))]
        for clauses in filters
    ]
    try:
        return pq.filters_to_expression(safe) if all(safe) else None
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return None


def _has_floats(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _has_floats(kind.value_type)
    if pa.types.is_nested(kind):
        return any(_has_floats(kind.field(number).type) for number in range(kind.num_fields))
    return bool(pa.types.is_floating(kind))


# --- pages ------------------------------------------------------------------------------------------------------------


def filter_leaves(footer: Footer, filters: Filters) -> tuple[int, ...]:
    """The leaves whose page indexes can drop rows: top-level columns that clauses name and that are not lists."""
    if filters is None or isinstance(filters, pc.Expression):
        return ()
    return _plain_leaves(footer, filter_columns(footer, filters))


def prune_pages(
    footer: Footer, filters: Dnf, row_group: int, indexes: Mapping[tuple[int, int], Indexes]
) -> list[Range]:
    """Rows of a row group, counted from its first, that may match: sorted, disjoint ranges, on boundaries of pages.

    ``indexes`` are those of ``load_page_indexes`` with column indexes; a clause whose column has none keeps all rows.
    """
    rows = footer.first_rows[row_group + 1] - footer.first_rows[row_group]
    leaves = {footer.shape.paths[leaf][0]: leaf for leaf in filter_leaves(footer, filters)}
    kept: list[Range] = []
    for clauses in filters:
        these: list[Range] = [(0, rows)] if rows else []
        for column, operator, value in clauses:
            offset, bounds = indexes.get((row_group, leaves.get(column, -1)), (None, None))
            if offset is not None and bounds is not None:
                these = intersected(these, _matching_rows(footer, leaves[column], operator, value, offset, bounds))
        kept += these
    return joined(kept)


def _matching_rows(
    footer: Footer, leaf: int, operator: str, value: Any, offset: OffsetIndex, bounds: ColumnIndex
) -> list[Range]:
    """Rows on pages that may match one clause."""
    mask = _page_mask(BoundsReader(footer, leaf), operator, value, bounds)
    return joined([offset.page_rows(page) for page in np.flatnonzero(mask).tolist()])


def _page_mask(reader: BoundsReader, operator: str, value: Any, bounds: ColumnIndex) -> Any:
    """For each page whether it may match."""
    everything = np.ones(len(bounds), bool)
    if operator == "not in" or (operator == "!=" and reader.is_float):
        return everything
    unknown = _unknown_pages(reader, bounds)
    without_bounds = (unknown | np.array(bounds.null_pages, bool)).tolist()
    try:
        low, high = reader.read(bounds.minima, without_bounds), reader.read(bounds.maxima, without_bounds)
        if low is None or high is None:
            return everything
        if operator == "in":
            mask = unknown
            for member in value:
                mask = mask | _compared(reader, low, high, "==", reader.member(member))
            return mask
        return unknown | _compared(reader, low, high, operator, value)
    except (pa.ArrowException, ValueError, TypeError, OverflowError, AttributeError):
        return everything  # The value does not fit the column: the filter itself raises the error.


def _unknown_pages(reader: BoundsReader, bounds: ColumnIndex) -> Any:
    """For each page whether its null count or its bounds are impossible, so that it must be read."""
    known_not_to_be = bounds.unknown_pages or [False] * len(bounds)
    said = zip(known_not_to_be, bounds.null_pages, bounds.minima, bounds.maxima, strict=True)
    return np.array([unknown or not (null or reader.can_be(low, high)) for unknown, null, low, high in said], bool)


def _compared(reader: BoundsReader, low: pa.Array, high: pa.Array, operator: str, value: Any) -> Any:
    if value is None or value != value:  # Nulls and NaN are nowhere between bounds.
        return np.ones(len(low), bool)
    scalar = reader.scalar(value)
    if operator in ("=", "=="):
        matches = pc.and_(pc.less_equal(low, scalar), pc.greater_equal(high, scalar))
    elif operator == "!=":
        matches = pc.invert(pc.and_(pc.equal(low, scalar), pc.equal(high, scalar)))
    elif operator == "<":
        matches = pc.less(low, scalar)
    elif operator == "<=":
        matches = pc.less_equal(low, scalar)
    elif operator == ">":
        matches = pc.greater(high, scalar)
    else:
        matches = pc.greater_equal(high, scalar)
    # Pages without bounds compare as null, and match nothing.
    return matches.fill_null(False).to_numpy(zero_copy_only=False)

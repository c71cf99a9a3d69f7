"""The row groups, and the rows within them, that may match filters. Rows that may match are always kept.

Row groups go by their statistics, which pyarrow itself evaluates, from a footer that holds nothing else. Pages go by
the column index. No statistic is believed that cannot be true: a lower bound above the upper one, a bound that is NaN
or no value of the column, more nulls than rows. It says nothing then, and its rows are read.

Statistics say nothing of NaN, which matches every ``!=``, ``not in`` and inversion, so these never drop anything where
floating-point columns are concerned. (pyarrow 26 does drop it.)

**Bounds** are bytes in Parquet's PLAIN encoding. Bounds of pages become Arrow values, compared as the column's Arrow
type compares. Statistics of row groups are compared by pyarrow, which knows which writers' statistics can be
trusted, and evaluates any expression on them. But it ends the process if their bytes are not as wide as the column's
type, and believes a lower bound above the upper bound. It gets a footer with nothing but statistics that were checked.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from aioprefetch import arrow_compute as pc
from aioprefetch.errors import InvalidArgument
from aioprefetch.expressions import AND, OR, ExpressionTree, FieldPath, Node, field_at, flat_name
from aioprefetch.filters import Filters, check_clauses, checked_filters, filter_expression, named_columns
from aioprefetch.parquet import thrift
from aioprefetch.ranges import Range, intersected, joined

if TYPE_CHECKING:
    from aioprefetch.parquet.footer import Footer
    from aioprefetch.parquet.page_metadata import ColumnIndex, Indexes, OffsetIndex

_WIDTHS = {"INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8, "BOOLEAN": 1}
_DTYPES = {"INT32": "<i4", "INT64": "<i8", "FLOAT": "<f4", "DOUBLE": "<f8", "BOOLEAN": "u1"}
_TIME_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}

# How numbers are unpacked, by physical type; unsigned ones by their own letter.
_NUMBERS = {"INT32": "<i", "INT64": "<q", "FLOAT": "<f", "DOUBLE": "<d", "BOOLEAN": "<B"}
_UNSIGNED = {"INT32": "<I", "INT64": "<Q"}


def bound_order(column: Any) -> Callable[[bytes], Any]:
    """A function from a bound of a column (of pyarrow's ``ParquetSchema``) to a value that compares as bounds do.

    It returns ``None`` for bytes that cannot be a value of the column: another width, NaN, a boolean beyond 0 and 1.
    """
    physical: str = column.physical_type
    logical: dict[str, Any] = json.loads(column.logical_type.to_json())
    kind = logical.get("Type")
    if physical in _NUMBERS:
        unsigned = not logical.get("isSigned", True)
        return _number_order((_UNSIGNED if unsigned else _NUMBERS)[physical], is_boolean=physical == "BOOLEAN")
    width = column.length if physical == "FIXED_LEN_BYTE_ARRAY" else None
    if kind == "Float16":
        return _number_order("<e")
    if physical not in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"):
        return lambda raw: None  # INT96 has no order.

    def of_bytes(raw: bytes) -> Any:
        if width is not None and len(raw) != width:
            return None
        return int.from_bytes(raw, "big", signed=True) if kind == "Decimal" else bytes(raw)

    return of_bytes


def _number_order(form: str, *, is_boolean: bool = False) -> Callable[[bytes], Any]:
    unpacked = struct.Struct(form)

    def of_number(raw: bytes) -> Any:
        if len(raw) != unpacked.size:
            return None
        (number,) = unpacked.unpack(raw)
        return None if math.isnan(number) or (is_boolean and number > 1) else number

    return of_number


def can_be_bounds(order: Callable[[bytes], Any], low: bytes, high: bytes) -> bool:
    """Whether values can lie between two bounds: both are values, and the lower one is not above the other.

    An empty upper bound comes from a writer without bounds, more often than of values that are all empty.
    """
    first, last = order(low), order(high)
    return first is not None and last is not None and bool(high) and bool(first <= last)


class BoundsReader:
    """Reads the bounds of one leaf without lists; types whose order or encoding is not plain are not read."""

    def __init__(self, footer: Footer, leaf: int) -> None:
        column = footer.metadata.schema.column(leaf)
        kind = _leaf_field(footer, leaf).type
        self.type = kind.value_type if pa.types.is_dictionary(kind) else kind
        self._physical: str = column.physical_type
        self._logical: dict[str, Any] = json.loads(column.logical_type.to_json())
        self.is_float = pa.types.is_floating(self.type)
        self._order = bound_order(column)
        self._is_bytes = self._logical.get("Type") in ("String", "None", "Enum", "JSON", "BSON") and (
            pa.types.is_string(self.type)
            or pa.types.is_large_string(self.type)
            or pa.types.is_binary(self.type)
            or pa.types.is_large_binary(self.type)
            or pa.types.is_fixed_size_binary(self.type)
            or pa.types.is_string_view(self.type)
            or pa.types.is_binary_view(self.type)
        )

    def scalar(self, value: pa.Scalar) -> pa.Scalar:
        """The value of a filter as a scalar that compares with bounds. Raises pyarrow's error for other values."""
        return value.cast(pa.large_binary()) if self._is_bytes else value

    def members(self, values: pa.Array) -> list[Any]:
        """The values of a list in a filter, of the column's type, as pyarrow casts them for ``in``.

        Raises its error where one has another value then, or no such type.
        """
        return list(values if self._is_bytes else values.cast(self.type))

    def can_be(self, low: bytes, high: bytes) -> bool:
        """Whether values of the column can lie between these bounds."""
        return can_be_bounds(self._order, low, high)

    def read(self, bounds: Sequence[bytes], null_pages: Sequence[bool]) -> pa.Array | None:
        """Bounds as an array, null for pages without bounds; ``None`` for a type whose bounds are not read.

        Raises ``ValueError`` or an error of pyarrow for bytes that are not values of the type.
        """
        if self._is_bytes:
            # Shortened strings may end within a character. Bytes compare as the strings do.
            values = [None if null else bytes(bound) for bound, null in zip(bounds, null_pages, strict=True)]
            return pa.array(values, pa.large_binary())
        if pa.types.is_decimal(self.type):
            return self._decimals(bounds, null_pages)
        width = _WIDTHS.get(self._physical)
        if width is None:
            return None
        blank = bytes(width)
        raw = b"".join(blank if null else bytes(bound) for bound, null in zip(bounds, null_pages, strict=True))
        return self._typed(np.frombuffer(raw, _DTYPES[self._physical]), np.array(null_pages, bool))

    def _typed(self, numbers: Any, nulls: Any) -> pa.Array | None:
        kind = self.type
        if self._physical == "BOOLEAN":
            return pa.array(numbers != 0, mask=nulls) if pa.types.is_boolean(kind) else None
        if self._physical in ("FLOAT", "DOUBLE"):
            return pa.array(numbers, mask=nulls) if self.is_float else None
        if pa.types.is_integer(kind):
            if not self._logical.get("isSigned", True):
                numbers = numbers.view("<u4" if self._physical == "INT32" else "<u8")
            return pa.array(numbers, mask=nulls)
        if pa.types.is_date(kind) and self._physical == "INT32":
            return pa.array(numbers, mask=nulls).view(pa.date32()).cast(kind)
        unit = _TIME_UNITS.get(self._logical.get("timeUnit", ""))
        if unit is None:
            return None
        if pa.types.is_timestamp(kind):
            return pa.array(numbers, mask=nulls).view(pa.timestamp(unit, kind.tz)).cast(kind)
        if pa.types.is_time(kind):
            time = pa.time32(unit) if self._physical == "INT32" else pa.time64(unit)
            return pa.array(numbers, mask=nulls).view(time).cast(kind)
        return None

    def _decimals(self, bounds: Sequence[bytes], null_pages: Sequence[bool]) -> pa.Array | None:
        if self._physical not in ("INT32", "INT64", "FIXED_LEN_BYTE_ARRAY", "BYTE_ARRAY"):
            return None
        order: Literal["little", "big"] = "little" if self._physical.startswith("INT") else "big"
        values: list[Decimal | None] = []
        for bound, null in zip(bounds, null_pages, strict=True):
            if null:
                values.append(None)
                continue
            number = int.from_bytes(bound, order, signed=True)
            digits = tuple(int(digit) for digit in str(abs(number)))
            values.append(Decimal((int(number < 0), digits, -self.type.scale)))
        return pa.array(values, self.type)


# --- footers of statistics --------------------------------------------------------------------------------------------

# Fields of Statistics: lower and upper bound, new and old, and how many nulls.
_BOUNDS = ((6, 5), (2, 1))
_NULL_COUNT = 3
# Whether the upper and the lower bound are exact.
_EXACT_MARKS = (7, 8)
# The numbers of the physical types of bytes.
_BYTES = (6, 7)

# Longer bounds are ignored: decimals have at most 32 bytes, and texts hardly need more to be distinguished.
_BOUND_BYTES_MAX = 4096

_ORDERS_FIELD = 7


def statistics_footer(footer: Footer, row_groups: Sequence[int], leaves: Sequence[int]) -> bytes:
    """A file without data: ``leaves`` (without lists), and ``row_groups``, counted from 0.

    Fields of structs are columns by their ``flat_name``. They are null where the struct is, and counted so. The bytes
    can be parsed safely for any footer.
    """
    elements = [_flat_element(footer, leaf) for leaf in leaves]
    root = {4: (thrift.BINARY, b"schema"), 5: (thrift.I32, len(leaves))}
    columns = [_Leaf(footer, leaf, element) for leaf, element in zip(leaves, elements, strict=True)]
    groups = [_row_group(footer, number, columns) for number in row_groups]
    tree: thrift.Struct = {
        1: (thrift.I32, 2),
        2: (thrift.LIST, thrift.ThriftList(thrift.STRUCT, [root, *elements])),
        3: (thrift.I64, sum(group[3][1] for group in groups)),
        4: (thrift.LIST, thrift.ThriftList(thrift.STRUCT, groups)),
        5: (thrift.LIST, thrift.ThriftList(thrift.STRUCT, [_arrow_schema(footer, leaves)])),
        6: (thrift.BINARY, footer.created_by.encode()),
    }
    orders = _column_orders(footer)
    if orders is not None:
        tree[_ORDERS_FIELD] = (thrift.LIST, thrift.ThriftList(thrift.STRUCT, [orders[leaf] for leaf in leaves]))
    raw = thrift.write_struct(tree)
    return b"PAR1" + raw + len(raw).to_bytes(4, "little") + b"PAR1"


def _flat_element(footer: Footer, leaf: int) -> thrift.Struct:
    """The leaf in a schema without structs."""
    element = thrift.read_struct(footer.raw, footer.shape.positions[leaf])[0]
    if len(path := footer.shape.paths[leaf]) > 1:
        element[4] = (thrift.BINARY, flat_name(path).encode())
    return element


def _leaf_field(footer: Footer, leaf: int) -> pa.Field:
    """A leaf without lists as a column."""
    path = footer.shape.paths[leaf]
    found = field_at(footer.schema, path)
    assert found is not None
    return found.with_name(flat_name(path)).with_nullable(footer.shape.max_definitions[leaf] > 0)


class _Leaf:
    """A leaf of the new footer: its ``element`` of the schema, and the check of its statistics."""

    def __init__(self, footer: Footer, leaf: int, element: thrift.Struct) -> None:
        self.leaf = leaf
        self.element = element
        self._is_nullable = footer.shape.max_definitions[leaf] > 0
        self._order = bound_order(footer.metadata.schema.column(leaf))

    def checked(self, statistics: thrift.Struct, rows: int) -> thrift.Struct:
        """The statistics of a chunk of ``rows`` values that pyarrow can decode, empty if they cannot be true.

        A negative count of nulls comes from a writer that did not count.
        """
        kept: thrift.Struct = {}
        kind, nulls = statistics.get(_NULL_COUNT, (0, None))
        if kind == thrift.I64 and nulls >= 0:
            if nulls > (rows if self._is_nullable else 0):
                return {}
            kept[_NULL_COUNT] = (kind, nulls)
        for low, high in _BOUNDS:
            bounds = {number: statistics[number] for number in (low, high) if _is_bound(statistics, number)}
            values = [self._order(bounds[number][1]) for number in bounds]
            if len(bounds) == 2 and not can_be_bounds(self._order, bounds[low][1], bounds[high][1]):
                return {}
            if None in values or (bounds and rows and nulls == rows):
                return {}  # No value, or values where all are nulls.
            kept |= bounds
        return kept


def _is_bound(statistics: thrift.Struct, number: int) -> bool:
    kind, value = statistics.get(number, (0, None))
    return kind == thrift.BINARY and len(value) <= _BOUND_BYTES_MAX


def _row_group(footer: Footer, number: int, columns: Sequence[_Leaf]) -> thrift.Struct:
    chunks = []
    rows = footer.first_rows[number + 1] - footer.first_rows[number]
    for column in columns:
        metadata: thrift.Struct = {
            1: column.element[1],
            2: (thrift.LIST, thrift.ThriftList(thrift.I32, [])),
            3: (thrift.LIST, thrift.ThriftList(thrift.BINARY, [column.element[4][1]])),
            4: (thrift.I32, 0),
            5: (thrift.I64, rows),
            6: (thrift.I64, 0),
            7: (thrift.I64, 0),
            9: (thrift.I64, 4),
        }
        statistics = column.checked(_statistics(footer, number, column.leaf), rows)
        if statistics:
            metadata[12] = (thrift.STRUCT, statistics)
        chunks.append({2: (thrift.I64, 0), 3: (thrift.STRUCT, metadata)})
    return {
        1: (thrift.LIST, thrift.ThriftList(thrift.STRUCT, chunks)),
        2: (thrift.I64, 0),
        3: (thrift.I64, rows),
    }


def _statistics(footer: Footer, number: int, leaf: int) -> thrift.Struct:
    """The footer's statistics of a chunk's values; empty if they are of an unexpected type."""
    group = footer.chunks[number]
    if leaf >= len(group) or group[leaf].physical_type != footer.shape.physical_types[leaf]:
        return {}
    chunk = thrift.read_struct(footer.raw, group[leaf].position)[0]
    return _struct_in(_struct_in(chunk, 3), 12)


def _struct_in(fields: thrift.Struct, number: int) -> thrift.Struct:
    """The struct in a field; empty if there is no such field."""
    kind, value = fields.get(number, (0, None))
    struct: thrift.Struct = value if kind == thrift.STRUCT else {}
    return struct


def _arrow_schema(footer: Footer, leaves: Sequence[int]) -> thrift.Struct:
    """The key-value pair of the Arrow schema, from which the columns get their types in the whole file."""
    schema = pa.schema([_leaf_field(footer, leaf) for leaf in leaves])
    serialized = base64.b64encode(schema.serialize().to_pybytes())
    return {1: (thrift.BINARY, b"ARROW:schema"), 2: (thrift.BINARY, serialized)}


def _column_orders(footer: Footer) -> list[Any] | None:
    """The order of each leaf's values in bounds; ``None`` if the writer did not state it."""
    position, before = footer.row_groups_end, 4
    while True:
        kind, before, position = thrift.read_field_header(footer.raw, position, before)
        if kind == 0:
            return None
        if before == _ORDERS_FIELD and kind == thrift.LIST:
            orders: thrift.ThriftList = thrift.read_value(footer.raw, position, kind)[0]
            is_good = orders.element == thrift.STRUCT and len(orders.items) == len(footer.shape.paths)
            return orders.items if is_good else None
        position = thrift.skip_value(footer.raw, position, kind)


# --- filters ----------------------------------------------------------------------------------------------------------


def normalized_filters(filters: Any, footer: Footer) -> Filters:
    """Filters as ``checked_filters`` makes them, which raises; and ``InvalidArgument`` for unknown columns."""
    checked = checked_filters(filters, path=footer.path)
    check_clauses(checked, footer.schema, path=footer.path)
    return checked


def filter_columns(footer: Footer, filters: Filters) -> list[str]:
    """The top-level columns that ``filters`` (normalized) read, in the order of the file; see ``named_columns``."""
    return named_columns(footer.schema, filters, path=footer.path)


# --- row groups -------------------------------------------------------------------------------------------------------


def filter_tree(filters: Filters) -> ExpressionTree | None:
    """Normalized filters as a tree; ``None`` without any, and for those that statistics say nothing about.

    So are filters whose values do not go together.
    """
    try:
        expression = filter_expression(filters)
    except InvalidArgument:
        return None
    return None if expression is None else ExpressionTree.of(expression)


def prune_row_groups(footer: Footer, filters: Filters, row_groups: Sequence[int]) -> list[int]:
    """The row groups of ``row_groups`` with rows that ``filters`` (normalized) may match, in the same order.

    Filters whose values do not go with the types of their columns drop nothing, and neither do damaged statistics.
    """
    names = filter_columns(footer, filters)
    return prune_by_tree(footer, filter_tree(filters), row_groups, schema=footer.schema, names=names)


def prune_by_tree(
    footer: Footer,
    tree: ExpressionTree | None,
    row_groups: Sequence[int],
    *,
    schema: pa.Schema,
    names: Collection[str],
    guarantee: pc.Expression | None = None,
) -> list[int]:
    """``prune_row_groups`` by an expression over columns of ``schema``, by the statistics of ``names`` among them.

    ``guarantee`` says what is true of all rows of the file, such as the values in its path.
    """
    kept = list(row_groups)
    known = None if tree is None else tree.about_ranges(schema)
    if not kept or tree is None or known is None:
        return kept
    leaves = plain_leaves(footer, (path for path in tree.fields if path[0] in names))
    if not leaves:
        return kept
    import pyarrow.dataset as ds  # Imported late: it imports pandas if there is one, a third of a second.

    fields = [(path, field_at(schema, path)) for path in leaves if len(path) > 1]
    flat = [field.with_name(flat_name(path)) for path, field in fields if field is not None]
    try:
        source = pa.BufferReader(statistics_footer(footer, kept, list(leaves.values())))
        fragment = ds.ParquetFileFormat().make_fragment(source, partition_expression=guarantee)
        fragments = fragment.subset(known, schema=pa.schema([*schema, *flat])).row_groups
    except (pa.ArrowException, ValueError, TypeError, OverflowError, OSError):
        return kept
    return [kept[fragment.id] for fragment in fragments]


def matching_row_groups(footer: Footer, tree: ExpressionTree | None, row_groups: Sequence[int]) -> list[int]:
    """The row groups all of whose rows match, as their statistics say.

    They say it by exact bounds, of columns without nulls. Of floating-point values no opposite is a known form: NaN is
    beyond all bounds.
    """
    leaves = {} if tree is None else plain_leaves(footer, tree.fields)
    if tree is None or len(leaves) < len(tree.fields) or not tree.is_decided_by_ranges(footer.schema):
        return []
    exact = [number for number in row_groups if all(_is_exact(footer, number, leaf) for leaf in leaves.values())]
    opposite = ExpressionTree.of(~tree.expression)
    others = prune_by_tree(footer, opposite, exact, schema=footer.schema, names=tree.columns)
    return sorted({*exact}.difference(others))


def _is_exact(footer: Footer, number: int, leaf: int) -> bool:
    """Whether a chunk has no null, and its bounds are values in it. Writers may cut texts, and have to say so."""
    statistics = _statistics(footer, number, leaf)
    has_nulls = footer.shape.max_definitions[leaf] > 0 and statistics.get(_NULL_COUNT) != (thrift.I64, 0)
    marks = [statistics.get(mark, (None, None))[0] for mark in _EXACT_MARKS]
    is_cut = thrift.FALSE in marks or (footer.shape.physical_types[leaf] in _BYTES and None in marks)
    return not has_nulls and not is_cut


def plain_leaves(footer: Footer, paths: Iterable[FieldPath]) -> dict[FieldPath, int]:
    """The leaves of columns, and of fields of structs, that are not in lists; without two of one name."""
    shape = footer.shape
    leaf_of = {path: leaf for leaf, path in enumerate(shape.paths) if not shape.max_repetitions[leaf]}
    return {path: leaf_of[path] for path in paths if path in leaf_of and field_at(footer.schema, path) is not None}


# --- pages ------------------------------------------------------------------------------------------------------------


def page_leaves(footer: Footer, tree: ExpressionTree | None) -> dict[FieldPath, int]:
    """The leaves whose page indexes can drop rows: those without lists that are compared with values."""
    if tree is None:
        return {}
    return plain_leaves(footer, dict.fromkeys(clause[0] for node in tree.nodes if (clause := tree.clause(node))))


def prune_pages(
    footer: Footer,
    tree: ExpressionTree,
    leaves: Mapping[FieldPath, int],
    row_group: int,
    indexes: Mapping[tuple[int, int], Indexes],
) -> list[Range]:
    """Rows of a row group, counted from its first, that may match: sorted, disjoint ranges, on boundaries of pages.

    ``leaves`` are those of ``page_leaves``, ``indexes`` from ``load_page_indexes`` with column indexes; a comparison
    whose column has none keeps all rows.
    """
    rows = footer.first_rows[row_group + 1] - footer.first_rows[row_group]
    everything: list[Range] = [(0, rows)] if rows else []

    def kept(node: Node) -> list[Range]:
        parts = [tree.nodes[number] for number in node.arguments]
        if node.name in AND and node.kind == "call":
            return reduce(intersected, map(kept, parts))
        if node.name in OR and node.kind == "call":
            return joined(pair for part in parts for pair in kept(part))
        path, operator, value = tree.clause(node) or ((), "", None)
        offset, bounds = indexes.get((row_group, leaves.get(path, -1)), (None, None))
        if offset is None or bounds is None:
            return everything
        return _matching_rows(footer, leaves[path], operator, value, offset, bounds)

    return kept(tree.nodes[-1])


def _matching_rows(
    footer: Footer, leaf: int, operator: str, value: Any, offset: OffsetIndex, bounds: ColumnIndex
) -> list[Range]:
    """Rows on pages that may match one clause."""
    mask = _page_mask(BoundsReader(footer, leaf), operator, value, bounds)
    return joined([offset.page_rows(page) for page in np.flatnonzero(mask).tolist()])


def _page_mask(reader: BoundsReader, operator: str, value: Any, bounds: ColumnIndex) -> Any:
    """For each page whether it may match."""
    everything = np.ones(len(bounds), bool)
    if operator == "!=" and reader.is_float:
        return everything
    unknown = _unknown_pages(reader, bounds)
    without_bounds = (unknown | np.array(bounds.null_pages, bool)).tolist()
    try:
        low, high = reader.read(bounds.minima, without_bounds), reader.read(bounds.maxima, without_bounds)
        if low is None or high is None:
            return everything
        if operator == "in":
            mask = unknown
            for member in reader.members(value):
                mask = mask | _compared(reader, low, high, "==", member)
            return mask
        return unknown | _compared(reader, low, high, operator, value)
    except (pa.ArrowException, ValueError, TypeError, OverflowError, AttributeError):
        return everything  # The value does not fit the column: the filter itself raises the error.


def _unknown_pages(reader: BoundsReader, bounds: ColumnIndex) -> Any:
    """For each page whether its null count or its bounds are impossible, so that it must be read."""
    known_not_to_be = bounds.unknown_pages or [False] * len(bounds)
    said = zip(known_not_to_be, bounds.null_pages, bounds.minima, bounds.maxima, strict=True)
    return np.array([unknown or not (null or reader.can_be(low, high)) for unknown, null, low, high in said], bool)


def _compared(reader: BoundsReader, low: pa.Array, high: pa.Array, operator: str, value: pa.Scalar) -> Any:
    if not value.is_valid or (pa.types.is_floating(value.type) and value.as_py() != value.as_py()):
        return np.ones(len(low), bool)  # Nulls and NaN are nowhere between bounds.
    scalar = reader.scalar(value)
    if operator == "==":
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

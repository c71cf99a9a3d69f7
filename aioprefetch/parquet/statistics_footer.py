"""A footer that holds statistics of some columns and nothing else, for pyarrow to evaluate filters on.

pyarrow knows which statistics of which writers can be trusted, and evaluates any expression on them. But it ends the
process when their bytes are not as wide as the column's type, and believes a lower bound above the upper one, so it
gets those alone that were looked at.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from aioprefetch.parquet import thrift
from aioprefetch.parquet.page_bounds import bound_order, can_be_bounds

if TYPE_CHECKING:
    from aioprefetch.parquet.footer import Footer

# Fields of Statistics: lower and upper bound, new and old, and how many nulls.
_BOUNDS = ((6, 5), (2, 1))
_NULL_COUNT = 3

# Bounds longer than this are left out: decimals have 32 bytes at most, and no text needs more to be told from another.
_BOUND_BYTES_MAX = 4096

_ORDERS_FIELD = 7


def statistics_footer(footer: Footer, row_groups: Sequence[int], leaves: Sequence[int]) -> bytes:
    """A file without data: ``leaves`` (top-level columns without lists), and ``row_groups``, counted from 0.

    The bytes are good to be parsed whatever the footer holds.
    """
    elements = [thrift.read_struct(footer.raw, footer.shape.positions[leaf])[0] for leaf in leaves]
    root = {4: (thrift.BINARY, b"schema"), 5: (thrift.I32, len(leaves))}
    columns = [_Column(footer, leaf, element) for leaf, element in zip(leaves, elements, strict=True)]
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


class _Column:
    """A leaf of the footer that is made: its ``element`` of the schema, and what its statistics can be."""

    def __init__(self, footer: Footer, leaf: int, element: thrift.Struct) -> None:
        self.leaf = leaf
        self.element = element
        self._is_nullable = footer.shape.max_definitions[leaf] > 0
        self._order = bound_order(footer.metadata.schema.column(leaf))

    def checked(self, statistics: thrift.Struct, rows: int) -> thrift.Struct:
        """The statistics of a chunk of ``rows`` values that pyarrow can decode, none where they cannot be true.

        A negative count of nulls is that of a writer that did not count.
        """
        kept: thrift.Struct = {}
        kind, nulls = statistics.get(_NULL_COUNT, (0, None))
        if kind == thrift.I64 and nulls >= 0:
            if nulls > (rows if self._is_nullable else 0):
                return {}
            kept[_NULL_COUNT] = (kind, nulls)
        for low, high in _BOUNDS:
            found = {number: statistics[number] for number in (low, high) if _is_bound(statistics, number)}
            values = [self._order(found[number][1]) for number in found]
            if len(found) == 2 and not can_be_bounds(self._order, found[low][1], found[high][1]):
                return {}
            if None in values or (found and rows and nulls == rows):
                return {}  # No value, or values where all are nulls.
            kept |= found
        return kept


def _is_bound(statistics: thrift.Struct, number: int) -> bool:
    kind, value = statistics.get(number, (0, None))
    return kind == thrift.BINARY and len(value) <= _BOUND_BYTES_MAX


def _row_group(footer: Footer, number: int, columns: Sequence[_Column]) -> thrift.Struct:
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
    """What the footer says of a chunk's values; nothing where it says it in another type."""
    group = footer.chunks[number]
    if leaf >= len(group) or group[leaf].physical_type != footer.shape.physical_types[leaf]:
        return {}
    chunk = thrift.read_struct(footer.raw, group[leaf].position)[0]
    return _struct_in(_struct_in(chunk, 3), 12)


def _struct_in(fields: thrift.Struct, number: int) -> thrift.Struct:
    """The struct in a field, an empty one where there is none."""
    kind, value = fields.get(number, (0, None))
    found: thrift.Struct = value if kind == thrift.STRUCT else {}
    return found


def _arrow_schema(footer: Footer, leaves: Sequence[int]) -> thrift.Struct:
    """The key-value pair by which the columns get the types that they have in the whole file."""
    schema = pa.schema([footer.schema.field(footer.shape.paths[leaf][0]) for leaf in leaves])
    serialized = base64.b64encode(schema.serialize().to_pybytes())
    return {1: (thrift.BINARY, b"ARROW:schema"), 2: (thrift.BINARY, serialized)}


def _column_orders(footer: Footer) -> list[Any] | None:
    """How the values of each leaf are ordered in bounds; ``None`` where the writer does not say."""
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

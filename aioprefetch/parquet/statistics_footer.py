"""A footer that holds statistics of some columns and nothing else, for pyarrow to evaluate filters on.

pyarrow knows which statistics of which writers can be trusted, and evaluates any expression on them. But it ends the
process when their bytes are not as wide as the column's type, so it gets those alone that were looked at.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from aioprefetch.parquet import thrift

if TYPE_CHECKING:
    from aioprefetch.parquet.footer import Footer

# Physical types, and how many bytes their values have. A fixed length is told by the schema.
_WIDTHS = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8}
_BYTE_ARRAY, _FIXED = 6, 7

# Fields of Statistics: old and new bounds, and how many nulls.
_BOUNDS = (1, 2, 5, 6)
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
    groups = [_row_group(footer, number, leaves, elements) for number in row_groups]
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


def _row_group(footer: Footer, number: int, leaves: Sequence[int], elements: Sequence[thrift.Struct]) -> thrift.Struct:
    chunks = []
    for leaf, element in zip(leaves, elements, strict=True):
        rows = footer.first_rows[number + 1] - footer.first_rows[number]
        metadata: thrift.Struct = {
            1: element[1],
            2: (thrift.LIST, thrift.ThriftList(thrift.I32, [])),
            3: (thrift.LIST, thrift.ThriftList(thrift.BINARY, [element[4][1]])),
            4: (thrift.I32, 0),
            5: (thrift.I64, rows),
            6: (thrift.I64, 0),
            7: (thrift.I64, 0),
            9: (thrift.I64, 4),
        }
        statistics = _checked(_statistics(footer, number, leaf), element, rows)
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


def _checked(statistics: thrift.Struct, element: thrift.Struct, rows: int) -> thrift.Struct:
    """Those of the statistics that pyarrow can decode."""
    physical = element[1][1]
    width = element[2][1] if physical == _FIXED and 2 in element else _WIDTHS.get(physical)
    kept: thrift.Struct = {}
    for number, (kind, value) in statistics.items():
        if number in _BOUNDS and kind == thrift.BINARY and len(value) <= _BOUND_BYTES_MAX:
            if physical == _BYTE_ARRAY or len(value) == width:
                kept[number] = (kind, value)
        elif number == _NULL_COUNT and kind == thrift.I64 and 0 <= value <= rows:
            kept[number] = (kind, value)
    return kept


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

"""Bounds of pages and row groups: bytes in Parquet's PLAIN encoding, and whether they can be bounds at all.

Bounds of pages become Arrow values, compared as the column's Arrow type compares. Those of row groups are compared by
pyarrow, which knows which statistics of which writers can be trusted, and evaluates any expression on them. But it ends
the process if their bytes are not as wide as the column's type, and believes a lower bound above the upper bound. It
gets a footer with nothing but statistics that were checked.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from aioprefetch.parquet import thrift

if TYPE_CHECKING:
    from aioprefetch.parquet.footer import Footer

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
    """Whether values can lie between two bounds: both are values, and the lower one is not above the other."""
    first, last = order(low), order(high)
    return first is not None and last is not None and bool(first <= last)


class BoundsReader:
    """Reads the bounds of one top-level leaf; types whose order or encoding is not plain are not read."""

    def __init__(self, footer: Footer, leaf: int) -> None:
        column = footer.metadata.schema.column(leaf)
        kind = footer.schema.field(footer.schema.get_field_index(footer.shape.paths[leaf][0])).type
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

    def scalar(self, value: Any) -> pa.Scalar:
        """The value of a filter as a scalar that compares with bounds. Raises pyarrow's error for other values."""
        if isinstance(value, pa.Scalar):
            value = value.as_py() if self._is_bytes else value
        if self._is_bytes:
            return pa.scalar(value.encode() if isinstance(value, str) else bytes(value), pa.large_binary())
        return value if isinstance(value, pa.Scalar) else pa.scalar(value)

    def member(self, value: Any) -> Any:
        """A value of a list in a filter. For ``in`` pyarrow rounds it to the column's floating-point type first."""
        if not self.is_float or value is None or value != value:
            return value
        return self.scalar(value).cast(self.type)

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


# Fields of Statistics: lower and upper bound, new and old, and how many nulls.
_BOUNDS = ((6, 5), (2, 1))
_NULL_COUNT = 3

# Longer bounds are ignored: decimals have at most 32 bytes, and texts hardly need more to be distinguished.
_BOUND_BYTES_MAX = 4096

_ORDERS_FIELD = 7


def statistics_footer(footer: Footer, row_groups: Sequence[int], leaves: Sequence[int]) -> bytes:
    """A file without data: ``leaves`` (top-level columns without lists), and ``row_groups``, counted from 0.

    The bytes can be parsed safely for any footer.
    """
    elements = [thrift.read_struct(footer.raw, footer.shape.positions[leaf])[0] for leaf in leaves]
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


class _Leaf:
    """A leaf of the new footer: its ``element`` of the schema, and the check of its statistics."""

    def __init__(self, footer: Footer, leaf: int, element: thrift.Struct) -> None:
        self.leaf = leaf
        self.element = element
        self._is_nullable = footer.shape.max_definitions[leaf] > 0
        self._order = bound_order(footer.metadata.schema.column(leaf))

    def checked(self, statistics: thrift.Struct, rows: int) -> thrift.Struct:
        """The statistics of a chunk of ``rows`` values that pyarrow can decode, empty if they cannot be true.

        A negative count of nulls is that of a writer that did not count.
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
    schema = pa.schema([footer.schema.field(footer.shape.paths[leaf][0]) for leaf in leaves])
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

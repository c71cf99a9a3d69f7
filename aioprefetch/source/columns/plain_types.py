"""The types that engines know, and the plain type for each further type of pyarrow.

A dictionary becomes its values, a large or view type the plain one, an unsigned integer the next larger signed one, and
a timestamp of any unit and zone a timestamp of microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

_SIGNED = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20, 0)}
_DECIMAL128_DIGITS = 38
INSTANT = pa.timestamp("us", "UTC")
WALL_CLOCK = pa.timestamp("us")


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The schema of a file with plain types, every field nullable, without metadata."""
    return pa.schema([pa.field(field.name, plain_type(field.type)) for field in schema])


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The plain type for values of ``kind``; ``kind`` itself if it has none."""
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct(
            [(kind.field(place).name, plain_type(kind.field(place).type)) for place in range(kind.num_fields)]
        )
    if pa.types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if is_any_list(kind):
        return pa.list_(pa.field("element", plain_type(kind.value_type)))
    return _plain_leaf(kind)


def _plain_leaf(kind: pa.DataType) -> pa.DataType:
    if kind in _SIGNED:
        return _SIGNED[kind]
    if pa.types.is_timestamp(kind):
        return WALL_CLOCK if kind.tz is None else INSTANT
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_decimal(kind):
        return pa.decimal128(min(kind.precision, _DECIMAL128_DIGITS), kind.scale)
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_date64(kind):
        return pa.date32()
    if pa.types.is_time(kind):
        return pa.time64("ns")
    if pa.types.is_duration(kind):
        return pa.duration("us")
    return kind


def is_any_list(kind: pa.DataType) -> bool:
    """Whether it is a list type, maps excluded."""
    checks = (
        pa.types.is_list,
        pa.types.is_large_list,
        pa.types.is_fixed_size_list,
        pa.types.is_list_view,
        pa.types.is_large_list_view,
    )
    return any(check(kind) for check in checks)


def as_plain(array: pa.Array) -> pa.Array:
    """Values without extensions, dictionaries, large and view types. Units are kept."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return as_plain(array.storage)
    if pa.types.is_dictionary(kind):
        return as_plain(array.dictionary_decode())
    if pa.types.is_run_end_encoded(kind):
        return as_plain(pc.run_end_decode(array))
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return array.cast(pa.string())
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        return array.cast(pa.binary())
    if is_any_list(kind) and not pa.types.is_list(kind):
        return _as_list(array)
    return array


def _as_list(array: pa.Array) -> pa.ListArray:
    """Any list as a list with offsets of 32 bits: values in order, without those of nulls."""
    kind = pa.list_(array.type.value_field)
    lengths: Sequence[int] = pc.fill_null(pc.list_value_length(array), 0)
    ends = pc.cumulative_sum_checked(pc.cast(lengths, pa.int64()))
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends]).cast(pa.int32())
    mask = array.is_null() if array.null_count else None
    return pa.ListArray.from_arrays(offsets, array.flatten(), type=kind, mask=mask)

"""Checks of what pyarrow decodes: indices of dictionaries, and values that a change of type would alter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from aioprefetch import arrow_compute as pc
from aioprefetch.errors import Unsupported

# Values that are compared together: what they become on the way stays in the cache of a core.
_INT96_TOGETHER = 8192


class Int96(NamedTuple):
    """How the timestamps of 96 bits of ``leaves`` are read: in ``unit``, "us" or "ns".

    They are read in the unit ``other`` as well, unless it is ``None``: the two tell whether a value fits into ``unit``.
    """

    leaves: frozenset[int]
    unit: str
    other: str | None


def leaves_of(columns: Sequence[pa.Array]) -> Iterator[pa.Array]:
    """The values of each leaf of some columns, in the order of the schema; a dictionary is a leaf."""
    for array in columns:
        kind = array.type
        if isinstance(kind, pa.BaseExtensionType):
            yield from leaves_of([array.storage])
        elif pa.types.is_struct(kind):
            yield from leaves_of([array.field(number) for number in range(kind.num_fields)])
        elif pa.types.is_nested(kind):
            yield from leaves_of([_items(array)])
        else:
            yield array


def _items(array: pa.Array) -> pa.Array:
    """The items of lists, or the entries of maps."""
    kind = array.type
    if pa.types.is_map(kind):  # Its own ``keys`` and ``items`` belong to the array that it is a slice of.
        array = array.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
    return array.flatten()


def check_indices(columns: Sequence[pa.Array]) -> None:
    """Raise ``ValueError`` for an index that lies outside its dictionary: what follows it reads foreign memory."""
    for array in leaves_of(columns):
        if not pa.types.is_dictionary(array.type) or not len(array):
            continue
        width = array.type.index_type.bit_width // 8
        stored = np.frombuffer(array.buffers()[1], f"u{width}", len(array), array.offset * width)
        if stored.max() >= len(array.dictionary):  # A negative index is a large one.
            array.validate(full=True)  # A null may have any index.


def check_text(columns: Sequence[pa.Array]) -> None:
    """Raise ``ValueError`` for text that is not UTF-8, which pyarrow does not look at, and which ends polars."""
    for array in leaves_of(columns):
        values = array.dictionary if pa.types.is_dictionary(array.type) else array
        kind = values.type
        is_plain = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        if (is_plain and not _is_ascii(values)) or pa.types.is_string_view(kind):
            values.validate(full=True)


def _is_ascii(array: pa.Array) -> bool:
    """Whether all of a text is ASCII, several times as fast as to validate it."""
    _, offsets, data = array.buffers()
    if data is None or not len(array):
        return True
    ends = np.frombuffer(offsets, np.int32 if pa.types.is_string(array.type) else np.int64)
    text = np.frombuffer(data, np.int8)[ends[array.offset] : ends[array.offset + len(array)]]
    return not text.size or bool(text.min() >= 0)


def check_int96(array: pa.Array, other: pa.Array, name: str) -> None:
    """Raise ``Unsupported`` for a value of a leaf that does not fit into its unit; ``other`` has the other unit."""
    is_micros = array.type.unit == "us"
    us, ns = (
        np.frombuffer(each.buffers()[1] or b"", np.int64, len(each), each.offset * 8)
        for each in ((array, other) if is_micros else (other, array))
    )
    for first in range(0, len(us), _INT96_TOGETHER):
        micros, nanos = us[first : first + _INT96_TOGETHER], ns[first : first + _INT96_TOGETHER]
        is_lost = micros * 1000 != nanos if is_micros else nanos // 1000 != micros  # Both products wrap around alike.
        if is_lost.any():  # Unless it is null, which may be anything.
            is_lost &= array.slice(first, len(micros)).is_valid().to_numpy(zero_copy_only=False)
        if is_lost.any():
            value = pa.scalar(int(micros[is_lost.argmax()]), pa.timestamp("us")).cast(pa.string())
            why = 'is beyond the nanoseconds of 64 bits, 1677 to 2262: int96_unit="us" reads it'
            if is_micros:
                why = 'has nanoseconds below the microsecond: int96_unit="ns" reads them'
            raise Unsupported(f"column {name!r}: the INT96 timestamp {value} {why}", operation="scan")


def check_cast(before: pa.Array, after: pa.Array, *, is_nullable: bool = True) -> None:
    """Raise ``ValueError`` for what pyarrow's cast lets pass: altered values, nulls where no null was."""
    if after.null_count and not is_nullable:
        raise ValueError("there is a null where the type has none")
    if isinstance(before.type, pa.BaseExtensionType):
        before = before.storage
    if pa.types.is_dictionary(before.type):
        before = before.dictionary_decode()
    kind = after.type
    if pa.types.is_struct(kind):
        for number, field in enumerate(kind):
            if before.type.get_field_index(field.name) >= 0:
                check_cast(before.field(field.name), after.field(number), is_nullable=field.nullable)
    elif pa.types.is_nested(kind):
        item = kind.item_field if pa.types.is_map(kind) else kind.value_field
        check_cast(_items(before), _items(after), is_nullable=pa.types.is_map(kind) or item.nullable)
    elif _may_alter(before.type, kind):
        place = pc.index(pc.not_equal(after.cast(before.type), before), True).as_py()
        if place >= 0:
            raise ValueError(f"{before[place]} would become {after[place]}")


def _may_alter(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether pyarrow's cast changes values without a word."""
    if pa.types.is_timestamp(kind):
        return bool(pa.types.is_date(wanted))
    if pa.types.is_boolean(wanted):
        return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))
    return bool(pa.types.is_floating(kind) and pa.types.is_decimal(wanted))

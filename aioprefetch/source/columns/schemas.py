"""One schema for several files: the union of theirs, and their batches made into batches of exactly one schema. Pure.

In a union each field has a type that holds all its values. Engines that compare schemas demand one: columns are found
by name (the exact name, otherwise without regard to case, as in Spark), put in order, cast where nothing is lost, and
filled with nulls where a file lacks one. A column that has the type already is passed on without a copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from aioprefetch.errors import Error, UntrustedMetadata
from aioprefetch.source.columns.casts import (
    DECIMAL128_DIGITS,
    INSTANT,
    CannotCast,
    as_plain,
    cast_plain,
    is_number,
    plain_schema,
)


def match_names(names: Sequence[str], wanted: Sequence[str], *, exact_case: bool = False) -> list[int | None]:
    """For each wanted name the place of its column among ``names``, or ``None``.

    Unless ``exact_case`` a name matches in any case. A column that matches one wanted name exactly matches no other.
    ``UntrustedMetadata`` if several columns match a name.
    """
    if list(names) == list(wanted) and len(set(names)) == len(names):
        return list(range(len(names)))
    exact: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        exact.setdefault(name, []).append(place)
    folded: dict[str, list[int]] = {}
    taken = exact.keys() & set(wanted)
    for place, name in enumerate(names):
        if name not in taken and not exact_case:
            folded.setdefault(name.lower(), []).append(place)
    return [_only(name, exact.get(name) or folded.get(name.lower(), []), names) for name in wanted]


def _only(name: str, places: Sequence[int], names_of_file: Sequence[str]) -> int | None:
    if len(places) > 1:
        names = ", ".join(repr(names_of_file[place]) for place in places)
        raise UntrustedMetadata(
            f"column {name!r} may be any of {names}; rename them, or ask for one by its exact name",
            operation="conform",
            context={"column": name},
        )
    return places[0] if places else None


# --- the union --------------------------------------------------------------------------------------------------------

# Decimal digits that hold every integer of a width in bits.
_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}
# A double holds every integer of this many bits.
_DOUBLE_INTEGER_BITS = 32


def united(schemas: Sequence[tuple[str, pa.Schema]], *, is_lenient: bool) -> pa.Schema:
    """The schema of files, given with their paths: plain types, all nullable, fields in the order of their first file.

    A field of different types gets a type that holds both without loss. Otherwise it becomes text
    (``is_lenient``: the values are text in the files), otherwise ``UntrustedMetadata`` names field and files.
    """
    fields: dict[str, tuple[pa.DataType, str]] = {}
    for path, schema in schemas:
        for field in plain_schema(schema):
            earlier = fields.get(field.name)
            if earlier is None:
                fields[field.name] = field.type, path
                continue
            both = wider(earlier[0], field.type, is_lenient=is_lenient)
            if both is None:
                raise UntrustedMetadata(
                    f"column {field.name!r} is {earlier[0]} in {earlier[1]!r} and {field.type} in {path!r}: give the "
                    "schema that shall be read",
                    operation="infer_schema",
                    path=path,
                    context={"column": field.name},
                )
            fields[field.name] = both, earlier[1]
    return pa.schema([pa.field(name, kind) for name, (kind, _) in fields.items()])


def with_texts_for_nulls(schema: pa.Schema) -> pa.Schema:
    """The schema with strings for fields without any value, and for structs without fields."""
    return pa.schema([field.with_type(_text_for_null(field.type)) for field in schema])


def _text_for_null(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_null(kind) or (types.is_struct(kind) and not kind.num_fields):
        return pa.string()
    if types.is_struct(kind):
        return pa.struct([field.with_type(_text_for_null(field.type)) for field in kind])
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_text_for_null(kind.value_type)))
    if types.is_map(kind):
        return pa.map_(kind.key_type, _text_for_null(kind.item_type))
    return kind


def wider(kind: pa.DataType, other: pa.DataType, *, is_lenient: bool) -> pa.DataType | None:
    """The type that holds values of both; otherwise text, or ``None`` without ``is_lenient``."""
    common = _wider(kind, other, is_lenient)
    return pa.string() if common is None and is_lenient else common


def _wider(kind: pa.DataType, other: pa.DataType, is_lenient: bool) -> pa.DataType | None:
    types = pa.types
    if kind == other or types.is_null(other):
        return kind
    if types.is_null(kind):
        return other
    if is_number(kind) and is_number(other):
        return _wider_number(kind, other, is_lenient)
    if types.is_timestamp(kind) and types.is_timestamp(other):
        return INSTANT
    for date, time in ((kind, other), (other, kind)):
        if types.is_date(date) and types.is_timestamp(time):
            return time
    if types.is_struct(kind) and types.is_struct(other):
        return _wider_struct(kind, other, is_lenient)
    if types.is_list(kind) and types.is_list(other):
        value = wider(kind.value_type, other.value_type, is_lenient=is_lenient)
        return None if value is None else pa.list_(pa.field("element", value))
    if types.is_map(kind) and types.is_map(other):
        key = wider(kind.key_type, other.key_type, is_lenient=is_lenient)
        item = wider(kind.item_type, other.item_type, is_lenient=is_lenient)
        return None if key is None or item is None else pa.map_(key, item)
    return None


def _wider_struct(kind: pa.StructType, other: pa.StructType, is_lenient: bool) -> pa.DataType | None:
    fields = {field.name: field.type for field in kind}
    for field in other:
        both = wider(fields.get(field.name, field.type), field.type, is_lenient=is_lenient)
        if both is None:
            return None
        fields[field.name] = both
    return pa.struct(list(fields.items()))


def _wider_number(kind: pa.DataType, other: pa.DataType, is_lenient: bool) -> pa.DataType | None:
    types = pa.types
    if types.is_integer(kind) and types.is_integer(other):
        return max(kind, other, key=_bits)
    if types.is_decimal(kind) or types.is_decimal(other):
        if types.is_floating(kind) or types.is_floating(other):
            return pa.float64() if is_lenient else None
        scale = max(_scale(kind), _scale(other))
        digits = max(_digits(kind) - _scale(kind), _digits(other) - _scale(other)) + scale
        return pa.decimal128(digits, scale) if digits <= DECIMAL128_DIGITS else None
    integers = [number for number in (kind, other) if types.is_integer(number)]
    if not is_lenient and integers and integers[0].bit_width > _DOUBLE_INTEGER_BITS:
        return None
    return pa.float64()


def _bits(kind: pa.DataType) -> int:
    bits: int = kind.bit_width
    return bits


def _digits(kind: pa.DataType) -> int:
    digits: int = kind.precision if pa.types.is_decimal(kind) else _DIGITS[kind.bit_width]
    return digits


def _scale(kind: pa.DataType) -> int:
    scale: int = kind.scale if pa.types.is_decimal(kind) else 0
    return scale


# --- batches of one schema --------------------------------------------------------------------------------------------


class Conformer:
    """``conform`` for many batches to one schema: a plan for one schema of batches serves the next batches."""

    def __init__(self, schema: pa.Schema, *, exact_case: bool = False) -> None:
        self.schema = schema
        self._exact_case = exact_case
        self._required = tuple(not field.nullable for field in schema)
        self._seen: pa.Schema | None = None
        self._places: list[int | None] = []
        self._is_same = False

    def conform(self, batch: pa.RecordBatch, *, path: str = "") -> pa.RecordBatch:
        """The rows of a batch with exactly the fields of the schema."""
        try:
            if self._seen is None or not batch.schema.equals(self._seen, check_metadata=False):
                self._learn(batch.schema)
            nulls = (batch.column(place).null_count for place, required in enumerate(self._required) if required)
            if self._is_same and not any(nulls):
                return batch
            return self._converted(batch)
        except Error as error:
            error.add_context(operation="conform", path=path)
            raise

    def _learn(self, schema: pa.Schema) -> None:
        self._places = match_names(schema.names, self.schema.names, exact_case=self._exact_case)
        self._is_same = schema.equals(self.schema, check_metadata=False) and not any(
            pa.types.is_nested(field.type) for field in schema
        )
        self._seen = schema

    def _converted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not len(self.schema):
            return batch.select([])
        arrays = [
            _column(None if place is None else batch.column(place), field, batch.num_rows, self._exact_case)
            for place, field in zip(self._places, self.schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _column(array: pa.Array | None, field: pa.Field, rows: int, exact_case: bool) -> pa.Array:
    if array is None:
        if not field.nullable and rows:
            raise UntrustedMetadata(
                f"the file has no column {field.name!r}, which must not be null", context={"column": field.name}
            )
        return pa.nulls(rows, field.type)
    return conform_array(array, field, field.name, exact_case)


def conform_array(array: pa.Array, field: pa.Field, column: str, exact_case: bool = False) -> pa.Array:
    """An array with the type of ``field``, without nulls if the field is required. ``column`` is for messages."""
    if not field.nullable and array.null_count:
        raise UntrustedMetadata(
            f"column {column!r} must not be null, and {array.null_count} of {len(array)} values are",
            context={"column": column},
        )
    kind, wanted = array.type, field.type
    if kind == wanted and not (pa.types.is_nested(wanted) and _has_required(wanted)):
        return array
    try:
        array = as_plain(array)
        if pa.types.is_nested(wanted):
            converted = _nested(array, wanted, column, exact_case)
        else:
            converted = None if pa.types.is_nested(array.type) else cast_plain(array, wanted)
    except (CannotCast, pa.ArrowException) as error:
        raise _refusal(column, kind, wanted, error) from error
    if converted is None:
        raise _refusal(column, kind, wanted, None)
    return converted


def _nested(array: pa.Array, wanted: pa.DataType, column: str, exact_case: bool) -> pa.Array | None:
    """An array as a nested type; ``None`` if the types are not both nested in the same way."""
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), wanted)
    if pa.types.is_struct(wanted) and pa.types.is_struct(array.type):
        return _struct(array, wanted, column, exact_case)
    if pa.types.is_map(wanted) and pa.types.is_map(array.type):
        return _map(array, wanted, column, exact_case)
    if pa.types.is_list(wanted) and pa.types.is_list(array.type):
        return _list(array, wanted, column, exact_case)
    return None


def _struct(array: pa.StructArray, wanted: pa.StructType, column: str, exact_case: bool) -> pa.Array:
    kind = array.type
    fields = [wanted.field(place) for place in range(wanted.num_fields)]
    places = match_names([part.name for part in kind], [field.name for field in fields], exact_case=exact_case)
    mask = array.is_null() if array.null_count else None
    # Below a null struct a dictionary may have invalid indices.
    found_children = [array.field(place) for place in range(kind.num_fields)] if mask is None else array.flatten()
    children = []
    for place, field in zip(places, fields, strict=True):
        name = f"{column}.{field.name}"
        # Values below a null struct do not count as nulls.
        below = field if mask is None else field.with_nullable(True)
        if place is None:
            if not field.nullable and len(array) > array.null_count:
                raise UntrustedMetadata(
                    f"the file has no field {name!r}, which must not be null", context={"column": name}
                )
            children.append(pa.nulls(len(array), field.type))
            continue
        child = conform_array(found_children[place], below, name, exact_case)
        if mask is not None and not field.nullable:
            _check_under(child, mask, name)
        children.append(child)
    return pa.StructArray.from_arrays(children, fields=fields, mask=mask) if children else array.cast(wanted)


def _check_under(child: pa.Array, mask: pa.BooleanArray, column: str) -> None:
    nulls = pc.and_not(child.is_null(), mask).true_count if child.null_count else 0
    if nulls:
        raise UntrustedMetadata(
            f"column {column!r} must not be null, and {nulls} values are", context={"column": column}
        )


def _list(array: pa.ListArray, wanted: pa.ListType, column: str, exact_case: bool) -> pa.Array:
    offsets, low, high = _offsets(array)
    values = conform_array(array.values.slice(low, high - low), wanted.value_field, f"{column}.element", exact_case)
    mask = array.is_null() if array.null_count else None
    return pa.ListArray.from_arrays(offsets, values, type=wanted, mask=mask)


def _map(array: pa.MapArray, wanted: pa.MapType, column: str, exact_case: bool) -> pa.Array:
    offsets, low, high = _offsets(array)
    keys = conform_array(array.keys.slice(low, high - low), wanted.key_field, f"{column}.key", exact_case)
    items = conform_array(array.items.slice(low, high - low), wanted.item_field, f"{column}.value", exact_case)
    mask = array.is_null() if array.null_count else None
    return pa.MapArray.from_arrays(offsets, keys, items, type=wanted, mask=mask)


def _offsets(array: pa.ListArray | pa.MapArray) -> tuple[pa.Int32Array, int, int]:
    """The offsets of the items from 0 on, and the range of values they cover. Nulls may have items."""
    offsets = array.offsets
    if not len(offsets):
        return pa.array([0], pa.int32()), 0, 0
    low, high = offsets[0].as_py(), offsets[-1].as_py()
    if offsets.offset or low:  # A mask cannot be combined with sliced offsets.
        offsets = pc.subtract(offsets, pa.scalar(low, pa.int32()))
    return offsets, low, high


def _has_required(kind: pa.DataType) -> bool:
    """Whether the type has required fields within: arrays need not obey them."""
    fields: Sequence[pa.Field] = [kind.field(place) for place in range(kind.num_fields)]
    if pa.types.is_map(kind):
        return _has_required(kind.key_type) or not kind.item_field.nullable or _has_required(kind.item_type)
    return any(not field.nullable or _has_required(field.type) for field in fields)


def _refusal(column: str, kind: pa.DataType, wanted: pa.DataType, error: Exception | None) -> Error:
    reason = f": {error}" if error is not None and str(error) else ""
    return UntrustedMetadata(
        f"column {column!r} is {kind} in the file and cannot become {wanted}{reason}", context={"column": column}
    )

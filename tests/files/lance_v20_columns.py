"""Columns of every type that version 2.0 holds, with and without nulls."""

import datetime as dt
import decimal
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

Rng = np.random.Generator
Column = tuple[pa.Field, pa.Array]

NUMBERS = (
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64(), pa.date32(), pa.time32("s"), pa.time32("ms"), pa.time64("us")),
    *(pa.time64("ns"), pa.timestamp("us"), pa.timestamp("ns", "UTC"), pa.duration("ms")),
)


def _nulls(rng: Rng, rows: int, share: float) -> np.ndarray | None:
    return rng.random(rows) < share if share else None


def numbers(kind: pa.DataType, share: float) -> Callable[[Rng, int], Column]:
    """Numbers of one type, ``share`` of them null."""

    def make(rng: Rng, rows: int) -> Column:
        small = rng.integers(0, 100, rows)
        array = pa.array(small.astype(np.float16) if kind == pa.float16() else small)
        array = array.cast(pa.int32()).cast(kind) if kind.bit_width == 32 and kind != pa.float32() else array.cast(kind)
        mask = _nulls(rng, rows, share)
        return _field(kind), array if mask is None else _masked(array, mask)

    return make


def _masked(array: pa.Array, mask: np.ndarray) -> pa.Array:
    return array.take(pa.array(np.arange(len(array)), mask=mask))


def values(kind: pa.DataType, one: Callable[[Rng], Any], share: float = 0.0) -> Callable[[Rng, int], Column]:
    """Python values of one type."""

    def make(rng: Rng, rows: int) -> Column:
        mask = _nulls(rng, rows, share)
        items = [None if mask is not None and mask[row] else one(rng) for row in range(rows)]
        return _field(kind), pa.array(items, kind)

    return make


def with_metadata(metadata: dict[str, str], make: Callable[[Rng, int], Column]) -> Callable[[Rng, int], Column]:
    """Add metadata to the fields of a family."""

    def marked(rng: Rng, rows: int) -> Column:
        field, array = make(rng, rows)
        return field.with_metadata(metadata), array

    return marked


def _field(kind: pa.DataType) -> pa.Field:
    return pa.field("x", kind)


def text(rng: Rng) -> str:
    """A string of up to 20 characters, some of them long in UTF-8."""
    return "".join(rng.choice(list("abcdefghij äß€"), int(rng.integers(0, 20))))


def data(rng: Rng) -> bytes:
    """Up to 30 random bytes."""
    return rng.bytes(int(rng.integers(0, 30)))


def some(one: Callable[[Rng], Any], most: int, share: float = 0.0) -> Callable[[Rng], Any]:
    """A list of up to ``most`` values."""

    def make(rng: Rng) -> Any:
        return [None if rng.random() < share else one(rng) for _ in range(int(rng.integers(0, most + 1)))]

    return make


def exactly(one: Callable[[Rng], Any], count: int, share: float = 0.0) -> Callable[[Rng], Any]:
    """A list of ``count`` values."""
    return lambda rng: [None if rng.random() < share else one(rng) for _ in range(count)]


def integer(rng: Rng) -> int:
    """A small number."""
    return int(rng.integers(-100, 100))


def dictionary(kind: pa.DataType, items: list[Any]) -> Callable[[Rng, int], Column]:
    """An Arrow dictionary with some nulls."""

    def make(rng: Rng, rows: int) -> Column:
        indices = pa.array(rng.integers(0, len(items), rows), mask=rng.random(rows) < 0.1).cast(kind.index_type)
        return _field(kind), pa.DictionaryArray.from_arrays(indices, pa.array(items, kind.value_type))

    return make


PACKED = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.float32(), 3)), ("c", pa.uint64()), ("d", pa.int8())])
POINT = pa.struct([("x", pa.int64()), ("y", pa.string()), ("z", pa.list_(pa.float32(), 2))])


def point(rng: Rng) -> dict[str, Any]:
    """A struct."""
    return {"x": integer(rng), "y": text(rng) if rng.random() < 0.8 else None, "z": [float(integer(rng))] * 2}


def packed(rng: Rng) -> dict[str, Any]:
    """A struct of fixed width."""
    return {"a": integer(rng), "b": [float(integer(rng))] * 3, "c": abs(integer(rng)), "d": integer(rng)}


FAMILIES: dict[str, Callable[[Rng, int], Column]] = {
    **{f"{kind}": numbers(kind, 0) for kind in NUMBERS},
    **{f"{kind} with nulls": numbers(kind, 0.2) for kind in (pa.int8(), pa.int32(), pa.float64(), pa.timestamp("us"))},
    "date64": values(pa.date64(), lambda rng: dt.date(2020, 1, 1 + int(rng.integers(0, 28))), 0.1),
    "decimal128": values(pa.decimal128(12, 2), lambda rng: decimal.Decimal(integer(rng)) / 4, 0.1),
    "decimal256": values(pa.decimal256(40, 2), lambda rng: decimal.Decimal(integer(rng)) / 4),
    "fixed binary": values(pa.binary(16), lambda rng: rng.bytes(16)),
    "fixed binary of 3": values(pa.binary(3), lambda rng: rng.bytes(3), 0.2),
    "bool": values(pa.bool_(), lambda rng: bool(rng.integers(0, 2))),
    "bool with nulls": values(pa.bool_(), lambda rng: bool(rng.integers(0, 2)), 0.3),
    "string": values(pa.string(), text),
    "string with nulls": values(pa.string(), text, 0.2),
    "large_string": values(pa.large_string(), text, 0.2),
    "binary": values(pa.binary(), data, 0.1),
    "large_binary": values(pa.large_binary(), data),
    "few strings": values(pa.string(), lambda rng: f"v{rng.integers(0, 9)}", 0.1),
    "few strings without nulls": values(pa.string(), lambda rng: f"äv{rng.integers(0, 5)}"),
    "all null strings": values(pa.string(), text, 1.1),
    "all null numbers": values(pa.int32(), integer, 1.1),
    "all null bools": values(pa.bool_(), integer, 1.1),
    "all null vectors": values(pa.list_(pa.float32(), 4), integer, 1.1),
    "all null lists": values(pa.list_(pa.int32()), integer, 1.1),
    "null": values(pa.null(), lambda rng: None),
    "zstd": with_metadata({"lance-encoding:compression": "zstd"}, values(pa.string(), text, 0.1)),
    "lz4": with_metadata({"lance-encoding:compression": "lz4"}, values(pa.large_string(), text, 0.1)),
    "fsst": with_metadata({"lance-encoding:compression": "fsst"}, values(pa.string(), text, 0.1)),
    "no compression": with_metadata({"lance-encoding:compression": "none"}, values(pa.string(), text, 0.1)),
    "dictionary of strings": dictionary(pa.dictionary(pa.int32(), pa.string()), ["a", "bb", "", "dddd"]),
    "dictionary in int8": dictionary(pa.dictionary(pa.int8(), pa.string()), ["a", "bb", "ccc"]),
    "dictionary of numbers": dictionary(pa.dictionary(pa.int32(), pa.int64()), [5, 6, 7]),
    "vectors": values(pa.list_(pa.float32(), 4), exactly(lambda rng: float(integer(rng)), 4)),
    "vectors with nulls": values(pa.list_(pa.float32(), 4), exactly(lambda rng: float(integer(rng)), 4), 0.2),
    "vectors of nulls": values(pa.list_(pa.int16(), 3), exactly(integer, 3, 0.3), 0.2),
    "vectors of bools": values(pa.list_(pa.bool_(), 3), exactly(lambda rng: integer(rng) > 0, 3, 0.3), 0.2),
    "matrices": values(pa.list_(pa.list_(pa.int32(), 2), 2), exactly(exactly(integer, 2, 0.2), 2), 0.1),
    "lists": values(pa.list_(pa.int64()), some(integer, 6), 0.1),
    "lists of nulls": values(pa.list_(pa.int32()), some(integer, 6, 0.3), 0.1),
    "large lists": values(pa.large_list(pa.float64()), some(lambda rng: float(integer(rng)), 5)),
    "lists of strings": values(pa.list_(pa.string()), some(text, 5, 0.2), 0.1),
    "lists of few strings": values(pa.list_(pa.string()), some(lambda rng: f"v{rng.integers(0, 5)}", 5, 0.2), 0.1),
    "lists of bools": values(pa.list_(pa.bool_()), some(lambda rng: integer(rng) > 0, 5, 0.2), 0.1),
    "lists of vectors": values(pa.list_(pa.list_(pa.float32(), 2)), some(exactly(integer, 2), 4), 0.1),
    "lists of lists": values(pa.list_(pa.list_(pa.int32())), some(some(integer, 4), 4, 0.1), 0.1),
    "lists of lists of strings": values(pa.list_(pa.list_(pa.string())), some(some(text, 3, 0.1), 3, 0.1), 0.1),
    "lists of structs": values(pa.list_(POINT), some(point, 4), 0.1),
    "structs": values(POINT, point),
    "structs of lists": values(
        pa.struct([("l", pa.list_(pa.string())), ("n", pa.int64()), ("s", POINT)]),
        lambda rng: {"l": some(text, 4, 0.1)(rng) if integer(rng) > -80 else None, "n": integer(rng), "s": point(rng)},
    ),
    "structs of nothing": values(pa.struct([]), lambda rng: {}),
    "packed structs": with_metadata({"packed": "true"}, values(PACKED, packed)),
    "packed structs by the long name": with_metadata({"lance-encoding:packed": "true"}, values(PACKED, packed)),
    "blobs": with_metadata({"lance-encoding:blob": "true"}, values(pa.large_binary(), data, 0.2)),
}


def table_of(name: str, rng: Rng, rows: int) -> pa.Table:
    """A table of one column ``x``."""
    field, array = FAMILIES[name](rng, rows)
    return pa.table([array], schema=pa.schema([field]))

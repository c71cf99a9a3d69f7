"""Arrow columns of every family that version 2.1 and 2.2 pages hold, for tests: name, rows, seed -> array."""

import datetime as dt
import decimal
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

Make = Callable[[int, np.random.Generator], pa.Array]


def _masked(values: list[Any], rng: np.random.Generator, share: float = 0.15) -> list[Any]:
    return [None if drop else value for value, drop in zip(values, rng.random(len(values)) < share, strict=True)]


def _ints(bits: int, kind: str) -> Make:
    def make(rows: int, rng: np.random.Generator) -> pa.Array:
        top = min(bits - 1, int(rng.integers(1, bits)))
        low = 0 if kind == "u" else -(1 << (top - 1)) if top > 1 else 0
        values = rng.integers(low, 1 << top, rows, dtype=np.int64)
        return pa.array(values.astype(f"{kind}{bits // 8}"))

    return make


def _wide(rows: int, rng: np.random.Generator) -> pa.Array:
    return pa.array(rng.integers(-(1 << 63), (1 << 63) - 1, rows))


def _nulls(make: Make) -> Make:
    def made(rows: int, rng: np.random.Generator) -> pa.Array:
        array = make(rows, rng)
        flags = pa.array(rng.random(rows) < 0.15)
        return pa.compute.if_else(flags, pa.scalar(None, array.type), array)

    return made


def _python(kind: pa.DataType, value: Callable[[int, np.random.Generator], Any], *, nulls: bool = False) -> Make:
    def make(rows: int, rng: np.random.Generator) -> pa.Array:
        values = [value(i, rng) for i in range(rows)]
        return pa.array(_masked(values, rng) if nulls else values, kind)

    return make


def _text(i: int, rng: np.random.Generator) -> str:
    return f"value {i} " + "xyz" * int(rng.integers(0, 4)) + ("ü" if i % 5 == 0 else "")


def _long_text(i: int, rng: np.random.Generator) -> str:
    return f"{i}-" * int(rng.integers(80, 120))


def _blob(i: int, rng: np.random.Generator) -> bytes:
    return bytes(rng.integers(0, 256, int(rng.integers(0, 30)), dtype=np.uint8))


def _large_blob(i: int, rng: np.random.Generator) -> bytes:
    return bytes(rng.integers(0, 256, int(rng.integers(300, 900)), dtype=np.uint8))


def _list(item: Callable[[int, np.random.Generator], Any], mode: str) -> Callable[[int, np.random.Generator], Any]:
    """``mode``: any of n (null lists), e (empty lists), i (null items)."""

    def make(i: int, rng: np.random.Generator) -> Any:
        draw = rng.random()
        if "n" in mode and draw < 0.1:
            return None
        if "e" in mode and draw < 0.25:
            return []
        items = [item(i * 10 + k, rng) for k in range(int(rng.integers(1, 5)))]
        return _masked(items, rng, 0.2) if "i" in mode else items

    return make


def _number(i: int, rng: np.random.Generator) -> int:
    return int(rng.integers(0, 1000))


def _point(i: int, rng: np.random.Generator) -> Any:
    return {"x": i, "s": f"s{i % 7}" * (i % 3)}


def _nullable_point(i: int, rng: np.random.Generator) -> Any:
    if rng.random() < 0.15:
        return None
    return {"x": None if i % 6 == 0 else i, "s": None if i % 4 == 0 else f"s{i}"}


def _deep(i: int, rng: np.random.Generator) -> Any:
    if rng.random() < 0.1:
        return None
    inner = None if rng.random() < 0.15 else {"a": i, "b": None if i % 3 else str(i)}
    return {"p": inner, "q": i / 2 if i % 5 else None}


def _vectors(kind: pa.DataType, size: int, *, nulls: bool = False, items: bool = False) -> Make:
    def make(rows: int, rng: np.random.Generator) -> pa.Array:
        flat: pa.Array = pa.array(
            rng.integers(0, 100, rows * size).astype("f4" if kind == pa.float32() else "i8")
        ).cast(kind)
        if items:
            flat = pa.compute.if_else(pa.array(rng.random(rows * size) < 0.1), pa.scalar(None, kind), flat)
        if nulls:
            mask = pa.array(rng.random(rows) < 0.15)
            return pa.FixedSizeListArray.from_arrays(flat, size, mask=mask)
        return pa.FixedSizeListArray.from_arrays(flat, size)

    return make


def _dictionary(rows: int, rng: np.random.Generator) -> pa.Array:
    return pa.array([f"word{int(k)}" for k in rng.integers(0, 20, rows)]).dictionary_encode()


POINT = pa.struct([("x", pa.int64()), ("s", pa.string())])
DEEP = pa.struct([("p", pa.struct([("a", pa.int32()), ("b", pa.string())])), ("q", pa.float64())])

FLAT: dict[str, Make] = {
    **{f"int{bits}": _ints(bits, "i") for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": _ints(bits, "u") for bits in (8, 16, 32, 64)},
    **{f"int{bits} nulls": _nulls(_ints(bits, "i")) for bits in (8, 64)},
    "int64 wide": _wide,
    "int64 wide nulls": _nulls(_wide),
    "constant": lambda rows, rng: pa.array([7] * rows),
    "constant nulls": _nulls(lambda rows, rng: pa.array([7] * rows)),
    "constant text": lambda rows, rng: pa.array(["same"] * rows),
    "constant text nulls": _nulls(lambda rows, rng: pa.array(["same"] * rows)),
    "constant bool": lambda rows, rng: pa.array([True] * rows),
    "all null": lambda rows, rng: pa.nulls(rows, pa.int64()),
    "all null text": lambda rows, rng: pa.nulls(rows, pa.string()),
    "all null vector": lambda rows, rng: pa.nulls(rows, pa.list_(pa.float32(), 4)),
    "null type": lambda rows, rng: pa.nulls(rows),
    "runs": lambda rows, rng: pa.array(np.repeat(np.arange(rows // 50 + 1), 50)[:rows]),
    "runs nulls": _nulls(lambda rows, rng: pa.array(np.repeat(np.arange(rows // 50 + 1), 50)[:rows])),
    "float16": lambda rows, rng: pa.array(rng.random(rows).astype("f2")),
    "float32": lambda rows, rng: pa.array(rng.random(rows).astype("f4")),
    "float64": lambda rows, rng: pa.array(rng.random(rows)),
    "float64 nulls": _nulls(lambda rows, rng: pa.array(rng.random(rows))),
    "float64 smooth": lambda rows, rng: pa.array(np.sin(np.arange(rows) / 100)),
    "bool": lambda rows, rng: pa.array(rng.random(rows) < 0.5),
    "bool nulls": _nulls(lambda rows, rng: pa.array(rng.random(rows) < 0.5)),
    "date32": _python(pa.date32(), lambda i, rng: dt.date(2000, 1, 1) + dt.timedelta(i), nulls=True),
    "timestamp": lambda rows, rng: pa.array(rng.integers(0, 1 << 40, rows), pa.timestamp("us", "UTC")),
    "decimal128": _python(pa.decimal128(12, 2), lambda i, rng: decimal.Decimal(i) / 4, nulls=True),
    "decimal256": _python(pa.decimal256(40, 2), lambda i, rng: decimal.Decimal(i) / 4),
    "fixed binary": _python(pa.binary(16), lambda i, rng: bytes(rng.integers(0, 256, 16, dtype=np.uint8)), nulls=True),
    "text": _python(pa.string(), _text),
    "text nulls": _python(pa.string(), _text, nulls=True),
    "text large": _python(pa.large_string(), _text, nulls=True),
    "text long": _python(pa.string(), _long_text),
    "text long nulls": _python(pa.string(), _long_text, nulls=True),
    "text few": _python(pa.string(), lambda i, rng: f"w{int(rng.integers(0, 9))}"),
    "text few nulls": _python(pa.string(), lambda i, rng: f"w{int(rng.integers(0, 9))}", nulls=True),
    "binary": _python(pa.binary(), _blob),
    "binary nulls": _python(pa.large_binary(), _blob, nulls=True),
    "binary large": _python(pa.binary(), _large_blob),
    "binary large nulls": _python(pa.binary(), _large_blob, nulls=True),
    "dictionary": _dictionary,
    "dictionary nulls": _nulls(_dictionary),
    "vector": _vectors(pa.float32(), 4),
    "vector nulls": _vectors(pa.float32(), 4, nulls=True),
    "vector null items": _vectors(pa.float32(), 4, nulls=True, items=True),
    "vector bool": _vectors(pa.bool_(), 5),
    "vector wide": _vectors(pa.float32(), 128),
    "vector wide nulls": _vectors(pa.float32(), 128, nulls=True),
    "vector wide null items": _vectors(pa.float32(), 128, nulls=True, items=True),
}

NESTED: dict[str, Make] = {
    **{
        f"list {mode or 'plain'}": _python(pa.list_(pa.int64()), _list(_number, mode))
        for mode in ("", "n", "e", "i", "ne", "ni", "ei", "nei")
    },
    "list large": _python(pa.large_list(pa.float64()), _list(lambda i, rng: i / 7, "nei")),
    "list text": _python(pa.list_(pa.string()), _list(_text, "nei")),
    "list long text": _python(pa.list_(pa.string()), _list(_long_text, "nei")),
    "list binary": _python(pa.list_(pa.binary()), _list(_large_blob, "ne")),
    "list vector": _python(
        pa.list_(pa.list_(pa.float32(), 100)), _list(lambda i, rng: rng.random(100).astype("f4").tolist(), "nei")
    ),
    "list empty all": _python(pa.list_(pa.int32()), lambda i, rng: []),
    "list null all": _python(pa.list_(pa.int32()), lambda i, rng: None),
    "list null and empty all": _python(pa.list_(pa.int32()), lambda i, rng: None if i % 3 else []),
    "list of nulls": _python(pa.list_(pa.int32()), lambda i, rng: [None] * (i % 4)),
    "list constant": _python(pa.list_(pa.int32()), lambda i, rng: [5] * (i % 4)),
    "list long": _python(pa.list_(pa.int32()), lambda i, rng: list(range(i % 3000)) if i % 50 == 7 else [i]),
    "struct": _python(POINT, _point),
    "struct nulls": _python(POINT, _nullable_point),
    "struct deep": _python(DEEP, _deep),
    "struct of list": _python(
        pa.struct([("v", pa.list_(pa.int32())), ("k", pa.int8())]),
        lambda i, rng: None if i % 11 == 0 else {"v": _list(_number, "nei")(i, rng), "k": i % 100},
    ),
    "list of struct": _python(pa.list_(POINT), _list(_nullable_point, "ne")),
    "list of struct of list": _python(
        pa.list_(pa.struct([("v", pa.list_(pa.int32())), ("k", pa.int64())])),
        _list(lambda i, rng: None if i % 9 == 0 else {"v": _list(_number, "nei")(i, rng), "k": i}, "ne"),
    ),
    "list of list": _python(pa.list_(pa.list_(pa.int32())), _list(_list(_number, "nei"), "ne")),
    "list of list of text": _python(pa.list_(pa.list_(pa.string())), _list(_list(_text, "ne"), "nei")),
    "list of list of list": _python(
        pa.list_(pa.list_(pa.list_(pa.int16()))), _list(_list(_list(_number, "nei"), "ne"), "ne")
    ),
}

MAPS: dict[str, Make] = {
    "map": _python(
        pa.map_(pa.string(), pa.int64()),
        lambda i, rng: None if i % 8 == 0 else [(f"k{k}", k if k % 2 else None) for k in range(i % 4)],
    )
}


def _stored(make: Make, **metadata: str) -> Callable[[int, np.random.Generator], tuple[pa.Array, dict[str, str]]]:
    """Add metadata to the field: ``key_word="value"`` becomes ``lance-encoding:key-word``."""
    named = {f"lance-encoding:{key.replace('_', '-')}": value for key, value in metadata.items()}
    return lambda rows, rng: (make(rows, rng), named)


def _smooth(rows: int, rng: np.random.Generator) -> pa.Array:
    return pa.array(np.sin(np.arange(rows) / 100))


def _texts(rows: int, rng: np.random.Generator) -> pa.Array:
    return pa.array([_text(i, rng) for i in range(rows)])


def _short(i: int, rng: np.random.Generator) -> Any:
    return None if i % 9 == 0 else [i, None, 3, 5][: i % 5]


def _short_points(i: int, rng: np.random.Generator) -> Any:
    return None if i % 9 == 0 else [_point(i, rng), None, {"x": None, "s": None}][: i % 4]


def _fixed(kind: pa.DataType, rows: int, rng: np.random.Generator) -> pa.Array:
    return pa.array([{"a": i, "b": i / 2} for i in range(rows)], kind)


PACKED = pa.struct([("a", pa.int32()), ("b", pa.float64())])

STORED_AS: dict[str, Any] = {
    "numbers zstd": _stored(_ints(64, "i"), compression="zstd"),
    "numbers lz4": _stored(_ints(32, "u"), compression="lz4"),
    "numbers plain": _stored(_ints(64, "i"), compression="none"),
    "floats zstd": _stored(_smooth, compression="zstd"),
    "floats split": _stored(_smooth, compression="lz4", bss="on"),
    "text zstd": _stored(_texts, compression="zstd"),
    "text lz4": _stored(_texts, compression="lz4"),
    "text fsst": _stored(_texts, compression="fsst"),
    "text plain": _stored(_texts, compression="none"),
    "long text zstd": _stored(_python(pa.string(), _long_text, nulls=True), compression="zstd"),
    "long text plain": _stored(_python(pa.string(), _long_text, nulls=True), compression="none"),
    "long text fsst": _stored(_python(pa.string(), _long_text), compression="fsst"),
    "numbers zipped": _stored(_wide, structural_encoding="fullzip"),
    "bools zipped": _stored(_nulls(lambda rows, rng: pa.array(rng.random(rows) < 0.5)), structural_encoding="fullzip"),
    "text zipped": _stored(_python(pa.string(), _text, nulls=True), structural_encoding="fullzip"),
    "lists zipped": _stored(_python(pa.list_(pa.int64()), _short), structural_encoding="fullzip"),
    "long lists zipped": _stored(
        _python(pa.list_(pa.int64()), lambda i, rng: [i] * (2000 if i % 100 == 3 else i % 3)),
        structural_encoding="fullzip",
    ),
    "lists of text zipped": _stored(
        _python(pa.list_(pa.string()), _list(_text, "nei")), structural_encoding="fullzip", compression="none"
    ),
    "lists of lists zipped": _stored(
        _python(pa.list_(pa.list_(pa.int64())), _list(_list(_number, "nei"), "ne")), structural_encoding="fullzip"
    ),
    "lists of structs zipped": _stored(_python(pa.list_(POINT), _short_points), structural_encoding="fullzip"),
    "packed struct": _stored(lambda rows, rng: _fixed(PACKED, rows, rng), packed="true"),
    "packed struct nulls": _stored(
        _python(PACKED, lambda i, rng: None if i % 5 == 0 else {"a": i, "b": i / 2}), packed="true"
    ),
    "vector of vectors": lambda rows, rng: pa.FixedSizeListArray.from_arrays(
        _vectors(pa.float32(), 3)(rows * 2, rng), 2
    ),
    "wide vector of vectors": lambda rows, rng: pa.FixedSizeListArray.from_arrays(
        _vectors(pa.float32(), 30)(rows * 10, rng), 10
    ),
    "dictionary of numbers": lambda rows, rng: pa.array([i % 9 * 1000 for i in range(rows)]).dictionary_encode(),
    "dictionary of equal numbers": lambda rows, rng: pa.DictionaryArray.from_arrays(
        pa.array(np.arange(rows) % 7, pa.uint16()), pa.array([42] * 7)
    ),
    "dictionary of runs": lambda rows, rng: pa.DictionaryArray.from_arrays(
        pa.array(np.arange(rows) % 900, pa.uint16()), pa.array(np.repeat(np.arange(9), 100))
    ),
    "vector of nulls": _python(pa.list_(pa.int16(), 2), lambda i, rng: None if i % 3 == 0 else [None, None]),
    "vector of bool nulls": _python(pa.list_(pa.bool_(), 3), lambda i, rng: [None] * 3),
    "vector of vectors of nulls": _python(
        pa.list_(pa.list_(pa.float32(), 2), 1), lambda i, rng: None if i % 3 == 0 else [[None, None]]
    ),
    "list of vectors of nulls": _python(
        pa.list_(pa.list_(pa.float32(), 2)), lambda i, rng: None if i % 5 == 0 else [[None, None]] * (i % 3)
    ),
    "dictionary constant": lambda rows, rng: pa.array(["x"] * rows).dictionary_encode(),
    "dictionary all null": lambda rows, rng: pa.nulls(rows, pa.string()).dictionary_encode(),
    "wide binary": _python(pa.binary(300), lambda i, rng: rng.bytes(300)),
    "constant wide binary": lambda rows, rng: pa.array([b"z" * 40] * rows, pa.binary(40)),
    "empty struct": lambda rows, rng: pa.array([{"e": {}, "a": i} for i in range(rows)]),
    "list of the null type": _python(pa.list_(pa.null()), lambda i, rng: [None] * (i % 3)),
    "huge lists": _python(pa.list_(pa.int64()), lambda i, rng: list(range(40_000)) if i % 700 == 5 else [i] * (i % 2)),
}

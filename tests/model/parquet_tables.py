"""Random tables of every type that Parquet files hold, and random ways to write them. By seed, so that they repeat."""

import datetime as dt
import random
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Random = random.Random
Make = Callable[[Random], Any]

_STRUCT = pa.struct([("x", pa.int64()), ("y", pa.string()), ("z", pa.struct([("w", pa.float64())]))])
_WITH_LIST = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.int64()))])
_ITEMS = pa.list_(pa.struct([("p", pa.int64()), ("q", pa.string())]))


def _or_null(rng: Random, value: Any) -> Any:
    return None if rng.random() < 0.15 else value


# What a column holds, and how one value is made; nulls come by themselves.
KINDS: dict[str, tuple[pa.DataType, Make]] = {
    "int8": (pa.int8(), lambda rng: rng.randint(-128, 127)),
    "uint32": (pa.uint32(), lambda rng: rng.randint(0, 2**32 - 1)),
    "int64": (pa.int64(), lambda rng: rng.randint(-(2**60), 2**60)),
    "float64": (pa.float64(), lambda rng: rng.random()),
    "float32": (pa.float32(), lambda rng: rng.random()),
    "float16": (pa.float16(), lambda rng: rng.random()),
    "bool": (pa.bool_(), lambda rng: rng.random() < 0.5),
    "string": (pa.string(), lambda rng: "s" * rng.randint(0, 20) + str(rng.random())),
    "few": (pa.string(), lambda rng: f"v{rng.randint(0, 9)}"),
    "large_string": (pa.large_string(), lambda rng: f"v{rng.randint(0, 9)}"),
    "binary": (pa.binary(), lambda rng: rng.randbytes(rng.randint(0, 9))),
    "fixed": (pa.binary(5), lambda rng: rng.randbytes(5)),
    "date": (pa.date32(), lambda rng: dt.date(2000, 1, 1) + dt.timedelta(days=rng.randint(0, 9999))),
    "instant": (pa.timestamp("us", tz="Europe/Berlin"), lambda rng: rng.randint(0, 2**50)),
    "nanoseconds": (pa.timestamp("ns"), lambda rng: rng.randint(0, 2**60)),
    "time": (pa.time32("ms"), lambda rng: rng.randint(0, 86_399_999)),
    "duration": (pa.duration("us"), lambda rng: rng.randint(0, 2**50)),
    "decimal": (pa.decimal128(20, 3), lambda rng: Decimal(rng.randint(-(10**9), 10**9)).scaleb(-3)),
    "list": (pa.list_(pa.int32()), lambda rng: [_or_null(rng, rng.randint(0, 99)) for _ in range(rng.randint(0, 4))]),
    "lists": (pa.list_(pa.list_(pa.int8())), lambda rng: [[n] * rng.randint(0, 2) for n in range(rng.randint(0, 3))]),
    "vector": (pa.list_(pa.float32(), 3), lambda rng: [rng.random()] * 3),
    "map": (pa.map_(pa.string(), pa.int64()), lambda rng: [(f"k{n}", n) for n in range(rng.randint(0, 3))]),
    "struct": (
        _STRUCT,
        lambda rng: {"x": _or_null(rng, rng.randint(0, 9)), "y": "t", "z": {"w": _or_null(rng, rng.random())}},
    ),
    "with_list": (_WITH_LIST, lambda rng: {"a": rng.randint(0, 9), "b": [1] * rng.randint(0, 3)}),
    "items": (_ITEMS, lambda rng: [{"p": n, "q": _or_null(rng, "q")} for n in range(rng.randint(0, 3))]),
}
# These are made in other ways.
SPECIAL = ("sorted", "dictionary", "null")
ALL_KINDS = (*KINDS, *SPECIAL)


def column(rng: Random, kind: str, rows: int) -> pa.Array:
    """A column of that kind, with nulls."""
    if kind == "sorted":
        return pa.array(sorted(rng.randint(0, 10 * rows) for _ in range(rows)), pa.int64())
    if kind == "dictionary":
        indices = pa.array([_or_null(rng, rng.randint(0, 99)) for _ in range(rows)], pa.int32())
        return pa.DictionaryArray.from_arrays(indices, pa.array([f"d{n}" for n in range(100)]))
    if kind == "null":
        return pa.nulls(rows)
    dtype, make = KINDS[kind]
    nullable = kind != "vector"
    return pa.array([_or_null(rng, make(rng)) if nullable else make(rng) for _ in range(rows)], dtype)


@dataclass(frozen=True, slots=True)
class Written:
    """A file, and what is in it."""

    data: bytes
    table: pa.Table
    options: dict[str, Any]

    @property
    def row_groups(self) -> list[int]:
        """Rows of each row group."""
        metadata = pq.read_metadata(pa.BufferReader(self.data))
        return [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]

    def read(self) -> pa.Table:
        """The whole file as pyarrow reads it."""
        return pq.read_table(pa.BufferReader(self.data))


def written(seed: int, *, rows: tuple[int, ...] = (0, 1, 7, 300, 2000), kinds: tuple[str, ...] = ()) -> Written:
    """A file of random columns (of ``kinds``, if given), written in a random way."""
    rng = random.Random(seed)
    count = rng.choice(rows)
    chosen = kinds or tuple(rng.sample(ALL_KINDS, rng.randint(1, 8)))
    metadata = {"who": "me"} if rng.random() < 0.5 else None
    table = pa.table({kind: column(rng, kind, count) for kind in chosen}, metadata=metadata)
    options = {
        "compression": rng.choice(["none", "snappy", "zstd", "gzip", "lz4", "brotli"]),
        "data_page_version": rng.choice(["1.0", "2.0"]),
        "use_dictionary": rng.choice([True, False]),
        "data_page_size": rng.choice([200, 700] if kinds else [200, 2000, 1 << 20]),
        "write_batch_size": rng.choice([10, 100, 1024]),
        "row_group_size": rng.choice([700, 10**6] if kinds else [50, 700, 10**6]),
        "write_page_index": bool(kinds) or rng.random() < 0.5,
        "store_schema": rng.random() < 0.8,
    }
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    return Written(bytes(sink.getvalue()), table, options)


def same(found: pa.Table, expected: pa.Table) -> bool:
    """Equal in schema, with metadata, and in values. Dictionaries may be cut at other rows, and so hold others."""
    if not found.schema.equals(expected.schema, check_metadata=True) or found.num_rows != expected.num_rows:
        return False
    return bool(found.equals(expected) or plain(found).equals(plain(expected)))


def plain(table: pa.Table) -> pa.Table:
    """The table without dictionaries at the top level."""
    columns = [one.cast(one.type.value_type) if pa.types.is_dictionary(one.type) else one for one in table.columns]
    return pa.table(columns, names=table.column_names)

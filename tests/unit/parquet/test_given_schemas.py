"""``schema=``: what its types do not hold is an error that names file and column, and never another value."""

import datetime as dt
from collections.abc import Mapping
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import aioprefetch as ap
from aioprefetch.errors import Unsupported
from tests.stores.gated_reader import Bench, bench
from tests.unit.parquet.parquet_files import written

pytestmark = pytest.mark.virtual

US, UTC = pa.timestamp("us"), pa.timestamp("us", "UTC")


def required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


def put(made: Bench, files: Mapping[str, pa.Table]) -> None:
    for name, table in files.items():
        made.put(written(table), name)


# --- not null ---------------------------------------------------------------------------------------------------------

FILES = {
    "t/1": pa.table({"a": [1, 2], "z": [3, 4]}),
    "t/2": pa.table({"a": [5, None], "z": [6, 7]}),
    "t/3": pa.table({"a": [8, 9]}),
    "u/p=1/1": pa.table({"a": [1]}),
    "u/p=__HIVE_DEFAULT_PARTITION__/1": pa.table({"a": [2]}),
}
REFUSED: list[tuple[Any, pa.Schema, dict[str, Any], str, str]] = [
    ("t/2", pa.schema([required("a", pa.int64())]), {}, "t/2", "'a' has a null"),
    ("t/2", pa.schema([required("a", pa.int32())]), {}, "t/2", "'a' has a null"),
    ("t/", pa.schema([required("a", pa.int64())]), {}, "t/2", "'a' has a null"),
    ("t/3", pa.schema([required("z", pa.int64())]), {}, "t/3", "'z' is not in this file"),
    (["t/1", "t/3"], pa.schema([required("z", pa.int64())]), {}, "t/3", "'z' is not in this file"),
    (
        "t/3",
        pa.schema([("a", pa.int64()), required("z", pa.int64())]),
        {"columns": ["a"], "filters": [("z", "==", 1)]},
        "t/3",
        "'z' is not in this file",
    ),
    ("u/", pa.schema([("a", pa.int64()), required("p", pa.int32())]), {}, "__HIVE_DEFAULT", "'p' is not in this file"),
]


@pytest.mark.parametrize(("path", "schema", "options", "file", "why"), REFUSED)
async def test_a_field_that_is_not_null(path: Any, schema: pa.Schema, options: Any, file: str, why: str) -> None:
    async with bench() as b:
        put(b, FILES)
        with pytest.raises(Unsupported, match=why) as caught:
            await ap.parquet.read_table(b.operator, path, schema=schema, **options)
        assert file in str(caught.value.path)


async def test_what_a_required_field_may_have() -> None:
    async with bench() as b:
        put(b, FILES)
        schema = pa.schema([("a", pa.int64()), required("z", pa.int64())])
        found = await ap.parquet.read_table(b.operator, "t/1", schema=schema)
        assert found.to_pydict() == {"a": [1, 2], "z": [3, 4]}
        assert found.schema.equals(schema)
        others = await ap.parquet.read_table(b.operator, "t/", schema=schema, columns=["a"])
        assert others["a"].to_pylist() == [1, 2, 5, None, 8, 9], "columns that are not asked for count for nothing"
        named = pa.schema([required("a", pa.int64()), required("p", pa.int32())])
        found = await ap.parquet.read_table(b.operator, "u/", schema=named, filters=[("p", "==", 1)])
        assert found.to_pydict() == {"a": [1], "p": [1]}, "nor do files that the filters leave out"


def test_a_file_that_comes_later_lacks_a_column_that_was_not_null(tmp_path: Any) -> None:
    both = pa.table({"a": [1], "b": [2]}, schema=pa.schema([required("a", pa.int64()), required("b", pa.int64())]))
    (tmp_path / "1.parquet").write_bytes(written(both))
    frame = ap.polars.scan_parquet(f"file://{tmp_path}/", missing_columns="insert")
    (tmp_path / "2.parquet").write_bytes(written(both.select(["a"])))
    assert frame.collect().equals(pl.DataFrame({"a": [1, 1], "b": [2, None]}))


# --- values -----------------------------------------------------------------------------------------------------------


def structs(*values: int, kind: pa.DataType = US) -> pa.Array:
    return pa.array([{"x": value, "y": None} for value in values], pa.struct([("x", pa.int64()), ("y", kind)]))


NOON, NIGHT = dt.datetime(2020, 1, 1, 12), dt.datetime(2020, 1, 1)
HELD: list[tuple[pa.Array, pa.DataType, list[Any]]] = [
    (pa.array([0, 1, None]), pa.bool_(), [False, True, None]),
    (pa.array([0.0, 1.0]), pa.bool_(), [False, True]),
    (pa.array([[0, 1], None]), pa.list_(pa.bool_()), [[False, True], None]),
    (pa.array([1, 0, 1]).dictionary_encode(), pa.bool_(), [True, False, True]),
    (structs(1), pa.struct([("z", pa.int8()), ("x", pa.bool_())]), [{"z": None, "x": True}]),
    (pa.array([NIGHT, None], US), pa.date32(), [NIGHT.date(), None]),
    (pa.array([NIGHT], UTC), pa.date32(), [NIGHT.date()]),
    (pa.array([[1]]), pa.list_(required("element", pa.int64())), [[1]]),
    (pa.array(["true", "0"]), pa.bool_(), [True, False]),
]
LOST: list[tuple[pa.Array, pa.DataType, str]] = [
    (pa.array([0, 2]), pa.bool_(), "2 would become True"),
    (pa.array([-1], pa.int8()), pa.bool_(), "-1 would become True"),
    (pa.array([0.5]), pa.bool_(), "0.5 would become True"),
    (pa.array([float("nan")]), pa.bool_(), "nan would become True"),
    (pa.array([[0], [2]]), pa.list_(pa.bool_()), "2 would become True"),
    (pa.array([[("k", 2)]], pa.map_(pa.string(), pa.int64())), pa.map_(pa.string(), pa.bool_()), "2 would become True"),
    (pa.array([2, 2]).dictionary_encode(), pa.bool_(), "2 would become True"),
    (structs(2), pa.struct([("y", US), ("x", pa.bool_())]), "2 would become True"),
    (pa.array([NOON], US), pa.date32(), "12:00:00 would become 2020-01-01"),
    (pa.array([0.1234]), pa.decimal128(5, 2), "0.1234 would become 0.12"),
    (pa.array([[None]], pa.list_(pa.int64())), pa.list_(required("element", pa.int64())), "a null where"),
]


@pytest.mark.parametrize(("values", "kind", "expected"), HELD)
async def test_values_that_fit(values: pa.Array, kind: pa.DataType, expected: list[Any]) -> None:
    async with bench() as b:
        put(b, {"k": pa.table({"v": values})})
        found = await ap.parquet.read_table(b.operator, "k", schema=pa.schema([("v", kind)]))
    assert found["v"].to_pylist() == expected
    assert found.schema.field("v").type.equals(kind)


@pytest.mark.parametrize(("values", "kind", "why"), LOST)
async def test_values_that_would_be_others(values: pa.Array, kind: pa.DataType, why: str) -> None:
    async with bench() as b:
        put(b, {"k": pa.table({"v": values})})
        with pytest.raises(Unsupported, match=f"column 'v', .* does not fit .*{why}") as caught:
            await ap.parquet.read_table(b.operator, "k", schema=pa.schema([("v", kind)]))
        assert caught.value.path == "k"

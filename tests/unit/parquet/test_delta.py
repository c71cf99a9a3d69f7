"""``delta_files``: tables as ``deltalake`` reads them, at every version."""

import asyncio
import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import aioprefetch as ap
from aioprefetch.errors import ConfigInvalid, NotFound, Unsupported
from aioprefetch.sync import BlockingOperator
from tests.docs.test_blocks import run_block
from tests.files.table_files import added, commit, deletion_vector, delta_field, delta_struct, delta_table
from tests.repository.doc_pages import NO_RUN, blocks_of
from tests.repository.source_tree import ROOT

deltalake: Any = pytest.importorskip("deltalake", reason="deltalake is missing: pip install deltalake")

ODD = ["a b", "c%d", "e=f", "g/h", None, "ü", "", "x%20y", "?#[1]*"]


@pytest.fixture
def op(tmp_path: Path) -> Iterator[BlockingOperator]:
    with BlockingOperator(ap.Operator.from_uri(f"file://{tmp_path}")) as made:
        yield made


def read(op: BlockingOperator, table: Any, filters: Any = None, **options: Any) -> pa.Table:
    files, schema, residual = ap.parquet.delta_files(table, filters)
    scan = ap.parquet.scan(op.operator, files=files, schema=schema, filters=residual, **options)
    return scan.to_reader().read_all()


def ordered(table: pa.Table, by: str = "n") -> pa.Table:
    return table.sort_by(by).combine_chunks()


def rows(start: int, stop: int, **more: Any) -> pa.Table:
    numbers = range(start, stop)
    return pa.table(
        {
            "p": [ODD[n % len(ODD)] for n in numbers],
            "n": pa.array(numbers, pa.int32()),
            "day": [None if n % 11 == 0 else dt.date(2024, 1, 1 + n % 3) for n in numbers],
            "price": pa.array([Decimal(n % 2) / 8 for n in numbers], pa.decimal128(9, 3)),
            "at": pa.array([dt.datetime(2024, 1, 1, 2, 3, n % 2, 456, tzinfo=dt.UTC) for n in numbers]),
            **{name: pa.array([make(n) for n in numbers]) for name, make in more.items()},
        }
    )


FILTERS: list[Any] = [
    None,
    [("p", "in", ["c%d", "x%20y", "?#[1]*"]), ("n", ">", 20)],
    [[("day", "==", dt.date(2024, 1, 2))], [("price", "=", Decimal("0.125"))]],
    pc.field("p").is_null() & (pc.field("at") > dt.datetime(2024, 1, 1, 2, 3, 1, tzinfo=dt.UTC)),
]


def test_a_history(tmp_path: Path, op: BlockingOperator) -> None:
    """Written by ``deltalake``: odd partitions, new columns, deletes, overwrites, compaction. All versions stay."""
    root = str(tmp_path / "my table %")
    partitions = ["p", "day", "price", "at"]
    deltalake.write_deltalake(root, rows(0, 60), partition_by=partitions)
    deltalake.write_deltalake(
        *(root, rows(60, 90, s=lambda n: {"x": n, "y": [f"y{n}"]})), mode="append", schema_mode="merge"
    )
    deltalake.DeltaTable(root).delete("n % 3 = 0")
    deltalake.write_deltalake(
        *(root, rows(1, 9, s=lambda n: {"x": -n, "y": None}).filter(pc.field("p") == "c%d")),
        mode="overwrite",
        predicate="p = 'c%d'",
    )
    deltalake.DeltaTable(root).optimize.compact()
    other = rows(0, 5).set_column(1, "n", pa.array(range(5), pa.int64()))
    deltalake.write_deltalake(root, other, mode="overwrite", schema_mode="overwrite", partition_by=["day"])
    for version in range(6):
        table = deltalake.DeltaTable(root, version=version)
        for filters in FILTERS:
            found, oracle = read(op, table, filters), table.to_pyarrow_table(filters=filters)
            assert ordered(found).equals(ordered(oracle)), (version, filters)
    files = ap.parquet.delta_files(deltalake.DeltaTable(root, version=0), [("p", "==", "g/h")])[0]
    assert {file.partition and file.partition["p"] for file in files} == {"g/h"}


def pf(name: str, kind: pa.DataType, number: int) -> pa.Field:
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(number)})


@pytest.mark.parametrize("mode", ["name", "id"])
@pytest.mark.parametrize("is_inline", [False, True])
def test_mapped_columns_and_deleted_rows(tmp_path: Path, op: BlockingOperator, mode: str, *, is_inline: bool) -> None:
    """Columns were renamed, dropped and added again: files have other names. Vectors delete rows."""
    root = tmp_path / "t x"
    inner = delta_struct(delta_field("y", "long", 4, "col-x"))
    first = delta_struct(delta_field("n", "integer", 1, "n"), delta_field("m", "string", 2, "m"))
    last = delta_struct(
        *(delta_field("m", "integer", 1, "n"), delta_field("n", "string", 7, "col-n")),
        *(delta_field("s", inner, 3, "col-s"), delta_field("p q", "date", 5, "col-p")),
    )
    old = pa.table(
        [pa.array(range(150), pa.int32()), ["m"] * 150],
        schema=pa.schema([pf("n", pa.int32(), 1), pf("m", pa.string(), 2)]),
    )
    struct = pa.struct([pf("col-x", pa.int64(), 4)])
    new = pa.table(
        [
            pa.array(range(150, 250), pa.int32()),
            [f"n{n}" for n in range(100)],
            pa.array([None if n % 3 == 0 else {"col-x": n} for n in range(100)], struct),
        ],
        schema=pa.schema([pf("n", pa.int32(), 1), pf("col-n", pa.string(), 7), pf("col-s", struct, 3)]),
    )
    root.mkdir()
    vector = deletion_vector(root, [0, 3, *range(50, 100)], is_inline=is_inline)
    commit(root, 0, *delta_table(first, [], mode, "columnMapping", "deletionVectors"), added(root, "f%20 1", old, {}))
    commit(
        root,
        1,
        *delta_table(last, ["p q"], mode, "columnMapping", "deletionVectors"),
        {"remove": {"path": "f%2520%201", "deletionTimestamp": 0, "dataChange": True}},
        added(root, "f%20 2", old, {"col-p": None}, deletionVector=vector),
        added(root, "a=b/f", new, {"col-p": "2024-02-03"}),
    )
    for version, key in ((0, "n"), (1, "m")):
        table = deltalake.DeltaTable(root, version=version)
        found = read(op, table)
        oracle = pa.table(table.scan()).cast(found.schema)
        assert found.schema.equals(pa.schema(table.schema().to_arrow()))
        assert ordered(found, key).equals(ordered(oracle, key))
    few = read(op, table, [("m", "<", 103)], columns=["n", "m"], row_index_name="at")
    assert few["m"].to_pylist() == few["at"].to_pylist() == [1, 2, *range(4, 50), *range(100, 103)]
    assert few["n"].null_count == few.num_rows
    assert read(op, table, [("p q", "==", dt.date(2024, 2, 3)), ("m", "==", 151)])["s"].to_pylist() == [{"y": 1}]


def test_files_of_the_id_mode_without_ids_are_refused(tmp_path: Path, op: BlockingOperator) -> None:
    schema = delta_struct(delta_field("n", "integer", 1, "n"))
    commit(tmp_path, 0, *delta_table(schema, [], "id", "columnMapping"), added(tmp_path, "f", rows(0, 3), {}))
    with pytest.raises(Unsupported, match="no field ids"):
        read(op, deltalake.DeltaTable(tmp_path))


class WithProtocol:
    """A table of another protocol than ``deltalake`` itself would load."""

    def __init__(self, table: Any, *features: str, version: int = 3) -> None:
        self._table = table
        self._protocol = deltalake.table.ProtocolVersions(version, 7, [], list(features))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    def protocol(self) -> Any:
        return self._protocol


def test_what_is_refused(tmp_path: Path, op: BlockingOperator) -> None:
    """Features that are not known, another store, and files that a vacuum removed, each by name."""
    root = tmp_path / "t"
    for start in (0, 5):
        deltalake.write_deltalake(root, rows(start, start + 5), mode="append")
    table = deltalake.DeltaTable(root, version=0)
    for given, name in (
        (WithProtocol(table, "variantType", "deletionVectors"), "variantType"),
        (WithProtocol(table, version=4), "reader version 4"),
    ):
        with pytest.raises(Unsupported, match=name):
            ap.parquet.delta_files(given)
    files, schema, _ = ap.parquet.delta_files(table)
    for uri in (f"file://{tmp_path}/other", "s3://bucket", "memory://t"):
        with pytest.raises(ConfigInvalid, match=r"version 0 of the Delta table file://.*does not reach"):
            ap.parquet.scan(ap.Operator.from_uri(uri), files=files, schema=schema)
    for path in root.glob("*.parquet"):
        path.unlink()
    with pytest.raises(NotFound, match="version 0 of the Delta table"):
        read(op, table)


def test_the_example_of_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It prints what the page says."""
    monkeypatch.chdir(tmp_path)
    blocks = blocks_of(ROOT / "docs" / "guides" / "scans.md")
    place = next(
        n for n, block in enumerate(blocks) if block.content.startswith(NO_RUN) and "deltalake" in block.content
    )
    with asyncio.Runner() as runner:
        assert run_block(blocks[place], {}, runner) == blocks[place + 1].content

"""``iceberg_files``: scans as ``pyiceberg`` reads them, at every snapshot."""

import datetime as dt
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import aioprefetch as ap
from aioprefetch.errors import ConfigInvalid, NotFound, Unsupported
from aioprefetch.sync import BlockingOperator
from tests.files.table_files import puffin

pytest.importorskip("pyiceberg", reason="pyiceberg is missing: pip install pyiceberg")
pytest.importorskip("sqlalchemy", reason="sqlalchemy, for a catalog of pyiceberg, is missing: pip install sqlalchemy")
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.expressions import EqualTo
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan, FileScanTask
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    GeometryType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)
from pyiceberg.utils.concurrent import ExecutorFactory

ODD = ["a b", "c%d", "e=f", "g/h", None, "ü", "", "x%20y", "?#[1]*"]
SCHEMA = Schema(
    NestedField(1, "n", IntegerType()),
    NestedField(2, "p", StringType()),
    NestedField(3, "day", DateType()),
    NestedField(4, "price", DecimalType(9, 3)),
    NestedField(5, "at", TimestamptzType()),
    NestedField(6, "s", StructType(NestedField(7, "x", IntegerType()), NestedField(8, "y", StringType()))),
    NestedField(9, "l", ListType(10, StructType(NestedField(11, "q", FloatType())), element_required=False)),
)


def rows(start: int, stop: int) -> pa.Table:
    numbers = range(start, stop)
    return pa.table(
        {
            "n": pa.array(numbers, pa.int32()),
            "p": [ODD[n % len(ODD)] for n in numbers],
            "day": pa.array([None if n % 11 == 0 else 18262 + n % 3 for n in numbers], pa.int32()).cast(pa.date32()),
            "price": pa.array([Decimal(n % 2) / 8 for n in numbers], pa.decimal128(9, 3)),
            "at": pa.array([dt.datetime(2024, 1, 1, 2, 3, n % 2, 456, tzinfo=dt.UTC) for n in numbers]),
            "s": pa.array(
                [None if n % 5 == 0 else {"x": n, "y": f"y{n}"} for n in numbers],
                pa.struct([("x", pa.int32()), ("y", pa.string())]),
            ),
            "l": pa.array([[{"q": n / 2}] * (n % 3) for n in numbers], pa.list_(pa.struct([("q", pa.float32())]))),
        }
    )


@pytest.fixture
def op(tmp_path: Path) -> Iterator[BlockingOperator]:
    with BlockingOperator(ap.Operator.from_uri(f"file://{tmp_path}")) as made:
        yield made


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    made = InMemoryCatalog("test", warehouse=f"file://{tmp_path}/my warehouse %")
    made.create_namespace("n")
    with ThreadPoolExecutor(2) as threads:  # In place of one that lives as long as the process.
        monkeypatch.setattr(ExecutorFactory, "get_or_create", lambda: threads)
        yield made
    made.close()


def read(op: BlockingOperator, scan: Any, **options: Any) -> pa.Table:
    files, schema, filters = ap.parquet.iceberg_files(scan)
    found = ap.parquet.scan(op.operator, files=files, schema=schema, filters=filters, **options)
    return found.to_reader().read_all()


def check(op: BlockingOperator, scan: Any) -> pa.Table:
    """Rows and types are those of ``pyiceberg``."""
    found, oracle = read(op, scan), scan.to_arrow_batch_reader().read_all()
    assert found.schema.equals(oracle.schema)
    assert found.combine_chunks().equals(oracle.combine_chunks())
    return found


def spec(*names: str) -> PartitionSpec:
    numbers = {field.name: field.field_id for field in SCHEMA.fields}
    return PartitionSpec(
        *(PartitionField(numbers[name], 1000 + numbers[name], IdentityTransform(), name) for name in names)
    )


FILTERS = [
    "n >= 0",
    "p = 'c%d' or p is null",
    "day = '2020-01-02' and n > 20",
    "price > 0.100",
    "n in (3, 65, 92)",
    "n < 0",
]
LATER = ["m < 40", "d2 = '2020-01-02'", "t.z = 12", "n is null", "p = 'z' and m > 92"]


def test_a_history(op: BlockingOperator, catalog: Any) -> None:
    """Written by ``pyiceberg``: odd partitions, deletes, overwrites, every change of a schema. All snapshots stay."""
    table = catalog.create_table("n.t", SCHEMA, partition_spec=spec("p", "day", "price", "at"))
    table.append(rows(0, 60))
    table.delete(EqualTo("p", "g/h"))
    table.delete("n < 7")
    table.overwrite(rows(60, 70), overwrite_filter="day = '2020-01-02'")
    for scan in [table.scan(snapshot_id=snapshot.snapshot_id) for snapshot in table.snapshots()]:
        check(op, scan)
        for text in FILTERS:
            check(op, scan.filter(text))
    old = table.current_snapshot().snapshot_id
    with table.update_spec() as changes:
        changes.remove_field("p").remove_field("at").add_field("n", IdentityTransform(), "number")
    with table.update_schema() as changes:
        for before, after in (("n", "m"), ("day", "d2"), ("s", "t"), ("s.x", "z"), ("l.element.q", "r")):
            changes.rename_column(before, after)
        changes.delete_column("at").add_column("u", StringType()).move_first("u")
    with table.update_schema() as changes:
        changes.add_column("n", StringType()).add_column(("t", "x"), LongType())
        changes.update_column("m", LongType()).update_column("price", DecimalType(12, 3))
        changes.update_column("l.element.r", DoubleType()).move_after("p", "price")
    check(op, table.scan())
    price = pa.array([Decimal(1)] * 5, pa.decimal128(12, 3))
    later = {"m": pa.array(range(90, 95)), "p": ["z"] * 5, "d2": rows(90, 95)["day"], "price": price}
    later["l"] = pa.array([[{"r": 0.1}]] * 5)  # (pyiceberg reads a null list of structs as an empty one.)
    table.append(pa.table(later))
    for text in LATER:
        check(op, table.scan(row_filter=text))
        check(op, table.scan(row_filter=text, selected_fields=("u", "price")))
    assert check(op, table.scan(snapshot_id=old)).schema.names == list(rows(0, 0).schema.names)
    assert check(op, table.scan(selected_fields=("t.x", "p"))).schema.names == ["p", "t"]
    assert read(op, table.scan(), columns=["m"], limit=3).num_rows == 3
    with pytest.raises(Unsupported, match="a filter on 't', of which some fields"):
        ap.parquet.iceberg_files(table.scan(row_filter="t.z = 12", selected_fields=("t.x",)))


def test_files_without_ids(tmp_path: Path, op: BlockingOperator, catalog: Any) -> None:
    """Those that were added as they are go by the name mapping of the table, old names too."""
    table = catalog.create_table("n.t", SCHEMA)
    pq.write_table(rows(0, 30), tmp_path / "f%20 1.parquet", store_schema=False)
    table.add_files([f"file://{tmp_path}/f%20 1.parquet"])
    with table.update_schema() as changes:
        changes.rename_column("n", "m").rename_column("s.x", "z")
    assert check(op, table.scan(row_filter="m > 3"))["m"].to_pylist() == list(range(4, 30))
    with table.transaction() as changes:
        changes.remove_properties("schema.name-mapping.default")
    with pytest.raises(Unsupported, match="no field ids"):
        read(op, table.scan())


def deleting(path: Path, kind: FileFormat, content: DataFileContent = DataFileContent.POSITION_DELETES) -> Any:
    return DataFile.from_args(content=content, file_path=f"file://{path}", file_format=kind, key_metadata=None)


def with_deletes(table: Any, *deletes: Any, **changes: Any) -> Any:
    """A scan whose files have deletes, which ``pyiceberg`` reads but does not write; of changed metadata."""

    def plan_files(scan: Any) -> list[Any]:
        return [FileScanTask(task.file, {*task.delete_files, *deletes}) for task in DataScan.plan_files(scan)]

    scan = type("Scan", (DataScan,), {"plan_files": plan_files})
    return scan(table.metadata.model_copy(update=changes), table.io)


def test_deleted_rows(tmp_path: Path, op: BlockingOperator, catalog: Any) -> None:
    table = catalog.create_table("n.t", SCHEMA)
    for start in (0, 300, 600):
        table.append(rows(start, start + 300))
    paths = [task.file.file_path for task in table.scan().plan_files()][::-1]  # The oldest first.
    schema = pa.schema([pa.field("file_path", pa.string(), False), pa.field("pos", pa.int64(), False)])
    for name, deleted in (
        ("a", [(paths[0], 5), (paths[1], 0), (paths[0], 299)]),
        ("b", [(paths[0], 4), (paths[0], 5)]),
    ):
        pq.write_table(pa.table(list(zip(*deleted, strict=True)), schema=schema), tmp_path / name)
    (tmp_path / "v").write_bytes(puffin({paths[2]: range(0, 300, 7), paths[1]: [298]}))
    kinds = {"a": FileFormat.PARQUET, "b": FileFormat.PARQUET, "v": FileFormat.PUFFIN}
    scan = with_deletes(table, *(deleting(tmp_path / name, kind) for name, kind in kinds.items()))
    assert check(op, scan).num_rows == 900 - 3 - 2 - 43
    assert read(op, scan.filter("n < 7"), row_index_name="at row")["at row"].to_pylist() == [0, 1, 2, 3, 6]


def test_initial_defaults(op: BlockingOperator, catalog: Any) -> None:
    table = catalog.create_table("n.t", SCHEMA)
    table.append(rows(0, 10))
    defaults = [
        (IntegerType(), 7),
        (StringType(), "x"),
        (DateType(), dt.date(2024, 1, 1)),
        (DecimalType(5, 2), Decimal("1.20")),
    ]
    new = [
        NestedField(90 + k, f"new {k}", kind, required=k == 1, initial_default=value)
        for k, (kind, value) in enumerate(defaults)
    ]
    schema = Schema(*SCHEMA.fields[:2], *new, schema_id=table.schema().schema_id)
    found = check(op, with_deletes(table, schemas=[schema]))
    assert found["new 3"].to_pylist() == [Decimal("1.20")] * 10


def test_what_is_refused(tmp_path: Path, op: BlockingOperator, catalog: Any) -> None:
    """What would give wrong rows, by its name; another store; and files that are gone, with their snapshot."""
    table = catalog.create_table("n.t", SCHEMA)
    table.append(rows(0, 10))
    nested = StructType(NestedField(7, "x", IntegerType(), initial_default=1))
    fields = {"GeometryType": NestedField(99, "g", GeometryType()), "default of 'x'": NestedField(6, "s", nested)}
    schemas = {name: Schema(field, schema_id=table.schema().schema_id) for name, field in fields.items()}
    refused = [
        *((with_deletes(table, schemas=[schema]), name) for name, schema in schemas.items()),
        (
            with_deletes(table, deleting(tmp_path, FileFormat.PARQUET, DataFileContent.EQUALITY_DELETES)),
            "equality deletes",
        ),
        (with_deletes(table, deleting(tmp_path, FileFormat.AVRO)), "files of AVRO"),
        (with_deletes(table, format_version=4), "version 4"),
    ]
    for scan, name in refused:
        with pytest.raises(Unsupported, match=name):
            ap.parquet.iceberg_files(scan)
    with pytest.raises(ConfigInvalid, match="limit=3"):
        ap.parquet.iceberg_files(table.scan(limit=3))
    files, schema, _ = ap.parquet.iceberg_files(table.scan())
    with pytest.raises(ConfigInvalid, match=r"Iceberg table .*does not reach"):
        ap.parquet.scan(ap.Operator.from_uri("s3://bucket"), files=files, schema=schema)
    number = table.current_snapshot().snapshot_id
    for path in tmp_path.glob("**/data/*.parquet"):
        path.unlink()
    with pytest.raises(NotFound, match=f"snapshot {number} of the Iceberg table"):
        read(op, table.scan())


def test_a_table_without_snapshots(op: BlockingOperator, catalog: Any) -> None:
    assert check(op, catalog.create_table("n.t", SCHEMA).scan()).num_rows == 0

"""The batch source in a session: formats, projection, filters, splits, metadata, failures, and what plans show."""

import datetime as dt
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

from aioprefetch.errors import ConfigInvalid
from aioprefetch.operator.operator import Operator
from aioprefetch.spark import read
from aioprefetch.sync import BlockingOperator
from aioprefetch.testing import CountingS3Server
from aioprefetch.testing.conformance.suite import checks
from tests.profile import chosen
from tests.spark.files import (
    SCHEMA,
    expected,
    records,
    repr_key,
    rows,
    write_csv,
    write_jsonl,
    write_lance,
    write_parquet,
)

pytestmark = pytest.mark.spark

Writer = Callable[[Path, list[dict[str, object]]], None]
SECRET = "hunter2hunter2"


def load(spark: SparkSession, path: Path | str, **options: str) -> DataFrame:
    """Without the helper: as ``format("aioprefetch")``."""
    return spark.read.format("aioprefetch").options(**options).load(str(path))


@pytest.fixture(autouse=True, scope="module")
def registered(spark: SparkSession) -> None:
    """The data source is known to the session."""
    from aioprefetch.spark import register

    register(spark)


def test_formats_of_records(spark: SparkSession, tmp_path: Path) -> None:
    writers: dict[str, Writer] = {
        "parquet": write_parquet, "jsonl": write_jsonl, "jsonl.gz": write_jsonl, "csv": write_csv,
    }  # fmt: skip
    for suffix, write in writers.items():
        directory = tmp_path / suffix
        directory.mkdir()
        for start in (0, 10, 20):
            write(directory / f"part-{start}.{suffix}", records(start, start + 10))
        (directory / "_SUCCESS").touch()
        (directory / f".part-0.{suffix}.crc").write_bytes(b"checksum")
        frame = read(spark, str(directory), header=True, infer_schema=True)
        assert [(field.name, field.dataType.simpleString()) for field in frame.schema.fields] == [
            ("id", "bigint"), ("name", "string"), ("price", "double"),
        ], suffix  # fmt: skip
        assert rows(frame) == expected(0, 30), suffix
    write_lance(tmp_path / "lance" / "x.lance", records(0, 20))
    assert rows(read(spark, str(tmp_path / "lance"), format="lance", columns=["price", "id"])) == [
        (one["price"], one["id"]) for one in records(0, 20)
    ]


def test_text_and_binary_are_as_sparks_own(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\r\ntwo\n\nthree é")
    (tmp_path / "b.txt").write_text("four\n")
    assert rows(read(spark, str(tmp_path), format="text")) == rows(spark.read.text(str(tmp_path)))
    ours, theirs = read(spark, str(tmp_path), format="binary"), spark.read.format("binaryFile").load(str(tmp_path))
    assert ours.schema == theirs.schema
    assert [row[2:] for row in rows(ours)] == [row[2:] for row in rows(theirs)]


def test_columns_filters_and_a_schema_narrow_what_is_read(spark: SparkSession, tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", records(0, 100), row_group_size=10)
    url = tmp_path.as_uri()
    frame = read(spark, url, columns=["price"], filters=[("id", ">=", 95), ("id", "<", 97)])
    assert frame.columns == ["price"]
    assert rows(frame) == [(95 / 4,), (96 / 4,)]
    projected = load(spark, url, columns="name,id", filters='[[["id", "=", 1]], [["id", "=", 98]]]')
    assert rows(projected) == [('n "1", é', 1), ('n "98", é', 98)]
    assert rows(spark.read.format("aioprefetch").schema("Price double, id int, more string").load(url).limit(2)) == [
        (0.0, 0, None), (0.25, 1, None),
    ]  # fmt: skip
    narrowed = read(spark, url, schema=SCHEMA, columns=["id"], metadata_columns="_offset")
    assert narrowed.columns == ["id", "_offset"]
    assert narrowed.where("id = _offset").count() == 100


def test_pieces_of_large_files_give_each_record_once(spark: SparkSession, tmp_path: Path) -> None:
    random_text = random.Random(7)
    found = [{"id": n, "text": random_text.randbytes(60).hex()} for n in range(70_000)]
    (tmp_path / "lines").mkdir()
    write_jsonl(tmp_path / "lines" / "a.jsonl", found)
    write_csv(tmp_path / "a.csv", found)
    write_parquet(tmp_path / "a.parquet", found, row_group_size=10_000, use_dictionary=False, compression=None)
    total = sum(range(70_000))
    for path in ("lines/a.jsonl", "a.csv", "a.parquet"):
        frame = read(spark, str(tmp_path / path), header=True, target_partition_bytes=1 << 20)
        assert frame.rdd.getNumPartitions() > 1
        assert frame.selectExpr("count(*)", "sum(id)", "sum(length(text))").collect()[0] == (
            70_000, total, 70_000 * 120,
        )  # fmt: skip


def test_metadata_columns_tell_where_a_record_is_from(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": 1}\n{"id": 2}\n')
    frame = load(spark, tmp_path, metadataColumns="true")
    assert frame.columns == ["id", "_file", "_offset", "_etag", "_mtime"]
    first, second = frame.orderBy("id").collect()
    assert (first._file, first._offset, second._offset) == (path.as_uri(), 0, 10)
    assert first._etag
    modified = dt.datetime.fromtimestamp(path.stat().st_mtime, dt.UTC).replace(tzinfo=None)
    assert abs(first._mtime - modified) < dt.timedelta(seconds=1)
    named = spark.read.format("aioprefetch").option("metadataColumns", "_offset")
    assert rows(named.schema("_offset bigint, id int").load(str(tmp_path))) == [(0, 1), (10, 2)]


def test_a_struct_of_metadata_is_as_sparks_and_fields_of_files_keep_their_names(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Paths differ in their spelling: ``file:///``, and no percent signs."""
    (tmp_path / "a.json").write_text('{"id": 1, "_offset": 7, "_file": "x"}\n')
    same = ["file_name", "file_size", "file_block_start", "file_block_length", "file_modification_time"]
    wanted = [f"_metadata.{name}" for name in same]
    theirs = spark.read.json(str(tmp_path)).select("id", "_offset", "_file", *wanted)
    ours = load(spark, tmp_path, metadataColumns="_metadata").select("id", "_offset", "_file", *wanted)
    assert rows(ours) == rows(theirs)
    given = read(spark, str(tmp_path), schema="id int, _offset bigint", metadata_columns="_metadata")
    assert rows(given.select("_offset", "_metadata.offset", "_metadata.file_path")) == [
        (7, 0, (tmp_path / "a.json").as_uri())
    ]
    for schema in ("id int", "id int, _offset bigint", None):
        with pytest.raises(PySparkException, match="have a field '_offset'"):
            read(spark, str(tmp_path), schema=schema, metadata_columns="_mtime,_offset").collect()


def test_globs_single_objects_and_filters_of_names(spark: SparkSession, tmp_path: Path) -> None:
    for day in (1, 2):
        for name in ("a", "b"):
            write_jsonl(tmp_path / f"day={day}" / f"{name}.jsonl", records(day, day + 1))
    assert load(spark, f"{tmp_path}/day=*/a.jsonl").count() == 2
    assert load(spark, f"{tmp_path}/day=1/a.jsonl").count() == 1
    assert load(spark, tmp_path, pathGlobFilter="b*").count() == 2
    assert load(spark, f"{tmp_path}/**").count() == 4


def test_a_prefix_without_objects(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match=r"there are no files in file://.*none.*allowEmpty"):
        read(spark, str(tmp_path / "none"), schema=SCHEMA, format="jsonl").collect()
    assert read(spark, str(tmp_path / "none"), schema=SCHEMA, format="jsonl", allow_empty=True).collect() == []
    with pytest.raises(PySparkException, match=r"there are no files in file://.*none"):
        read(spark, str(tmp_path / "none"))


def test_a_corrupt_file_among_good_ones(spark: SparkSession, tmp_path: Path) -> None:
    source, dead = tmp_path / "source", tmp_path / "dead"
    source.mkdir()
    write_parquet(source / "a.parquet", records(0, 10))
    (source / "b.parquet").write_bytes(b"PAR1 this is none PAR1")
    write_parquet(source / "c.parquet", records(10, 20))
    with pytest.raises(PySparkException, match=r"b\.parquet"):
        read(spark, str(source), schema=SCHEMA).collect()
    assert rows(read(spark, str(source), schema=SCHEMA, on_corrupt="skip")) == expected(0, 20)
    frame = load(spark, source, onCorrupt="quarantine", quarantineLocation=str(dead))
    assert rows(frame) == expected(0, 20)
    (written,) = dead.iterdir()
    assert "b.parquet" in written.read_text()


def test_non_utf8_text_is_an_error_that_names_the_file(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("id,name\n1,été\n".encode("latin-1"))
    with pytest.raises(PySparkException, match=r"a\.csv"):
        read(spark, str(tmp_path), header=True).collect()
    assert rows(read(spark, str(tmp_path), header=True, encoding="latin-1")) == [("1", "été")]


@checks("reliability:P20")
def test_limit_leaves_a_long_read_early(
    spark: SparkSession, s3_server: CountingS3Server, random_name: Callable[[], str]
) -> None:
    """Files enough to fill all that is between a task and Spark, of which one is read at a time."""
    bucket, files = random_name(), 24
    keys = {"access_key_id": "AKID", "secret_access_key": "KEY"}
    options: dict[str, Any] = {"endpoint_url": s3_server.endpoint_url, "region": "us-east-1", **keys}
    s3_server.create_bucket(bucket)
    store = BlockingOperator(Operator.from_uri(f"s3://{bucket}", **options))
    with store:
        for number in range(files):
            store.write(f"{number:02}.jsonl", f'{{"text": "{"x" * 1000}"}}\n'.encode() * 1000)
    frame = read(
        spark, f"s3://{bucket}", schema="text string", max_partitions=1, files_in_flight=1, batch_rows=100, **options
    )

    def read_files() -> int:
        return len({one.path for one in s3_server.requests if one.method == "GET" and one.path.endswith(".jsonl")})

    s3_server.reset()
    assert len(frame.limit(1).collect()) == 1
    assert 1 <= read_files() < files
    assert frame.count() == files * 1000
    assert read_files() == files


def test_filters_of_spark_stay_with_the_query_that_has_them(spark: SparkSession, tmp_path: Path) -> None:
    """What Spark 4.3 gets wrong for sources that take filters: hence none are taken."""
    for part in range(4):
        found = [{"part": part, "id": n} for n in range(10)]
        write_parquet(tmp_path / f"{part}.parquet", found)
    frame = read(spark, str(tmp_path))
    assert frame.where("part = 2").count() == 10
    assert frame.count() == 40
    union = frame.where("part = 1").union(frame.where("part = 3"))
    assert sorted({row.part for row in union.collect()}) == [1, 3]
    left, right = frame.where("part = 1").alias("l"), frame.where("part = 2").alias("r")
    assert left.join(right, col("l.part") == col("r.part")).count() == 0
    with pytest.raises(PySparkException, match="pushFilters gives wrong results on Spark 4"):
        load(spark, tmp_path, pushFilters="true").count()


def test_wrong_options_are_said_before_anything_is_read(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="did you mean onMissing"):
        read(spark, str(tmp_path), on_mising="skip")  # type: ignore[call-arg]
    with pytest.raises(PySparkException, match="did you mean batchRows"):
        load(spark, tmp_path, batchRow="1")
    with pytest.raises(ConfigInvalid, match="cleanSource: only for streams"):
        read(spark, str(tmp_path), clean_source="delete")  # type: ignore[call-arg]
    with pytest.raises(ConfigInvalid, match="list of names"):
        read(spark, str(tmp_path), columns="id")
    write_jsonl(tmp_path / "a.jsonl", records(0, 1))
    with pytest.raises(PySparkException, match="goes beside a schema"):
        spark.read.format("aioprefetch").schema(SCHEMA).option("columns", "id").load(str(tmp_path)).collect()
    with pytest.raises(PySparkException, match="there is no field 'idd'"):
        read(spark, str(tmp_path), columns=["idd"])


def test_keys_of_open_file_reach_the_files(spark: SparkSession, tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", records(0, 10))
    options = {"openfile.option.fs.option.openfile.read.policy": "random", "openfile.option.unheard.of": "1"}
    assert load(spark, tmp_path, **options).count() == 10
    with pytest.raises(PySparkException, match=r"unheard\.of"):
        load(spark, tmp_path, **{"openfile.must.unheard.of": "1"}).count()


def test_unknown_fields_are_rescued(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": 1}\n{"id": 2, "new": [3]}\n')
    frame = read(spark, str(tmp_path), schema="id bigint", unknown_fields="rescue")
    assert frame.columns == ["id", "_rescued"]
    assert rows(frame) == [(1, None), (2, '{"new":[3]}')]
    with pytest.raises(PySparkException, match="new"):
        read(spark, str(tmp_path), schema="id bigint", unknown_fields="fail").collect()


@pytest.mark.parametrize("schema", [None, "a bigint, b string, c double"])
def test_columns_that_were_left_out_are_neither_unknown_nor_forgotten(
    spark: SparkSession, tmp_path: Path, schema: str | None
) -> None:
    (tmp_path / "0.csv").write_text("a,b,c\n1,x,2.5\n")
    frame = read(
        spark, str(tmp_path), schema=schema, columns=["c"], unknown_fields="fail", header=True, infer_schema=True
    )
    assert [row.asDict() for row in frame.collect()] == [{"c": 2.5}]
    if schema is not None:
        (tmp_path / "0.csv").write_text("1,x,2.5\n")
        frame = read(spark, str(tmp_path), schema=schema, columns=["c"], filters=[("a", "=", 1)], header=False)
        assert [row.asDict() for row in frame.collect()] == [{"c": 2.5}]


@pytest.mark.parametrize("codec", chosen(quick=["snappy", "lz4"], full=["none", "snappy", "gzip", "zstd", "lz4"]))
def test_parquet_written_by_spark_is_read_as_pyarrow_reads_it(spark: SparkSession, tmp_path: Path, codec: str) -> None:
    timestamps = "INT96" if codec in ("snappy", "gzip") else "TIMESTAMP_MICROS"
    spark.conf.set("spark.sql.parquet.outputTimestampType", timestamps)
    frame = spark.range(500).selectExpr(
        "id",
        "cast(id % 5 as string) as word",
        "if(id % 7 = 0, null, timestamp_micros(id * 1000003)) as at",
        "cast(id / 7 as decimal(10, 3)) as small",
        "cast(id / 7 as decimal(30, 5)) as large",
        "date_add(date'2026-01-01', cast(id as int)) as day",
        "if(id % 3 = 0, null, array(id, null, id + 1)) as list",
        "map(cast(id as string), struct(id as x, array(cast(id as string)) as y)) as map",
        "struct(cast(id as float) as f, if(id % 2 = 0, null, struct(id as z)) as inner) as nested",
        "cast(cast(id as string) as binary) as bytes",
    )
    frame.coalesce(1).write.option("compression", codec).parquet(str(tmp_path / "written"))
    spark.conf.unset("spark.sql.parquet.outputTimestampType")
    ours = read(spark, str(tmp_path / "written"))
    theirs = spark.read.parquet(str(tmp_path / "written"))
    assert [field.dataType for field in ours.schema.fields] == [field.dataType for field in theirs.schema.fields]
    assert ours.orderBy("id").collect() == theirs.orderBy("id").collect()
    (path,) = (tmp_path / "written").glob("*.parquet")
    assert_read_alike(path)


def assert_read_alike(path: Path) -> None:
    """Our scan of a file and pyarrow's give one table, with INT96 in the unit that holds all of Spark's times."""
    import aioprefetch as ap
    from aioprefetch.sync import run

    operator = ap.Operator.from_uri(path.parent.as_uri())

    async def ours() -> pa.Table:
        async with operator:
            return await ap.parquet.read_table(operator, path.name)

    assert run(ours()).equals(pq.read_table(path, coerce_int96_timestamp_unit="us"))


@checks("reliability:K06")
def test_plans_show_no_secret(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    options = {
        "accessKeyId": SECRET, "secretAccessKey": SECRET, "sessionToken": SECRET, "sseCustomerSecretKey": SECRET,
        "proxiesUrl": f'{{"http": "http://u:{SECRET}@p"}}', "endpointUrl": "http://127.0.0.1:1",
    }  # fmt: skip
    of_http = {"authToken": SECRET, "secretHeaders": f'{{"x": "{SECRET}"}}'}
    batch = spark.read.format("aioprefetch").schema("id int").options(**options).load("s3://bucket/x")
    stream = spark.readStream.format("aioprefetch").schema("id int").options(**options)
    streamed = stream.option("stateLocation", "s3://bucket/_state").load("s3://bucket/x")
    web = spark.read.format("aioprefetch").schema("id int").options(**of_http).load("https://127.0.0.1:1/x.jsonl")
    for frame in (batch, streamed, web):
        frame.explain("extended")
        frame.explain("formatted")
        sys.stdout.write(frame._jdf.queryExecution().toString())
    printed = capsys.readouterr().out
    assert "path=s3://bucket/x" in printed  # of the stream: it is options that are shown
    assert SECRET not in printed


def test_rows_have_an_order_for_comparison() -> None:
    assert sorted([(1, None), (1, "a"), (None, "b")], key=repr_key) == [(None, "b"), (1, None), (1, "a")]

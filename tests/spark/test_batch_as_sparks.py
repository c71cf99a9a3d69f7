"""What Spark's own readers of files give, and so does the batch source: directories, globs, filters, empty files."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from aioprefetch.spark import read, register
from tests.profile import chosen
from tests.spark.files import rows

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True, scope="module")
def registered(spark: SparkSession) -> None:
    """The data source is known to the session."""
    register(spark)


@pytest.mark.parametrize("kind", chosen(quick=["csv"], full=["parquet", "csv"]))
def test_partitions_that_spark_wrote(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    path = str(tmp_path / "out")
    frame = spark.range(8).selectExpr("id", "if(id = 5, null, id % 2) k", "concat('a/b ', id % 3) t")
    frame.repartition(1).write.partitionBy("k", "t").option("header", True).format(kind).save(path)
    theirs = spark.read.options(header=True, inferSchema=True).format(kind).load(path)
    options: dict[str, Any] = {"format": kind, **({"header": True, "inferSchema": True} if kind == "csv" else {})}
    ours = read(spark, path, **options)
    assert ours.columns == theirs.columns == ["id", "k", "t"]
    assert rows(ours) == rows(theirs)
    found = read(spark, path, schema="id int, t string, k string", filters=[("k", "=", "1")], **options)
    assert rows(found) == rows(theirs.where("k = 1").selectExpr("int(id)", "t", "string(k)"))


def test_globs_of_directories(spark: SparkSession, tmp_path: Path) -> None:
    for place in ("2024-01", "2024-02/k=1", "2024-02/other", "2023-12"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "a.txt").write_text(place)
    spark_found = rows(spark.read.text(str(tmp_path / "2024-01*")))
    assert rows(read(spark, str(tmp_path / "2024-01*"), format="text")) == spark_found == [("2024-01",)]
    found = rows(read(spark, str(tmp_path / "2024-*"), format="text", schema="value string"))
    assert found == [("2024-01",), ("2024-02/k=1",)]


def test_filters_keep_what_where_keeps(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "out")
    spark.sql(
        "select id, if(id % 4 = 0, double('NaN'), if(id % 7 = 0, null, double(id))) d, "
        "if(id % 5 = 0, null, string(id % 3)) s, timestamp_seconds(id) t from range(40)"
    ).repartition(1).write.parquet(path)
    theirs = spark.read.parquet(path)
    cases: list[tuple[Any, str]] = [
        (("d", ">", 5.0), "d > 5"),
        (("d", ">=", 38), "d >= 38"),
        (("d", "<=", float("nan")), "d <= double('NaN')"),
        (("d", "=", float("nan")), "d = double('NaN')"),
        (("d", "not in", [1.0, float("nan")]), "d not in (1, double('NaN'))"),
        (("s", "not in", ["1"]), "s not in ('1')"),
        (("s", "!=", "1"), "s != '1'"),
        (("t", ">", "1970-01-01 00:00:30"), "t > '1970-01-01 00:00:30'"),
    ]
    left = theirs.selectExpr("id", *(f"coalesce({sql}, false)" for _, sql in cases)).collect()
    for number, (clause, sql) in enumerate(cases, 1):
        ids = sorted((row[0],) for row in left if row[number])
        assert rows(read(spark, path, filters=[clause]).select("id")) == ids, sql


def test_times_without_a_zone_are_in_the_sessions(spark: SparkSession, tmp_path: Path) -> None:
    """One in the gap of a summer time, and one of the two of its end, among them; an option counts before it."""
    times = ["2024-03-31 02:30:00", "2024-10-27 02:30:00", "2024-12-01 00:00:00", "2024-12-01T00:00:00Z"]
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv/a.csv").write_text("".join(f"{time}\n" for time in times))
    (tmp_path / "json").mkdir()
    (tmp_path / "json/a.json").write_text("".join(f'{{"t":"{time}"}}\n' for time in times))
    was = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    register(spark)
    try:
        for kind in ("csv", "json"):
            path, instants = str(tmp_path / kind), []
            zones: list[dict[str, Any]] = [{}, {"timeZone": "America/New_York"}, {"timeZone": "+05:30"}]
            for option in zones:
                given = read(spark, path, schema="t timestamp", format=kind, **option)
                named = spark.read.format("aioprefetch").schema("t timestamp").options(format=kind, **option).load(path)
                theirs = spark.read.schema("t timestamp").options(**option).format(kind).load(path)
                instants.append(rows(theirs.selectExpr("unix_micros(t)")))
                assert rows(given.selectExpr("unix_micros(t)")) == instants[-1], (kind, option)
                assert rows(named.selectExpr("unix_micros(t)")) == instants[-1], (kind, option)
            assert len({str(found) for found in instants}) == 3
    finally:
        spark.conf.set("spark.sql.session.timeZone", was or "UTC")
        register(spark)


def test_zone_and_case_of_names_are_those_of_the_query(spark: SparkSession, tmp_path: Path) -> None:
    """After ``conf.set``, without another ``register``, in a batch, in a stream and in another session."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.json").write_text('{"t": "2024-07-01 12:00:00"}\n')
    spark.sql("select 1 A, timestamp'2024-07-01 12:00:00' t").write.parquet(str(tmp_path / "names"))
    was = spark.conf.get("spark.sql.session.timeZone")
    register(spark)
    other = spark.newSession()
    other.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        for session in (spark, other):
            for reader in (session.read.format("json"), session.read.format("aioprefetch")):
                (row,) = reader.schema("t timestamp").load(str(tmp_path / "in")).selectExpr("unix_micros(t)").collect()
                assert row[0] == (1719802800000000 if session is spark else 1719828000000000)
        assert rows(read(other, str(tmp_path / "in"), schema="t timestamp").selectExpr("unix_micros(t)")) == [
            (1719828000000000,)
        ]
        for reader in (spark.read.format("parquet"), spark.read.format("aioprefetch")):
            assert rows(reader.schema("a int, A int").load(str(tmp_path / "names"))) == [(None, 1)]
        streaming = spark.readStream.format("aioprefetch").option("stateLocation", str(tmp_path / "state"))
        stream = streaming.schema("t timestamp").load(str(tmp_path / "in"))
        writer = stream.selectExpr("unix_micros(t)").writeStream.format("memory").queryName("zoned")
        writer.trigger(availableNow=True).option("checkpointLocation", str(tmp_path / "cp")).start().awaitTermination()
        assert rows(spark.table("zoned")) == [(1719802800000000,)]
    finally:
        spark.conf.set("spark.sql.session.timeZone", was or "UTC")
        spark.conf.unset("spark.sql.caseSensitive")


def test_columns_are_those_that_spark_infers(spark: SparkSession, tmp_path: Path) -> None:
    """One that only the last file has, partition columns beside a stray file, and names that differ in case."""
    files = {f"late/{n:02}.json": '{"id": 1}' if n < 14 else '{"id": 1, "last": 2}' for n in range(15)}
    files |= dict.fromkeys(("stray/k=1/a.json", "stray/k=2/a.json", "stray/readme.json"), '{"id": 1}')
    files |= dict.fromkeys(("case/k=1/a.json", "case/K=2/a.json"), '{"id": 1}')
    files |= dict.fromkeys(("depths/k=1/a.json", "depths/k=1/h=2/b.json"), '{"id": 1}')
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    register(spark)
    named = spark.read.format("aioprefetch")
    for directory in ("late", "stray", "case"):
        ours, theirs = named.load(str(tmp_path / directory)), spark.read.json(str(tmp_path / directory))
        assert sorted(map(str.lower, ours.columns)) == sorted(map(str.lower, theirs.columns)), directory
        found = rows(ours.where("k is not null") if directory == "stray" else ours)
        assert found == rows(theirs.select(*ours.columns)), directory
    # Spark passes the stray file over; here its rows have no k.
    assert rows(named.load(str(tmp_path / "stray")).where("k is null")) == [(1, None)]
    for reader in (spark.read.format("json"), named):
        with pytest.raises(PySparkException, match=r"k=1[\s\S]*h=2"):
            reader.load(str(tmp_path / "depths"))


def test_empty_files_are_no_rows_of_binary(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.bin").touch()
    (tmp_path / "b.bin").write_bytes(b"x")
    ours, theirs = read(spark, str(tmp_path), format="binary"), spark.read.format("binaryFile").load(str(tmp_path))
    assert rows(ours.select("length", "content")) == rows(theirs.select("length", "content")) == [(1, b"x")]


def test_schemas_that_forbid_nulls_take_them_as_in_sparks_readers(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a":null}\n')
    assert rows(read(spark, str(tmp_path), schema="a int not null")) == [(None,)]
    with pytest.raises(PySparkException, match="must not be null"):
        spark.read.format("aioprefetch").schema("a int not null").load(str(tmp_path)).collect()


def test_what_spark_alone_reads_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    variant, old = str(tmp_path / "variant"), str(tmp_path / "old")
    spark.sql("select 1 id, parse_json('{\"a\":1}') v, interval '1' day i").write.parquet(variant)
    for columns in ("id, v", "id, i"):
        with pytest.raises(PySparkException, match="as Spark wrote it"):
            read(spark, variant).selectExpr(*columns.split(", ")).collect()
    assert rows(read(spark, variant, schema="id int")) == [(1,)]
    spark.conf.set("spark.sql.parquet.datetimeRebaseModeInWrite", "LEGACY")
    try:
        spark.sql("select 1 id, date'1500-01-01' d").write.parquet(old)
    finally:
        spark.conf.unset("spark.sql.parquet.datetimeRebaseModeInWrite")
    with pytest.raises(PySparkException, match="old calendar"):
        read(spark, old).collect()
    assert rows(read(spark, old, schema="id int")) == [(1,)]

"""``parser="spark"`` beside Spark's own readers: the same files, the same rows, in batches and in streams."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import aioprefetch.spark
from aioprefetch.errors import ConfigInvalid, Error
from tests.spark.reader_cases import CASES, Case
from tests.spark.test_as_sparks_readers import in_order, theirs_of, write

pytestmark = pytest.mark.spark

# What becomes of cases that are not read as by Spark's own readers: the files are chosen by us.
DIFFERENT: Mapping[str, Any] = {
    "csv: utf-16": [{"a": 1, "b": "\xe9"}, {"a": 2, "b": "x"}],
    # Spark's reader of files knows the bytes that its parser stands at; its parser of texts does not.
    "json: objects in a string": [{"b": '{"x":1,"x":2}'}],
    "json: numbers in a string": [{"b": "1"}, {"b": "1.1"}],
    "json: a stray file": [{"a": 1, "k": 1}, {"a": 2, "k": None}],
    "json: a glob of directories": [{"a": 1, "k": 1}, {"a": 2, "k": 2}],
    "json: nested directories": [{"a": 1, "b": None}, {"a": 2, "b": None}],
    "json: directories of different depth": "name=value directories differ",
    "json: basePath": "are columns",
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["csv", "json"])
def test_rows_are_those_of_sparks_own_readers(spark: SparkSession, kind: str, tmp_path: Path) -> None:
    wrong = []
    for number, case in enumerate(case for case in CASES if case.format == kind):
        directory = tmp_path / str(number)
        write(case, directory)
        ours = rows_of(spark, case, directory)
        wanted = DIFFERENT[case.name] if case.name in DIFFERENT else theirs_of(spark, case, directory)
        if not (wanted in ours if isinstance(wanted, str) else ours == in_order(wanted)):
            wrong.append(f"{case.name}: {ours}, and Spark has {wanted}")
    assert not wrong, "\n".join(wrong)


def rows_of(spark: SparkSession, case: Case, directory: Path) -> Any:
    options: dict[str, Any] = {"mode": "PERMISSIVE", "format": case.format, **case.options}
    try:
        frame = aioprefetch.spark.read(spark, str(directory / case.path), parser="spark", schema=case.schema, **options)
    except Error as error:
        return str(error)
    return in_order([row.asDict(recursive=True) for row in frame.collect()])


CSV = {"k=1/a.csv": b"#c\na,b\n1,x\n\n2,\xff\n", "k=1/b.csv": b"a,b\nz,y\n3,w,v\n"}
JSON = {
    "k=1/a.json": b'{"a": 1, "b": "x"}\n\n \t\n[{"a": 2}, {"a": 3}]\n',
    "k=1/b.json": b'{"a": "z", "b": "y"}\nx\n[1]\n[]\n',
}
# The rows by each policy, without the column k.
ROWS: Mapping[str, Mapping[str, list[tuple[Any, ...]]]] = {
    "csv": {
        "skip": [(1, "x"), (2, "\ufffd")],
        "null": [(1, "x"), (2, "\ufffd"), (3, "w"), (None, "y")],
        "rescue": [(1, "x", None), (2, "\ufffd", None), (3, "w", "3,w,v"), (None, "y", "z,y")],
    },
    "json": {
        "skip": [(1, "x"), (2, None), (3, None)],
        "null": [(1, "x"), (2, None), (3, None), (None, "y"), (None, None), (None, None)],
        "rescue": [
            *((1, "x", None), (2, None, None), (3, None, None), (None, "y", '{"a": "z", "b": "y"}')),
            *((None, None, "[1]"), (None, None, "x")),
        ],
    },
}


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_bad_records_fail_or_are_left_out_or_null_or_kept_beside_directories_and_in_streams(
    spark: SparkSession, kind: str, tmp_path: Path
) -> None:
    for name, data in (CSV if kind == "csv" else JSON).items():
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    url, csv = str(tmp_path / "in"), {"header": True, "comment": "#"} if kind == "csv" else {}
    options: dict[str, Any] = {"schema": "a int, b string", "parser": "spark", "format": kind, **csv}
    for policy, rows in ROWS[kind].items():
        given: dict[str, Any] = {"on_corrupt_record": policy, **options}
        batch = aioprefetch.spark.read(spark, url, **given)
        assert in_order([*map(tuple, batch.drop("k").collect())]) == in_order(rows)
        assert batch.columns == ["a", "b", "k", *(["_rescued_data"] if policy == "rescue" else [])]
    strict: list[dict[str, Any]] = [{}, {"mode": "FAILFAST"}]
    for failing in strict:
        with pytest.raises(Exception, match="Malformed records are detected"):
            aioprefetch.spark.read(spark, url, **options, **failing).collect()
    chosen = aioprefetch.spark.read(
        spark, url, mode="DROPMALFORMED", columns=["b", "k"], filters=[("k", "=", 1)], **options
    )
    assert ("x", 1) in [tuple(row) for row in chosen.where("b = 'x'").collect()]

    checkpoint = str(tmp_path / "checkpoint")
    stream = aioprefetch.spark.stream(spark, url, checkpoint=checkpoint, on_corrupt_record="rescue", **options)
    query = (
        stream.drop("k")
        .writeStream.format("memory")
        .queryName(f"parsed_{kind}")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert in_order([*map(tuple, spark.table(f"parsed_{kind}").collect())]) == in_order(ROWS[kind]["rescue"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "FAILFAST", "onCorruptRecord": "fail"}, "mode and onCorruptRecord are one option"),
        ({"format": "text"}, "is for csv and json, not for text"),
        ({"filters": [("a", "=", 1)]}, "use where\\(\\) for a"),
        ({"unknownFields": "fail"}, "unknownFields: not with parser"),
        ({"dateFormt": "y"}, "did you mean dateFormat"),
    ],
)
def test_options_that_cannot_be_are_refused(
    spark: SparkSession, options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("1\n")
    with pytest.raises(ConfigInvalid, match=words):
        aioprefetch.spark.read(spark, str(tmp_path), parser="spark", schema="a int", **options)
    for given in ({"parser": "spark"}, {"dateFormat": "y"}, {"onCorruptRecord": "rescue"}):
        with pytest.raises(Exception, match=r'aioprefetch.spark.read.*parser="spark"'):
            spark.read.format("aioprefetch").options(**given).schema("a int").load(str(tmp_path)).collect()

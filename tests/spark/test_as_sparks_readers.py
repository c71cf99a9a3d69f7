"""The cases of ``reader_cases`` beside Spark's own readers: the same rows, refused with advice, or a known difference.

Ours are read without a JVM, so that the cases of a format cost Spark one small query each and nothing else.
"""

import datetime as dt
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from aioprefetch.errors import Error
from aioprefetch.source.differences import DIFFERENCES, searches, warn_of_difference
from aioprefetch.spark.data_source import AioPrefetchDataSource
from aioprefetch.spark.hadoop import SessionSettings
from tests.repository.source_tree import ROOT
from tests.spark.reader_cases import CASES, DIFFERENT, REFUSED, Case

pytestmark = pytest.mark.spark


class Registered(AioPrefetchDataSource):
    session = SessionSettings(time_zone="UTC")


PAGE = " ".join((ROOT / "docs/guides/spark.md").read_text().split())


def test_every_case_has_one_outcome_and_every_difference_a_sentence_on_the_page() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names) >= 129
    assert REFUSED.keys() | DIFFERENT.keys() <= set(names)
    assert not REFUSED.keys() & DIFFERENT.keys()
    assert all(DIFFERENCES.get(words, words) in PAGE for _, words in DIFFERENT.values())
    assert all(sentence in PAGE for sentence in DIFFERENCES.values())


@pytest.mark.parametrize("kind", ["csv", "json", "text", "parquet", "binaryFile"])
def test_rows_are_those_of_sparks_own_readers(
    spark: SparkSession, kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = []
    for number, case in enumerate(case for case in CASES if case.format == kind and case.name not in REFUSED):
        directory = tmp_path / str(number)
        write(case, directory)
        searches.cache_clear()
        warn_of_difference.cache_clear()
        caplog.clear()
        ours, theirs = ours_of(case, directory), theirs_of(spark, case, directory)
        warnings = [DIFFERENCES[name] for name in DIFFERENCES if DIFFERENCES[name] in caplog.text]
        expected, words = DIFFERENT.get(case.name, (theirs, ""))
        if ours != in_order(expected) or (ours == theirs) == bool(words):
            wrong.append(f"{case.name}: {ours}, and Spark has {theirs}")
        if words in DIFFERENCES and DIFFERENCES[words] not in warnings:
            wrong.append(f"{case.name}: no warning of {words!r}, but {warnings}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("case", [case for case in CASES if case.name in REFUSED], ids=lambda case: case.name)
def test_what_spark_alone_takes_is_refused_with_advice(case: Case, tmp_path: Path) -> None:
    write(case, tmp_path)
    with pytest.raises(Error, match=REFUSED[case.name]):
        ours_of(case, tmp_path)


def write(case: Case, directory: Path) -> None:
    for name, content in case.files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, list):
            pq.write_table(pa.Table.from_pylist(content), path)
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)


def theirs_of(spark: SparkSession, case: Case, directory: Path) -> list[Any]:
    reader = spark.read.format(case.format).options(**case.options)
    frame = (reader.schema(case.schema) if case.schema else reader).load(str(directory / case.path))
    if "columns" in case.only:
        frame = frame.select(*case.only["columns"].split(","))
    return in_order([row.asDict(recursive=True) for row in frame.collect()])


def ours_of(case: Case, directory: Path) -> list[Any]:
    """Ours without a JVM: planned, sent and read as Spark does it."""
    path = str(directory / case.path)
    source = Registered({"path": path, "format": case.format, **case.options, **case.only})
    schema: Any = StructType.fromDDL(case.schema) if case.schema else source.schema()
    reader = pickle.loads(pickle.dumps(source.reader(schema)))
    return in_order([row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()])


def in_order(rows: list[Any]) -> list[Any]:
    return sorted((plain(row) for row in rows), key=repr)


def plain(value: Any) -> Any:
    """A value without the differences of Python's types between the two: maps, bytes, times, NaN."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in sorted(value.items())}
    if isinstance(value, list):
        pairs = bool(value) and all(isinstance(item, tuple) for item in value)
        return {name: plain(item) for name, item in value} if pairs else [plain(item) for item in value]
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.UTC).replace(tzinfo=None)
    return "NaN" if value != value else value

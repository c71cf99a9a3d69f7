"""Rows that Spark's own readers would give otherwise: one warning of each kind in a process, and none without need."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from aioprefetch.source.differences import DIFFERENCES, searches, warn_of_difference
from aioprefetch.spark.data_source import AioPrefetchDataSource
from tests.repository.source_tree import ROOT


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """No warning was given before, nor counts after."""
    for cached in (searches, warn_of_difference):
        cached.cache_clear()
    yield
    warn_of_difference.cache_clear()


def texts(*names: str) -> StructType:
    return StructType([StructField(name, StringType()) for name in names])


def rows(path: Path | str, schema: StructType | None = None, **options: str) -> list[dict[str, Any]]:
    source = AioPrefetchDataSource({"path": str(path), **options})
    reader = source.reader(schema or source.schema())
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


FILES: dict[str, dict[str, str]] = {
    "header": {"a.csv": "b,a\n1,2\n"},
    "quotes": {"a.csv": 'a,b\n1,"x ""y"""\n'},
    "nulls": {"a.csv": 'a,b\n1,""\n'},
    "blanks": {"a.csv": "a,b,n\n1,2, 5\n"},
    "objects": {"a.json": '{"a": {"x": 1}, "b": "y"}'},
    "nested": {"d/a.csv": "a,b\n1,x\n"},
    "directories": {"k=1/a.csv": "a,b\n1,x\n"},
}
USUAL = {
    "a.csv": 'a,b,n\n x ,"x, y",3\n2,x y,\n-3,1.5 a,4\n',
    "b.json": '{"a": "x", "b": 1}',
}


def write(directory: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(content)


@pytest.mark.parametrize("kind", FILES)
def test_a_difference_is_warned_of_once(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, FILES[kind])
    for _ in range(2):
        schema = texts("a", "b").add("n", IntegerType()) if kind == "blanks" else texts("a", "b")
        assert len(rows(tmp_path, schema, header="true")) == 1
    assert [record.getMessage() for record in caplog.records] == [
        f"other rows than by Spark's own readers: {DIFFERENCES[kind]}"
    ]


def test_a_union_and_directories_of_a_wildcard_are_warned_of_where_a_schema_is_inferred(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number, table in enumerate((pa.table({"a": [1]}), pa.table({"b": [2]}))):
        (tmp_path / f"k={number}").mkdir()
        pq.write_table(table, tmp_path / f"k={number}/x.parquet")
    assert rows(f"{tmp_path}/k=0", None) == [{"a": 1}]
    assert not caplog.records
    assert rows(f"{tmp_path}/k=*") == [{"a": 1, "b": None, "k": 0}, {"a": None, "b": 2, "k": 1}]
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        DIFFERENCES["union"],
        DIFFERENCES["wildcards"],
    ]


def test_directories_that_are_left_out_by_name_are_not_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, FILES["directories"])
    everything = texts("k", "a", "b")
    assert rows(tmp_path, everything, header="true") == [{"k": "1", "a": "1", "b": "x"}]
    assert rows(tmp_path, texts("a"), header="true", fileSchema=everything.json()) == [{"a": "1"}]
    assert rows(tmp_path, header="true", columns="a") == [{"a": "1"}]
    assert not [record for record in caplog.records if "directories" in record.getMessage()]


def test_usual_files_are_not_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, USUAL)
    assert len(rows(tmp_path, texts("a", "b").add("n", IntegerType()), header="true")) == 4
    assert not caplog.records


def test_the_page_has_the_sentence_of_each_difference() -> None:
    page = " ".join((ROOT / "docs/guides/spark.md").read_text().split())
    assert [sentence for sentence in DIFFERENCES.values() if sentence not in page] == []


@pytest.mark.parametrize("name", ["a.csv", "a.json"])
def test_columns_of_csv_are_strings_unless_their_types_are_inferred(name: str, tmp_path: Path) -> None:
    """Formats that have types of their own, or are always inferred, take the option too."""
    header: Any = {"header": "true"} if name == "a.csv" else {}
    (tmp_path / name).write_text("a,b\n007,1.5\n" if header else '{"a": 7, "b": 1.5}')
    assert rows(tmp_path, inferSchema="true", **header) == [{"a": 7, "b": 1.5}]
    strings = [{"a": "007", "b": "1.5"}] if header else [{"a": 7, "b": 1.5}]
    assert rows(tmp_path, **header) == rows(tmp_path, inferSchema="false", **header) == strings
    if header:
        assert rows(tmp_path) == [{"_c0": "a", "_c1": "b"}, {"_c0": "007", "_c1": "1.5"}]


def test_repeated_names_of_an_object_stay_in_its_text(tmp_path: Path) -> None:
    text = '{"a":1,"a":{"b":[{"c":1,"c":2}],"b":null}}'
    (tmp_path / "a.json").write_text(f'{{"a": {text}, "b": {json.dumps(text)}}}')
    assert rows(tmp_path, texts("a", "b")) == [{"a": text, "b": text}]
    (tmp_path / "a.json").write_text('{"a": "first", "a": "last"}')
    assert rows(tmp_path, texts("a")) == [{"a": "last"}]
    (tmp_path / "a.json").write_text('{"z": {"x": 1, "x": 2}}')
    found = rows(tmp_path, texts("_rescued"), unknownFields="rescue")
    assert found == [{"_rescued": '{"z":{"x":1,"x":2}}'}]

"""What a source has read, as a table; the rows of files, counted by their metadata."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from aioprefetch.errors import ConfigInvalid, NotFound, UntrustedMetadata
from aioprefetch.spark import count, read, source_state, stream
from aioprefetch.spark.counting import rows_by_job
from aioprefetch.spark.settings import parse_options
from aioprefetch.spark.state_table import state_table
from aioprefetch.sync import run
from tests.spark.files import records, write_jsonl, write_parquet
from tests.spark.test_stream_reader import Query


def states_of(place: Path) -> dict[str, tuple[str, int]]:
    rows = run(state_table(parse_options({"path": str(place)}))).to_pylist()
    assert all(row["version"] and row["time"] is not None for row in rows if row["status"] != "gone")
    return {row["file"].rpartition("/")[2]: (row["status"], row["size"]) for row in rows}


def test_files_of_a_source_are_a_table(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source, state = tmp_path / "in", tmp_path / "state"
    for name in ("a", "b", "c"):
        write_jsonl(source / f"{name}.jsonl", records(0, 3))
    (source / "d.jsonl").touch()
    (source / "b.jsonl").write_text("no json\n")
    query = Query(source, state, maxFilesPerTrigger="1", onCorrupt="quarantine", sweepPagesPerTrigger="5")
    with caplog.at_level(logging.INFO, "aioprefetch"):
        assert query.batch() == [0, 1, 2]
    assert f"file://{source}: record 1 has 1 files and" in caplog.text
    assert "0 files are committed; 3 files and" in caplog.text
    assert query.batch() == []
    assert query.batch() == [0, 1, 2]
    size = (source / "a.jsonl").stat().st_size
    found = {"a.jsonl": ("committed", size), "b.jsonl": ("quarantined", 8), "c.jsonl": ("planned", size)}
    found["d.jsonl"] = ("empty", 0)
    assert states_of(state) == found
    (source / "a.jsonl").unlink()
    query.batch()
    query.batch()
    query.reader.stop()
    assert states_of(state)["a.jsonl"] == ("gone", size)
    with pytest.raises(NotFound, match="no state of a source"):
        states_of(tmp_path / "none")


@pytest.mark.spark
def test_what_spark_has_committed_is_known_by_its_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    write_jsonl(source / "a.jsonl", records(0, 3))
    frame = stream(spark, str(source), checkpoint=str(checkpoint), schema="id long")
    query = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    query.start().awaitTermination()
    (row,) = source_state(spark, str(checkpoint / "aioprefetch")).collect()
    assert row["status"] == "committed"
    assert row["file"] == (source / "a.jsonl").as_uri()
    assert row["batch"] == 1


def parquet_files(root: Path) -> None:
    for number in range(5):
        (root / f"k={number}").mkdir(parents=True)
        write_parquet(root / f"k={number}" / "a.parquet", records(number * 10, number * 10 + 7))


def csv_files(root: Path) -> None:
    for number in range(3):
        (root / f"k={number}").mkdir(parents=True)
        (root / f"k={number}" / "a.csv").write_text('id,name\n1,"a\nb"\n2,c\n')


def jsonl_files(root: Path) -> None:
    for number in range(3):
        write_jsonl(root / f"k={number}" / "a.jsonl", records(0, 4))


CASES: list[tuple[Callable[[Path], None], dict[str, Any], int]] = [
    (parquet_files, {}, 35),
    (parquet_files, {"filters": [("id", ">", 11), ("k", "<", 3)]}, 12),
    (parquet_files, {"filters": [[("id", "<", 2)], [("k", "=", 4)]]}, 9),
    (parquet_files, {"on_missing": "skip"}, 35),
    (csv_files, {"header": True, "multi_line": True}, 6),
    (jsonl_files, {"filters": [("id", ">=", 1)]}, 9),
    (jsonl_files, {"schema": "id long"}, 12),
]


@pytest.mark.spark
@pytest.mark.parametrize(("write", "options", "rows"), CASES)
def test_a_count_is_that_of_what_is_read(
    spark: SparkSession, tmp_path: Path, write: Callable[[Path], None], options: dict[str, Any], rows: int
) -> None:
    write(tmp_path)
    assert count(spark, str(tmp_path), **options) == read(spark, str(tmp_path), **options).count() == rows


@pytest.mark.spark
def test_many_footers_are_read_by_a_job(spark: SparkSession, tmp_path: Path) -> None:
    parquet_files(tmp_path)
    assert count(spark, str(tmp_path / "k=1" / "a.parquet")) == 7
    settings = parse_options({"path": str(tmp_path)})
    assert rows_by_job(spark, settings, [f"k={number}/a.parquet" for number in range(5)]) == 35
    (tmp_path / "no.parquet").write_bytes(b"PAR1")
    with pytest.raises(UntrustedMetadata, match=r"no\.parquet"):
        count(spark, str(tmp_path))
    with pytest.raises(ConfigInvalid, match="only for streams"):
        count(spark, str(tmp_path), max_files_per_trigger=1)  # type: ignore[call-arg]

"""What a source has read, as a table."""

import logging
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from aioprefetch.errors import NotFound
from aioprefetch.spark import source_state, stream
from aioprefetch.spark.settings import parse_options
from aioprefetch.spark.state_table import state_table
from aioprefetch.sync import run
from tests.spark.files import records, write_jsonl
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

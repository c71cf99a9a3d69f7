"""The readers driven by hand in the engine's call order, without a JVM: offsets, restarts, wrong state, pickles."""

import json
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxFiles, ReadMaxRows
from pyspark.sql.types import StructType

from aioprefetch.errors import ConfigInvalid, InvalidArgument, StateConflict, Unsupported, UntrustedMetadata
from aioprefetch.source.stored_json import seal
from aioprefetch.spark.data_source import AioPrefetchDataSource
from aioprefetch.spark.operators import task_operator
from aioprefetch.spark.readers import FILES_MAX_DEFAULT, BatchReader, StreamReader
from aioprefetch.testing.conformance.suite import checks
from tests.spark.files import records, write_jsonl, write_parquet

IDS = StructType().add("id", "long")


def data_source(path: Path, **options: str) -> AioPrefetchDataSource:
    of_streams = {"listIntervalSeconds": "0"} if "stateLocation" in options else {}
    return AioPrefetchDataSource({"path": str(path), **of_streams, **options})


class Query:
    """A micro-batch engine in a few lines: one checkpoint, and a new reader after each restart."""

    def __init__(self, path: Path, state: Path, **options: str) -> None:
        self._make: Callable[[], StreamReader] = lambda: data_source(
            path, stateLocation=str(state), **options
        ).streamReader(schema=IDS)
        self.reader = self._make()
        self.start: dict[str, Any] = self.reader.initialOffset()

    def restart(self) -> None:
        """The process is killed: nothing is closed. What a test leaves open it closes here."""
        self.reader.stop()
        self.reader = self._make()

    def batch(self, limit: ReadLimit | None = None) -> list[int] | None:
        """The ids of the next batch, ``None`` when there is none."""
        end = self.reader.latestOffset(self.start, limit or self.reader.getDefaultReadLimit())
        if end is self.start:
            return None
        ids = self.ids(self.start, end)
        self.reader.commit(end)
        self.start = json.loads(json.dumps(end))
        return ids

    def ids(self, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
        """What is read between two offsets, by readers that came out of a pickle, as in tasks."""
        reader: StreamReader = pickle.loads(pickle.dumps(self.reader))
        partitions = [pickle.loads(pickle.dumps(one)) for one in self.reader.partitions(start, end)]
        return sorted(one for part in partitions for batch in reader.read(part) for one in batch["id"].to_pylist())


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A directory with three files of ten records."""
    for n in range(3):
        write_jsonl(tmp_path / "source" / f"part-{n}.jsonl", records(10 * n, 10 * n + 10))
    return tmp_path / "source"


@pytest.fixture
def query(source: Path, tmp_path: Path) -> Iterator[Query]:
    """A query over it, one file in a batch."""
    made = Query(source, tmp_path / "state", maxFilesPerTrigger="1")
    yield made
    made.reader.stop()


@checks("reliability:P13")
def test_each_file_once_over_batches_and_restarts(query: Query, source: Path) -> None:
    assert query.batch() == list(range(10))
    assert query.batch() == list(range(10, 20))
    query.restart()
    write_jsonl(source / "a-late-one.jsonl", records(30, 40))
    write_jsonl(source / "z.jsonl", records(40, 50))
    seen: list[int] = []
    while (ids := query.batch()) is not None:
        seen += ids
    assert sorted(seen) == list(range(20, 50))


@checks("reliability:P04")
def test_a_batch_that_was_planned_is_the_same_after_a_restart(query: Query) -> None:
    limit = ReadMaxFiles(1)
    end = query.reader.latestOffset(query.start, limit)
    before = query.ids(query.start, end)
    query.restart()
    assert query.reader.latestOffset(query.start, limit) == end
    assert query.ids(query.start, end) == before == list(range(10))
    assert query.ids(query.start, end) == before


def test_offsets_are_small_texts_that_stay_as_they_are(query: Query) -> None:
    start = query.start
    end = query.reader.latestOffset(start, ReadMaxFiles(1))
    for offset in (start, end):
        assert list(offset) == ["v", "state", "seq", "files", "bytes"]
        assert len(json.dumps(offset)) < 300
        assert json.loads(json.dumps(offset)) == offset
    assert query.reader.initialOffset() == start
    query.start = end
    while query.batch() is not None:
        pass
    last = query.start
    assert query.reader.latestOffset(last, ReadMaxFiles(1)) is last
    assert query.reader.partitions(last, last) == []


def test_limits_of_the_engine_and_of_options(source: Path, tmp_path: Path) -> None:
    def limit(**options: str) -> ReadLimit:
        reader = data_source(source, stateLocation=str(tmp_path / "state"), **options).streamReader(schema=IDS)
        return reader.getDefaultReadLimit()

    assert limit() == ReadMaxFiles(FILES_MAX_DEFAULT)
    assert limit(maxBytesPerTrigger="1k") == ReadMaxBytes(1024)
    assert limit(maxBytesPerTrigger="1k", maxFilesPerTrigger="3") == ReadMaxFiles(3)
    assert limit(maxRowsPerTrigger="5") == ReadMaxRows(5)


def test_everything_at_once_when_the_engine_asks_for_it(query: Query) -> None:
    assert query.batch(ReadAllAvailable()) == list(range(30))


def test_a_file_larger_than_the_budget_comes_in_several_batches(tmp_path: Path) -> None:
    found = [{"id": n, "text": "x" * 90} for n in range(1000)]
    write_jsonl(tmp_path / "source" / "large.jsonl", found)
    query = Query(tmp_path / "source", tmp_path / "state", maxBytesPerTrigger="20000")
    query.reader.prepareForTriggerAvailableNow()
    batches = []
    while (ids := query.batch()) is not None:
        batches.append(ids)
        if len(batches) == 2:
            query.restart()
    query.reader.stop()
    assert [one for batch in batches for one in batch] == list(range(1000))
    assert len(batches) > 4


def test_available_now_leaves_what_comes_later(query: Query, source: Path) -> None:
    query.reader.prepareForTriggerAvailableNow()
    assert query.batch() == list(range(10))
    write_jsonl(source / "z.jsonl", records(40, 50))
    os.utime(source / "z.jsonl", (4e9, 4e9))
    assert query.batch() == list(range(10, 20))
    assert query.batch() == list(range(20, 30))
    assert query.batch() is None


def test_the_backlog_is_reported(query: Query) -> None:
    query.batch()
    latest = query.reader.reportLatestOffset()
    assert latest is not None
    assert latest["files"] == 3
    assert query.start["files"] == 1


def test_without_a_state_location(source: Path) -> None:
    with pytest.raises(ConfigInvalid, match=r"stateLocation.*aioprefetch\.spark\.stream"):
        data_source(source).streamReader(schema=IDS)


def test_another_sources_checkpoint(query: Query, source: Path, tmp_path: Path) -> None:
    other = Query(source, tmp_path / "other")
    with pytest.raises(StateConflict, match="belongs to the state"):
        query.reader.latestOffset(other.start, ReadMaxFiles(1))
    other.reader.stop()


def test_a_state_of_another_source(query: Query, tmp_path: Path) -> None:
    query.batch()
    with pytest.raises(StateConflict, match="url"):
        Query(tmp_path / "elsewhere", tmp_path / "state")


def test_a_state_that_was_emptied(query: Query, source: Path, tmp_path: Path) -> None:
    query.batch()
    (tmp_path / "state").rename(tmp_path / "lost")
    query.restart()
    with pytest.raises(StateConflict, match="belongs to the state"):
        query.batch()


def test_the_second_of_two_queries_on_one_state_ends_the_first(query: Query, source: Path, tmp_path: Path) -> None:
    query.batch()
    second = Query(source, tmp_path / "state")
    for _ in range(2):
        with pytest.raises(StateConflict, match=r"a second query was started on this state, .*attachTo.*foreachBatch"):
            query.batch()
    second.reader.stop()


@checks("reliability:P12")
def test_offsets_of_a_newer_format_and_of_another_source(query: Query) -> None:
    with pytest.raises(Unsupported, match="format 2"):
        query.reader.latestOffset({**query.start, "v": 2}, ReadMaxFiles(1))
    with pytest.raises(InvalidArgument, match="not an offset of aioprefetch"):
        query.reader.latestOffset({"partition-0": 3}, ReadMaxFiles(1))


def test_a_schema_is_inferred_once(source: Path, tmp_path: Path) -> None:
    options = {"stateLocation": str(tmp_path / "state"), "metadataColumns": "_file", "columns": "price,id"}
    first = data_source(source, **options).schema()
    assert first.names == ["price", "id", "_file"]
    write_jsonl(source / "a.jsonl", [{"id": "no longer a number", "more": 1}])
    assert data_source(source, **options).schema() == first
    del options["columns"]
    assert data_source(source, **options).schema().names == ["id", "name", "price", "_file"]
    with pytest.raises(StateConflict, match="state location of its own"):
        data_source(tmp_path / "elsewhere", **options).schema()
    kept = tmp_path / "state" / "schema.json"
    written = kept.read_bytes()
    for damaged in (b'{"v": 1}', written.replace(b'"long"', b'"string"'), written[:-9]):
        kept.write_bytes(damaged)
        with pytest.raises(UntrustedMetadata, match=r"damaged: it was cut short or edited"):
            data_source(source, **options).schema()
    whole = {"v": 1, "schema": json.loads(first.json())}
    edits: list[dict[str, Any]] = [{"schema": {}}, {"directories": ["no such field"]}, {"directories": 7}]
    for edit in edits:
        kept.write_bytes(seal({**whole, "url": source.as_uri(), **edit})[0])
        with pytest.raises(UntrustedMetadata, match="the schema that was kept with the state"):
            data_source(source, **options).schema()
    kept.write_bytes(seal({"v": 2, "url": "x", "schema": {}})[0])
    with pytest.raises(UntrustedMetadata, match="cannot be read: it is not of this format"):
        data_source(source, **options).schema()


def test_filters_on_columns_that_are_not_given(source: Path, tmp_path: Path) -> None:
    query = Query(source, tmp_path / "state", filters='[["price", ">", 7]]')
    assert query.batch() == [29]
    query.reader.stop()


def test_committed_files_are_moved_away(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "done"
    options = {"cleanSource": "move", "cleanSource.moveDestination": str(target), "maxFilesPerTrigger": "2"}
    query = Query(source, tmp_path / "state", **options)
    query.batch()
    opened = query.reader._source
    assert opened is not None
    from aioprefetch.sync import run

    run(opened.cleaner.finish())
    assert sorted(path.name for path in target.iterdir()) == ["part-0.jsonl", "part-1.jsonl"]
    assert [path.name for path in source.iterdir()] == ["part-2.jsonl"]
    query.reader.stop()


def test_quarantined_files_are_listed_beside_the_state(source: Path, tmp_path: Path) -> None:
    write_parquet(source / "x.parquet", records(0, 3))
    (source / "y.parquet").write_bytes(b"PAR1 nothing of the kind PAR1")
    query = Query(source / "*.parquet", tmp_path / "state", onCorrupt="quarantine")
    assert query.batch() == [0, 1, 2]
    written = [
        json.loads(line) for path in (tmp_path / "state" / "dead").iterdir() for line in path.read_text().splitlines()
    ]
    assert [one["key"] for one in written] == ["y.parquet"]
    query.reader.stop()


def test_attached_queries_share_one_lister(source: Path, tmp_path: Path) -> None:
    lister = Query(source, tmp_path / "state")
    lister.batch()
    second = Query(source, tmp_path / "second", attachTo=str(tmp_path / "state"))
    assert second.batch() == list(range(30))
    write_jsonl(source / "z.jsonl", records(40, 50))
    assert second.batch() is None
    assert lister.batch() == list(range(40, 50))
    assert second.batch() == list(range(40, 50))
    for query in (second, lister):
        query.reader.stop()


def test_readers_are_small_when_they_are_pickled(query: Query, source: Path) -> None:
    query.batch()
    assert len(pickle.dumps(query.reader)) < 64 << 10
    batch = data_source(source).reader(schema=IDS)
    assert len(pickle.dumps(batch)) < 64 << 10


def test_a_plan_without_partitions_reads_nothing(source: Path) -> None:
    reader = data_source(source).reader(schema=IDS)
    assert list(reader.read(InputPartition(None))) == []


def test_an_iterator_that_is_left_early_closes_the_files(tmp_path: Path) -> None:
    (tmp_path / "large.jsonl").write_bytes(b'{"id": 1}\n' * 300_000)
    reader = data_source(tmp_path, batchRows="1", bytesInFlight="64k").reader(schema=IDS)
    batches = reader.read(reader.partitions()[0])
    assert next(batches).num_rows == 1
    operator = task_operator(reader._settings, tmp_path.as_uri())
    assert operator.statistics["stream_read_closed"] < operator.statistics["stream_read_opened"]
    batches.close()  # type: ignore[attr-defined]
    assert operator.statistics["stream_read_closed"] == operator.statistics["stream_read_opened"]


def test_filters_of_spark_are_not_taken(source: Path) -> None:
    with pytest.raises(ConfigInvalid, match="pushFilters gives wrong results"):
        data_source(source, pushFilters="true").reader(schema=IDS)
    assert "pushFilters" not in vars(BatchReader)

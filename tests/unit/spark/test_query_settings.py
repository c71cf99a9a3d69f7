"""Zone and case of names are those of the query, as its tasks see them, and a plan never rests on another zone."""

import datetime as dt
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from aioprefetch.errors import ConfigInvalid, Unsupported
from aioprefetch.spark import worker
from aioprefetch.spark.data_source import AioPrefetchDataSource
from aioprefetch.spark.hadoop import CASE_SENSITIVE, TIME_ZONE, SessionSettings

TIMES = StructType([StructField("t", TimestampType())])
NOON = "2024-07-01 12:00:00"


class Query:
    """A batch in a session, planned and read as Spark does it, without a JVM. ``settings`` are the query's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, session: SessionSettings | None) -> None:
        self.settings: dict[str, str] = {}
        monkeypatch.setattr(worker, "task_properties", lambda: self.settings)
        monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
        self.kind: Any = type("Registered", (AioPrefetchDataSource,), {"session": session})

    def plan(self, path: Path, schema: StructType, **options: str) -> Any:
        settings, self.settings = self.settings, {}  # Spark shows them to tasks alone.
        try:
            reader = self.kind({"path": str(path), **options}).reader(schema)
            return pickle.loads(pickle.dumps(reader)), reader.partitions()
        finally:
            self.settings = settings

    def rows(self, path: Path, schema: StructType, **options: str) -> list[Any]:
        reader, parts = self.plan(path, schema, **options)
        return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]

    def times(self, path: Path, schema: StructType = TIMES, **options: str) -> list[str]:
        """The times of ``t`` in UTC."""
        return [row["t"].strftime("%d %H:%M") for row in self.rows(path, schema, **options)]


@pytest.fixture
def query(monkeypatch: pytest.MonkeyPatch) -> Query:
    return Query(monkeypatch, SessionSettings(time_zone="America/New_York"))


@pytest.mark.parametrize("name", ["a.csv", "a.json", "t=2024-07-01 12%3A00%3A00/a.txt"])
def test_times_are_in_the_zone_of_the_query(query: Query, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"t": NOON}) if name.endswith("json") else NOON)
    assert query.times(tmp_path) == ["01 16:00"]  # What ``register`` saw.
    query.settings = {TIME_ZONE: "Asia/Tokyo"}
    assert query.times(tmp_path) == ["01 03:00"]
    assert query.times(tmp_path, sessionTimeZone="UTC") == ["01 03:00"]  # What the helpers saw.
    assert query.times(tmp_path, timeZone="+02:00") == ["01 10:00"]


FILTERS = json.dumps([["t", ">=", {"$timestamp": "2024-07-01T12:00:00"}]])
IN_UTC = json.dumps([["t", ">=", {"$timestamp": "2024-07-01T16:00:00+00:00"}]])


def test_filters_by_times_without_a_zone_are_refused_where_the_zone_is_not_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A plan in one zone would leave out rows that match in the other one."""
    times = pa.array([dt.datetime(2024, 7, 1, hour, tzinfo=dt.UTC) for hour in (3, 16)], pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"t": times}), tmp_path / "a.parquet", row_group_size=1)
    unknown, known = Query(monkeypatch, None), Query(monkeypatch, SessionSettings(time_zone="America/New_York"))
    for text in (FILTERS, json.dumps([["t", "in", ["2024-07-01 12:00:00"]]]), json.dumps([[["t", "<", "2024-07-02"]]])):
        with pytest.raises(
            ConfigInvalid, match="no zone is known where the query is planned: give the option timeZone"
        ):
            unknown.plan(tmp_path, TIMES, filters=text)
    assert unknown.times(tmp_path, filters=IN_UTC) == ["01 16:00"]
    assert unknown.times(tmp_path, filters=FILTERS, timeZone="America/New_York") == ["01 16:00"]
    assert known.times(tmp_path, filters=FILTERS) == ["01 16:00"]
    known.settings = {TIME_ZONE: "America/New_York"}
    assert known.times(tmp_path, filters=FILTERS) == ["01 16:00"]
    known.settings = {TIME_ZONE: "Asia/Tokyo"}
    with pytest.raises(ConfigInvalid, match="planned in 'America/New_York', and the zone of the query is 'Asia/Tokyo'"):
        known.times(tmp_path, filters=FILTERS)
    assert known.times(tmp_path, filters=IN_UTC) == ["01 16:00"]


def test_a_time_in_a_path_leaves_no_file_out_before_the_zone_is_known(query: Query, tmp_path: Path) -> None:
    for hour in (11, 12):
        directory = tmp_path / f"t=2024-07-01 {hour}%3A00%3A00"
        directory.mkdir()
        (directory / "a.txt").write_text("x")
    late = json.dumps([["t", ">=", {"$timestamp": "2024-07-01T16:00:00+00:00"}]])
    early = json.dumps([["t", "<=", {"$timestamp": "2024-07-01T02:30:00+00:00"}]])
    assert query.times(tmp_path, filters=late) == ["01 16:00"]
    query.settings = {TIME_ZONE: "Asia/Tokyo"}
    assert query.times(tmp_path, filters=late) == []
    assert query.times(tmp_path, filters=early) == ["01 02:00"]


NAMES = StructType(
    [
        StructField("a", LongType()),
        StructField("b", StringType()),
        StructField("s", StructType([StructField("x", LongType())])),
    ]
)


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_names_match_in_their_exact_case_where_the_query_says_so(query: Query, tmp_path: Path, kind: str) -> None:
    schema = NAMES if kind == "parquet" else StructType(NAMES.fields[:2])
    if kind == "parquet":
        pq.write_table(pa.table({"A": [1], "b": ["y"], "s": [{"X": 2}]}), tmp_path / "a.parquet")
    else:
        (tmp_path / "a.csv").write_text("A,b\n1,y\n")
    folded: dict[str, Any] = {"a": 1, "b": "y", "s": {"x": 2}}
    exact: dict[str, Any] = {"a": None, "b": "y", "s": {"x": None}}
    if kind == "csv":
        del folded["s"], exact["s"]
    options = {"header": "true"} if kind == "csv" else {}
    assert query.rows(tmp_path, schema, **options) == [folded]
    query.settings = {CASE_SENSITIVE: "true"}
    assert query.rows(tmp_path, schema, **options) == [exact]
    with pytest.raises(Unsupported, match="'A'"):
        query.rows(tmp_path, schema, unknownFields="fail", **options)
    query.settings = {CASE_SENSITIVE: "false"}
    assert query.rows(tmp_path, schema, **options) == [folded]
    query.kind.session = SessionSettings(exact_case=True)
    assert query.rows(tmp_path, schema, **options) == [folded]
    query.settings = {}
    assert query.rows(tmp_path, schema, **options) == [exact]


def test_files_are_chosen_by_their_times_in_the_zone_of_the_session(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, hour in (("1", 12), ("2", 13)):
        (tmp_path / f"{name}.csv").write_text(f"{name}\n")
        at = dt.datetime(2024, 1, 31, hour, tzinfo=dt.UTC).timestamp()
        os.utime(tmp_path / f"{name}.csv", (at, at))
    query, noon = Query(monkeypatch, SessionSettings(time_zone="America/New_York")), "2024-01-31T07:00:00"
    schema = StructType([StructField("n", LongType())])
    assert [row["n"] for row in query.rows(tmp_path, schema, modifiedAfter=noon)] == [2]
    assert [row["n"] for row in query.rows(tmp_path, schema, modifiedBefore="2024-01-31T12:00:01+00:00")] == [1]
    assert query.rows(tmp_path, schema, modifiedAfter=noon, modifiedBefore=noon, allowEmpty="true") == []

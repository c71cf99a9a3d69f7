"""The jobs of Parquet and Lance scans: what they ask, how answers are compared, and what is said of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow.fs import LocalFileSystem

from aioprefetch.scheduler.decode_loop import READAHEAD_BATCHES
from tests.benchmarks import parquet_groups, scan_memory
from tests.benchmarks.access_log import Request
from tests.benchmarks.batch_rows import BATCH_ROWS_JOBS, touched
from tests.benchmarks.batch_rows import check as check_sum
from tests.benchmarks.content import MIB
from tests.benchmarks.job import CHECK_OBJECT, WALL, Job, Numbers, Result, Target
from tests.benchmarks.jobs import JOBS
from tests.benchmarks.lance_clients import PYLANCE, PYLANCE_DEFAULT, pylance_results
from tests.benchmarks.lance_files import (
    ROW_BYTES,
    VERSIONS,
    WRITE_ROWS,
    check_lance,
    lance_table,
    lance_writer,
    narrow_table,
    narrow_writer,
    rows_of,
)
from tests.benchmarks.lance_jobs import LANCE_JOBS, QUESTIONS, RANGE_ROWS, TAKE_ROWS
from tests.benchmarks.parquet_files import (
    NAMES,
    check_large,
    column_values,
    write_default_groups,
    write_many_groups,
)
from tests.benchmarks.parquet_scans import READ_TABLE, SCAN, TO_READER
from tests.benchmarks.scan_memory import BATCHES, LANCE, OURS, PARQUET, QUICK_BATCHES, SlowConsumer, within_bound
from tests.benchmarks.simulator import AT_A_DISTANCE, LOOPBACK
from tests.benchmarks.wanted import Wanted, with_wanted

US, FAST, SLOW = "aioprefetch", "quick peer", "slow peer"
SHARE = Wanted(name="peers", ours=US, peers=(SLOW, FAST), at_most=0.6)


async def nothing(target: Target) -> dict[str, float]:
    return {}


def medians_of(job: Job, **walls: list[float]) -> dict[str, Numbers]:
    """The medians of a job with these wall times: ``us``, ``fast`` and ``slow``."""
    result = Result(job=job, quick=False)
    for name, key in ((US, "us"), (FAST, "fast"), (SLOW, "slow")):
        if key in walls:
            result.samples[name] = [{"wall_seconds": wall} for wall in walls[key]]
    result.compare()
    return result.medians()


def a_job(*wanted: Wanted, **options: Any) -> Job:
    contestants = dict.fromkeys((US, FAST, SLOW), nothing)
    return with_wanted(Job(name="j", title="t", contestants=contestants, columns=(WALL,), **options), wanted)


def test_what_is_wanted_is_said_of_the_fastest_peer_round_by_round() -> None:
    job = a_job(SHARE)
    # The first round is slow for both: the ratios are 0.5, 0.5 and 0.9, and their median is 0.5.
    medians = medians_of(job, us=[10, 1, 1.8], fast=[20, 2, 2], slow=[30, 3, 3])
    assert job.remark(medians) == "aioprefetch takes 0.50 of the wall of quick peer (0.60 is wanted)."
    assert [column.heading for column in job.columns] == ["wall s", "× peers"]
    assert job.columns[1].name in medians[US]


def test_too_much_is_said_and_nothing_without_a_figure_or_a_peer() -> None:
    too_slow = {"us": [1.5], "fast": [2.0], "slow": [9.0]}
    job = a_job(SHARE)
    assert job.remark(medians_of(job, **too_slow)).endswith(
        "0.75 of the wall of quick peer (0.60 is wanted: too much)."
    )
    free = a_job(replace(SHARE, at_most=None))
    assert free.remark(medians_of(free, **too_slow)) == "aioprefetch takes 0.75 of the wall of quick peer."
    assert job.remark(medians_of(job, us=[1.0])) == ""
    assert job.remark(medians_of(job, fast=[1.0])) == ""


def test_a_remark_of_the_job_itself_follows() -> None:
    job = a_job(SHARE, remark=lambda medians: "More.")
    assert job.remark(medians_of(job, us=[1], fast=[2])).endswith(" is wanted). More.")
    assert job.remark({}) == "More."


@pytest.mark.parametrize(
    ("name", "polars", "pyarrow"),
    [
        ("parquet-demo", "0.60", "0.35"),
        ("parquet-columns", "1.00", "0.20"),
        ("parquet-whole", "1.00", None),
        *((f"parquet-{name}-loopback", "1.20", "1.20") for name in ("demo", "columns", "whole")),
    ],
)
def test_what_is_wanted_of_parquet_is_said(name: str, polars: str, pyarrow: str | None) -> None:
    job = JOBS[name]
    assert tuple(job.contestants)[:3] == (READ_TABLE, SCAN, TO_READER)
    result = Result(job=job, quick=False, samples={one: [{"wall_seconds": 1.0}] for one in job.contestants})
    result.compare()
    said = job.remark(result.medians())
    assert f"of polars scan_parquet ({polars} is wanted" in said
    if pyarrow is None:
        assert "of pyarrow S3FileSystem." in said
    else:
        assert f"({pyarrow} is wanted" in said.partition("of pyarrow")[2]


def a_get(asked: str, sent_bytes: int, method: str = "GET") -> Request:
    return Request(method=method, uri="/bench/object", status=206, start=0, end=1, range=asked, sent_bytes=sent_bytes)


@pytest.mark.parametrize(("asked", "start"), [("bytes=7-9", 7), ("bytes=0-", 0), ("bytes=-100", 900), ("", 0)])
def test_where_a_request_starts(asked: str, start: int) -> None:
    assert parquet_groups.start_of(a_get(asked, 1), 1000) == start


def test_an_end_longer_than_the_object_is_all_of_it() -> None:
    assert parquet_groups.start_of(a_get("bytes=-4000", 1000), 1000) == 0


def test_bytes_before_the_footer_are_compared_with_those_of_the_columns() -> None:
    sample = {"projected_bytes": 200, "footer_start": 900, "size_bytes": 1000}
    requests = [
        a_get("bytes=-300", 300),  # 200 of them in front of the footer
        a_get("bytes=100-199", 100),
        a_get("bytes=100-199", 40),  # broken off
        a_get("bytes=950-999", 50),
        a_get("", 0, method="HEAD"),
    ]
    found = parquet_groups.over_projected(sample, requests, AT_A_DISTANCE)
    assert found == {"column_bytes": 340, "over_projected": 1.7}


def test_the_projection_is_that_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / CHECK_OBJECT
    write_many_groups(path, 1_200_000)
    monkeypatch.setattr(parquet_groups, "pyarrow_filesystem", lambda target: LocalFileSystem())
    target = Target(bucket=str(tmp_path), size_bytes=path.stat().st_size)
    found = parquet_groups.projection(target, NAMES[:3])
    assert 12_500 * 3 * 8 < found["projected_bytes"] < 1.05 * 12_500 * 3 * 8
    data = path.read_bytes()
    assert found["footer_start"] == len(data) - 8 - int.from_bytes(data[-8:-4], "little")


def test_requests_and_bytes_are_said_beside_those_of_polars() -> None:
    medians: dict[str, Numbers] = {
        READ_TABLE: {"gets": 51, "over_projected": 1.013},
        "polars scan_parquet": {"gets": 51, "over_projected": 1.0},
    }
    assert "sends 51 requests, polars 51 (no more" in parquet_groups.requests_and_bytes(medians)
    assert "1.013 times" in parquet_groups.bytes_alone(medians)
    assert parquet_groups.requests_and_bytes({}) == parquet_groups.bytes_alone({}) == ""


def test_row_groups_are_fifty_or_those_of_pyarrow(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    path = tmp_path / "groups.parquet"
    write_many_groups(path, 15_000_000)
    assert pq.ParquetFile(path).num_row_groups == 50
    check_large(pq.read_table(path), path.stat().st_size, NAMES)
    write_default_groups(path, 1_200_000)
    assert pq.ParquetFile(path).num_row_groups == 1


def test_there_is_a_lance_job_for_each_question_version_and_store() -> None:
    assert len(LANCE_JOBS) == len(QUESTIONS) * len(VERSIONS) * 2
    for job in LANCE_JOBS:
        assert job.conditions == (LOOPBACK if job.name.endswith("loopback") else AT_A_DISTANCE)
        assert {PYLANCE, PYLANCE_DEFAULT} < set(job.contestants)
    wanted = {name for name in ("scan", "range", "take", "columns") if "0.80" in said_of(f"lance-{name}-2.0")}
    assert wanted == {"scan", "range"}
    assert "1.20" in said_of("lance-take-2.0-loopback")
    assert "wanted" not in said_of("lance-scan-2.2")


def said_of(name: str) -> str:
    job = JOBS[name]
    result = Result(job=job, quick=False, samples={one: [{"wall_seconds": 1.0}] for one in job.contestants})
    result.compare()
    return job.remark(result.medians())


@pytest.mark.parametrize("version", VERSIONS)
def test_a_lance_file_has_the_rows_that_its_size_says(version: str, tmp_path: Path) -> None:
    path = tmp_path / "file.lance"
    rows = 2 * WRITE_ROWS
    lance_writer(version)(path, int(rows * ROW_BYTES[VERSIONS[0]]))
    assert rows_of(path.stat().st_size, version) == rows


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.name)
def test_pylance_answers_each_question_as_expected(
    question: Any, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lance.file import LanceFileReader

    path = tmp_path / "object"
    rows = 2 * WRITE_ROWS
    lance_writer(version)(path, int(rows * ROW_BYTES[VERSIONS[0]]))
    monkeypatch.setattr(
        "tests.benchmarks.lance_clients.pylance_reader",
        lambda target, key, columns=None: LanceFileReader(str(path), columns=columns),
    )
    found = pylance_results(Target(), question.what(rows), 1000).to_table()
    check_lance(found, question.response(lance_table(rows)))


def test_questions_ask_for_a_thousand_rows() -> None:
    asked = {question.name: dict(question.what(50_000)) for question in QUESTIONS}
    assert asked["range"]["rows"] == (25_000, 25_000 + RANGE_ROWS)
    take = asked["take"]["take"]
    assert len(set(take)) == len(take) == TAKE_ROWS
    assert take == sorted(take)
    assert asked["scan"] == {}
    assert asked["columns"] == {"columns": ["value"]}


def test_another_lance_table_is_found() -> None:
    expected = lance_table(100)
    check_lance(expected, lance_table(100))
    with pytest.raises(AssertionError, match="99 rows of 100"):
        check_lance(expected.slice(1), expected)
    with pytest.raises(AssertionError, match="columns"):
        check_lance(expected.drop(["text"]), expected)
    shuffled = expected.set_column(3, "vector", expected["vector"].take(pa.array([1, 0, *range(2, 100)])))
    with pytest.raises(AssertionError, match="vector has other values"):
        check_lance(shuffled, expected)


def test_a_slow_consumer_stops_after_its_batches_and_compares_what_it_saw() -> None:
    batch = pa.RecordBatch.from_pydict({"id": list(range(LANCE.batch_rows))})
    half = pa.RecordBatch.from_pydict({"id": list(range(LANCE.batch_rows // 2))})
    for size_bytes, wanted in ((scan_memory.SIZE_BYTES, BATCHES), (scan_memory.QUICK_SIZE_BYTES, QUICK_BATCHES)):
        consumer = SlowConsumer(LANCE, Target(size_bytes=size_bytes))
        while consumer.take(batch):
            pass
        assert consumer.batches == wanted
        with pytest.raises(AssertionError, match="other values"):
            consumer.check()
    consumer = SlowConsumer(LANCE, Target(size_bytes=scan_memory.SIZE_BYTES))
    assert consumer.take(half)
    consumer.check()
    assert consumer.seconds(half.num_rows) == pytest.approx(scan_memory.BATCH_SECONDS / 2)
    with pytest.raises(AssertionError, match="no batches"):
        SlowConsumer(LANCE, Target()).check()


def test_a_slow_consumer_knows_the_doubles_of_the_parquet_file() -> None:
    consumer = SlowConsumer(PARQUET, Target(size_bytes=1))
    consumer.take(pa.RecordBatch.from_pydict({NAMES[0]: column_values(0, 1000)}))
    consumer.check()
    consumer.take(pa.RecordBatch.from_pydict({NAMES[0]: column_values(0, 1000)}))
    with pytest.raises(AssertionError, match="other values"):
        consumer.check()


def test_growth_is_compared_with_the_budget_and_the_batches_ahead() -> None:
    bound = scan_memory.bounds_of(PARQUET, 64 * MIB)["bound_bytes"]
    assert bound == 64 * MIB + READAHEAD_BATCHES * 6 * MIB
    said = within_bound({OURS: {"memory_growth_bytes": bound, "bound_bytes": bound}})
    assert said.startswith(f"{OURS} grew by {bound // MIB} MiB; at most {bound // MIB} are wanted")
    assert within_bound({OURS: {"memory_growth_bytes": bound + 1, "bound_bytes": bound}}).endswith("too much.")
    assert within_bound({}) == ""


def test_every_column_is_touched_and_the_sum_is_compared(tmp_path: Path) -> None:
    rows = 30_000
    table = narrow_table(rows)
    total = sum(touched(batch) for batch in table.to_batches(max_chunksize=1000))
    check_sum("lance", rows, total)
    with pytest.raises(AssertionError, match="the sum is"):
        check_sum("lance", rows, total * 0.98)
    with pytest.raises(AssertionError, match="no rows"):
        check_sum("lance", 0, 0)
    doubles = pa.RecordBatch.from_pydict({name: column_values(index, 5000) for index, name in enumerate(NAMES)})
    check_sum("parquet", 5000, touched(doubles))
    texts = pa.RecordBatch.from_pydict({"text": ["ab", "cde"]})
    assert touched(texts) == 5
    narrow_writer("2.0")(tmp_path / "narrow.lance", 100_000)
    assert (tmp_path / "narrow.lance").stat().st_size > 90_000


def test_batches_are_tried_from_a_thousand_rows_to_a_million() -> None:
    for job in BATCH_ROWS_JOBS:
        assert len(job.contestants) == 6
        assert "1,024 rows" in next(iter(job.contestants))
        names = list(job.contestants)
        medians = {name: {"wall_seconds": 6.0 - at, "cpu_seconds": 1.0 + at} for at, name in enumerate(names)}
        assert job.remark(medians) == f"The least wall time: {names[-1]}; the least CPU: {names[0]}."

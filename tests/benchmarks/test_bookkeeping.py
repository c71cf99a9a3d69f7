"""The arithmetic behind the benchmarks' numbers, without a server."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.benchmarks import job as job_module
from tests.benchmarks.access_log import AccessLog, Request, Traffic, most_at_once
from tests.benchmarks.clients import check_transport, over_our_transport
from tests.benchmarks.content import MIB, PAGE_BYTES, check, expected, write_object
from tests.benchmarks.hit_latency import OBJECT_BYTES, READ_BYTES, measure
from tests.benchmarks.job import (
    CPU,
    WALL,
    ContestantFailed,
    Job,
    Result,
    Target,
    environment_of,
    run_job,
    sample,
)
from tests.benchmarks.ranges import batches
from tests.benchmarks.records import record_of
from tests.benchmarks.report import cells
from tests.benchmarks.simulator import Conditions
from tests.benchmarks.streaming import OURS, SEQUENTIAL, after_the_ramp


def a_get(start: float, end: float, sent_bytes: int = 8 * MIB) -> Request:
    return Request(
        method="GET", uri="/bench/object", status=206, start=start, end=end, range="bytes=0-", sent_bytes=sent_bytes
    )


def test_requests_one_after_another_are_one_at_a_time() -> None:
    assert most_at_once([a_get(0, 1), a_get(1, 2), a_get(2, 3)]) == (1, 0)


def test_the_first_moment_with_the_most_requests_in_flight() -> None:
    assert most_at_once([a_get(0, 4), a_get(1, 2), a_get(3, 5), a_get(3.5, 6)]) == (3, 3.5)


def test_no_requests() -> None:
    assert Traffic.of([]) == Traffic(
        gets=0, others=0, sent_bytes=0, in_flight=0, full_at=0.0, request_bytes=0.0, connections=0
    )


def test_the_log_gives_each_request_once(tmp_path: Path) -> None:
    line = {
        "method": "GET",
        "uri": "/b/k",
        "status": 206,
        "end": 100.5,
        "seconds": 0.25,
        "range": "",
        "sent_bytes": 7,
        "connection": 3,
    }
    path = tmp_path / "log"
    path.write_text(json.dumps(line) + "\n")
    log = AccessLog(path)
    (first,) = log.take()
    assert (first.start, first.end, first.sent_bytes) == (100.25, 100.5, 7)
    with path.open("a") as file:
        file.write(json.dumps({**line, "method": "HEAD"}) + "\n")
    assert [one.method for one in log.take()] == ["HEAD"]
    assert log.take() == []


def test_content_follows_from_the_offset(tmp_path: Path) -> None:
    size_bytes = 2 * MIB + 12345
    write_object(tmp_path / "object", size_bytes)
    whole = (tmp_path / "object").read_bytes()
    assert whole == expected(0, size_bytes)
    for start, end in [(0, 0), (5, 5), (PAGE_BYTES - 1, PAGE_BYTES + 1), (MIB - 7, MIB + 9000), (2 * MIB, 2 * MIB + 1)]:
        assert expected(start, end) == whole[start:end]


@pytest.mark.parametrize("wrong", [0, 40_000, 99_999])
def test_a_wrong_byte_is_found(wrong: int) -> None:
    data = bytearray(expected(MIB - 3, MIB - 3 + 100_000))
    assert check(data, MIB - 3, every_byte=True) == 100_000
    data[wrong] ^= 1
    with pytest.raises(AssertionError, match="wrong bytes"):
        check(data, MIB - 3, every_byte=True)


def test_a_page_from_elsewhere_is_found_without_comparing_every_byte() -> None:
    with pytest.raises(AssertionError, match="wrong bytes"):
        check(expected(MIB, 2 * MIB), 2 * MIB, every_byte=False)


def test_batches_cover_every_block_once_and_do_not_touch() -> None:
    found = batches(128 * MIB)
    assert sorted(one for batch in found for one in batch) == [(n * 8 * MIB, (n + 1) * 8 * MIB) for n in range(16)]
    assert all(left[1] < right[0] for batch in found for left, right in pairwise(batch))


def test_a_stream_that_fills_its_window_reaches_the_bound() -> None:
    """Two requests of 10 bytes at once, each of 1 s delay and 1 s transfer, are 10 bytes a second."""
    conditions = Conditions(first_byte_seconds=1.0, bandwidth=10)
    requests = [a_get(0, 2, 10), *(a_get(start, start + 2, 10) for start in (2, 2.5, 4, 4.5, 6, 6.5))]
    timeline = [(2.0, 10), (4.0, 20), (4.5, 30), (6.0, 40), (6.5, 50), (8.0, 60), (8.5, 70)]
    numbers = after_the_ramp({"timeline": timeline, "bytes_per_second": 5.0}, requests, conditions)
    assert (numbers["ramp_seconds"], numbers["ramp_bytes"], numbers["window_bytes"]) == (2.5, 10, 10)
    assert numbers["bound"] == 10
    assert numbers["of_bound"] == pytest.approx(60 / 6 / 10)
    assert numbers["whole_of_bound"] == 0.5


def test_every_second_round_goes_the_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    gone: list[str] = []

    def one_sample(job: str, name: str, target: object, **options: object) -> dict[str, float]:
        gone.append(name)
        return {"wall_seconds": len(gone)}

    async def nothing(target: object) -> dict[str, float]:
        return {}

    monkeypatch.setattr(job_module, "sample", one_sample)
    job = Job(name="j", title="t", contestants=dict.fromkeys("abc", nothing), columns=(WALL,))
    result = run_job(job, rounds=3, quick=False, pacing="kernel")
    assert "".join(gone) == "abccbaabc"
    assert list(result.samples) == ["a", "b", "c"]
    assert [one["wall_seconds"] for one in result.samples["a"]] == [1, 6, 7]


def test_a_contestant_without_an_end_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_module, "SAMPLE_SECONDS_MAX", 0.01)
    with pytest.raises(ContestantFailed, match=r"^no end within 0.01 s$"):
        sample("checksums", "hashlib.sha256", Target())


def test_settings_of_the_user_reach_no_contestant() -> None:
    unwanted = ("AWS_PROFILE", "AIOPREFETCH_CONCURRENCY", "http_proxy", "HTTPS_PROXY", "All_Proxy", "no_proxy")
    assert environment_of({"PATH": "/bin", **dict.fromkeys(unwanted, "x")}) == {
        "PATH": "/bin",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    }


def test_reads_that_take_another_way_than_our_transport_fail_the_sample() -> None:
    check_transport({"transport_requests": 1})
    with pytest.raises(AssertionError, match=r"^nothing went over our own transport"):
        check_transport({"transport_requests": 0})


async def test_a_stream_that_is_left_at_its_last_byte_is_checked_too() -> None:
    """Over a store in memory nothing goes over the transport."""
    import aioprefetch as ap

    async def chunks() -> AsyncGenerator[bytes]:
        async with over_our_transport(ap.Operator.from_uri("memory://bench")):
            yield b"all there is"

    with pytest.raises(AssertionError, match=r"^nothing went over"):
        async with aclosing(chunks()) as stream:
            await anext(stream)


async def test_hits_are_compared() -> None:
    data = bytes(range(256)) * (OBJECT_BYTES // 256)

    async def shifted(position: int) -> bytes:
        return data[position + 1 :][:READ_BYTES]

    with pytest.raises(AssertionError, match=r"^other bytes at 0"):
        await measure(shifted, data)


def test_the_fastest_peer_is_beaten_by_the_median_of_the_ratios() -> None:
    job = replace(SEQUENTIAL, contestants={name: SEQUENTIAL.contestants[name] for name in (OURS, "opendal")})
    result = Result(job=job, quick=False)
    result.samples[OURS] = [{"bytes_per_second": rate} for rate in (10.0, 90.0, 100.0)]
    result.samples["opendal"] = [{"bytes_per_second": rate} for rate in (1.0, 50.0, 50.0)]
    result.compare()
    assert job.remark(result.medians()).startswith("aioprefetch reader has 2.0 times the throughput of opendal")


def test_ratios_are_taken_round_by_round() -> None:
    """A round in which the machine is slow is slow for both."""

    async def nothing(target: object) -> dict[str, float]:
        return {}

    job = Job(name="j", title="t", contestants={"us": nothing, "them": nothing}, columns=(WALL, CPU))
    result = Result(job=job, quick=False)
    result.samples["us"] = [{"wall_seconds": wall, "cpu_seconds": 0.0} for wall in (1.0, 10.0, 2.0)]
    result.samples["them"] = [{"wall_seconds": wall, "cpu_seconds": 1.0} for wall in (3.0, 30.0, 6.0)]
    assert cells(record_of(result, group="g", measured={})) == [
        ["contestant", "wall s", "ratio", "CPU s", "ratio"],
        ["us", "2.00", "1.00", "0.00", "–"],
        ["them", "6.00", "3.00", "1.00", "–"],
    ]

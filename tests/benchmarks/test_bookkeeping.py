"""The arithmetic behind the benchmarks' numbers, without a server."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from tests.benchmarks.access_log import AccessLog, Request, Traffic, most_at_once
from tests.benchmarks.content import MIB, PAGE_BYTES, check, expected, write_object
from tests.benchmarks.job import CPU, WALL, Job, Result
from tests.benchmarks.ranges import batches
from tests.benchmarks.report import cells
from tests.benchmarks.simulator import Conditions
from tests.benchmarks.streaming import after_the_ramp


def a_get(start: float, end: float, sent_bytes: int = 8 * MIB) -> Request:
    return Request(
        method="GET", uri="/bench/object", status=206, start=start, end=end, range="bytes=0-", sent_bytes=sent_bytes
    )


def test_requests_one_after_another_are_one_at_a_time() -> None:
    assert most_at_once([a_get(0, 1), a_get(1, 2), a_get(2, 3)]) == (1, 0)


def test_the_first_moment_with_the_most_requests_in_flight() -> None:
    assert most_at_once([a_get(0, 4), a_get(1, 2), a_get(3, 5), a_get(3.5, 6)]) == (3, 3.5)


def test_no_requests() -> None:
    assert Traffic.of([]) == Traffic(gets=0, others=0, sent_bytes=0, in_flight=0, full_at=0.0, request_bytes=0.0)


def test_the_log_gives_each_request_once(tmp_path: Path) -> None:
    line = {"method": "GET", "uri": "/b/k", "status": 206, "end": 100.5, "seconds": 0.25, "range": "", "sent_bytes": 7}
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


def test_ratios_are_taken_round_by_round() -> None:
    """A round in which the machine is slow is slow for both."""

    async def nothing(target: object) -> dict[str, float]:
        return {}

    job = Job(name="j", title="t", contestants={"us": nothing, "them": nothing}, columns=(WALL, CPU))
    result = Result(job=job, quick=False)
    result.samples["us"] = [{"wall_seconds": wall, "cpu_seconds": 0.0} for wall in (1.0, 10.0, 2.0)]
    result.samples["them"] = [{"wall_seconds": wall, "cpu_seconds": 1.0} for wall in (3.0, 30.0, 6.0)]
    assert cells(result) == [
        ["contestant", "wall s", "ratio", "CPU s", "ratio"],
        ["us", "2.00", "1.00", "0.00", "–"],
        ["them", "6.00", "3.00", "1.00", "–"],
    ]

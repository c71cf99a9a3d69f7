"""The range jobs: what is asked for and looked at, what is made of the numbers; the floor and the cuts for real."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.benchmarks.access_log import AccessLog, Request
from tests.benchmarks.content import MIB, PAGE_BYTES, check, expected
from tests.benchmarks.floor import FloorClient
from tests.benchmarks.job import Comparison, Job, Result, Target
from tests.benchmarks.jobs import JOBS
from tests.benchmarks.misses import STRIDE_BYTES, write_pages
from tests.benchmarks.nginx_install import ready_nginx
from tests.benchmarks.range_jobs import CPU_TO_OBSTORE, LARGE, MEDIUM, RATE_TO_OBSTORE, SHAPES, SMALL, VIEW
from tests.benchmarks.range_passes import Shape, look_at, numbers_of, per_range, read_all, read_all_blocking
from tests.benchmarks.reset_jobs import CLEAN, CUT, OF_CLEAN, every_page, left_over
from tests.benchmarks.simulator import LOOPBACK, LOOPBACK_TLS, Conditions, Simulator
from tests.benchmarks.stack_jobs import BEYOND_TRANSPORT, OVER_FLOOR, TRANSPORT, what_it_adds


def a_get(range_header: str, sent_bytes: int, status: int = 206) -> Request:
    return Request(
        method="GET", uri="/bench/object", status=status, start=0, end=1, range=range_header, sent_bytes=sent_bytes
    )


def test_shapes_are_called_what_they_are() -> None:
    assert [(str(shape), shape.slug) for shape in (LARGE, MEDIUM, SMALL)] == [
        ("8 MiB × 8", "8mib-x8"),
        ("64 KiB × 16", "64kib-x16"),
        ("4 KiB × 16", "4kib-x16"),
    ]


def test_every_shape_has_a_job_without_and_with_tls() -> None:
    assert {f"{kind}-{shape.slug}" for kind in ("ranges", "tls") for shape in SHAPES} <= JOBS.keys()


def test_who_goes_in_a_quick_run_is_among_the_contestants() -> None:
    for job in JOBS.values():
        assert set(job.quick_contestants or ()) <= job.contestants.keys(), job.name


def test_places_are_every_range_once_and_then_again() -> None:
    shape = Shape(range_bytes=PAGE_BYTES, in_flight=2, requests=0)
    places = shape.places(10 * PAGE_BYTES + 1, 25)
    assert sorted(places[:10]) == sorted(places[10:20]) == [number * PAGE_BYTES for number in range(10)]
    assert places[20:] == places[:5]
    assert places[:10] != sorted(places[:10])


def test_places_are_a_stride_apart() -> None:
    shape = Shape(range_bytes=4, in_flight=1, requests=4, stride_bytes=16)
    assert sorted(shape.places(64, 4)) == [0, 16, 32, 48]
    assert sorted(shape.places(64, 8)) == [0, 0, 16, 16, 32, 32, 48, 48]


def test_a_file_with_holes_has_the_pages_that_are_read(tmp_path: Path) -> None:
    path = tmp_path / "object"
    write_pages(path, 4 * STRIDE_BYTES)
    assert path.stat().st_size == 4 * STRIDE_BYTES
    with path.open("rb") as file:
        for start in range(0, 4 * STRIDE_BYTES, STRIDE_BYTES):
            file.seek(start)
            assert check(file.read(4096), start, every_byte=True) == 4096
    assert path.stat().st_blocks * 512 < STRIDE_BYTES


def test_a_slow_or_quick_sample_sends_fewer_but_never_less_than_four_each() -> None:
    assert SMALL.count(is_quick=False, is_slow=False) == 16_000
    assert SMALL.count(is_quick=True, is_slow=False) == 1_600
    assert SMALL.count(is_quick=False, is_slow=True) == 2_000
    assert LARGE.count(is_quick=True, is_slow=True) == 4 * 8


def test_a_range_from_elsewhere_is_seen_while_the_clock_runs() -> None:
    right = expected(MIB, MIB + 3 * PAGE_BYTES)
    look_at(right, MIB)
    every_page(right, MIB)
    for page in (0, 2):
        with pytest.raises(AssertionError):
            look_at(with_another_page(right, page), MIB)
    for page in (0, 1, 2):
        with pytest.raises(AssertionError):
            every_page(with_another_page(right, page), MIB)


def with_another_page(data: bytes, page: int) -> bytes:
    changed = bytearray(data)
    changed[page * PAGE_BYTES : (page + 1) * PAGE_BYTES] = expected(0, PAGE_BYTES)
    return bytes(changed)


async def test_workers_read_each_place_once_with_in_flight_reads_at_a_time() -> None:
    asked: list[int] = []
    now = most = 0

    async def get(key: str, start: int, end: int) -> bytes:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1
        asked.append(start)
        return expected(start, end)

    shape = Shape(range_bytes=PAGE_BYTES, in_flight=3, requests=0)
    places = shape.places(MIB, 20)
    await read_all(get, "object", shape, places, look_at)
    assert sorted(asked) == sorted(places)
    assert most == 3


def test_threads_read_each_place_once() -> None:
    asked: list[int] = []

    def get(key: str, start: int, end: int) -> bytes:
        asked.append(start)
        return expected(start, end)

    shape = Shape(range_bytes=PAGE_BYTES, in_flight=3, requests=0)
    places = shape.places(MIB, 50)
    read_all_blocking(get, "object", shape, places, look_at)
    assert sorted(asked) == sorted(places)


async def test_a_short_answer_fails_the_sample() -> None:
    async def get(key: str, start: int, end: int) -> bytes:
        return expected(start, end - 1)

    shape = Shape(range_bytes=PAGE_BYTES, in_flight=1, requests=0)
    with pytest.raises(ExceptionGroup):
        await read_all(get, "object", shape, [0], look_at)


def test_numbers_for_each_request_and_byte() -> None:
    shape = Shape(range_bytes=1 << 20, in_flight=1, requests=0)
    found = numbers_of({"wall_seconds": 2.0, "cpu_seconds": 0.5}, shape, 512)
    assert found["requests_per_second"] == 256
    assert found["bytes_per_second"] == 256 << 20
    assert found["cpu_per_request"] == pytest.approx(0.5 / 512)
    assert found["cpu_per_gib"] == pytest.approx(1.0)


def test_traffic_for_each_range_and_the_cut_bodies() -> None:
    requests = [a_get("bytes=0-99", 100), a_get("bytes=100-199", 40), a_get("bytes=100-199", 100)]
    assert [one.is_cut for one in requests] == [False, True, False]
    assert not a_get("bytes=0-99", 40, status=412).is_cut
    assert not a_get("", 40, status=200).is_cut
    numbers = per_range({"ranges": 2, "received_bytes": 200}, requests, LOOPBACK)
    assert numbers == {"requests_per_range": 1.5, "sent_per_byte": 1.2, "cut": 1}


async def nothing(target: Target) -> dict[str, float]:
    return {}


def test_comparisons_are_made_round_by_round() -> None:
    ratio = Comparison(number="cpu", base="us")
    difference = Comparison(number="cpu", base="us", is_difference=True)
    job = Job(
        name="j",
        title="t",
        contestants={"us": nothing, "them": nothing},
        columns=(ratio.column("× ours"), difference.column("beyond ours")),
        comparisons=(ratio, difference, Comparison(number="cpu", base="absent")),
    )
    result = Result(job=job, quick=False)
    result.samples["us"] = [{"cpu": cpu} for cpu in (1.0, 10.0, 0.0)]
    result.samples["them"] = [{"cpu": cpu} for cpu in (3.0, 30.0, 5.0)]
    result.compare()
    assert [one.get(ratio.name) for one in result.samples["them"]] == [3.0, 3.0, None]
    assert [one[difference.name] for one in result.samples["them"]] == [2.0, 20.0, 5.0]
    assert result.median("them", ratio.name) == 3.0
    assert BEYOND_TRANSPORT.name == "cpu_per_request beyond transport by hand"


def test_what_is_left_of_the_clean_throughput() -> None:
    medians = {CLEAN: {OF_CLEAN.name: 1.0}, CUT[5]: {OF_CLEAN.name: 0.81}}
    assert left_over(medians) == "With 5 % cut 0.81 of the clean throughput is left; 0.80 is wanted"


def test_what_the_parts_add() -> None:
    medians = {TRANSPORT: {OVER_FLOOR.name: 1.5, BEYOND_TRANSPORT.name: 0.0}, VIEW: {BEYOND_TRANSPORT.name: 14e-6}}
    assert what_it_adds(medians) == (
        "The transport takes 1.50 times the CPU of the bare protocol; aioprefetch view adds 14.0 µs to the transport. "
        "At most 2 times and 15 µs are wanted."
    )
    assert what_it_adds({}) == ""


def test_what_is_wanted_beside_obstore_stands_under_two_shapes() -> None:
    medians = {VIEW: {RATE_TO_OBSTORE.name: 2.5, CPU_TO_OBSTORE.name: 0.31}}
    said = {name: JOBS[name].remark(medians) for name in JOBS if name.startswith(("ranges-", "tls-"))}
    assert {name for name, text in said.items() if text} == {"ranges-4kib-x16", "ranges-8mib-x8"}
    assert said["ranges-4kib-x16"] == (
        "aioprefetch view has 2.50 times the throughput of obstore (at least 2 is wanted) "
        "and 0.31 times its CPU (at most 0.4)."
    )
    assert "(at least 1.15 is wanted) and 0.31 times its CPU (at most 0.6)" in said["ranges-8mib-x8"]
    assert JOBS["ranges-4kib-x16"].remark({}) == ""


def test_a_line_that_is_not_whole_yet_is_read_later(tmp_path: Path) -> None:
    line = (
        '{"method": "GET", "uri": "/b", "status": 200, "end": 1.0, "seconds": 0.5, "range": "", "sent_bytes": 7, '
        '"connection": 3}' + "\n"
    )
    path = tmp_path / "log"
    path.write_text(line + line[:30])
    log = AccessLog(path)
    assert len(log.take()) == 1
    with path.open("a") as file:
        file.write(line[30:])
    assert len(log.take()) == 1


def started(simulator: Simulator) -> Iterator[Simulator]:
    if ready_nginx() is None:
        pytest.skip("nginx with its Lua module is not installed; .ci/run installs it")
    with simulator:
        simulator.put("object", 2 * MIB)
        simulator.link("cut-25/object", "object")
        yield simulator


@pytest.fixture(scope="module")
def plain() -> Iterator[Simulator]:
    yield from started(Simulator(LOOPBACK))


@pytest.fixture(scope="module")
def encrypted() -> Iterator[Simulator]:
    yield from started(Simulator(LOOPBACK_TLS))


def target_of(simulator: Simulator) -> Target:
    return Target(endpoint_url=simulator.endpoint_url, ca_bundle=simulator.authority, size_bytes=2 * MIB)


async def floor_reads(simulator: Simulator, sizes: list[int]) -> None:
    client = await FloorClient.connect(target_of(simulator), 2, 2 * MIB)
    try:
        for size in sizes:
            assert bytes(await client.get("object", 5, 5 + size)) == expected(5, 5 + size)
    finally:
        client.close()
        await asyncio.sleep(0)


async def test_the_floor_reads_the_right_bytes_and_the_log_has_every_request(plain: Simulator) -> None:
    plain.take_requests()
    sizes = [1, PAGE_BYTES, 7900, 64 << 10, MIB]
    await floor_reads(plain, sizes)
    assert [one.sent_bytes for one in plain.take_requests()] == sizes


async def test_the_floor_over_tls(encrypted: Simulator) -> None:
    await floor_reads(encrypted, [1, PAGE_BYTES, 7900, 64 << 10, MIB])


async def test_no_other_client_trusts_the_certificate(encrypted: Simulator) -> None:
    host, _, port = encrypted.endpoint_url.removeprefix("https://").partition(":")
    with pytest.raises(ssl.SSLCertVerificationError):
        await asyncio.open_connection(host, int(port), ssl=True)


def response_of(simulator: Simulator) -> tuple[bytes, bytes]:
    """Head and body of a response to a plain request, as far as they come."""
    host, _, port = simulator.endpoint_url.removeprefix("http://").partition(":")
    received = b""
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(
            b"GET /bench/cut-25/object HTTP/1.1\r\nHost: x\r\nRange: bytes=100-65635\r\nConnection: close\r\n\r\n"
        )
        try:
            while data := connection.recv(1 << 20):
                received += data
        except ConnectionResetError:
            pass
    head, _, body = received.partition(b"\r\n\r\n")
    return head, body


def test_the_key_gives_the_share_of_bodies_that_are_cut(plain: Simulator) -> None:
    plain.take_requests()
    responses = [response_of(plain) for _ in range(12)]
    assert [len(body) < 65536 for _, body in responses] == [False, False, False, True] * 3
    etags = set()
    for head, body in responses:
        assert body == expected(100, 100 + len(body))
        # A reset may also take the head; what comes of one must be right.
        if head:
            fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:])
            assert head.startswith(b"HTTP/1.1 206 ")
            assert fields[b"Content-Range"] == f"bytes 100-65635/{2 * MIB}".encode()
            assert fields[b"Content-Length"] == b"65536"
            etags.add(fields[b"ETag"])
    assert len(etags) == 1
    assert sum(one.is_cut for one in plain.take_requests()) == 3


def test_the_key_gives_the_share_of_responses_that_are_late() -> None:
    """And how late: ten times the delay, which is that of all others."""
    with Simulator(Conditions(first_byte_seconds=0.03, bandwidth=None)) as simulator:
        simulator.put("late-25/object", MIB)
        simulator.take_requests()
        seconds = []
        for _ in range(8):
            begun = time.perf_counter()
            urllib.request.urlopen(f"{simulator.endpoint_url}/bench/late-25/object").close()
            seconds.append(time.perf_counter() - begun)
    assert [one >= 0.3 for one in seconds[3::4]] == [True, True]
    assert min(seconds) < 0.3

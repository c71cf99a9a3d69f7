"""Small exact requests bring the bytes behind them, as long as that costs nothing and is of use."""

import asyncio
import io
import random
import zipfile

import pytest

from aioprefetch.blocks.store import FREE_BYTES_MAX, FREE_BYTES_MIN, LineRate
from aioprefetch.operator.operator import Operator
from aioprefetch.reader.look_ahead import SmallReads
from aioprefetch.reader.policy import POLICIES, PolicyName
from aioprefetch.sync import BlockingOperator
from tests.stores.computed_store import GIB, KIB, MIB, Arithmetic, Distance, blank, covered_bytes, repeated

FAR_AWAY = Distance(first_byte_seconds=0.030, bytes_per_second=90e6)


def noted(first_byte_seconds: float, bytes_per_second: float) -> LineRate:
    line = LineRate()
    for _ in range(3):
        line.note(first_byte_seconds=first_byte_seconds, size_bytes=8 * MIB, body_seconds=8 * MIB / bytes_per_second)
    return line


def test_free_bytes_follow_from_the_first_byte_and_the_bandwidth() -> None:
    assert LineRate().free_bytes(0) == 225_000
    assert noted(0.030, 90e6).free_bytes(0) == FREE_BYTES_MAX
    assert noted(0.005, 200e6).free_bytes(0) == 100_000
    assert noted(0.0001, 200e6).free_bytes(0) == FREE_BYTES_MIN


def test_requests_in_flight_share_the_bandwidth() -> None:
    line = noted(0.1, 1e9)
    assert [line.free_bytes(count) for count in (0, 1, 3, 4, 64)] == [256 * KIB, 128 * KIB, 64 * KIB, 0, 0]


def test_a_slow_sample_moves_the_figures_little() -> None:
    line = noted(0.010, 100e6)
    line.note(first_byte_seconds=1.0, size_bytes=MIB, body_seconds=10.0)
    assert line.first_byte_seconds < 0.15
    assert line.bytes_per_second > 80e6


def sizes(
    small: SmallReads, reads: list[tuple[int, int]], *, is_near: bool = False, used: bool | None = False
) -> list[int]:
    """The bytes of the request for each read."""
    found = []
    for start, end in reads:
        stop = small.end_of(start, end, free_bytes=FREE_BYTES_MAX, is_near=is_near, is_used=lambda _: used)
        found.append((stop or end) - start)
    return found


def test_additional_bytes_that_are_not_used_end_it() -> None:
    scattered = [(number * MIB, number * MIB + 100) for number in range(30)]
    found = sizes(SmallReads(8 * MIB), scattered)
    assert found[:7] == [FREE_BYTES_MIN] * 7
    assert set(found[7:]) == {100}


def test_additional_bytes_that_are_used_become_more() -> None:
    scattered = [(number * MIB, number * MIB + 100) for number in range(30)]
    found = sizes(SmallReads(8 * MIB), scattered, used=True)
    assert found[:4] == [FREE_BYTES_MIN] * 4
    assert set(found[5:]) == {FREE_BYTES_MAX}


def test_near_by_requests_are_exact_until_a_read_continues_the_one_before() -> None:
    small = SmallReads(8 * MIB)
    assert sizes(small, [(0, 30), (MIB, MIB + 30)], is_near=True) == [30, 30]
    assert sizes(small, [(MIB + 30, MIB + 50)], is_near=True) == [FREE_BYTES_MAX]


def test_small_blocks_and_long_reads_stay_exact() -> None:
    assert sizes(SmallReads(256 * KIB), [(0, 30)]) == [30]
    assert sizes(SmallReads(8 * MIB), [(0, 256 * KIB)]) == [256 * KIB]


@pytest.mark.virtual
@pytest.mark.parametrize("policy", sorted(name for name, policy in POLICIES.items() if policy.fill != "block"))
async def test_headers_and_the_data_behind_them_are_one_request(policy: PolicyName) -> None:
    """Twenty records of a header, a name and 60 kB, scattered: exact under random alone."""
    service = Arithmetic(GIB, content=blank, distance=FAR_AWAY)
    starts = random.Random(3).sample(range(0, GIB, MIB), 20)
    async with Operator(service) as operator, operator.reader("k", policy=policy) as reader:
        await reader.read_at(GIB - 100, 100)
        service.log.clear()
        for start in starts:
            for offset, size in ((0, 30), (30, 20), (50, 60_000)):
                await reader.read_at(start + offset, size)
    demanded = [one for one in service.log if one.lane == "demand"]
    if policy == "random":
        assert len(demanded) == 60
        assert service.sent_bytes == 20 * 60_050
    else:
        assert len(demanded) <= 21
    assert repeated(service.reads) == []


@pytest.mark.virtual
async def test_a_widened_request_ends_where_resident_bytes_begin() -> None:
    service = Arithmetic(GIB, content=blank, distance=FAR_AWAY)
    async with Operator(service) as operator, operator.reader("k", policy="columnar") as reader:
        await reader.read_at(0, 1)
        await reader.read_at(100 * MIB + 8 * KIB, 10)
        await reader.read_at(100 * MIB, 10)
    assert covered_bytes(service.reads) == sum(end - start for start, end in service.reads)
    assert (100 * MIB, 100 * MIB + 8 * KIB) in service.reads


@pytest.mark.virtual
async def test_reads_side_by_side_are_exact() -> None:
    """From the fifth on: their bodies share the bandwidth."""
    service = Arithmetic(GIB, content=blank, distance=FAR_AWAY)
    async with Operator(service) as operator, operator.reader("k", policy="columnar") as reader:
        await reader.read_at(0, 1)
        service.log.clear()
        await asyncio.gather(*(reader.read_at(number * 16 * MIB, 4 * KIB) for number in range(1, 17)))
    assert sorted(one.end - one.start for one in service.log)[:12] == [4 * KIB] * 12


def test_a_member_of_a_zip_file_is_one_request() -> None:
    """The directory and twenty members: the tail, two blocks, and a request for each other member."""
    packed = io.BytesIO()
    noise = random.Random(5)
    names = [f"directory/member-{number:04}" for number in range(400)]
    with zipfile.ZipFile(packed, "w") as archive:
        for name in names:
            archive.writestr(name, noise.randbytes(60_000))
    data = packed.getvalue()
    service = Arithmetic(len(data), content=lambda start, end: data[start:end])
    chosen = random.Random(6).sample(names, 20)
    with (
        BlockingOperator(Operator(service, block_bytes=MIB, prefetch_blocks=0)) as operator,
        operator.open("k") as file,
        zipfile.ZipFile(file) as archive,
    ):
        for name in chosen:
            assert len(archive.read(name)) == 60_000
    assert len(service.log) <= 24
    assert repeated(service.reads) == []

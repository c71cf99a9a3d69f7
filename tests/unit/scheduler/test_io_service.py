"""The I/O of a scan over a gated store: what is sent and when, and where the bytes are received."""

import asyncio
import random

import pytest

from aioprefetch.errors import Closed, ObjectChanged, Unavailable, UntrustedMetadata
from aioprefetch.layers.concurrent_limit import ConcurrentLimitLayer
from aioprefetch.ranges import Range
from aioprefetch.scheduler.io_queue import plan_requests
from aioprefetch.scheduler.io_service import ScannedFile
from aioprefetch.scheduler.pages import PageIo, PendingRead
from tests.profile import chosen
from tests.stores.gated_reader import MIB, in_case, settle, with_etag
from tests.stores.scan_service import TAIL, Mapping, scene


def test_it_is_what_the_loops_expect() -> None:
    """Checked by mypy."""

    def submit(io: PageIo) -> PendingRead:
        return io.submit([], 0)

    def scan(io: ScannedFile) -> PendingRead:
        return submit(io)

    assert scan.__name__ == "scan"


# --- what is sent -----------------------------------------------------------------------------------------------------


async def test_nothing_is_sent_before_the_next_turn_and_then_one_request() -> None:
    async with scene() as s:
        one = s.io.submit([(0, 100), (5000, 6000)], 3)
        two = s.io.submit([(100, 4000)], 0)
        three = s.io.submit([(200_000, 200_100)], 1)
        assert (s.sent, s.queued) == ([], 4)
        assert not one.done
        await settle()
        assert s.sent == [(0, 6000), (200_000, 200_100)]
        await s.response()
        assert s.is_right(one, [(0, 100), (5000, 6000)])
        assert s.is_right(two, [(100, 4000)])
        assert s.is_right(three, [(200_000, 200_100)])
        assert all(view.readonly for view in one.views)


async def test_one_slot_sends_in_the_order_of_rows() -> None:
    async with scene(is_open=True, slots=1, gap_bytes=0) as s:
        ranks = [s.io, ScannedFile(s.service, s.pinned, rank=1), ScannedFile(s.service, s.pinned, rank=-1)]
        order = [(0, 500), (0, 100), (1, 0), (2, 900), (0, 100), (0, 0)]
        reads = [ranks[rank].submit([(10_000 * n, 10_000 * n + 10)], row) for n, (rank, row) in enumerate(order)]
        for read in reads:
            await read.wait()
        assert [start // 10_000 for start, _ in s.sent] == [3, 5, 1, 4, 0, 2]


async def test_the_plan_is_what_is_sent() -> None:
    ranges = [(start * 7919 % 900_000, start * 7919 % 900_000 + 3000 + start) for start in range(60)]
    async with scene(is_open=True, gap_bytes=5000, request_bytes_max=20_000) as s:
        reads = [s.io.submit([one], row) for row, one in enumerate(ranges)]
        for read in reads:
            await read.wait()
        plan = plan_requests(ranges, gap_bytes=5000, request_bytes_max=20_000)
        assert s.sent == plan
        assert len(plan) < 60
        statistics = s.bench.operator.statistics
        assert statistics["scan_reads"] == 60
        assert statistics["scan_requests"] == len(plan)
        assert statistics["scan_bytes_wanted"] == sum(end - start for start, end in ranges)
        assert statistics["scan_bytes_requested"] == sum(end - start for start, end in plan)


async def test_requests_carry_version_and_lane() -> None:
    async with scene() as s:
        s.io.submit([(0, 10)], 0)
        s.io.submit([(200_000, 200_010)], 0).promote()
        await settle()
        assert [(c.request.if_match, c.request.lane) for c in s.bench.calls] == [
            (s.pinned.etag, "prefetch"),
            (s.pinned.etag, "demand"),
        ]


async def test_a_wanted_read_is_promoted_where_it_queues_for_a_slot() -> None:
    """Of two slots one is for demand alone."""
    limit = ConcurrentLimitLayer(2)
    async with scene(gap_bytes=0, runtime={"layers": [limit]}) as s:
        reads = [s.io.submit([(100_000 * n, 100_000 * n + 10)], n) for n in range(3)]
        await settle()
        assert s.sent == [(0, 10)]
        reads[2].promote()
        await settle()
        assert s.sent == [(0, 10), (200_000, 200_010)]


async def test_a_range_above_the_maximum_comes_in_one_piece_of_memory() -> None:
    async with scene(gap_bytes=0, request_bytes_max=100_000) as s:
        ranges = [(0, 250_000), (250_000, 260_000), (400_000, 400_001)]
        read = s.io.submit(ranges, 0)
        await s.response()
        assert s.sent == [(0, 83_333), (83_333, 166_666), (166_666, 260_000), (400_000, 400_001)]
        assert s.is_right(read, ranges)
        assert read.views[0] is read.views[0]
        assert s.held == 260_001


async def test_what_lies_in_the_tail_is_there_at_once() -> None:
    async with scene() as s:
        ranges = [(MIB - TAIL, MIB - 10), (MIB - 5, MIB), (7, 7)]
        read = s.io.submit(ranges, 0)
        assert read.done
        assert s.is_right(read, ranges)
        assert read.views[0].obj is s.pinned.tail.obj
        mixed = s.io.submit([(MIB - 5, MIB), (0, 10)], 0)
        await s.response()
        assert s.is_right(mixed, [(MIB - 5, MIB), (0, 10)])
        assert s.sent == [(0, 10)]
        read.release()
        assert s.io.submit([], 0).done


async def many_ranges_in_any_order_arrive_as_they_are(seed: int) -> None:
    chosen = random.Random(seed)
    place = Mapping(MIB) if seed % 2 else None
    async with scene(is_open=True, memory=place, gap_bytes=chosen.choice([0, 500]), request_bytes_max=20_000) as s:
        starts = [chosen.randrange(MIB - 60_000 * (seed in (2, 3))) for _ in range(2000)]
        large = 0.01 if seed < 4 else 0
        ranges = [(start, min(MIB, start + (50_000 if chosen.random() < large else 200))) for start in starts]
        ranges += chosen.choices(ranges, k=100) + [(7, 7)] * (seed % 3)
        if seed < 6:
            ranges.sort()
        read = s.io.submit(ranges, 0)
        views = await read.wait()
        assert s.is_right(read, ranges)
        assert read.views is views
        assert all(view.readonly for view in views)
        read.release()
        await settle()
        assert place is None or place.live == []


async def test_many_ranges_in_any_order_arrive_as_they_are() -> None:
    """Overlapping, repeated, empty, in the tail, above the maximum; with and without memory of the file."""
    for seed in chosen(quick=range(8), full=range(8)):
        with in_case(seed=seed):
            await many_ranges_in_any_order_arrive_as_they_are(seed)


@pytest.mark.parametrize("bad", [(0, MIB + 1), (-1, 5), (5, 4)])
async def test_a_range_that_leaves_the_file_is_refused(bad: Range) -> None:
    async with scene() as s:
        assert s.io.size == MIB
        with pytest.raises(UntrustedMetadata, match="leaves the file"):
            s.io.submit([(0, 10), bad], 0)
        assert s.queued == 0


# --- waiting ----------------------------------------------------------------------------------------------------------


async def test_several_wait_and_one_is_cancelled() -> None:
    async with scene() as s:
        read = s.io.submit([(0, 10)], 0)
        waiting = [asyncio.create_task(read.wait()) for _ in range(3)]
        await settle()
        waiting[1].cancel()
        await s.response()
        assert waiting[1].cancelled()
        assert bytes((await waiting[0])[0]) == bytes((await waiting[2])[0]) == s.bench.data[:10]
        assert s.bench.operator.statistics["scan_waits"] == 1


async def test_bytes_are_not_there_before_they_have_come_nor_after_release() -> None:
    async with scene() as s:
        read = s.io.submit([(0, 10)], 0)
        with pytest.raises(Closed, match="not arrived"):
            _ = read.views
        waiting = asyncio.create_task(read.wait())
        await settle()
        read.release()
        with pytest.raises(Closed, match="given back"):
            await waiting
        assert read.done


# --- memory of a file's own -------------------------------------------------------------------------------------------


async def test_bytes_are_received_into_the_memory_of_the_file() -> None:
    place = Mapping(MIB)
    async with scene(memory=place, gap_bytes=0, request_bytes_max=100_000) as s:
        ranges = [(5, 250_005), (250_005, 260_000), (MIB - 10, MIB)]
        read = s.io.submit(ranges, 0)
        late = s.io.submit([(600_000, 600_010)], 1)
        await s.response(5, 83_338, 166_671)
        assert s.is_right(read, ranges)
        for start, end in ranges:
            assert place.data[start:end] == s.bench.data[start:end]
        assert read.views[1].obj is place.data
        assert sum(end - start for start, end in place.live) == 260_005
        late.release()
        read.release()
        await settle()
        assert place.live == []
        assert place.data[300_000:310_000] == bytes(10_000)


async def test_a_response_of_another_version_gets_no_memory() -> None:
    place = Mapping(MIB)
    async with scene(memory=place, is_open=True) as s:
        s.bench.gate.falsify = with_etag("other")
        with pytest.raises(ObjectChanged):
            await s.io.submit([(0, 1000)], 0).wait()
        assert place.allocated == 0


async def test_a_failure_discards_the_memory_it_had() -> None:
    place = Mapping(MIB)
    async with scene(memory=place) as s:
        s.io.submit([(0, 1000)], 0)
        await settle()
        s.bench.calls[0].deliver(10)
        await settle()
        assert place.live == [(0, 1000)]
        s.bench.calls[0].fail(Unavailable("gone", status="permanent"))
        await settle()
        assert place.live == []

"""What a scan may hold, and whose memory it is: its own budget, and its part in the one of the runtime."""

import asyncio

from aioprefetch.scheduler.io_queue import REQUEST_BYTES_MAX, request_bytes_for
from aioprefetch.scheduler.io_service import IoService, ScannedFile
from tests.stores.gated_reader import KIB, MIB, settle
from tests.stores.scan_service import scene


async def test_bytes_go_back_when_the_last_read_of_a_request_is_released() -> None:
    async with scene() as s:
        one, two = s.io.submit([(0, 1000)], 0), s.io.submit([(2000, 3000)], 9)
        await settle()
        assert (s.held, s.used) == (3000, 3000)
        await s.response()
        view = one.views[0]
        one.release()
        one.release()
        assert (s.held, s.used) == (3000, 3000)
        two.release()
        assert (s.held, s.used) == (0, 0)
        assert bytes(view) == s.bench.data[:1000]


async def test_delivered_bytes_hold_up_what_follows_until_they_are_released() -> None:
    async with scene(budget_bytes=10_000, gap_bytes=0) as s:
        reads = [s.io.submit([(20_000 * n, 20_000 * n + 6000)], n) for n in range(4)]
        await s.response()
        assert len(s.sent) == 1
        reads[0].release()
        await s.response()
        assert len(s.sent) == 2
        assert s.bench.operator.statistics["scan_budget_overdrafts"] == 0


async def test_what_is_wanted_exceeds_the_budget() -> None:
    async with scene(budget_bytes=10_000, gap_bytes=0) as s:
        reads = [s.io.submit([(20_000 * n, 20_000 * n + 6000)], n) for n in range(4)]
        await settle()
        reads[2].promote()
        await settle()
        assert s.sent == [(0, 6000), (40_000, 46_000)]
        assert s.held == 12_000
        assert s.bench.operator.statistics["scan_budget_overdrafts"] == 1


async def test_who_waits_without_wanting_exceeds_nothing() -> None:
    async with scene(budget_bytes=10_000, gap_bytes=0) as s:
        reads = [s.io.submit([(20_000 * n, 20_000 * n + 6000)], n) for n in range(2)]
        arriving = asyncio.ensure_future(reads[1].arrive())
        await s.response()
        assert s.sent == [(0, 6000)]
        assert not arriving.done()
        reads[0].release()
        await s.response()
        await arriving
        assert reads[1].done


async def test_without_a_budget_everything_is_sent() -> None:
    async with scene(budget_bytes=0, gap_bytes=0, runtime={"memory_bytes": 64 * KIB}) as s:
        for number in range(10):
            s.io.submit([(50_000 * number, 50_000 * number + 40_000)], number)
        await settle()
        assert len(s.sent) == 10


async def test_the_defaults_follow_the_runtime() -> None:
    async with scene(runtime={"memory_bytes": 256 * MIB, "concurrency": 100}) as s:
        assert s.service.memory.limit_bytes == 256 * MIB // 3
        assert s.service.request_bytes_max == REQUEST_BYTES_MAX
        small = IoService(s.bench.operator.accessor(), s.bench.runtime, budget_bytes=8 * MIB)
        assert small.request_bytes_max == MIB
        large = IoService(s.bench.operator.accessor(), s.bench.runtime, wanted_bytes=100 * MIB)
        assert large.request_bytes_max == 100 * MIB // 32


def test_little_is_cut_into_many_requests_and_much_into_large_ones() -> None:
    wanted = (0, 3 * MIB, 64 * MIB, 128 * MIB, 256 * MIB, 10_000 * MIB)
    assert [request_bytes_for(size) // MIB for size in wanted] == [2, 2, 2, 4, 8, 8]


async def test_cached_blocks_make_room_for_a_scan() -> None:
    async with scene(4 * MIB, budget_bytes=MIB, is_open=True, runtime={"memory_bytes": 2 * MIB}) as s:
        async with s.bench.reader() as reader:
            for start in range(0, 2 * MIB, 256 * KIB):  # One long read would leave nothing in blocks.
                await reader.read_at(start, 256 * KIB)
            await settle()
            assert s.used > MIB
            read = s.io.submit([(2 * MIB, 3 * MIB)], 0)
            await read.wait()
            assert s.held == MIB
            assert s.used <= 2 * MIB
            assert s.bench.operator.statistics["stream_evict_blocks_from_cache"] > 0
            assert s.bench.operator.statistics["scan_budget_overdrafts"] == 0
            read.release()
        await s.bench.operator.aclose()


async def test_two_scans_share_the_memory_of_the_runtime() -> None:
    """One waits in line for what the other holds, and gets it when that is released."""
    async with scene(runtime={"memory_bytes": 100 * KIB}, budget_bytes=90 * KIB, gap_bytes=0) as s:
        other = IoService(s.bench.operator.accessor(), s.bench.runtime, budget_bytes=90 * KIB, gap_bytes=0)
        io = ScannedFile(other, s.pinned)
        mine = [s.io.submit([(50_000 * n, 50_000 * n + 40 * KIB)], n) for n in range(3)]
        await settle()
        assert s.held == 80 * KIB
        theirs = [io.submit([(500_000 + 50_000 * n, 500_000 + 50_000 * n + 30 * KIB)], n) for n in range(2)]
        await settle()
        assert other.memory.held_bytes == 30 * KIB  # Its first read is needed at once, and exceeds the limit.
        assert s.bench.runtime.budget.waiting == 1
        await s.response()
        mine[0].release()
        await settle()
        assert (s.held, other.memory.held_bytes) == (40 * KIB, 60 * KIB)  # Who came first gets it first.
        assert s.bench.runtime.budget.waiting == 1
        mine[1].release()
        await s.response()
        assert (s.held, other.memory.held_bytes) == (40 * KIB, 60 * KIB)
        assert s.bench.runtime.budget.waiting == 0
        assert all(read.done for read in (mine[2], *theirs))
        other.close()
        await settle()


async def test_who_waits_for_memory_is_not_passed() -> None:
    async with scene(runtime={"memory_bytes": 100 * KIB, "block_bytes": KIB}, budget_bytes=80 * KIB, gap_bytes=0) as s:
        budget = s.bench.runtime.budget
        first = s.io.submit([(0, 40 * KIB)], 0)
        await settle()
        ticket = budget.request(70 * KIB, "prefetch")
        second = s.io.submit([(500_000, 500_000 + 10 * KIB)], 1)
        await s.response()
        assert (s.held, ticket.granted) == (40 * KIB, False)
        first.release()
        await s.response()
        assert (s.held, ticket.granted) == (10 * KIB, True)
        assert second.done
        budget.cancel(ticket)


async def test_what_exceeds_the_budget_evicts_cached_blocks_too() -> None:
    async with scene(4 * MIB, is_open=True, budget_bytes=KIB, runtime={"memory_bytes": 2 * MIB}) as s:
        async with s.bench.reader() as reader:
            await reader.read_at(0, 2 * MIB)
            await settle()
            read = s.io.submit([(2 * MIB, 3 * MIB)], 0)
            await read.wait()
            assert s.used <= 2 * MIB
            read.release()
        await s.bench.operator.aclose()


async def test_a_budget_is_no_larger_than_the_memory_there_is() -> None:
    """A larger one could never be granted, and requests that queue behind it would wait for ever."""
    async with scene(budget_bytes=1 << 40, gap_bytes=0, runtime={"memory_bytes": 100 * KIB}) as s:
        s.io.submit([(0, 90 * KIB)], 0)
        s.io.submit([(200_000, 500_000)], 1)
        await settle()
        assert s.sent == [(0, 90 * KIB)]
        assert s.bench.runtime.budget.waiting == 0

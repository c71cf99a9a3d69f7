"""Demand before prefetch: in the queue for memory, in the queue for slots, and never more memory than there is."""

import asyncio
import math
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from aioprefetch import RangeReader
from aioprefetch.errors import Unavailable
from aioprefetch.layers import ConcurrentLimitLayer, RetryLayer
from aioprefetch.runtime.budget import Ticket
from aioprefetch.testing import run_virtual
from aioprefetch.testing.oracle import assert_same_bytes
from tests.profile import chosen, combinations
from tests.stores.gated_reader import Bench, Call, settle
from tests.unit.reader.ahead import (
    BLOCK,
    SIZE,
    ahead_bench,
    answer_all,
    assert_all_given_back,
    turns,
    watch_grants,
)

# Of the virtual clock: longer than a retry waits.
PAUSE_SECONDS = 2.0


def asked(calls: list[Call]) -> list[int]:
    """The numbers of the blocks that were asked for, in order."""
    return [one.request.offset // BLOCK for one in calls]


def hint(reader: RangeReader, *blocks: int) -> None:
    """Say that these blocks will be read soon: one request each, in the prefetch lane."""
    reader.will_need([(number * BLOCK, (number + 1) * BLOCK) for number in blocks])


def read_block(reader: RangeReader, number: int) -> asyncio.Task[bytes]:
    """Read a little of a block in a task of its own."""
    return asyncio.create_task(reader.read_at(number * BLOCK, 10))


# --- memory ---------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def no_memory_left() -> AsyncIterator[tuple[Bench, RangeReader, list[Ticket]]]:
    """A reader without a window, one byte more in use than there may be, and six blocks of that to give back."""
    async with ahead_bench(memory_bytes=16 * BLOCK, prefetch_blocks=0) as b:
        reader = await b.opened()
        budget = b.runtime.budget
        held = [budget.request(size, "demand") for size in (10 * BLOCK + 1, *[BLOCK] * 6)]
        assert budget.used_bytes == 16 * BLOCK + 1
        yield b, reader, held
        for ticket in held:
            budget.cancel(ticket)
        await reader.aclose()
        await assert_all_given_back(b)


async def test_no_request_is_sent_before_its_memory_is_reserved() -> None:
    async with no_memory_left() as (b, reader, _):
        hint(reader, 10, 11)
        reading = read_block(reader, 20)
        await settle()
        assert b.calls == []
        assert b.runtime.budget.waiting == 3
        reading.cancel()
        await settle()
        assert b.runtime.budget.waiting == 2


async def test_an_awaited_prefetch_is_promoted_in_the_queue_for_memory() -> None:
    """It goes with the demand lane, behind the demand that waits already, before all prefetches."""
    async with no_memory_left() as (b, reader, held):
        hint(reader, 10, 11, 12)
        first = read_block(reader, 20)
        await settle()
        second = read_block(reader, 12)
        await settle()
        third = read_block(reader, 21)
        await settle()
        assert b.calls == []
        # Demand overdraws by one request as soon as what is in use is within the limit; prefetch needs room.
        for expected in ([20], [20, 12], [20, 12, 21], [20, 12, 21], [20, 12, 21, 10], [20, 12, 21, 10, 11]):
            b.runtime.budget.cancel(held.pop())
            await settle()
            assert asked(b.calls) == expected
        for one in b.calls:
            one.finish()
        assert list(await asyncio.gather(first, second, third)) == [
            b.data[number * BLOCK : number * BLOCK + 10] for number in (20, 12, 21)
        ]


# --- slots ----------------------------------------------------------------------------------------------------------


async def test_an_awaited_prefetch_is_promoted_in_the_queue_for_slots() -> None:
    """Both slots are taken, three wait: the prefetch that a reader awaits overtakes the one that none does."""
    async with ahead_bench(prefetch_blocks=0, layers=[ConcurrentLimitLayer(2)]) as b:
        reader = await b.opened()
        hint(reader, 10, 11, 12)
        first = read_block(reader, 20)
        await settle()
        assert asked(b.calls) == [10, 20]
        second = read_block(reader, 12)
        await settle()
        third = read_block(reader, 21)
        await settle()
        for number, expected in enumerate(([10, 20, 12], [10, 20, 12, 21], [10, 20, 12, 21, 11])):
            b.calls[number].finish()
            await settle()
            assert asked(b.calls) == expected
        for one in b.calls:
            one.finish()
        assert list(await asyncio.gather(first, second, third)) == [
            b.data[number * BLOCK : number * BLOCK + 10] for number in (20, 12, 21)
        ]
        await reader.aclose()
        await assert_all_given_back(b)


async def test_an_awaited_prefetch_may_take_the_slot_that_is_kept_for_demand() -> None:
    async with ahead_bench(prefetch_blocks=0, layers=[ConcurrentLimitLayer(2)]) as b:
        reader = await b.opened()
        hint(reader, 10, 11)
        await settle()
        assert asked(b.calls) == [10]
        reading = read_block(reader, 11)
        await turns(3)
        assert asked(b.calls) == [10, 11]
        b.calls[1].finish()
        assert await reading == b.data[11 * BLOCK : 11 * BLOCK + 10]
        await reader.aclose()
        await assert_all_given_back(b)


@pytest.mark.virtual
async def test_a_prefetch_awaited_during_the_pause_of_a_retry_goes_on_as_demand() -> None:
    """Its request says prefetch for ever; the queue for slots looks at who waits for it."""
    layers = [ConcurrentLimitLayer(2), RetryLayer(base_seconds=1.0)]
    async with ahead_bench(prefetch_blocks=0, layers=layers) as b:
        reader = await b.opened()
        hint(reader, 10, 11)
        await settle()
        b.calls[0].fail(Unavailable("try again"))
        await settle()
        assert asked(b.calls) == [10, 11]  # The slot of the one that pauses went to the next.
        reading = read_block(reader, 10)
        await asyncio.sleep(PAUSE_SECONDS)
        assert asked(b.calls) == [10, 11, 10]  # In the slot that is kept for demand.
        b.calls[2].finish()
        assert await reading == b.data[10 * BLOCK : 10 * BLOCK + 10]
        await reader.aclose()
        await assert_all_given_back(b)


async def test_a_read_goes_before_a_window_when_slots_are_scarce() -> None:
    """Of four slots the window takes three at most; a second read gets the first that becomes free."""
    async with ahead_bench(layers=[ConcurrentLimitLayer(4)]) as b:
        b.gate.open = False
        reader = b.reader(prefetch_growth="step")
        opening = asyncio.create_task(reader.read(BLOCK))
        (await b.next_call()).finish()
        await opening
        await settle()
        assert asked(b.calls) == [0, 1, 2, 3]
        first = read_block(reader, 40)
        await turns(2)
        assert asked(b.calls) == [0, 1, 2, 3, 40]
        second = read_block(reader, 50)
        await settle()
        assert len(b.calls) == 5
        b.calls[1].finish()
        await settle()
        assert asked(b.calls)[5:] == [50]
        answer_all(b)
        await asyncio.gather(first, second)
        await reader.aclose()
        await assert_all_given_back(b)


# --- the gauge ------------------------------------------------------------------------------------------------------


@dataclass
class LongReads:
    """The reads of more than ``past_bytes`` that are under way: each has one request whose memory is its result."""

    past_bytes: float
    under_way: int = 0

    @contextmanager
    def perhaps(self, size: int) -> Iterator[None]:
        """A read of ``size`` bytes is under way."""
        is_long = size > self.past_bytes
        self.under_way += is_long
        try:
            yield
        finally:
            self.under_way -= is_long

    def own_bytes(self, under_way: list[Call]) -> int:
        """At most this many of the bytes under way need no reservation: one request of demand for each long read."""
        sizes = sorted((one.request.size or 0 for one in under_way if one.request.lane == "demand"), reverse=True)
        return sum(sizes[: self.under_way])


async def read_somehow(reader: RangeReader, dice: random.Random, data: bytes, long_reads: LongReads) -> None:
    """Runs, jumps and hints."""
    for _ in range(6):
        start, size = dice.randrange(SIZE), dice.choice([10, BLOCK, 5 * BLOCK])
        kind = dice.choice(["run", "run", "jump", "view", "hint", "ranges"])
        if kind == "run":
            reader.seek(start)
            for _ in range(dice.randrange(1, 6)):
                at = reader.tell()
                with long_reads.perhaps(size):
                    assert_same_bytes(await reader.read(size), data[at : at + size], offset=at)
        elif kind == "jump":
            with long_reads.perhaps(size):
                assert_same_bytes(await reader.read_at(start, size), data[start : start + size], offset=start)
        elif kind == "view":
            with long_reads.perhaps(size):
                viewing = await reader.view_at(start, size)
            with viewing as view:
                await asyncio.sleep(0)
                assert_same_bytes(view, data[start : start + size], offset=start)
        elif kind == "hint":
            reader.will_need([(start, start + size)])
        else:
            ranges = [(min(one, SIZE), min(one + 100, SIZE)) for one in range(start, start + size, BLOCK)]
            assert await reader.read_ranges(ranges) == [data[low:high] for low, high in ranges]


@pytest.mark.parametrize(
    ("growth", "seed"), combinations(["stall", "geometric", "linear", "step"], chosen(quick=range(2), full=range(6)))
)
def test_memory_is_never_overdrawn_by_prefetch_and_by_one_request_of_demand_at_most(
    seed: int, growth: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looked at in each grant of memory, and at the arrival of each request at the store.

    One request of a read past the blocks arrives in the memory of its result, as that of a short read does: it needs no
    reservation. The further ones do.
    """
    watch = watch_grants(monkeypatch)

    async def run() -> None:
        dice = random.Random(seed)
        blocks = dice.choice([1, 2, 5, 9, 16])
        async with ahead_bench(memory_bytes=blocks * BLOCK) as b:
            budget = b.runtime.budget
            assert budget.reclaim is None
            short: list[str] = []
            is_by_block = growth == "step"  # Then all reads go through blocks.
            long_reads = LongReads(math.inf if is_by_block else max(2, blocks / 2) * BLOCK)
            tasks: dict[Call, asyncio.Task[Any] | None] = {}

            def is_cancelled(call: Call) -> bool:
                """Its memory is free at once, and a demand request may take it before the task runs again to end."""
                task = tasks[call]
                return task is not None and task.cancelling() > 0

            class Arrivals(list[Call]):
                def append(self, call: Call) -> None:
                    super().append(call)
                    tasks[call] = asyncio.current_task()
                    under_way = [one for one in self if not (one.ended or is_cancelled(one))]
                    size = sum(one.request.size or 0 for one in under_way)
                    own = long_reads.own_bytes(under_way)
                    if size - own > budget.used_bytes:
                        short.append(f"{size} bytes under way, {own} in results, {budget.used_bytes} reserved")

            b.gate.calls = Arrivals()
            readers = [b.reader(policy=policy, prefetch_growth=growth) for policy in ("sequential", "adaptive")]
            readers.append(b.reader(policy="columnar", prefetch_growth=growth))
            await asyncio.gather(
                *(read_somehow(one, random.Random(seed + n), b.data, long_reads) for n, one in enumerate(readers))
            )
            assert short == []
            assert watch.broken == []
            assert watch.grants["demand"] > 0
            assert watch.grants["prefetch"] > 0 or blocks < 2
            assert budget.peak_bytes <= budget.limit_bytes + max(one.request.size or 0 for one in b.calls)
            for reader in readers:
                await reader.aclose()
            await assert_all_given_back(b)

    run_virtual(run, seed=seed)

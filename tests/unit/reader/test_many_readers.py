"""Two hundred readers at once in memory for thirty-two blocks: all get on, in order, and nothing is overdrawn."""

import asyncio
import random
from collections import deque
from dataclasses import dataclass, field

import pytest

from aioprefetch.reader.policy import PolicyName
from aioprefetch.testing import run_virtual
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.testing.oracle import assert_same_bytes, content
from tests.stores.gated_reader import KIB, MIB, Bench, Call, bench, settle, with_etag
from tests.unit.reader.ahead import assert_all_given_back, watch_grants

READERS = 200
BLOCK = 64 * KIB
BLOCKS = 4
SIZE = BLOCKS * BLOCK
MEMORY = 2 * MIB
DATA = content(SIZE)


@dataclass
class Progress:
    """How many requests have been answered, and how many of that each read had to wait for."""

    answered: int = 0
    waited: list[int] = field(default_factory=list)


async def read_one(b: Bench, number: int, progress: Progress, policy: PolicyName) -> None:
    """One reader of an object of its own, from front to back, block by block."""
    async with b.operator.reader(f"object {number}", policy=policy) as reader:
        for start in range(0, SIZE, BLOCK):
            before = progress.answered
            found = await reader.read(BLOCK)
            progress.waited.append(progress.answered - before)
            assert_same_bytes(found, DATA[start : start + BLOCK], offset=start, what=f"reader {number}")


async def response(b: Bench, progress: Progress, dice: random.Random | None) -> None:
    """Answer one request after another: the one that has been in flight longest, or any of them."""
    waiting: deque[Call] = deque()
    seen = 0
    while True:
        await settle(6)
        waiting.extend(b.calls[seen:])
        seen = len(b.calls)
        waiting = deque(one for one in waiting if not one.ended)
        if waiting:
            chosen = waiting.popleft() if dice is None else dice.choice(list(waiting))
            chosen.finish()
            progress.answered += 1


@checks("reliability:C24")
@pytest.mark.parametrize("policy", ["adaptive", "sequential"])
@pytest.mark.parametrize(("seed", "in_order"), [(1, True), (2, False)], ids=["answered in order", "in any order"])
def test_two_hundred_readers_in_little_memory(
    seed: int, in_order: bool, policy: PolicyName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each gets its block after a bounded number of responses, and no reader is overtaken in the queue for memory."""
    watch, progress = watch_grants(monkeypatch), Progress()

    async def run() -> None:
        async with bench(0, memory_bytes=MEMORY, block_bytes=BLOCK, prefetch_blocks=8) as b:
            for number in range(READERS):
                b.put(DATA, f"object {number}")
            b.gate.open = False
            budget = b.runtime.budget
            gate = asyncio.create_task(response(b, progress, None if in_order else random.Random(seed)))
            async with asyncio.TaskGroup() as group:
                for number in range(READERS):
                    group.create_task(read_one(b, number, progress, policy))
            gate.cancel()
            await asyncio.wait({gate})
            assert watch.broken == []
            watch.assert_first_in_first_out()
            assert budget.peak_bytes <= MEMORY + max(one.request.size or 0 for one in b.calls)
            await assert_all_given_back(b)

    run_virtual(run, seed=seed)
    assert len(progress.waited) == READERS * BLOCKS
    # The others, each with one request, before its own: in any order there may be some of those in flight besides.
    assert max(progress.waited) <= READERS + (0 if in_order else 10 * MEMORY // BLOCK)
    assert progress.answered == READERS * BLOCKS


async def test_readers_share_no_blocks_under_a_weak_etag() -> None:
    """It may stand for two versions that differ, so a second reader must not get what a first one has fetched."""
    async with bench(BLOCK) as b:
        b.gate.falsify = with_etag('W/"same"')
        async with b.reader() as first, b.reader() as second:
            assert await first.read_at(0, 100) == b.data[:100]
            changed = bytes(BLOCK)
            b.put(changed)
            assert await second.read_at(0, 100) == changed[:100]
            assert await first.read_at(50, 50) == b.data[50:100]


async def test_blocks_that_no_later_reader_can_share_go_with_their_reader() -> None:
    async with bench() as b:
        b.gate.falsify = with_etag('W/"weak"')
        async with b.reader() as reader:
            await reader.read_at(0, 10)
            assert b.runtime.budget.used_bytes
        await settle()
        assert b.runtime.budget.used_bytes == 0

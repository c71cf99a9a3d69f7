"""Readers of one object that look ahead, in shuffled orders: faults, cancellations, seeks, closing, little memory."""

import asyncio
import contextlib
import random
from functools import partial
from typing import get_args

import pytest

from aioprefetch import RangeReader
from aioprefetch.blocks.fetch import DRAIN_SECONDS_MAX
from aioprefetch.errors import Closed, ObjectChanged, Unavailable
from aioprefetch.layers import ConcurrentLimitLayer, RetryLayer
from aioprefetch.reader.growth import GROWTHS
from aioprefetch.reader.policy import PolicyName
from aioprefetch.runtime.events import Event
from aioprefetch.testing import run_virtual
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.testing.fault_layer import FaultLayer, Injection
from aioprefetch.testing.oracle import assert_same_bytes, content
from tests.probes.search import scenario_seeds
from tests.stores.gated_reader import KIB, Bench, bench, in_case, reads_of, settle
from tests.unit.reader.ahead import READS, assert_all_given_back, watch_grants

BLOCK = 4 * KIB
SIZE = 50 * BLOCK + 999
SEEDS = partial(scenario_seeds, quick=6, full=40)


def faults(dice: random.Random) -> FaultLayer:
    """Bodies in small pieces; some break off, at their call, after their head or in the middle."""
    plan = tuple(
        Injection(
            operation="read",
            occurrence=dice.randrange(150),
            at=dice.choice(["call", "head", 100, 3000]),
            error=Unavailable,
            delay_seconds=dice.choice([0.0, 1.0]),
        )
        for _ in range(dice.randrange(20))
    )
    return FaultLayer(plan, chunk_bytes=dice.choice([700, 3000, 100_000]))


def reader_of(b: Bench, dice: random.Random) -> RangeReader:
    """A reader with any policy and any way to grow."""
    policy, growth = dice.choice(sorted(get_args(PolicyName))), dice.choice(sorted(GROWTHS))
    return b.reader(policy=policy, prefetch_growth=growth, prefetch_blocks=dice.choice([1, 4, 8]))


async def one_run(reader: RangeReader, dice: random.Random, data: bytes) -> None:
    """Reads in order from somewhere on, by position, so that many tasks may do it on one reader."""
    start, size = dice.randrange(SIZE), dice.choice([100, BLOCK // 2, 3 * BLOCK])
    for _ in range(dice.randrange(1, 10)):
        if dice.random() < 0.2:
            with await reader.view_at(start, size) as view:
                await asyncio.sleep(0)
                assert_same_bytes(view, data[start : start + size], offset=start)
        else:
            assert_same_bytes(await reader.read_at(start, size), data[start : start + size], offset=start)
        start += size


async def one_step(reader: RangeReader, dice: random.Random, data: bytes) -> None:
    """A run, or something that disturbs runs."""
    kind = dice.choice(["run", "run", "run", "ranges", "hint", "unbuffer", "policy", "cursor"])
    start = dice.randrange(SIZE)
    if kind == "run":
        await one_run(reader, dice, data)
    elif kind == "ranges":
        ranges = [(low, low + 50) for low in range(start, SIZE - 50, 7000)]
        assert await reader.read_ranges(ranges) == [data[low:high] for low, high in ranges]
    elif kind == "hint":
        reader.will_need([(start, start + 5 * BLOCK)])
    elif kind == "unbuffer":
        await reader.unbuffer()
    elif kind == "policy":
        reader.set_policy(dice.choice(sorted(get_args(PolicyName))))
    else:
        async with reader.clone() as own:
            own.seek(start)
            async with own.stream(5000) as chunks:
                for _ in range(dice.randrange(6)):
                    at = own.tell()
                    assert_same_bytes(await anext(chunks, b""), data[at : at + 5000], offset=at)


async def work(reader: RangeReader, seed: int, data: bytes) -> None:
    """Some steps; the faults of the plan are allowed."""
    dice = random.Random(seed)
    for _ in range(6):
        with contextlib.suppress(Unavailable):
            await one_step(reader, dice, data)


def random_work_with_faults_and_cancellations(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = watch_grants(monkeypatch)

    async def run() -> None:
        dice = random.Random(seed)
        layers = [faults(dice), ConcurrentLimitLayer(dice.choice([1, 2, 5, 64]))]
        if dice.random() < 0.5:
            layers.append(RetryLayer(base_seconds=1.0))
        memory_bytes = dice.choice([1, 2, 5, 16, 60]) * BLOCK
        async with bench(SIZE, memory_bytes=memory_bytes, block_bytes=BLOCK, layers=layers) as b:
            readers = [reader_of(b, dice) for _ in range(3)]
            tasks = [
                asyncio.create_task(work(dice.choice(readers), dice.randrange(1 << 30), b.data)) for _ in range(12)
            ]
            for task in dice.sample(tasks, 4):
                await settle(dice.randrange(40))
                task.cancel()
            await asyncio.wait(tasks)
            failed = [repr(one.exception()) for one in tasks if not one.cancelled() and one.exception() is not None]
            assert failed == []
            for reader in readers:
                await reader.aclose()
            del reader, readers, tasks, task
            assert watch.broken == []
            watch.assert_first_in_first_out()
            await asyncio.sleep(DRAIN_SECONDS_MAX)  # Requests without a waiter may be drained so long.
            await assert_all_given_back(b)

    run_virtual(run, seed=seed)


@pytest.mark.scenario
def test_random_work_with_faults_and_cancellations() -> None:
    """Right bytes or the fault of the plan, memory within its bounds, and nothing is left."""
    for seed in SEEDS():
        with in_case(seed=seed), pytest.MonkeyPatch.context() as patch:
            random_work_with_faults_and_cancellations(seed, patch)


def everything_that_may_be_evicted_is_evicted_at_once(seed: int) -> None:
    async def run() -> None:
        dice = random.Random(seed)
        async with bench(SIZE, memory_bytes=64 * BLOCK, block_bytes=BLOCK, layers=[FaultLayer(chunk_bytes=900)]) as b:
            budget = b.runtime.budget

            def evict(event: Event) -> None:
                if event.name == "block.fetched" and budget.reclaim is not None:
                    budget.reclaim(budget.limit_bytes, "demand")

            b.runtime.events.subscribe(evict)
            start = dice.randrange(SIZE - 3 * BLOCK)
            readers = [reader_of(b, dice) for _ in range(6)]
            ways = list(READS.items()) * 2
            found = await asyncio.gather(
                *(
                    way(dice.choice(readers) if name.endswith("at") else readers[0].clone(), start + number, 3 * BLOCK)
                    for number, (name, way) in enumerate(ways)
                )
            )
            for number, data in enumerate(found):
                low = start + number
                assert_same_bytes(data, b.data[low : low + 3 * BLOCK], offset=low, what=ways[number][0])
            for reader in readers:
                await reader.aclose()

    run_virtual(run, seed=seed)


@pytest.mark.scenario
def test_everything_that_may_be_evicted_is_evicted_at_once() -> None:
    """The worst that others can do: each read gets on all the same, since what it waits for next is pinned."""
    for seed in scenario_seeds(quick=5, full=10):
        with in_case(seed=seed):
            everything_that_may_be_evicted_is_evicted_at_once(seed)


async def test_a_read_that_joins_a_failing_prefetch_each_time_ends_with_its_failure() -> None:
    """Another reader asks again for the same block, in vain, before the read has its turn."""
    async with bench(SIZE, block_bytes=BLOCK) as b:
        reader = await b.opened()
        other = reader.clone()
        reader.will_need([(5 * BLOCK, 6 * BLOCK)])
        reading = asyncio.create_task(reader.read_at(5 * BLOCK, 10))
        await settle()

        def ask_again(event: Event) -> None:
            if event.name == "block.fetched" and event.facts["error"] is not None:
                other.will_need([(5 * BLOCK, 6 * BLOCK)])

        assert await other.read_at(0, 10) == b.data[:10]
        stop = b.runtime.events.subscribe(ask_again)
        while not reading.done():
            b.calls[-1].fail(Unavailable("in vain"))
            await settle()
        stop()
        with pytest.raises(Unavailable, match="in vain"):
            await reading
        assert len(b.calls) > 4
        await other.aclose()
        await reader.aclose()


def versions_never_mix(seed: int) -> None:
    async def run() -> None:
        dice = random.Random(seed)
        layers = [FaultLayer(faults(dice).plan, chunk_bytes=900), RetryLayer(base_seconds=1.0)]
        async with bench(SIZE, memory_bytes=16 * BLOCK, block_bytes=BLOCK, layers=layers) as b:
            versions = {(await b.operator.stat("k")).etag: b.data}

            async def overwrite() -> None:
                for version in range(1, 5):
                    await settle(dice.randrange(150))
                    await asyncio.sleep(dice.choice([0, 0.5]))
                    data = content(SIZE, version=version)
                    versions[b.put(data)] = data

            async def read() -> None:
                async with reader_of(b, dice) as reader:
                    for _ in range(25):
                        at, size = reader.tell(), dice.choice([10, BLOCK, 5 * BLOCK])
                        try:
                            found = await reader.read(size)
                        except ObjectChanged:
                            await reader.reopen()
                        except Unavailable:
                            continue
                        else:
                            assert_same_bytes(found, versions[reader.etag][at : at + size], offset=at)
                        if dice.random() < 0.2:
                            reader.seek(dice.randrange(SIZE))

            await asyncio.gather(overwrite(), *(read() for _ in range(5)))

    run_virtual(run, seed=seed)


@pytest.mark.scenario
def test_versions_never_mix() -> None:
    """The object is overwritten again and again: what a reader gives is of the version it has pinned."""
    for seed in SEEDS():
        with in_case(seed=seed):
            versions_never_mix(seed)


def closing_in_the_middle_of_everything(seed: int) -> None:
    async def run() -> None:
        dice = random.Random(seed)
        layers = [FaultLayer(chunk_bytes=900), ConcurrentLimitLayer(dice.choice([1, 3, 64]))]
        memory_bytes = dice.choice([2, 8, 60]) * BLOCK
        async with bench(SIZE, memory_bytes=memory_bytes, block_bytes=BLOCK, layers=layers) as b:
            readers = [reader_of(b, dice) for _ in range(2)]
            tasks = [asyncio.create_task(work(dice.choice(readers), seed * 100 + n, b.data)) for n in range(10)]
            await settle(dice.randrange(150))
            for closing in (b.operator.aclose,) if seed % 2 else [one.aclose for one in readers]:
                await closing()
            await asyncio.wait(tasks)  # Those that read a clone just then come to its end first.
            errors = {type(task.exception()) for task in tasks}
            assert errors <= {type(None), Closed}
            if seed % 2 == 0:
                await assert_all_given_back(b)
            for reader in readers:
                await reader.aclose()

    run_virtual(run, seed=seed)


@pytest.mark.scenario
def test_closing_in_the_middle_of_everything() -> None:
    """Readers one after the other, or their operator: every read ends with ``Closed`` or with its bytes."""
    for seed in SEEDS():
        with in_case(seed=seed):
            closing_in_the_middle_of_everything(seed)


@checks("reliability:C10")
@pytest.mark.parametrize("way", ["read_at", "view_at"])
async def test_a_look_ahead_that_fails_leaves_no_wait_behind(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Otherwise the request would go on, and its bytes stay in memory, as long as the reader is open."""

    def fail(*arguments: object) -> None:
        raise RuntimeError("no look-ahead")

    async with bench(SIZE, memory_bytes=4 * BLOCK, block_bytes=BLOCK) as b:
        reader = await b.opened()
        monkeypatch.setattr(reads_of(reader).ahead, "apply", fail)
        with pytest.raises(RuntimeError, match="no look-ahead"):
            await getattr(reader, way)(5 * BLOCK, 10)
        assert not reads_of(reader).opened.waits
        await settle()
        assert [call.cancelled for call in b.calls] == [True]
        b.gate.open = True
        monkeypatch.undo()
        assert await reader.read_at(5 * BLOCK, 10) == b.data[5 * BLOCK : 5 * BLOCK + 10]
        await reader.aclose()

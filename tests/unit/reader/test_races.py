"""Many tasks, little memory, faults, cancellations and overwrites, in shuffled orders: right bytes or a typed error."""

import asyncio
import contextlib
import random

import pytest

from aioprefetch import RangeReader
from aioprefetch.errors import Closed, ObjectChanged, RangeNotSatisfied, Unavailable
from aioprefetch.testing import run_virtual
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.testing.fault_layer import FaultLayer, Injection
from aioprefetch.testing.oracle import assert_same_bytes, content
from tests.probes.search import scenario_seeds
from tests.stores.gated_reader import KIB, Bench, bench, in_case, reads_of, settle

BLOCK = 4 * KIB
SIZE = 100_000
POLICIES = ["adaptive", "random", "parquet", "sequential"]
SECONDS_MAX = 1.0  # Nothing here waits for time: more than this means that a reader waited for a budget in vain.


def faults(dice: random.Random) -> FaultLayer:
    """Bodies in small pieces, some of which break off."""
    plan = tuple(
        Injection(operation="read", occurrence=dice.randrange(60), at=dice.choice([0, 100, 3000]), error=Unavailable)
        for _ in range(dice.randrange(8))
    )
    return FaultLayer(plan, chunk_bytes=dice.choice([700, 3000, 100_000]))


async def one_step(reader: RangeReader, dice: random.Random, data: bytes) -> None:
    """One random operation, checked."""
    offset, size = dice.randrange(SIZE + 100), dice.choice([1, 100, 5000, 30_000])
    expected = data[offset : offset + size]
    verb = dice.choice(["read_at", "read_at", "view_at", "ranges", "hint", "unbuffer", "first"])
    if verb == "read_at":
        assert_same_bytes(await reader.read_at(offset, size), expected, offset=offset)
    elif verb == "view_at":
        with await reader.view_at(offset, size) as view:  # Released also where a traceback keeps this frame alive.
            await asyncio.sleep(0)
            assert_same_bytes(view, expected, offset=offset)
    elif verb == "ranges":
        ranges = [(min(n, SIZE), min(n + 50, SIZE)) for n in range(offset, offset + size, 7000)]
        assert await reader.read_ranges(ranges) == [data[start:end] for start, end in ranges]
    elif verb == "first":
        async with reader.iter_ranges([(n, n + 10) for n in range(0, SIZE - 10, 9000)], gap_bytes=0) as iterator:
            index, part = await anext(iterator)
            assert part == data[index * 9000 : index * 9000 + 10]
    elif verb == "hint":
        reader.will_need([(offset, offset + size)])
    else:
        await reader.unbuffer()


async def work(reader: RangeReader, seed: int, data: bytes) -> None:
    """Some steps; faults of the plan are allowed."""
    dice = random.Random(seed)
    for _ in range(6):
        with contextlib.suppress(Unavailable):
            await one_step(reader, dice, data)


async def nothing_left(b: Bench) -> None:
    """All memory is given back once no task reads and everything was dropped."""
    await settle()
    async with b.reader() as last:
        await last.read_at(0, 1)
        await last.unbuffer()
    await settle()
    assert b.runtime.budget.waiting == 0
    assert b.runtime.budget.used_bytes == 0
    assert asyncio.get_running_loop().time() < SECONDS_MAX


def random_work_with_faults_and_cancellations(seed: int) -> None:
    async def run() -> None:
        dice = random.Random(seed)
        memory_bytes = dice.choice([1, 2, 4, 16]) * BLOCK
        async with bench(SIZE, memory_bytes=memory_bytes, block_bytes=BLOCK, layers=[faults(dice)]) as b:
            first = b.reader(policy=dice.choice(POLICIES))
            readers = [first, b.reader(policy=dice.choice(POLICIES), footer_cache=dice.choice([None, 100]))]
            tasks = [
                asyncio.create_task(work(dice.choice(readers), dice.randrange(1 << 30), b.data)) for _ in range(20)
            ]
            for task in dice.sample(tasks, 6):
                await settle(dice.randrange(20))
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            failed = [one for one in results if isinstance(one, Exception)]
            assert failed == []
            for reader in readers:
                await reader.aclose()
            del reader, readers, first, tasks, task, results
            await nothing_left(b)

    run_virtual(run, seed=seed)


@pytest.mark.scenario
def test_random_work_with_faults_and_cancellations() -> None:
    for seed in scenario_seeds(quick=12, full=40):
        with in_case(seed=seed):
            random_work_with_faults_and_cancellations(seed)


def versions_never_mix(seed: int) -> None:
    async def run() -> None:
        dice = random.Random(seed)
        async with bench(SIZE, memory_bytes=8 * BLOCK, block_bytes=BLOCK, layers=[FaultLayer(chunk_bytes=900)]) as b:
            versions = {(await b.operator.stat("k")).etag: b.data}

            async def overwrite() -> None:
                for version in range(1, 4):
                    await settle(dice.randrange(40))
                    data = content(SIZE, version=version)
                    versions[b.put(data)] = data

            async def read() -> None:
                async with b.reader(policy=dice.choice(POLICIES)) as reader:
                    for _ in range(8):
                        offset, size = dice.randrange(SIZE), dice.choice([10, 5000, 50_000])
                        try:
                            found = await reader.read_at(offset, size)
                        except ObjectChanged:
                            await reader.reopen()
                        else:
                            assert_same_bytes(found, versions[reader.etag][offset : offset + size], offset=offset)

            await asyncio.gather(overwrite(), *(read() for _ in range(6)))

    run_virtual(run, seed=seed)


@pytest.mark.scenario
def test_versions_never_mix() -> None:
    """While the object is overwritten again and again a reader gives bytes of one version, or says that it changed."""
    for seed in scenario_seeds(quick=6, full=15):
        with in_case(seed=seed):
            versions_never_mix(seed)


def closing_in_the_middle_of_everything(seed: int) -> None:
    async def run() -> None:
        dice = random.Random(seed)
        async with bench(SIZE, memory_bytes=4 * BLOCK, block_bytes=BLOCK, layers=[FaultLayer(chunk_bytes=900)]) as b:
            reader = b.reader(policy=dice.choice(POLICIES))
            tasks = [asyncio.create_task(work(reader, seed * 100 + n, b.data)) for n in range(10)]
            await settle(dice.randrange(60))
            await (reader.aclose() if seed % 2 else b.operator.aclose())
            await settle(60)
            assert all(task.done() for task in tasks)
            errors = {type(task.exception()) for task in tasks}
            assert errors <= {type(None), Closed, RangeNotSatisfied}
            await reader.aclose()

    run_virtual(run, seed=seed)


@pytest.mark.scenario
def test_closing_in_the_middle_of_everything() -> None:
    for seed in scenario_seeds(quick=6, full=15):
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

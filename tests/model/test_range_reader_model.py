"""RangeReader against the oracle: programs of reads, seeks and upheavals, several tasks, small memory, bad weather."""

import asyncio
import gc
import itertools
import random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from aioprefetch.operator.operator import Operator
from aioprefetch.reader.policy import PolicyName
from aioprefetch.services.memory import Memory
from aioprefetch.testing import run_virtual
from aioprefetch.testing.conformance.suite import GateLayer, checks
from aioprefetch.testing.oracle import ReaderModel, assert_same_bytes, content
from aioprefetch.values import WriteRequest
from tests.model.reader_machine import (
    BLOCK,
    GROWTHS,
    POLICIES,
    SIZES,
    Machine,
    Program,
    Step,
    Weather,
    cursor_steps,
    long_program,
    position_steps,
    upheavals,
)
from tests.probes.search import scenario_seeds
from tests.profile import chosen
from tests.stores.gated_reader import in_case

MODEL = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.generate, Phase.shrink),  # the explain phase traces every line, which takes minutes here
    suppress_health_check=[HealthCheck.too_slow],
)


def programs(
    *, steps: st.SearchStrategy[Step], failure_rate: float, memory_blocks: st.SearchStrategy[int]
) -> st.SearchStrategy[Program]:
    """Programs of up to three tasks."""
    return st.builds(
        Program,
        size=st.sampled_from(SIZES),
        size_known=st.booleans(),
        memory_blocks=memory_blocks,
        policy=st.sampled_from(POLICIES),
        prefetch_blocks=st.sampled_from((0, 1, 2, 8)),
        growth=st.sampled_from(GROWTHS),
        cursor_steps=st.lists(steps, max_size=12).map(tuple),
        position_steps=st.lists(st.lists(position_steps(), max_size=5).map(tuple), max_size=2).map(tuple),
        seed=st.integers(0, 1 << 16),
        failure_rate=st.just(failure_rate),
    )


async def run(program: Program) -> Weather:
    """Run a program beside the model, and check that nothing is left behind."""
    service, data = Memory(), content(program.size)
    service.store.put(WriteRequest(path="k"), data)
    weather = Weather(program.seed, program.failure_rate)
    operator = Operator(
        service,
        memory_bytes=program.memory_blocks * BLOCK,
        block_bytes=BLOCK,
        prefetch_blocks=program.prefetch_blocks,
    ).layer(weather)
    reader = operator.reader(
        "k",
        policy=program.policy,
        prefetch_growth=program.growth,
        size=program.size if program.size_known else None,
    )
    request_bytes_max = max(BLOCK, program.memory_blocks * BLOCK // 4)

    async def follow(steps: tuple[Step, ...], machine: Machine) -> None:
        for step in steps:
            await machine.take(step)

    async with reader:
        reopens = ("reopen",) in program.cursor_steps
        scripts = [program.cursor_steps, *program.position_steps]
        machines = [
            Machine(reader, ReaderModel(data), beside_reopen=number > 0 and reopens) for number in range(len(scripts))
        ]
        async with asyncio.TaskGroup() as group:
            for steps, machine in zip(scripts, machines, strict=True):
                group.create_task(follow(steps, machine))
    budget = operator.runtime().budget
    assert budget.peak_bytes <= budget.limit_bytes + request_bytes_max
    await operator.aclose()
    if budget.used_bytes:
        gc.collect()  # The traceback of a read that failed may hold its block in a cycle.
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert (budget.used_bytes, budget.waiting) == (0, 0)
    return weather


@checks("opendal:R26", "opendal:R33", "opendal:R34")
@MODEL
@given(programs(steps=cursor_steps() | upheavals(), failure_rate=0.0, memory_blocks=st.integers(4, 8)))
def test_programs_in_little_memory(program: Program) -> None:
    """Whatever is evicted, cancelled, reopened or cloned, the bytes and positions are those of the model."""
    run_virtual(lambda: run(program), seed=program.seed)


@MODEL
@given(programs(steps=cursor_steps() | upheavals(), failure_rate=0.15, memory_blocks=st.integers(4, 8)))
def test_programs_in_bad_weather(program: Program) -> None:
    """A read that fails moves nothing and leaves the reader usable."""
    run_virtual(lambda: run(program), seed=program.seed)


@MODEL
@given(programs(steps=cursor_steps(), failure_rate=0.0, memory_blocks=st.just(64)))
def test_no_byte_is_fetched_twice_while_memory_suffices(program: Program) -> None:
    """The ranges of all requests together hold each byte of the object at most once."""
    steps = (*program.cursor_steps, *(step for steps in program.position_steps for step in steps))
    if any(step[0].startswith("cancel") for step in steps):
        return  # What was broken off is asked for again.
    weather = run_virtual(lambda: run(program), seed=program.seed)
    fetched: list[tuple[int, int]] = []
    for request in weather.requests:
        if request.suffix is not None:
            fetched.append((max(0, program.size - request.suffix), program.size))
        else:
            end = program.size if request.size is None else min(program.size, request.offset + request.size)
            fetched.append((request.offset, max(end, request.offset)))
    fetched.sort()
    overlaps = [(one, two) for one, two in itertools.pairwise(fetched) if two[0] < one[1]]
    assert overlaps == []


def long_programs(seed: int) -> None:
    run_virtual(lambda: run(long_program(seed)), seed=seed)


@pytest.mark.scenario
def test_long_programs() -> None:
    """Windows that open, shrink and are left; hints; policies that change; in little memory, in any weather."""
    for seed in scenario_seeds(quick=20, full=60):
        with in_case(seed=seed):
            long_programs(seed)


@checks("s3a:P02")
@pytest.mark.parametrize(
    ("policy", "reads"),
    chosen(quick=[("sequential", 80), ("adaptive", 30)], full=[("sequential", 1000), ("adaptive", 200)]),
)
def test_a_hundred_tasks_read_at_random(policy: PolicyName, reads: int) -> None:
    """Hundreds of reads each, on one reader with memory for a part of the object, in whole blocks or exact ranges."""
    size, block = 1 << 20, 1 << 14
    data = content(size)

    async def main() -> None:
        service = Memory()
        service.store.put(WriteRequest(path="k"), data)
        operator = Operator(service, memory_bytes=40 * block, block_bytes=block)

        async def read_somewhere(seed: int) -> None:
            chance = random.Random(seed)
            for _ in range(reads):
                offset, length = chance.randrange(size + 100), chance.randrange(300)
                found = await reader.read_at(offset, length)
                if found != data[offset : offset + length]:
                    assert_same_bytes(found, data[offset : offset + length], offset=offset, what=f"task {seed}")

        async with operator.reader("k", policy=policy) as reader:
            await asyncio.gather(*map(read_somewhere, range(100)))
        budget = operator.runtime().budget
        assert budget.peak_bytes <= budget.limit_bytes + budget.limit_bytes // 4  # One request of the window.
        await operator.aclose()
        assert budget.used_bytes == 0

    run_virtual(main)


def gated() -> tuple[GateLayer, Operator]:
    """An operator over an object of 100 bytes, whose requests wait for the gate."""
    service, gate = Memory(), GateLayer()
    service.store.put(WriteRequest(path="k"), content(100))
    return gate, Operator(service).layer(gate)


@checks("opendal:R33", "reliability:C04")
def test_cancelled_waiters_leave_their_companions_intact() -> None:
    """Ten tasks wait for one block, every other one is cancelled: one request, and the others get their bytes."""

    async def main() -> None:
        gate, operator = gated()
        async with operator.reader("k") as reader:
            tasks = [asyncio.create_task(reader.read_at(number, 10)) for number in range(10)]
            await gate.wait_for_arrivals(1)
            for task in tasks[::2]:
                task.cancel()
            await asyncio.wait(tasks[::2])
            assert all(task.cancelled() for task in tasks[::2])
            gate.open()
            for number, task in list(enumerate(tasks))[1::2]:
                assert_same_bytes(await task, content(100)[number : number + 10], offset=number)
            assert (gate.arrived, gate.cancelled) == (1, 0)
        await operator.aclose()

    run_virtual(main)


@checks("opendal:R33", "opendal:R34")
def test_the_last_waiter_takes_the_request_with_it() -> None:
    """When all who waited are cancelled the request is broken off, its memory given back, and a new read works."""

    async def main() -> None:
        gate, operator = gated()
        async with operator.reader("k") as reader:
            tasks = [asyncio.create_task(reader.read_at(number, 10)) for number in range(3)]
            await gate.wait_for_arrivals(1)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await gate.wait_for_cancellations(1)
            gate.open()
            assert_same_bytes(await reader.read_at(0, 10), content(10))
            assert gate.arrived == 2
        budget = operator.runtime().budget
        await operator.aclose()
        assert budget.used_bytes == 0

    run_virtual(main)


@checks("s3a:C08")
def test_bytes_of_a_view_stay_accounted() -> None:
    """A view outlives its reader; its block comes back to the budget with the last slice of it."""

    async def main() -> None:
        service = Memory()
        service.store.put(WriteRequest(path="k"), content(64))
        operator = Operator(service, memory_bytes=4 * BLOCK, block_bytes=BLOCK)
        async with operator.reader("k") as reader:
            view = await reader.view_at(3, 5)
        budget = operator.runtime().budget
        await operator.aclose()

        part = view[1:3]
        del view
        assert budget.used_bytes > 0
        assert_same_bytes(part, content(64)[4:6])
        del part

        assert budget.used_bytes == 0

    run_virtual(main)

"""The jobs ``growth-*``: the strategies of the window beside each other, one job for each pattern of reading.

``wasted`` is the bytes that the server sent and no reader used, counted at the server; requests that were cancelled
count as far as they had got.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tests.benchmarks.access_log import Request
from tests.benchmarks.clients import aioprefetch_operator
from tests.benchmarks.content import MIB, check
from tests.benchmarks.job import (
    CPU,
    GETS,
    IN_FLIGHT,
    SENT,
    WALL,
    WARM_OBJECT,
    Column,
    Contestant,
    Job,
    Numbers,
    Sample,
    Target,
)
from tests.benchmarks.process_usage import Meter
from tests.benchmarks.simulator import AT_A_DISTANCE, Conditions

STRATEGIES: dict[str, dict[str, Any]] = {
    **{name: {"prefetch_growth": name} for name in ("stall", "geometric", "linear", "step")},
    "prefetch off": {"prefetch_enabled": False},
}
RUN_BYTES = 3 * MIB
# The object has a run for each 10 MiB.
RUN_EVERY_BYTES = 10 * MIB
STEP_BYTES = 256 << 10
RANDOM_BYTES = 4096
RANDOM_READS = 24

ReadAt = Callable[[int, int], Awaitable[bytes]]
# Reads through the function it is given; returns how many different bytes it read.
Pattern = Callable[[ReadAt, int], Awaitable[int]]


async def sequential(read_at: ReadAt, size_bytes: int) -> int:
    """From the start to the end, 1 MiB at a time."""
    for start in range(0, size_bytes, MIB):
        await read_at(start, MIB)
    return size_bytes


async def runs(read_at: ReadAt, size_bytes: int) -> int:
    """3 MiB in order, then a jump; again and again."""
    places = random.Random(3).sample(range(0, size_bytes - RUN_BYTES, RUN_BYTES), size_bytes // RUN_EVERY_BYTES)
    for place in places:
        for start in range(place, place + RUN_BYTES, STEP_BYTES):
            await read_at(start, STEP_BYTES)
    return len(places) * RUN_BYTES


async def interleaved(read_at: ReadAt, size_bytes: int) -> int:
    """Two places of the object read in order, in turns."""
    half = size_bytes // 2
    for start in range(0, half, MIB):
        await read_at(start, MIB)
        await read_at(half + start, MIB)
    return size_bytes


async def mixed(read_at: ReadAt, size_bytes: int) -> int:
    """Two tasks that read in order, the second from where the first ends, and one at random before both."""
    part = size_bytes // 8
    places = random.Random(5).sample(range(0, 2 * part, RANDOM_BYTES), RANDOM_READS)

    async def in_order(begin: int, end: int) -> None:
        for start in range(begin, end, MIB):
            await read_at(start, MIB)

    async def at_random() -> None:
        for start in places:
            await read_at(start, RANDOM_BYTES)

    # Neither run ends in the middle of the object: what is ahead of an end that no reader could know is not waste.
    async with asyncio.TaskGroup() as group:
        group.create_task(in_order(2 * part, 5 * part))
        group.create_task(in_order(5 * part, size_bytes))
        group.create_task(at_random())
    return 6 * part + RANDOM_READS * RANDOM_BYTES


def timed_pattern(pattern: Pattern, options: dict[str, Any]) -> Contestant:
    """The pattern on one reader with these options."""

    async def run(target: Target) -> Sample:
        async with aioprefetch_operator(target) as operator:
            await operator.read(WARM_OBJECT)
            meter = Meter()
            async with operator.reader(target.key, **options) as reader:

                async def read_at(start: int, size_bytes: int) -> bytes:
                    data = await reader.read_at(start, size_bytes)
                    length = check(data, start, every_byte=target.every_byte)
                    assert length == size_bytes, f"{length} bytes at {start}"
                    return data

                useful = await pattern(read_at, target.size_bytes)
                usage = meter.stop()
        return {**usage, "useful_bytes": useful}

    return run


def wasted(sample: Sample, requests: Sequence[Request], conditions: Conditions) -> Numbers:
    """What came from the server and was not read."""
    useful: int = sample["useful_bytes"]
    unread = sum(one.sent_bytes for one in requests) - useful
    return {"wasted_bytes": unread, "wasted_percent": 100 * unread / useful}


def growth_job(pattern: Pattern, *, size_bytes: int, quick_size_bytes: int, quick: Sequence[str]) -> Job:
    """A job for a pattern; ``quick`` are the strategies that go in quick mode."""
    return Job(
        name=f"growth-{pattern.__name__}",
        title=(pattern.__doc__ or "").rstrip("."),
        conditions=AT_A_DISTANCE,
        size_bytes=size_bytes,
        quick_size_bytes=quick_size_bytes,
        quick_contestants=quick,
        contestants={name: timed_pattern(pattern, options) for name, options in STRATEGIES.items()},
        columns=(
            WALL,
            CPU,
            GETS,
            IN_FLIGHT,
            SENT,
            Column(name="wasted_bytes", heading="wasted MiB", unit=MIB, digits=1),
            Column(name="wasted_percent", heading="wasted %", digits=1),
        ),
        derive=wasted,
    )


GROWTH = (
    growth_job(sequential, size_bytes=256 * MIB, quick_size_bytes=32 * MIB, quick=("geometric",)),
    growth_job(runs, size_bytes=256 * MIB, quick_size_bytes=32 * MIB, quick=()),
    growth_job(interleaved, size_bytes=256 * MIB, quick_size_bytes=32 * MIB, quick=()),
    growth_job(mixed, size_bytes=256 * MIB, quick_size_bytes=32 * MIB, quick=("stall", "prefetch off")),
)

"""The jobs ``connections-*``: 200 readers that open, read a little and close, in turn or in 16 tasks.

What counts is how many connections the server saw: one for each reader at once, where every answer is read to its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.benchmarks.access_log import Request
from tests.benchmarks.bars import Bar
from tests.benchmarks.clients import aioprefetch_operator
from tests.benchmarks.content import MIB, check
from tests.benchmarks.job import (
    CONNECTION_COUNT,
    CPU,
    GETS,
    KIB_SENT,
    WALL,
    Column,
    Contestant,
    Job,
    Numbers,
    Sample,
    Target,
)
from tests.benchmarks.process_usage import Meter
from tests.benchmarks.simulator import LOOPBACK, LOOPBACK_TLS, Conditions

READERS = 200
READ_BYTES = 500
TASKS = (1, 16)
# How a reader is opened. Without options its first request is a block, or what there is.
WAYS: Mapping[str, Mapping[str, Any]] = {
    "adaptive": {},
    "random": {"policy": "random"},
    "split": {"split": (0, READ_BYTES)},
}


def opening(tasks: int, options: Mapping[str, Any]) -> Contestant:
    """Every object once, by as many tasks."""

    async def run(target: Target) -> Sample:
        async with aioprefetch_operator(target) as operator:

            async def work(keys: Iterator[str]) -> None:
                for key in keys:
                    async with operator.reader(key, **options) as reader:
                        data = await reader.read_at(0, READ_BYTES)
                    assert check(data, 0, every_byte=True) == READ_BYTES

            keys = iter([f"{target.key}-{number}" for number in range(READERS)])
            meter = Meter()
            async with asyncio.TaskGroup() as group:
                for _ in range(tasks):
                    group.create_task(work(keys))
            return {**meter.stop(), "size_bytes": target.size_bytes}

    return run


def ours(way: str, tasks: int) -> str:
    """The name of a contestant."""
    return f"aioprefetch {way}, {'in turn' if tasks == 1 else f'{tasks} tasks'}"


def broken_off(sample: Sample, requests: Sequence[Request], conditions: Conditions) -> Numbers:
    """How many answers were not read to their end."""
    size_bytes = sample["size_bytes"]  # a range beyond the end is cut by the end alone
    return {"cut": sum(one.is_cut and one.sent_bytes < size_bytes for one in requests)}


def bars(what: str, ways: Sequence[str]) -> tuple[Bar, ...]:
    """A connection for each task."""
    return tuple(
        Bar(
            shape=f"200 readers of {what}, {way}, {tasks} at once, connections",
            ours=ours(way, tasks),
            number="connections",
            bar=tasks,
            aim=tasks,
            digits=0,
        )
        for way in ways
        for tasks in TASKS
    )


CONNECTIONS = Job(
    name="connections-small",
    title="200 readers that open, read 500 bytes of 2 MiB and close",
    conditions=LOOPBACK,
    size_bytes=2 * MIB,
    quick_size_bytes=2 * MIB,
    copies=READERS,
    rounds_max=1,  # what counts is the same in each
    contestants={ours(way, tasks): opening(tasks, options) for way, options in WAYS.items() for tasks in TASKS},
    columns=(
        CONNECTION_COUNT,
        GETS,
        Column(name="cut", heading="broken off", digits=0),
        KIB_SENT,
        WALL,
        CPU,
    ),
    compare_all=True,
    bars=bars("2 MiB", tuple(WAYS)),
    derive=broken_off,
)
CONNECTIONS_TLS = replace(
    CONNECTIONS,
    name="connections-small-tls",
    conditions=LOOPBACK_TLS,
    quick_contestants=(ours("adaptive", 1),),
    bars=bars("2 MiB over TLS", tuple(WAYS)),
)
# Of a large object only a part of the first answer of an adaptive reader is wanted: it is broken off where the rest
# would take longer than a new connection, so that no number of connections is wanted.
CONNECTIONS_LARGE = replace(
    CONNECTIONS,
    name="connections-large",
    title="200 readers that open, read 500 bytes of 64 MiB and close",
    size_bytes=64 * MIB,
    quick_size_bytes=64 * MIB,
    quick_contestants=(),
    bars=bars("64 MiB", ("random", "split")),
)
CONNECTION_JOBS = (CONNECTIONS, CONNECTIONS_TLS, CONNECTIONS_LARGE)

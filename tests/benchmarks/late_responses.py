"""The job ``late-responses``: one response in a hundred begins ten times as late; what that does to the slowest reads.

Reads of 64 KiB all over an object, 16 at once, from a store that begins each response after 20 ms, and one in a hundred
after 200 ms. Which ones follows from the number of the request, so a second request for the same bytes is mostly quick.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

from tests.benchmarks import range_clients as clients
from tests.benchmarks.access_log import Request
from tests.benchmarks.clients import aioprefetch_recipe, over_our_transport
from tests.benchmarks.content import MIB, check
from tests.benchmarks.job import (
    CHECK_OBJECT,
    CPU,
    GETS,
    OBJECT,
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
from tests.benchmarks.range_clients import Client, Get
from tests.benchmarks.simulator import Conditions

VIEW = "aioprefetch view"
HEDGED = "aioprefetch view, HedgeLayer"
RANGE_BYTES = 64 << 10
IN_FLIGHT = 16
READS = 4_000
QUICK_READS = 400
# What a layer that learns from the reads before has to know at the beginning of the clock.
READS_BEFORE = 200
PREFIX = "late-1/"


@contextlib.asynccontextmanager
async def hedged_view(target: Target, in_flight: int, range_bytes: int) -> AsyncIterator[Get]:
    """``Operator.view`` with HedgeLayer within Retry."""
    from aioprefetch.layers import HedgeLayer, RetryLayer

    recipe = aioprefetch_recipe(target).layer(HedgeLayer(), inside=RetryLayer)
    async with over_our_transport(recipe) as operator:
        yield lambda key, start, end: operator.view(key, offset=start, size=end - start)


async def timed_each(get: Get, key: str, places: Sequence[int], *, every_byte: bool) -> list[float]:
    """The seconds of each read, in as many tasks as there are requests in flight."""
    seconds = []

    async def work(starts: Iterator[int]) -> None:
        for start in starts:
            begun = time.perf_counter()
            part = await get(key, start, start + RANGE_BYTES)
            seconds.append(time.perf_counter() - begun)
            assert check(part, start, every_byte=every_byte) == RANGE_BYTES

    starts = iter(places)
    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(work(starts))
    return seconds


def late_reads(client: Client) -> Contestant:
    """The reads of one client."""

    async def run(target: Target) -> Sample:
        source, count = random.Random(4), QUICK_READS if target.every_byte else READS
        last = target.size_bytes // RANGE_BYTES
        async with client(target, IN_FLIGHT, RANGE_BYTES) as get:
            await get(WARM_OBJECT, 0, 1)
            before = [source.randrange(last) * RANGE_BYTES for _ in range(READS_BEFORE)]
            await timed_each(get, f"{PREFIX}{CHECK_OBJECT}", before, every_byte=True)
            places = [source.randrange(last) * RANGE_BYTES for _ in range(count)]
            meter = Meter(target.server_pid)
            seconds = sorted(await timed_each(get, f"{PREFIX}{OBJECT}", places, every_byte=target.every_byte))
            usage = meter.stop()
        shares = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
        return {**usage, "reads": count, **{name: seconds[int(share * count)] for name, share in shares.items()}}

    return run


def requests_per_read(sample: Sample, requests: Sequence[Request], conditions: Conditions) -> Numbers:
    """The GETs for each read."""
    return {"gets_per_read": len(requests) / sample["reads"]}


def slowest(medians: Mapping[str, Numbers]) -> str:
    """What hedging does to the slowest reads."""
    plain, hedged = medians.get(VIEW, {}), medians.get(HEDGED, {})
    if "p999" not in plain or "p999" not in hedged:
        return ""
    return (
        f"With HedgeLayer the slowest read in a thousand takes {hedged['p999'] / plain['p999']:.2f} of the time, for "
        f"{100 * (hedged['gets_per_read'] - 1):.1f} % more requests."
    )


def _milliseconds(name: str, heading: str) -> Column:
    return Column(name=name, heading=heading, unit=1e-3, digits=0, ratio=True)


LATE_RESPONSES = Job(
    name="late-responses",
    title=f"{READS:,} reads of 64 KiB, {IN_FLIGHT} at once, of which one in a hundred is answered ten times as late",
    conditions=Conditions(first_byte_seconds=0.020),
    size_bytes=64 * MIB,
    quick_size_bytes=16 * MIB,
    links=[f"{PREFIX}{OBJECT}", f"{PREFIX}{CHECK_OBJECT}"],
    contestants={
        "obstore": late_reads(clients.obstore),
        VIEW: late_reads(clients.aioprefetch_view),
        HEDGED: late_reads(hedged_view),
        "opendal": late_reads(clients.opendal),
    },
    quick_contestants=(VIEW, HEDGED),
    columns=(
        WALL,
        CPU,
        _milliseconds("p50", "half ms"),
        _milliseconds("p99", "99 % ms"),
        _milliseconds("p999", "99.9 % ms"),
        GETS,
        Column(name="gets_per_read", heading="GETs/read", digits=3),
        SENT,
    ),
    derive=requests_per_read,
    remark=slowest,
)

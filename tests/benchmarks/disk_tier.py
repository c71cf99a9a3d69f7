"""The job ``tiers``: one pass over an object whose bytes are in memory, on disk, or only at the store."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tests.benchmarks.access_log import Request
from tests.benchmarks.clients import aioprefetch_operator
from tests.benchmarks.content import MIB, check
from tests.benchmarks.job import CPU, RATE, WALL, WARM_OBJECT, Column, Job, Numbers, Sample, Target
from tests.benchmarks.process_usage import Meter
from tests.benchmarks.simulator import LOOPBACK, Conditions

if TYPE_CHECKING:
    import aioprefetch as ap

# So little that the object does not fit, so much that the window does.
LITTLE_MEMORY_BYTES = 96 * MIB
AMPLE_MEMORY_BYTES = 1024 * MIB
# Writing is behind reading, and gives way: more than one pass puts every block on disk. The GETs of the measured pass
# show how far that went.
FILLING_PASSES = 3


async def read_through(operator: ap.Operator, target: Target) -> Sample:
    """One pass by a reader of its own."""
    offset = 0
    began = time.time()
    meter = Meter()
    async with operator.reader(target.key) as reader:
        while chunk := await reader.read(MIB):
            offset += check(chunk, offset, every_byte=target.every_byte)
    usage = meter.stop()
    assert offset == target.size_bytes, f"read {offset} bytes of {target.size_bytes}"
    return {**usage, "bytes_per_second": offset / usage["wall_seconds"], "marks": [began]}


def of_the_pass(sample: Sample, requests: Sequence[Request], conditions: Conditions) -> Numbers:
    """How many requests the measured pass needed."""
    return {"pass_gets": sum(one.method == "GET" and one.start >= sample["marks"][0] for one in requests)}


async def memory_hit(target: Target) -> Sample:
    """Everything is in memory from the pass before."""
    async with aioprefetch_operator(target, memory_bytes=AMPLE_MEMORY_BYTES) as operator:
        await read_through(operator, target)
        return await read_through(operator, target)


async def network(target: Target) -> Sample:
    """No disk tier, and little memory."""
    async with aioprefetch_operator(target, memory_bytes=LITTLE_MEMORY_BYTES) as operator:
        await operator.read(WARM_OBJECT)
        return await read_through(operator, target)


async def disk_hit(target: Target) -> Sample:
    """Another operator, with nothing in memory, on the directory that one with little memory has filled."""
    directory = target.scratch
    async with aioprefetch_operator(target, memory_bytes=LITTLE_MEMORY_BYTES, disk_cache=directory) as operator:
        for _ in range(FILLING_PASSES):
            await read_through(operator, target)
    async with aioprefetch_operator(target, memory_bytes=AMPLE_MEMORY_BYTES, disk_cache=directory) as operator:
        await operator.read(WARM_OBJECT)
        return await read_through(operator, target)


async def disk_fill(target: Target) -> Sample:
    """From the store, with little memory: what leaves it goes to disk meanwhile."""
    options = {"memory_bytes": LITTLE_MEMORY_BYTES, "disk_cache": target.scratch}
    async with aioprefetch_operator(target, **options) as operator:
        await operator.read(WARM_OBJECT)
        return await read_through(operator, target)


def beside_memory(medians: Mapping[str, Numbers]) -> str:
    """What a disk hit costs against the others, in CPU."""
    names = ("memory", "disk", "network")
    if any(name not in medians for name in names):
        return ""
    memory, disk, store = (medians[name]["cpu_seconds"] for name in names)
    return f"A hit on disk takes {disk / memory:.1f} times the CPU of one in memory, {disk / store:.2f} of the network."


TIERS = Job(
    name="tiers",
    title="sequential reads of 1 MiB by where the bytes are",
    conditions=LOOPBACK,
    size_bytes=256 * MIB,
    quick_size_bytes=128 * MIB,
    quick_contestants=("memory", "disk"),
    contestants={
        "memory": memory_hit,
        "disk": disk_hit,
        "network": network,
        "network, written to disk": disk_fill,
    },
    columns=(RATE, WALL, CPU, Column(name="pass_gets", heading="GETs", digits=0)),
    derive=of_the_pass,
    remark=beside_memory,
)

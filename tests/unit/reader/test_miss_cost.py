"""What a miss costs in Python calls: a number that no other load of the machine moves. A memory store is below it."""

import gc
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from aioprefetch.operator.operator import Operator
from aioprefetch.reader.policy import PolicyName
from aioprefetch.reader.reader import RangeReader
from aioprefetch.services.memory import Memory
from aioprefetch.values import WriteRequest
from tests.probes.calls import counted_calls

KIB = 1 << 10
MIB = 1 << 20
SIZE = 64 * MIB
READ_BYTES = 4 * KIB

# The calls of one miss at most, those of layers and service included: a little above what it takes today.
CALLS_MAX = {"random": 147, "adaptive": 180}


@asynccontextmanager
async def reading(
    policy: PolicyName, *, memory_bytes: int = 256 * MIB, block_bytes: int = MIB
) -> AsyncIterator[RangeReader]:
    """A reader of an object that is not resident, whose first reads are made: they are of another kind."""
    service = Memory()
    service.store.put(WriteRequest(path="k"), bytes(SIZE))
    async with (
        Operator(service, memory_bytes=memory_bytes, block_bytes=block_bytes) as operator,
        operator.reader("k", policy=policy) as reader,
    ):
        for start in (0, SIZE // 2, SIZE - 2 * MIB):
            await reader.read_at(start, READ_BYTES)
        yield reader


def places(count: int) -> list[int]:
    """Places of reads, none of which is near another one or a block that is resident."""
    starts = list(range(2 * MIB, SIZE // 2 - MIB, 16 * KIB))
    random.Random(4).shuffle(starts)
    return starts[:count]


async def calls_of(reader: RangeReader, starts: list[int]) -> float:
    """The Python calls of a read at each of these places, on the average; each of them is a miss."""
    misses = reader.statistics["stream_read_block_misses"]
    with counted_calls() as calls:
        for start in starts:
            await reader.read_at(start, READ_BYTES)
    assert reader.statistics["stream_read_block_misses"] - misses == len(starts)
    return calls.number / len(starts)


@pytest.mark.cost
@pytest.mark.parametrize("policy", CALLS_MAX)
async def test_a_miss_takes_few_calls_however_much_is_resident(policy: PolicyName) -> None:
    starts = places(1500)
    async with reading(policy) as reader:
        await calls_of(reader, starts[:100])
        first = await calls_of(reader, starts[100:200])
        await calls_of(reader, starts[200:-100])
        last = await calls_of(reader, starts[-100:])
    assert 50 < first <= CALLS_MAX[policy]
    assert last <= 1.03 * first


@pytest.mark.cost
@pytest.mark.parametrize("policy", CALLS_MAX)
async def test_a_miss_that_evicts_takes_as_many_calls_however_much_is_resident(policy: PolicyName) -> None:
    """Memory is full of parts that were read, so each miss lets one of them go."""
    costs = []
    for resident in (300, 1200):
        starts = places(resident + 600)
        memory_bytes = resident * READ_BYTES + 256 * KIB
        async with reading(policy, memory_bytes=memory_bytes, block_bytes=64 * KIB) as reader:
            await calls_of(reader, starts[:-100])
            evicted = reader.statistics["stream_evict_blocks_from_cache"]
            costs.append(await calls_of(reader, starts[-100:]))
            assert reader.statistics["stream_evict_blocks_from_cache"] - evicted >= 100
    assert costs[1] <= 1.05 * costs[0]


@pytest.mark.parametrize("policy", CALLS_MAX)
async def test_a_miss_leaves_no_reference_cycle(policy: PolicyName) -> None:
    starts = places(64)
    async with reading(policy) as reader:
        await reader.read_at(starts[0], READ_BYTES)
        gc.collect()
        gc.disable()
        try:
            for start in starts[1:]:
                await reader.read_at(start, READ_BYTES)
            assert gc.collect() == 0
        finally:
            gc.enable()

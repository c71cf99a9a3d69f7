"""Readers that open a small object, read it once and close: what each of them costs, and what it leaves behind."""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable

import pytest

from aioprefetch.operator.operator import Operator
from aioprefetch.reader.policy import PolicyName
from aioprefetch.services.memory import Memory
from aioprefetch.values import WriteRequest
from tests.probes.calls import counted_calls

OBJECTS = 40
DATA = bytes(range(256)) * 8

# Python calls of a reader over a service in memory; the layers make about thirty of them, a turn of the loop twenty.
CALLS_MAX = 203
# What stays of a closed reader is a resident block: these objects, which each full collection looks at, one of them a
# dictionary that the collector looks at from Python 3.14 on.
HELD_MAX = 14.0


@pytest.fixture
async def operator() -> AsyncIterator[Operator]:
    """An Operator over small objects, some of which were read."""
    service = Memory()
    for number in range(3 * OBJECTS):
        service.store.put(WriteRequest(path=f"k{number}"), DATA)
    async with Operator(service) as made:
        await read_new(made, 0)
        yield made


async def read_new(operator: Operator, first: int) -> None:
    """Read ``OBJECTS`` objects, each by a reader of its own."""
    for number in range(first, first + OBJECTS):
        async with operator.reader(f"k{number}") as reader:
            assert await reader.read_at(0, len(DATA)) == DATA
        await asyncio.sleep(0)


async def calls_of(work: Awaitable[None]) -> int:
    """How many Python calls something makes."""
    with counted_calls() as calls:
        await work
    return calls.number


@pytest.mark.cost
async def test_a_new_reader_makes_few_calls(operator: Operator) -> None:
    assert await calls_of(read_new(operator, OBJECTS)) / OBJECTS <= CALLS_MAX


@pytest.mark.cost
async def test_a_reader_costs_as_much_however_many_others_its_object_has(operator: Operator) -> None:
    """A service may hold thousands of readers of one object open."""

    async def open_and_close() -> None:
        reader = operator.reader("k0")
        assert await reader.read_at(0, 10) == DATA[:10]
        await reader.aclose()

    await open_and_close()
    alone = await calls_of(open_and_close())
    others = [operator.reader("k0") for _ in range(300)]
    for reader in others:
        await reader.read_at(0, 10)
    assert await calls_of(open_and_close()) <= alone + 3
    for reader in others:
        await reader.aclose()


def objects_to_collect() -> int:
    """How many objects the collector looks at. Tuples of tuples without cycles take it some turns to leave out."""
    for _ in range(4):
        gc.collect()
    return len(gc.get_objects())


async def test_closed_readers_are_free_without_a_collection(operator: Operator) -> None:
    """And little is left of each for the collector to look at."""
    gc.disable()
    try:
        before = objects_to_collect()
        await read_new(operator, OBJECTS)
        assert gc.collect() == 0
        assert (objects_to_collect() - before) / OBJECTS <= HELD_MAX
    finally:
        gc.enable()


async def test_readers_with_equal_options_share_them(operator: Operator) -> None:
    """Options of one object are not shared, and an equal value of another type is refused all the same."""
    plain = [operator.reader(f"k{number}") for number in range(2)]
    random = [operator.reader(f"k{number}", policy="random") for number in range(2)]
    declared = operator.reader("k0", size=7)
    assert plain[0].options is plain[1].options
    assert random[0].options is random[1].options is not plain[0].options
    assert (declared.options.size, plain[0].options.size) == (7, None)
    with pytest.raises(TypeError, match="prefetch_enabled must be True or False, not 1"):
        operator.reader("k0", prefetch_enabled=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["read_at", "view_at", "readinto"])
@pytest.mark.parametrize("policy", ["adaptive", "random", "parquet"])
async def test_the_first_read_of_a_small_object_counts_as_one_miss(
    operator: Operator, method: str, policy: PolicyName
) -> None:
    """Reads after it are hits, whichever way they are made."""
    async with operator.reader("k100", policy=policy) as reader:
        for _ in range(3):
            if method == "readinto":
                buffer = bytearray(len(DATA))
                assert await reader.readinto(buffer) == len(DATA)
                reader.seek(0)
                data = bytes(buffer)
            else:
                data = bytes(await getattr(reader, method)(0, len(DATA)))
            assert data == DATA
        counts = reader.statistics
    assert counts["action_http_get_request"] == counts["stream_read_block_misses"] == 1
    assert (counts["stream_read_block_hits"], counts["stream_read_operations"]) == (2, 3)
    assert counts["stream_read_bytes"] == 3 * len(DATA)

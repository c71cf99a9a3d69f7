"""Reads of more than a reader keeps: parallel requests into the memory of the result, and all that can go wrong."""

import asyncio
import tracemalloc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from aioprefetch.errors import Closed, ObjectChanged, PermissionDenied, Unavailable
from aioprefetch.layers import RetryLayer
from aioprefetch.operator.operator import Operator
from aioprefetch.reader.reader import RangeReader
from aioprefetch.testing import FaultLayer, Injection
from aioprefetch.testing.fault_layer import Point
from aioprefetch.testing.oracle import assert_same_bytes
from tests.benches.computed_store import MIB, Arithmetic, Distance, blank
from tests.benches.gated_reader import KIB, Bench, bench, in_case, resident_blocks, settle
from tests.benches.layer_stack import was_cancelled
from tests.profile import combinations

BLOCK = 4 * KIB
SIZE = 20 * BLOCK + 777
# The first block, and the rest in 16 parts of a block and a bit.
REQUESTS = 17


def small_memory(size: int = SIZE, **options: Any) -> Any:
    """A bench with memory for a quarter of the object, so that a read of all of it is long."""
    return bench(size, **{"block_bytes": BLOCK, "memory_bytes": 5 * BLOCK, **options})


async def by_read(reader: RangeReader) -> bytes:
    return await reader.read()


async def by_read_at(reader: RangeReader) -> bytes:
    return await reader.read_at(0, None)


async def by_view(reader: RangeReader) -> bytes:
    return bytes(await reader.view_at(0, None))


async def by_readinto(reader: RangeReader) -> bytes:
    buffer = bytearray(SIZE + 100)
    return bytes(buffer[: await reader.readinto(buffer)])


WAYS = [by_read, by_read_at, by_view, by_readinto]
Way = Callable[[RangeReader], Coroutine[Any, Any, bytes]]


async def nothing_left(b: Bench) -> None:
    """No request goes on, no task is left, no memory but that of blocks is in use."""
    await settle()
    assert all(call.ended for call in b.calls)
    others = {task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()}}
    assert others <= {"aioprefetch supervisor"}
    budget = b.runtime.budget
    assert budget.waiting == 0
    if budget.reclaim is not None:
        budget.reclaim(budget.used_bytes, "demand")
    assert budget.used_bytes == 0


def requested_bytes(b: Bench) -> int:
    """The lengths of all requests together."""
    return sum(call.request.size or call.request.suffix or 0 for call in b.calls)


# --- what is read ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("policy", ["adaptive", "sequential", "whole-file", "random", "parquet"])
async def test_each_byte_is_requested_once_and_stays_in_no_block(policy: str, way: Way) -> None:
    async with small_memory() as b, b.reader(policy=policy) as reader:
        assert_same_bytes(await way(reader), b.data)
        assert requested_bytes(b) == SIZE
        assert len(resident_blocks(reader)) <= 2
        assert reader.statistics["stream_read_block_read"] == len(b.calls)
        await nothing_left(b)


async def test_the_rest_is_requested_as_soon_as_the_head_is_here() -> None:
    """While the first block still arrives; one request in the lane of demand, the others as far as there is memory."""
    async with small_memory(memory_bytes=40 * BLOCK) as b, b.reader(keep_behind=False) as reader:
        b.gate.open = False
        reading = asyncio.create_task(reader.read())
        (await b.next_call()).deliver(10)
        await settle()
        assert len(b.calls) == 1 + 16
        assert [call.request.lane for call in b.calls] == ["demand", "demand"] + ["prefetch"] * 15
        assert len({call.request.if_match for call in b.calls[1:]}) == 1
        b.gate.open = True
        for call in reversed(b.calls):
            call.finish()
        assert_same_bytes(await reading, b.data)
        await nothing_left(b)


async def test_resident_bytes_and_those_in_flight_are_used() -> None:
    async with small_memory(memory_bytes=40 * BLOCK) as b, b.reader(keep_behind=False) as reader:
        await reader.read_at(3 * BLOCK, 10)
        await reader.read_at(8 * BLOCK, 10)
        b.gate.open = False
        other = asyncio.create_task(reader.read_at(12 * BLOCK, 10))
        in_flight = await b.next_call()
        in_flight.deliver(100)
        await settle()
        reading = asyncio.create_task(reader.read_at(0, None))
        await settle()
        b.gate.open = True
        for call in b.calls:
            call.finish()
        assert_same_bytes(await reading, b.data)
        assert await other == b.data[12 * BLOCK : 12 * BLOCK + 10]
        assert requested_bytes(b) == SIZE


async def test_what_fits_stays_in_blocks() -> None:
    """Also if the reader has gone back once, or keeps by option what it has read."""
    async with small_memory(memory_bytes=64 * BLOCK) as b, b.reader() as reader:
        await reader.read()
        calls = len(b.calls)
        reader.seek(0)
        assert await reader.read() == b.data
        assert len(b.calls) == calls
    async with small_memory(memory_bytes=25 * BLOCK) as b, b.reader(keep_behind=True) as reader:
        await reader.read()
        calls = len(b.calls)
        reader.seek(0)
        assert await reader.read() == b.data
        assert len(b.calls) == calls


async def test_the_memory_of_the_result_is_the_memory_that_received_it() -> None:
    """At no time is there memory for the object twice: only for the requests in flight."""
    size = 16 * MIB
    service = Arithmetic(size, content=blank)
    async with Operator(service, memory_bytes=8 * MIB, block_bytes=MIB) as operator, operator.reader("k") as reader:
        await reader.read_at(0, 1)
        tracemalloc.start()
        try:
            assert len(await reader.read()) == size
            assert tracemalloc.get_traced_memory()[1] < 1.3 * size
        finally:
            tracemalloc.stop()
        assert operator.runtime().budget.peak_bytes <= 8 * MIB


@pytest.mark.virtual
@pytest.mark.parametrize("how", ["read", "readinto"])
async def test_256_mib_take_a_tenth_of_the_time_of_one_connection(how: str) -> None:
    far_away = Distance(first_byte_seconds=0.030, bytes_per_second=90e6)
    service = Arithmetic(256 * MIB, content=blank, distance=far_away)
    async with Operator(service) as operator, operator.reader("k") as reader:
        now = operator.runtime().now
        begun = now()
        size = len(await reader.read()) if how == "read" else await reader.readinto(bytearray(256 * MIB))
        assert size == 256 * MIB
        assert now() - begun <= 0.1 * far_away.request_seconds(256 * MIB)
    assert len(service.log) == 32


# --- failures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("point", ["call", "head", 100])
async def test_the_first_failure_is_raised_whichever_request_it_is(way: Way, point: Point) -> None:
    """And ends all others. The reader stays usable, and its cursor in place."""
    for number in range(1, REQUESTS):
        fault = FaultLayer((Injection(operation="read", occurrence=number, at=point, error=PermissionDenied),))
        async with small_memory(layers=(fault,)) as b, b.reader(policy="adaptive") as reader:
            with in_case(number=number), pytest.raises(PermissionDenied):
                await way(reader)
            assert reader.tell() == 0
            assert_same_bytes(await way(reader), b.data)
            await nothing_left(b)


@pytest.mark.parametrize("point", ["call", "head", 100])
async def test_any_request_may_fail_for_a_while_and_only_it_is_repeated(point: Point) -> None:
    for number in range(REQUESTS):
        fault = FaultLayer((Injection(operation="read", occurrence=number, at=point, error=Unavailable),))
        layers = (fault, RetryLayer(base_seconds=1e-6))
        async with small_memory(layers=layers) as b, b.reader(policy="adaptive") as reader:
            with in_case(number=number):
                assert_same_bytes(await reader.read(), b.data)
            assert b.operator.statistics["retries"] == 1
            await nothing_left(b)


@pytest.mark.parametrize("memory_bytes", [5 * BLOCK, BLOCK])
@pytest.mark.parametrize("way", WAYS)
async def test_cancelled_at_every_suspension_nothing_is_left_behind(way: Way, memory_bytes: int) -> None:
    suspension, cancelled = 0, True
    slow = FaultLayer(chunk_bytes=3000)
    while cancelled:
        suspension += 1
        assert suspension < 500
        async with (
            small_memory(6 * BLOCK, layers=(slow,), memory_bytes=memory_bytes) as b,
            b.reader(policy="adaptive", keep_behind=False) as reader,
        ):
            cancelled = await was_cancelled(way(reader), suspension)
            await settle()
            assert_same_bytes(await way(reader) if not reader.tell() else b.data, b.data)
            await nothing_left(b)
    assert suspension > 2


async def test_a_buffer_is_not_written_to_once_its_read_was_cancelled() -> None:
    async with small_memory(memory_bytes=40 * BLOCK) as b, b.reader(keep_behind=False) as reader:
        b.gate.open = False
        buffer = bytearray(SIZE)
        reading = asyncio.create_task(reader.readinto(buffer))
        (await b.next_call()).deliver(10)
        await settle()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        before = bytes(buffer)
        for call in b.calls:
            call.finish()
        await settle()
        assert buffer == before


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ended", [0, 1, 7])
async def test_a_reader_that_is_closed_meanwhile_ends_the_read(way: Way, ended: int) -> None:
    async with small_memory(memory_bytes=40 * BLOCK) as b:
        reader = b.reader(keep_behind=False)
        b.gate.open = False
        reading = asyncio.create_task(way(reader))
        (await b.next_call()).deliver(10)
        await settle()
        for call in b.calls[:ended]:
            call.finish()
        await settle()
        await reader.aclose()
        with pytest.raises(Closed):
            await reading
        b.calls[0].finish()  # The little that is missing of the first block is received, to keep the connection.
        await nothing_left(b)


async def test_a_reader_that_is_reopened_meanwhile_ends_the_read() -> None:
    async with small_memory(memory_bytes=40 * BLOCK) as b, b.reader(keep_behind=False) as reader:
        b.gate.open = False
        reading = asyncio.create_task(reader.read_at(0, None))
        (await b.next_call()).deliver(10)
        await settle()
        b.gate.open = True
        await reader.reopen()
        with pytest.raises(ObjectChanged):
            await reading


# --- one version ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("way", "same_size", "ignores_conditions"), combinations(WAYS, [True, False], [True, False]))
async def test_an_object_overwritten_between_two_requests_is_never_mixed(
    way: Way, same_size: bool, ignores_conditions: bool
) -> None:
    """Also by a store that ignores conditions, where the heads are compared."""
    for number in range(1, REQUESTS):
        async with small_memory(memory_bytes=40 * BLOCK) as b, b.reader(keep_behind=False) as reader:
            b.gate.open = False
            b.gate.ignores_conditions = ignores_conditions
            reading = asyncio.create_task(way(reader))
            (await b.next_call()).finish()
            await settle()
            for call in b.calls[1:number]:
                call.finish()
            await settle()
            b.put(bytes(SIZE if same_size else SIZE // 4))
            b.gate.open = True
            for call in b.calls:
                call.finish()
            with in_case(number=number), pytest.raises(ObjectChanged):
                await reading
            await nothing_left(b)


@pytest.mark.parametrize("way", WAYS)
async def test_a_part_that_broke_off_never_goes_on_with_another_version(way: Way) -> None:
    """Whichever request it is: the object is overwritten before its second attempt."""
    for number in range(REQUESTS):
        fault = FaultLayer((Injection(operation="read", occurrence=number, at=100, error=Unavailable),))
        async with (
            small_memory(layers=(fault, RetryLayer(base_seconds=1e-6))) as b,
            b.reader(policy="adaptive") as reader,
        ):
            b.runtime.events.subscribe(lambda event, b=b: b.put(bytes(SIZE)) if event.name == "retry" else None)
            with in_case(number=number), pytest.raises(ObjectChanged):
                await way(reader)
            assert b.operator.statistics["retries_resumed"] == 1
            await nothing_left(b)


async def test_an_object_deleted_between_two_requests_has_changed() -> None:
    async with small_memory(memory_bytes=40 * BLOCK) as b, b.reader(keep_behind=False) as reader:
        b.gate.open = False
        reading = asyncio.create_task(reader.read())
        (await b.next_call()).deliver(10)
        await settle()
        await b.operator.delete("k")
        b.gate.open = True
        for call in b.calls:
            call.finish()
        with pytest.raises(ObjectChanged):
            await reading

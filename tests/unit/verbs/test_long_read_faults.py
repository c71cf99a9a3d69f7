"""Long reads of an operator and of a reader: which of their requests fails, is cancelled or meets a change."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from aioprefetch.errors import ObjectChanged, PermissionDenied, Unavailable
from aioprefetch.layers import RetryLayer
from aioprefetch.runtime.events import Event
from aioprefetch.testing import FaultLayer, Injection
from aioprefetch.testing.fault_layer import Point
from tests.profile import combinations, each_of
from tests.stores.gated_reader import Bench, in_case, settle
from tests.stores.layer_stack import was_cancelled
from tests.unit.reader import test_long_reads as of_reader
from tests.unit.reader.test_long_reads import BLOCK, SIZE, nothing_left, small_memory
from tests.unit.verbs import test_parallel_read as of_operator
from tests.unit.verbs.test_parallel_read import REQUESTS, parted

# What reads: a bench and an operator or a reader on it, and how that is asked for all bytes.
Opened = Callable[..., AbstractAsyncContextManager[tuple[Bench, Any]]]
Way = tuple[Opened, Callable[[Any], Awaitable[bytes]]]
# As many requests may be in flight at once where a reader has wide memory.
AT_ONCE = of_reader.AT_ONCE


@asynccontextmanager
async def by_operator(size: int = SIZE, *, wide: bool = False, **options: Any) -> AsyncIterator[tuple[Bench, Any]]:
    async with parted(size, **options) as b:
        yield b, b


@asynccontextmanager
async def by_reader(size: int = SIZE, *, wide: bool = False, **options: Any) -> AsyncIterator[tuple[Bench, Any]]:
    if wide:
        options["memory_bytes"] = 20 * BLOCK
    async with small_memory(size, **options) as b, b.reader(policy="adaptive") as reader:
        yield b, reader


WAYS: list[Way] = [
    *((by_operator, way) for way in of_operator.WAYS),
    *((by_reader, way) for way in of_reader.WAYS),
]


@each_of(("opened", "way"), WAYS)
@each_of("point", ["call", "head", 100])
async def test_the_first_failure_is_raised_whichever_request_it_is(opened: Opened, way: Any, point: Point) -> None:
    """And ends all others: nothing is in flight, and nothing is reserved. What has read stays usable."""
    for number in range(int(opened is by_reader), REQUESTS):
        fault = FaultLayer((Injection(operation="read", occurrence=number, at=point, error=PermissionDenied),))
        async with opened(layers=(fault,)) as (b, subject):
            with in_case(number=number), pytest.raises(PermissionDenied):
                await way(subject)
            if opened is by_reader:
                assert subject.tell() == 0
            else:
                await nothing_left(b)
            current = asyncio.current_task()
            assert current is not None
            assert current.cancelling() == 0
            assert await way(subject) == b.data
            await nothing_left(b)


@each_of(("opened", "way"), [WAYS[0], WAYS[3]])
@each_of("point", ["call", "head", 100])
async def test_any_request_may_fail_for_a_while_and_only_it_is_repeated(opened: Opened, way: Any, point: Point) -> None:
    for number in range(REQUESTS):
        fault = FaultLayer((Injection(operation="read", occurrence=number, at=point, error=Unavailable),))
        async with opened(layers=(fault, RetryLayer(base_seconds=1e-6))) as (b, subject):
            with in_case(number=number):
                assert await way(subject) == b.data
            assert opened is by_reader or len(b.calls) == REQUESTS + (point != "call")
            assert b.operator.statistics["retries"] == 1
            await nothing_left(b)


@each_of("memory_bytes", [5 * BLOCK, BLOCK])
@each_of(("opened", "way"), WAYS)
async def test_cancelled_at_every_suspension_nothing_is_left_behind(
    opened: Opened, way: Any, memory_bytes: int
) -> None:
    suspension, cancelled = 0, True
    slow = FaultLayer(chunk_bytes=3000)
    while cancelled:
        suspension += 1
        assert suspension < 500
        async with opened(6 * BLOCK, layers=(slow,), memory_bytes=memory_bytes) as (b, subject):
            cancelled = await was_cancelled(way(subject), suspension)
            await settle()
            if opened is by_operator or not subject.tell():
                assert await way(subject) == b.data
            await nothing_left(b)
    assert suspension > 2


@pytest.mark.parametrize(("opened", "way"), [WAYS[2], WAYS[-1]])
async def test_a_buffer_is_not_written_to_once_its_read_was_cancelled(opened: Opened, way: Any) -> None:
    async with opened(wide=True) as (b, subject):
        b.gate.open = False
        buffer = bytearray(SIZE)
        read = b.operator.read_into("k", 0, buffer) if opened is by_operator else subject.readinto(buffer)
        reading = asyncio.ensure_future(read)
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


@each_of(("ways", "same_size", "ignores_conditions"), combinations(WAYS, [True, False], [True, False]))
async def test_an_object_overwritten_between_two_requests_is_never_mixed(
    ways: Way, same_size: bool, ignores_conditions: bool
) -> None:
    """Also by a store that ignores conditions, where the heads are compared."""
    opened, way = ways
    for number in range(1, REQUESTS if opened is by_operator else 1 + AT_ONCE):
        async with opened(wide=True) as (b, subject):
            b.gate.open = False
            b.gate.ignores_conditions = ignores_conditions
            reading = asyncio.ensure_future(way(subject))
            (await b.next_call()).finish()
            await settle()
            for call in b.calls[1:number]:
                call.finish()
            await settle()
            b.put(bytes(SIZE if same_size else SIZE // 4))
            b.gate.open = True
            for call in b.calls:
                call.finish()
            with in_case(number=number), pytest.raises(ObjectChanged) as changed:
                await reading
            assert changed.value.path == "k"
            await nothing_left(b)


@each_of(("opened", "way"), WAYS)
async def test_a_part_that_broke_off_never_goes_on_with_another_version(opened: Opened, way: Any) -> None:
    """Whichever part it is: the object is overwritten before its second attempt."""
    for number in range(REQUESTS):
        fault = FaultLayer((Injection(operation="read", occurrence=number, at=100, error=Unavailable),))
        async with opened(layers=(fault, RetryLayer(base_seconds=1e-6))) as (b, subject):

            def overwrite(event: Event, b: Bench = b) -> None:
                if event.name == "request.retried":
                    b.put(bytes(SIZE))

            b.runtime.events.subscribe(overwrite)
            with in_case(number=number), pytest.raises(ObjectChanged):
                await way(subject)
            assert b.operator.statistics["retries_resumed"] == 1
            await nothing_left(b)


@pytest.mark.parametrize(("opened", "way"), [WAYS[0], WAYS[3]])
async def test_an_object_deleted_between_two_requests_has_changed(opened: Opened, way: Any) -> None:
    async with opened(wide=True) as (b, subject):
        b.gate.open = False
        reading = asyncio.ensure_future(way(subject))
        (await b.next_call()).deliver(10)
        await settle()
        await b.operator.delete("k")
        b.gate.open = True
        for call in b.calls:
            call.finish()
        with pytest.raises(ObjectChanged, match="deleted"):
            await reading

"""Long reads of an operator: several requests for one version at once, and all that can go wrong between them."""

import asyncio
import gc
import random
import tracemalloc
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import aioprefetch as ap
from aioprefetch.accessor.protocols import Accessor, Layer, WrappedAccessor
from aioprefetch.accessor.sink import Sink
from aioprefetch.errors import (
    Closed,
    ConditionNotMatch,
    Error,
    NotFound,
    ObjectChanged,
    PermissionDenied,
    ProtocolError,
    RangeNotSatisfied,
    TimedOut,
    Unavailable,
)
from aioprefetch.layers import ConcurrentLimitLayer, RetryLayer, TimeoutLayer
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.testing import Fault, FaultLayer, FaultServer, Injection, Rule, run_virtual
from aioprefetch.testing.fault_layer import Point
from aioprefetch.values import ReadReply, ReadRequest
from tests.profile import chosen, combinations, in_turns
from tests.stores.gated_reader import KIB, MIB, Bench, bench, in_case, settle
from tests.stores.layer_stack import was_cancelled

BLOCK = 4 * KIB
SIZE = 20 * BLOCK + 777
# The first request has two blocks, and each further one has one and a bit: 73 KiB in 16 parts.
REQUESTS = 17


class FirstPartsAccessor(WrappedAccessor):
    """The live layer."""

    async def read(self, request: ReadRequest, sink: Sink) -> ReadReply:
        return await self.inner.read(request.first_part(), sink)


@dataclass(frozen=True)
class FirstParts(Layer):
    """Makes any store send the first part alone where that is enough, as the s3 and http services do."""

    def wrap(self, inner: Accessor, runtime: Runtime) -> Accessor:
        return FirstPartsAccessor(inner)


def parted(size: int = SIZE, *, layers: tuple[Layer, ...] = (), block_bytes: int = BLOCK, **options: Any) -> Any:
    """A bench over a store with ranges side by side."""
    return bench(size, layers=[FirstParts(), *layers], block_bytes=block_bytes, **options)


async def by_read(b: Bench) -> bytes:
    return await b.operator.read("k")


async def by_view(b: Bench) -> bytes:
    return bytes(await b.operator.view("k"))


async def by_read_into(b: Bench) -> bytes:
    buffer = bytearray(SIZE + 100)
    return bytes(buffer[: await b.operator.read_into("k", 0, buffer)])


WAYS = [by_read, by_view, by_read_into]
Way = Callable[[Bench], Coroutine[Any, Any, bytes]]


async def nothing_left(b: Bench) -> None:
    """No request goes on, no task is left, no memory is reserved."""
    await settle()
    assert all(call.ended for call in b.calls)
    others = {task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()}}
    assert others <= {"aioprefetch supervisor"}
    assert b.runtime.budget.used_bytes == b.runtime.budget.waiting == 0


# --- what is read ---------------------------------------------------------------------------------------------------


@given(
    size=st.integers(0, 700),
    offset=st.integers(0, 750),
    length=st.none() | st.integers(0, 750),
    suffix=st.none() | st.integers(0, 750),
    block=st.integers(1, 64),
    memory_blocks=st.integers(1, 40),
    concurrency=st.integers(1, 20),
)
@example(size=700, offset=0, length=None, suffix=None, block=16, memory_blocks=40, concurrency=1)
@settings(max_examples=chosen(quick=150, full=2000))
def test_every_range_is_a_slice(
    size: int, offset: int, length: int | None, suffix: int | None, block: int, memory_blocks: int, concurrency: int
) -> None:
    """By each way; up to two blocks in one request, and no byte twice."""

    async def run() -> None:
        options = {"block_bytes": block, "memory_bytes": block * memory_blocks, "concurrency": concurrency}
        limit = ConcurrentLimitLayer()
        async with parted(size, layers=(limit,), **options) as b:
            place: dict[str, int | None]
            if suffix is None:
                place = {"offset": offset, "size": length}
                expected = b.data[offset:] if length is None else b.data[offset : offset + length]
            else:
                place = {"suffix": suffix}
                expected = b.data[-suffix:] if suffix else b""
            for way in (b.operator.read, b.operator.view):
                b.calls.clear()
                try:
                    found = await way("k", **place)
                except RangeNotSatisfied:
                    assert suffix is None
                    assert size
                    assert offset >= size
                    continue
                assert found == expected
                assert_each_byte_once(b, len(expected), 2 * block)
            if suffix is None and length and offset < size:
                buffer = bytearray(length)
                assert await b.operator.read_into("k", offset, buffer) == len(expected)
                assert buffer[: len(expected)] == expected
            await nothing_left(b)

    run_virtual(run)


def assert_each_byte_once(b: Bench, size: int, first_bytes: int) -> None:
    """One request for a short read; otherwise the lengths of all of them add up to the bytes that were read."""
    if size <= first_bytes:
        assert len(b.calls) <= 1
    else:
        assert sum((call.request.size or call.request.suffix or 0) for call in b.calls) == size


async def test_the_rest_is_requested_as_soon_as_the_head_is_here() -> None:
    """All of it at once, of the version of the head, while the first part still arrives."""
    async with parted(block_bytes=BLOCK) as b:
        b.gate.open = False
        reading = asyncio.create_task(b.operator.read("k"))
        first = await b.next_call()
        first.deliver(10)
        await settle()
        assert len(b.calls) == REQUESTS
        etag = (await b.operator.stat("k")).etag
        assert {call.request.if_match for call in b.calls[1:]} == {etag}
        assert [call.request.lane for call in b.calls] == ["demand", "demand"] + ["prefetch"] * (REQUESTS - 2)
        for call in reversed(b.calls):
            call.finish()
        assert await reading == b.data
        await nothing_left(b)


async def test_the_memory_of_the_result_is_the_memory_that_received_it() -> None:
    """``bytes`` without a copy: at no time is there memory for the object twice."""
    size = 8 * MIB
    async with FaultServer({"bkt/k": b"x" * size}) as server, s3(server) as operator:
        await operator.read("k", size=1)
        tracemalloc.start()
        try:
            data = await operator.read("k")
            assert tracemalloc.get_traced_memory()[1] < 1.5 * size
        finally:
            tracemalloc.stop()
        assert data == b"x" * size


async def test_bytes_that_were_given_out_never_change() -> None:
    """No view of their memory is left: the next read has memory of its own."""
    async with parted() as b:
        first = await b.operator.read("k")
        kept = bytes(bytearray(first))
        b.put(bytes(SIZE))
        assert await b.operator.read("k") == bytes(SIZE)
        assert first == kept == b.data


# --- failures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("way", "point"), in_turns(WAYS, ["call", "head", 100]))
async def test_the_first_failure_is_raised_whichever_request_it_is(way: Way, point: Point) -> None:
    """And ends all others: nothing is in flight, and nothing is reserved."""
    for number in range(REQUESTS):
        fault = FaultLayer((Injection(operation="read", occurrence=number, at=point, error=PermissionDenied),))
        async with parted(layers=(fault,)) as b:
            with in_case(number=number), pytest.raises(PermissionDenied):
                await way(b)
            await nothing_left(b)
            current = asyncio.current_task()
            assert current is not None
            assert current.cancelling() == 0
            assert await way(b) == b.data


@pytest.mark.parametrize("point", ["call", "head", 100])
async def test_any_request_may_fail_for_a_while_and_only_it_is_repeated(point: Point) -> None:
    for number in range(REQUESTS):
        fault = FaultLayer((Injection(operation="read", occurrence=number, at=point, error=Unavailable),))
        async with parted(layers=(fault, RetryLayer(base_seconds=1e-6))) as b:
            with in_case(number=number):
                assert await b.operator.read("k") == b.data
            assert len(b.calls) == REQUESTS + (point != "call")
            assert b.operator.statistics["retries"] == 1
            await nothing_left(b)


@pytest.mark.parametrize(("way", "memory_bytes"), in_turns(WAYS, [8 * MIB, BLOCK]))
async def test_cancelled_at_every_suspension_nothing_is_left_behind(way: Way, memory_bytes: int) -> None:
    suspension, cancelled = 0, True
    slow = FaultLayer(chunk_bytes=3000)
    while cancelled:
        suspension += 1
        assert suspension < 500
        async with parted(6 * BLOCK, layers=(slow,), memory_bytes=memory_bytes) as b:
            cancelled = await was_cancelled(way(b), suspension)
            await nothing_left(b)
            assert await way(b) == b.data
    assert suspension > 2


async def test_a_cancellation_is_not_mistaken_for_the_failure_of_a_part() -> None:
    """Both in one turn of the loop: the caller's cancellation counts."""
    async with parted() as b:
        b.gate.open = False
        reading = asyncio.create_task(b.operator.read("k"))
        (await b.next_call()).deliver(10)
        await settle()
        b.calls[3].fail(PermissionDenied("no", operation="read", path="k"))
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await nothing_left(b)


async def test_a_buffer_is_not_written_to_once_its_read_was_cancelled() -> None:
    async with parted() as b:
        b.gate.open = False
        buffer = bytearray(SIZE)
        reading = asyncio.create_task(b.operator.read_into("k", 0, buffer))
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


# --- one version ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("way", "same_size", "ignores_conditions"), combinations(WAYS, [True, False], [True, False]))
async def test_an_object_overwritten_between_two_requests_is_never_mixed(
    way: Way, same_size: bool, ignores_conditions: bool
) -> None:
    """Also by a store that ignores conditions, where the heads are compared."""
    for number in range(1, REQUESTS):
        async with parted() as b:
            b.gate.open = False
            b.gate.ignores_conditions = ignores_conditions
            reading = asyncio.create_task(way(b))
            (await b.next_call()).deliver(10)
            await settle()
            for call in b.calls[1:number]:
                call.finish()
            await settle()
            b.put(bytes(SIZE if same_size else SIZE // 4))
            for call in b.calls:
                call.finish()
            with in_case(number=number), pytest.raises(ObjectChanged) as changed:
                await reading
            assert changed.value.path == "k"
            await nothing_left(b)


async def test_no_order_of_responses_mixes_versions() -> None:
    """Whichever parts the store sent before it was overwritten, and in whichever order all of them arrive."""
    for seed in chosen(quick=range(5), full=range(200)):
        dice = random.Random(seed)
        async with parted() as b:
            b.gate.open = False
            b.gate.ignores_conditions = dice.random() < 0.5
            reading = asyncio.create_task(b.operator.read("k"))
            first = await b.next_call()
            first.deliver(10)
            await settle()
            late = dice.sample(b.calls[1:], dice.randrange(1, REQUESTS))
            for call in dice.sample(b.calls, REQUESTS):
                if call in late:
                    continue
                if dice.random() < 0.3:
                    call.deliver(1 + dice.randrange(BLOCK))
                else:
                    call.finish()
            await settle()
            b.put(bytes(SIZE))
            for call in dice.sample(b.calls, REQUESTS):
                call.finish()
            with in_case(seed=seed), pytest.raises(ObjectChanged):
                await reading
            await nothing_left(b)


@pytest.mark.parametrize("way", WAYS)
async def test_a_part_that_broke_off_never_goes_on_with_another_version(way: Way) -> None:
    """Whichever part it is: the object is overwritten before its second attempt."""
    for number in range(REQUESTS):
        fault = FaultLayer((Injection(operation="read", occurrence=number, at=100, error=Unavailable),))
        async with parted(layers=(fault, RetryLayer(base_seconds=1e-6))) as b:
            b.runtime.events.subscribe(
                lambda event, b=b: b.put(bytes(SIZE)) if event.name == "request.retried" else None
            )
            with in_case(number=number), pytest.raises(ObjectChanged):
                await way(b)
            assert b.operator.statistics["retries_resumed"] == 1
            await nothing_left(b)


async def test_an_object_deleted_between_two_requests_has_changed() -> None:
    async with parted() as b:
        b.gate.open = False
        reading = asyncio.create_task(b.operator.read("k"))
        (await b.next_call()).deliver(10)
        await settle()
        await b.operator.delete("k")
        b.calls[5].finish()
        with pytest.raises(ObjectChanged, match="deleted"):
            await reading


async def test_a_server_that_ignores_conditions_and_changes_its_object_is_noticed() -> None:
    data = bytes(range(256)) * 1024
    rule = Rule(fault=Fault(etag='"another"', ignore_if_match=True), index=3, times=None)
    async with FaultServer({"bkt/k": data}, [rule]) as server, s3(server, block_bytes=16 * KIB) as operator:
        with pytest.raises(ObjectChanged):
            await operator.read("k")
        await server.wait_until_quiet()


async def test_a_version_is_pinned_by_its_name_only_where_the_store_can_be_asked_for_it() -> None:
    """A head may name a version, but memory keeps none: the ETag pins alone."""
    async with parted() as b:
        b.gate.falsify = lambda head: replace(head, version="v1")
        assert await b.operator.read("k") == b.data
        assert {call.request.version for call in b.calls} == {None}


# --- conditions and limits ------------------------------------------------------------------------------------------


async def test_the_conditions_of_the_caller_hold_for_the_first_request() -> None:
    async with parted() as b:
        etag = (await b.operator.stat("k")).etag
        assert etag is not None
        assert await b.operator.read("k", if_match=etag) == b.data
        assert await b.operator.read("k", if_match="*") == b.data
        assert {call.request.if_match for call in b.calls[1 - REQUESTS :]} == {etag}
        with pytest.raises(ConditionNotMatch):
            await b.operator.read("k", if_match="other")
        b.calls.clear()
        with pytest.raises(ConditionNotMatch):
            await b.operator.read("k", if_none_match=etag)
        assert len(b.calls) == 1
        assert await b.operator.read("k", if_none_match="other") == b.data
        with pytest.raises(NotFound):
            await b.operator.read("nothing")


def test_the_deadline_holds_for_all_requests() -> None:
    async def run() -> None:
        slow = FaultLayer((Injection(operation="read", occurrence=5, delay_seconds=60),))
        async with parted(layers=(slow, TimeoutLayer())) as b:
            with pytest.raises(TimedOut):
                await b.operator.read("k", timeout_seconds=1)
            assert asyncio.get_running_loop().time() < 2
            await nothing_left(b)

    run_virtual(run)


@pytest.mark.parametrize("concurrency", [1, 2, 5, 64])
async def test_the_limit_of_requests_in_flight_holds(concurrency: int) -> None:
    """Also 1, where the rest begins after the first part."""
    counting = FaultLayer()
    async with parted(layers=(counting, ConcurrentLimitLayer()), concurrency=concurrency) as b:
        assert await b.operator.read("k") == b.data
        assert len(b.calls) == REQUESTS
        await nothing_left(b)


async def test_requests_side_by_side_take_their_memory_from_the_budget() -> None:
    """Half of it at most, and none that others hold; two requests need none, so the read goes on."""
    async with parted(200 * BLOCK, memory_bytes=40 * BLOCK) as b:
        b.gate.open = False
        budget = b.runtime.budget
        reading = asyncio.create_task(b.operator.read("k"))
        (await b.next_call()).deliver(10)
        await settle()
        part_bytes = b.calls[1].request.size or 0
        assert len(b.calls) == 3
        assert budget.used_bytes == part_bytes
        b.gate.open = True
        for call in b.calls:
            call.finish()
        assert await reading == b.data
        assert budget.peak_bytes <= budget.limit_bytes
        await nothing_left(b)

    async with parted(memory_bytes=4 * BLOCK) as b:
        taken = b.runtime.budget.request(4 * BLOCK, "demand")
        assert await b.operator.read("k") == b.data
        b.runtime.budget.cancel(taken)
        await nothing_left(b)


def test_a_hundred_long_reads_at_once_end() -> None:
    """With the memory of a few, and the slots of fewer."""

    async def run() -> None:
        slow = FaultLayer((Injection(operation="read", times=None, delay_seconds=0.03),))
        limit = ConcurrentLimitLayer()
        async with parted(layers=(slow, limit), memory_bytes=16 * BLOCK, concurrency=8) as b:
            found = await asyncio.gather(*(b.operator.read("k") for _ in range(100)))
            assert all(data == b.data for data in found)
            assert b.runtime.budget.peak_bytes <= 16 * BLOCK
            await nothing_left(b)

    run_virtual(run)


# --- servers --------------------------------------------------------------------------------------------------------

DATA = bytes(range(256)) * 1024


def s3(server: FaultServer, **options: Any) -> ap.Operator:
    """The bucket by the s3 service, with small blocks."""
    keys: dict[str, Any] = {"access_key_id": "id", "secret_access_key": "secret"}
    options = {"block_bytes": 256 * KIB, **options}
    return ap.Operator.from_uri("s3://bkt", endpoint_url=server.url, region="us-east-1", **keys, **options)


def http(server: FaultServer, **options: Any) -> ap.Operator:
    """The same by the http service."""
    return ap.Operator.from_uri(f"{server.url}/bkt", **{"block_bytes": 16 * KIB, **options})


@pytest.mark.parametrize("connect", [s3, http])
async def test_only_the_missing_end_of_a_broken_part_is_requested_again(
    connect: Callable[..., ap.Operator],
) -> None:
    rule = Rule(fault=Fault(reset_after_bytes=5000), index=4)
    async with FaultServer({"bkt/k": DATA}, [rule]) as server, connect(server, block_bytes=16 * KIB) as operator:
        assert await operator.read("k") == DATA
        assert operator.statistics["retries_resumed"] == 1
        assert server.bytes_sent == len(DATA)


@pytest.mark.parametrize("fault", [Fault(ignore_range=True), Fault(ignore_range=True, chunked=True)])
async def test_a_server_without_ranges_is_read_in_its_one_response(fault: Fault) -> None:
    async with FaultServer({"bkt/k": DATA}, [Rule(fault=fault, times=None)]) as server, http(server) as operator:
        for _ in range(2):
            assert await operator.read("k") == DATA
        assert await operator.view("k") == DATA
        buffer = bytearray(len(DATA))
        assert await operator.read_into("k", 0, buffer) == len(DATA)
        assert buffer == DATA
        server.assert_requests("GET", "GET", "GET", "GET")


async def test_a_store_of_s3_without_ranges_is_read_in_its_one_response() -> None:
    fault = Fault(ignore_range=True)
    async with (
        FaultServer({"bkt/k": DATA}, [Rule(fault=fault, times=None)]) as server,
        s3(server, block_bytes=16 * KIB) as operator,
    ):
        assert await operator.read("k") == DATA
        server.assert_requests("GET")


async def test_a_missing_total_is_refused_where_it_is_needed() -> None:
    fault = Fault(content_range=f"bytes 0-{32 * KIB - 1}/*")
    async with FaultServer({"bkt/k": DATA}, [Rule(fault=fault, times=None)]) as server, http(server) as operator:
        with pytest.raises(ProtocolError, match="where the object ends"):
            await operator.read("k")


async def test_a_size_that_is_a_lie_is_an_error_of_ours() -> None:
    """Whether there is no memory for it, or no part of it."""
    for total in (1 << 60, len(DATA) + (1 << 30)):
        fault = Fault(content_range=f"bytes 0-{32 * KIB - 1}/{total}")
        rule = Rule(fault=fault, index=0)
        async with FaultServer({"bkt/k": DATA}, [rule]) as server, s3(server, block_bytes=16 * KIB) as operator:
            with pytest.raises(Error):
                await operator.read("k")
            await server.wait_until_quiet()
    gc.collect()


@pytest.mark.parametrize("ended", [0, 1, 7, 14])
@pytest.mark.parametrize("connect", [s3, http])
async def test_an_operator_that_is_closed_meanwhile_ends_the_read(
    connect: Callable[..., ap.Operator], ended: int
) -> None:
    """Whichever requests have ended by then; no connection stays open."""
    hang = Rule(fault=Fault(hang_after_bytes=100), matches=lambda request: request.index >= ended, times=None)
    async with FaultServer({"bkt/k": DATA}, [hang]) as server, connect(server, block_bytes=16 * KIB) as operator:
        reading = asyncio.create_task(operator.read("k"))
        await server.wait_for_requests(15)
        await operator.aclose()
        with pytest.raises(Closed) as closed:
            await reading
        assert closed.value.path == "k"
        await server.wait_until_idle()


async def test_an_empty_object_is_one_request() -> None:
    async with FaultServer({"bkt/k": b""}) as server, s3(server) as operator:
        assert await operator.read("k") == b""
        server.assert_requests("GET")

"""Drained responses give way, and their end, good or bad, concerns no read.

No read waits for a slot, a connection or memory that one of them holds.
"""

import asyncio
from typing import Any

import pytest

from aioprefetch import services
from aioprefetch.blocks.fetch import DRAIN_SECONDS_MAX
from aioprefetch.errors import ObjectChanged, PermissionDenied, Unavailable
from aioprefetch.layers import ConcurrentLimitLayer, RetryLayer
from aioprefetch.operator.operator import Operator
from aioprefetch.runtime.events import Event
from aioprefetch.testing import Fault, FaultLayer, FaultServer, Rule
from aioprefetch.testing.oracle import content
from tests.profile import chosen
from tests.stores.gated_reader import KIB, MIB, Bench, Call, bench, in_case, settle
from tests.stores.layer_stack import was_cancelled

BLOCK = 64 * KIB


async def drained_response(b: Bench, path: str, received: int) -> Call:
    """A response that brought that much, and is drained since its reader was closed."""
    if path != "k":
        b.put(b.data, path)
    reader = b.operator.reader(path, policy="sequential")
    task = asyncio.create_task(reader.read_at(BLOCK - 1, 1))
    await settle()
    call = b.calls[-1]
    call.deliver(received)
    await settle()
    await reader.aclose()
    await asyncio.gather(task, return_exceptions=True)
    await settle()
    assert not call.ended
    return call


@pytest.mark.virtual
async def test_a_read_does_not_wait_for_the_slots_of_drained_responses() -> None:
    async with bench(16 * BLOCK, layers=[ConcurrentLimitLayer(2)], drain_bytes=BLOCK) as b:
        b.gate.open = False
        first, second = await drained_response(b, "a", 9000), await drained_response(b, "b", 3000)
        started = b.runtime.now()
        read = asyncio.create_task(b.operator.read("k", offset=0, size=10))
        await settle()
        assert (first.cancelled, second.cancelled) == (False, True), "the one that misses most goes first, alone"
        b.calls[-1].finish()
        assert await read == b.data[:10]
        assert b.runtime.now() == started
        first.finish()


@pytest.mark.virtual
async def test_nothing_is_drained_while_a_read_waits_for_a_slot() -> None:
    async with bench(16 * BLOCK, layers=[ConcurrentLimitLayer(1)], drain_bytes=BLOCK) as b:
        b.gate.open = False
        reader = b.reader()
        left = asyncio.create_task(reader.read_at(BLOCK - 1, 1))
        call = await b.next_call()
        call.deliver(BLOCK - 1)
        await settle()
        read = asyncio.create_task(b.operator.read("k", offset=0, size=10))
        await settle()
        assert len(b.calls) == 1
        started = b.runtime.now()
        await reader.aclose()
        await asyncio.gather(left, return_exceptions=True)
        await settle()
        assert call.cancelled
        b.calls[-1].finish()
        assert await read == b.data[:10]
        assert b.runtime.now() == started


@pytest.mark.virtual
async def test_a_prefetch_that_a_read_awaits_ends_a_drain_when_it_still_queues() -> None:
    async with bench(64 * BLOCK, layers=[ConcurrentLimitLayer(2)], drain_bytes=BLOCK) as b:
        reader = await b.opened()
        drained = await drained_response(b, "a", 100)
        busy = asyncio.create_task(b.operator.read("k", offset=0, size=10))
        await settle()
        slow = b.calls[-1]
        reader.will_need([(8 * BLOCK, 9 * BLOCK)])
        await settle()
        assert (len(b.calls), drained.cancelled) == (2, False)
        read = asyncio.create_task(reader.read_at(8 * BLOCK, 10))
        await settle()
        assert drained.cancelled
        b.calls[-1].finish()
        assert await read == b.data[8 * BLOCK : 8 * BLOCK + 10]
        slow.finish()
        await busy
        await reader.aclose()


@pytest.mark.virtual
async def test_prefetches_that_wait_for_slots_end_no_drain() -> None:
    """A stream has some in the queue at almost any time."""
    async with bench(64 * BLOCK, layers=[ConcurrentLimitLayer(2)], drain_bytes=BLOCK) as b, b.reader() as reader:
        await reader.read_at(0, 10)
        b.gate.open = False
        sent = len(b.calls)
        reader.will_need([(start * BLOCK, (start + 1) * BLOCK) for start in (8, 16, 24)])
        await settle()
        assert len(b.calls) == sent + 1, "the others wait for a slot"
        drained = await drained_response(b, "a", 100)
        drained.finish()
        await settle()
        assert not drained.cancelled
        assert b.runtime.statistics()["stream_drained"] == 1
        b.gate.open = True
        for call in b.calls[sent:]:
            call.finish()


@pytest.mark.virtual
async def test_a_read_does_not_wait_for_the_memory_of_drained_responses() -> None:
    async with bench(16 * MIB, block_bytes=MIB, memory_bytes=2 * MIB, drain_bytes=MIB) as b:
        b.gate.open = False
        calls = []
        for path in ("a", "b", "c"):  # The last one overdraws, so that there is no memory left.
            b.put(b.data, path)
            reader = b.operator.reader(path, policy="sequential")
            task = asyncio.create_task(reader.read_at(MIB - 1, 1))
            await settle()
            calls.append((reader, task, b.calls[-1]))
        assert len(b.calls) == 3
        for reader, task, call in calls:
            call.deliver(1000)
            await settle()
            await reader.aclose()
            await asyncio.gather(task, return_exceptions=True)
        started = b.runtime.now()
        async with b.reader() as reader:
            read = asyncio.create_task(reader.read_at(0, 10))
            await settle()
            assert len(b.calls) == 4, "the read still waits for memory"
            b.calls[-1].finish()
            assert await read == b.data[:10]
        assert b.runtime.now() == started
        assert any(call.cancelled for _, _, call in calls)
        for _, _, call in calls:
            call.finish()
        await settle()


async def test_a_read_does_not_wait_for_the_connection_of_a_drained_response() -> None:
    data = content(2 * BLOCK)
    rules = [
        Rule(fault=Fault(hang_after_bytes=BLOCK + 1000), key="bucket/a"),
        Rule(fault=Fault(hang_after_bytes=BLOCK), key="bucket/b"),
    ]
    async with (
        FaultServer({"bucket/a": data, "bucket/b": data, "bucket/k": data}, rules) as server,
        Operator(
            services.S3(
                bucket="bucket",
                endpoint_url=server.url,
                access_key_id="testing",
                secret_access_key="testing",
                addressing_style="path",
                connections_max=2,
            )
        ) as operator,
    ):
        ended: list[Event] = []
        operator.runtime().events.subscribe(
            lambda event: ended.append(event) if event.name == "block.fetched" else None
        )
        for path in ("a", "b"):
            async with operator.reader(path) as reader:
                assert await reader.read_at(0, 10) == data[:10]
        assert await operator.read("k", offset=5, size=10) == data[5:15]
        # After a second the first one would have ended first.
        assert [(event.path, event.facts["error"]) for event in ended] == [("b", "Closed")]
        assert server.connections == 3


# --- faults ---------------------------------------------------------------------------------------------------------


async def all_back(b: Bench) -> None:
    """No response is under way any more, and no memory is in use but that of bytes that have arrived."""
    await asyncio.sleep(2 * DRAIN_SECONDS_MAX)  # Of the virtual clock.
    await settle()
    assert all(call.ended for call in b.calls)
    budget = b.runtime.budget
    assert budget.waiting == 0
    if budget.reclaim is not None:
        budget.reclaim(budget.used_bytes, "demand")
    assert budget.used_bytes == 0


@pytest.mark.virtual
@pytest.mark.parametrize("error", [Unavailable, PermissionDenied])
@pytest.mark.parametrize("size", [BLOCK, 16 * BLOCK])
async def test_one_that_breaks_off_is_not_repeated_and_fails_no_read(size: int, error: type[Exception]) -> None:
    """Wherever it does; a reader that comes then gets every byte."""
    problems: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
    for received in chosen(quick=(1, 5000, BLOCK - 2), full=range(1, BLOCK - 1, 997)):
        async with bench(size, layers=[RetryLayer()], drain_bytes=BLOCK) as b:
            b.gate.open = False
            call = await drained_response(b, "k", received)
            call.fail(error("it broke off"))
            await settle()
            assert call.ended
            b.gate.open = True
            with in_case(received=received):
                async with b.reader() as reader:
                    assert await reader.read_at(0, BLOCK) == b.data[:BLOCK]
                    assert reader.statistics["stream_read_exceptions"] == 0
                assert b.operator.statistics["retries"] == 0
                assert len(b.calls) == 2
                await all_back(b)
    assert problems == []


@pytest.mark.virtual
@pytest.mark.parametrize("drained_to", ["its end", "a failure", "its time limit"])
async def test_an_object_overwritten_while_one_is_drained_is_never_mixed(drained_to: str) -> None:
    """A reader that is opened afterwards reads the new bytes alone, one that had pinned the old version says so."""
    for received in (1, 5000, BLOCK - 2):
        async with bench(16 * BLOCK, layers=[RetryLayer()], drain_bytes=BLOCK) as b:
            old = await b.opened(policy="random")
            call = await drained_response(b, "k", received)
            written = bytes(16 * BLOCK)
            b.put(written)
            if drained_to == "its end":
                call.finish()
            elif drained_to == "a failure":
                call.fail(Unavailable("it broke off"))
            else:
                await asyncio.sleep(2 * DRAIN_SECONDS_MAX)
            await settle()
            b.gate.open = True
            with in_case(received=received):
                async with b.reader() as new:
                    assert await new.read_at(0, 3 * BLOCK) == written[: 3 * BLOCK]
                assert await old.read_at(0, 1) == b.data[:1]
                with pytest.raises(ObjectChanged):
                    await old.read_at(5 * BLOCK, 10)
                await old.aclose()
                await all_back(b)


@pytest.mark.virtual
@pytest.mark.parametrize("size", [BLOCK, 16 * BLOCK])
@pytest.mark.parametrize("drain_bytes", [0, 4000, BLOCK])
async def test_cancelled_at_every_suspension_nothing_is_left_behind(size: int, drain_bytes: int) -> None:
    """Two readers in turn, each of which reads a little and closes: the second one may meet the drain of the first."""

    async def in_turn(b: Bench) -> None:
        for start in (0, 100):
            async with b.reader() as reader:
                assert await reader.read_at(start, 10) == b.data[start : start + 10]

    suspension, cancelled = 0, True
    while cancelled:
        suspension += 1
        assert suspension < 200
        layers = [FaultLayer(chunk_bytes=9000), ConcurrentLimitLayer(1)]
        async with bench(size, layers=layers, drain_bytes=drain_bytes) as b:
            cancelled = await was_cancelled(in_turn(b), suspension)
            await in_turn(b)
            await all_back(b)
    assert suspension > 2

"""Single flight: who is woken when, who pays for a cancellation, what a failure leaves behind."""

import asyncio
from typing import Any

import pytest

from aioprefetch.blocks.block import SegmentState
from aioprefetch.errors import Closed, Unavailable
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import ReadHead
from tests.profile import each_of
from tests.stores.gated_reader import KIB, MIB, bench, file_of, settle

BLOCK = 64 * KIB
DRAIN_BYTES = 32 * KIB


async def test_many_readers_of_one_block_share_one_request() -> None:
    async with bench() as b:
        reader = await b.opened()
        tasks = [asyncio.create_task(reader.read_at(BLOCK + n, 100)) for n in range(50)]
        call = await b.next_call()
        await settle()
        assert b.ranges == [(BLOCK, 2 * BLOCK)]
        call.finish()
        assert await asyncio.gather(*tasks) == [b.data[BLOCK + n : BLOCK + n + 100] for n in range(50)]
        assert len(b.calls) == 1
        await reader.aclose()


async def test_each_waiter_is_woken_as_soon_as_its_bytes_are_there() -> None:
    async with bench() as b:
        reader = await b.opened()
        near = asyncio.create_task(reader.read_at(BLOCK, 100))
        far = asyncio.create_task(reader.read_at(BLOCK + 1000, 100))
        call = await b.next_call()
        call.deliver(99)
        await settle()
        assert not near.done()
        call.deliver(1)
        await settle()
        assert near.done()
        assert not far.done()
        assert near.result() == b.data[BLOCK : BLOCK + 100]
        call.deliver(1000)
        assert await far == b.data[BLOCK + 1000 : BLOCK + 1100]
        assert not call.ended
        await reader.aclose()
        await settle()
        assert call.cancelled


@checks("reliability:C04")
async def test_a_cancelled_waiter_leaves_its_companions_alone() -> None:
    async with bench() as b:
        reader = await b.opened()
        tasks = [asyncio.create_task(reader.read_at(BLOCK + n, 10)) for n in range(10)]
        call = await b.next_call()
        await settle()
        for task in tasks[::2]:
            task.cancel()
        await settle()
        call.finish()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(found, asyncio.CancelledError) for found in results[::2])
        assert results[1::2] == [b.data[BLOCK + n : BLOCK + n + 10] for n in range(1, 10, 2)]
        assert len(b.calls) == 1
        await reader.aclose()


async def test_the_request_ends_with_its_last_waiter() -> None:
    async with bench() as b:
        reader = await b.opened()
        tasks = [asyncio.create_task(reader.read_at(BLOCK, 10)) for _ in range(3)]
        call = await b.next_call()
        await settle()
        for task in tasks:
            assert not call.cancelled
            task.cancel()
            await settle()
        assert call.cancelled
        assert b.runtime.budget.used_bytes == BLOCK  # The first block alone.
        await reader.aclose()


async def test_the_request_goes_on_once_it_has_served_a_read() -> None:
    """What is left of the block is read ahead for the next one."""
    async with bench() as b:
        reader = await b.opened()
        served, other = (asyncio.create_task(reader.read_at(BLOCK + n, 10)) for n in (0, 5000))
        call = await b.next_call()
        await settle()
        call.deliver(10)
        await served
        other.cancel()
        await settle()
        assert not call.cancelled
        call.finish()
        await settle()
        assert await reader.read_at(2 * BLOCK - 10, 10) == b.data[2 * BLOCK - 10 : 2 * BLOCK]
        assert len(b.calls) == 1
        await reader.aclose()


@each_of("late", [False, True])
@each_of("rounds", range(8))
async def test_who_comes_right_after_the_last_one_left_is_served(rounds: int, late: bool) -> None:
    """A request that is being broken off serves no reader: the next reader starts another."""
    async with bench() as b:
        reader = await b.opened()
        first = asyncio.create_task(reader.read_at(BLOCK, 10))
        await settle(rounds)
        first.cancel()
        if late:
            await asyncio.sleep(0)
        second = asyncio.create_task(reader.read_at(BLOCK, 10))
        await settle()
        for call in b.calls:
            call.finish()
        assert await second == b.data[BLOCK : BLOCK + 10]
        await settle()
        assert first.cancelled()
        assert b.runtime.budget.used_bytes == 2 * BLOCK
        await reader.aclose()


async def test_a_failing_fetch_fails_its_waiters_only_each_with_a_copy() -> None:
    async with bench() as b:
        reader = await b.opened()
        mine = [asyncio.create_task(reader.read_at(BLOCK + n, 10)) for n in range(3)]
        call = await b.next_call()
        other = asyncio.create_task(reader.read_at(4 * BLOCK, 10))
        await settle()
        cause = OSError("wire")
        error = Unavailable("broke", path="k", operation="read")
        error.__cause__ = cause
        call.fail(error)
        b.calls[-1].finish()
        assert await other == b.data[4 * BLOCK : 4 * BLOCK + 10]
        errors = await asyncio.gather(*mine, return_exceptions=True)
        assert [type(one) for one in errors] == [Unavailable] * 3
        assert len({id(one) for one in errors}) == 3
        assert all(isinstance(one, Unavailable) and one.__cause__ is cause for one in errors)
        await reader.aclose()


async def test_what_arrived_before_a_failure_is_kept_and_never_asked_for_again() -> None:
    async with bench() as b:
        reader = await b.opened()
        task = asyncio.create_task(reader.read_at(BLOCK, 2000))
        call = await b.next_call()
        call.deliver(1500)
        call.fail(Unavailable("broke"))
        with pytest.raises(Unavailable):
            await task
        assert await reader.read_at(BLOCK, 1500) == b.data[BLOCK : BLOCK + 1500]
        assert b.runtime.budget.used_bytes == BLOCK + 1500
        assert len(b.calls) == 1
        b.gate.open = True
        assert await reader.read_at(BLOCK, 2000) == b.data[BLOCK : BLOCK + 2000]
        assert b.ranges == [(BLOCK, 2 * BLOCK), (BLOCK + 1500, 2 * BLOCK)]
        await reader.aclose()


async def test_a_waiting_prefetch_is_promoted_past_the_limit() -> None:
    """Prefetch never overdraws and waits; as soon as a reader awaits it, it may."""
    async with bench(memory_bytes=2 * BLOCK) as b:
        reader = await b.opened()
        blocked = asyncio.create_task(reader.read_at(BLOCK, 10))
        await b.next_call()
        reader.will_need([(2 * BLOCK, 4 * BLOCK)])
        await settle()
        in_flight = [one for one in b.calls if one.request.lane == "prefetch"]
        assert len(in_flight) == 1
        awaited = asyncio.create_task(reader.read_at(3 * BLOCK, 10))
        await settle()
        call = b.calls[-1]
        assert (call.request.offset, call.request.lane) == (3 * BLOCK, "demand")
        for one in b.calls:
            one.finish()
        assert await awaited == b.data[3 * BLOCK : 3 * BLOCK + 10]
        await blocked
        await reader.aclose()


async def test_a_failed_prefetch_does_not_fail_the_read_that_awaits_it() -> None:
    async with bench() as b:
        reader = await b.opened()
        reader.will_need([(BLOCK, 2 * BLOCK)])
        call = await b.next_call()
        task = asyncio.create_task(reader.read_at(BLOCK, 10))
        await settle()
        b.gate.open = True
        call.fail(Unavailable("broke"))
        assert await task == b.data[BLOCK : BLOCK + 10]
        assert [one.request.lane for one in b.calls] == ["prefetch", "demand"]
        await reader.aclose()


async def test_a_prefetch_without_waiters_fails_silently() -> None:
    async with bench() as b:
        reader = await b.opened()
        reader.will_need([(BLOCK, 2 * BLOCK)])
        (await b.next_call()).fail(Unavailable("broke"))
        await settle()
        assert b.runtime.budget.used_bytes == BLOCK
        assert reader.statistics["stream_read_exceptions"] == 0
        await reader.aclose()


async def test_two_readers_that_open_at_once_agree_on_the_blocks() -> None:
    """The first block is asked for once, although neither knows the version; its bytes are kept once."""
    async with bench() as b:
        first, second = b.reader(), b.reader()
        found = await asyncio.gather(*(one.read_at(50, 100) for one in (first, second)))
        assert found == [b.data[50:150]] * 2
        await settle()
        assert b.runtime.budget.used_bytes == BLOCK
        assert await second.read_at(0, 10) == b.data[:10]
        await first.aclose()
        assert await second.read_at(BLOCK - 10, 10) == b.data[BLOCK - 10 : BLOCK]
        assert len(b.calls) == 1
        await second.aclose()


async def test_closing_one_reader_does_not_disturb_the_other_on_the_same_fetch() -> None:
    async with bench() as b:
        one = await b.opened()
        two = one.clone()
        mine = asyncio.create_task(one.read_at(BLOCK, 10))
        call = await b.next_call()
        theirs = asyncio.create_task(two.read_at(BLOCK, 10))
        await settle()
        await one.aclose()
        with pytest.raises(Closed):
            await mine
        call.finish()
        assert await theirs == b.data[BLOCK : BLOCK + 10]
        assert len(b.calls) == 1
        await two.aclose()


async def test_closing_the_last_reader_leaves_a_request_to_who_waits_for_it() -> None:
    """A waiter without a cursor in the file, as a reader does whose request is shared while it opens."""
    async with bench() as b:
        reader = await b.opened()
        file = file_of(reader)
        task = asyncio.create_task(reader.read_at(BLOCK, 10))
        call = await b.next_call()
        (fetch,) = file.fetches
        wait = fetch.join(2 * BLOCK)
        await reader.aclose()
        await asyncio.gather(task, return_exceptions=True)
        assert not call.cancelled
        call.finish()
        assert wait.future is not None
        await wait.future
        wait.close()
        assert file.holds(BLOCK, 2 * BLOCK)


async def test_bytes_that_come_after_the_request_was_broken_off_fill_nothing() -> None:
    """A service that shields its work may go on with the sink of a cancelled fetch."""
    async with bench(2 * MIB) as b:
        reader = await b.opened()
        file = file_of(reader)
        task = asyncio.create_task(reader.read_at(BLOCK, BLOCK))
        call = await b.next_call()
        call.deliver(1000)
        await settle()
        (fetch,) = file.fetches
        (kept,) = fetch.segments
        wait = fetch.join(BLOCK + 1000)
        wait.pin()  # So that the fetch keeps its segments.
        task.cancel()
        fetch.cancel()
        await settle()
        assert (fetch.finished, kept.filled, kept.state) == (True, 1000, SegmentState.READY)
        fetch.feed(bytes(5000))
        assert (kept.filled, kept.end) == (1000, BLOCK + 1000)
        wait.close()
        b.gate.open = True
        assert await reader.read_at(BLOCK, BLOCK) == b.data[BLOCK : 2 * BLOCK]
        await reader.aclose()


async def test_a_response_after_the_request_was_broken_off_changes_nothing() -> None:
    """A service that shields its work may begin the sink of a cancelled fetch: it is refused."""
    async with bench(2 * MIB) as b:
        reader = await b.opened()
        task = asyncio.create_task(reader.read_at(BLOCK, 10))
        await b.next_call()
        (fetch,) = file_of(reader).fetches
        task.cancel()
        await settle()
        used = b.runtime.budget.used_bytes
        with pytest.raises(Closed):
            fetch.begin(ReadHead(start=BLOCK, size=BLOCK, total=2 * MIB, etag=reader.etag))
        assert b.runtime.budget.used_bytes == used
        assert fetch.segments == []
        await reader.aclose()


@each_of(("left", "is_received"), [(0, True), (DRAIN_BYTES, True), (DRAIN_BYTES + 1, False)])
@each_of("served", [True, False])
async def test_what_is_nearly_there_when_its_reader_closes_is_received(
    left: int, is_received: bool, served: bool
) -> None:
    """To break it off would cost its connection."""
    async with bench(4 * BLOCK, block_bytes=2 * BLOCK, drain_bytes=DRAIN_BYTES) as b:
        reader = b.reader()
        b.gate.open = False
        task = asyncio.create_task(reader.read_at(0 if served else 2 * BLOCK - 1, 1))
        call = await b.next_call()
        call.deliver(2 * BLOCK - left)
        if served:  # In the turn in which the read ends its request has not ended yet.
            await task
        else:
            await settle()
        await reader.aclose()
        await asyncio.gather(task, return_exceptions=True)
        call.finish()
        await settle()
        assert (call.ended, call.cancelled) == (True, not is_received)
        assert b.operator.statistics["stream_aborted"] == (not is_received)
        assert b.operator.statistics["stream_drained"] == (is_received and left > 0)
        again = b.reader()
        b.gate.open = True
        assert await again.read_at(BLOCK, BLOCK) == b.data[BLOCK : 2 * BLOCK]
        assert b.calls[-1].request.if_none_match == (again.etag if is_received else None)
        await again.aclose()


async def test_a_request_without_a_response_is_broken_off_however_little_it_asks_for() -> None:
    async with bench() as b:
        b.gate.open = False
        reader = b.reader(policy="random")
        task = asyncio.create_task(reader.read_at(0, 10))
        call = await b.next_call()
        await reader.aclose()
        await asyncio.gather(task, return_exceptions=True)
        await settle()
        assert call.cancelled


async def test_a_fetch_that_succeeds_makes_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would cost more than the rest of the fetch's bookkeeping."""
    made: list[str] = []

    def closed(message: str, **options: Any) -> Closed:
        made.append(message)
        return Closed(message, **options)

    monkeypatch.setattr("aioprefetch.blocks.store.Closed", closed)
    async with bench() as b:
        async with b.reader() as reader:
            assert await reader.read_at(0, 3 * BLOCK) == b.data[: 3 * BLOCK]
        await settle()
        assert made == []


async def test_a_read_that_is_repeated_after_its_response_stalled_gets_another_one() -> None:
    async with bench() as b:
        reader = await b.opened()
        b.gate.open = False

        async def give_up_a_read(delivered: int) -> None:
            task = asyncio.create_task(reader.read_at(2 * BLOCK - 10, 10))
            await settle()
            b.calls[0].deliver(delivered)
            await settle()
            task.cancel()
            await settle()

        await give_up_a_read(BLOCK - 100)  # Little is missing: the response is drained.
        assert [call.cancelled for call in b.calls] == [False]
        await give_up_a_read(0)  # It brought nothing during a whole read.
        assert [call.cancelled for call in b.calls] == [True]
        again = asyncio.create_task(reader.read_at(2 * BLOCK - 10, 10))
        (await b.next_call()).finish()
        assert await again == b.data[2 * BLOCK - 10 : 2 * BLOCK]
        await reader.aclose()

"""Closing, cancelling at every suspension, sharing, hints, streams and vectored reads that are left early."""

import asyncio
import copy
import pickle
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from aioprefetch import RangeReader
from aioprefetch.errors import Closed, InvalidArgument, InvalidRange, InvalidType, RangeNotSatisfied
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.testing.fault_layer import FaultLayer
from tests.profile import chosen
from tests.stores.gated_reader import KIB, MIB, Bench, bench, file_of, in_case, reads_of, settle
from tests.stores.layer_stack import was_cancelled

BLOCK = 64 * KIB


async def nothing_left(b: Bench, reader: RangeReader) -> None:
    """No waiter, no pin, no fetch, no queue; all memory belongs to resident blocks."""
    await settle()
    budget = b.runtime.budget
    assert budget.waiting == 0
    if reader.size is None:  # Nothing was read.
        return
    opened, file = reads_of(reader).opened, file_of(reader)
    assert not opened.waits
    assert all(not fetch.has_waiters for fetch in file.fetches)
    assert sum(one.pins for block in file.blocks.values() for one in block.segments) == 0
    await reader.unbuffer()
    await settle()
    assert file.fetches == []
    assert budget.used_bytes == 0


async def read_ranges(reader: RangeReader, b: Bench) -> None:
    """Several ranges, some merged."""
    ranges = [(BLOCK, BLOCK + 10), (BLOCK + 50, BLOCK + 60), (5 * BLOCK - 9, 5 * BLOCK + 9), (0, 3)]
    assert await reader.read_ranges(ranges, gap_bytes=100) == [b.data[start:end] for start, end in ranges]


async def stream(reader: RangeReader, b: Bench) -> None:
    """A stream from the middle."""
    reader.seek(6 * BLOCK)
    assert b"".join([chunk async for chunk in reader.stream(50_000)]) == b.data[6 * BLOCK :]


async def read_at(reader: RangeReader, b: Bench) -> None:
    """A read over several blocks."""
    assert await reader.read_at(BLOCK - 5, 3 * BLOCK) == b.data[BLOCK - 5 : 4 * BLOCK - 5]


async def view_at(reader: RangeReader, b: Bench) -> None:
    """A view in one block."""
    assert bytes(await reader.view_at(3 * BLOCK, 500)) == b.data[3 * BLOCK : 3 * BLOCK + 500]


async def readinto(reader: RangeReader, b: Bench) -> None:
    """Into a buffer, from the end."""
    target = bytearray(100)
    reader.seek(-100, 2)
    assert await reader.readinto(target) == 100
    assert target == b.data[-100:]


@checks("reliability:C01")
@pytest.mark.parametrize("memory_bytes", [8 * MIB, 2 * BLOCK])
@pytest.mark.parametrize("verb", [read_at, view_at, read_ranges, stream, readinto])
async def test_cancelled_at_every_suspension_nothing_is_left_behind(
    verb: Callable[[RangeReader, Bench], Coroutine[Any, Any, None]], memory_bytes: int
) -> None:
    suspension, cancelled = 0, True
    slow = FaultLayer(chunk_bytes=20_000)  # Head and body come apart, the body in pieces.
    while cancelled:
        suspension += 1
        assert suspension < 500
        async with bench(8 * BLOCK, memory_bytes=memory_bytes, layers=[slow]) as b, b.reader() as reader:
            cancelled = await was_cancelled(verb(reader, b), suspension)
            await nothing_left(b, reader)
            reader.seek(0)
            await verb(reader, b)
            await nothing_left(b, reader)
    assert suspension > 2


@checks("reliability:C14")
async def test_closing_ends_the_reads_of_other_tasks_at_once() -> None:
    async with bench() as b:
        reader = await b.opened()
        reads: list[Coroutine[Any, Any, object]] = [
            reader.read_at(BLOCK, 10),
            reader.read(3 * BLOCK),
            reader.view_at(5 * BLOCK, 10),
            reader.read_ranges([(6 * BLOCK, 6 * BLOCK + 5), (9 * BLOCK, 9 * BLOCK + 5)]),
            reader.readinto(bytearray(5 * BLOCK)),
        ]
        tasks = [asyncio.create_task(one) for one in reads]
        await settle()
        await reader.aclose()
        await settle()
        assert all(task.done() for task in tasks)
        assert {type(task.exception()) for task in tasks} == {Closed}
        assert all(call.cancelled for call in b.calls)


async def closing_during_the_first_request(rounds: int) -> None:
    async with bench() as b:
        reader = b.reader()
        task = asyncio.create_task(reader.read_at(0, 3 * BLOCK))
        await settle(rounds)
        await reader.aclose()
        await settle()
        assert task.done()
        error = task.exception()
        if error is not None:
            assert isinstance(error, Closed)
        else:
            assert task.result() == b.data[: 3 * BLOCK]
        assert all(call.ended for call in b.calls)
        assert b.runtime.budget.waiting == 0


@checks("reliability:C14")
async def test_closing_during_the_first_request() -> None:
    """Whatever has come of it by then: the read ends with its bytes or as closed, and nothing goes on."""
    for rounds in chosen(quick=range(12), full=range(12)):
        with in_case(rounds=rounds):
            await closing_during_the_first_request(rounds)


async def test_closed_between_the_first_head_and_its_reader_taking_note() -> None:
    """The reading task is woken by the head, but the reader is closed before it has a turn."""
    async with bench() as b:
        reader = b.reader()
        b.gate.open = False
        task = asyncio.create_task(reader.read_at(0, 10))
        call = await b.next_call()
        await settle()
        call.deliver(0)
        while reader.size is None:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await reader.aclose()
        with pytest.raises(Closed):
            await asyncio.wait_for(task, 5)
        await settle()
        assert len(b.calls) == 1
        assert call.cancelled


@checks("reliability:C13")
async def test_a_closed_reader_refuses_everything_by_name() -> None:
    async with bench() as b:
        reader = await b.opened()
        await reader.aclose()
        await reader.aclose()
        await reader.unbuffer()
        calls: list[Callable[[], Any]] = [
            lambda: reader.read_at(0, 1),
            lambda: reader.read(1),
            lambda: reader.view_at(0, 1),
            lambda: reader.readinto(bytearray(1)),
            lambda: reader.read_ranges([(0, 1)]),
            lambda: reader.reopen(),
            lambda: reader.__aenter__(),
        ]
        for call in calls:
            with pytest.raises(Closed) as caught:
                await call()
            assert caught.value.path == "k"
            assert caught.value.operation
        plain: list[Callable[[], object]] = [
            lambda: reader.seek(0),
            lambda: reader.tell(),
            lambda: reader.stream(),
            lambda: reader.clone(),
            lambda: reader.will_need([(0, 1)]),
            lambda: reader.set_policy("random"),
        ]
        for refused in plain:
            with pytest.raises(Closed):
                refused()
        assert reader.closed
        assert "closed" in repr(reader)


async def test_a_reader_says_why_it_cannot_be_pickled_used_or_not() -> None:
    async with bench(BLOCK) as b:
        for reader in (b.operator.reader("k"), b.operator.reader("k")):
            with pytest.raises(InvalidType, match="pickle the Operator and open the path again") as caught:
                pickle.dumps(reader)
            assert (caught.value.operation, caught.value.path) == ("pickle", "k")
            with pytest.raises(InvalidType):
                copy.copy(reader)
            await reader.read(1)
            with pytest.raises(InvalidType, match="cannot be pickled"):
                pickle.dumps(reader)
            await reader.aclose()


async def test_a_clone_shares_blocks_and_has_a_cursor_of_its_own() -> None:
    async with bench() as b:
        reader = b.reader(policy="sequential")
        reader.seek(100)
        await reader.read(10)
        twin = reader.clone()
        assert (twin.tell(), twin.size, twin.etag) == (0, MIB, reader.etag)
        assert await twin.read(10) == b.data[:10]
        assert len(b.calls) == 1
        await reader.aclose()
        assert await twin.read_at(BLOCK - 5, 5) == b.data[BLOCK - 5 : BLOCK]
        b.put(bytes(MIB))
        assert await twin.read(10) == b.data[10:20]
        await twin.aclose()
        assert len(b.calls) == 1


async def test_unbuffer_gives_memory_back_and_the_next_read_works() -> None:
    async with bench() as b, b.reader() as reader:
        await reader.read_at(0, 3 * BLOCK)
        reader.seek(7)
        await reader.unbuffer()
        await settle()
        assert b.runtime.budget.used_bytes == 0
        assert reader.tell() == 7
        assert await reader.read(5) == b.data[7:12]
        assert reader.statistics["stream_read_unbuffered"] == 1


async def test_unbuffer_keeps_what_another_reader_has_open() -> None:
    async with bench() as b, b.reader() as reader:
        await reader.read_at(0, 10)
        async with reader.clone() as twin:
            await twin.read_at(0, 10)
            await reader.unbuffer()
            assert await twin.read_at(5, 10) == b.data[5:15]
        assert len(b.calls) == 1


async def test_will_need_fetches_in_the_prefetch_lane_and_reads_find_it() -> None:
    async with bench() as b, b.reader() as reader:
        await reader.read_at(0, 10)
        reader.will_need([(3 * BLOCK + 5, 4 * BLOCK + 5), (MIB + 5, MIB + 10)])
        await settle()
        assert [(c.request.offset, c.request.lane) for c in b.calls[1:]] == [
            (3 * BLOCK, "prefetch"),
            (4 * BLOCK, "prefetch"),
        ]
        assert await reader.read_at(4 * BLOCK, 10) == b.data[4 * BLOCK : 4 * BLOCK + 10]
        reader.will_need([(3 * BLOCK, 4 * BLOCK)])
        await settle()
        assert len(b.calls) == 3
        assert b.runtime.statistics()["stream_read_prefetch_operations"] == 2
        with pytest.raises(InvalidRange):
            reader.will_need([(5, 1)])
        with pytest.raises(InvalidType):
            reader.will_need(5)  # type: ignore[arg-type]


async def test_prefetching_switched_off() -> None:
    async with bench() as b, b.reader(prefetch_enabled=False) as reader:
        await reader.read_at(0, 10)
        reader.will_need([(3 * BLOCK, 4 * BLOCK)])
        await settle()
        assert len(b.calls) == 1


async def test_a_stream_looks_ahead_but_not_beyond_its_split() -> None:
    async with bench(prefetch_blocks=3) as b, b.reader(split=(0, 3 * BLOCK)) as reader:
        iterator = reader.stream(1000)
        assert await anext(iterator) == b.data[:1000]
        assert await anext(iterator) == b.data[1000:2000]
        await settle()
        assert {c.request.offset // BLOCK for c in b.calls} == {0, 1, 2}
        await iterator.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(iterator)
        assert reader.tell() == 2000
        rest = b"".join([chunk async for chunk in reader.stream()])
        assert rest == b.data[2000:]
        assert sum(c.request.size or 0 for c in b.calls) == MIB


async def test_an_iterator_closed_by_another_task_ends() -> None:
    async with bench() as b:
        reader = await b.opened()
        iterator = reader.iter_ranges([(3 * BLOCK, 3 * BLOCK + 10)])
        pending = asyncio.ensure_future(anext(iterator))
        await settle()
        await iterator.aclose()
        with pytest.raises((StopAsyncIteration, asyncio.CancelledError)):
            await pending
        await nothing_left(b, reader)
        await reader.aclose()


async def test_vectored_reads_merge_and_never_pin_the_merged_buffer() -> None:
    async with bench() as b, b.reader() as reader:
        await reader.read_at(0, 1)
        ranges = [(2 * KIB - 101, 2 * KIB - 1), (8 * KIB, 8 * KIB + 100), (10 * KIB, 10 * KIB + 100)]
        shifted = [(start + 5 * BLOCK, end + 5 * BLOCK) for start, end in ranges]
        found = await reader.read_ranges([*shifted, shifted[0]], gap_bytes=4 * KIB)
        assert found == [b.data[start:end] for start, end in [*shifted, shifted[0]]]
        assert b.ranges[1:] == [shifted[0], (shifted[1][0], shifted[2][1])]
        counts = reader.statistics
        assert counts["stream_read_vectored_incoming_ranges"] == 4
        assert counts["stream_read_vectored_combined_ranges"] == 2
        assert all(type(part) is bytes for part in found)


@pytest.mark.parametrize("opened", [False, True])
async def test_a_range_past_the_end_is_refused_before_anything_is_read(opened: bool) -> None:
    """V10, V12."""
    async with bench(1000) as b, b.reader() as reader:
        if opened:
            await reader.read_at(0, 1)
        before = len(b.calls)
        with pytest.raises(RangeNotSatisfied):
            await reader.read_ranges([(0, 10), (990, 1001)])
        assert len(b.calls) <= before + (not opened)
        with pytest.raises(InvalidRange):
            reader.iter_ranges([(5, 1)])
        for options in ({"gap_bytes": -1}, {"request_bytes_max": 0}, {"gap_bytes": 1.5}):
            with pytest.raises(InvalidArgument):
                await reader.read_ranges([(0, 1)], **options)


async def test_many_ranges_with_little_memory() -> None:
    async with bench(memory_bytes=2 * BLOCK, block_bytes=BLOCK) as b, b.reader() as reader:
        ranges = [(start, start + 3000) for start in range(0, MIB - 3000, 10_000)]
        jobs = [reader.read_ranges(ranges, gap_bytes=gap) for gap in (0, 10_000, 100_000)]
        for found in await asyncio.gather(*jobs):
            assert found == [b.data[start:end] for start, end in ranges]
        assert b.runtime.budget.peak_bytes <= 3 * BLOCK


async def test_capabilities_and_repr() -> None:
    async with bench() as b, b.reader() as reader:
        assert reader.has_capability("IN:READVECTORED")
        assert not reader.has_capability("fly")
        assert "size=None" in repr(reader)
        await reader.read_at(0, 1)
        assert f"size={MIB}" in repr(reader)

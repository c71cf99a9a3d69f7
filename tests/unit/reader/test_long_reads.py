"""Reads of more than a reader keeps: parallel requests into the memory of the result, and all that can go wrong."""

import asyncio
import tracemalloc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from aioprefetch.errors import Closed, ObjectChanged, PermissionDenied
from aioprefetch.operator.operator import Operator
from aioprefetch.reader.reader import RangeReader
from aioprefetch.runtime.events import Event
from aioprefetch.testing import FaultLayer, Injection
from aioprefetch.testing.oracle import assert_same_bytes
from tests.profile import each_of, in_turns
from tests.stores.computed_store import MIB, Arithmetic, Distance, blank
from tests.stores.gated_reader import KIB, Bench, bench, resident_blocks, settle

BLOCK = 4 * KIB
SIZE = 20 * BLOCK + 777
# With ``wide_memory``: one of its own, and as many as half of the memory has room for.
AT_ONCE = 9


def small_memory(size: int = SIZE, **options: Any) -> Any:
    """A bench with memory for a quarter of the object, so that a read of all of it is long."""
    return bench(size, **{"block_bytes": BLOCK, "memory_bytes": 5 * BLOCK, **options})


def wide_memory() -> Any:
    """A bench whose memory is just too small for the object: about half of the requests may be in flight at once."""
    return small_memory(memory_bytes=20 * BLOCK)


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


@each_of("way", WAYS)
@each_of("policy", ["adaptive", "sequential", "whole-file", "random", "parquet"])
async def test_each_byte_is_requested_once_and_stays_in_no_block(policy: str, way: Way) -> None:
    async with small_memory() as b, b.reader(policy=policy) as reader:
        assert_same_bytes(await way(reader), b.data)
        assert requested_bytes(b) == SIZE
        assert len(resident_blocks(reader)) <= 2
        assert reader.statistics["stream_read_block_read"] == len(b.calls)
        await nothing_left(b)


async def test_the_rest_is_requested_as_soon_as_the_head_is_here() -> None:
    """While the first block still arrives; one request in the lane of demand, the others as far as there is memory."""
    async with wide_memory() as b, b.reader() as reader:
        b.gate.open = False
        reading = asyncio.create_task(reader.read())
        (await b.next_call()).deliver(10)
        await settle()
        assert len(b.calls) == 1 + AT_ONCE
        assert [call.request.lane for call in b.calls] == ["demand", "demand"] + ["prefetch"] * (AT_ONCE - 1)
        assert len({call.request.if_match for call in b.calls[1:]}) == 1
        b.gate.open = True
        for call in reversed(b.calls):
            call.finish()
        assert_same_bytes(await reading, b.data)
        await nothing_left(b)


async def test_resident_bytes_and_those_in_flight_are_used() -> None:
    async with wide_memory() as b, b.reader() as reader:
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


@pytest.mark.parametrize(("way", "policy"), in_turns(WAYS, ["adaptive", "sequential", "random", "parquet"]))
@pytest.mark.parametrize("keep_behind", [None, False])
async def test_what_fits_is_requested_once_however_often_it_is_read(
    policy: str, way: Way, keep_behind: bool | None
) -> None:
    """Also if it takes more than half of the memory: it stays in blocks."""
    async with small_memory(memory_bytes=24 * BLOCK) as b, b.reader(policy=policy, keep_behind=keep_behind) as reader:
        for _ in range(3):
            reader.seek(0)
            assert_same_bytes(await way(reader), b.data)
        assert requested_bytes(b) == SIZE


async def test_a_long_part_that_fits_is_requested_once_however_often_it_is_read() -> None:
    async with small_memory(memory_bytes=24 * BLOCK) as b, b.reader(keep_behind=False) as reader:
        for _ in range(3):
            assert_same_bytes(await reader.read_at(5 * BLOCK, 4 * BLOCK), b.data[5 * BLOCK : 9 * BLOCK])
        assert requested_bytes(b) == 4 * BLOCK


@each_of("way", WAYS)
@each_of("policy", ["adaptive", "random"])
async def test_a_reader_that_goes_back_reads_through_blocks(policy: str, way: Way) -> None:
    """By its cursor or by position: what memory can just hold is resident after the second pass."""
    async with small_memory(memory_bytes=21 * BLOCK) as b, b.reader(policy=policy) as reader:
        for _ in range(4):
            reader.seek(0)
            assert_same_bytes(await way(reader), b.data)
        assert SIZE < requested_bytes(b) <= 2 * SIZE


async def test_what_a_reader_keeps_by_option_stays_in_blocks() -> None:
    async with small_memory(memory_bytes=21 * BLOCK) as b, b.reader(keep_behind=True) as reader:
        for _ in range(3):
            assert_same_bytes(await reader.read_at(0, None), b.data)
        assert requested_bytes(b) == SIZE


@pytest.mark.parametrize("policy", ["random", "hbase"])
async def test_a_long_part_goes_past_the_blocks_where_nothing_is_looked_ahead_to(policy: str) -> None:
    async with small_memory() as b, b.reader(policy=policy) as reader:
        await reader.read_at(0, 1)
        before = resident_blocks(reader)
        assert_same_bytes(await reader.read_at(2 * BLOCK, 8 * BLOCK), b.data[2 * BLOCK : 10 * BLOCK])
        assert resident_blocks(reader) == before


async def test_a_read_to_the_end_of_the_split_goes_past_the_blocks() -> None:
    """Nothing is looked ahead to behind it, as behind the end of the object."""
    async with small_memory() as b, b.reader(split=(2 * BLOCK, 10 * BLOCK)) as reader:
        assert_same_bytes(await reader.read_at(2 * BLOCK, 8 * BLOCK), b.data[2 * BLOCK : 10 * BLOCK])
        assert len(resident_blocks(reader)) <= 1
        assert requested_bytes(b) == 8 * BLOCK


@each_of(
    ("chunk_blocks", "memory_blocks", "keep_behind"), [(3, 256, False), (33, 64, None), (33, 64, False), (70, 64, None)]
)
@each_of("policy", ["adaptive", "sequential"])
@each_of("streams", [True, False])
async def test_a_stream_in_large_chunks_keeps_its_window(
    chunk_blocks: int, memory_blocks: int, keep_behind: bool | None, policy: str, streams: bool
) -> None:
    """With every ``keep_behind``: from the second chunk on the next blocks are requested with each."""
    size, chunk_bytes = 300 * BLOCK, chunk_blocks * BLOCK + 1
    async with (
        small_memory(size, memory_bytes=memory_blocks * BLOCK, prefetch_blocks=4) as b,
        b.reader(policy=policy, keep_behind=keep_behind) as reader,
    ):
        stream = reader.stream(chunk_bytes)
        chunks = 0
        while data := await anext(stream, b"") if streams else await reader.read(chunk_bytes):
            position, chunks = reader.tell(), chunks + 1
            assert_same_bytes(data, b.data[position - len(data) : position])
        assert requested_bytes(b) == size
        assert reader.statistics["stream_read_prefetch_operations"] >= chunks - 2 > 0


async def test_a_read_for_which_there_is_no_memory_says_so() -> None:
    """Before a request is sent for it; the reader stays usable."""
    service = Arithmetic(1 << 60, content=blank)
    async with Operator(service, memory_bytes=8 * MIB, block_bytes=MIB) as operator, operator.reader("k") as reader:
        await reader.read_at(0, 1)
        requests = len(service.log)
        with pytest.raises(MemoryError):
            await reader.read_at(0, None)
        assert len(service.log) == requests
        assert len(await reader.read_at(5 * MIB, 10)) == 10


# --- statistics and events ------------------------------------------------------------------------------------------


@pytest.mark.virtual
@pytest.mark.parametrize("in_flight", [False, True])
async def test_it_is_counted_what_is_sent_and_how_long_it_waits(in_flight: bool) -> None:
    """The waits for blocks in flight and for the rest are counted one after the other, and never twice."""
    service = Arithmetic(16 * MIB, distance=Distance(first_byte_seconds=0.030, bytes_per_second=90e6))
    async with Operator(service, memory_bytes=8 * MIB, block_bytes=MIB) as operator, operator.reader("k") as reader:
        await reader.read_at(0, MIB)
        if in_flight:
            reader.will_need([(5 * MIB, 7 * MIB)])
        runtime = operator.runtime()
        ended: list[Event] = []
        runtime.events.subscribe(lambda event: ended.append(event) if event.name == "range.fetched" else None)
        before, begun, requests = reader.statistics, runtime.now(), len(service.log)
        assert len(await reader.read_at(0, None)) == 16 * MIB
        waited = runtime.now() - begun
        counts = reader.statistics
        added = {name: counts[name] - before[name] for name in counts}
        assert added["demand_wait_microseconds"] == pytest.approx(waited * 1e6, abs=5)
        assert 1 <= added["stream_read_block_acquire_read"] <= 1 + 2 * in_flight
        assert added["stream_read_block_read"] == len(service.log) - requests == len(ended) + 2 * in_flight
        assert added["stream_read_block_acquire_read.failures"] == added["stream_read_block_read.failures"] == 0
        ranges = [(event.facts["start"], event.facts["end"]) for event in ended]
        assert sorted(ranges) == sorted((one.start, one.end) for one in service.log[requests + 2 * in_flight :])
        assert sum(int(str(event.facts["received"])) for event in ended) == (15 - 2 * in_flight) * MIB
        assert {event.facts["error"] for event in ended} == {None}


async def test_a_failure_is_counted_once_as_that_of_a_request_and_of_a_wait() -> None:
    fault = FaultLayer((Injection(operation="read", occurrence=3, at=100, error=PermissionDenied),))
    async with small_memory(layers=(fault,)) as b, b.reader() as reader:
        errors: list[object] = []
        b.runtime.events.subscribe(lambda event: errors.append(event.facts.get("error")))
        with pytest.raises(PermissionDenied):
            await reader.read()
        counts = reader.statistics
        assert counts["stream_read_block_read.failures"] == counts["stream_read_block_acquire_read.failures"] == 1
        assert errors.count("PermissionDenied") == 1


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


@each_of("way", WAYS)
@each_of("ended", [0, 1, 7])
async def test_a_reader_that_is_closed_meanwhile_ends_the_read(way: Way, ended: int) -> None:
    async with wide_memory() as b:
        reader = b.reader()
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
    async with wide_memory() as b, b.reader() as reader:
        b.gate.open = False
        reading = asyncio.create_task(reader.read_at(0, None))
        (await b.next_call()).deliver(10)
        await settle()
        b.gate.open = True
        await reader.reopen()
        with pytest.raises(ObjectChanged):
            await reading


# --- one version ----------------------------------------------------------------------------------------------------

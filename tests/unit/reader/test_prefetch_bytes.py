"""What was fetched ahead is the object's bytes: after retries, overwrites, broken-off requests and shared readers."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import pytest

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.sink import CollectSink, Sink
from aioprefetch.errors import Closed, ObjectChanged, ProtocolError, TimedOut, Unavailable
from aioprefetch.layers import RetryLayer
from aioprefetch.operator.operator import Operator
from aioprefetch.reader.reader import RangeReader
from aioprefetch.services.http import Http
from aioprefetch.testing import Fault, FaultLayer, FaultServer, Injection, Rule, run_virtual
from aioprefetch.testing.conformance.suite import RecordingLayer
from aioprefetch.testing.oracle import assert_same_bytes, content
from aioprefetch.values import ReadReply, ReadRequest
from tests.profile import each_of
from tests.stores.gated_reader import KIB, MIB, bench, settle, with_etag
from tests.stores.verb_layer import VerbLayer
from tests.unit.reader.ahead import (
    AHEAD,
    BLOCK,
    READS,
    SIZE,
    ahead_bench,
    answer_all,
    assert_all_given_back,
    demands,
    fetching_ahead,
)

LARGE = 256 * KIB
CUTS = range(64 * KIB, LARGE + 1, 64 * KIB)

# Of the virtual clock: longer than a retry waits.
PAUSE_SECONDS = 60.0


async def read_through(reader: RangeReader, size: int, chunk: int) -> bytes:
    """From front to back, in pieces that do not fit the blocks."""
    pieces = []
    while piece := await reader.read(chunk):
        pieces.append(piece)
    assert reader.tell() == size
    return b"".join(pieces)


# --- retries --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attempts", [4, 40], ids=["given up at times", "always resumed"])
@pytest.mark.parametrize("at", CUTS)
def test_bodies_that_break_off_at_every_boundary(at: int, attempts: int) -> None:
    """Each response, resumed ones too, ends after ``at`` bytes; none that was delivered is asked for again."""

    async def run() -> None:
        size = 2 * MIB + 4321
        cut = FaultLayer((Injection(operation="read", times=None, at=at, error=Unavailable),))
        log = RecordingLayer()
        layers = [cut, log, RetryLayer(attempts_max=attempts)]
        async with bench(size, block_bytes=LARGE, prefetch_blocks=AHEAD, layers=layers) as b:
            async with b.reader(policy="adaptive") as reader:
                assert_same_bytes(await read_through(reader, size, 100_000), b.data)
            served = sorted((one.offset, min(one.offset + (one.size or 0), size, one.offset + at)) for one in log.reads)
            assert [low for low, _ in served[1:]] == [high for _, high in served[:-1]]
            assert (served[0][0], served[-1][1]) == (0, size)
            assert any(one.lane == "prefetch" for one in log.reads)

    run_virtual(run, seed=at)


@each_of("how", ["close_after_bytes", "reset_after_bytes"])
@each_of("at", CUTS)
async def test_connections_that_break_off_at_every_boundary(at: int, how: str) -> None:
    """The same through sockets: the second and the third answer of eight end early."""
    data = content(2 * MIB)
    fault = Fault(close_after_bytes=at) if how == "close_after_bytes" else Fault(reset_after_bytes=at)
    async with FaultServer({"base/k": data}, [Rule(fault=fault, index=index) for index in (1, 2, 5)]) as server:
        service = Http(server.url + "/base/", proxies={})
        operator = Operator(service, block_bytes=LARGE, memory_bytes=16 * MIB).layer(RetryLayer(base_seconds=0.0))
        async with operator, operator.reader("k", prefetch_growth="step") as reader:
            assert_same_bytes(await read_through(reader, len(data), 100_000), data)
        assert server.count("GET") > len(data) // LARGE or at == LARGE


@pytest.mark.virtual
async def test_a_retry_in_the_middle_never_goes_on_with_another_version() -> None:
    """Eight answers break off in the middle, the object is overwritten, and then they are resumed."""
    broken = Injection(operation="read", occurrence=1, times=AHEAD, at=BLOCK // 2, error=TimedOut)
    layers = [FaultLayer((broken,)), RetryLayer(base_seconds=10.0)]
    async with ahead_bench(layers=layers) as b, b.reader(prefetch_growth="step") as reader:
        assert await reader.read(10) == b.data[:10]
        await settle()
        b.put(content(SIZE, version=1))
        await asyncio.sleep(PAUSE_SECONDS)
        for number in range(1, AHEAD + 1):
            start = number * BLOCK
            assert await reader.read_at(start, BLOCK // 2) == b.data[start : start + BLOCK // 2]
            with pytest.raises(ObjectChanged):
                await reader.read_at(start + 10, BLOCK // 2)
        await reader.reopen()
        assert await reader.read_at(BLOCK, BLOCK) == content(2 * BLOCK, version=1)[BLOCK:]


# --- overwrites -----------------------------------------------------------------------------------------------------


@each_of("understands_conditions", [True, False])
@each_of("way", READS)
async def test_an_object_overwritten_while_eight_requests_are_in_flight(way: str, understands_conditions: bool) -> None:
    """The next read beyond what is resident says so, whether the store refuses or its responses tell by their ETag."""
    async with ahead_bench() as b:
        reader, ahead = await fetching_ahead(b)
        etag = b.put(content(SIZE, version=1))
        b.gate.ignores_conditions = not understands_conditions
        reading = asyncio.ensure_future(READS[way](reader, 3 * BLOCK, BLOCK))
        for one in ahead:
            one.finish()
        await settle()
        answer_all(b)
        with pytest.raises(ObjectChanged) as changed:
            await reading
        assert changed.value.actual_etag == etag
        assert await reader.read_at(0, BLOCK) == b.data[:BLOCK]
        await reader.reopen()
        assert await READS[way](reader, 3 * BLOCK, BLOCK) == content(4 * BLOCK, version=1)[3 * BLOCK :]
        await reader.aclose()
        await assert_all_given_back(b)


async def test_responses_of_another_version_reach_no_block() -> None:
    """Heads that lie about their ETag are refused before their first byte counts."""
    async with ahead_bench() as b:
        reader, ahead = await fetching_ahead(b)
        b.gate.falsify = with_etag("another")
        for one in ahead:
            one.finish()
        await settle()
        assert b.runtime.budget.used_bytes == BLOCK
        b.gate.falsify = None
        b.gate.open = True
        assert await reader.read(BLOCK) == b.data[BLOCK : 2 * BLOCK]
        await reader.aclose()
        await assert_all_given_back(b)


# --- memory that is still written to --------------------------------------------------------------------------------


class Undead(VerbLayer):
    """Reads deliver half of their body and stop. When they are broken off, they keep the memory, and write to it."""

    def __init__(self) -> None:
        self.active = False
        self.halted: list[tuple[Sink, memoryview]] = []

    def write(self) -> None:
        """What is received after the request was broken off: in the memory it was given, and by way of the sink."""
        for sink, rest in self.halted:
            rest[:] = b"\xee" * len(rest)
            with suppress(ProtocolError):  # That it is more than was asked for.
                sink.feed(b"\xdd" * 1000)
            sink.advance(10)

    async def read(self, inner: Accessor, request: ReadRequest, sink: Sink) -> ReadReply:
        if not self.active:
            return await inner.read(request, sink)
        response = CollectSink()
        head = (await inner.read(request, response)).head
        sink.begin(head, path=request.path)
        sink.feed(response.to_view()[: head.size // 2])
        self.halted.append((sink, sink.writable()))
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            # Before those who wait for it have heard that it is over.
            asyncio.get_running_loop().call_soon(self.write)
        raise AssertionError("no response comes")


async def test_memory_of_a_broken_off_request_is_used_for_nothing_else() -> None:
    """Views of what had arrived, the rest fetched again, other blocks under pressure: no byte of them ever changes."""
    undead = Undead()
    async with ahead_bench(layers=[undead], memory_bytes=64 * BLOCK) as b:
        reader = b.reader(prefetch_growth="step")
        assert await reader.read(10) == b.data[:10]
        await settle()
        assert await reader.read_at(BLOCK, AHEAD * BLOCK) == b.data[BLOCK : (1 + AHEAD) * BLOCK]
        undead.active = True
        assert await reader.read_at(20 * BLOCK, 10) == b.data[20 * BLOCK : 20 * BLOCK + 10]
        reader.seek(20 * BLOCK)
        assert await reader.read(100) == b.data[20 * BLOCK : 20 * BLOCK + 100]
        await settle()
        assert len(undead.halted) > AHEAD // 2
        starts = [low for low, _ in b.ranges[-len(undead.halted) :]]
        views = [(low, await reader.view_at(low, 1000)) for low in starts]
        undead.active = False
        reader.seek(50 * BLOCK)
        await reader.read(10)  # Breaks off all of them but what was awaited.
        await reader.unbuffer()
        await settle()
        undead.write()
        for start in [*starts, *range(0, SIZE, BLOCK)]:
            assert_same_bytes(await reader.read_at(start, BLOCK), b.data[start : start + BLOCK], offset=start)
            undead.write()
            for low, view in views:
                assert_same_bytes(view, b.data[low : low + 1000], offset=low)
        del view, views
        undead.halted.clear()
        await reader.aclose()
        await assert_all_given_back(b)


async def test_what_arrives_after_the_operator_was_closed_goes_nowhere() -> None:
    """A reader has pinned what the request brings, and does not know yet that it will bring nothing more."""
    undead = Undead()
    async with ahead_bench(layers=[undead], prefetch_blocks=0) as b:
        reader = b.reader()
        await reader.read_at(0, 10)
        undead.active = True
        beginning = await reader.view_at(5 * BLOCK, 100)
        reading = asyncio.create_task(reader.read_at(5 * BLOCK, BLOCK))
        await settle()
        runtime = b.runtime
        await b.operator.aclose()
        with pytest.raises(Closed):
            await reading
        undead.write()
        assert beginning == b.data[5 * BLOCK : 5 * BLOCK + 100]
        del beginning
        undead.halted.clear()
        assert runtime.budget.used_bytes == 0
        await reader.aclose()


# --- readers that share ---------------------------------------------------------------------------------------------


async def test_closing_the_reader_that_fetches_ahead_leaves_what_the_other_awaits() -> None:
    async with ahead_bench() as b:
        reader, ahead = await fetching_ahead(b)
        other = reader.clone()
        reading = asyncio.create_task(other.read_at(3 * BLOCK, BLOCK))
        await settle()
        await reader.aclose()
        await settle()
        assert [one.cancelled for one in ahead] == [number != 3 for number in range(1, AHEAD + 1)]
        ahead[2].finish()
        assert await reading == b.data[3 * BLOCK : 4 * BLOCK]
        answer_all(b)
        assert await other.read_at(0, SIZE) == b.data
        await other.aclose()
        await assert_all_given_back(b)


async def test_closing_the_reader_that_joined_leaves_what_the_first_fetches() -> None:
    async with ahead_bench() as b:
        reader, ahead = await fetching_ahead(b)
        other = reader.clone()
        joined = asyncio.create_task(other.read_at(3 * BLOCK, BLOCK))
        await settle()
        await other.aclose()
        await asyncio.wait({joined})
        await settle()
        assert joined.exception() is not None
        assert [one.ended for one in ahead] == [False] * AHEAD
        for one in ahead:
            one.finish()
        assert await reader.read(AHEAD * BLOCK) == b.data[BLOCK : (1 + AHEAD) * BLOCK]
        assert demands(b) == []
        await reader.aclose()
        await assert_all_given_back(b)


@pytest.mark.parametrize("gone", ["overwritten", "deleted"])
async def test_what_a_closed_reader_asked_for_tells_the_other_that_the_object_changed(gone: str) -> None:
    """The request is the first one's, the wait and the pinned version are the other's as well."""
    async with ahead_bench(prefetch_blocks=0) as b:
        reader = await b.opened()
        other = reader.clone()
        mine = asyncio.create_task(reader.read_at(3 * BLOCK, 10))
        await settle()
        theirs = asyncio.create_task(other.read_at(3 * BLOCK, 10))
        await settle()
        await reader.aclose()
        await asyncio.wait({mine})
        if gone == "overwritten":
            b.put(content(SIZE, version=1))
        else:
            b.store.remove("k")
        for one in b.calls:
            one.finish()
        with pytest.raises(ObjectChanged):
            await theirs
        assert mine.exception() is not None
        await other.aclose()
        await assert_all_given_back(b)


async def test_two_readers_one_file_one_request_for_each_block() -> None:
    """Both stream the same object in turns: what one fetches ahead the other finds."""
    async with ahead_bench() as b:
        first = b.reader(policy="adaptive")
        await first.read_at(0, 1)
        second = first.clone()
        parts: Sequence[list[bytes]] = ([], [])
        for _ in range(0, SIZE, 100_000):
            for reader, collected in zip((first, second), parts, strict=True):
                collected.append(await reader.read(100_000))
        for collected in parts:
            assert_same_bytes(b"".join(collected), b.data)
        ordered = sorted(b.ranges)
        assert [low for low, _ in ordered[1:]] == [high for _, high in ordered[:-1]]
        await first.aclose()
        await second.aclose()
        await assert_all_given_back(b)

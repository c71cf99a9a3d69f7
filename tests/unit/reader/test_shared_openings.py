"""Readers that open an object at once share its first request, and each sees what was written before it was opened."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from aioprefetch import Operator, RangeReader
from aioprefetch.errors import Closed, NotFound, Unavailable
from aioprefetch.reader.openings import Openings
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.testing.fault_layer import FaultLayer, Injection, Point
from tests.profile import chosen, combinations, each_of
from tests.stores.gated_reader import KIB, Bench, bench, in_case, settle, with_etag
from tests.stores.layer_stack import cancel_at

BLOCK = 64 * KIB


@asynccontextmanager
async def held(count: int, size: int = BLOCK) -> AsyncIterator[tuple[Bench, list[RangeReader]]]:
    """Readers of an object of that size, whose requests end when the test says so."""
    async with bench(size) as b:
        b.gate.open = False
        readers = [b.reader() for _ in range(count)]
        yield b, readers
        await asyncio.gather(*(reader.aclose() for reader in readers))


@each_of("policy", ["adaptive", "sequential", "random", "parquet"])
@each_of("size", [1000, BLOCK])
async def test_twenty_readers_that_open_an_object_at_once_send_one_request(policy: str, size: int) -> None:
    async with bench(BLOCK) as b:

        async def one() -> bytes:
            async with b.reader(policy=policy) as reader:
                return await reader.read_at(0, size)

        assert await asyncio.gather(*(one() for _ in range(20))) == [b.data[:size]] * 20
        assert len(b.calls) == 1
        await settle()
        assert not len(Openings.of(b.operator.accessor(), b.runtime))


async def test_readers_that_open_after_the_request_was_sent_ask_after_its_version_together() -> None:
    """What was written before they were opened must be seen; so they send one of their own, under a condition."""
    async with held(6) as (b, readers):
        first = asyncio.create_task(readers[0].read_at(0, 100))
        sent = await b.next_call()
        others = [asyncio.create_task(reader.read_at(0, 100)) for reader in readers[1:]]
        await settle()
        assert len(b.calls) == 1
        sent.deliver(0)
        await settle()
        assert len(b.calls) == 2
        asking = b.calls[1]
        assert (sent.request.if_none_match, asking.request.if_none_match) == (None, readers[0].etag)
        written = bytes(BLOCK)
        b.put(written)
        sent.finish()
        asking.finish()
        assert await first == b.data[:100]
        assert await asyncio.gather(*others) == [written[:100]] * 5


async def test_readers_that_ask_after_a_version_on_its_way_get_its_bytes() -> None:
    async with held(6) as (b, readers):
        tasks = [asyncio.create_task(readers[0].read_at(0, 100))]
        sent = await b.next_call()
        tasks += [asyncio.create_task(reader.read_at(50, 500)) for reader in readers[1:]]
        await settle()
        sent.deliver(0)
        await settle()
        b.calls[1].finish()
        sent.finish()
        assert await asyncio.gather(*tasks) == [b.data[:100]] + [b.data[50:550]] * 5
        assert len(b.calls) == 2


async def test_readers_that_begin_elsewhere_do_not_wait_for_one_another() -> None:
    async with held(4, 4 * BLOCK) as (b, readers):
        tasks = [asyncio.create_task(reader.read_at(n * BLOCK, 100)) for n, reader in enumerate(readers)]
        await settle()
        assert b.ranges == [(n * BLOCK, (n + 1) * BLOCK) for n in range(4)]
        for call in b.calls:
            call.finish()
        assert await asyncio.gather(*tasks) == [b.data[n * BLOCK : n * BLOCK + 100] for n in range(4)]


@pytest.mark.parametrize("etag", [None, 'W/"weak"'])
async def test_readers_of_what_has_no_strong_version_share_no_bytes(etag: str | None) -> None:
    """They ask at once, not one after another, when the first response shows that there is nothing to share."""
    async with held(5) as (b, readers):
        b.gate.falsify = with_etag(etag)
        tasks = [asyncio.create_task(reader.read_at(0, 100)) for reader in readers]
        await settle()
        assert len(b.calls) == 1
        b.calls[0].finish()
        await settle()
        assert len(b.calls) == 5
        written = bytes(BLOCK)
        b.put(written)
        for call in b.calls[1:]:
            call.finish()
        assert await asyncio.gather(*tasks) == [b.data[:100]] + [written[:100]] * 4


async def test_the_reader_that_sent_the_request_may_be_closed_while_others_wait_for_it() -> None:
    async with held(3) as (b, readers):
        tasks = [asyncio.create_task(reader.read_at(0, 100)) for reader in readers]
        call = await b.next_call()
        await readers[0].aclose()
        with pytest.raises(Closed):
            await tasks[0]
        call.finish()
        assert await asyncio.gather(*tasks[1:]) == [b.data[:100]] * 2
        assert (len(b.calls), call.cancelled, readers[0].statistics["stream_read_blocks_in_cache"]) == (1, False, 0)


async def test_a_shared_request_ends_with_the_last_reader_that_wants_it() -> None:
    async with held(3) as (b, readers):
        tasks = [asyncio.create_task(reader.read_at(0, 100)) for reader in readers]
        call = await b.next_call()
        for reader in readers[:2]:
            await reader.aclose()
        await settle()
        seen = [call.cancelled]
        tasks[2].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await settle()
        seen.append(call.cancelled)
        assert seen == [False, True]
        b.gate.open = True
        assert await readers[2].read_at(0, 100) == b.data[:100]


async def test_a_shared_request_that_fails_fails_each_reader_once() -> None:
    async with bench(0) as b:
        found = await asyncio.gather(
            *(b.operator.reader("missing").read_at(0, 10) for _ in range(10)), return_exceptions=True
        )
        assert {type(error) for error in found} == {NotFound}
        assert len(set(map(id, found))) == 10
        assert len(b.calls) == 1


async def test_readers_that_waited_for_a_request_that_failed_send_their_own() -> None:
    async with held(3) as (b, readers):
        first = asyncio.create_task(readers[0].read_at(0, 100))
        sent = await b.next_call()
        others = [asyncio.create_task(reader.read_at(0, 100)) for reader in readers[1:]]
        await settle()
        sent.fail(Unavailable("broke"))
        with pytest.raises(Unavailable):
            await first
        (await b.next_call()).finish()
        assert await asyncio.gather(*others) == [b.data[:100]] * 2
        assert len(b.calls) == 2


@pytest.mark.parametrize("store", ["file", "memory"])
async def test_a_reader_opened_after_a_foreign_write_in_the_same_turn_reads_what_was_written(
    store: str, tmp_path: Path
) -> None:
    """Both stores answer before the turn ends, and this runtime counts neither write as one of its own."""
    uri = tmp_path.as_uri() if store == "file" else "memory://foreign-write"
    async with Operator.from_uri(uri) as operator, Operator.from_uri(uri) as other:
        await operator.write("k", b"old")

        async def read() -> bytes:
            async with operator.reader("k") as reader:
                return await reader.read()

        async def write_and_read() -> bytes:
            if store == "file":
                (tmp_path / "k").write_bytes(b"new")
            else:
                await other.write("k", b"new")
            return await read()

        await read()
        assert list(await asyncio.gather(read(), write_and_read())) == [b"old", b"new"]


# --- faults ---------------------------------------------------------------------------------------------------------


async def nothing_shared(b: Bench) -> None:
    """No first request is under way or can be joined any more, and no memory is in use but that of resident bytes."""
    await settle(300)  # Until the rest of the block is drained.
    assert all(call.ended for call in b.calls)
    assert not len(Openings.of(b.operator.accessor(), b.runtime))
    budget = b.runtime.budget
    assert budget.waiting == 0
    if budget.reclaim is not None:
        budget.reclaim(budget.used_bytes, "demand")
    assert budget.used_bytes == 0


async def open_and_read(b: Bench, policy: str) -> bytes:
    """As a caller does who reads a little."""
    async with b.reader(policy=policy) as reader:
        return await reader.read_at(100, 3000)


@each_of(
    ("policy", "turns", "point"),
    combinations(["adaptive", "random", "parquet"], [0, 1, 2, 4, 7], ["call", "head", 100]),
)
async def test_the_nth_request_of_readers_that_open_together_fails(policy: str, turns: int, point: Point) -> None:
    """Pairs of readers open some turns apart. The readers that wait for that request fail, each with its own error."""
    for number in itertools.count():
        assert number < 10
        fault = Injection(operation="read", occurrence=number, at=point, error=Unavailable)
        async with bench(BLOCK, layers=[FaultLayer((fault,), chunk_bytes=700)]) as b:
            tasks = []
            for _ in range(3):
                tasks += [asyncio.create_task(open_and_read(b, policy)) for _ in range(2)]
                await settle(turns)
            found = await asyncio.gather(*tasks, return_exceptions=True)
            failed = [one for one in found if isinstance(one, BaseException)]
            if not failed and number >= len(b.calls):
                assert found == [b.data[100:3100]] * 6
                return
            with in_case(number=number):
                assert [one for one in found if one not in failed] == [b.data[100:3100]] * (6 - len(failed))
                assert {type(one) for one in failed} <= {Unavailable}
                assert len({id(one) for one in failed}) == len(failed)
                assert await open_and_read(b, policy) == b.data[100:3100]
                await nothing_shared(b)


@checks("reliability:C04")
@each_of("who", range(3))
@each_of("policy", ["adaptive", "random", "parquet"])
async def test_a_reader_cancelled_at_any_suspension_takes_nothing_from_the_others(policy: str, who: int) -> None:
    """The one that sent the request, or one that shares it; nothing is asked for twice."""
    suspension, was_cancelled = 0, True
    while was_cancelled:
        suspension += 1
        assert suspension < 200
        async with bench(BLOCK, layers=[FaultLayer(chunk_bytes=700)]) as b:

            async def run(number: int, b: Bench = b, suspension: int = suspension) -> bytes:
                reading = open_and_read(b, policy)
                return await (cancel_at(reading, suspension) if number == who else reading)

            found = await asyncio.gather(*(run(number) for number in range(3)), return_exceptions=True)
            was_cancelled = isinstance(found.pop(who), asyncio.CancelledError)
            with in_case(suspension=suspension):
                assert found == [b.data[100:3100]] * 2
                assert len(b.calls) == 1
                await nothing_shared(b)
    assert suspension > 1


@pytest.mark.parametrize("policy", ["adaptive", "random", "parquet"])
async def test_an_object_overwritten_while_readers_open_is_never_mixed(policy: str) -> None:
    """After any number of turns. A reader that was opened before may see either version, a later one the new one."""
    written = bytes(BLOCK)
    for before, after in itertools.product(chosen(quick=(0, 1, 3, 6, 10), full=range(16)), (0, 1, 2)):
        async with bench(BLOCK, layers=[FaultLayer(chunk_bytes=700)]) as b:
            early = [asyncio.create_task(open_and_read(b, policy)) for _ in range(2)]
            await settle(before)
            b.put(written)
            late = [asyncio.create_task(open_and_read(b, policy)) for _ in range(2)]
            await settle(after)
            late += [asyncio.create_task(open_and_read(b, policy)) for _ in range(2)]
            with in_case(before=before, after=after):
                for found in await asyncio.gather(*early):
                    assert found in (b.data[100:3100], written[100:3100])
                assert await asyncio.gather(*late) == [written[100:3100]] * 4
                await nothing_shared(b)

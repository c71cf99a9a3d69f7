"""Events of windows and memory, as real reads cause them."""

import asyncio
import gc
import os

import aioprefetch as ap
from aioprefetch.runtime.events import Event
from aioprefetch.testing import FaultServer
from tests.stores.failing_disk import until

KIB, MIB = 1 << 10, 1 << 20


def operator_of(server: FaultServer) -> ap.Operator:
    """An operator whose memory holds an eighth of the object "k"."""
    return ap.Operator.from_uri(f"{server.url}/", block_bytes=64 * KIB, memory_bytes=4 * MIB)


async def test_a_window_grows_and_shrinks_where_others_wait_for_memory() -> None:
    seen: list[Event] = []
    async with FaultServer({"k": os.urandom(32 * MIB)}) as server, operator_of(server) as op:
        op.events.subscribe(seen.append, "window.grown", "window.shrunk")
        async with op.reader("k") as reader, op.reader("k", policy="random") as other:
            for number in range(40):
                await reader.read_at(number * 128 * KIB, 128 * KIB)
            grown = [event.facts["blocks"] for event in seen]
            assert grown == sorted(grown)
            assert grown[-1] >= 4
            assert {(event.name, event.path) for event in seen} == {("window.grown", "k")}
            seen.clear()
            op.events.subscribe(seen.append, "budget.waited")
            others = [asyncio.create_task(other.read_at((8 + 3 * number) * MIB, 3 * MIB)) for number in range(6)]
            for number in range(40, 52):
                await reader.read_at(number * 128 * KIB, 128 * KIB)
            await asyncio.gather(*others)
    shrunk = [event.facts["blocks"] for event in seen if event.name == "window.shrunk"]
    assert shrunk[0] < grown[-1]
    waited = [event.facts for event in seen if event.name == "budget.waited"]
    # A prefetch waits too where it was planned before the reads queued.
    assert "demand" in {facts["lane"] for facts in waited} <= {"demand", "prefetch"}
    assert all(0 < facts["bytes"] <= 3 * MIB for facts in waited)
    assert all(facts["seconds"] > 0 for facts in waited)


async def read(op: ap.Operator) -> int:
    """Read, and return the bytes of memory that are in use then."""
    async with op.reader("k", policy="random") as reader:
        await reader.read_at(0, 1)
    return op.statistics["stream_read_active_memory_in_use"]


def test_memory_is_given_up_once_however_an_operator_ends() -> None:
    """Closed, collected, or with its loop; on the next loop it has a budget of its own."""
    seen: list[Event] = []

    async def closed() -> None:
        async with FaultServer({"k": os.urandom(MIB)}) as server, operator_of(server) as op:
            op.events.subscribe(seen.append, "budget.closed")
            for _ in range(2):
                assert await read(op) > 0
                await op.aclose()

    async def collected() -> None:
        async with FaultServer({"k": os.urandom(MIB)}) as server:
            op = operator_of(server)
            op.events.subscribe(seen.append, "budget.closed")
            assert await read(op) > 0
            del op
            gc.collect()
            await until(lambda: seen)

    async def with_its_loop() -> None:
        async with FaultServer({"k": os.urandom(MIB)}) as server:
            op = operator_of(server)
            op.events.subscribe(seen.append, "budget.closed")
            assert await read(op) > 0
        assert seen == []

    for main, number in ((closed, 2), (collected, 1), (with_its_loop, 1)):
        asyncio.run(main())
        assert [event.name for event in seen] == ["budget.closed"] * number, main
        assert len({event.facts["budget_id"] for event in seen}) == number
        seen.clear()

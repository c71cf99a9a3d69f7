"""Places: how many connections there may be, who waits for one and in which order, and that none is ever lost."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aioprefetch.errors import Closed, Error, TimedOut, Unavailable
from aioprefetch.runtime.options import RuntimeOptions
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.testing.oracle import content
from aioprefetch.transport.connecting import Connector
from aioprefetch.transport.connection import Connection
from aioprefetch.transport.options import ClientOptions
from aioprefetch.transport.origin import Origin, Proxy, Route, Target
from aioprefetch.transport.pool import HttpClient, OriginSnapshot, Pool
from tests.stores.raw_server import Peer, RawServer, answering, client_of, eventually, get, reply
from tests.stores.wire import EndTaker, PausingTaker

SHORT_SECONDS = 0.05
SMALL, LARGE = content(100), content(200_000)


class Gate:
    """A handler that responds when the test lets it."""

    def __init__(self) -> None:
        self.permits = asyncio.Semaphore(0)

    def response(self, count: int = 1) -> None:
        for _ in range(count):
            self.permits.release()

    async def __call__(self, peer: Peer) -> None:
        while await peer.request() is not None:
            await self.permits.acquire()
            await peer.send(reply(SMALL))


def check(client: HttpClient | Pool, *, idle: int) -> None:
    """Every place is that of an open connection, every open connection is idle and can be used, and no caller waits."""
    found = client.snapshot()
    assert (found.open, found.making, found.busy, found.idle, found.waiting) == (idle, 0, 0, idle, 0)
    assert sum(origin.open for origin in found.origins.values()) == idle
    assert all(origin.open == origin.idle > 0 == origin.waiting for origin in found.origins.values())


@asynccontextmanager
async def pool_of(
    connector: Callable[[Runtime, ClientOptions], Connector] = Connector, **options: Any
) -> AsyncIterator[Pool]:
    """A pool alone, closed at the end."""
    runtime, client_options = Runtime(RuntimeOptions()), ClientOptions(**options)
    pool = Pool(runtime, client_options, connector(runtime, client_options))
    try:
        yield pool
    finally:
        await pool.aclose()
        await runtime.aclose()


async def test_a_snapshot_counts_for_each_origin() -> None:
    gate = Gate()
    async with (
        RawServer(gate) as one,
        RawServer(answering(reply(SMALL))) as other,
        client_of(connections_per_host_max=1) as client,
    ):
        asked = [asyncio.ensure_future(get(client, one.target())) for _ in range(3)]
        await get(client, other.target())
        await eventually(lambda: one.requests == 1)
        found = client.snapshot()
        assert (found.open, found.making, found.busy, found.idle, found.waiting) == (2, 0, 1, 1, 2)
        assert found.origins == {
            str(one.target().origin): OriginSnapshot(open=1, idle=0, waiting=2),
            str(other.target().origin): OriginSnapshot(open=1, idle=1, waiting=0),
        }
        gate.response(3)
        await asyncio.gather(*asked)
        check(client, idle=2)


@checks("reliability:K08")
async def test_a_snapshot_names_no_secret_of_a_proxy() -> None:
    async with RawServer(answering(reply(SMALL))) as server, client_of() as client:
        proxy = Proxy(server.target().origin, authorization="Basic c2VjcmV0")
        await get(client, Target(Origin("http", "store.example", 80), "/k", proxy=proxy))
        assert client.snapshot().origins == {"http://store.example": OriginSnapshot(open=1, idle=1, waiting=0)}


async def test_limit_of_one_host() -> None:
    async with RawServer(answering(reply(LARGE))) as server, client_of(connections_per_host_max=2) as client:
        bodies = await asyncio.gather(*(get(client, server.target()) for _ in range(20)))
        assert set(bodies) == {LARGE}
        assert server.open_max == server.connections == 2
        check(client, idle=2)


async def test_limit_in_total() -> None:
    async with (
        RawServer(answering(reply(SMALL))) as one,
        RawServer(answering(reply(SMALL))) as other,
        client_of(connections_max=3) as client,
    ):
        targets = [one.target(), other.target()]
        for _ in range(3):
            await asyncio.gather(*(get(client, targets[number % 2]) for number in range(20)))
            assert one.open + other.open <= 4  # One that was closed to make room may not be gone at its server.
        assert client.snapshot().open <= 3
        check(client, idle=client.snapshot().open)


async def test_an_idle_connection_of_another_host_makes_room() -> None:
    async with (
        RawServer(answering(reply(SMALL))) as one,
        RawServer(answering(reply(SMALL))) as other,
        client_of(connections_max=1) as client,
    ):
        for _ in range(3):
            await get(client, one.target())
            await get(client, other.target())
        assert (len(one.peers), len(other.peers)) == (3, 3)
        check(client, idle=1)


async def test_the_connection_that_was_idle_longest_makes_room() -> None:
    """Of two hosts: whichever was asked first is asked again, so neither order of opening decides."""
    async with (
        RawServer(answering(reply(SMALL))) as one,
        RawServer(answering(reply(SMALL))) as other,
        RawServer(answering(reply(SMALL))) as third,
        client_of(connections_max=2) as client,
    ):
        for kept, dropped in ((one, other), (other, one)):
            await get(client, dropped.target())
            await get(client, kept.target())
            await get(client, third.target())
            before = kept.connections
            await get(client, kept.target())
            assert kept.connections == before


async def test_a_busy_connection_of_another_host_makes_room_when_it_is_done() -> None:
    gate = Gate()
    async with (
        RawServer(gate) as one,
        RawServer(answering(reply(SMALL))) as other,
        client_of(connections_max=1) as client,
    ):
        first = asyncio.ensure_future(get(client, one.target()))
        await eventually(lambda: one.requests == 1)
        second = asyncio.ensure_future(get(client, other.target()))
        await eventually(lambda: client.snapshot().waiting == 1)
        gate.response()
        assert await first == await second == SMALL
        check(client, idle=1)


@pytest.mark.parametrize("same_host", [True, False])
async def test_reads_in_a_loop_do_not_overtake_waiting_ones(same_host: bool) -> None:
    async def loop() -> None:
        while True:
            await get(client, one.target())

    async with (
        RawServer(answering(reply(SMALL))) as one,
        RawServer(answering(reply(SMALL))) as another,
        client_of(connections_max=1) as client,
    ):
        greedy = asyncio.ensure_future(loop())
        await eventually(lambda: one.requests > 3)
        other = one if same_host else another
        for _ in range(5):
            assert await get(client, other.target()) == SMALL
        greedy.cancel()
        await asyncio.wait([greedy])
        await eventually(lambda: client.snapshot().open == client.snapshot().idle)
        check(client, idle=client.snapshot().open)


async def test_first_come_first_served() -> None:
    gate = Gate()
    order: list[int] = []

    async def ask(number: int) -> None:
        await get(client, server.target())
        order.append(number)

    async with RawServer(gate) as server, client_of(connections_per_host_max=1) as client:
        asked = []
        for number in range(6):
            asked.append(asyncio.ensure_future(ask(number)))
            await eventually(lambda: server.requests + client.snapshot().waiting == len(asked))
        gate.response(6)
        await asyncio.gather(*asked)
        assert order == list(range(6))
        check(client, idle=1)


@checks("reliability:C22")
async def test_waiting_for_a_connection_has_a_timeout() -> None:
    gate = Gate()
    async with (
        RawServer(gate) as server,
        client_of(connections_per_host_max=1, wait_timeout_seconds=SHORT_SECONDS) as client,
    ):
        first = asyncio.ensure_future(get(client, server.target()))
        await eventually(lambda: server.requests == 1)
        with pytest.raises(TimedOut, match="no connection became free") as caught:
            await get(client, server.target())
        assert caught.value.status == "persistent"
        gate.response()
        assert await first == SMALL
        check(client, idle=1)


@checks("reliability:C03")
async def test_a_waiter_that_is_cancelled_takes_nothing_with_it() -> None:
    """Before it was called, and just after: the connection is idle then, and the waiter has not taken it yet."""

    def cancel_called() -> None:
        assert (client.snapshot().idle, client.snapshot().waiting) == (1, 2)
        asked[1].cancel()

    gate = Gate()
    async with RawServer(gate) as server, client_of(connections_per_host_max=1) as client:
        for was_called in (False, True):
            first = EndTaker(cancel_called if was_called else lambda: None, turns=1)
            fetched = asyncio.ensure_future(client.fetch(server.target(), b"", first))
            asked = [fetched, *(asyncio.ensure_future(get(client, server.target())) for _ in range(2))]
            await eventually(lambda: client.snapshot().waiting == 2)
            if not was_called:
                asked[1].cancel()
            gate.response(2)
            await fetched
            assert first.content() == await asked[2] == SMALL
            with pytest.raises(asyncio.CancelledError):
                await asked[1]
            check(client, idle=1)


async def test_a_stale_connection_is_replaced_although_every_place_is_taken() -> None:
    """One that another request brings back meanwhile is closed for it: it must be a new one."""

    async def handle(peer: Peer) -> None:
        await peer.request()
        await peer.send(reply(SMALL))
        if peer.number == 0:
            await peer.request()  # And hang up.
            return
        while await peer.request() is not None:
            await peer.send(reply(SMALL))

    async with RawServer(handle) as server, client_of(connections_per_host_max=1) as client:
        assert await get(client, server.target()) == SMALL
        bodies = await asyncio.gather(*(get(client, server.target()) for _ in range(5)))
        assert set(bodies) == {SMALL}
        check(client, idle=1)


async def test_a_fresh_connection_is_new_although_one_is_idle() -> None:
    async with RawServer(answering(reply(SMALL))) as server, pool_of(connections_per_host_max=1) as pool:
        route = server.target().route
        idle = await pool.connect(route)
        pool.release(idle)
        fresh = await pool.connect(route, is_fresh=True)  # Closes the idle one.
        assert (fresh.is_reused, fresh is idle, pool.snapshot().open) == (False, False, 1)
        pool.release(fresh)
        check(pool, idle=1)


async def test_a_connection_is_never_kept_twice() -> None:
    async with RawServer(answering(reply(SMALL))) as server, pool_of() as pool:
        connection = await pool.connect(server.target().route)
        pool.release(connection)
        pool.release(connection)
        check(pool, idle=1)


async def test_a_name_that_leads_nowhere_takes_no_place() -> None:
    async with RawServer(answering(reply(SMALL))) as server:
        target = server.target()
    async with client_of(connections_max=1) as client:
        for _ in range(3):
            with pytest.raises(Unavailable):
                await get(client, target)
            check(client, idle=0)


async def test_closing_in_the_middle_of_everything() -> None:
    """Requests that wait for a head, a body, a place or a connection, and one that is paused: all end with `Closed`."""

    async def handle(peer: Peer) -> None:
        await peer.request()
        await peer.send((b"", reply(LARGE)[:150_000], reply(LARGE)[:500])[peer.number % 3])
        await peer.gone()

    runtime = Runtime(RuntimeOptions())
    async with RawServer(handle) as server, client_of(runtime, connections_per_host_max=6) as client:
        asked = [asyncio.ensure_future(get(client, server.target())) for _ in range(9)]
        asked.append(asyncio.ensure_future(read(client, server)))
        await eventually(lambda: server.requests == 6 and client.snapshot().waiting == 4)
        asked.append(asyncio.ensure_future(get(client, server.target())))
        await runtime.aclose()
        results = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(result) for result in results] == [Closed] * 11
        check(client, idle=0)
        await eventually(lambda: server.open == 0)
        with pytest.raises(Closed):
            await get(client, server.target())


async def test_closing_while_connections_are_made() -> None:
    """After any number of turns: each request gets its response or `Closed`, and no connection is left."""
    for turns in range(16):
        runtime = Runtime(RuntimeOptions())
        async with RawServer(answering(reply(SMALL))) as server, client_of(runtime) as client:
            requests = [asyncio.ensure_future(get(client, server.target())) for _ in range(3)]
            for _ in range(turns):
                await asyncio.sleep(0)
            await runtime.aclose()
            for result in await asyncio.gather(*requests, return_exceptions=True):
                assert result == SMALL or isinstance(result, Closed), f"after {turns} turns: {result!r}"
            check(client, idle=0)
            await eventually(lambda: server.open == 0)


@pytest.mark.parametrize("is_reset", [False, True])
async def test_a_connection_that_is_lost_before_it_was_used(is_reset: bool) -> None:
    async def handle(peer: Peer) -> None:
        if is_reset:
            peer.reset()

    class LateConnector(Connector):
        """Hands a connection out after it was lost."""

        async def connect(self, route: Route, on_lost: Callable[[Connection], None]) -> Connection:
            def lost(connection: Connection) -> None:
                on_lost(connection)
                was_lost.set()

            was_lost = asyncio.Event()
            connection = await super().connect(route, lost)
            await was_lost.wait()
            return connection

    async with RawServer(handle) as server, pool_of(LateConnector, connections_max=1) as pool:
        for _ in range(3):
            with pytest.raises(Unavailable):
                await pool.connect(server.target().route)
            check(pool, idle=0)


async def test_a_connection_that_is_there_when_all_is_closed() -> None:
    """It was made in the turn before, and the caller has not got it yet."""
    closing: list[asyncio.Task[None]] = []

    class ClosingConnector(Connector):
        """Closes the pool as it hands a connection out."""

        async def connect(self, route: Route, on_lost: Callable[[Connection], None]) -> Connection:
            connection = await super().connect(route, on_lost)
            closing.append(asyncio.ensure_future(pool.aclose()))
            return connection

    async with RawServer(answering(reply(SMALL))) as server, pool_of(ClosingConnector) as pool:
        with pytest.raises(Closed):
            await pool.connect(server.target().route)
        await closing[0]
        check(pool, idle=0)
        await eventually(lambda: server.open == 0)
        assert server.requests == 0


async def read(client: HttpClient, server: RawServer) -> bytes:
    taker = PausingTaker(50_000)
    await client.fetch(server.target(), b"", taker)
    return taker.content()


@pytest.mark.parametrize("seed", range(3))
async def test_places_add_up_after_faults(seed: int) -> None:
    """A hundred requests at once, again and again, of which some fail in every way."""
    rng = random.Random(seed)

    async def handle(peer: Peer) -> None:
        while await peer.request() is not None:
            fault = rng.random()
            body = rng.choice((SMALL, LARGE))
            if fault < 0.01:
                return peer.reset()
            if fault < 0.02:
                return await peer.send(reply(body)[: rng.randrange(300)])
            if fault < 0.03:
                return await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n")
            if fault < 0.04:
                await peer.send(reply(body, b"Connection: close"))
                return None
            await peer.send(reply(body) + (b"more" if fault < 0.05 else b""))

    async def ask() -> bool:
        try:
            if rng.random() < 0.3:
                body = await read(client, server)
            elif rng.random() < 0.9:
                body = await get(client, server.target())
            else:
                await asyncio.wait_for(client.fetch(server.target(), b"", Discard()), rng.choice((0, SHORT_SECONDS)))
                return True
        except (Error, TimeoutError):
            return False
        assert body in (SMALL, LARGE)
        return True

    async with RawServer(handle) as server, client_of(connections_per_host_max=20) as client:
        for _ in range(3):
            done = await asyncio.gather(*(ask() for _ in range(100)))
            assert sum(done) >= 70
            assert client.snapshot().open <= 20
            await eventually(lambda: client.snapshot().open == client.snapshot().idle)
            check(client, idle=client.snapshot().open)


class Discard:
    """A receiver for which any body will do."""

    def begin(self, head: object, connection: object) -> "Discard":
        return self

    def writable(self) -> memoryview:
        return memoryview(bytearray(10_000))

    def advance(self, count: int) -> None:
        pass

    def feed(self, chunk: memoryview) -> int:
        return len(chunk)

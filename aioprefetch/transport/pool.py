"""The client: requests over HTTP/1.1, whose bodies are received into the memory of the caller; and its connections.

These are reused, limited in number, checked for timeouts, and closed when idle or old.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextvars import Context

from aioprefetch.accessor.request_events import ReportedRequest
from aioprefetch.errors import Closed, TimedOut
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.transport.connecting import Connector
from aioprefetch.transport.connection import ENDING_SECONDS_MAX, Connection, Receiver, StaleConnection
from aioprefetch.transport.errors import broken_off
from aioprefetch.transport.options import ClientOptions
from aioprefetch.transport.origin import Route, Target

# The longest wait for the loop to close the sockets; no response of a server is needed.
CLOSE_SECONDS_MAX = 1.0


@dataclass(frozen=True, slots=True)
class OriginSnapshot:
    """The connections to one origin at one moment: ``open``, ``idle`` and ``waiting`` as in ``ClientSnapshot``."""

    open: int
    idle: int
    waiting: int


@dataclass(frozen=True, slots=True)
class ClientSnapshot:
    """The connections of a client at one moment.

    Parameters
    ----------
    open
        The connections that count against ``connections_max``: open or being made.
    making
        The number of them that are being made.
    busy
        The number of them that serve a request or are being closed.
    idle
        The number of them that wait for a request.
    waiting
        The requests that wait for a connection.
    origins
        The open, idle and waiting counts of each origin with a connection or a waiting request, by its URL without a
        path. Connections through proxies count for the origin behind the proxy.
    """

    open: int
    making: int
    busy: int
    idle: int
    waiting: int
    origins: Mapping[str, OriginSnapshot]


class _Waiter:
    """A request that waits for a connection, because all places are taken or other requests wait already.

    ``future`` is its current wait. ``has_room``: an idle connection is being closed for it.
    """

    def __init__(self, key: str, *, is_fresh: bool) -> None:
        self.key = key
        self.is_fresh = is_fresh
        self.future: asyncio.Future[None] | None = None
        self.has_room = False


class Pool:
    """Hands out connections. A place is taken when a connection is begun, and released when it is lost.

    ``connector`` makes the connections and is closed with the pool.
    """

    def __init__(self, runtime: Runtime, options: ClientOptions, connector: Connector) -> None:
        self._runtime = runtime
        self._loop = runtime.loop
        self._options = options
        self._connector = connector
        # Connections to take, by the key of their route: the last used one at the end, the next to time out in front.
        self._idle: dict[str, list[Connection]] = {}
        # All connections that were made and are not lost: idle, busy, or being closed. A timer looks at them.
        self._open: set[Connection] = set()
        # Connections being made, for ``aclose`` to cancel.
        self._making: set[asyncio.Task[Connection]] = set()
        # What counts against the two maxima, by route. A place is taken before a connection is made, until it is lost.
        self._places: Counter[str] = Counter()
        # Requests without an idle connection and without a place, in their order: no later one overtakes them.
        self._waiters: list[_Waiter] = []
        # Busy connections whose response is about to end, each with the one request that takes it over then.
        self._claims: dict[Connection, asyncio.Future[Connection | None]] = {}
        # The next look at timeouts; ``None`` while no connection is open, so that an unused pool costs nothing.
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        # Set by the last lost connection: ``aclose`` waits for it, so that no socket outlives the pool.
        self._emptied: asyncio.Future[None] | None = None

    def snapshot(self) -> ClientSnapshot:
        """The connections at this moment."""
        places, idle, waiting = Counter[str](), Counter[str](), Counter[str]()
        for key, count in self._places.items():
            places[_origin_of(key)] += count
        for key, connections in self._idle.items():
            idle[_origin_of(key)] += sum(connection.is_usable for connection in connections)
        for waiter in self._waiters:
            waiting[_origin_of(waiter.key)] += 1
        return ClientSnapshot(
            open=places.total(),
            making=len(self._making),
            busy=len(self._open) - idle.total(),
            idle=idle.total(),
            waiting=waiting.total(),
            origins={
                origin: OriginSnapshot(places[origin], idle[origin], waiting[origin])
                for origin in sorted(places.keys() | waiting.keys())
            },
        )

    def take_idle(self, route: Route, *, in_turn: bool = False) -> Connection | None:
        """The idle connection that was used last, marked ``is_reused``, or ``None``.

        Also ``None`` while other requests wait, unless it is the caller's turn (``in_turn``): requests in a loop would
        overtake the waiting ones without end.
        """
        if self._waiters and not in_turn:
            return None
        idle = self._idle.get(route.key)
        while idle:
            connection = idle.pop()
            connection.is_idle = False
            if connection.is_ready():
                connection.is_reused = True
                return connection
            if connection.is_usable:
                connection.close()  # Its bytes must not be taken for the response to the next request.
        return None

    async def connect(self, route: Route, *, is_fresh: bool = False) -> Connection:
        """An idle connection, or a new one as soon as there is a place for it; with ``is_fresh`` a new one.

        If the response of a busy connection is about to end, it is awaited for a moment: that takes less time than a
        new connection, and is all that a row of readers needs who leave the last bytes of their responses unread.

        Raises the errors of ``Connector.connect``, ``TimedOut`` if no place became free, and ``Closed``. If cancelled,
        nothing is left open.
        """
        if self._closed:
            raise Closed("the operator is closed")
        idle = None if is_fresh else self.take_idle(route) or await self._reuse_finishing(route)
        if self._closed:
            raise Closed("the operator is closed")
        if idle is None and not self._waiters and self._has_place(route.key):
            self._places[route.key] += 1
        elif idle is None:
            with self._runtime.drains.waits("demand"):  # It may be a prefetch: requests have no lane here.
                idle = await self._wait(route, is_fresh=is_fresh)
        return idle or await self._make(route)

    def release(self, connection: Connection) -> None:
        """Take a connection back whose response is complete, called by it; closed ones are ignored."""
        if connection.is_idle or not connection.is_usable:
            return
        connection.idle_seconds = now = self._loop.time()
        if self._closed or now - connection.made_seconds >= self._options.age_seconds_max:
            connection.close()
            return
        claim = self._claims.pop(connection, None) if self._claims else None
        if claim is not None and not claim.done():
            claim.set_result(connection)
            return
        connection.is_idle = True
        key = connection.route.key
        idle = self._idle.get(key)
        if idle is None:
            self._idle[key] = [connection]
        else:
            idle.append(connection)
        if self._waiters:
            self._wake()

    async def aclose(self) -> None:
        """Close all connections, and return when their sockets are closed."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for waiter in self._waiters:
            if waiter.future is not None and not waiter.future.done():
                waiter.future.set_result(None)
        for claim in tuple(self._claims.values()):
            _cancel_claim(claim)
        for task in tuple(self._making):
            task.cancel()
        for connection in tuple(self._open):
            connection.close(Closed("the operator was closed"))
        self._idle.clear()
        await self._connector.aclose()
        if self._places.total():
            self._emptied = self._loop.create_future()
            await asyncio.wait([self._emptied], timeout=CLOSE_SECONDS_MAX)

    async def _reuse_finishing(self, route: Route) -> Connection | None:
        """A connection whose response was about to end, when it has ended. ``None`` without one, or if it lasts."""
        if self._waiters:
            return None
        for connection in self._open:
            if connection.route.key == route.key and connection not in self._claims and connection.is_ending:
                break
        else:
            return None
        claim: asyncio.Future[Connection | None] = self._loop.create_future()
        self._claims[connection] = claim
        timer = self._loop.call_later(ENDING_SECONDS_MAX, _cancel_claim, claim)
        try:
            freed = await claim
        except asyncio.CancelledError:
            if claim.done() and not claim.cancelled() and claim.result() is not None:
                self.release(connection)  # It was handed over in the turn in which the request was cancelled.
            raise
        finally:
            timer.cancel()
            if self._claims.get(connection) is claim:
                del self._claims[connection]
        if freed is None or not freed.is_ready():
            if freed is not None:
                freed.close()
            return None
        freed.is_reused = True
        return freed

    # --- places -------------------------------------------------------------------------------------------------

    def _has_place(self, key: str) -> bool:
        options = self._options
        return self._places[key] < options.connections_per_host_max and self._places.total() < options.connections_max

    def _make_room(self, waiter: _Waiter) -> bool:
        """Close the connection that was idle longest, if that helps the waiter; whether a place will become free.

        It is free when the loop has closed the connection.
        """
        if self._places[waiter.key] >= self._options.connections_per_host_max:
            candidates = self._idle.get(waiter.key, [])[:1]
        else:
            candidates = [idle[0] for idle in self._idle.values() if idle]
        if candidates:
            waiter.has_room = True
            self._drop(min(candidates, key=lambda connection: connection.idle_seconds))
        return waiter.has_room

    async def _make(self, route: Route) -> Connection:
        """A new connection; the caller has taken its place."""
        # In an empty context: later calls of the loop for this connection do not belong to this request.
        task = self._loop.create_task(self._connector.connect(route, self._lost), context=Context())
        self._making.add(task)
        try:
            connection = await task
        except BaseException as error:
            if task.done() and not task.cancelled() and task.exception() is None:
                task.result().close()  # It was made in the turn in which the request was cancelled.
            self._give_back(route.key)
            if task.cancelled() and self._closed and isinstance(error, asyncio.CancelledError):
                waiting = asyncio.current_task()
                if waiting is not None and not waiting.cancelling():
                    raise Closed("the operator was closed") from None
            raise
        finally:
            self._making.discard(task)
            del task  # The traceback of its error holds this frame.
        connection.on_free = self.release
        self._open.add(connection)
        self._runtime.counters["transport_connections_opened"] += 1
        if not connection.is_usable:  # It was lost before it was counted.
            self._lost(connection)
            raise broken_off(None, "as soon as it was open")
        if self._closed:
            connection.close()
            raise Closed("the operator was closed")
        if self._timer is None:
            self._timer = self._loop.call_later(self._options.look_seconds, self._look)
        return connection

    def _lost(self, connection: Connection) -> None:
        if connection not in self._open:  # ``_make`` gives its place back.
            return
        self._open.discard(connection)
        claim = self._claims.pop(connection, None) if self._claims else None
        if claim is not None:
            _cancel_claim(claim)
        idle = self._idle.get(connection.route.key)
        if idle and connection in idle:
            idle.remove(connection)
        self._give_back(connection.route.key)

    def _give_back(self, key: str) -> None:
        self._places[key] -= 1
        if not self._places[key]:
            del self._places[key]
            if not self._idle.get(key):
                self._idle.pop(key, None)
        if self._emptied is not None and not self._places and not self._emptied.done():
            self._emptied.set_result(None)
        for waiter in self._waiters:
            waiter.has_room = False
        self._wake()

    async def _wait(self, route: Route, *, is_fresh: bool) -> Connection | None:
        """Wait for an idle connection, or for a place, which is taken then (``None``). First come, first served."""
        waiter = _Waiter(route.key, is_fresh=is_fresh)
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(self._options.wait_timeout_seconds):
                while True:
                    waiter.future = self._loop.create_future()
                    self._wake()
                    await self._runtime.drains.give_way(waiter.future.done)
                    await waiter.future
                    if self._closed:
                        raise Closed("the operator was closed")
                    if not is_fresh and (idle := self.take_idle(route, in_turn=True)) is not None:
                        return idle
                    if self._has_place(route.key):
                        self._places[route.key] += 1
                        return None
        except TimeoutError as late:
            late.__traceback__ = None  # Its frames hold the task, whose error it becomes the context of.
            raise TimedOut(
                f"no connection became free within {self._options.wait_timeout_seconds:g} seconds", status="persistent"
            ) from None
        finally:
            self._waiters.remove(waiter)
            self._wake()  # There may be a place for the next waiter too, or this one has given up its turn.

    def _wake(self) -> None:
        """Wake the first waiter that can continue, or make room for it. The waiter then tries again."""
        for waiter in self._waiters:
            if waiter.future is None or waiter.future.done():
                return  # It was woken and will wake the next one; no other waiter overtakes it.
            if self._has_place(waiter.key) or (self._idle.get(waiter.key) and not waiter.is_fresh):
                waiter.future.set_result(None)
                return
            if not waiter.has_room and self._make_room(waiter):
                return

    # --- timeouts -----------------------------------------------------------------------------------------------

    def _look(self) -> None:
        now = self._loop.time()
        options = self._options
        for connection in tuple(self._open):
            if connection.is_busy:
                connection.look(now, options)
            elif (
                now - connection.idle_seconds >= options.idle_seconds_max
                or now - connection.made_seconds >= options.age_seconds_max
            ):
                self._drop(connection)
        self._timer = self._loop.call_later(options.look_seconds, self._look) if self._open else None

    def _drop(self, connection: Connection) -> None:
        """Close an idle connection, unless a request has taken it meanwhile."""
        idle = self._idle.get(connection.route.key)
        if idle and connection in idle:
            idle.remove(connection)
            connection.close()


def _cancel_claim(claim: asyncio.Future[Connection | None]) -> None:
    if not claim.done():
        claim.set_result(None)


def _origin_of(key: str) -> str:
    """The origin of a route's key, which also names the proxy and its secret."""
    return key.partition(" ")[0]


class HttpClient:
    """One pool of connections, closed with its runtime.

    The client follows no redirects, decodes no content codings and retries nothing but a stale connection: if a reused
    connection was closed before the first byte of the response, the request is sent once more on a new one.
    """

    def __init__(self, runtime: Runtime, options: ClientOptions | None = None) -> None:
        self._runtime = runtime
        options = options or ClientOptions()
        self._pool = Pool(runtime, options, Connector(runtime, options))
        runtime.supervisor.on_close(self._pool.aclose)
        runtime.gauges.append(self._gauged)

    def snapshot(self) -> ClientSnapshot:
        """The connections of this moment, in all and for each origin. A plain call without I/O."""
        return self._pool.snapshot()

    def _gauged(self) -> dict[str, int]:
        snapshot = self.snapshot()
        return {"transport_connections_open": snapshot.open, "transport_connections_idle": snapshot.idle}

    async def fetch(
        self,
        target: Target,
        fields: bytes,
        receiver: Receiver,
        *,
        body: memoryview | None = None,
        resends: bool = True,
        reported: ReportedRequest | None = None,
    ) -> float:
        """Send a request and deliver the response to ``receiver``. Returns the seconds until its head.

        ``fields`` are the headers of this request besides ``target``'s, from ``encoded_fields``; ``body`` is what
        is sent after them, whose memory must not change meanwhile, and whose length is one of the headers. A
        request without ``resends`` may be seen by the server once only: it has a new connection, which cannot be stale.
        ``reported`` is the request in events: its response, and its failure, are reported here.
        Raises ``Unavailable``, ``TimedOut``, ``Stalled``, ``ProtocolError``, ``ConfigInvalid``, ``RedirectRefused``,
        ``Closed``, and any error of the receiver. If the call fails or is cancelled, the connection is closed.
        """
        pool = self._pool
        connection: Connection | None = None
        done: asyncio.Future[float] | None = None
        try:
            if resends:
                connection = pool.take_idle(target.route) or await pool.connect(target.route)
            else:
                connection = await pool.connect(target.route, is_fresh=True)
            # No local variable holds the request: tools that show variables of a traceback would show its signature.
            done = connection.send(target.head + fields + b"\r\n", receiver, target.is_head, body, reported)
            try:
                return await done
            except StaleConnection as stale:
                self._runtime.counters["transport_stale_connections"] += 1
                if reported is not None:
                    reported.send_again(stale)
            connection = await pool.connect(target.route, is_fresh=True)
            done = connection.send(target.head + fields + b"\r\n", receiver, target.is_head, body, reported)
            return await done
        except BaseException as error:
            if connection is not None and done is not None:
                connection.break_off(done)
            done = None  # The traceback of its error holds this frame.
            if reported is not None:
                reported.failed(error)
            raise

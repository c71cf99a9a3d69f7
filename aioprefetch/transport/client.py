"""The client: GET and HEAD over pooled HTTP/1.1 connections; bodies are received into the memory of the caller."""

from __future__ import annotations

from typing import NamedTuple

from aioprefetch.runtime.runtime import Runtime
from aioprefetch.transport.connection import Receiver, StaleConnection
from aioprefetch.transport.options import ClientOptions
from aioprefetch.transport.origin import Target
from aioprefetch.transport.pool import Pool


class ClientSnapshot(NamedTuple):
    """The connections of a client at one moment.

    ``open`` counts those that are open or being made, ``idle`` those of them that wait for a request, ``waiting`` the
    requests that wait for a connection.
    """

    open: int
    idle: int
    waiting: int


class HttpClient:
    """One pool of connections, closed with its runtime.

    The client follows no redirects, decodes no content codings and retries nothing but a stale connection: if a reused
    connection was closed before the first byte of the response, the request is sent once more on a new one.
    """

    def __init__(self, runtime: Runtime, options: ClientOptions | None = None) -> None:
        self._runtime = runtime
        self._pool = Pool(runtime, options or ClientOptions())
        runtime.supervisor.on_close(self._pool.aclose)
        runtime.gauges.append(self._gauged)

    def snapshot(self) -> ClientSnapshot:
        """The connections of this moment. A plain call without I/O, for statistics and tests."""
        pool = self._pool
        return ClientSnapshot(open=pool.open_count, idle=pool.idle_count, waiting=pool.waiting_count)

    def _gauged(self) -> dict[str, int]:
        pool = self._pool
        return {"transport_connections_open": pool.open_count, "transport_connections_idle": pool.idle_count}

    async def fetch(self, target: Target, fields: bytes, receiver: Receiver) -> float:
        """Send a request and deliver the response to ``receiver``. Returns the seconds until its head.

        ``fields`` are the headers of this request beyond those of ``target``, from ``encoded_fields``. Raises
        ``Unavailable``, ``TimedOut``, ``Stalled``, ``ProtocolError``, ``ConfigInvalid``, ``RedirectRefused``,
        ``Closed``, and any error of the receiver. If the call fails or is cancelled, the connection is closed.
        """
        pool = self._pool
        connection = pool.take_idle(target.route) or await pool.connect(target.route)
        request = target.head + fields + b"\r\n"
        try:
            try:
                return await connection.send(request, receiver, is_head=target.is_head)
            except StaleConnection:
                self._runtime.counters["transport_stale_connections"] += 1
            connection = await pool.connect(target.route, is_fresh=True)
            return await connection.send(request, receiver, is_head=target.is_head)
        except BaseException:
            connection.close()
            raise
        finally:
            pool.release(connection)

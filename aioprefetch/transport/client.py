"""The client: requests over pooled HTTP/1.1 connections; bodies are received into the memory of the caller."""

from __future__ import annotations

import asyncio

from aioprefetch.accessor.request_events import ReportedRequest
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.transport.connecting import Connector
from aioprefetch.transport.connection import Connection, Receiver, StaleConnection
from aioprefetch.transport.options import ClientOptions
from aioprefetch.transport.origin import Target
from aioprefetch.transport.pool import ClientSnapshot, Pool


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

        ``fields`` are the headers of this request beyond those of ``target``, from ``encoded_fields``; ``body`` is what
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
            # No local variable holds the request: tools that show those of a traceback would show its signature.
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
            if reported is not None:
                reported.failed(error)
            raise

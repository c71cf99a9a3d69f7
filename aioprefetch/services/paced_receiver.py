"""Bodies that are received at the pace of their sink, such as a file on a slow disk."""

from __future__ import annotations

from aioprefetch.accessor.sink import Sink
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.transport import Connection


class PacedReceiver:
    """Receives a body in place for a sink that may be slower than the server, and pauses the connection meanwhile."""

    __slots__ = ("_connection", "_is_waiting", "_runtime", "_sink")

    def __init__(self, runtime: Runtime, sink: Sink, connection: Connection) -> None:
        self._runtime = runtime
        self._sink = sink
        self._connection = connection
        self._is_waiting = False

    def writable(self) -> memoryview:
        """Memory for the next bytes."""
        return self._sink.writable()

    def advance(self, count: int) -> None:
        """Count the bytes that were received into ``writable``."""
        self._sink.advance(count)
        self._pause_if_full()

    def feed(self, chunk: memoryview) -> int:
        """Copy a chunk; returns the number of bytes copied."""
        count = self._sink.feed(chunk)
        self._pause_if_full()
        return count

    def _pause_if_full(self) -> None:
        if self._sink.is_full and not self._is_waiting and not self._sink.complete:
            self._is_waiting = True
            self._connection.pause()
            self._runtime.supervisor.spawn(self._resume(), name="a body waits for the disk")

    async def _resume(self) -> None:
        await self._sink.drained()
        self._is_waiting = False
        self._connection.resume()


def receiver_of(runtime: Runtime, sink: Sink, connection: Connection) -> PacedReceiver | Sink:
    """A receiver of a body in place for a sink, at the pace of the sink."""
    return PacedReceiver(runtime, sink, connection) if sink.is_paced else sink

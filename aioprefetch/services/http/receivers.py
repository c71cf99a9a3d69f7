"""Destinations of a body that cannot be received in place: one with a prefix to skip, and one without a length."""

from __future__ import annotations

import asyncio

from aioprefetch.accessor.sink import Sink
from aioprefetch.errors import BudgetExhausted, Unsupported
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.supervisor import Work
from aioprefetch.services.paced_receiver import receiver_of
from aioprefetch.transport import Connection
from aioprefetch.values import ReadRequest

# Memory is reserved in pieces of at least this size.
RESERVED_BYTES_MIN = 1 << 20
# The maximum that is received of a body without a length.
UNSIZED_BYTES_MAX = 64 << 20
# A prefix is received into one buffer of this size, again and again.
SKIP_BUFFER_BYTES = 64 << 10


class SkippingReceiver:
    """Drops the first ``skip_bytes`` of a body, receives the next ones in place, and stops the response after them."""

    __slots__ = ("_connection", "_counters", "_receiver", "_scratch", "_sink", "_skip_bytes")

    def __init__(self, runtime: Runtime, sink: Sink, connection: Connection, skip_bytes: int) -> None:
        self._counters = runtime.counters
        self._sink = sink
        self._receiver = receiver_of(runtime, sink, connection)
        self._connection = connection
        self._skip_bytes = skip_bytes
        self._scratch = memoryview(bytearray(min(skip_bytes, SKIP_BUFFER_BYTES)))

    def writable(self) -> memoryview:
        """Memory for the next bytes: a buffer that is used again, then that of the sink."""
        return self._scratch[: self._skip_bytes] if self._skip_bytes else self._receiver.writable()

    def advance(self, count: int) -> None:
        """Count the bytes that were received into ``writable``."""
        if self._skip_bytes:
            self._skip_bytes -= count
            self._counters["stream_read_total_bytes"] += count
            return
        self._receiver.advance(count)
        self._stop_if_complete()

    def feed(self, chunk: memoryview) -> int:
        """Drop or copy a chunk. Bytes after the wanted part are dropped too."""
        skipped = min(self._skip_bytes, len(chunk))
        self._skip_bytes -= skipped
        self._counters["stream_read_total_bytes"] += skipped
        if not self._sink.complete:
            self._receiver.feed(chunk[skipped:])
            self._stop_if_complete()
        return len(chunk)

    def _stop_if_complete(self) -> None:
        if self._sink.complete:
            self._connection.stop()


class UnsizedReceiver:
    """Collects the wanted bytes of a body without a length, in memory that the budget counts.

    ``release`` returns the memory; it may be called twice. Only one body at a time may exceed the budget: if
    several did, none would find the memory to end. The others pause their connections until it is their turn, and are
    ``BudgetExhausted`` after ``budget_wait_seconds``.
    """

    def __init__(self, runtime: Runtime, request: ReadRequest, connection: Connection) -> None:
        self.received = 0
        self.is_complete = True
        self._runtime = runtime
        self._request = request
        self._connection = connection
        self._start = 0  # The position of the first byte of ``_data`` in the object.
        self._data = bytearray()
        self._room = memoryview(b"")
        self._reserved_bytes = 0
        self._turn: asyncio.Lock = runtime.shared("http bodies of unknown length", asyncio.Lock)
        self._has_turn = False
        self._waiting: Work | None = None

    def writable(self) -> memoryview:
        """Memory for the next bytes."""
        self._room = memoryview(bytearray(SKIP_BUFFER_BYTES))
        return self._room

    def advance(self, count: int) -> None:
        """Keep the bytes that were received into ``writable``."""
        self.feed(self._room[:count])

    def feed(self, chunk: memoryview) -> int:
        """Keep the wanted part of a chunk, and stop the response after the last wanted byte.

        Raises ``Unsupported`` for a body of more than ``UNSIZED_BYTES_MAX``.
        """
        count = len(chunk)
        if not self.is_complete:
            return count  # The rest of the chunk with the last wanted byte.
        self.received += count
        self._runtime.counters["stream_read_total_bytes"] += count
        if self.received > UNSIZED_BYTES_MAX:
            raise Unsupported(
                f"the server tells no length, and such objects are read up to {UNSIZED_BYTES_MAX} bytes only: "
                "copy the object to a store that tells lengths and has ranges",
                operation="read",
                path=self._request.path,
            )
        self._keep(chunk)
        request = self._request
        if request.size is not None and request.suffix is None and self.received >= request.offset + request.size:
            self.is_complete = False
            self._connection.stop()
        return count

    def _keep(self, chunk: memoryview) -> None:
        suffix = self._request.suffix
        if suffix is None and not self._data:
            # Bytes before the offset are dropped.
            skipped = max(0, len(chunk) - max(0, self.received - self._request.offset))
            chunk = chunk[skipped:]
            self._start = self.received - len(chunk)
        missing_bytes = len(self._data) + len(chunk) - self._reserved_bytes
        if missing_bytes > 0:
            self._reserve(max(missing_bytes, RESERVED_BYTES_MIN))
        self._data += chunk
        if suffix is not None and len(self._data) > 2 * suffix + RESERVED_BYTES_MIN:
            self._start += len(self._data) - suffix
            del self._data[: len(self._data) - suffix]

    def view(self, start: int, end: int) -> memoryview:
        """The bytes ``[start, end)`` of the object, which were wanted."""
        return memoryview(self._data)[start - self._start : end - self._start] if start < end else memoryview(b"")

    def release(self) -> None:
        """Release the memory and the turn."""
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        self._runtime.budget.release(self._reserved_bytes)
        self._reserved_bytes = 0
        self._data = bytearray()
        if self._has_turn:
            self._has_turn = False
            self._turn.release()

    def _reserve(self, size_bytes: int) -> None:
        """Reserve memory, or pause the connection until it is this body's turn to exceed the budget.

        A few KiB that the connection has received before it is paused are counted at the turn.
        """
        if self._waiting is not None and not self._has_turn:
            return
        budget = self._runtime.budget
        ticket = budget.request(size_bytes, "demand")
        if not ticket.granted:
            budget.cancel(ticket)
            if not self._has_turn:
                self._connection.pause()
                self._waiting = self._runtime.supervisor.spawn(self._take_turn(), name="http body waits for memory")
                return
            budget.charge(size_bytes)
        self._reserved_bytes += size_bytes

    async def _take_turn(self) -> None:
        limit_seconds = self._runtime.options.budget_wait_seconds
        try:
            with self._runtime.timer("memory_waits"):
                async with asyncio.timeout(limit_seconds):
                    await self._turn.acquire()
        except TimeoutError:
            self._connection.close(
                BudgetExhausted(
                    f"memory for a response without a length was not free within {limit_seconds} s; read fewer of "
                    "them at once, release views, close readers or raise memory_bytes",
                    operation="read",
                    path=self._request.path,
                )
            )
            return
        self._has_turn = True
        missing_bytes = max(len(self._data) - self._reserved_bytes, RESERVED_BYTES_MIN)
        self._runtime.budget.charge(missing_bytes)
        self._reserved_bytes += missing_bytes
        self._connection.resume()

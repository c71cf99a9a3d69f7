"""A response whose body its reader takes piece by piece, and which is not received faster than it is read."""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from collections import deque
from collections.abc import Callable

from aioprefetch.errors import Closed
from aioprefetch.transport.connection import Connection, Destination
from aioprefetch.transport.response_head import ResponseHead

# What a response that nobody reads may hold in memory, and what is received into at once.
UNREAD_BYTES_MAX = 256 << 10


class _Pieces:
    """The receiver of a stream, and its memory, which is filled from one side and handed over from the other.

    All that the connection knows. The reader's ``StreamedAnswer`` it does not, which can be collected therefore.
    """

    def __init__(self, connection: Connection, release: Callable[[Connection], None]) -> None:
        self.head: ResponseHead | None = None
        self._connection = connection
        self._release = release
        self._ready: deque[memoryview] = deque()
        self._memory = memoryview(b"")
        self._filled = self._taken = 0
        self._unread_bytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self._released = False

    def begin(self, head: ResponseHead, connection: Connection) -> _Pieces:
        """Called with the head; returns where the body goes."""
        self.head = head
        self.notify()
        return self

    def ended(self, done: asyncio.Future[float]) -> None:
        """The response has come to its end, one way or the other."""
        if not done.cancelled():
            done.exception()  # Whoever reads on gets it; nobody may.
        self.give_back()
        self.notify()

    def give_back(self) -> None:
        """Let the connection serve others, as soon as its response has come to its end; once."""
        if not self._released:
            self._released = True
            self._release(self._connection)

    def abandon(self) -> None:
        """Nobody reads the rest: break it off, unless the connection is somebody else's already."""
        if not self._released:
            self._connection.close()

    async def wait(self, done: asyncio.Future[float]) -> None:
        """Until something has arrived, or the response is ``done``."""
        if done.done():
            return
        self._waiter = done.get_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def notify(self) -> None:
        """Wake who waits."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def writable(self) -> memoryview:
        if self._filled == len(self._memory):
            if self._taken < self._filled:
                self._ready.append(self._memory[self._taken : self._filled])
            self._memory = memoryview(bytearray(UNREAD_BYTES_MAX))
            self._filled = self._taken = 0
        return self._memory[self._filled :]

    def advance(self, count: int) -> None:
        self._filled += count
        self._unread_bytes += count
        if self._unread_bytes >= UNREAD_BYTES_MAX:
            self._connection.pause()
        self.notify()

    def feed(self, chunk: memoryview) -> int:
        taken = 0
        while taken < len(chunk):
            room = self.writable()
            count = min(len(room), len(chunk) - taken)
            room[:count] = chunk[taken : taken + count]
            self.advance(count)
            taken += count
        return taken

    def take(self) -> memoryview:
        """The next bytes, read-only; empty when nothing has arrived. The memory is the caller's from now on."""
        if self._ready:
            piece = self._ready.popleft()
        else:
            piece = self._memory[self._taken : self._filled]
            self._taken = self._filled
        self._unread_bytes -= len(piece)
        if self._unread_bytes < UNREAD_BYTES_MAX and not self._released:
            self._connection.resume()
        return piece.toreadonly()


class StreamedAnswer:
    """``head`` is there when ``begin`` has returned. Whoever reads closes it; after the last byte that does nothing.

    One that is dropped instead breaks off its connection when it is collected, with a ``ResourceWarning``.
    """

    def __init__(self, connection: Connection, release: Callable[[Connection], None]) -> None:
        self.head: ResponseHead
        self.head_seconds = 0.0
        self._connection = connection
        self._pieces = _Pieces(connection, release)
        self._done: asyncio.Future[float] | None = None
        self._closed = False

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        done = self._done
        if self._closed or done is None or done.done():
            return
        # Any thread may collect it. A loop that is closed has closed its connections.
        with contextlib.suppress(RuntimeError):
            done.get_loop().call_soon_threadsafe(self._pieces.abandon)
        _warn(f"a response was not closed: {self!r}", ResourceWarning, source=self)

    async def begin(self, request: bytes, *, is_head: bool) -> None:
        """Send the request and wait for the head. If it fails or is cancelled, the caller closes."""
        loop = asyncio.get_running_loop()
        sent = loop.time()
        pieces = self._pieces
        self._done = done = self._connection.send(request, pieces, is_head=is_head)
        done.add_done_callback(pieces.ended)
        while pieces.head is None:
            if done.done():
                done.result()
            await pieces.wait(done)
        self.head = pieces.head
        self.head_seconds = loop.time() - sent

    def take_over(self, head: ResponseHead) -> Destination:
        """Called by a receiver in its ``begin``, which leaves the body to the reader of this; returns where it goes."""
        self.head = head
        self._done = self._connection.hand_over()
        self._done.add_done_callback(self._pieces.ended)
        return self._pieces

    async def read_chunk(self) -> memoryview:
        """The next bytes of the body, empty at its end. If it fails or is cancelled the connection is closed."""
        assert self._done is not None
        while True:
            if self._closed:
                raise Closed("the response was closed")
            piece = self._pieces.take()
            if piece:
                return piece
            if self._done.done():
                self._done.result()
                self._pieces.give_back()
                return piece
            try:
                await self._pieces.wait(self._done)
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Give the connection back, or break it off when the body is not at its end. Twice is fine."""
        if self._done is None or not self._done.done():
            self._connection.close()
        else:
            self._pieces.give_back()
        self._closed = True
        self._pieces.notify()

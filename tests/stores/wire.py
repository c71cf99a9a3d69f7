"""A connection without sockets: a transport that is driven by hand, as selectors and as TLS drive one."""

import asyncio
import random
from collections.abc import Callable
from typing import Any, cast

from aioprefetch.transport.connection import Connection
from aioprefetch.transport.origin import Origin, Route
from aioprefetch.transport.responses import ResponseHead

ROUTE = Route(Origin("http", "store.example", 80), None)
GUARD = b"\xa5" * 64


class StillLoop:
    """The little of a loop that a connection uses. Its time is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.complaints: list[dict[str, Any]] = []
        self.ready: list[Callable[[], Any]] = []

    def call_soon(self, call: Callable[[], Any]) -> None:
        self.ready.append(call)

    def time(self) -> float:
        return self.now

    def get_debug(self) -> bool:
        return False

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=cast("asyncio.AbstractEventLoop", self))

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.complaints.append(context)


class HandTransport(asyncio.Transport):
    """Keeps what is written. ``abort`` loses the connection at the next ``Wire.turn``, as loops do.

    ``unsent_bytes``: how much of it the kernel has not taken. ``on_write`` is called behind each write.
    """

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.closed = False
        self.paused = False
        self.unsent_bytes = 0
        self.on_write: Callable[[], None] = lambda: None
        self.socket: object = None
        self.protocol: object = None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.socket if name == "socket" else default

    def get_protocol(self) -> Any:
        return self.protocol

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed
        self.written += data
        self.on_write()

    def abort(self) -> None:
        self.closed = True

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        assert not self.paused
        assert not self.closed
        self.paused = True

    def resume_reading(self) -> None:
        assert self.paused
        assert not self.closed
        self.paused = False


class TlsTransport(HandTransport):
    """What TLS puts above another transport: it has decrypted all that was received."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == "ssl_object" else default

    def pending(self) -> int:
        return 0

    def get_read_buffer_size(self) -> int:
        return 0


class Wire:
    """One connection and the bytes that are on their way to it.

    ``mode``: ``selector`` asks for a buffer and fills it once; ``tls`` fills one buffer in several steps; ``rude`` does
    so too, and goes on within one callback after the connection was closed or paused. ``is_secured``: the connection
    knows that there is TLS, and offers memory accordingly.
    """

    def __init__(
        self,
        mode: str = "selector",
        *,
        peeks: bool = False,
        rng: random.Random | None = None,
        is_secured: bool = False,
    ) -> None:
        self.loop = StillLoop()
        self.mode = mode
        self.pending = b""
        self.lost = 0
        self._rng = rng or random.Random(0)
        self.transport = HandTransport()
        has_arrived = (lambda: bool(self.pending)) if peeks else None
        self.connection = Connection(cast("asyncio.AbstractEventLoop", self.loop), ROUTE, self._on_lost, has_arrived)
        self.connection.connection_made(self.transport)
        if is_secured:
            self.transport = TlsTransport()
            self.connection.connection_made(self.transport)

    def _on_lost(self, connection: Connection) -> None:
        self.lost += 1

    def feed(self, data: bytes, *pieces: int) -> None:
        """Let bytes arrive, in pieces of these sizes and the rest at once; each piece is received before the next."""
        position = 0
        for size in (*pieces, len(data)):
            self.pending += data[position : position + size]
            position += size
            self.receive()
            if self.transport.closed:
                return

    def receive(self) -> None:
        """Receive what is pending, until it is all gone, or the connection is closed or paused."""
        while self.pending and not self.transport.closed and not self.transport.paused:
            self._fill_once()
            if self.mode == "rude":
                while self.pending and self._rng.random() < 0.5:
                    self._fill_once()
            self.turn()

    def _fill_once(self) -> None:
        protocol = self.connection
        buffer = protocol.get_buffer(-1)
        wanted = len(buffer)
        assert wanted > 0, "an empty buffer"
        assert not buffer.readonly
        filled = 0
        while self.pending and filled < wanted:
            step = wanted - filled
            if self.mode != "selector":
                step = min(step, self._rng.choice((1, 7, 1 << 10, 16 << 10)))
            count = min(step, len(self.pending))
            buffer[filled : filled + count] = self.pending[:count]
            self.pending = self.pending[count:]
            filled += count
            if self.mode == "selector":
                break
        protocol.buffer_updated(filled)

    def turn(self) -> None:
        """The next turn of the loop: what was closed is lost."""
        while self.loop.ready:
            self.loop.ready.pop(0)()
        if self.transport.closed and not self.lost:
            self.connection.connection_lost(None)

    def end(self, error: Exception | None = None) -> None:
        """The server hangs up: with FIN, or with an error."""
        if not self.transport.closed:
            if error is None and not self.connection.eof_received():
                self.transport.close()
            self.transport.closed = True
        if not self.lost:
            self.connection.connection_lost(error)


class Memory:
    """A destination of pieces, with guards around each. ``size`` bytes are wanted; ``None``: all that come.

    ``is_roomy``: it offers more memory than the body has bytes, the guard behind it.
    """

    def __init__(self, size: int | None, *, pieces: list[int] | None = None, is_roomy: bool = False) -> None:
        self.size = size
        self.received = 0
        self.on_advance: Callable[[], None] = lambda: None
        self._fed = bytearray()
        self._in_place = bytearray()
        self._sizes = pieces or []
        self._is_roomy = is_roomy
        self._buffers: list[bytearray] = []
        self._offered = 0
        self._room = 0

    def writable(self) -> memoryview:
        if not self._room:
            left = (self.size or 0) - self.received
            assert left > 0, "memory was asked for beyond the end"
            size = min(left, self._sizes.pop(0)) if self._sizes else left
            self._buffers.append(bytearray(GUARD + bytes(size) + GUARD))
            self._room = size
        buffer = self._buffers[-1]
        start = len(buffer) - len(GUARD) - self._room
        self._offered = self._room
        is_last = self.received + self._room == self.size
        return memoryview(buffer)[start : None if self._is_roomy and is_last else start + self._room]

    def advance(self, count: int) -> None:
        assert 0 < count <= self._offered
        self._room -= count
        self._offered = 0
        self.received += count
        self.on_advance()

    def feed(self, chunk: memoryview) -> int:
        if self.size is None:
            self._fed += chunk
            self.received += len(chunk)
            self.on_advance()
            return len(chunk)
        taken = 0
        while taken < len(chunk) and self.received < self.size:
            room = self.writable()[: self.size - self.received]
            count = min(len(room), len(chunk) - taken)
            room[:count] = chunk[taken : taken + count]
            self.advance(count)
            taken += count
        return taken

    def content(self) -> bytes:
        """What was delivered. Fails if a guard was written to."""
        if self.size is None:
            return bytes(self._fed)
        for buffer in self._buffers:
            assert buffer.startswith(GUARD), "written before the buffer"
            assert buffer.endswith(GUARD), "written beyond the buffer"
        guard = len(GUARD)
        return b"".join(bytes(buffer[guard:-guard]) for buffer in self._buffers)[: self.received]


class Taker:
    """A receiver: ``memory`` gets the body, ``heads`` the heads. ``refusal`` is raised instead."""

    def __init__(
        self, *, pieces: list[int] | None = None, is_roomy: bool = False, refusal: Exception | None = None
    ) -> None:
        self.heads: list[ResponseHead] = []
        self.memory: Memory | None = None
        self.on_begin: Callable[[Memory], None] = lambda memory: None
        self._pieces = pieces
        self._is_roomy = is_roomy
        self._refusal = refusal

    def begin(self, head: ResponseHead, connection: Connection) -> Memory:
        self.heads.append(head)
        if self._refusal is not None:
            raise self._refusal
        self.memory = Memory(head.length, pieces=self._pieces, is_roomy=self._is_roomy)
        self.on_begin(self.memory)
        return self.memory

    def content(self) -> bytes:
        return b"" if self.memory is None else self.memory.content()


class EndTaker(Taker):
    """A receiver that calls ``at_end`` as its last byte is delivered, ``turns`` turns of the loop later.

    At 0 the request goes on; at 1 it has ended, and its task has not run; at 2 that task has run, and the tasks that
    it has woken have not.
    """

    def __init__(self, at_end: Callable[[], object], *, turns: int) -> None:
        super().__init__()
        self._at_end = at_end
        self._turns = turns

    def begin(self, head: ResponseHead, connection: Connection) -> Memory:
        memory = super().begin(head, connection)
        memory.on_advance = self._advanced
        return memory

    def _advanced(self) -> None:
        assert self.memory is not None
        if self.memory.received == self.memory.size:
            self._call_in(self._turns)

    def _call_in(self, turns: int) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(self._call_in, turns - 1)
        else:
            self._at_end()


class PausingTaker(Taker):
    """A receiver that pauses its connection whenever ``piece_bytes`` more have come, as one without memory does.

    ``resumes_after`` turns of the loop it resumes by itself; ``None``: the test calls ``resume``.
    """

    def __init__(self, piece_bytes: int = 100_000, *, resumes_after: int | None = 3) -> None:
        super().__init__()
        self.is_paused = False
        self.pauses = 0
        self._piece_bytes = piece_bytes
        self._resumes_after = resumes_after
        self._mark = 0
        self._connection: Connection | None = None

    def begin(self, head: ResponseHead, connection: Connection) -> Memory:
        memory = super().begin(head, connection)
        self._connection = connection
        memory.on_advance = self._advanced
        return memory

    def resume(self) -> None:
        """Go on receiving."""
        assert self._connection is not None
        self.is_paused = False
        self._connection.resume()

    def _advanced(self) -> None:
        assert self._connection is not None
        assert self.memory is not None
        if self.memory.received - self._mark < self._piece_bytes:
            return
        self._mark = self.memory.received
        self._connection.pause()
        self.is_paused = True
        self.pauses += 1
        if self._resumes_after is not None:
            self._resume_in(self._resumes_after)

    def _resume_in(self, turns: int) -> None:
        loop = asyncio.get_running_loop()
        if turns:
            loop.call_soon(self._resume_in, turns - 1)
        else:
            loop.call_soon(self.resume)

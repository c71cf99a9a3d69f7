"""One connection: a request goes out, its response is received straight into the memory of whoever asked.

The head and whatever comes along with it land in a small buffer of the connection's own. From then on a body whose
length is known is received into its destination, across as many buffers as that has; what has no length (chunks, or
the end of the connection) goes through the small buffer and is copied. Over TLS that buffer grows to what has come
already, and takes what has no room in the destination's next buffer too (``tls`` says why).

After RFC 9112. A connection serves one request at a time; anything that it brings unasked closes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

from aioprefetch.errors import Closed, ProtocolError, Stalled, TimedOut, Unavailable
from aioprefetch.transport.body_framing import UnsizedBody
from aioprefetch.transport.errors import broken_off
from aioprefetch.transport.options import ClientOptions
from aioprefetch.transport.origin import Route
from aioprefetch.transport.response_head import HEAD_BYTES_MAX, ResponseHead, parse_head
from aioprefetch.transport.stall_timer import StallTimer
from aioprefetch.transport.tls import TlsState

# The head of a response and a small body come in one piece into this; what is larger is received in place.
SCRATCH_BYTES = 16 << 10
# Answers are announced once or twice (100, 103), if at all.
INTERIM_HEADS_MAX = 16
_END_OF_HEAD = b"\r\n\r\n"


class Destination(Protocol):
    """Where a body goes; ``aioprefetch.accessor.sink.Sink`` is one."""

    def writable(self) -> memoryview:
        """Memory for the next bytes, never empty while some are missing."""
        ...

    def advance(self, count: int) -> None:
        """``count`` bytes were put there."""
        ...

    def feed(self, chunk: memoryview) -> int:
        """Copy bytes in; returns how many were taken."""
        ...


class Receiver(Protocol):
    """The requester. It is called as soon as the head is here, before any byte of the body is taken."""

    def begin(self, head: ResponseHead, connection: Connection) -> Destination | None:
        """Where the body goes. ``None``: it is not wanted, and the connection is closed. An error refuses the response.

        A destination takes as many bytes as the head promises; without a promised length, as many as come.
        """
        ...


class StaleConnection(Unavailable):
    """A connection that was kept had been closed by the server, before a byte of this response came."""


class Connection(asyncio.BufferedProtocol):
    """The protocol of one connection. ``on_lost`` is called once, when it is gone.

    ``has_arrived`` tells whether its socket has something to receive, or has ended. ``is_reused`` (it has served
    before) and ``is_idle`` (it waits for a request) are for its owner to set.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        route: Route,
        on_lost: Callable[[Connection], None],
        has_arrived: Callable[[], object] | None = None,
    ) -> None:
        self.route = route
        self.is_reused = False
        self.is_idle = False
        self.made_seconds = self.idle_seconds = loop.time()
        self._loop = loop
        self._on_lost = on_lost
        self._has_arrived = has_arrived
        self._transport: asyncio.Transport | None = None
        self._below: asyncio.Transport | None = None
        self._tls: TlsState | None = None
        self._scratch = bytearray(SCRATCH_BYTES)
        self._view = memoryview(self._scratch)
        self._filled = 0
        self._stall_timer = StallTimer()
        self._paused = False
        self._closing = False
        self._done: asyncio.Future[float] | None = None
        self._receiver: Receiver | None = None
        self._is_head = False
        self._keeps_alive = False
        self._destination: Destination | None = None
        self._unsized: UnsizedBody | None = None
        self._in_place = True
        self._left_bytes = 0
        self._body_bytes = 0
        self._interim_heads = 0
        self._sent_seconds = self._head_seconds = 0.0

    def send(self, request: bytes, receiver: Receiver, *, is_head: bool = False) -> asyncio.Future[float]:
        """Send a request. The future ends with its response; its result is how many seconds the response's head took.

        It fails with an error of ours, or with what the receiver raised; the connection is closed then. Who waits no
        longer must ``close`` the connection: until then the response goes on being received.
        """
        assert self._transport is not None
        assert self._done is None
        self._receiver = receiver
        self._is_head = is_head
        self._filled = self._body_bytes = self._interim_heads = 0
        self._done = done = self._loop.create_future()
        self._sent_seconds = now = self._loop.time()
        self._stall_timer.begin(now)
        self._transport.write(request)
        return done

    @property
    def is_usable(self) -> bool:
        """Whether another request may be sent on it."""
        return self._done is None and not self._closing and self._transport is not None

    def is_quiet(self) -> bool:
        """Whether nothing has come that nobody asked for, nor the end. The loop may not have seen that yet.

        Only what is here already can be told. Over TLS that may be a message of TLS itself, which is not worth finding
        out: servers send those before their first response.
        """
        return not self._has_more()

    @property
    def is_busy(self) -> bool:
        """Whether a response is awaited on it."""
        return self._done is not None

    def close(self, error: Exception | None = None) -> None:
        """Break it off now; whoever waits gets ``error``. Twice is fine."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()
        if self._done is not None:
            self._fail(error or Closed("the connection was closed"))

    def stop(self) -> None:
        """Nothing more of this response is wanted: it ends here, and the connection with it."""
        self._finish(is_clean=False)

    def pause(self) -> None:
        """Receive nothing until ``resume``: the receiver has no memory for more. No timeout runs meanwhile."""
        if not (self._paused or self._closing) and self._below is not None:
            self._paused = True
            self._below.pause_reading()

    def resume(self) -> None:
        """Go on receiving."""
        if self._paused and self._below is not None and not self._closing:
            self._paused = False
            self._stall_timer.begin_window(self._loop.time(), self._received_bytes())
            self._below.resume_reading()

    def look(self, now: float, options: ClientOptions) -> None:
        """Break it off if its response comes too slowly."""
        if self._done is None or self._paused:
            return
        first_byte_seconds, stall_seconds = options.first_byte_timeout_seconds, options.stall_timeout_seconds
        if not self._stall_timer.is_too_slow(
            now,
            self._received_bytes(),
            first_byte_seconds=first_byte_seconds,
            stall_seconds=stall_seconds,
            bytes_per_second_min=options.stall_bytes_per_second,
        ):
            return
        if self._stall_timer.is_body:
            self.close(Stalled(f"the body stopped: next to nothing came within read_timeout_seconds={stall_seconds:g}"))
        else:
            self.close(TimedOut(f"no response came within read_timeout_seconds={first_byte_seconds:g}"))

    # --- what the loop calls ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is there; and once more for TLS on it."""
        self._transport = cast("asyncio.Transport", transport)
        if self._below is None:
            self._below = self._transport
        else:
            self._tls = TlsState(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes are to be received."""
        destination = self._destination
        needed = 0 if self._tls is None else self._tls.room_bytes(sizehint)
        if destination is not None:
            try:
                view = destination.writable()
            except Exception as error:
                return self._no_buffer(error)
            room = len(view)
            if not room:
                return self._no_buffer(ProtocolError("the body has more bytes than were asked for"))
            self._in_place = room >= needed or room >= self._left_bytes
            if self._in_place:
                return view[: self._left_bytes] if room > self._left_bytes else view
        if len(self._view) - self._filled < needed:
            self._scratch = self._scratch[: self._filled] + bytes(needed)
            self._view = memoryview(self._scratch)
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """They were received there."""
        destination = self._destination
        try:
            if destination is not None and self._in_place:
                self._body_bytes += nbytes
                self._left_bytes -= nbytes
                destination.advance(nbytes)
                if not self._left_bytes:
                    self._finish(is_clean=not self._has_more())
            elif destination is not None:
                self._take_copied(destination, self._view[:nbytes])
            elif self._unsized is not None:
                self._take_unsized(self._unsized, self._view[:nbytes])
            elif self._done is not None:
                self._take_head(nbytes)
            else:  # Nobody asked for anything.
                self._break_off()
        except Exception as error:
            self._fail(error)
            self._break_off()

    def eof_received(self) -> bool:
        """The server sends no more; ``False`` closes the connection."""
        self._closing = True
        is_meant = self._tls is None or self._tls.was_ended()
        if is_meant and self._unsized is not None and self._unsized.end_with_connection():
            self._succeed()
            self._loop.call_soon(self.close)  # Later: loops that ask do not expect to be answered with that.
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._closing = True
        if self._done is not None:
            self._fail(self._lost(exc))
        self._transport = self._below = self._tls = self._has_arrived = None
        self._on_lost(self)

    # --- inside -------------------------------------------------------------------------------------------------

    def _no_buffer(self, error: Exception) -> memoryview:
        """There is no memory for the body; the loop wants some all the same."""
        self._closing = True
        self._fail(error)
        self._loop.call_soon(self.close)  # Later: uvloop crashes when it is closed while it asks for a buffer.
        return self._view

    def _take_head(self, count: int) -> None:
        known = self._filled
        searched = max(0, known - 3)
        filled = self._filled = known + count
        while (end := self._scratch.find(_END_OF_HEAD, searched, filled)) >= 0:
            if end + 4 > HEAD_BYTES_MAX:
                break
            head = parse_head(self._view[: end + 4], is_head=self._is_head)
            if head.status >= 200:
                self._begin(head, self._view[end + 4 : filled])
                return
            self._skip_interim(head, end + 4)
            searched, known, filled = 0, 0, self._filled
        if filled >= HEAD_BYTES_MAX:
            raise ProtocolError(f"the head of the response has more than {HEAD_BYTES_MAX} bytes")
        scratch = self._scratch
        if scratch.count(b"\n", known, filled) != scratch.count(b"\r\n", max(0, known - 1), filled):
            raise ProtocolError("a line of the response's head does not end with CRLF")  # Its end would never come.
        if filled == len(self._scratch):
            self._scratch = self._scratch + bytes(HEAD_BYTES_MAX - filled)
            self._view = memoryview(self._scratch)

    def _skip_interim(self, head: ResponseHead, count: int) -> None:
        self._interim_heads += 1
        if head.status == 101:
            raise ProtocolError("the server changes to another protocol, which nobody asked for")
        if self._interim_heads > INTERIM_HEADS_MAX:
            raise ProtocolError(f"more than {INTERIM_HEADS_MAX} interim answers came before the response")
        self.is_reused = False  # It is alive: whatever happens to it from now on, it was not closed before.
        rest = bytes(self._view[count : self._filled])
        self._view[: len(rest)] = rest
        self._filled = len(rest)

    def _begin(self, head: ResponseHead, rest: memoryview) -> None:
        self._head_seconds = now = self._loop.time()
        self._stall_timer.begin_window(now, 0)
        self._keeps_alive = head.keeps_alive
        length = head.length
        receiver, self._receiver = self._receiver, None  # Who drops a response is not held by its connection.
        assert receiver is not None
        destination = receiver.begin(head, self)
        if length == 0:
            self._finish(is_clean=not rest)
        elif destination is None:
            self._finish(is_clean=False)
        elif length is None:
            self._unsized = UnsizedBody(destination.feed, is_chunked=head.is_chunked)
            self._filled = 0
            self._take_unsized(self._unsized, rest)
        else:
            body = rest[:length]
            if body and destination.feed(body) != len(body):
                raise ProtocolError("the body has more bytes than were asked for")
            if len(body) < length:
                self._filled = 0
                self._body_bytes = len(body)
                self._left_bytes = length - len(body)
                self._destination = destination
            else:
                self._finish(is_clean=len(rest) == length)

    def _take_unsized(self, unsized: UnsizedBody, data: memoryview) -> None:
        unsized.receive(data)
        if unsized.ended:
            self._finish(is_clean=unsized.is_clean)

    def _take_copied(self, destination: Destination, data: memoryview) -> None:
        body = data[: self._left_bytes]
        if destination.feed(body) != len(body):
            raise ProtocolError("the body has more bytes than were asked for")
        self._body_bytes += len(body)
        self._left_bytes -= len(body)
        if not self._left_bytes:
            self._finish(is_clean=len(body) == len(data) and not self._has_more())

    def _finish(self, *, is_clean: bool) -> None:
        self._succeed()
        if is_clean and self._keeps_alive:
            self.resume()  # Its receiver may have paused it at the last byte; the next request is received.
        else:
            self._break_off()

    def _break_off(self) -> None:
        """Close it from within what the loop calls: later over TLS, which takes that for a mistake of its own."""
        self._closing = True
        if self._tls is not None:
            self._loop.call_soon(self.close)
        elif self._transport is not None:
            self._transport.abort()

    def _succeed(self) -> None:
        done = self._done
        self._reset()
        if done is not None and not done.done():
            done.set_result(self._head_seconds - self._sent_seconds)

    def _fail(self, error: Exception) -> None:
        done = self._done
        self._reset()
        if done is not None and not done.done():
            done.set_exception(error)

    def _reset(self) -> None:
        self._done = self._receiver = self._destination = self._unsized = None
        self._filled = 0

    def _received_bytes(self) -> int:
        return self._body_bytes if self._unsized is None else self._unsized.received_bytes

    def _lost(self, exc: Exception | None) -> Exception:
        unsized = self._unsized
        if self._tls is not None and unsized is not None and not unsized.is_chunked:
            # Without close_notify, an attacker who cuts the connection could make the body shorter.
            return broken_off(exc, f"before TLS said that the body had ended, after {self._received_bytes()} bytes")
        if self._stall_timer.is_body:
            return broken_off(exc, f"in the middle of the body, after {self._received_bytes()} bytes")
        if self.is_reused and not self._filled:
            return StaleConnection("the server had closed the connection")
        return broken_off(exc, "before the head of a response came")

    def _has_more(self) -> bool:
        """Whether something was received, or can be, that nobody has taken; or the server has hung up."""
        if self._has_arrived is not None and self._has_arrived():
            return True
        return self._tls is not None and self._tls.has_more()

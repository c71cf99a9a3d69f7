"""One HTTP/1.1 connection: it sends a request and receives the response into the memory of the receiver.

The head, and the bytes that come with it, are received into a small buffer of the connection. Then a body of known
length is received directly into its destination, across as many buffers as the destination has. A body without a
length (chunks, or up to the end of the connection) is received into the small buffer and copied. Over TLS the small
buffer grows to the bytes that may be decrypted at once, and takes those for which the next buffer of the destination is
too small (see ``tls``).

A connection serves one request at a time (RFC 9112). Bytes that belong to no request close it.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, cast

from aioprefetch.accessor.request_events import ReportedRequest
from aioprefetch.errors import Closed, ProtocolError, Stalled, TimedOut, Unavailable
from aioprefetch.transport.errors import broken_off
from aioprefetch.transport.options import ClientOptions
from aioprefetch.transport.origin import Route
from aioprefetch.transport.responses import (
    HEAD_BYTES_MAX,
    START_BYTES,
    ResponseHead,
    UnsizedBody,
    check_start,
    parse_head,
)
from aioprefetch.transport.tls import TlsState

# The head of a response and a small body fit into this buffer; a larger body is received in place.
SCRATCH_BYTES = 16 << 10
# A body is passed to the loop in pieces of this size, the next one when the loop has sent most of the last one.
SENT_PIECE_BYTES = 256 << 10
# A response with at most this much to come is about to end: a new connection would take longer.
ENDING_BYTES = 64 << 10
# The longest wait for the end of a response in place of a new connection.
ENDING_SECONDS_MAX = 0.1
# Servers send one or two interim responses (100, 103), most send none.
INTERIM_HEADS_MAX = 16
_numbers = itertools.count(1)
_END_OF_HEAD = b"\r\n\r\n"


class Destination(Protocol):
    """The memory for a body, such as an ``aioprefetch.accessor.sink.Sink``.

    It may have an attribute ``is_drained``: whether the rest of the body is received only to keep the connection.
    """

    def writable(self) -> memoryview:
        """Memory for the next bytes, not empty while bytes are missing."""

    def advance(self, count: int) -> None:
        """Count bytes that were received into the memory from ``writable``."""

    def feed(self, chunk: memoryview) -> int:
        """Copy a chunk; returns the number of bytes copied."""


class Receiver(Protocol):
    """The receiver of one response, called with its head before any byte of its body is taken."""

    def begin(self, head: ResponseHead, connection: Connection) -> Destination | None:
        """The destination of the body, ``None`` to skip the body and close the connection.

        An error of this call refuses the response: the request fails with it, and the connection is closed. A
        destination takes all bytes that the head promises, or all that come if the head has no length. It may ``pause``
        and ``resume`` the connection, and ``stop`` the response.
        """


class StaleConnection(Unavailable):
    """The server had closed a reused connection: it sent no byte of this response."""


class Connection(asyncio.BufferedProtocol):
    """The asyncio protocol of one connection. ``on_lost`` is called once, when the connection is closed.

    ``number`` is its own in this process.
    ``on_free`` is called when a response is complete and the connection can take the next request.
    ``has_arrived`` returns whether the socket has bytes to receive, or has ended. The owner of the connection sets
    ``is_reused`` (it has served a request before) and ``is_idle`` (it waits for a request).
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        route: Route,
        on_lost: Callable[[Connection], None],
        has_arrived: Callable[[], object] | None = None,
    ) -> None:
        self.route = route
        self.number = next(_numbers)
        self.is_reused = False
        self.is_idle = False
        self.on_free: Callable[[Connection], None] | None = None
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
        self._reported: ReportedRequest | None = None
        self._is_head = False
        self._keeps_alive = False
        self._destination: Destination | None = None
        self._unsized: UnsizedBody | None = None
        self._in_place = True
        self._left_bytes = 0
        self._body_bytes = 0
        self._interim_heads = 0
        self._sent_seconds = self._head_seconds = 0.0
        self._unsent: memoryview | None = None
        self._is_full = False
        self._has_sent_body = False

    def send(
        self,
        request: bytes,
        receiver: Receiver,
        is_head: bool = False,
        body: memoryview | None = None,
        reported: ReportedRequest | None = None,
    ) -> asyncio.Future[float]:
        """Send a request. The future is done at the end of the response; its result is the seconds until the head.

        A ``body`` is sent from its memory, as fast as the connection takes it; the first-byte timeout begins again with
        each piece of it. A response that comes before all of it was sent ends the request, and closes the connection.
        ``reported`` is the request in events, to which the head and the bytes of the response are passed.

        If the future fails, with an error of ``aioprefetch.errors`` or of the receiver, the connection is closed. A
        caller that stops waiting must ``break_off`` the response, which is otherwise received to its end.
        """
        assert self._transport is not None
        assert self._done is None
        self._receiver = receiver
        self._reported = reported
        self._is_head = is_head
        self._filled = self._body_bytes = self._interim_heads = 0
        self._done = done = self._loop.create_future()
        self._sent_seconds = now = self._loop.time()
        self._stall_timer.begin(now)
        self._has_sent_body = body is not None
        if body is None:
            self._transport.write(request)
        elif len(body) <= SENT_PIECE_BYTES:
            self._transport.write(b"".join((request, body)))
        else:
            self._transport.write(request)
            self._unsent = body
            self._send_body()
        return done

    @property
    def is_usable(self) -> bool:
        """Whether the connection can take a request."""
        return self._done is None and not self._closing and self._transport is not None

    def is_ready(self) -> bool:
        """Whether the connection can take a request and is quiet.

        It has received neither bytes nor its end, also none that the loop has not seen yet. Over TLS the bytes may be a
        message of TLS itself; no difference is made, because servers send such messages before their first response.
        """
        return self._done is None and not self._closing and self._transport is not None and not self._has_more()

    @property
    def is_busy(self) -> bool:
        """Whether the connection serves a request."""
        return self._done is not None

    @property
    def is_ending(self) -> bool:
        """Whether waiting for this response to end is quicker than connecting.

        The rest is small, or it is received for the sake of the connection.
        """
        destination = self._destination
        if destination is None or self._paused or self._closing or not self._keeps_alive:
            return False
        return self._left_bytes <= ENDING_BYTES or bool(getattr(destination, "is_drained", False))

    def break_off(self, done: asyncio.Future[float]) -> None:
        """Close the connection unless the response to the request of this future, from ``send``, is complete."""
        if self._done is done:
            self.close()

    def close(self, error: Exception | None = None) -> None:
        """Close the connection at once. A request in flight fails with ``error``. Further calls do nothing."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()
        if self._done is not None:
            self._fail(error or Closed("the connection was closed"))

    def stop(self) -> None:
        """End the response here, successfully, and close the connection: the rest of the body is not needed."""
        self._finish(is_clean=False)

    def pause(self) -> None:
        """Receive nothing until ``resume``: the receiver has no memory for more. No timeout runs meanwhile."""
        if not (self._paused or self._closing) and self._below is not None:
            self._paused = True
            self._below.pause_reading()

    def resume(self) -> None:
        """Receive again after ``pause``."""
        if self._paused and self._below is not None and not self._closing:
            self._paused = False
            self._stall_timer.begin_window(self._loop.time(), self._received_bytes())
            self._below.resume_reading()

    def look(self, now: float, options: ClientOptions) -> None:
        """Close the connection if its response is too slow."""
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

    def _send_body(self) -> None:
        """Pass the next pieces of the body to the loop, as long as it takes them."""
        transport, below = self._transport, self._below
        assert transport is not None
        assert below is not None
        while (unsent := self._unsent) is not None and not self._is_full and not self._closing:
            transport.write(unsent[:SENT_PIECE_BYTES])
            self._unsent = unsent[SENT_PIECE_BYTES:] if len(unsent) > SENT_PIECE_BYTES else None
            # Before the next piece finds the connection broken; or this one has.
            if below.is_closing() or (self._has_arrived is not None and self._has_arrived()):
                self._take_rest()
            if below.is_closing():
                self._unsent = None

    # --- called by the loop -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called when the connection is open, and again when TLS is open on it."""
        self._transport = cast("asyncio.Transport", transport)
        if self._below is None:
            self._below = self._transport
        else:
            self._tls = TlsState(transport)

    def pause_writing(self) -> None:
        """Called when the send buffer is full."""
        self._is_full = True

    def resume_writing(self) -> None:
        """Called when the send buffer has drained."""
        self._is_full = False
        if self._unsent is not None:
            if not self._stall_timer.is_body:
                self._stall_timer.begin(self._loop.time())
            self._send_body()

    def get_buffer(self, sizehint: int) -> memoryview:
        """The memory for the next bytes."""
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
        """Take the bytes that were received into the memory from ``get_buffer``."""
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
            else:  # The bytes belong to no request.
                self._break_off()
        except Exception as error:
            self._fail(error)
            self._break_off()

    def eof_received(self) -> bool:
        """Called at the end of the server's data; ``False`` closes the connection."""
        self._closing = True
        is_authentic = self._tls is None or self._tls.was_ended()
        if is_authentic and self._unsized is not None and self._unsized.end_with_connection():
            self._succeed()
            self._loop.call_soon(self.close)  # Later: loops do not expect a call of theirs to close.
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Called when the connection is closed."""
        self._closing = True
        if exc is not None and self._has_sent_body:
            self._take_rest()
        if self._done is not None:
            self._fail(self._lost(exc))
        self._transport = self._below = self._tls = self._has_arrived = None
        self._on_lost(self)

    # --- inside -------------------------------------------------------------------------------------------------

    def _take_rest(self) -> None:
        """Take the response that came before a body could not be sent: where that fails the loop drops it unread."""
        assert self._below is not None
        sock, protocol = self._below.get_extra_info("socket"), self._below.get_protocol()
        if sock is None or not isinstance(protocol, asyncio.BufferedProtocol):
            return
        with suppress(OSError):
            while self._done is not None and (count := os.readv(sock.fileno(), [protocol.get_buffer(-1)])):
                protocol.buffer_updated(count)

    def _no_buffer(self, error: Exception) -> memoryview:
        """Fail the request because its body has no memory; returns the small buffer, since the loop needs one."""
        self._closing = True
        self._fail(error)
        self._loop.call_soon(self.close)  # Later: uvloop crashes when closed while it asks for a buffer.
        return self._view

    def _take_head(self, count: int) -> None:
        searched = self._filled
        begin = max(0, searched - 3)
        filled = self._filled = searched + count
        while (end := self._scratch.find(_END_OF_HEAD, begin, filled)) >= 0:
            if end + 4 > HEAD_BYTES_MAX:
                break
            head = parse_head(self._view[: end + 4], is_head=self._is_head)
            if head.status >= 200:
                self._begin(head, self._view[end + 4 : filled])
                return
            self._skip_interim(head, end + 4)
            begin, searched, filled = 0, 0, self._filled
        if filled >= HEAD_BYTES_MAX:
            raise ProtocolError(f"the head of the response has more than {HEAD_BYTES_MAX} bytes")
        scratch = self._scratch
        check_start(scratch[: min(filled, START_BYTES)])
        if scratch.count(b"\n", searched, filled) != scratch.count(b"\r\n", max(0, searched - 1), filled):
            raise ProtocolError("a line of the response's head does not end with CRLF")  # Its end is never found.
        if filled == len(self._scratch):
            self._scratch = self._scratch + bytes(HEAD_BYTES_MAX - filled)
            self._view = memoryview(self._scratch)

    def _skip_interim(self, head: ResponseHead, count: int) -> None:
        self._interim_heads += 1
        if head.status == 101:
            raise ProtocolError("the server changes to another protocol, which was not requested")
        if self._interim_heads > INTERIM_HEADS_MAX:
            raise ProtocolError(f"more than {INTERIM_HEADS_MAX} interim responses came before the response")
        self.is_reused = False  # It is alive, so a failure from now on is not a stale connection's.
        rest = bytes(self._view[count : self._filled])
        self._view[: len(rest)] = rest
        self._filled = len(rest)

    def _begin(self, head: ResponseHead, rest: memoryview) -> None:
        self._head_seconds = self._loop.time()
        self._keeps_alive = head.keeps_alive
        length = head.length
        receiver, self._receiver = self._receiver, None  # The connection keeps no reference to it.
        assert receiver is not None
        if self._reported is None:
            destination = receiver.begin(head, self)
        else:
            destination = self._begin_reported(head, receiver, self._reported)
        if length == 0:
            self._finish(is_clean=not rest)
        elif destination is None:
            self._finish(is_clean=False)
        elif length is None:
            self._stall_timer.begin_window(self._head_seconds, 0)
            self._unsized = UnsizedBody(destination.feed, is_chunked=head.is_chunked)
            self._filled = 0
            self._take_unsized(self._unsized, rest)
        else:
            body = rest[:length]
            if body and destination.feed(body) != len(body):
                raise ProtocolError("the body has more bytes than were asked for")
            if len(body) < length:
                self._stall_timer.begin_window(self._head_seconds, 0)
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

    def _begin_reported(self, head: ResponseHead, receiver: Receiver, reported: ReportedRequest) -> Destination | None:
        if reported.responded(head.status, self.number):
            return receiver.begin(head, self)
        reported.received_bytes = 0
        destination = receiver.begin(head, self)
        return None if destination is None else _CountedDestination(destination, reported)

    def _finish(self, *, is_clean: bool) -> None:
        if self._has_sent_body and self._transport is not None:
            # A response that came early: the server may not receive the rest of the body.
            is_clean = is_clean and self._unsent is None and not self._transport.get_write_buffer_size()
        self._succeed()
        if is_clean and self._keeps_alive:
            if self._paused:
                self.resume()  # Its receiver has paused it at the last byte; the next request is received.
            if self.on_free is not None:
                self.on_free(self)  # Now, and not in the turn of the caller: the next request may be sent before that.
        else:
            self._break_off()

    def _break_off(self) -> None:
        """Close within a call of the loop; over TLS after it, because TLS must not be closed in a call of its own."""
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
        self._done = self._receiver = self._reported = self._destination = self._unsized = self._unsent = None
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
        when = "before the head of a response came"
        if exc is None and self._tls is None and not self.is_reused:
            when += ", as servers do that speak TLS alone: their URLs begin with https://"
        return broken_off(exc, when)

    def _has_more(self) -> bool:
        """Whether bytes that belong to no request were received, or can be, or the server has closed the connection."""
        if self._has_arrived is not None and self._has_arrived():
            return True
        return self._tls is not None and self._tls.has_more()


class StallTimer:
    """The rule of the first-byte timeout and the stall timeout, for one response at a time. Pure, no I/O.

    A connection that sends a byte now and then is as useless as a dead one, so the rule counts the bytes within a
    window, not the time since the last byte. The pool calls ``is_too_slow`` at intervals, with the time of the loop.
    """

    def __init__(self) -> None:
        self.is_body = False
        self._mark_seconds = 0.0
        self._mark_bytes = 0

    def begin(self, now: float) -> None:
        """Start when a request is sent."""
        self.is_body = False
        self._mark_seconds = now

    def begin_window(self, now: float, received_bytes: int) -> None:
        """Start a window: the head has come, or a paused body continues."""
        self.is_body = True
        self._mark_seconds = now
        self._mark_bytes = received_bytes

    def is_too_slow(
        self,
        now: float,
        received_bytes: int,
        *,
        first_byte_seconds: float,
        stall_seconds: float,
        bytes_per_second_min: float,
    ) -> bool:
        """Whether the head is late, or too few bytes of the body came in a whole window.

        ``received_bytes`` counts from the start of the body.
        """
        waited = now - self._mark_seconds
        if not self.is_body:
            return waited >= first_byte_seconds
        if waited < stall_seconds:
            return False
        is_below_rate = received_bytes - self._mark_bytes < max(1.0, bytes_per_second_min * waited)
        self.begin_window(now, received_bytes)
        return is_below_rate


class _CountedDestination:
    """A destination whose bytes are counted for an event."""

    __slots__ = ("_destination", "_reported")

    def __init__(self, destination: Destination, reported: ReportedRequest) -> None:
        self._destination = destination
        self._reported = reported

    @property
    def is_drained(self) -> bool:
        """Whether the body is received for the sake of the connection alone."""
        return bool(getattr(self._destination, "is_drained", False))

    def writable(self) -> memoryview:
        """Memory for the next bytes."""
        return self._destination.writable()

    def advance(self, count: int) -> None:
        """Count bytes, and pass them on."""
        self._reported.received_bytes += count
        self._destination.advance(count)

    def feed(self, chunk: memoryview) -> int:
        """Count a chunk, and pass it on."""
        self._reported.received_bytes += len(chunk)
        return self._destination.feed(chunk)

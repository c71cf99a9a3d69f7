"""The destination of a response's body: the reader of a range provides memory, and the service fills it.

A sink allocates memory when the checked head of the response is there, so by the size that the store has confirmed. It
outlives attempts: a retry continues at ``received``. It may scatter a body over several buffers. ``copy_chunks`` fills
one from a body that another library hands over in chunks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from operator import attrgetter
from typing import Any

from aioprefetch.accessor.response_check import VersionPin, check_due, wrong_response
from aioprefetch.errors import InvalidType, ProtocolError, Unavailable
from aioprefetch.runtime.buffers import Owner, lend_buffer
from aioprefetch.values import ReadHead, ReadReply, ReadRequest

# A body is collected in pieces of at most this size: an object that claims terabytes allocates as bytes arrive.
PIECE_BYTES_MAX = 64 << 20

# The piece of a sink that has not begun.
_NOTHING = memoryview(b"")


class Sink:
    """The destination of one read, over all its attempts.

    A subclass provides the memory (``_allocate``), and may override ``_begun`` and ``_advanced`` to follow progress.
    ``head`` is the head of the first attempt, ``received`` the bytes delivered so far.

    A sink that passes its bytes on, and may be slower than the store, is ``is_paced``: a service that can pause looks
    at ``is_full`` between two pieces, and awaits ``drained``.

    ``is_drained``: no read needs the rest, which is received for the sake of its connection; it is not requested again.
    """

    is_drained = False
    is_paced = False
    is_full = False
    __slots__ = ("_piece", "_piece_end", "_piece_start", "head", "is_promoted", "on_promote", "received")

    def __init__(self) -> None:
        self.head: ReadHead | None = None
        self.received = 0
        self.is_promoted = False
        self.on_promote: Callable[[], None] | None = None
        self._piece = _NOTHING
        self._piece_start = self._piece_end = 0

    @property
    def complete(self) -> bool:
        """Whether all bytes of the response were delivered."""
        return self.head is not None and self.received >= self.head.size

    def promote(self) -> None:
        """Treat this prefetch as demand from now on: a reader waits for its bytes.

        A layer that queues the read sets ``on_promote`` meanwhile, and looks at ``is_promoted`` at a later attempt.
        """
        self.is_promoted = True
        if self.on_promote is not None:
            self.on_promote()

    def begin(self, head: ReadHead, *, path: str = "") -> None:
        """Take the checked head of a response, before the first byte of its body.

        The head of a later attempt must continue the first one. Raises ``ObjectChanged`` for another version of the
        object (by ETag and size; by size and ``Last-Modified`` if the store sends neither ETag nor version), and
        ``ProtocolError`` for a range that does not begin at the next missing byte.
        """
        first = self.head
        if first is None:
            self.head = head
            self._begun(head)
            return
        if not is_same_version(first, head):
            raise VersionPin(first.etag, path=path).changed(
                head.etag,
                f"the object changed between two attempts of one read: {first.total} bytes of {first.last_modified} "
                f"became {head.total} bytes of {head.last_modified}",
            )
        if head.start != first.start + self.received or head.end != first.end:
            raise ProtocolError(
                f"expected [{first.start + self.received}, {first.end}), got [{head.start}, {head.end})",
                operation="read",
                path=path,
            )

    def writable(self) -> memoryview:
        """Memory for the next bytes of the body; not empty before the sink is complete."""
        received = self.received
        if received >= self._piece_end:
            size = self._expect(0)
            start = self._piece_start = self._piece_end
            piece = self._piece = self._allocate(start, size)
            self._piece_end = start + len(piece)
            if not piece:  # There is no place for what was not asked for.
                self._expect(size + 1)
        return self._piece[received - self._piece_start :]

    def advance(self, count: int) -> None:
        """Count bytes that were written into the memory from ``writable``."""
        self.received += count
        self._advanced()

    def feed(self, chunk: bytes | bytearray | memoryview) -> int:
        """Copy a chunk, and return its length. ``ProtocolError``, and nothing is copied, if more comes than is due."""
        data = memoryview(chunk)
        taken = 0
        if data and not self.complete and len(room := self.writable()) >= len(data):  # The usual case.
            taken = len(data)
            room[:taken] = data
            self.advance(taken)
            return taken
        self._expect(len(data))
        while taken < len(data):
            room = self.writable()
            count = min(len(room), len(data) - taken)
            room[:count] = data[taken : taken + count]
            self.advance(count)
            taken += count
        return taken

    async def pour(self, body: memoryview) -> None:
        """Copy a body that is in memory already, at the pace of the sink."""
        if not self.is_paced:
            self.feed(body)
            return
        self._expect(len(body))
        while body:
            if self.is_full:
                await self.drained()
            count = min(len(self.writable()), len(body))
            self.feed(body[:count])
            body = body[count:]

    async def drained(self) -> None:
        """Wait until a paced sink is no longer full."""

    async def begin_again(self) -> bool:
        """Prepare for another response, which nothing proves to be of the version that has begun to arrive.

        Called between two attempts. A sink drops its bytes if no caller has seen any, and the next response is its
        first one. Returns whether the sink can take the next response; ``False`` if its bytes are in use.
        """
        return False

    def _rewind(self) -> None:
        """Drop the bytes received. For subclasses, in ``begin_again``."""
        self.received = 0
        self._piece, self._piece_start, self._piece_end = _NOTHING, 0, 0

    def drop_memory(self) -> None:
        """Keep no view of the memory of a body that is complete."""
        self._piece = _NOTHING

    def _expect(self, count: int) -> int:
        """The size of the response. ``ProtocolError`` unless it has begun, and ``count`` bytes of it are missing."""
        head = self.head
        if head is None or self.received + count > head.size:
            why = "came before its head" if head is None else f"has more bytes than were asked for: over {head.size}"
            raise ProtocolError(f"the body {why}", operation="read")
        return head.size

    def _begun(self, head: ReadHead) -> None:
        """Called once, with the first head."""

    def _allocate(self, position: int, size: int) -> memoryview:
        """Writable memory for the bytes from ``position`` on; ``size - position`` bytes are missing."""
        raise NotImplementedError

    def _advanced(self) -> None:
        """Called after each advance."""


class ForwardingSink(Sink):
    """A sink over another one, ``target``, for a layer that changes or watches a part of what it does.

    It has no state of its own: what is asked of it is asked of the target.
    """

    __slots__ = ("target",)

    head: ReadHead | None = property(attrgetter("target.head"))  # type: ignore[assignment]
    received: int = property(attrgetter("target.received"))  # type: ignore[assignment]
    is_promoted: bool = property(attrgetter("target.is_promoted"))  # type: ignore[assignment]
    is_drained: bool = property(attrgetter("target.is_drained"))  # type: ignore[assignment]
    is_paced: bool = property(attrgetter("target.is_paced"))  # type: ignore[assignment]
    is_full: bool = property(attrgetter("target.is_full"))  # type: ignore[assignment]
    complete: bool = property(attrgetter("target.complete"))  # type: ignore[assignment]

    def __init__(self, target: Sink) -> None:
        self.target = target

    @property
    def on_promote(self) -> Callable[[], None] | None:
        return self.target.on_promote

    @on_promote.setter
    def on_promote(self, call: Callable[[], None] | None) -> None:
        self.target.on_promote = call

    def promote(self) -> None:
        self.target.promote()

    def begin(self, head: ReadHead, *, path: str = "") -> None:
        self.target.begin(head, path=path)

    def writable(self) -> memoryview:
        return self.target.writable()

    def advance(self, count: int) -> None:
        self.target.advance(count)

    def feed(self, chunk: bytes | bytearray | memoryview) -> int:
        return self.target.feed(chunk)

    async def pour(self, body: memoryview) -> None:
        await self.target.pour(body)

    async def drained(self) -> None:
        await self.target.drained()

    async def begin_again(self) -> bool:
        return await self.target.begin_again()

    def drop_memory(self) -> None:
        self.target.drop_memory()


class CheckingSink(ForwardingSink):
    """Passes a response on unless ``check`` raises an error for its head."""

    __slots__ = ("_check",)

    def __init__(self, target: Sink, check: Callable[[ReadHead], object]) -> None:
        super().__init__(target)
        self._check = check

    def begin(self, head: ReadHead, *, path: str = "") -> None:
        self._check(head)
        self.target.begin(head, path=path)


def check_delivered(request: ReadRequest, sink: Sink, reply: ReadReply) -> None:
    """Raise ``ProtocolError`` unless a read that has returned delivered what its head promised, and that was due."""
    head, named = sink.head, reply.head
    if head is None or named.end != head.end or not is_same_version(head, named):
        why = f"the reply has the head {named}, and the head that came before its body is {head}"
    elif sink.received != head.size:
        why = f"the body has {sink.received} bytes where its head says {head.size}"
    else:
        return check_due(request, named)
    raise wrong_response(request, why, received=sink.received)


def is_comparable(head: ReadHead) -> bool:
    """Whether a later response can be compared with this one (``is_same_version``), although that proves nothing."""
    return head.etag is not None or head.version is not None or None not in (head.total, head.last_modified)


def is_same_version(first: ReadHead, head: ReadHead) -> bool:
    """Whether a later response is of the version of the object that has begun to arrive."""
    if first.etag is None and first.version is None:
        return head.etag is None and (first.total, first.last_modified) == (head.total, head.last_modified)
    return first.etag == head.etag and (first.total is None or head.total in (None, first.total))


def writable_bytes(buffer: Any, *, operation: str, path: str) -> memoryview:
    """The bytes of a writable buffer with items of any type. Raises ``InvalidType`` for other objects."""
    try:
        view = memoryview(buffer).cast("B")
    except TypeError:
        view = memoryview(b"")  # Read-only, and so refused below.
    if view.readonly:
        raise InvalidType(
            f"a writable, contiguous buffer is needed, not {type(buffer).__name__}", operation=operation, path=path
        )
    return view


class CollectSink(Sink):
    """Collects the response in memory of its own; an ``owner`` keeps that memory for later sinks.

    ``piece_bytes_max`` is the largest piece of that memory: a response may claim more bytes than ever come.
    """

    __slots__ = ("_owner", "_pieces", "_whole", "is_placed")
    piece_bytes_max = PIECE_BYTES_MAX

    def __init__(self, owner: Owner | None = None) -> None:
        Sink.__init__(self)  # Called for every read; ``super`` would cost a lookup each time.
        self._owner = owner
        self._pieces: list[memoryview] = []
        self._whole: bytes | None = None
        # Whether a subclass has a place of its own for the bytes.
        self.is_placed = False

    def feed(self, chunk: bytes | bytearray | memoryview) -> int:
        """Copy a chunk, as ``Sink.feed`` does; a chunk that is the whole body is copied only once."""
        head, size = self.head, len(chunk)
        is_whole = head is not None and size == head.size and not self.received and size <= self.piece_bytes_max
        if not is_whole or self._pieces or self.is_placed:
            return Sink.feed(self, chunk)
        self._whole = bytes(chunk)
        self.received = size
        self._advanced()
        return size

    async def begin_again(self) -> bool:
        self._rewind()
        self.head = None
        self._pieces.clear()
        self._whole = None
        return True

    def _allocate(self, position: int, size: int) -> memoryview:
        missing = size - position
        piece_bytes = self.piece_bytes_max
        piece = lend_buffer(missing if missing < piece_bytes else piece_bytes, self._owner)
        self._pieces.append(piece)
        return piece

    def to_bytes(self) -> bytes:
        """The bytes delivered, as one ``bytes``."""
        if self._whole is not None:
            return self._whole
        pieces = self._pieces
        if len(pieces) == 1 and self.received == len(pieces[0]):
            return bytes(pieces[0])
        return b"".join(pieces)[: self.received]

    def to_view(self) -> memoryview:
        """The bytes delivered, as a read-only view; copied only if they lie in several pieces."""
        pieces = self._pieces
        if not pieces:
            return memoryview(self._whole or b"")
        if len(pieces) == 1:
            view = self._piece.toreadonly()
            return view if self.received == len(view) else view[: self.received]
        return memoryview(self.to_bytes())


class BufferSink(Sink):
    """Writes the response into the caller's buffer, which must have room for all of it."""

    __slots__ = ("_buffer",)

    def __init__(self, buffer: memoryview) -> None:
        super().__init__()
        self._buffer = buffer

    def feed(self, chunk: bytes | bytearray | memoryview) -> int:
        """Copy a chunk, as ``Sink.feed`` does; a chunk that is the whole body fills the buffer at once."""
        head, size = self.head, len(chunk)
        if self.received or head is None or head.size != size or len(self._buffer) != size or not size:
            return Sink.feed(self, chunk)
        self._buffer[:] = chunk
        self.received = size
        self._advanced()
        return size

    async def begin_again(self) -> bool:
        self._rewind()
        self.head = None
        return True

    def _allocate(self, position: int, size: int) -> memoryview:
        return self._buffer[position:size]


# The next chunk of a body, perhaps an empty one; ``None`` at its end.
NextChunk = Callable[[], Awaitable[bytes | memoryview | None]]


async def copy_chunks(next_chunk: NextChunk, request: ReadRequest, sink: Sink, head: ReadHead) -> None:
    """Copy a body of ``head.size`` bytes into a sink that has begun, at the pace of the sink.

    Raises ``Unavailable`` for a body that ends before its last byte, so that another attempt goes on there, and
    ``ProtocolError`` for a chunk that goes beyond it, and none of it reaches the sink. No chunk is asked for after
    the last byte, so a further chunk is not noticed.
    """
    received = 0
    while not sink.complete:
        chunk = await next_chunk()
        if chunk is None:
            raise Unavailable(
                f"the body ended after {received} of {head.size} bytes", operation="read", path=request.path
            )
        received += len(chunk)
        await sink.pour(memoryview(chunk))  # A chunk may be as large as the object.

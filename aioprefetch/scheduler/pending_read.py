"""Ranges that were submitted together, from the queue to the decoder, and the requests that bring them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Protocol

from aioprefetch.accessor.sink import Sink
from aioprefetch.errors import Closed, copy_of
from aioprefetch.ranges import Range
from aioprefetch.runtime.buffers import Owner, lend_buffer
from aioprefetch.runtime.supervisor import Work
from aioprefetch.scheduler.pinned_file import PinnedFile
from aioprefetch.scheduler.queued_parts import Part, Submission, TakenRead
from aioprefetch.values import Lane, ReadHead

# The starts and ends of ranges in the file, the offset of the view in the file, and the view with their bytes.
Stretch = tuple[Sequence[int], Sequence[int], int, memoryview]

_NOTHING = memoryview(b"")


class QueuedRead:
    """A submission and its bytes as they arrive: the ``PendingRead`` that the service creates.

    Many small ranges arrive in one view, which is divided when ``views`` is first read. A range above the maximum is
    requested in parts. They are received into one shared buffer, the **landing**. If the file has memory of its own,
    the parts stay there, and are joined when ``views`` is first read.
    """

    def __init__(
        self,
        submission: Submission,
        ranges: Sequence[Range],
        *,
        on_promote: Callable[[QueuedRead], None],
        on_release: Callable[[QueuedRead], None],
    ) -> None:
        self.submission = submission
        self.is_promoted = False
        self.promoted_at: float | None = None  # Since when a decoder waits for it.
        self.resident: list[Range] = []
        self._ranges = ranges
        self._on_promote = on_promote
        self._on_release = on_release
        self._missing = len(submission.starts)
        self._views: dict[int, memoryview] = {}  # Ranges with a view of their own: resident ones, and landings.
        self._arrivals: list[tuple[int, int, int, memoryview]] = []
        self._whole: list[memoryview] | None = None
        self._landings: dict[int, memoryview] = {}
        self._pieces: dict[int, list[tuple[int, memoryview]]] = {}
        self._waiters: list[asyncio.Future[None]] = []
        self._error: Exception | None = None
        self._is_released = False

    @property
    def done(self) -> bool:
        """Whether the read has ended: it arrived, failed, or was released."""
        return not self._missing or self._error is not None or self._is_released

    @property
    def views(self) -> Sequence[memoryview]:
        """The bytes of each range, read-only; ``Closed`` if the read was released or has not arrived."""
        self._check()
        if self._whole is None:
            self._whole = self._divided()
        return self._whole

    @property
    def stretches(self) -> list[Stretch]:
        """The ranges within the arrived views, in the order of submission. Raises like ``views``.

        The list is empty if a range was resident or cut, or if ``views`` was read before. For callers that join
        thousands of small ranges: creating a view of each takes longer than receiving them, and slows the garbage
        collector down.
        """
        self._check()
        submission = self.submission
        if self._whole is not None or self._views or self._pieces or not isinstance(submission.indices, range):
            return []
        arrivals = sorted(self._arrivals, key=itemgetter(0))
        starts, ends = submission.starts, submission.ends
        return [(starts[first:last], ends[first:last], base, view) for first, last, base, view in arrivals]

    def promote(self) -> None:
        """Let the read exceed the budget, because a decoder cannot continue without it."""
        if not (self.is_promoted or self.done):
            self.is_promoted = True
            self._on_promote(self)

    async def wait(self) -> Sequence[memoryview]:
        """``promote`` and wait for the bytes. ``Closed`` if the read is released or the scan closed meanwhile."""
        self.promote()
        await self.arrive()
        return self.views

    async def arrive(self) -> None:
        """Wait until the read has arrived, failed, or was released; raises nothing of its own."""
        if not self.done:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                self._waiters.remove(waiter)

    def release(self) -> None:
        """Release the bytes; a second call does nothing."""
        if not self._is_released:
            self._is_released = True
            self._forget()
            self._on_release(self)

    # --- called by the service ----------------------------------------------------------------------------------

    def put(self, index: int, view: memoryview) -> None:
        """Set the bytes of a range that were resident already."""
        self._views[index] = view.toreadonly()
        self.resident.append(self._ranges[index])

    def landing(self, part: Part, owner: Owner) -> memoryview | None:
        """The memory to receive a part of a cut range into; ``None`` if the part is a whole range, or was released."""
        cut = self._cut_range(part)
        if cut is None or self._is_released:
            return None
        index, (start, end) = cut
        whole = self._landings.get(index)
        if whole is None:
            whole = self._landings[index] = lend_buffer(end - start, owner)
            self._views[index] = whole.toreadonly()
        return whole[part.start - start : part.end - start]

    def arrived(self, part: Part, view: memoryview) -> None:
        """Set the bytes of a part, which are in ``view``."""
        cut = self._cut_range(part)
        if cut is None:
            self._arrivals.append((part.first, part.last, part.start, view.toreadonly()))
        elif cut[0] not in self._landings:
            self._pieces.setdefault(cut[0], []).append((part.start, view))
        self._missing -= part.count
        if not self._missing:
            self._wake()

    def failed(self, error: Exception) -> None:
        """Fail the read with ``error``, unless it has ended already."""
        if not self.done:
            self._error = error
            self._forget()

    def _check(self) -> None:
        if self._error is not None:
            raise copy_of(self._error)
        if self._is_released or self._missing:
            what = "were given back" if self._is_released else "have not arrived yet"
            raise Closed(f"the bytes of this read {what}", operation="read")

    def _cut_range(self, part: Part) -> tuple[int, Range] | None:
        """The number and the range that a part is only a piece of; ``None`` for whole ranges."""
        if part.count > 1 or isinstance(self.submission.indices, range):
            return None
        index = self.submission.indices[part.first]
        start, end = self._ranges[index]
        return None if part.end - part.start == end - start else (index, (start, end))

    def _forget(self) -> None:
        self._views, self._arrivals, self._pieces, self._landings, self._whole = {}, [], {}, {}, None
        self._wake()

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _divided(self) -> list[memoryview]:
        """A view of each range."""
        submission = self.submission
        starts, ends, indices = submission.starts, submission.ends, submission.indices
        views = [_NOTHING] * len(self._ranges)
        for first, last, base, view in self._arrivals:
            places = zip(starts[first:last], ends[first:last], strict=True)
            slices = [view[start - base : end - base] for start, end in places]
            if isinstance(indices, range):
                views[first:last] = slices
            else:
                for index, piece in zip(indices[first:last], slices, strict=True):
                    views[index] = piece
        for index, pieces in self._pieces.items():
            views[index] = memoryview(b"".join(piece for _, piece in sorted(pieces, key=itemgetter(0))))
        for index, view in self._views.items():
            views[index] = view
        self._arrivals, self._pieces, self._views = [], {}, {}
        return views


# --- reads of pages ---------------------------------------------------------------------------------------------------


class FileMemory(Protocol):
    """The memory for the bytes of a file, if its format provides it."""

    def allocate(self, start: int, end: int) -> memoryview:
        """Writable memory for ``[start, end)`` of the file."""

    def discard(self, start: int, end: int) -> None:
        """Take back a range that was allocated like this and is not needed any more."""


class PageRequest(Sink):
    """A request in flight, and its result: ``is_complete``, ``error``, or neither if it was cancelled."""

    def __init__(
        self,
        taken: TakenRead,
        readers: list[QueuedRead],
        pinned: PinnedFile,
        *,
        memory: FileMemory | None,
        owner: Owner,
        copying: asyncio.Lock,
        on_send: Callable[[PageRequest], None],
    ) -> None:
        super().__init__()
        self.taken = taken
        self.work: Work | None = None
        self.error: Exception | None = None
        self.is_complete = False
        self.is_sent = False
        self._readers = readers  # Of each part.
        self._pinned = pinned
        self._memory = memory
        self._owner = owner
        self._copying = copying  # One at a time of all requests of the scan.
        self._on_send = on_send
        self._buffer: memoryview | None = None
        self._landed = False
        self._is_allocated = False

    @property
    def path(self) -> str:
        """The path of the file."""
        return self._pinned.path

    async def run(self) -> None:
        """Send it and receive the response, unless the bytes are in memory already."""
        lane: Lane = "demand" if any(reader.is_promoted for reader in self._readers) else "prefetch"
        start, end = self.taken.start, self.taken.end
        try:
            if not await self._copy_held():
                self.is_sent = True
                self._on_send(self)
                await self._pinned.read_to(self, start, end, lane=lane)
            self._land()
            self.is_complete = True
        except Exception as error:
            self.error = copy_of(error)

    async def _copy_held(self) -> bool:
        """Copy it out of the runtime's blocks, if they have it, in a turn of the loop that copies nothing else."""
        start, end = self.taken.start, self.taken.end
        if not self._pinned.holds(start, end):
            return False
        async with self._copying:
            is_copied = self._pinned.copy_held(self, start, end)
            await asyncio.sleep(0)
        return is_copied

    def deliver(self) -> None:
        """Deliver the bytes to each read that still waits for them."""
        view, taken = self._buffer, self.taken
        assert view is not None
        for part, reader in zip(taken.parts, self._readers, strict=True):
            if part.submission not in taken.users:
                continue
            reader.arrived(part, view[part.start - taken.start : part.end - taken.start])
        self._let_go()

    def discard(self) -> None:
        """Drop the bytes: no read needs them any more."""
        if self._memory is not None and self._is_allocated:
            self._memory.discard(self.taken.start, self.taken.end)
        self._let_go()

    def _land(self) -> None:
        """Put parts of ranges where the other parts are, unless they were received there."""
        view, taken = self._buffer, self.taken
        if self._memory is not None or self._landed or view is None:
            return
        for part, reader in zip(taken.parts, self._readers, strict=True):
            place = reader.landing(part, self._owner)
            if place is not None:
                place[:] = view[part.start - taken.start : part.end - taken.start]

    def _let_go(self) -> None:
        # The memory lives as long as its views, not as long as this request.
        self._buffer = None
        self._piece = memoryview(b"")

    async def begin_again(self) -> bool:
        """Receive the next response into the same memory: no reader sees a byte before the request is complete."""
        self._rewind()
        return True

    def _begun(self, head: ReadHead) -> None:
        self._pinned.pin.check(head, (self.taken.start, self.taken.end))
        self._buffer = self._place()

    def _place(self) -> memoryview:
        taken = self.taken
        if self._memory is not None:
            place = self._memory.allocate(taken.start, taken.end)
            self._is_allocated = True
            return place
        if len(taken.parts) == 1:
            landing = self._readers[0].landing(taken.parts[0], self._owner)
            if landing is not None:
                self._landed = True
                return landing
        return lend_buffer(taken.size, self._owner)

    def _allocate(self, position: int, size: int) -> memoryview:
        assert self._buffer is not None
        return self._buffer[position:size]

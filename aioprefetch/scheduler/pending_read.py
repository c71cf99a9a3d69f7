"""Ranges that were submitted together, from the queue to the decoder: the ``PendingRead`` of the I/O service."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Sequence
from operator import itemgetter

from aioprefetch.errors import Closed, Error
from aioprefetch.ranges import Range
from aioprefetch.runtime.buffers import Owner, lend_buffer
from aioprefetch.scheduler.queued_parts import Part, Submission

# The starts and ends of ranges in the file, the offset of the view in the file, and the view with their bytes.
Stretch = tuple[Sequence[int], Sequence[int], int, memoryview]

_NOTHING = memoryview(b"")


class QueuedRead:
    """A submission and its bytes as they arrive: the ``PendingRead`` that the service creates.

    Many small ranges arrive in one view, which is divided when ``views`` is first read. A range above the maximum is
    requested in parts. They are received into one shared buffer, the **landing**. If the file has memory of its own,
    the parts stay there, and are joined when ``views`` is first read.
    """

    __slots__ = (
        "_arrivals",
        "_error",
        "_is_released",
        "_landings",
        "_missing",
        "_on_promote",
        "_on_release",
        "_pieces",
        "_ranges",
        "_views",
        "_waiters",
        "_whole",
        "is_promoted",
        "promoted_at",
        "resident",
        "submission",
    )

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
            raise twin(self._error)
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


def twin(error: Exception) -> Exception:
    """A copy of the error for one waiter: an exception raised in several tasks would collect all their tracebacks."""
    if not isinstance(error, Error):
        return error
    duplicate = copy.copy(error)
    duplicate.__cause__ = error.__cause__
    return duplicate

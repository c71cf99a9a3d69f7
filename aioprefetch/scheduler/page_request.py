"""One request of a scan: the sink of its response, in memory that is taken when the checked head has arrived."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from aioprefetch.accessor.sink import Sink
from aioprefetch.runtime.buffers import Owner, lend_buffer
from aioprefetch.runtime.supervisor import Work
from aioprefetch.scheduler.pending_read import QueuedRead
from aioprefetch.scheduler.pinned_file import PinnedFile
from aioprefetch.scheduler.queued_parts import TakenRead
from aioprefetch.values import Lane, ReadHead


class FileMemory(Protocol):
    """The memory for the bytes of a file, if its format provides it."""

    def allocate(self, start: int, end: int) -> memoryview:
        """Writable memory for ``[start, end)`` of the file."""
        ...

    def discard(self, start: int, end: int) -> None:
        """Take back a range that was allocated like this and is not needed any more."""
        ...


class PageRequest(Sink):
    """A request in flight, and its result: ``is_complete``, ``error``, or neither if it was cancelled."""

    __slots__ = (
        "_buffer",
        "_copying",
        "_is_allocated",
        "_landed",
        "_memory",
        "_on_send",
        "_owner",
        "_pinned",
        "_readers",
        "error",
        "is_complete",
        "is_sent",
        "taken",
        "work",
    )

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
            self.error = error

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

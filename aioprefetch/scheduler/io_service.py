"""The I/O of one scan: sends the requests that the queue admits, delivers and counts their bytes.

Submissions are sent in a later turn of the loop, so that one burst can be merged. Each request is
background work of the runtime and not of a reader: its failure fails the reads that it serves, and the others continue.
Its bytes are the scan's until the last read that it served is released.

A view of a merged response keeps all of that response in memory: the budget counts the bytes that reads hold, not
their bytes after ``release``.

**Memory.** A scan has a budget of its own, and a part in the one of the runtime. Held memory is charged to the
runtime's budget too, so that cached blocks make room for it. Where that budget is used up by others the scan queues for
the head of its queue, behind earlier requests for memory, with a prefetch's place in line. Memory that must exceed the
budget is charged too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.errors import Closed
from aioprefetch.ranges import Range, joined
from aioprefetch.runtime.budget import MemoryBudget, Ticket
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.supervisor import Work
from aioprefetch.scheduler.io_queue import (
    REQUEST_BYTES_MAX,
    IoQueue,
    request_bytes_for,
)
from aioprefetch.scheduler.pending_read import FileMemory, PageRequest, QueuedRead
from aioprefetch.scheduler.pinned_file import PinnedFile
from aioprefetch.scheduler.queued_parts import QueuedFile, Submission, TakenRead


class ScanMemory:
    """``limit_bytes`` of 0 means no limit. ``on_room`` is called when awaited memory is available."""

    def __init__(self, budget: MemoryBudget, limit_bytes: int, on_room: Callable[[], None]) -> None:
        self.held_bytes = 0
        self._budget = budget
        # More than there is could never be granted, and would hold up every reservation behind it.
        self.limit_bytes = min(limit_bytes, budget.limit_bytes)
        self._on_room = on_room
        self._ticket: Ticket | None = None

    @property
    def left_bytes(self) -> int:
        """The rest of the scan's own limit; negative if it is exceeded."""
        return self.limit_bytes - self.held_bytes

    def free_bytes(self, need_bytes: int) -> int | None:
        """The memory that may be taken now; ``need_bytes`` are useful. ``None`` without a limit.

        Blocks are evicted for it. No memory is free while others wait for it, unless they asked later.
        """
        if not self.limit_bytes:
            return None
        left = self.left_bytes
        if left <= 0 or need_bytes <= 0:
            return left
        is_next = self._ticket is not None and self._ticket.granted
        if is_next:
            self.leave_queue()  # Take its memory before other requests are granted any.
        elif self._budget.waiting:
            return 0
        return max(0, min(left, self._budget.room(min(left, need_bytes), "prefetch")))

    def take(self, size_bytes: int) -> None:
        """Charge bytes, whether or not they fit."""
        self.held_bytes += size_bytes
        self._budget.room(size_bytes, "demand")
        self._budget.charge(size_bytes)

    def give_back(self, size_bytes: int) -> None:
        """Bytes that were taken are free again."""
        self.held_bytes -= size_bytes
        self._budget.release(size_bytes)

    def queue_for(self, size_bytes: int) -> None:
        """Wait for this many bytes of the runtime's budget, unless the scan is waiting already."""
        if self._ticket is None:
            self._ticket = self._budget.request(size_bytes, "prefetch", on_grant=self._on_room)

    def leave_queue(self) -> None:
        """Wait for nothing."""
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            self._budget.cancel(ticket)


# --- the service ------------------------------------------------------------------------------------------------------

# Reading through a gap of this size takes 0.7 ms at 90 MB/s, where a request of its own takes 20 to 50 until its first
# byte. It could be larger for time's sake; but the bytes are paid for, and pages that no column needs are mostly
# larger than this, so that it merges neighbours and skips columns.
GAP_BYTES = 64 << 10

# More requests at once do not help a scan that has bytes of all of them to decode.
SLOTS_MAX = 64

# A scan takes this share of the runtime's memory, so that readers and another scan find some, and what decoders need
# for a moment is there as well.
_BUDGET_SHARE = 3

# A request takes at most this share of the scan's budget, so that several are in flight with a small one, too.
_REQUEST_SHARE = 8


class IoService:
    """The queue of one scan, over any number of files. Belongs to the loop of its runtime.

    ``budget_bytes`` is the maximum that its reads hold together, a third of the runtime's memory by default (0: no
    limit). ``slots`` is the maximum number of requests in flight, by default the runtime's concurrency, at most 64.
    ``gap_bytes`` and ``request_bytes_max`` control how reads are merged and cut. ``wanted_bytes`` is the approximate
    size of the whole scan, which decides on the default maximum of a request.
    """

    def __init__(
        self,
        accessor: Accessor,
        runtime: Runtime,
        *,
        budget_bytes: int | None = None,
        slots: int | None = None,
        gap_bytes: int | None = None,
        request_bytes_max: int | None = None,
        wanted_bytes: int | None = None,
    ) -> None:
        options = runtime.options
        budget = options.memory_bytes // _BUDGET_SHARE if budget_bytes is None else budget_bytes
        bytes_max = REQUEST_BYTES_MAX if wanted_bytes is None else request_bytes_for(wanted_bytes)
        if budget:
            bytes_max = min(bytes_max, max(GAP_BYTES, budget // _REQUEST_SHARE))
        self.runtime = runtime
        self.accessor = accessor
        self.gap_bytes = GAP_BYTES if gap_bytes is None else gap_bytes
        self.memory = ScanMemory(runtime.budget, budget, self._schedule)
        self.is_closed = False
        self.has_received = False
        self._carried_bytes = 0
        self.on_progress: Callable[[], None] | None = None
        self._queue = IoQueue(
            slots=slots or min(options.concurrency, SLOTS_MAX),
            request_bytes_max=request_bytes_max or bytes_max,
            on_refund=self._refunded,
        )
        self._reads: dict[Submission, QueuedRead] = {}
        self._requests: dict[TakenRead, PageRequest] = {}
        self._spawned: dict[object, Work | None] = {}
        self._is_scheduled = False
        self._copying = asyncio.Lock()

    @property
    def request_bytes_max(self) -> int:
        """The largest request that is sent."""
        return self._queue.request_bytes_max

    @property
    def in_flight(self) -> int:
        """The number of requests in flight."""
        return self._queue.in_flight

    @property
    def queued(self) -> int:
        """The number of reads that wait for their request."""
        return self._queue.queued

    def carry(self, size_bytes: int) -> None:
        """Count bytes that arrived before the scan, with the metadata of a file.

        They belong to the scan until it is closed, or they are put down. ``Closed`` if it is.
        """
        if self.is_closed:
            raise _was_closed("")
        self._carried_bytes += size_bytes
        self.memory.take(size_bytes)

    def put_down(self, size_bytes: int) -> None:
        """Bytes that were carried are gone; without effect once the scan is closed."""
        if not self.is_closed:
            self._carried_bytes -= size_bytes
            self.memory.give_back(size_bytes)
            self._schedule()

    def close(self) -> None:
        """End everything: queued reads and requests in flight get ``Closed``, spawned work is cancelled.

        It waits for nothing: the requests are gone, and their bytes released, within the next turns of the loop.
        """
        self.is_closed = True
        self.memory.leave_queue()
        carried, self._carried_bytes = self._carried_bytes, 0
        self.memory.give_back(carried)
        for submission, read in tuple(self._reads.items()):
            read.failed(_was_closed(""))
            self._drop(submission)
        for work in tuple(self._spawned.values()):
            if work is not None:
                work.cancel()

    # --- calls of files and reads -------------------------------------------------------------------------

    def submit(self, file: ScannedFile, ranges: Sequence[Range], row: int, *, is_follow_up: bool) -> QueuedRead:
        """Queue ranges of a file; see ``PageIo``."""
        if self.is_closed:
            raise _was_closed(file.pinned.path)
        file.check_ranges(ranges)
        resident = file.find_residents(ranges)
        missing = [(0, 0) if index in resident else pair for index, pair in enumerate(ranges)] if resident else ranges
        submission = self._queue.submit(file, missing, rank=file.rank, row=row, is_follow_up=is_follow_up)
        read = QueuedRead(submission, ranges, on_promote=self._promote, on_release=self._release)
        for index, view in resident.items():
            read.put(index, view)
        if resident and self.runtime.events.wants_reads:
            self._publish_served(file, [ranges[index] for index in resident], "memory", None)
        counters = self.runtime.counters
        counters["scan_reads"] += 1
        counters["scan_bytes_wanted"] += submission.size
        self._reads[submission] = read
        if submission.parts:
            self._schedule()
        return read

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        """Run a task until the scan is closed; see ``PageIo``."""
        if self.is_closed:
            work.close()
            return
        token = object()
        self._spawned[token] = None
        handle = self.runtime.supervisor.spawn(work, name=name, on_end=partial(self._forget, token))
        if token in self._spawned:  # Unless it has ended already, because the runtime is closed.
            self._spawned[token] = handle

    def _forget(self, token: object) -> None:
        del self._spawned[token]

    def _promote(self, read: QueuedRead) -> None:
        self.runtime.counters["scan_waits"] += 1
        read.promoted_at = self.runtime.now()
        self._queue.promote(read.submission)
        for taken in read.submission.reads:
            request = self._requests[taken]
            if taken.is_in_flight and not request.is_promoted:
                request.promote()
        self._schedule()

    def _release(self, read: QueuedRead) -> None:
        self._drop(read.submission)
        del self._reads[read.submission]
        file = read.submission.file
        assert isinstance(file, ScannedFile)
        if file.memory is not None:
            for start, end in read.resident:
                file.memory.discard(start, end)

    def _drop(self, submission: Submission) -> None:
        for taken in self._queue.release(submission):
            work = self._requests[taken].work
            if work is not None:
                work.cancel()
        self._schedule()  # Later parts of the queue may be admissible now.

    # --- requests -----------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        if not (self._is_scheduled or self.is_closed or self.runtime.loop.is_closed()):
            self._is_scheduled = True
            self.runtime.loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._is_scheduled = False
        queue, memory = self._queue, self.memory
        while queue.queued and queue.in_flight < queue.slots:
            taken = queue.take(memory.free_bytes(min(queue.queued_bytes, queue.request_bytes_max)))
            if taken is None:
                break
            self._start(taken)
        head = None if queue.waits_for_more else queue.head
        if head is not None and queue.in_flight < queue.slots and head.head_size <= memory.left_bytes:
            memory.queue_for(head.head_size)  # The scan may have it, but the runtime has no room.
        else:
            memory.leave_queue()

    def _start(self, taken: TakenRead) -> None:
        file = taken.file
        assert isinstance(file, ScannedFile)
        self.memory.take(taken.size)
        counters = self.runtime.counters
        counters["scan_budget_overdrafts"] += taken.is_overdraft
        readers = [self._reads[part.submission] for part in taken.parts]
        request = PageRequest(
            taken,
            readers,
            file.pinned,
            memory=file.memory,
            owner=self.runtime.budget,
            copying=self._copying,
            on_send=self._sent,
        )
        self._requests[taken] = request
        request.work = self.runtime.supervisor.spawn(
            request.run(), name="scan request", on_end=partial(self._ended, request)
        )

    def _sent(self, request: PageRequest) -> None:
        counters = self.runtime.counters
        counters["scan_requests"] += 1
        counters["scan_bytes_requested"] += request.taken.size

    def _ended(self, request: PageRequest) -> None:
        """A request has ended in any way, even by a cancellation before its first step."""
        taken = request.taken
        if request.is_complete:
            self.has_received |= request.is_sent
            if self.runtime.events.wants_reads:
                self._publish_arrived(request)
            request.deliver()
            self._queue.finish(taken)
        else:
            error = request.error or _was_closed(request.path)
            users = tuple(taken.users)
            for submission in users:
                self._reads[submission].failed(error)
            self._queue.finish(taken, failed=True)
            for submission in users:
                self._drop(submission)
        self._schedule()
        if self.on_progress is not None:
            self.on_progress()

    def _publish_arrived(self, request: PageRequest) -> None:
        """Publish the ranges that a request brings to reads, and how long a decoder has waited for them."""
        taken = request.taken
        tier = "store" if request.is_sent else "memory"
        for part in taken.parts:
            submission = part.submission
            if submission in taken.users:
                ranges = list(zip(submission.starts, submission.ends, strict=True))[part.first : part.last]
                if part.count == 1:  # It may be a piece of a range.
                    ranges = [(part.start, part.end)]
                promoted_at = self._reads[submission].promoted_at
                waited = None if promoted_at is None else self.runtime.now() - promoted_at
                self._publish_served(taken.file, ranges, tier, waited)

    def _publish_served(self, file: QueuedFile, ranges: Iterable[Range], tier: str, waited: float | None) -> None:
        assert isinstance(file, ScannedFile)
        for start, end in joined(ranges):
            self.runtime.events.publish_served(file.pinned.path, start, end, tier, waited)
            waited = None  # The wait was for all of them.

    def _refunded(self, taken: TakenRead) -> None:
        self._requests.pop(taken).discard()
        self.memory.give_back(taken.size)


class ScannedFile(QueuedFile):
    """A file of a scan: the ``PageIo`` that its column schedulers get.

    All rows of a file with a smaller ``rank`` are needed before this one's. Bytes are received into ``memory``
    if it is given. ``planned`` and ``wanted``: see ``QueuedFile``. ``gap_bytes`` replaces the service's.

    It is a ``QueuedFile`` instead of holding one, because the queue hands out submissions and requests by their file:
    the service finds the pinned file and its memory there, without a table from one to the other.
    """

    def __init__(
        self,
        service: IoService,
        pinned: PinnedFile,
        *,
        rank: int = 0,
        memory: FileMemory | None = None,
        planned: Iterable[Range] = (),
        wanted: Iterable[Range] = (),
        gap_bytes: int | None = None,
    ) -> None:
        super().__init__(service.gap_bytes if gap_bytes is None else gap_bytes, planned, wanted)
        self._service = service
        self.pinned = pinned
        self.rank = rank
        self.memory = memory

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.pinned.size

    def submit(self, ranges: Sequence[Range], row: int, *, is_follow_up: bool = False) -> QueuedRead:
        """Submit reads. ``Closed`` once the scan is closed. Bytes in the tail of the file are available at once."""
        return self._service.submit(self, ranges, row, is_follow_up=is_follow_up)

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        """Run a task of the scan. It is not started once the scan is closed."""
        self._service.spawn(work, name=name)

    def check_ranges(self, ranges: Sequence[Range]) -> None:
        """``UntrustedMetadata`` if a range leaves the file or is reversed."""
        size = self.pinned.size
        if not all(0 <= start <= end <= size for start, end in ranges):
            for pair in ranges:
                self.pinned.check_range(*pair)

    def find_residents(self, ranges: Sequence[Range]) -> dict[int, memoryview]:
        """The bytes of the ranges that lie in the tail, by number, in the memory of the file if it has one."""
        bound = self.pinned.tail_start
        residents = {}
        for index in [index for index, (start, end) in enumerate(ranges) if bound <= start < end]:
            view = self._resident(*ranges[index])
            if view is not None:
                residents[index] = view
        return residents

    def _resident(self, start: int, end: int) -> memoryview | None:
        view = self.pinned.resident(start, end)
        if view is None or self.memory is None:
            return view
        place = self.memory.allocate(start, end)
        place[:] = view
        return place


def _was_closed(path: str) -> Closed:
    return Closed("the scan was closed", operation="read", path=path)

"""The order and the merging of a scan's requests. Pure: no loop, no clock, no I/O.

**Order.** Every submission has a priority: rank of its file, top-level row, number of the submission; the smallest
first. The first part in the queue is the **head**. It is admitted when a slot is free and the part fits into the rest
of the byte budget. While the head does not fit, no later part is admitted: small reads that are not needed yet would
keep taking the memory that the head waits for.

**Exceeding the budget.** Bytes count from admission until every reader has released them, not until they arrive: bytes
that are delivered and not decoded yet are memory too. A read may exceed the budget by one of five rules, without which
two reads could wait for each other's memory:

1. there is no budget at all;
2. it is the follow-up of an indirect read whose first half was admitted, and the budget is not exceeded already;
3. its priority is not greater than any held read's: the read that is needed first always makes progress, even
   if it is larger than the whole budget;
4. a part of the same submission was admitted: half a page is useless;
5. a decoder waits for it. Lance's rule is "no I/O is running", by which a scan whose consumer is slow would take one
   more page whenever its requests have ended, until all of the file is in memory. A waiting decoder calls ``promote``.

While the head is blocked, awaited reads (5) and follow-ups (2) are taken instead, in the order of priority.

**Merging.** A read that is admitted takes queued neighbours in the same file along, of any submitter: the one
that is needed sooner first, over gaps of ``gap_bytes`` at most, up to ``request_bytes_max``, and within the
budget. Where the requests of a file were planned, those ranges are merged instead. Ranges above that size are
cut into equal parts at submission. The result depends on the queue alone, so ``plan_requests`` can predict
the requests.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import sub

from aioprefetch.ranges import Range
from aioprefetch.scheduler.queued_parts import Key, Part, Priority, QueuedFile, Submission, TakenRead

# At 90 MB/s for each connection 8 MiB take 90 ms, three times the wait for the first byte: larger requests gain
# little, and all bytes of a request stay until its last page is decoded.
REQUEST_BYTES_MAX = 8 << 20

# A small scan is cut into this many requests: several in parallel are faster than few large ones.
# Requests below 2 MiB gain nothing: 2 MiB take as long as the wait for the first byte.
REQUESTS_WANTED = 32
REQUEST_BYTES_MIN = 2 << 20


_Heap = list[tuple[Key, Part]]


class IoQueue:
    """All reads that are queued, in flight, or delivered and not released. ``held_bytes`` is the used budget.

    The caller takes the next request to send (``take``), reports its end (``finish``), and drops submissions
    (``release``). ``on_refund`` is called once for each request, when its bytes are no longer held.
    """

    def __init__(
        self, *, slots: int, request_bytes_max: int, on_refund: Callable[[TakenRead], None] | None = None
    ) -> None:
        self._on_refund = on_refund
        self.slots = slots
        self.request_bytes_max = request_bytes_max
        self.in_flight = 0
        self.held_bytes = 0
        self.queued = 0
        self.queued_bytes = 0
        self._sequence = 0
        self._all: _Heap = []
        self._awaited: _Heap = []
        self._follow_ups: _Heap = []
        self._held: list[tuple[Priority, Submission]] = []

    @property
    def head(self) -> Part | None:
        """The queued part that is needed first; ``None`` if the queue is empty."""
        return _first(self._all)

    @property
    def waits_for_more(self) -> bool:
        """Whether some wanted bytes of the head's planned request are not submitted yet: they will be soon."""
        head = self.head
        return head is not None and not head.submission.file.is_complete(head.start)

    def submit(
        self, file: QueuedFile, ranges: Sequence[Range], *, rank: int = 0, row: int = 0, is_follow_up: bool = False
    ) -> Submission:
        """Queue the ranges of a submission. Empty ranges need no request."""
        pieces = _pieces(ranges, self.request_bytes_max, file)
        submission = Submission(file, Priority(rank, row, self._sequence), pieces, is_follow_up=is_follow_up)
        self._sequence += 1
        if file.is_planned:
            for start, end in zip(submission.starts, submission.ends, strict=True):
                file.submitted(start, end)
        if is_follow_up:
            _first(self._follow_ups)
        for part in submission.divide():
            self._queue(part)
        self.queued += len(submission.starts)
        self.queued_bytes += submission.size
        return submission

    def promote(self, submission: Submission) -> None:
        """A reader waits for the submission: it may exceed the budget from now on."""
        if submission.is_awaited or submission.is_released:
            return
        submission.is_awaited = True
        _first(self._awaited)  # Drop the taken parts: a scan that is never blocked would keep them all.
        for part in submission.parts:
            if part.is_queued:
                heapq.heappush(self._awaited, (part.key, part))

    def take(self, free_bytes: int | None) -> TakenRead | None:
        """The next request to send, if any, with ``free_bytes`` left of the budget (``None``: there is no budget)."""
        if self.in_flight >= self.slots:
            return None
        first = self._admissible(free_bytes)
        return None if first is None else self._admit(first, free_bytes)

    def finish(self, read: TakenRead, *, failed: bool = False) -> None:
        """A request has ended. Frees its slot, and its bytes too if the request failed or no reader needs them."""
        if not read.is_in_flight:
            return
        read.is_in_flight = False
        self.in_flight -= 1
        if failed or not read.users:
            self._refund(read)

    def release(self, submission: Submission) -> list[TakenRead]:
        """Drop a submission. Returns the requests in flight that no other submission needs.

        Its queued parts are dropped. A second call does nothing.
        """
        if submission.is_released:
            return []
        submission.is_released = True
        for part in submission.parts:
            if part.is_queued:
                submission.file.parts.remove(part)
                self._unqueue(part)
        submission.parts = []  # Break the cycle with its parts, so that both are freed without the garbage collector.
        broken = []
        for read in submission.reads:
            del read.users[submission]
            if read.users:
                continue
            if read.is_in_flight:
                broken.append(read)
            else:
                self._refund(read)
        submission.reads = []
        return broken

    # --- within -------------------------------------------------------------------------------------------------

    def _admissible(self, free_bytes: int | None) -> Part | None:
        head = _first(self._all)
        if head is None:
            return None
        if self.waits_for_more:
            return _first(self._awaited)
        if _may_take(head, head.head_size, free_bytes):
            return head
        least = self._least_held()
        if least is None or head.submission.priority <= least:
            return head
        candidates = [_first(self._awaited)]
        if free_bytes is not None and free_bytes >= 0:
            candidates.append(_first(self._follow_ups))
        return min((part for part in candidates if part is not None), key=_key_of, default=None)

    def _least_held(self) -> Priority | None:
        while self._held and not self._held[0][1].reads:
            heapq.heappop(self._held)
        return self._held[0][0] if self._held else None

    def _queue(self, part: Part) -> None:
        """Queue a part, and the new parts of others that it splits, in every heap of their submissions."""
        for queued in part.submission.file.parts.add(part):
            heapq.heappush(self._all, (queued.key, queued))
            if queued.submission.is_follow_up:
                heapq.heappush(self._follow_ups, (queued.key, queued))
            if queued.submission.is_awaited:
                heapq.heappush(self._awaited, (queued.key, queued))

    def _admit(self, first: Part, free_bytes: int | None) -> TakenRead:
        file = first.submission.file
        first.submission.was_admitted = True
        self._take_out(first, first.first, first.first + 1)
        parts = self._extend(first, free_bytes)
        low, high = parts[0].start, max(part.end for part in parts)
        over = free_bytes is not None and high - low > free_bytes
        read = TakenRead(file, low, high, parts, is_overdraft=over)
        for part in parts:
            part.submission.was_admitted = True
        self._least_held()
        for submission in read.users:
            submission.reads.append(read)
            if len(submission.reads) == 1:
                heapq.heappush(self._held, (submission.priority, submission))
        self.in_flight += 1
        self.held_bytes += read.size
        return read

    def _extend(self, first: Part, free_bytes: int | None) -> list[Part]:
        """Merge the neighbours of ``first`` into its request, in the order in which single pieces would be merged."""
        file, place = first.submission.file, first.place(first.first)
        low, high = first.start, first.end
        left: list[Part] = []
        right: list[Part] = []
        while True:
            before, after = file.parts.around(place)
            bounds: list[tuple[Key, Part, int, int]] = []
            if before is not None and file.are_near(before.end, low):
                limit = self._limit(before, free_bytes)
                piece = before.fitting_before(max(high, before.end), limit)
                if before.end > high:  # Its end may bring a part after it into reach that is needed sooner.
                    piece = max(piece, before.last - 1)
                bounds.append((before.last_key, before, piece, before.last))
            if after is not None and file.are_near(high, after.start):
                limit = self._limit(after, free_bytes)
                piece = after.fitting_behind(low, limit) if high - low <= limit else after.first
                bounds.append((after.key, after, after.first, piece))
            fitting = [bound for bound in bounds if bound[2] < bound[3]]
            if not fitting:
                return [*reversed(left), first, *right]
            _, part, begin, end = min(fitting)
            taken = self._take_out(part, begin, end)
            low, high = min(low, taken.start), max(high, taken.end)
            (left if part is before else right).append(taken)

    def _limit(self, part: Part, free_bytes: int | None) -> int:
        """The maximum size of a request that takes pieces of ``part`` along."""
        bytes_max = self.request_bytes_max
        return bytes_max if free_bytes is None or _may_take(part, bytes_max, free_bytes) else min(bytes_max, free_bytes)

    def _take_out(self, part: Part, begin: int, end: int) -> Part:
        """Remove the pieces ``[begin, end)``, at one end of a part, from the queue; returns them as a part."""
        if begin > part.first:
            part = part.split(begin)  # The pieces before keep their place.
        else:
            part.submission.file.parts.remove(part)
            if end < part.last:
                self._queue(part.split(end))
        self._unqueue(part)
        return part

    def _unqueue(self, part: Part) -> None:
        part.is_queued = False
        self.queued -= part.count
        self.queued_bytes -= part.size

    def _refund(self, read: TakenRead) -> None:
        if read.is_held:
            read.is_held = False
            self.held_bytes -= read.size
            for submission in read.users:
                submission.reads.remove(read)
            read.users = {}
            if self._on_refund is not None:
                self._on_refund(read)


def cut(start: int, end: int, bytes_max: int) -> list[Range]:
    """Cut a range into the fewest equal parts of at most ``bytes_max`` bytes each; an empty range has no parts."""
    count = -(-(end - start) // bytes_max)
    bounds = [start + (end - start) * number // count for number in range(count)] + [end]
    return list(pairwise(bounds))


def _pieces(
    ranges: Sequence[Range], bytes_max: int, file: QueuedFile
) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    """The starts, ends and range numbers of the pieces: large ranges are cut, empty ranges are dropped."""
    divided = [file.divide(*pair) for pair in ranges] if file.is_planned else []
    if any(len(parts) > 1 for parts in divided):
        cuts = [
            (piece, index) for index, parts in enumerate(divided) for part in parts for piece in cut(*part, bytes_max)
        ]
        return [piece[0] for piece, _ in cuts], [piece[1] for piece, _ in cuts], [index for _, index in cuts]
    starts, ends = [start for start, _ in ranges], [end for _, end in ranges]
    sizes = list(map(sub, ends, starts))
    if max(sizes, default=0) <= bytes_max:
        if min(sizes, default=1) > 0:
            return starts, ends, range(len(starts))
        kept = [index for index, size in enumerate(sizes) if size]
        return [starts[index] for index in kept], [ends[index] for index in kept], kept
    pieces = [(*piece, index) for index, pair in enumerate(ranges) for piece in cut(*pair, bytes_max)]
    return [piece[0] for piece in pieces], [piece[1] for piece in pieces], [piece[2] for piece in pieces]


def request_bytes_for(wanted_bytes: int) -> int:
    """The default ``request_bytes_max`` of a scan of ``wanted_bytes`` bytes."""
    return min(REQUEST_BYTES_MAX, max(REQUEST_BYTES_MIN, -(-wanted_bytes // REQUESTS_WANTED)))


def plan_requests(ranges: Sequence[Range], *, gap_bytes: int, request_bytes_max: int) -> list[Range]:
    """The requests for ranges of one file, in the order of sending; ``ranges`` are in the order of their need.

    The plan holds if all ranges are queued before the first request is taken, and neither slots nor budget are short.
    """
    queue = IoQueue(slots=1, request_bytes_max=request_bytes_max)
    file = QueuedFile(gap_bytes)
    for row, pair in enumerate(ranges):
        queue.submit(file, [pair], row=row)
    requests: list[Range] = []
    while (read := queue.take(None)) is not None:
        requests.append((read.start, read.end))
        queue.finish(read)
    return requests


def _may_take(part: Part, need_bytes: int, free_bytes: int | None) -> bool:
    """Whether ``need_bytes`` fit, or this part may exceed the budget by one of the rules 1, 2, 4 and 5."""
    if free_bytes is None or need_bytes <= free_bytes:
        return True
    submission = part.submission
    return submission.is_awaited or submission.was_admitted or (submission.is_follow_up and free_bytes >= 0)


def _first(heap: _Heap) -> Part | None:
    while heap and not heap[0][1].is_queued:
        heapq.heappop(heap)
    return heap[0][1] if heap else None


def _key_of(part: Part) -> Key:
    return part.key

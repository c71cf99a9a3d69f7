"""The contents of a scan's queue: submissions, their parts, and the parts of each file by position. Pure.

A take submits thousands of small ranges at once. Ranges that ascend and lie within the gap of each other are queued as
one **part**. A part is divided only where a request ends, or where a part of another submission begins inside it. It
is a slice of its submission's lists: it is queued, taken and delivered in one step with any number of ranges, and
the requests are the same as if each range were queued alone.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from aioprefetch.ranges import Range

# Inserting an entry moves the later entries of its block; the block itself is found by bisection.
_BLOCK_PARTS = 512


class Priority(NamedTuple):
    """When a read is needed, the smallest first: rank of the file, top-level row, number of the submission."""

    rank: int
    row: int
    sequence: int


Key = tuple[int, int, int, int]
Place = tuple[int, int, Key]
_Entry = tuple[int, int, Key, "Part"]


class QueuedFile:
    """A file of the queue: neighbours within it are merged over gaps of at most ``gap_bytes``.

    If its requests were **planned** (disjoint ranges), ranges inside one request are merged over any gap between
    them, and nothing is merged across the end of a request. ``wanted`` holds the ranges that will be submitted
    (disjoint too): a request is complete when all wanted bytes inside it were submitted.
    """

    def __init__(self, gap_bytes: int, planned: Iterable[Range] = (), wanted: Iterable[Range] = ()) -> None:
        self.gap_bytes = gap_bytes
        self.parts = FileParts()
        in_order = sorted(planned)
        self._starts = [start for start, _ in in_order]
        self._ends = [end for _, end in in_order]
        self._unsubmitted = [0] * len(in_order)
        for start, end in wanted:
            self._count(start, end, 1)

    @property
    def is_planned(self) -> bool:
        """Whether the requests of this file were planned."""
        return bool(self._starts)

    def are_near(self, end: int, start: int) -> bool:
        """Whether a range that begins at ``start`` may join the request of an earlier range that ends at ``end``."""
        if self._starts:
            number = bisect_right(self._starts, end - 1) - 1
            if number >= 0 and end <= self._ends[number]:
                return start < self._ends[number]
            if self._holds(start):
                return False
        return start <= end + self.gap_bytes

    def divide(self, start: int, end: int) -> list[Range]:
        """Cut the range ``[start, end)`` at each start and end of a planned request inside it."""
        if not self._starts:
            return [(start, end)]
        first, last = bisect_right(self._starts, start) - 1, bisect_left(self._starts, end)
        if last <= first + 1 and (first < 0 or not start < self._ends[first] < end):
            return [(start, end)]  # The fast path: thousands of ranges are submitted at once, and few cross an end.
        borders = {*self._starts[max(first, 0) : last], *self._ends[max(first, 0) : last]}
        cuts = sorted(border for border in borders if start < border < end)
        return list(pairwise([start, *cuts, end]))

    def submitted(self, start: int, end: int) -> None:
        """Count a submitted piece, which lies within one request, off the bytes that its request waits for."""
        if self._starts:
            self._count(start, end, -1)

    def is_complete(self, position: int) -> bool:
        """Whether every wanted byte of the planned request at ``position`` was submitted."""
        number = bisect_right(self._starts, position) - 1
        return number < 0 or self._unsubmitted[number] <= 0

    def _count(self, start: int, end: int, step: int) -> None:
        for low, high in self.divide(start, end):
            if self._holds(low):
                self._unsubmitted[bisect_right(self._starts, low) - 1] += step * (high - low)

    def _holds(self, position: int) -> bool:
        number = bisect_right(self._starts, position) - 1
        return number >= 0 and position < self._ends[number]


class Submission:
    """Ranges of a file that were submitted together, and are released together.

    ``starts`` and ``ends`` are its **pieces**, which are never empty: a range is one piece, or several equal ones if
    it is above the maximum. ``indices`` holds the number of the range for each piece; it is a ``range`` object if
    each range is exactly one piece. ``parts`` are the queued slices of the pieces, ``size`` is the sum of their bytes.
    """

    def __init__(
        self,
        file: QueuedFile,
        priority: Priority,
        pieces: tuple[Sequence[int], Sequence[int], Sequence[int]],
        *,
        is_follow_up: bool,
    ) -> None:
        self.file = file
        self.priority = priority
        self.starts, self.ends, self.indices = pieces
        self.size = sum(self.ends) - sum(self.starts)
        self.is_follow_up = is_follow_up
        self.is_awaited = False
        self.is_released = False
        self.was_admitted = False
        self.parts: list[Part] = []
        self.reads: list[TakenRead] = []

    def divide(self) -> list[Part]:
        """All pieces of the submission, in the smallest possible number of parts."""
        bounds = [0, *find_breaks(self), len(self.starts)] if self.starts else []
        return [Part(self, first, last) for first, last in pairwise(bounds)]


class Part:
    """The pieces ``[first, last)`` of a submission: starts and ends ascend, and neighbours are near to each other."""

    __slots__ = ("first", "is_queued", "key", "last", "submission")

    def __init__(self, submission: Submission, first: int, last: int) -> None:
        self.submission = submission
        self.first = first
        self.last = last
        self.is_queued = True
        # The key of the first piece is unique, so comparing two entries never reaches the parts themselves.
        self.key: Key = (*submission.priority, first)
        submission.parts.append(self)

    @property
    def start(self) -> int:
        """The offset of the first byte."""
        return self.submission.starts[self.first]

    @property
    def end(self) -> int:
        """The offset after the last byte."""
        return self.submission.ends[self.last - 1]

    @property
    def count(self) -> int:
        """The number of pieces."""
        return self.last - self.first

    @property
    def size(self) -> int:
        """The sum of the pieces' bytes, without the gaps; a byte that lies in two pieces counts twice."""
        ends, starts = self.submission.ends, self.submission.starts
        return sum(ends[self.first : self.last]) - sum(starts[self.first : self.last])

    @property
    def head_size(self) -> int:
        """The bytes of the first piece: a part can be admitted if this piece fits."""
        return self.submission.ends[self.first] - self.submission.starts[self.first]

    @property
    def last_key(self) -> Key:
        """The key of the last piece."""
        return (*self.submission.priority, self.last - 1)

    def place(self, piece: int) -> Place:
        """The sort key of a piece among all queued pieces of the file: by position, then by priority."""
        submission = self.submission
        return submission.starts[piece], submission.ends[piece], (*submission.priority, piece)

    def reach(self, place: Place) -> int:
        """The number of the first piece at or after ``place``."""
        return bisect_left(range(self.last), place, lo=self.first, key=self.place)

    def split(self, piece: int) -> Part:
        """Keep the pieces before ``piece``, and return the others as a new part."""
        rest = Part(self.submission, piece, self.last)
        self.last = piece
        return rest

    def fitting_behind(self, low: int, limit: int) -> int:
        """The end of the pieces, counted from the first, that end at most ``limit`` bytes after ``low``."""
        return bisect_right(self.submission.ends, low + limit, self.first, self.last)

    def fitting_before(self, high: int, limit: int) -> int:
        """The start of the pieces, counted from the last, that begin at most ``limit`` bytes before ``high``."""
        return bisect_left(self.submission.starts, high - limit, self.first, self.last)


class TakenRead:
    """One request: ``[start, end)`` of a file, and the parts it serves, ordered by position.

    Its bytes are **held**, that is charged to the budget, from admission until the request has failed, or has ended and
    all its submissions were released. ``is_overdraft``: the request was admitted although it exceeded the budget.
    """

    __slots__ = ("end", "file", "is_held", "is_in_flight", "is_overdraft", "parts", "start", "users")

    def __init__(self, file: QueuedFile, start: int, end: int, parts: Sequence[Part], *, is_overdraft: bool) -> None:
        self.file = file
        self.start = start
        self.end = end
        self.parts = parts
        self.is_overdraft = is_overdraft
        self.is_in_flight = self.is_held = True
        self.users = dict.fromkeys(part.submission for part in parts)

    @property
    def size(self) -> int:
        """The bytes of the request, gaps included."""
        return self.end - self.start


class FileParts:
    """The queued parts of a file, by position; no piece of one part lies between the pieces of another.

    The parts are kept in blocks: in a single list of hundreds of thousands, each insertion would move half of them.
    """

    def __init__(self) -> None:
        self._blocks: list[list[_Entry]] = []
        self._firsts: list[Place] = []

    def __len__(self) -> int:
        return sum(map(len, self._blocks))

    def add(self, part: Part) -> list[Part]:
        """Queue a part. Returns all new entries: the slices of this part, and of others that it splits."""
        new = []
        rest: Part | None = part
        while rest is not None:
            added, rest = rest, None
            place = added.place(added.first)
            before, after = self.around(place)
            if before is not None and before.count > 1 and before.place(before.last - 1) > place:
                after = before.split(before.reach(place))
                self._insert(after)
                new.append(after)
            if after is not None and added.count > 1:
                bound = after.place(after.first)
                if added.place(added.last - 1) > bound:
                    rest = added.split(added.reach(bound))
            self._insert(added)
            new.append(added)
        return new

    def around(self, place: Place) -> tuple[Part | None, Part | None]:
        """The last part that begins before ``place``, and the first that begins at or after it."""
        number = max(0, bisect_right(self._firsts, place) - 1)
        block = self._blocks[number] if self._blocks else []
        index = bisect_left(block, place)
        before = block[index - 1][3] if index else None
        if index < len(block):
            return before, block[index][3]
        return before, self._blocks[number + 1][0][3] if number + 1 < len(self._blocks) else None

    def remove(self, part: Part) -> None:
        """Remove a queued part."""
        place = part.place(part.first)
        number = bisect_right(self._firsts, place) - 1
        block = self._blocks[number]
        del block[bisect_left(block, place)]
        if block:
            self._firsts[number] = block[0][:3]
        else:
            del self._blocks[number], self._firsts[number]

    def _insert(self, part: Part) -> None:
        place = part.place(part.first)
        entry = (*place, part)
        if not self._blocks:
            self._blocks, self._firsts = [[entry]], [place]
            return
        number = max(0, bisect_right(self._firsts, place) - 1)
        block = self._blocks[number]
        insort(block, entry)
        self._firsts[number] = block[0][:3]
        if len(block) > 2 * _BLOCK_PARTS:
            self._blocks.insert(number + 1, block[_BLOCK_PARTS:])
            self._firsts.insert(number + 1, block[_BLOCK_PARTS][:3])
            del block[_BLOCK_PARTS:]


def find_breaks(submission: Submission) -> list[int]:
    """The numbers of the pieces, apart from the first, at which a new part must begin."""
    starts, ends, indices, file = submission.starts, submission.ends, submission.indices, submission.file
    steps = enumerate(zip(starts, starts[1:], ends, ends[1:], strict=False), 1)
    if file.is_planned:
        wide = [
            number
            for number, (start, next_start, end, next_end) in steps
            if next_start < start or next_end < end or not file.are_near(end, next_start)
        ]
    else:
        gap_bytes = file.gap_bytes
        wide = [
            number
            for number, (start, next_start, end, next_end) in steps
            if next_start - end > gap_bytes or next_start < start or next_end < end
        ]
    if isinstance(indices, range):
        return wide
    # Each piece of a range that was cut becomes a part of its own, since it is joined with the others on arrival.
    same = [number for number in range(1, len(indices)) if indices[number] == indices[number - 1]]
    cut = {neighbour for number in same for neighbour in (number - 1, number, number + 1)}
    return sorted((cut | set(wide)) - {0, len(starts)})

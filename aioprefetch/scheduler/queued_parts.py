"""What the queue of a scan holds: submissions, the parts they are queued in, and the neighbours within a file. Pure.

A take submits thousands of small ranges at once. Those that ascend and lie within the gap of each other are queued as
one **part**, which is divided only where a request ends, or where a part of another submission begins in between. A
part is no more than a stretch of its submission's lists: however many ranges it has, it is queued, taken and delivered
at once, and yet the queue does what it would do with each of its ranges alone.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from aioprefetch.ranges import Range

# Inserting moves what is behind it in its block, finding the block halves the number of blocks.
_BLOCK_PARTS = 512


class Priority(NamedTuple):
    """When something is needed, smaller is sooner: rank of the file, top-level row, number of the submission."""

    rank: int
    row: int
    sequence: int


Key = tuple[int, int, int, int]
Place = tuple[int, int, Key]
_Entry = tuple[int, int, Key, "Part"]


class QueuedFile:
    """A file of the queue: neighbours within it are merged over gaps of ``gap_bytes``.

    Where its requests were **planned** (disjoint ranges), what lies in one of them is merged however far apart it is,
    and nothing is merged across their ends. ``wanted`` is what will be submitted (disjoint too): a request is complete
    when all that is wanted of it was.
    """

    __slots__ = ("_ends", "_starts", "_unsubmitted", "gap_bytes", "parts")

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
        """Whether its requests were planned."""
        return bool(self._starts)

    def are_near(self, end: int, start: int) -> bool:
        """Whether what begins at ``start`` may come with what ends at ``end``, before it."""
        if self._starts:
            number = bisect_right(self._starts, end - 1) - 1
            if number >= 0 and end <= self._ends[number]:
                return start < self._ends[number]
            if self._holds(start):
                return False
        return start <= end + self.gap_bytes

    def divide(self, start: int, end: int) -> list[Range]:
        """A range, cut where a planned request begins or ends in it."""
        if not self._starts:
            return [(start, end)]
        first, last = bisect_right(self._starts, start) - 1, bisect_left(self._starts, end)
        if last <= first + 1 and (first < 0 or not start < self._ends[first] < end):
            return [(start, end)]  # As nearly all: thousands are submitted at once.
        borders = {*self._starts[max(first, 0) : last], *self._ends[max(first, 0) : last]}
        cuts = sorted(one for one in borders if start < one < end)
        return list(pairwise([start, *cuts, end]))

    def submitted(self, start: int, end: int) -> None:
        """A piece was submitted, which lies in one request."""
        if self._starts:
            self._count(start, end, -1)

    def is_complete(self, position: int) -> bool:
        """Whether the request of this byte waits for nothing that is still to be submitted."""
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
    """Ranges of a file that were submitted together, and are given back together.

    ``starts`` and ``ends`` are its **pieces**, none of them empty: the ranges, or equal parts of those above the
    maximum. ``indices`` says which range each is of; it is a ``range`` where every piece is the range of its number.
    ``parts`` are what it is queued in, ``size`` the sum of its bytes.
    """

    __slots__ = (
        "__weakref__",
        "ends",
        "file",
        "indices",
        "is_awaited",
        "is_follow_up",
        "is_released",
        "parts",
        "priority",
        "reads",
        "size",
        "starts",
        "was_admitted",
    )

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
        """All of its pieces in as few parts as they may be queued in."""
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
        # Of its first piece, like no other's: the keys alone decide where parts are compared.
        self.key: Key = (*submission.priority, first)
        submission.parts.append(self)

    @property
    def start(self) -> int:
        """Where its first byte is."""
        return self.submission.starts[self.first]

    @property
    def end(self) -> int:
        """Behind its last byte."""
        return self.submission.ends[self.last - 1]

    @property
    def count(self) -> int:
        """How many pieces it has."""
        return self.last - self.first

    @property
    def size(self) -> int:
        """Bytes of its pieces, without the gaps; those of two pieces count twice."""
        one = self.submission
        return sum(one.ends[self.first : self.last]) - sum(one.starts[self.first : self.last])

    @property
    def head_size(self) -> int:
        """Bytes of its first piece, which is all that must be admitted at once."""
        return self.submission.ends[self.first] - self.submission.starts[self.first]

    @property
    def last_key(self) -> Key:
        """The key of its last piece."""
        return (*self.submission.priority, self.last - 1)

    def place(self, piece: int) -> Place:
        """The place of a piece among all of the file."""
        one = self.submission
        return one.starts[piece], one.ends[piece], (*one.priority, piece)

    def reach(self, place: Place) -> int:
        """The first of its pieces whose place is not before ``place``."""
        return bisect_left(range(self.last), place, lo=self.first, key=self.place)

    def split(self, piece: int) -> Part:
        """Keep what is before ``piece``; the part from there on."""
        rest = Part(self.submission, piece, self.last)
        self.last = piece
        return rest

    def fitting_behind(self, low: int, limit: int) -> int:
        """Behind the last piece, counted from the first, with which ``[low, its end)`` has ``limit`` bytes at most."""
        return bisect_right(self.submission.ends, low + limit, self.first, self.last)

    def fitting_before(self, high: int, limit: int) -> int:
        """The first piece, counted from the last, with which ``[its start, high)`` has ``limit`` bytes at most."""
        return bisect_left(self.submission.starts, high - limit, self.first, self.last)


class TakenRead:
    """One request: ``[start, end)`` of a file, and the parts it serves, ordered by position.

    Its bytes are ``held`` from admission until it has failed, or has ended and every submission was released.
    ``is_overdraft``: it was admitted although it did not fit.
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
        """Bytes of the request, gaps included."""
        return self.end - self.start


class FileParts:
    """The parts of a file that are queued, by position; no piece of one lies between those of another.

    Kept in blocks: in one list each of hundreds of thousands of parts would move half of the others.
    """

    __slots__ = ("_blocks", "_firsts")

    def __init__(self) -> None:
        self._blocks: list[list[_Entry]] = []
        self._firsts: list[Place] = []

    def __len__(self) -> int:
        return sum(map(len, self._blocks))

    def add(self, part: Part) -> list[Part]:
        """Queue a part. Returns the parts it came to, and those that had to make room for it: what is new in here."""
        new = []
        rest: Part | None = part
        while rest is not None:
            one, rest = rest, None
            place = one.place(one.first)
            before, after = self.around(place)
            if before is not None and before.count > 1 and before.place(before.last - 1) > place:
                after = before.split(before.reach(place))
                self._insert(after)
                new.append(after)
            if after is not None and one.count > 1:
                bound = after.place(after.first)
                if one.place(one.last - 1) > bound:
                    rest = one.split(one.reach(bound))
            self._insert(one)
            new.append(one)
        return new

    def around(self, place: Place) -> tuple[Part | None, Part | None]:
        """What begins last before a place, and first from there on."""
        number = max(0, bisect_right(self._firsts, place) - 1)
        block = self._blocks[number] if self._blocks else []
        index = bisect_left(block, place)
        before = block[index - 1][3] if index else None
        if index < len(block):
            return before, block[index][3]
        return before, self._blocks[number + 1][0][3] if number + 1 < len(self._blocks) else None

    def remove(self, part: Part) -> None:
        """Take a part out."""
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
    """The pieces of a submission, but the first, at which a part of its own must begin."""
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
    # Parts of a range that was cut are put together where they arrive, each by itself.
    same = [number for number in range(1, len(indices)) if indices[number] == indices[number - 1]]
    cut = {one for number in same for one in (number - 1, number, number + 1)}
    return sorted((cut | set(wide)) - {0, len(starts)})

"""The places of the parts of a file, as its format tells them, and the columns that a reader goes through. Pure.

A **layout** lists the columns of a file, each as a series of *chunks* in the order in which they are read: one chunk
for each group of rows. A format is recognised by the last bytes of a file. Its module is imported when a file with
these bytes was seen, never earlier; so ``reader`` depends on no format. A format for Parquet is built in; another one
is a module with the functions of ``LayoutModule`` and an entry in ``FORMATS``.

A reader that has read two groups of rows goes through the file: the columns that it has read are fetched ahead, in the
order of the groups, within a window. Other columns are never fetched, except in small gaps. Libraries that
fetch several groups at once, on threads, read their chunks in any order, so every group from the first that was
read is expected to be read. What was fetched and not read counts against the window, so that a reader which skips
groups gets no more than one window in vain. Within a chunk that is read in pieces, the rest is fetched as far ahead as
it was read in order.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from aioprefetch.lean_dataclass import dataclass
from aioprefetch.ranges import Range, bridged, total_length

# The last bytes of a file that a format may look at.
END_BYTES = 64

# A larger footer is not parsed: it would take the interpreter half a second, though on another thread.
FOOTER_BYTES_MAX = 4 << 20

# A layout with more chunks than this is not used.
CHUNKS_MAX = 100_000


class LayoutModule(Protocol):
    """The functions of a format's module. Both functions raise ``ValueError`` for bytes that are not of the format."""

    def footer_range(self, end: bytes, size: int) -> Range:
        """The range of the footer in a file of ``size`` bytes, whose last bytes are ``end``."""

    def columns_of(self, footer: bytes, size: int) -> Sequence[Sequence[Range]]:
        """The chunks of each column by group, an empty range for a missing one. Called on another thread."""


@dataclass(frozen=True, slots=True)
class Format:
    """A format: the bytes that end its files, and the name of its ``LayoutModule``."""

    name: str
    magic: bytes
    module: str


FORMATS = (Format("parquet", b"PAR1", "aioprefetch.parquet.layout"),)


def format_of(end: bytes) -> Format | None:
    """The format whose files end with these bytes."""
    return next((found for found in FORMATS if end.endswith(found.magic)), None)


class Chunk(NamedTuple):
    """The bytes ``[start, end)`` of one column in one group of rows."""

    start: int
    end: int
    column: int
    group: int


class Layout:
    """The chunks of a file of ``size`` bytes, by place and by column. ``end`` is the end of the last one.

    ``ValueError`` for chunks that overlap or leave the file, and for more than ``CHUNKS_MAX``.
    """

    def __init__(self, columns: Iterable[Sequence[Range]], *, size: int) -> None:
        chunks: list[Chunk] = []
        for column, ranges in enumerate(columns):
            chunks += [Chunk(start, end, column, group) for group, (start, end) in enumerate(ranges) if start < end]
            if len(chunks) > CHUNKS_MAX:
                raise ValueError(f"the file has more than {CHUNKS_MAX} chunks")
        chunks.sort()
        position = 0
        for chunk in chunks:
            if chunk.start < position:
                raise ValueError(f"the chunk at {chunk.start} overlaps its predecessor, which ends at {position}")
            position = chunk.end
        if position > size:
            raise ValueError(f"a chunk ends at {position} in a file of {size} bytes")
        self.chunks = chunks
        self.end = position
        self.groups = 1 + max((chunk.group for chunk in chunks), default=-1)
        self._starts = [chunk.start for chunk in chunks]
        self._places = {(chunk.column, chunk.group): number for number, chunk in enumerate(chunks)}

    def touched(self, start: int, end: int) -> range:
        """The numbers of the chunks that a read of ``[start, end)`` touches."""
        first = bisect_right(self._starts, start)
        if first and self.chunks[first - 1].end > start:
            first -= 1
        return range(first, max(first, bisect_right(self._starts, end - 1)))

    def number_of(self, column: int, group: int) -> int | None:
        """The number of the chunk of a column in a group, or ``None``."""
        return self._places.get((column, group))


# --- columns ----------------------------------------------------------------------------------------------------------

# How many groups of rows a reader looks ahead at first. It is doubled after a read that had to wait, once something
# that was fetched ahead was read.
GROUPS_FIRST = 4
# The window is at least this wide: the groups of some files have a few kilobytes.
WINDOW_BYTES_MIN = 4 << 20

# The second read in order of a chunk brings at least this much of it.
PIECE_BYTES_MIN = 1 << 20

# Ranges closer than this share a request: the price of a request where many run at once.
GAP_BYTES = 128 << 10

# The most chunks of one report, and the most that are fetched ahead: it bounds the time of a report.
REPORT_CHUNKS_MAX = 1024
# The most chunks that one report looks at, read or requested ones included. The next one continues.
LOOKS_MAX = 1024

# Chunks read one after another by their places, this many or up to the next group, are a run through the
# file and not one through columns: the windows of the reader serve it better.
NEIGHBOURS_MAX = 16
# Longer reads are of many chunks, which a library has put together: it will read the next ones in the same way.
LONG_READ_BYTES = 4 << 20

# A read that begins at most this far behind the last one in its chunk continues it: hits in between are not reported.
_SKIP_BYTES = 1 << 20


class ColumnRuns:
    """The columns that one reader reads. ``limit_bytes`` is the widest window, ``stop`` the end of look-ahead."""

    def __init__(self, layout: Layout, *, limit_bytes: int, stop: int) -> None:
        self.layout = layout
        self.limit_bytes = limit_bytes
        self.stop = stop
        self.forget()

    def forget(self) -> None:
        """Forget all reads, as in a new reader."""
        self._read: set[int] = set()
        self._groups: set[int] = set()
        self._first_group = self.layout.groups
        self._ends: dict[int, tuple[int, int, int]] = {}  # By column: chunk, end of the last read, bytes in order.
        self._requested: dict[int, int] = {}  # By chunk: the end of what was requested ahead.
        self._unread: dict[int, int] = {}  # By chunk: bytes that were requested ahead and not read.
        self._unread_bytes = 0
        # A heap of group, column and the group to stop at: the chunks to look at, each of them once.
        self._next: list[tuple[int, int, int]] = []
        self._group_bytes = 0  # Of the columns, in one group.
        self._depth = 0
        self._has_hit = False
        self._last = -1  # The number of the last chunk of the last read.
        self._neighbours = 0

    @property
    def positions(self) -> tuple[int, ...]:
        """The starts of chunks that were fetched ahead and not read yet."""
        return tuple(self.layout.chunks[number].start for number in self._unread)

    def on_read(self, start: int, end: int, *, missing: bool, stalled: bool, may_grow: bool) -> list[Range] | None:
        """Report a read; returns the ranges to fetch ahead.

        ``None`` if the read is not one of columns: it lies in no chunk or in too many, goes on behind the last one, as
        reads of the footer do, or continues through the file.

        ``missing``: some of it is neither resident nor in flight. ``stalled``: it has to wait. ``may_grow``: there is
        memory to look ahead.
        """
        touched = self.layout.touched(start, end)
        if not touched or len(touched) > REPORT_CHUNKS_MAX or end > self.layout.end:
            return None
        if self._goes_on(touched, end - start):
            return None
        if missing and self._begins_again(touched, start):
            self.forget()
        rest: list[Range] = []
        for number in touched:
            rest += self._note(number, start, end, may_grow=may_grow)
        if len(self._groups) > 1:
            if not self._depth:
                self._depth = GROUPS_FIRST
            elif stalled and self._has_hit:
                self._depth, self._has_hit = 2 * self._depth, False
        if not may_grow:
            return []
        wanted = [*rest, *self._ahead()]
        return bridged(wanted, gap_bytes=GAP_BYTES, gaps_bytes_max=total_length(wanted))

    def _goes_on(self, touched: range, read_bytes: int) -> bool:
        """Whether reads continue from chunk to chunk through the file, with all of its columns."""
        before, self._last = self._last, touched[-1]
        if read_bytes > LONG_READ_BYTES:
            self._neighbours = 0
            return False
        if touched[0] == before:
            return self._neighbours >= NEIGHBOURS_MAX
        if touched[0] != before + 1:
            self._neighbours = 0
            return False
        chunks = self.layout.chunks
        next_group = before >= 0 and chunks[before].group != chunks[touched[0]].group
        self._neighbours += NEIGHBOURS_MAX if next_group else 1
        return self._neighbours >= NEIGHBOURS_MAX

    def _begins_again(self, touched: range, start: int) -> bool:
        """Whether a missing read is one of bytes that were read before, and were evicted since."""
        number = touched[0]
        chunk = self.layout.chunks[number]
        last = self._ends.get(chunk.column)
        return number in self._read and (last is None or last[0] != number or start < last[1])

    def _note(self, number: int, start: int, end: int, *, may_grow: bool) -> list[Range]:
        """A chunk is read between ``start`` and ``end``. Returns what to fetch ahead within it."""
        chunk = self.layout.chunks[number]
        low, high = max(start, chunk.start), min(end, chunk.end)
        unread = self._unread.pop(number, 0)
        self._unread_bytes -= unread
        self._has_hit = self._has_hit or unread > 0
        before, position, in_order = self._ends.get(chunk.column, (-1, chunk.start, 0))
        continues = before == number and position <= low <= position + _SKIP_BYTES
        if continues:
            in_order += high - position
        else:
            in_order = high - low
        self._read.add(number)
        is_new = chunk.column not in self._ends
        self._group_bytes += chunk.end - chunk.start if is_new else 0
        if chunk.group < self._first_group:  # All columns are expected from this group on.
            for column in self._ends:
                heapq.heappush(self._next, (chunk.group, column, self._first_group))
            self._first_group = chunk.group
        if is_new:
            heapq.heappush(self._next, (self._first_group, chunk.column, self.layout.groups))
        self._groups.add(chunk.group)
        self._ends[chunk.column] = number, high, in_order
        # The whole rest, if the reader goes through the file; otherwise as much again as was read in order.
        goes_through = self._depth and (continues or low == chunk.start)
        ahead_bytes = max(in_order, PIECE_BYTES_MIN) if continues else 0
        stop = chunk.end if goes_through else min(chunk.end, high + ahead_bytes)
        first = max(high, self._requested.get(number, 0))
        stop = min(stop, first + self.limit_bytes, self.stop)
        if first >= stop or not may_grow:
            return []
        self._requested[number] = stop
        return [(first, stop)]

    def _ahead(self) -> Iterator[Range]:
        """The next chunks of all columns that fit into the window, group by group."""
        if not self._depth:
            return
        window = min(self.limit_bytes, max(WINDOW_BYTES_MIN, self._depth * self._group_bytes))
        for _ in range(LOOKS_MAX):
            if not self._next or self._unread_bytes >= window or len(self._unread) >= REPORT_CHUNKS_MAX:
                return
            group, column, group_stop = self._next[0]
            number = self.layout.number_of(column, group)
            is_new = number is not None and number not in self._read and number not in self._requested
            chunk = self.layout.chunks[number or 0]
            room = window - self._unread_bytes
            if is_new and self._unread and chunk.end - chunk.start > room:
                return  # Later, as a whole.
            if group + 1 < group_stop:
                heapq.heapreplace(self._next, (group + 1, column, group_stop))
            else:
                heapq.heappop(self._next)
            if number is None or not is_new:
                continue
            stop = min(chunk.end, self.stop, chunk.start + room)
            if chunk.start < stop:
                self._requested[number] = stop
                self._unread[number] = stop - chunk.start
                self._unread_bytes += stop - chunk.start
                yield chunk.start, stop

"""Where lines end, and which belong to a range of a file. Pure, no I/O.

A line belongs to the range in which it starts, so a range is ``[L(start), L(end))``, where ``L(x)`` is where the first
line at or after ``x`` starts: ranges that meet share no line and miss none, wherever they were cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import AnyStr

from aioprefetch.source.formats.corruption import corrupt

# A record is held in memory as a whole, and Arrow's text has offsets of 32 bits.
RECORD_BYTES_MAX = 256 << 20

_END = re.compile(rb"\r\n?|\n")


@dataclass(frozen=True, slots=True)
class Lines:
    """Whole lines with their ends (the last one of a file may lack it); ``offset`` is their position in the file.

    ``length`` gives the number of bytes in the file for a part of ``data``, where that differs.
    """

    data: bytes
    offset: int
    length: Callable[[bytes], int] = len

    def place(self, index: int) -> int:
        """The position in the file of the byte ``index`` of the data."""
        return self.offset + (index if self.length is len else self.length(self.data[:index]))


class LineEnds:
    r"""Finds line ends: ``\n``, ``\r\n`` and ``\r``, or one separator in place of these."""

    def __init__(self, separator: bytes | None) -> None:
        self.separator = separator
        # The number of bytes before a position that decide whether a line starts there.
        self.reach = 1 if separator is None else len(separator)
        self._overlaps = separator is not None and overlaps_itself(separator)

    def first(self, data: bytes, at: int, *, is_last: bool) -> int | None:
        """The position after the first line end in ``data`` that begins at or after ``at``; ``None`` if unknown yet."""
        if self.separator is not None:
            found = data.find(self.separator, max(0, at))
            return None if found < 0 else found + self.reach
        match = _END.search(data, max(0, at))
        if match is None or (match.end() == len(data) and match[0] == b"\r" and not is_last):
            return None
        return match.end()

    def last(self, data: bytes) -> int:
        """The position after the last complete line end in ``data``; 0 if there is none."""
        separator = self.separator
        if separator is None:
            newline = data.rfind(b"\n")
            return max(newline, data.rfind(b"\r", newline + 1, len(data) - 1)) + 1
        if not self._overlaps:
            return data.rfind(separator) + self.reach if separator in data else 0
        end = 0
        while (found := data.find(separator, end)) >= 0:
            end = found + self.reach
        return end

    def last_of(self, tail: bytes, piece: bytes) -> int:
        """``last`` for ``piece`` with ``tail`` before it: 0 or less if the end lies in the tail."""
        found = 0 if self._overlaps else self.last(piece)
        return found or self.last(tail + piece) - len(tail)

    def spans(self, data: bytes) -> list[tuple[int, int]]:
        """The begin and end of each line of ``data``, without its end."""
        found: list[tuple[int, int]] = []
        begin, separator = 0, self.separator
        if separator is None:
            for match in _END.finditer(data):
                found.append((begin, match.start()))
                begin = match.end()
        else:
            while (stop := data.find(separator, begin)) >= 0:
                found.append((begin, stop))
                begin = stop + self.reach
        if begin < len(data):
            found.append((begin, len(data)))
        return found

    def plain_end(self, data: bytes) -> bytes | None:
        """The common end of all lines of ``data``; ``None`` if they differ."""
        if self.separator is not None:
            return None if self._overlaps else self.separator
        returns = data.count(b"\r") if b"\r" in data else 0
        if not returns:
            return b"\n"
        return b"\r\n" if returns == data.count(b"\r\n") == data.count(b"\n") else None


def overlaps_itself(separator: AnyStr) -> bool:
    """Whether a separator begins as it ends, as ``"--"`` does."""
    return any(separator.startswith(separator[cut:]) for cut in range(1, len(separator)))


class LineCutter:
    """Collects pieces of a file from ``begin`` on, and gives the whole lines that start in ``[start, end)``.

    Without ``end`` all lines from ``start`` on. Once ``is_done`` no further piece is needed. A line of more than
    ``record_bytes_max`` bytes is ``UntrustedMetadata``.
    """

    def __init__(
        self,
        ends: LineEnds,
        *,
        path: str,
        start: int = 0,
        end: int | None = None,
        record_bytes_max: int = RECORD_BYTES_MAX,
    ) -> None:
        self._record_bytes_max = record_bytes_max
        self._ends = ends
        self._path = path
        self._start = start
        self._end = end
        self.begin = max(0, start - ends.reach) if start else 0
        self._skipping = start > 0
        self._parts: list[bytes] = []
        self._size = 0
        self._tail = b""
        self._position = self.begin
        self.is_done = end is not None and end <= start

    def push(self, piece: bytes) -> Lines | None:
        """The lines that this piece completes, if any."""
        if self.is_done:
            return None
        tail = self._tail
        if not self._skipping and self._parts and self._reaches_end(0):
            # No line starts at or after the end in the bytes so far: only the new ones are searched.
            if self._ends.first(tail + piece, 0, is_last=False) is None:
                self._keep(piece)
                return None
            return self._push_edge(piece, is_last=False)
        if self._skipping or self._reaches_end(len(piece)):
            return self._push_edge(piece, is_last=False)
        cut = self._ends.last_of(tail, piece)
        if cut < 0 or (cut == 0 and not tail):
            self._keep(piece)
            return None
        block = b"".join((*self._parts, memoryview(piece)[:cut])) if self._parts else piece[:cut]
        offset = self._position
        self._hold(piece[cut:], offset + len(block))
        return Lines(block, offset) if block else None

    def finish(self) -> Lines | None:
        """The last lines at the end of the file, the very last perhaps without its end."""
        if self.is_done:
            return None
        return self._push_edge(b"", is_last=True)

    def _reaches_end(self, more: int) -> bool:
        return self._end is not None and self._position + self._size + more >= self._end

    def _push_edge(self, piece: bytes, *, is_last: bool) -> Lines | None:
        """Lines at the begin or end of the range, found in all held bytes: these are few but for long lines."""
        data = b"".join((*self._parts, piece))
        if self._skipping:
            first = self._line_start(data, self._start, is_last=is_last)
            if first is None:
                keep = max(len(data) - self._ends.reach, 0)
                self._hold(data[keep:], self._position + keep)
                return None
            self._skipping = False
            data = data[first:]
            self._position += first
            if self._end is not None and self._position >= self._end:
                self.is_done = True
                return None
        stop = len(data) if is_last else self._ends.last(data)
        if self._end is not None and self._position + len(data) >= self._end:
            found = self._line_start(data, self._end, is_last=is_last)
            if found is not None:
                self.is_done, stop = True, found
        offset = self._position
        self._hold(data[stop:], offset + stop)
        return Lines(data[:stop], offset) if stop else None

    def _line_start(self, data: bytes, position: int, *, is_last: bool) -> int | None:
        return self._ends.first(data, position - self._ends.reach - self._position, is_last=is_last)

    def _keep(self, piece: bytes) -> None:
        self._parts.append(piece)
        self._size += len(piece)
        self._tail = (self._tail + piece[-self._ends.reach :])[-self._ends.reach :]
        self._check_size()

    def _hold(self, data: bytes, position: int) -> None:
        self._parts = [data] if data else []
        self._size = len(data)
        self._position = position
        self._tail = data[-self._ends.reach :]
        self._check_size()

    def _check_size(self) -> None:
        if self._size > self._record_bytes_max:
            raise corrupt(
                f"a record is longer than {self._record_bytes_max} bytes: this is not the format, or not its line"
                " separator",
                path=self._path,
                offset=self._position,
            )

"""Line ends, and the lines of a range of a file. Pure.

A line belongs to the range in which it starts. The lines of a range are ``[L(start), L(end))``, where ``L(x)`` is the
start of the first line at or after ``x``. Adjacent ranges then share no line and miss none, wherever they are cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import AnyStr

from aioprefetch.source.formats.corruption import corrupt

# The maximum size of a record, which is held in memory as a whole. Texts in Arrow have 32-bit offsets.
RECORD_BYTES_MAX = 256 << 20

_END = re.compile(rb"\r\n?|\n")


@dataclass(frozen=True, slots=True)
class Lines:
    """Whole lines with their ends, which the last line of a file may lack. ``offset`` is their position in the file.

    ``length`` returns the number of bytes in the file of a part of ``data``, if that differs.
    """

    data: bytes
    offset: int
    length: Callable[[bytes], int] = len

    def place(self, index: int) -> int:
        """The position in the file of the byte ``index`` of the data."""
        return self.offset + (index if self.length is len else self.length(self.data[:index]))


class LineEnds:
    r"""Finds line ends: ``\n``, ``\r\n`` and ``\r``, or a separator instead of these."""

    def __init__(self, separator: bytes | None) -> None:
        self.separator = separator
        # Whether a line starts at a position depends on this number of bytes before it.
        self.reach = 1 if separator is None else len(separator)
        self._overlaps = separator is not None and overlaps_itself(separator)

    def first(self, data: bytes, at: int, *, is_last: bool) -> int | None:
        """The position after the first line end in ``data`` that begins at or after ``at``; ``None`` if unknown."""
        if self.separator is not None:
            position = data.find(self.separator, max(0, at))
            return None if position < 0 else position + self.reach
        match = _END.search(data, max(0, at))
        if match is None or (match.end() == len(data) and match[0] == b"\r" and not is_last):
            return None
        return match.end()

    def last(self, data: bytes) -> int:
        """The position after the last complete line end in ``data``; 0 without one."""
        separator = self.separator
        if separator is None:
            newline = data.rfind(b"\n")
            return max(newline, data.rfind(b"\r", newline + 1, len(data) - 1)) + 1
        if not self._overlaps:
            return data.rfind(separator) + self.reach if separator in data else 0
        end = 0
        while (position := data.find(separator, end)) >= 0:
            end = position + self.reach
        return end

    def last_of(self, tail: bytes, piece: bytes) -> int:
        """``last`` of ``tail + piece``, counted from the start of ``piece``: 0 or less for a line end in the tail."""
        position = 0 if self._overlaps else self.last(piece)
        return position or self.last(tail + piece) - len(tail)

    def spans(self, data: bytes) -> list[tuple[int, int]]:
        """The start and the end of each line of ``data``, without line ends."""
        spans: list[tuple[int, int]] = []
        begin, separator = 0, self.separator
        if separator is None:
            for match in _END.finditer(data):
                spans.append((begin, match.start()))
                begin = match.end()
        else:
            while (stop := data.find(separator, begin)) >= 0:
                spans.append((begin, stop))
                begin = stop + self.reach
        if begin < len(data):
            spans.append((begin, len(data)))
        return spans

    def plain_end(self, data: bytes) -> bytes | None:
        """The common line end of all lines of ``data``; ``None`` if they differ."""
        if self.separator is not None:
            return None if self._overlaps else self.separator
        returns = data.count(b"\r") if b"\r" in data else 0
        if not returns:
            return b"\n"
        return b"\r\n" if returns == data.count(b"\r\n") == data.count(b"\n") else None


def overlaps_itself(separator: AnyStr) -> bool:
    """Whether occurrences of a separator can overlap, as those of ``"--"`` can."""
    return any(separator.startswith(separator[cut:]) for cut in range(1, len(separator)))


class LineCutter:
    """Collects pieces of a file from ``begin`` on, and returns the whole lines that start in ``[start, end)``.

    Without ``end`` these are all lines from ``start`` on. If ``is_done``, no further piece is needed. A line of more
    than ``record_bytes_max`` bytes is ``UntrustedMetadata``.
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
            # The bytes so far have no line that starts at or after the end, so only the new bytes are searched.
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
        """The last lines, at the end of the file. The very last may lack its line end."""
        if self.is_done:
            return None
        return self._push_edge(b"", is_last=True)

    def _reaches_end(self, more: int) -> bool:
        return self._end is not None and self._position + self._size + more >= self._end

    def _push_edge(self, piece: bytes, *, is_last: bool) -> Lines | None:
        """Lines at the start or the end of the range, searched in all held bytes (few unless lines are long)."""
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
            next_line = self._line_start(data, self._end, is_last=is_last)
            if next_line is not None:
                self.is_done, stop = True, next_line
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

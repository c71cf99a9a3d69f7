"""Records of CSV: those that span lines (``multi_line``), and lines that are none. Pure."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from aioprefetch.source.formats.corruption import corrupt
from aioprefetch.source.formats.csv_quoting import Quoting, Span
from aioprefetch.source.formats.lines import RECORD_BYTES_MAX, LineEnds, Lines
from aioprefetch.source.options import FormatOptions

# What Java's ``trim`` takes off.
_SPACES = bytes(range(ord(" ") + 1))


class RecordCutter:
    """As ``LineCutter``, for whole files whose records may span lines."""

    def __init__(self, quoting: Quoting, *, path: str) -> None:
        self._quoting = quoting
        self._path = path
        self._data = b""
        self._parts: list[bytes] = []
        self._size = 0
        self._look_at = 0  # A long record is looked at again when twice as much of it has come.
        self._position = 0
        self.begin = 0
        self.is_done = False

    def push(self, piece: bytes) -> Lines | None:
        """See ``LineCutter``."""
        self._parts.append(piece)
        self._size += len(piece)
        if self._size < self._look_at:
            return None
        data = b"".join(self._parts)
        stop = record_end(data, self._quoting)
        self._parts = [data[stop:]]
        self._size = len(data) - stop
        self._look_at = 0 if stop else 2 * self._size
        if self._size > RECORD_BYTES_MAX:
            raise corrupt(
                f"a record is longer than {RECORD_BYTES_MAX} bytes: a quote may be missing",
                path=self._path,
                offset=self._position,
            )
        self._position += stop
        return Lines(data[:stop], self._position - stop) if stop else None

    def finish(self) -> Lines | None:
        """See ``LineCutter``."""
        data = b"".join(self._parts)
        self._parts = []
        if self._quoting.spans(data)[1] < len(data):
            place, message = self._quoting.fault(data) or (0, "")
            raise corrupt(message, path=self._path, offset=self._position + place)
        return Lines(data, self._position) if data else None


def record_end(data: bytes, quoting: Quoting) -> int:
    """Behind the last line end that ends a record, as far as it is known; 0 when there is none."""
    spans, stop = quoting.spans(data)
    if spans and spans[-1][1] == len(data):  # What closes it may be the first half of a doubled quote.
        stop = spans.pop()[0]
    for begin, end in reversed([(0, 0), *spans]):
        newline = data.rfind(b"\n", end, stop)
        found = max(newline, data.rfind(b"\r", end, stop - (stop == len(data)))) + 1
        if found:
            return found
        stop = begin
    return 0


def record_spans(data: bytes, quoting: Quoting, ends: LineEnds) -> list[Span]:
    """Where each record begins and ends, without its line end; empty lines are none."""
    hidden, _ = quoting.spans(data)
    if not hidden:
        return [one for one in ends.spans(data) if one[0] < one[1]]
    covered = bytearray(data)
    for begin, end in hidden:
        covered[begin:end] = b"x" * (end - begin)
    return [one for one in ends.spans(bytes(covered)) if one[0] < one[1]]


def first_record(data: bytes, options: FormatOptions, quoting: Quoting) -> Span | None:
    """Where the first record begins and ends; ``None`` where there are empty lines alone."""
    ends = LineEnds(None if options.line_separator is None else options.line_separator.encode())
    if options.multi_line:
        return next(iter(record_spans(data, quoting, ends)), None)
    at = 0
    while (stop := ends.first(data, at, is_last=True)) is not None:
        begin, end = ends.spans(data[at:stop])[0]
        if begin < end:
            return at, at + end
        at = stop
    return (at, len(data)) if at < len(data) else None


def without_blank(lines: Lines, options: FormatOptions) -> Lines:
    """Lines of spaces (and what Spark takes for such) as so many empty ones: these are no records."""
    end = b"\n" if options.line_separator is None else options.line_separator.encode()
    if options.multi_line or len(end) > 1 or not has_blank(lines.data, end):
        return lines
    ends = LineEnds(None if options.line_separator is None else end)
    data = bytearray(lines.data)
    for begin, stop in ends.spans(lines.data):
        if begin < stop and not lines.data[begin:stop].strip(_SPACES):
            data[begin:stop] = end * (stop - begin)
    return replace(lines, data=bytes(data))


def has_blank(data: bytes, end: bytes = b"\n") -> bool:
    """Whether a line may be of spaces: one begins with some."""
    if not data:
        return False
    found = np.frombuffer(data, np.uint8)
    is_end = found == ord(end)
    if end == b"\n" and b"\r" in data:
        is_end |= found == ord("\r")
    begins = np.concatenate([[0], np.flatnonzero(is_end[:-1]) + 1])
    return bool(((found[begins] <= ord(" ")) & ~is_end[begins]).any())

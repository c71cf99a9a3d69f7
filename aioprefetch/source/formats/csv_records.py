"""Records of CSV: those that span lines (``multi_line``), and lines that are none. Pure."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from aioprefetch.source.formats.corruption import corrupt
from aioprefetch.source.formats.lines import RECORD_BYTES_MAX, LineEnds, Lines
from aioprefetch.source.options import FormatOptions

# Where something begins and ends.
Span = tuple[int, int]

# What numpy looks through at once: the memory for it is not new each time.
PIECE_BYTES = 64 << 10


class Quoting:
    """Finds quoted fields: a quote counts where a field begins, and is closed by one that is not doubled or escaped.

    Within quotes the escape stands for itself but before a quote or another escape; outside them it always does.
    """

    def __init__(self, *, delimiter: str, quote: str | None, escape: str | None, multi_line: bool = False) -> None:
        self.quote = None if quote is None else quote.encode()
        self._escape = escape.encode() if escape is not None and escape != quote else None
        self._is_backslash_free = escape is None
        self._spans_lines = multi_line
        if self.quote is not None:
            self._delimiter = delimiter.encode()
            # What may be before a quote that opens, and behind one that closes.
            self._borders = np.isin(np.arange(256), list(b"\r\n" + self.quote + self._delimiter))
            parts = self._delimiter, self.quote, self._escape
            self._field = _pattern(*parts)
            self._good = _good(*parts, spans_lines=multi_line)
            self._escaped = re.compile(re.escape(self._escape or b"") + b"(.)", re.DOTALL)

    def hides(self, data: bytes) -> bool:
        """Whether there is a quote at all."""
        return self.quote is not None and self.quote in data

    def spans(self, data: bytes) -> tuple[list[Span], int]:
        """Where quotes hide what is in them, and where a quote is that nothing closes, or the length."""
        if not self.hides(data):
            return [], len(data)
        found: list[Span] = []
        for match in self._field.finditer(data):
            if match["close"] is None:
                return found, match.start()
            found.append(match.span())
        return found, len(data)

    def fault(self, data: bytes) -> tuple[int, str] | None:
        """Where whole records have a quote that means nothing, or several things, and what is wrong with it."""
        if not self.hides(data):
            return None
        place = self._backslash(data) if self._is_backslash_free else None
        if place is not None:
            return place, (
                "a backslash is before a quote: set the option escape to \\ where it escapes the quote, or to the quote"
                " where it does not"
            )
        if self._is_plain(data):
            return None
        match = self._good.match(data)
        place = 0 if match is None else match.end()
        if place == len(data):
            return None
        field = self._field.match(data, place)
        text = b"" if field is None or field["close"] is None else field[0]
        if text and (self._spans_lines or not (b"\n" in text or b"\r" in text)):
            return place, "text follows the quote that closes a field"
        if self._spans_lines:
            return place, "a quote is never closed"
        line = max(data.rfind(b"\n", 0, place), data.rfind(b"\r", 0, place)) + 1
        return line, "a quote is open at the end of the line: fields with line breaks in quotes need multi_line"

    def _backslash(self, data: bytes) -> int | None:
        """Where within quotes a backslash is before a quote."""
        if b"\\" not in data:  # One byte is found many times as fast as two.
            return None
        mark = b"\\" + (self.quote or b"")
        if mark not in data:
            return None
        spans, stop = self.spans(data)
        spans.append((stop, len(data)))
        for begin, end in spans:
            place = data.find(mark, begin, end)
            if place >= 0:
                return place
        return None

    def _is_plain(self, data: bytes) -> bool:
        """Whether every quote opens or closes a field, or is doubled, and escapes are within: told without a search.

        Where each one that comes second, fourth, … ends a field, or has the next one behind it, and each other one
        begins a field, or has one before it, they can be nothing else.
        """
        escape, quote = self._escape or b"", self.quote or b""
        masked = data
        if escape and escape in data:
            other = next(one for one in (b"x", b"y", b"z", b"w") if one not in (escape, quote, self._delimiter)) * 2
            masked = data.replace(escape * 2, other).replace(escape + quote, other)
        found = np.frombuffer(masked, np.uint8)
        ends = b"" if self._spans_lines else b"\n\r" if b"\r" in masked else b"\n"
        # Of quotes and line ends alone: a line end is hidden where the quotes so far are odd.
        marks = _places(found, quote + ends)
        are_quotes = found[marks] == ord(quote)
        are_inside = np.cumsum(are_quotes, dtype=np.int32) & 1
        quotes = np.compress(are_quotes, marks)
        if len(quotes) % 2 or np.any(are_inside.astype(bool) & ~are_quotes):
            return False
        # At the ends of the data a quote counts as its own neighbour, which is a border.
        before, behind = np.maximum(quotes[::2] - 1, 0), np.minimum(quotes[1::2] + 1, len(found) - 1)
        if not (self._borders[found[before]].all() and self._borders[found[behind]].all()):
            return False
        if masked is data:
            return True
        hidden = np.flatnonzero(found != np.frombuffer(data, np.uint8))
        return bool((np.searchsorted(quotes, hidden) % 2).all())

    def doubled(self, data: bytes) -> bytes:
        """With doubled quotes for those that are escaped, and escapes that escape nothing."""
        escape, quote = self._escape, self.quote
        if escape is None or quote is None or escape not in data or quote not in data:
            return data
        if self._is_plain(data):  # Bytes that are never in UTF-8 stand for escapes of themselves.
            return data.replace(escape * 2, b"\xff").replace(escape + quote, quote * 2).replace(b"\xff", escape)
        pairs = {quote: quote * 2, escape: escape}

        def within(match: re.Match[bytes]) -> bytes:
            field = match[0]
            return field if escape not in field else self._escaped.sub(lambda one: pairs.get(one[1], one[0]), field)

        return self._field.sub(within, data)


def _places(data: npt.NDArray[np.uint8], bytes_wanted: bytes) -> npt.NDArray[np.int64]:
    """Where these bytes are. Piece by piece: memory that is new each time costs more than the search."""
    found = [np.zeros(0, np.int64)]
    for start in range(0, len(data), PIECE_BYTES):
        piece = data[start : start + PIECE_BYTES]
        is_there = piece == bytes_wanted[0]
        for byte in bytes_wanted[1:]:
            is_there |= piece == byte
        found.append(np.flatnonzero(is_there) + start)
    return np.concatenate(found)


def _pattern(delimiter: bytes, quote: bytes, escape: bytes | None) -> re.Pattern[bytes]:
    """A quoted field, whose ``close`` is missing where nothing closes it."""
    mark, cut = re.escape(quote), re.escape(delimiter)
    field = _begin(mark, cut) + b"(?:" + _within(mark, escape, b"") + b")*+(?P<close>" + mark + b")?"
    return re.compile(field, re.DOTALL)


def _good(delimiter: bytes, quote: bytes, escape: bytes | None, *, spans_lines: bool) -> re.Pattern[bytes]:
    """All up to a quoted field that is not closed, within its line, where a field ends."""
    mark, cut = re.escape(quote), re.escape(delimiter)
    within = _within(mark, escape, b"" if spans_lines else b"\\r\\n")
    field = _begin(mark, cut) + b"(?:" + within + b")*+" + mark + b"(?=[" + cut + b"\\r\\n]|\\Z)"
    return re.compile(b"(?:[^" + mark + b"]++|" + field + b"|(?<=[^" + cut + b"\\r\\n])" + mark + b")*+", re.DOTALL)


def _begin(mark: bytes, cut: bytes) -> bytes:
    return b"(?<![^" + cut + b"\\r\\n])" + mark


def _within(mark: bytes, escape: bytes | None, never: bytes) -> bytes:
    """What is in a quoted field: others, doubled quotes, and an escape with what it is before."""
    sign = b"" if escape is None else re.escape(escape)
    found = b"[^" + mark + sign + never + b"]++|" + mark * 2
    return (
        found + b"|" + sign + b"[^" + (never or b"") + b"]"
        if sign and never
        else found + (b"|" + sign + b"." if sign else b"")
    )


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

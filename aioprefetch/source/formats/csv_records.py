"""The records and columns of CSV: quotes, records that span lines (``multi_line``), blank lines, headers. Pure."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from aioprefetch.errors import ConfigInvalid, Error
from aioprefetch.source.columns.schemas import match_names
from aioprefetch.source.differences import warn_of_difference
from aioprefetch.source.formats.corruption import corrupt, shown, unknown_field, warn_of_unknown
from aioprefetch.source.formats.record_format import Wanted
from aioprefetch.source.formats.records import RECORD_BYTES_MAX, LineEnds, Lines
from aioprefetch.source.options import FormatOptions

# The start and the end of a part of the data.
Span = tuple[int, int]

# The size of a piece that numpy searches at once: the memory of small results is reused.
PIECE_BYTES = 64 << 10


class Quoting:
    """Finds quoted fields.

    A field is quoted if it begins with a quote, and ends at a quote that is not doubled or escaped.

    Within quotes the escape is a plain character unless it precedes a quote or an escape; outside it always is.
    """

    def __init__(self, *, delimiter: str, quote: str | None, escape: str | None, multi_line: bool = False) -> None:
        self.quote = None if quote is None else quote.encode()
        self._escape = escape.encode() if escape is not None and escape != quote else None
        self._is_backslash_free = escape is None
        self._spans_lines = multi_line
        if self.quote is not None:
            self._delimiter = delimiter.encode()
            # The bytes that may precede an opening quote, or follow a closing one.
            self._borders = np.isin(np.arange(256), list(b"\r\n" + self.quote + self._delimiter))
            parts = self._delimiter, self.quote, self._escape
            self._field = _pattern(*parts)
            self._good = _good(*parts, spans_lines=multi_line)
            self._escaped = re.compile(re.escape(self._escape or b"") + b"(.)", re.DOTALL)

    def hides(self, data: bytes) -> bool:
        """Whether the data have any quote."""
        return self.quote is not None and self.quote in data

    def spans(self, data: bytes) -> tuple[list[Span], int]:
        """The spans of quoted fields, and the position of a quote that is not closed (or the length of the data)."""
        if not self.hides(data):
            return [], len(data)
        spans: list[Span] = []
        for match in self._field.finditer(data):
            if match["close"] is None:
                return spans, match.start()
            spans.append(match.span())
        return spans, len(data)

    def fault(self, data: bytes) -> tuple[int, str] | None:
        """The position and the description of an invalid or ambiguous quote in whole records; ``None`` without one."""
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
        """The position of the first backslash before a quote within a quoted field, or ``None``."""
        if b"\\" not in data:  # The search for one byte is many times as fast as for two.
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
        """Whether all quotes open a field, close one or are doubled, and escapes are within fields, without a search.

        That is so if each second quote precedes the end of a field or another quote, and each other quote follows the
        start of a field or another quote.
        """
        escape, quote = self._escape or b"", self.quote or b""
        masked = data
        if escape and escape in data:
            used = (escape, quote, self._delimiter)
            filler = next(letter for letter in (b"x", b"y", b"z", b"w") if letter not in used) * 2
            masked = data.replace(escape * 2, filler).replace(escape + quote, filler)
        view = np.frombuffer(masked, np.uint8)
        ends = b"" if self._spans_lines else b"\n\r" if b"\r" in masked else b"\n"
        # A line end is within a field if an odd number of quotes precede it.
        marks = _places_of(view, quote + ends)
        are_quotes = view[marks] == ord(quote)
        are_inside = np.cumsum(are_quotes, dtype=np.int32) & 1
        quotes = np.compress(are_quotes, marks)
        if len(quotes) % 2 or np.any(are_inside.astype(bool) & ~are_quotes):
            return False
        # At the ends of the data a quote is its own neighbour, and a quote counts as a border.
        before, behind = np.maximum(quotes[::2] - 1, 0), np.minimum(quotes[1::2] + 1, len(view) - 1)
        if not (self._borders[view[before]].all() and self._borders[view[behind]].all()):
            return False
        if masked is data:
            return True
        hidden = np.flatnonzero(view != np.frombuffer(data, np.uint8))
        return bool((np.searchsorted(quotes, hidden) % 2).all())

    def doubled(self, data: bytes) -> bytes:
        """The data with doubled quotes in place of escaped quotes, and without other escapes."""
        escape, quote = self._escape, self.quote
        if escape is None or quote is None or escape not in data or quote not in data:
            return data
        if self._is_plain(data):  # Bytes that never occur in UTF-8 replace escaped escapes.
            return data.replace(escape * 2, b"\xff").replace(escape + quote, quote * 2).replace(b"\xff", escape)
        pairs = {quote: quote * 2, escape: escape}

        def within(match: re.Match[bytes]) -> bytes:
            field = match[0]
            return (
                field
                if escape not in field
                else self._escaped.sub(lambda escaped: pairs.get(escaped[1], escaped[0]), field)
            )

        return self._field.sub(within, data)


def _places_of(data: npt.NDArray[np.uint8], bytes_wanted: bytes) -> npt.NDArray[np.int64]:
    """The positions of the bytes. Searches in pieces, since new memory takes longer than the search."""
    places = [np.zeros(0, np.int64)]
    for start in range(0, len(data), PIECE_BYTES):
        piece = data[start : start + PIECE_BYTES]
        is_there = piece == bytes_wanted[0]
        for byte in bytes_wanted[1:]:
            is_there |= piece == byte
        places.append(np.flatnonzero(is_there) + start)
    return np.concatenate(places)


def _pattern(delimiter: bytes, quote: bytes, escape: bytes | None) -> re.Pattern[bytes]:
    """The pattern of a quoted field. The group ``close`` is missing if the field is not closed."""
    mark, cut = re.escape(quote), re.escape(delimiter)
    field = _begin(mark, cut) + b"(?:" + _within(mark, escape, b"") + b")*+(?P<close>" + mark + b")?"
    return re.compile(field, re.DOTALL)


def _good(delimiter: bytes, quote: bytes, escape: bytes | None, *, spans_lines: bool) -> re.Pattern[bytes]:
    """The pattern of valid data, up to a quoted field that is not closed where a field ends (within its line)."""
    mark, cut = re.escape(quote), re.escape(delimiter)
    within = _within(mark, escape, b"" if spans_lines else b"\\r\\n")
    field = _begin(mark, cut) + b"(?:" + within + b")*+" + mark + b"(?=[" + cut + b"\\r\\n]|\\Z)"
    return re.compile(b"(?:[^" + mark + b"]++|" + field + b"|(?<=[^" + cut + b"\\r\\n])" + mark + b")*+", re.DOTALL)


def _begin(mark: bytes, cut: bytes) -> bytes:
    return b"(?<![^" + cut + b"\\r\\n])" + mark


def _within(mark: bytes, escape: bytes | None, never: bytes) -> bytes:
    """The pattern of the content of a quoted field: plain characters, doubled quotes, and escaped characters."""
    sign = b"" if escape is None else re.escape(escape)
    content = b"[^" + mark + sign + never + b"]++|" + mark * 2
    return (
        content + b"|" + sign + b"[^" + (never or b"") + b"]"
        if sign and never
        else content + (b"|" + sign + b"." if sign else b"")
    )


def quoting_of(options: FormatOptions) -> Quoting:
    """The quotes of files, which hide line ends."""
    return Quoting(
        delimiter=options.delimiter, quote=options.quote, escape=options.escape, multi_line=options.multi_line
    )


# --- records ----------------------------------------------------------------------------------------------------------

# The characters that ``trim`` of Java removes.
_SPACES = bytes(range(ord(" ") + 1))


class RecordCutter:
    """A ``Cutter`` of whole files whose records may span lines. To a lenient one a quote may be open at the end."""

    def __init__(self, quoting: Quoting, *, path: str, is_lenient: bool = False) -> None:
        self._quoting = quoting
        self._path = path
        self._is_lenient = is_lenient
        self._parts: list[bytes] = []
        self._size = 0
        self._look_at = 0  # An incomplete record is searched again when its size has doubled.
        self._position = 0
        self.begin = 0
        self.is_done = False

    def push(self, piece: bytes) -> Lines | None:
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
        data = b"".join(self._parts)
        self._parts = []
        if not self._is_lenient and self._quoting.spans(data)[1] < len(data):
            place, message = self._quoting.fault(data) or (0, "")
            raise corrupt(message, path=self._path, offset=self._position + place)
        return Lines(data, self._position) if data else None


def record_end(data: bytes, quoting: Quoting) -> int:
    """The position after the last line end that certainly ends a record; 0 without one."""
    spans, stop = quoting.spans(data)
    if spans and spans[-1][1] == len(data):  # The closing quote may be the first half of a doubled quote.
        stop = spans.pop()[0]
    for begin, end in reversed([(0, 0), *spans]):
        newline = data.rfind(b"\n", end, stop)
        position = max(newline, data.rfind(b"\r", end, stop - (stop == len(data)))) + 1
        if position:
            return position
        stop = begin
    return 0


def record_spans(data: bytes, quoting: Quoting, ends: LineEnds) -> list[Span]:
    """The start and end of each record, without its line end and without empty lines."""
    hidden, _ = quoting.spans(data)
    if not hidden:
        return [span for span in ends.spans(data) if span[0] < span[1]]
    covered = bytearray(data)
    for begin, end in hidden:
        covered[begin:end] = b"x" * (end - begin)
    return [span for span in ends.spans(bytes(covered)) if span[0] < span[1]]


def first_record(data: bytes, options: FormatOptions, quoting: Quoting) -> Span | None:
    """The start and end of the first record; ``None`` if all lines are empty."""
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
    """The lines with blank lines (of spaces, and control characters as in Spark) made empty: they are not records."""
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
    """Whether a line may be blank, since it begins with a space."""
    if not data:
        return False
    view = np.frombuffer(data, np.uint8)
    is_end = view == ord(end)
    if end == b"\n" and b"\r" in data:
        is_end |= view == ord("\r")
    begins = np.concatenate([[0], np.flatnonzero(is_end[:-1]) + 1])
    return bool(((view[begins] <= ord(" ")) & ~is_end[begins]).any())


# --- columns ----------------------------------------------------------------------------------------------------------

_NUMBERED = re.compile(r"_c([0-9]+)")


@dataclass(frozen=True, slots=True)
class CsvLayout:
    """The columns of a file in order. Known columns have the spelling of the schema.

    ``header_stop`` is the position after the header, 0 without a header.
    """

    names: tuple[str, ...]
    header_stop: int

    def unknown(self, want: Wanted) -> list[str]:
        """The names of the columns that are not known fields."""
        known_names = set(want.known_fields.names)
        return [name for name in self.names if name not in known_names]

    def wanted(self, want: Wanted) -> list[pa.Field]:
        """The wanted fields that the file has, in the order of the schema."""
        return [field for field in want.schema if field.name in self.names]


def check_options(options: FormatOptions) -> None:
    """Raise ``ConfigInvalid`` for an invalid option."""
    for name in ("delimiter", "quote", "escape"):
        value = getattr(options, name)
        if value is None and name != "delimiter":
            continue
        if not isinstance(value, str) or len(value) != 1 or not value.isascii() or value in "\r\n\0":
            raise ConfigInvalid(f"{name} must be one ASCII character, not {value!r}", operation="read_items")
    if options.delimiter in (options.quote, options.escape):
        raise ConfigInvalid(f"delimiter={options.delimiter!r} is the quote or the escape too", operation="read_items")
    if options.multi_line and options.line_separator is not None:
        raise ConfigInvalid("multi_line does not go with line_separator", operation="read_items")


def layout_of(
    first: bytes, stop: int, options: FormatOptions, quoting: Quoting, want: Wanted | None, path: str
) -> CsvLayout:
    """The layout defined by the first record of a file, which ends at ``stop``.

    Without a header the columns are the known fields of the schema, in order. Fields called ``_c0``, ``_c1``, …, as in
    an inferred schema, are matched by their numbers instead. ``want`` is ``None`` for a sample.
    """
    fields = split_record(quoting.doubled(first), options)
    if options.header:
        return CsvLayout(_unique(fields) if want is None else _known(fields, want, path), stop)
    schema = None if want is None else want.known_fields
    numbered = [f"_c{index}" for index in range(len(fields))]
    if schema is None or (len(schema) and all(_NUMBERED.fullmatch(name) for name in schema.names)):
        return CsvLayout(tuple(numbered), 0)
    return CsvLayout(tuple((schema.names + numbered[len(schema) :])[: len(fields)]), 0)


def split_record(record: bytes, options: FormatOptions) -> list[str]:
    """The fields of one record, which has no escaped quotes."""
    reader = csv.reader(
        [record.decode()],
        delimiter=options.delimiter,
        quotechar=options.quote,
        quoting=csv.QUOTE_MINIMAL if options.quote else csv.QUOTE_NONE,
    )
    csv.field_size_limit(max(csv.field_size_limit(), len(record) + 1))
    return next(reader, [])


def check_unknown(layout: CsvLayout, want: Wanted, *, path: str, is_first: bool) -> None:
    """Raise ``Unsupported`` for unknown columns under ``unknown_fields="fail"``; warn under ``warn``.

    The item with the first part of a file warns for the whole file.
    """
    unknown = layout.unknown(want)
    if unknown and want.options.unknown_fields == "fail":
        raise unknown_field(unknown[0], path=path, offset=0)
    if unknown and want.options.unknown_fields == "warn" and is_first:
        warn_of_unknown(unknown, path=path)


def ragged(expected: int, actual: int, *, path: str, offset: int) -> Exception:
    """The error for a record with more or fewer fields than the first record."""
    hint = "; fields with line breaks in quotes need multi_line" if actual < expected else ""
    return corrupt(f"a record has {actual} fields, not {expected}{hint}", path=path, offset=offset)


def _known(fields: Sequence[str], want: Wanted, path: str) -> tuple[str, ...]:
    """The names of a header, with the spelling of the schema if they differ only in case."""
    schema = want.known_fields
    try:
        wanted_names = _names_by_place(fields, schema.names, want.options.exact_case)
    except Error as error:
        error.add_context(path=path)
        raise
    names = _unique(fields)
    if len(want.schema) and not wanted_names:
        raise corrupt(
            f"the header has none of the columns of the schema: it is {shown(', '.join(names))}, the schema has "
            f"{shown(', '.join(schema.names))}; set the option header to false if the file has none",
            path=path,
            offset=0,
        )
    if any(schema.get_field_index(name) != place for place, name in wanted_names.items()):
        warn_of_difference("header")
    return tuple(wanted_names.get(place, name) for place, name in enumerate(names))


def _names_by_place(fields: Sequence[str], wanted: Sequence[str], exact_case: bool) -> dict[int, str]:
    """The wanted name of each column by its position: the name in the header, otherwise the unique name."""
    places = match_names(_named(fields), wanted, exact_case=exact_case)
    names = {place: name for place, name in zip(places, wanted, strict=True) if place is not None}
    missing = [name for name, place in zip(wanted, places, strict=True) if place is None]
    generated = [
        (place, name) for place, name in enumerate(_unique(fields)) if name != fields[place] and place not in names
    ]
    if missing and generated:
        places = match_names([name for _, name in generated], missing, exact_case=exact_case)
        for name, index in zip(missing, places, strict=True):
            if index is not None:
                names[generated[index][0]] = name
    return names


def _named(fields: Sequence[str]) -> list[str]:
    return [field or f"_c{index}" for index, field in enumerate(fields)]


def _unique(fields: Sequence[str]) -> tuple[str, ...]:
    """Unique names as in Spark: a column without a name is ``_c<number>``, equal names get their number appended."""
    names = _named(fields)
    counts = Counter(names)
    for index, name in enumerate(names):
        if counts[name] > 1:
            unique = f"{name}{index}"
            while unique in counts:
                unique += "_"
            counts[unique] = 1
            names[index] = unique
    return tuple(names)

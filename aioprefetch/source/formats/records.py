"""Lines of text: where they end, encodings whose bytes can be cut there, and lines as Arrow arrays.

A line belongs to the range of a file in which it starts. The lines of a range are ``[L(start), L(end))``, where
``L(x)`` is the start of the first line at or after ``x``. Adjacent ranges then share no line and miss none, wherever
they are cut.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from typing import AnyStr

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aioprefetch.errors import ConfigInvalid
from aioprefetch.source.formats.corruption import corrupt
from aioprefetch.source.formats.record_format import FoundBatch
from aioprefetch.source.options import FormatOptions

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
    """Whether occurrences of a separator can overlap, as with ``"--"``."""
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


class WholeCutter:
    """Cuts nothing: a file is one record, of at most ``RECORD_BYTES_MAX`` bytes."""

    def __init__(self, *, path: str) -> None:
        self._path = path
        self._parts: list[bytes] = []
        self._size = 0
        self.begin = 0
        self.is_done = False

    def push(self, piece: bytes) -> Lines | None:
        self._parts.append(piece)
        self._size += len(piece)
        if self._size > RECORD_BYTES_MAX:
            raise corrupt(
                f"a file that is one record is longer than {RECORD_BYTES_MAX} bytes: write a record on each line",
                path=self._path,
                offset=0,
            )
        return None

    def finish(self) -> Lines | None:
        parts, self._parts = self._parts, []
        return Lines(b"".join(parts), 0) if self._size else None


# --- encodings --------------------------------------------------------------------------------------------------------

# Escape sequences change the meaning of later bytes, so a piece cannot be decoded by itself.
_STATEFUL = ("utf-7", "iso2022", "hz")
# Codecs of Python for names and literals, not for files.
_NO_FILES = ("idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape")
_LINE_ENDS = (None, "\n", "\r\n", "\r")
_EVERY_BYTE = bytes(range(256))

_BYTE_ORDER_MARKS = {"utf-16": (b"\xff\xfe", b"\xfe\xff"), "utf-32": (b"\xff\xfe\0\0", b"\0\0\xfe\xff")}
UTF8_MARK = b"\xef\xbb\xbf"


def codec_name(encoding: str) -> str:
    """Python's name of an encoding. ``ConfigInvalid`` for an unknown encoding."""
    try:
        codec = codecs.lookup(encoding)
    except LookupError:
        raise ConfigInvalid(
            f"encoding={encoding!r} is unknown: give one of Python's, such as utf-8, latin-1, cp1252 or utf-16",
            operation="read_items",
        ) from None
    if not getattr(codec, "_is_text_encoding", True) or codec.name in _NO_FILES:
        raise ConfigInvalid(f"encoding={encoding!r} is not a known encoding of text files", operation="read_items")
    return "utf-8" if codec.name == "utf-8-sig" else codec.name


def is_line_safe(options: FormatOptions) -> bool:
    """Whether a file can be cut at line ends before it is decoded: the searched bytes occur in no other text.

    For line ends that is so in every encoding that has them as in ASCII. A separator or a quote may be half of another
    character (``|`` in Shift-JIS), except in encodings like UTF-8, where no byte of ASCII is part of another character.
    """
    name = codec_name(options.encoding)
    if "\r\n".encode(name) != b"\r\n" or name.startswith(_STATEFUL):
        return False
    looks_for_more = options.multi_line or options.line_separator not in _LINE_ENDS
    return not looks_for_more or name == "utf-8" or _has_single_bytes(name)


@cache
def _has_single_bytes(name: str) -> bool:
    return len(_EVERY_BYTE.decode(name, "replace")) == len(_EVERY_BYTE)


def to_utf8(data: bytes, encoding: str, *, path: str, offset: int) -> bytes:
    """Whole lines of a line-safe encoding as valid UTF-8. ``offset`` is their position in the file."""
    if data.isascii() and encoding in ("utf-8", "ascii", "iso8859-1"):
        return data
    try:
        if encoding != "utf-8":
            return data.decode(encoding).encode()
        if not _is_utf8(data):
            data.decode()  # The error has the position.
    except UnicodeDecodeError as error:
        raise undecodable(error, encoding, path=path, offset=offset + error.start) from error
    except UnicodeEncodeError as error:
        raise _half_pair(encoding, path=path, offset=offset) from error
    return data


def undecodable(error: UnicodeDecodeError, encoding: str, *, path: str, offset: int) -> Exception:
    """The error for bytes that are invalid in the encoding."""
    byte = error.object[error.start]
    return corrupt(
        f"the byte {byte:#04x} is not {encoding}: set the option encoding as the file needs (latin-1, cp1252, …)",
        path=path,
        offset=offset,
        encoding=encoding,
    )


def _half_pair(encoding: str, *, path: str, offset: int) -> Exception:
    """The error for bytes that encode an unpaired surrogate, which some encodings allow."""
    return corrupt(
        f"the text decoded from {encoding} contains an unpaired surrogate",
        path=path,
        offset=offset,
        encoding=encoding,
    )


def _is_utf8(data: bytes) -> bool:
    """Raise the error of ``bytes.decode``, if any, without creating a text."""
    ends = pa.py_buffer(len(data).to_bytes(8, "little").rjust(16, b"\0"))
    array = pa.LargeStringArray.from_buffers(1, ends, pa.py_buffer(data))
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


class Transcoder:
    """Converts a stream whose encoding is not line-safe to UTF-8, and finds the length of parts of it in the file."""

    def __init__(self, encoding: str, path: str, errors: str = "strict") -> None:
        self.encoding = encoding
        self._path = path
        self._decoder = codecs.getincrementaldecoder(encoding)(errors)
        self._position = 0
        self._pending = b""
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        # Encoded without a byte order mark, each text has its length in the file.
        family = encoding[:6]
        self._plain = f"{family}-le" if family in _BYTE_ORDER_MARKS else encoding
        self._marks = _BYTE_ORDER_MARKS.get(family, ())
        self._needs_mark = encoding in _BYTE_ORDER_MARKS
        self._begun = False
        self.mark_bytes = 0

    def push(self, piece: bytes, *, is_last: bool = False) -> bytes:
        """The text that this piece completes, as UTF-8."""
        if not self._begun:
            # The byte order mark may be incomplete. Decoders hold back incomplete characters too.
            self._pending += piece
            if len(self._pending) < 4 and not is_last:
                return b""
            piece, self._pending, self._begun = self._pending, b"", True
            self.mark_bytes = next((len(mark) for mark in self._marks if piece.startswith(mark)), 0)
            if piece and self._needs_mark and not self.mark_bytes:
                raise corrupt(
                    f"the file does not begin with the byte order mark of {self.encoding}: set the option encoding to "
                    f"{self.encoding}-le or {self.encoding}-be, as its bytes are ordered",
                    path=self._path,
                    offset=0,
                    encoding=self.encoding,
                )
        held = len(self._decoder.getstate()[0])
        self._waiting.append(piece)
        self._waiting_bytes += len(piece)
        if held + self._waiting_bytes > RECORD_BYTES_MAX:
            raise corrupt(
                f"{RECORD_BYTES_MAX} bytes decode to no text: set the option encoding as the file needs",
                path=self._path,
                offset=self._position - held,
                encoding=self.encoding,
            )
        if self._waiting_bytes < held and not is_last:
            return b""  # A decoder decodes all held bytes again at each call, and UTF-7 holds whole base64 sections.
        piece = b"".join(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        try:
            text = self._decoder.decode(piece, is_last)
        except UnicodeDecodeError as error:
            offset = self._position - held + error.start
            raise undecodable(error, self.encoding, path=self._path, offset=offset) from error
        if self._position == 0:
            text = text.removeprefix("\ufeff")
        begin = self._position
        self._position += len(piece)
        try:
            return text.encode()
        except UnicodeEncodeError as error:
            raise _half_pair(self.encoding, path=self._path, offset=begin) from error

    def length(self, data: bytes) -> int:
        """The number of bytes in the file that were decoded to this UTF-8."""
        return len(data.decode().encode(self._plain))


# --- lines as arrays --------------------------------------------------------------------------------------------------

# Parses the records of whole lines, of one file part by part. Returns ``None`` without any record.
ParseLines = Callable[[Lines], FoundBatch | None]


@dataclass(frozen=True, slots=True)
class JoinedRecords:
    """The records of several files in order.

    Offsets count from the start of each file; ``rows`` are the numbers of records.
    """

    found: FoundBatch
    rows: Sequence[int]


def parse_joined(texts: Sequence[bytes], parse: ParseLines, *, header_bytes: int = 0) -> JoinedRecords | None:
    r"""Parse whole files as one. Each line is a record; lines end with ``\n``, which the last line may lack.

    Each file begins with a header of ``header_bytes``. ``None`` if ``parse`` finds another number of records.
    """
    bodies = [text[header_bytes:] if text.endswith(b"\n") else text[header_bytes:] + b"\n" for text in texts]
    rows = [body.count(b"\n") for body in bodies]
    records = parse(Lines(b"".join(bodies), 0))
    if records is None or records.batch.num_rows != sum(rows):
        return None
    if records.offsets is not None:
        begins = np.repeat([0, *accumulate(map(len, bodies))][:-1], rows) - header_bytes
        records = replace(
            records, offsets=pa.array(records.offsets.to_numpy(zero_copy_only=False) - begins, pa.int64())
        )
    return JoinedRecords(records, rows)


def split_lines(data: bytes, ends: LineEnds, kind: pa.DataType | None = None) -> pa.Array:
    """The lines, without their ends, as strings if ``data`` are valid UTF-8, or of another ``kind``."""
    end, kind = ends.plain_end(data), kind or pa.string()
    if end is None:
        return pa.array([data[start:stop] for start, stop in ends.spans(data)], pa.binary()).cast(kind)
    if not data:
        return pa.array([], kind)
    offsets = pa.py_buffer(bytes(4) + len(data).to_bytes(4, "little"))
    lines = pc.split_pattern(pa.Array.from_buffers(kind, 1, [None, offsets, pa.py_buffer(data)]), end.decode()).values
    return lines.slice(0, len(lines) - 1) if data.endswith(end) else lines


def line_starts(lines: Lines, ends: LineEnds, *, with_empty: bool = True) -> pa.Int64Array:
    """The position in the file of each line; of empty lines only if ``with_empty``."""
    data = lines.data
    end = ends.plain_end(data)
    is_newline = end == b"\n" or (end == b"\r\n" and ends.separator is None)
    if end is None or not is_newline or lines.length is not len:
        return starts_of(lines, [start for start, stop in ends.spans(data) if with_empty or start < stop])
    after = newlines(data) + 1
    starts = np.concatenate([np.zeros(1, after.dtype), after])
    starts = starts[:-1] if starts[-1] == len(data) else starts
    if not with_empty:
        starts = starts[np.diff(starts, append=len(data) + (not data.endswith(end)) * len(end)) > len(end)]
    return pa.array(starts + lines.offset, pa.int64())


def newlines(data: bytes) -> np.typing.NDArray[np.intp]:
    r"""The position of each ``\n``."""
    return np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))


def count_lines(data: bytes) -> int:
    r"""The number of lines that end with ``\n``."""
    return int(np.count_nonzero(np.frombuffer(data, np.uint8) == ord("\n"))) + (not data.endswith(b"\n"))


def starts_of(lines: Lines, starts: list[int]) -> pa.Int64Array:
    """Positions in the data as positions in the file."""
    if lines.length is len:
        return pa.array([lines.offset + start for start in starts], pa.int64())
    if not starts:
        return pa.array([], pa.int64())
    stops = [*starts[1:], len(lines.data)]
    sizes = (lines.length(lines.data[start:stop]) for start, stop in zip(starts, stops, strict=True))
    places = accumulate(sizes, initial=lines.place(starts[0]))
    return pa.array(list(places)[: len(starts)], pa.int64())


def is_narrow(kind: pa.DataType) -> bool:
    """Whether a type is, or contains, floating-point numbers with fewer than 64 bits."""
    if pa.types.is_nested(kind):
        return any(is_narrow(kind.field(place).type) for place in range(kind.num_fields))
    return bool(pa.types.is_floating(kind) and kind.bit_width < 64)


def has_infinity(array: pa.Array) -> bool:
    """Whether an array contains an infinity, which pyarrow makes of a number that is too large for its type."""
    if pa.types.is_struct(array.type):
        return any(has_infinity(child) for child in array.flatten())
    if pa.types.is_nested(array.type):
        return has_infinity(array.flatten())
    return pa.types.is_floating(array.type) and pc.any(pc.is_inf(array)).as_py() is True


def only_batch(table: pa.Table) -> pa.RecordBatch:
    """A table as one batch."""
    batches = table.to_batches()
    return batches[0] if len(batches) == 1 else table.combine_chunks().to_batches()[0]


def only_chunk(column: pa.ChunkedArray) -> pa.Array:
    """A column of a table as one array."""
    array = column.combine_chunks()
    return array if isinstance(array, pa.Array) else array.chunk(0)


def merged(parts: Sequence[FoundBatch]) -> FoundBatch | None:
    """Records in their order as one batch; ``None`` without any."""
    if len(parts) < 2:
        return parts[0] if parts else None
    batch = only_batch(pa.Table.from_batches([part.batch for part in parts]))
    offsets, unknown = [part.offsets for part in parts], [part.unknown for part in parts]
    return FoundBatch(
        batch,
        None if offsets[0] is None else pa.concat_arrays(offsets),
        None if unknown[0] is None else pa.concat_arrays(unknown),
    )


def in_batches(records: FoundBatch, rows: int) -> Iterator[FoundBatch]:
    """Records divided into batches of at most ``rows``."""
    count = records.batch.num_rows
    if count <= rows:
        if count:
            yield records
        return
    for start in range(0, count, rows):
        yield FoundBatch(
            records.batch.slice(start, rows),
            None if records.offsets is None else records.offsets.slice(start, rows),
            None if records.unknown is None else records.unknown.slice(start, rows),
        )

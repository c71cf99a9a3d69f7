"""Reads the lines of an item in parts of about 1 MiB, or of several small files at once: decompresses, decodes, cuts.

pyarrow takes as long to start as to parse a thousand lines. Small files are therefore read by one GET each, and
adjacent ones of one likeness are parsed as one text, by the same rules as large files. A file that differs is parsed
alone.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Protocol, TypeVar, cast

from aioprefetch.errors import Error, InvalidArgument, UntrustedMetadata
from aioprefetch.operator.operator import Operator
from aioprefetch.source.formats.corruption import UNDECODABLE, undecodable
from aioprefetch.source.formats.csv_records import quoting_of, record_spans
from aioprefetch.source.formats.file_bytes import (
    THREAD_BYTES,
    WHOLE_BYTES_MAX,
    beginning,
    comes_whole,
    decompressed,
    decompressed_whole,
    decompressor,
    pieces,
    read_whole,
)
from aioprefetch.source.formats.record_format import (
    FoundBatch,
    RecordFormat,
    Wanted,
    can_split,
    compression_of,
    format_of,
)
from aioprefetch.source.formats.records import (
    UTF8_MARK,
    JoinedRecords,
    LineCutter,
    LineEnds,
    Lines,
    ParseLines,
    Transcoder,
    codec_name,
    in_batches,
    is_line_safe,
    merged,
    overlaps_itself,
    to_utf8,
)
from aioprefetch.source.options import FormatOptions, ReadOptions
from aioprefetch.source.values import FetchItem, SourceFile

T = TypeVar("T")


class Cutter(Protocol):
    """Cuts a stream of bytes into whole records; ``LineCutter`` is one."""

    begin: int
    is_done: bool

    def push(self, piece: bytes) -> Lines | None:
        """The records that this piece completes."""

    def finish(self) -> Lines | None:
        """The rest, at the end of the file."""


class LineFormat(RecordFormat):
    """A format whose records are lines. A subclass gives ``name``, ``sample`` and ``parser``.

    Its files can be compressed and split, and small ones can be parsed together.
    """

    options = frozenset({"compression", "encoding", "line_separator"})
    # Whether bytes that are not of the encoding are no error.
    replaces_invalid: ClassVar[bool] = False

    def can_split(self, file: SourceFile, options: FormatOptions) -> bool:
        """Whether lines can be found from any position of the file on."""
        if compression_of(file.key, options) != "none" or not is_line_safe(options):
            return False
        # In a run of dashes, the position of the first separator ``"--"`` depends on all bytes before it.
        return options.line_separator is None or not overlaps_itself(options.line_separator)

    def read(self, operator: Operator, item: FetchItem, want: Wanted) -> AsyncGenerator[FoundBatch, None]:
        """Cut the item into parts of whole lines, and parse each part."""
        return read_records(operator, item, want, self.cutter(item, want.options), self.parser(want, item.file.key))

    def cutter(self, item: FetchItem, options: FormatOptions) -> Cutter:
        """A new cutter of an item into whole records."""
        return line_cutter(item, options)

    @abstractmethod
    def parser(self, want: Wanted, path: str) -> ParseLines:
        """A function that parses one file, part by part from its beginning."""

    def likeness(self, data: bytes, options: FormatOptions) -> bytes | None:
        r"""A key for the structure of a small file. Files with equal keys can be parsed as one text by ``joined``.

        ``None`` if the file must be parsed alone, such as one with a line that is not a record. Lines end with ``\n``.
        A header is part of the key.
        """
        return None

    def joined(self, texts: Sequence[bytes], want: Wanted) -> JoinedRecords | None:
        """The records of files of one ``likeness``; ``None`` or an error if each must be parsed alone."""
        return None


def line_ends(options: FormatOptions, *, raw: bool = False) -> LineEnds:
    """The line ends of decoded text, or with ``raw`` the line ends of a file that is cut before it is decoded."""
    separator = options.line_separator
    if separator == "":
        raise InvalidArgument("line_separator must not be empty", operation="read_items")
    encoding = codec_name(options.encoding) if raw and is_line_safe(options) else "utf-8"
    return LineEnds(None if separator is None else separator.encode(encoding))


def line_cutter(item: FetchItem, options: FormatOptions) -> LineCutter:
    """A cutter of an item at line ends."""
    end = None if item.stop >= item.file.size else item.stop
    return LineCutter(line_ends(options, raw=True), path=item.file.key, start=item.start, end=end)


async def read_records(
    operator: Operator,
    item: FetchItem,
    want: Wanted,
    cutter: Cutter,
    parse: ParseLines,
    whole: bytes | None = None,
) -> AsyncGenerator[FoundBatch, None]:
    """The records of an item. Raises as ``RecordFormat.read`` does. Closing it early leaves no request in flight.

    ``whole`` are all bytes of the file, if they are already fetched.
    """
    check_splits(item, want.options)
    raw = pieces(operator, item, want.read.open_file, begin=cutter.begin) if whole is None else _once(whole)
    decoding = Decoding(item.file, want.options)

    def parsed(lines: Lines) -> FoundBatch | None:
        return parse(decoding.utf8(lines))

    tolerant = None if want.bad_records is None else GoodRecords(item, want, parsed)
    async with aclosing(raw), aclosing(_lines(operator, item.file, want.options, cutter, raw, decoding)) as parts:
        async for lines in parts:
            if tolerant is None:
                records = await on_thread(operator, len(lines.data), partial(parsed, lines))
            else:
                records = await operator.runtime().run_blocking(partial(tolerant.records, lines))
            if records is not None:
                for batch in in_batches(records, want.read.batch_rows):
                    yield batch


async def _once(data: bytes) -> AsyncGenerator[bytes, None]:
    yield data


async def _lines(
    operator: Operator,
    file: SourceFile,
    options: FormatOptions,
    cutter: Cutter,
    raw: AsyncGenerator[bytes, None],
    decoding: Decoding,
) -> AsyncGenerator[Lines, None]:
    """The whole records of a file in parts, for ``decoding.utf8``."""
    compression = compression_of(file.key, options)
    runtime = operator.runtime()
    stream = raw if compression == "none" else decompressed(raw, compression, file.key, runtime.run_blocking)
    async with aclosing(stream):
        async for piece in stream:
            lines = cutter.push(decoding.before(piece))
            if lines is not None:
                yield decoding.placed(lines)
            if cutter.is_done:
                return
    rest = decoding.before(b"", is_last=True)
    for lines in (cutter.push(rest) if rest else None, cutter.finish()):
        if lines is not None:
            yield decoding.placed(lines)


class Decoding:
    """Converts one file to UTF-8: its whole lines if the encoding is line-safe, otherwise the stream before the cut."""

    def __init__(self, file: SourceFile, options: FormatOptions, *, replaces: bool = False) -> None:
        self._path = file.key
        self._encoding = codec_name(options.encoding)
        safe = is_line_safe(options)
        self._replaces = replaces or getattr(format_of(file.key, options), "replaces_invalid", False)
        self._errors = "replace" if self._replaces else "strict"
        self._transcoder = None if safe else Transcoder(self._encoding, file.key, self._errors)
        self._position = 0

    def before(self, piece: bytes, *, is_last: bool = False) -> bytes:
        """The data to cut, converted if the encoding is not line-safe."""
        return piece if self._transcoder is None else self._transcoder.push(piece, is_last=is_last)

    def after(self, lines: Lines) -> Lines:
        """The cut lines as UTF-8, with their position in the file."""
        return self.utf8(self.placed(lines))

    def placed(self, lines: Lines) -> Lines:
        """The next cut lines, with their position in the file."""
        if self._transcoder is None:
            return lines
        self._position = self._position or self._transcoder.mark_bytes
        placed = Lines(lines.data, self._position, self._transcoder.length)
        self._position += self._transcoder.length(lines.data)
        return placed

    def utf8(self, lines: Lines) -> Lines:
        """Lines with their position as UTF-8."""
        if self._transcoder is not None:
            return lines
        offset, data = lines.offset, lines.data
        if offset == 0 and self._encoding == "utf-8" and data.startswith(UTF8_MARK):
            offset, data = len(UTF8_MARK), data[len(UTF8_MARK) :]
        if not self._replaces:
            utf8 = to_utf8(data, self._encoding, path=self._path, offset=offset)
        else:
            utf8 = data if self._encoding == "utf-8" else data.decode(self._encoding, "replace").encode()
        if utf8 is data:
            return Lines(data, offset)
        return Lines(utf8, offset, lambda part: len(part.decode().encode(self._encoding, self._errors)))

    def whole(self, data: bytes) -> Lines:
        """All lines of a file with these bytes."""
        return self.after(Lines(self.before(data, is_last=True), 0))


def check_splits(item: FetchItem, options: FormatOptions) -> None:
    """Raise ``InvalidArgument`` for a part of a file that cannot be split."""
    if not item.is_whole and not can_split(item.file, options):
        raise InvalidArgument(
            f"[{item.start}, {item.stop}) is a part of a file that can only be read whole, for its format, compression "
            "or encoding",
            operation="read_items",
            path=item.file.key,
        )


async def on_thread(operator: Operator, size: int, call: Callable[[], T]) -> T:
    """Run work on ``size`` bytes, on a thread if it is large."""
    return call() if size < THREAD_BYTES else await operator.runtime().run_blocking(call)


class GoodRecords:
    """Reads the records of one item without bad ones, which are found by halves, and counted in ``bad_records``.

    ``read`` is for whole records of the item. A header is no record: a file with a bad one is corrupt as a whole.
    """

    def __init__(self, item: FetchItem, want: Wanted, read: ParseLines) -> None:
        self._item = item
        self._want = want
        self._read = read
        self._needs_header = want.options.header and item.start == 0
        self._ends = line_ends(want.options, raw=True)
        self._bad_records = {} if want.bad_records is None else want.bad_records
        self._count = 0
        self._first: Exception | None = None

    def records(self, lines: Lines) -> FoundBatch | None:
        """The good records of whole lines; ``None`` without any."""
        return merged([*self._good(lines)])

    def _good(self, lines: Lines) -> Iterator[FoundBatch]:
        try:
            found = self._read(lines)
        except (UntrustedMetadata, *UNDECODABLE) as error:
            middle = self._middle(lines.data)
            if middle:
                yield from self._good(replace(lines, data=lines.data[:middle]))
                yield from self._good(replace(lines, data=lines.data[middle:], offset=lines.place(middle)))
                return
            if self._needs_header or isinstance(error, MemoryError):
                raise
            self._count += 1
            self._first = self._first or undecodable(self._item.file.key, error)
            self._bad_records[self._item] = self._count, self._first
            return
        self._needs_header = self._needs_header and not lines.data.strip()
        if found is not None:
            yield found

    def _middle(self, data: bytes) -> int:
        """The start of a record near the middle; 0 within the only one."""
        options = self._want.options
        if options.multi_line:
            starts = [start for start, _ in record_spans(data, quoting_of(options), self._ends)]
            return starts[len(starts) // 2] if len(starts) > 1 else 0
        places = (self._ends.first(data, at, is_last=True) for at in (len(data) // 2, 0))
        return next((place for place in places if place is not None and place < len(data)), 0)


# --- samples ----------------------------------------------------------------------------------------------------------

# The size of the first request for the header of a CSV file.
HEAD_BYTES = 16 << 10


async def sample_lines(
    operator: Operator, file: SourceFile, options: FormatOptions, read: ReadOptions, cutter: Cutter
) -> Lines:
    """The whole records in the first ``sample_bytes`` of a file, compressed or not. Empty for an empty file.

    ``InvalidArgument`` if the first record is longer.
    """
    raw = await beginning(operator, file, read.open_file, options.sample_bytes)
    data, is_whole = _plain(raw, file, options)
    decoding = Decoding(file, options)
    data = decoding.before(data, is_last=is_whole)
    cut = [cutter.push(data)]
    if is_whole:
        cut.append(cutter.finish())
    parts = [decoding.after(lines) for lines in cut if lines is not None]
    if not parts and not is_whole:
        raise InvalidArgument(
            f"the first record is longer than sample_bytes={options.sample_bytes}: make it larger, or give the schema",
            operation="infer_schema",
            path=file.key,
        )
    if not parts:
        return Lines(b"", 0)
    return Lines(b"".join(lines.data for lines in parts), parts[0].offset, parts[0].length)


async def first_lines(operator: Operator, file: SourceFile, want: Wanted, size: int) -> Lines:
    """The whole lines in the first ``size`` bytes of a file that can be split.

    Where bad records are left out, they may have bytes that are not of the encoding.
    """
    options = want.options
    raw = await beginning(operator, file, want.read.open_file, size)
    cutter = line_cutter(FetchItem(file), options)
    cut = [cutter.push(raw), cutter.finish() if len(raw) >= file.size else None]
    decoding = Decoding(file, options, replaces=want.bad_records is not None)
    parts = [decoding.after(lines) for lines in cut if lines is not None]
    return Lines(b"".join(lines.data for lines in parts), parts[0].offset, parts[0].length) if parts else Lines(b"", 0)


def _plain(raw: bytes, file: SourceFile, options: FormatOptions) -> tuple[bytes, bool]:
    """The decompressed beginning of a file, and whether it is the whole file."""
    compression = compression_of(file.key, options)
    if compression == "none":
        return raw, len(raw) >= file.size
    stream = decompressor(compression, file.key)
    stream.feed(raw)
    parts: list[bytes] = []
    size = 0
    while size < options.sample_bytes:
        output = stream.take()
        if not output:
            if len(raw) >= file.size:
                stream.finish()
                return b"".join(parts), True
            break
        parts.append(output)
        size += len(output)
    return b"".join(parts)[: options.sample_bytes], False


# --- small files ------------------------------------------------------------------------------------------------------

# Larger files take longer to parse than pyarrow takes to start.
SMALL_BYTES_MAX = 64 << 10


@dataclass(frozen=True, slots=True)
class SmallText:
    """A small file as UTF-8, whose lines are records. Files of one ``likeness`` can be parsed together."""

    data: bytes
    likeness: tuple[str, bytes]

    @property
    def nbytes(self) -> int:
        """The size of the text in memory. Its parsed rows take about as much."""
        return len(self.data)


class SmallFiles:
    """Reads and parses the small files among the items of one task."""

    def __init__(self, operator: Operator, want: Wanted) -> None:
        self._operator = operator
        self._want = want

    def suits(self, item: FetchItem) -> bool:
        """Whether an item is the whole of a small file of lines. Bad ones are left out of each file by itself."""
        options, file = self._want.options, item.file
        return (
            self._want.bad_records is None
            and file.size <= SMALL_BYTES_MAX
            and comes_whole(file)
            and item.is_whole
            and options.line_separator in (None, "\n")
            and not options.multi_line
            and isinstance(format_of(file.key, options), LineFormat)
        )

    async def read(self, item: FetchItem) -> AsyncGenerator[SmallText | FoundBatch, None]:
        """The text of a file, to be parsed together with others, or its records if it must be parsed alone."""
        file, want = item.file, self._want
        line_format = self._format(file)
        raw = await read_whole(self._operator, file, want.read.open_file)
        compression = compression_of(file.key, want.options)
        data = raw if compression == "none" else decompressed_whole(raw, compression, file.key, WHOLE_BYTES_MAX)
        if data is None:
            cutter, parse = line_format.cutter(item, want.options), line_format.parser(want, file.key)
            async with aclosing(read_records(self._operator, item, want, cutter, parse, raw)) as batches:
                async for batch in batches:
                    yield batch
            return
        lines = Decoding(file, want.options).whole(data)
        if not lines.data:
            return
        if len(lines.data) <= SMALL_BYTES_MAX and not lines.offset and lines.length is len:
            likeness = line_format.likeness(lines.data, want.options)
            if likeness is not None:
                yield SmallText(lines.data, (line_format.name, likeness))
                return
        parsed = await on_thread(self._operator, len(lines.data), partial(self._alone, file, lines))
        if parsed is not None:
            for batch in in_batches(parsed, want.read.batch_rows):
                yield batch

    def together(self, files: Sequence[SourceFile], texts: Sequence[SmallText]) -> JoinedRecords | None:
        """The records of files of one likeness; ``None`` if each must be parsed alone."""
        if len(texts) < 2:
            return None
        try:
            return self._format(files[0]).joined([text.data for text in texts], self._want)
        except (Error, *UNDECODABLE):
            return None

    def alone(self, file: SourceFile, text: SmallText) -> FoundBatch | None:
        """The records of one file. Raises as ``RecordFormat.read`` does."""
        return self._alone(file, Lines(text.data, 0))

    def _alone(self, file: SourceFile, lines: Lines) -> FoundBatch | None:
        return self._format(file).parser(self._want, file.key)(lines)

    def _format(self, file: SourceFile) -> LineFormat:
        return cast("LineFormat", format_of(file.key, self._want.options))

"""Records of CSV and JSON as they stand in their files, in a column of bytes, for a parser that gives them meaning.

Blank lines, lines of comments and headers are no records. Bytes that are not of the encoding are no error here: those
that should be UTF-8 stay, others become the replacement character.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from aioprefetch.errors import Unsupported
from aioprefetch.operator.operator import Operator
from aioprefetch.source.formats.corruption import corrupt, shown
from aioprefetch.source.formats.csv_records import RecordCutter, has_blank, quoting_of, record_spans, split_record
from aioprefetch.source.formats.line_stream import (
    HEAD_BYTES,
    Cutter,
    LineFormat,
    first_lines,
    line_cutter,
    line_ends,
    read_records,
    sample_lines,
)
from aioprefetch.source.formats.record_format import FoundBatch, Wanted
from aioprefetch.source.formats.records import (
    JoinedRecords,
    Lines,
    ParseLines,
    WholeCutter,
    line_starts,
    parse_joined,
    split_lines,
    starts_of,
)
from aioprefetch.source.options import FormatOptions, ReadOptions
from aioprefetch.source.values import FetchItem, SourceFile

RECORD_COLUMN = "_record"
RECORD_SCHEMA = pa.schema([(RECORD_COLUMN, pa.binary())])

_BLANKS = {"csv-records": "".join(map(chr, range(33))), "json-records": " \t\r\n"}


class RecordTexts(LineFormat):
    """Each record is one value: a line, or with ``multi_line`` what ``cutter`` makes one."""

    options = LineFormat.options | {"multi_line"}
    replaces_invalid = True

    def has_column_names(self, options: FormatOptions) -> bool:
        return False

    def can_split(self, file: SourceFile, options: FormatOptions) -> bool:
        return not options.multi_line and super().can_split(file, options)

    async def sample(
        self, operator: Operator, file: SourceFile, options: FormatOptions, read: ReadOptions
    ) -> pa.Schema:
        """The schema of one column of bytes, without I/O."""
        return RECORD_SCHEMA

    async def sample_texts(
        self, operator: Operator, file: SourceFile, options: FormatOptions, read: ReadOptions
    ) -> pa.BinaryArray:
        """The records in the first ``sample_bytes`` of a file; its header, if it has one, is the first of them."""
        lines = await sample_lines(operator, file, options, read, self.cutter(FetchItem(file), options))
        found = _Records(self, Wanted(RECORD_SCHEMA, options, read), file.key, has_header=False).records(lines)
        return pa.array([], pa.binary()) if found is None else found.batch.column(0)

    async def read(self, operator: Operator, item: FetchItem, want: Wanted) -> AsyncGenerator[FoundBatch, None]:
        """Cut the item into records."""
        has_header = want.options.header and await self._has_header(operator, item, want)
        parse = _Records(self, want, item.file.key, has_header=has_header).records
        cutter = self.cutter(item, want.options)
        async with aclosing(read_records(operator, item, want, cutter, parse)) as batches:
            async for batch in batches:
                yield batch

    async def _has_header(self, operator: Operator, item: FetchItem, want: Wanted) -> bool:
        """Whether the first record of the file is in the item. Blank lines and comments may stand before it."""
        if not 0 < item.start < HEAD_BYTES:
            return item.start == 0
        head = await first_lines(operator, item.file, want, HEAD_BYTES)
        found = _Records(self, replace(want, offsets=True), item.file.key, has_header=False).records(head)
        return found is not None and found.offsets is not None and found.offsets[0].as_py() >= item.start

    def parser(self, want: Wanted, path: str) -> ParseLines:
        return _Records(self, want, path, has_header=want.options.header).records

    def likeness(self, data: bytes, options: FormatOptions) -> bytes | None:
        has_gaps = b"\r" in data or b"\n\n" in data or data.startswith(b"\n") or has_blank(data)
        if has_gaps or (options.comment is not None and options.comment.encode() in data):
            return None
        return data[: data.find(b"\n") + 1] or None if options.header else b""

    def joined(self, texts: Sequence[bytes], want: Wanted) -> JoinedRecords | None:
        header_bytes = texts[0].find(b"\n") + 1 if want.options.header else 0
        if header_bytes and _header_names(want):
            return None  # Each header is checked.
        return parse_joined(texts, _Records(self, want, "", has_header=False).records, header_bytes=header_bytes)


class CsvTexts(RecordTexts):
    """Records of CSV. Without ``multi_line`` each line is a record, and quotes mean nothing."""

    name = "csv-records"
    options = RecordTexts.options | {"header", "delimiter", "quote", "escape", "comment"}

    def cutter(self, item: FetchItem, options: FormatOptions) -> Cutter:
        if not options.multi_line:
            return line_cutter(item, options)
        return RecordCutter(quoting_of(options), path=item.file.key, is_lenient=True)


class JsonTexts(RecordTexts):
    """Records of JSON: each line, or with ``multi_line`` each file."""

    name = "json-records"

    def cutter(self, item: FetchItem, options: FormatOptions) -> Cutter:
        return WholeCutter(path=item.file.key) if options.multi_line else line_cutter(item, options)


def _header_names(want: Wanted) -> list[str]:
    """The names that headers have to have, if any."""
    return [] if want.known is None else [name for name in want.known.names if name != RECORD_COLUMN]


class _Records:
    """The records of one item, part by part."""

    def __init__(self, record_format: RecordTexts, want: Wanted, path: str, *, has_header: bool) -> None:
        self._format = record_format
        self._want = want
        self._options = want.options
        self._path = path
        self._skips_header = has_header
        self._ends = line_ends(want.options)

    def records(self, lines: Lines) -> FoundBatch | None:
        """The records of whole lines; ``None`` without any."""
        texts, starts = self._split(lines)
        kept = self._kept(lines, texts)
        if kept is not None:
            texts, starts = texts.filter(kept), None if starts is None else starts.filter(kept)
        if self._skips_header and len(texts):
            self._skips_header = False
            self._check_header(texts[0].as_py(), lines.offset)
            texts, starts = texts.slice(1), None if starts is None else starts.slice(1)
        if not len(texts):
            return None
        return FoundBatch(pa.RecordBatch.from_arrays([texts], [RECORD_COLUMN]), starts)

    def _split(self, lines: Lines) -> tuple[pa.BinaryArray, pa.Int64Array | None]:
        if not self._options.multi_line:
            starts = line_starts(lines, self._ends) if self._want.offsets else None
            return split_lines(lines.data, self._ends, pa.binary()), starts
        spans = [(0, len(lines.data))]
        if self._format.name == CsvTexts.name:
            spans = record_spans(lines.data, quoting_of(self._options), self._ends)
        texts = pa.array([lines.data[start:stop] for start, stop in spans], pa.binary())
        return texts, starts_of(lines, [start for start, _ in spans]) if self._want.offsets else None

    def _kept(self, lines: Lines, texts: pa.BinaryArray) -> pa.BooleanArray | None:
        """The texts that are records; ``None`` if all are."""
        kept: npt.NDArray[np.bool_] | None = None
        if has_blank(lines.data) or pc.min(pc.binary_length(texts)).as_py() == 0:
            trimmed = pc.ascii_trim(texts.view(pa.string()), _BLANKS[self._format.name])
            kept = pc.greater(pc.binary_length(trimmed), 0).to_numpy(zero_copy_only=False)
        comment = (self._options.comment or "").encode()
        if comment and comment in lines.data:
            others = ~pc.starts_with(texts, comment).to_numpy(zero_copy_only=False)
            kept = others if kept is None else kept & others
        return None if kept is None or kept.all() else pa.array(kept)

    def _check_header(self, header: bytes, offset: int) -> None:
        """Under ``enforceSchema=false`` the fields of the files are known, and the header has to have their names."""
        wanted = _header_names(self._want)
        names = split_record(header, self._options) if wanted else []
        if [*map(str.lower, names)] != [*map(str.lower, wanted)]:
            raise corrupt(
                f"the header is {shown(', '.join(names))}, and enforceSchema=false wants {shown(', '.join(wanted))}",
                path=self._path,
                offset=offset,
            )


def texts_format(record_format: object) -> RecordTexts:
    """A format as one of records. ``Unsupported`` for another one."""
    if not isinstance(record_format, RecordTexts):
        raise Unsupported("records as text are those of CSV and JSON", operation="read_items")
    return record_format

"""CSV, parsed by pyarrow part by part under the column types of the wanted schema.

Without ``multi_line`` each line that is not blank is a record, and files can be split. A quoted field with a line break
is then an error, wherever parts end.
"""

from __future__ import annotations

import csv
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from aioprefetch.operator.operator import Operator
from aioprefetch.source.files import FetchItem, SourceFile
from aioprefetch.source.formats.conversion import NotConvertible, from_text
from aioprefetch.source.formats.corruption import corrupt
from aioprefetch.source.formats.csv_layout import CsvLayout, check_options, check_unknown, layout_of
from aioprefetch.source.formats.csv_parts import CsvParts, nulls_in
from aioprefetch.source.formats.csv_records import Quoting, RecordCutter, first_record, has_blank, without_blank
from aioprefetch.source.formats.line_stream import (
    HEAD_BYTES,
    Cutter,
    LineFormat,
    first_lines,
    line_cutter,
    line_ends,
    on_thread,
    read_records,
    sample_lines,
)
from aioprefetch.source.formats.lines import Lines
from aioprefetch.source.formats.record_format import FoundBatch, Wanted
from aioprefetch.source.formats.records import JoinedRecords, ParseLines, parse_joined
from aioprefetch.source.options import FormatOptions, ReadOptions


class CsvFormat(LineFormat):
    """CSV files. With a header, columns are matched by name."""

    name = "csv"
    options = LineFormat.options | {"header", "delimiter", "quote", "escape", "null_value", "multi_line"}
    is_textual = True

    def has_column_names(self, options: FormatOptions) -> bool:
        return options.header

    def can_split(self, file: SourceFile, options: FormatOptions) -> bool:
        return not options.multi_line and super().can_split(file, options)

    async def sample(
        self, operator: Operator, file: SourceFile, options: FormatOptions, read: ReadOptions
    ) -> pa.Schema:
        lines = await sample_lines(operator, file, options, read, self.cutter(FetchItem(file), options))
        layout = _layout_in(lines, options, None, file.key)
        if layout is None:
            return pa.schema([])
        return await on_thread(
            operator, len(lines.data), partial(infer_csv, lines, layout, options, _quoting(options), file.key)
        )

    async def read(self, operator: Operator, item: FetchItem, want: Wanted) -> AsyncGenerator[FoundBatch, None]:
        cutter, path = self.cutter(item, want.options), item.file.key
        layout = None
        if item.start > 0:
            layout = await _layout_of_head(operator, item.file, want)
            if layout is None:
                return
        async with aclosing(read_records(operator, item, want, cutter, _parser(want, path, layout))) as batches:
            async for batch in batches:
                yield batch

    def cutter(self, item: FetchItem, options: FormatOptions) -> Cutter:
        quoting = _quoting(options)
        if options.multi_line:
            return RecordCutter(quoting, path=item.file.key)
        return line_cutter(item, options)

    def parser(self, want: Wanted, path: str) -> ParseLines:
        return _parser(want, path, None)

    def likeness(self, data: bytes, options: FormatOptions) -> bytes | None:
        # The key is the header or, without a header, the number of columns.
        if (
            b"\r" in data
            or b"\n\n" in data
            or data.startswith(b"\n")
            or _quoting(options).hides(data)
            or has_blank(data)
        ):
            return None
        first = data[: data.find(b"\n") + 1]
        if not first:
            return None
        return first if options.header else b"%d" % first.count(options.delimiter.encode())

    def joined(self, texts: Sequence[bytes], want: Wanted) -> JoinedRecords | None:
        layout = _layout_in(Lines(texts[0], 0), want.options, want, "")
        if layout is None or (want.options.unknown_fields == "warn" and layout.unknown(want)):
            return None  # Parsed alone, since warnings name the file.
        parts = _parts(CsvLayout(layout.names, 0), want, "", is_first=False)
        return parse_joined(texts, parts.records, header_bytes=layout.header_stop + 1 if layout.header_stop else 0)


async def _layout_of_head(operator: Operator, file: SourceFile, want: Wanted) -> CsvLayout | None:
    """The layout from the head of the file, which lies before the item. Costs another small request."""
    head = HEAD_BYTES
    while True:
        lines = await first_lines(operator, file, want.options, want.read, head)
        layout = _layout_in(lines, want.options, want, file.key)
        if layout is not None or head >= file.size:
            return layout
        head *= 8


def _quoting(options: FormatOptions) -> Quoting:
    check_options(options)
    return Quoting(
        delimiter=options.delimiter, quote=options.quote, escape=options.escape, multi_line=options.multi_line
    )


def _parts(layout: CsvLayout, want: Wanted, path: str, *, is_first: bool) -> CsvParts:
    check_unknown(layout, want, path=path, is_first=is_first)
    return CsvParts(layout, want, _quoting(want.options), line_ends(want.options), path)


def _parser(want: Wanted, path: str, layout: CsvLayout | None) -> ParseLines:
    """A parser of the parts of a file. Without ``layout`` the first record defines it."""
    parts = None if layout is None else _parts(layout, want, path, is_first=False)

    def parse(lines: Lines) -> FoundBatch | None:
        nonlocal parts
        if parts is None:
            file_layout = _layout_in(lines, want.options, want, path)
            if file_layout is None:  # All lines are empty.
                return None
            parts = _parts(file_layout, want, path, is_first=True)
        return parts.records(lines)

    return parse


def _layout_in(lines: Lines, options: FormatOptions, want: Wanted | None, path: str) -> CsvLayout | None:
    """The layout defined by the first record in the first lines of a file; ``None`` if they are blank."""
    lines, quoting = without_blank(lines, options), _quoting(options)
    span = first_record(lines.data, options, quoting)
    if span is None:
        return None
    start, stop = span
    first = lines.data[start:stop]
    fault = quoting.fault(first)
    if fault is not None:
        raise corrupt(fault[1], path=path, offset=lines.place(start + fault[0]))
    try:
        return layout_of(first, lines.place(stop), options, quoting, want, path)
    except csv.Error as error:
        raise corrupt(f"no CSV: {error}", path=path, offset=lines.place(start)) from error


_ZEROS_IN_FRONT = re.compile(r"^([+-]?)0+(?=[0-9])")
_INTEGER = r"^\s*[+-]?[0-9]+\s*$"
_DECIMAL_DIGITS_MAX = 38
_CANDIDATES = (pa.float64(), pa.bool_(), pa.date32(), pa.timestamp("us", "UTC"))


def infer_csv(lines: Lines, layout: CsvLayout, options: FormatOptions, quoting: Quoting, path: str) -> pa.Schema:
    """The schema of whole records: long (decimal if longer), double, boolean, date, timestamp, otherwise string.

    A column without values has the type null, since other files may have values. Raises as a read of texts does.
    """
    schema = pa.schema([(name, pa.string()) for name in layout.names])
    parts = CsvParts(layout, Wanted(schema, options, ReadOptions()), quoting, line_ends(options), path)
    records = parts.records(lines)
    if records is None:
        return pa.schema([(name, pa.null()) for name in layout.names])
    columns = zip(layout.names, records.batch.columns, strict=True)
    return pa.schema([(name, _kind(texts, options.null_value)) for name, texts in columns])


def _kind(texts: pa.StringArray, null_value: str) -> pa.DataType:
    values = pc.unique(pc.drop_null(nulls_in(texts, null_value)))
    if not len(values):
        return pa.null()
    if pc.all(pc.match_substring_regex(values, _INTEGER)).as_py():
        return _whole_number(values.to_pylist())
    return next((kind for kind in _CANDIDATES if _fits(values, kind)), pa.string())


def _whole_number(texts: list[str]) -> pa.DataType:
    # Python refuses integers of thousands of digits, and counts leading zeros.
    numbers = [_ZEROS_IN_FRONT.sub(r"\1", text.strip()) for text in texts]
    digits = max(len(number.lstrip("+-")) for number in numbers)
    if digits > _DECIMAL_DIGITS_MAX:
        return pa.string()
    is_long = all(-(1 << 63) <= int(number) < 1 << 63 for number in numbers)
    return pa.int64() if is_long else pa.decimal128(digits, 0)


def _fits(values: pa.StringArray, kind: pa.DataType) -> bool:
    try:
        for text in values.to_pylist():
            from_text(text, kind, "")
    except NotConvertible:
        return False
    return True

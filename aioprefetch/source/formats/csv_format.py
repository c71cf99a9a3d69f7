"""CSV, parsed by pyarrow part by part under the column types of the wanted schema, or column by column if that fails.

Without ``multi_line`` each line that is not blank is a record, and files can be split. A quoted field with a line break
is then an error, wherever parts end.
"""

from __future__ import annotations

import csv
import re
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv

from aioprefetch.errors import ConfigInvalid
from aioprefetch.operator.operator import Operator
from aioprefetch.source.columns.casts import (
    CannotCast,
    cast_plain,
    has_far_offset,
    instants,
    note_local,
    warn_of_no_zone,
    zone_of,
)
from aioprefetch.source.differences import searches, warn_of_difference
from aioprefetch.source.formats.conversion import NotConvertible, first_unfit, from_text, json_text, unfit
from aioprefetch.source.formats.corruption import UNDECODABLE, corrupt
from aioprefetch.source.formats.csv_records import (
    PIECE_BYTES,
    CsvLayout,
    Quoting,
    RecordCutter,
    check_options,
    check_unknown,
    first_record,
    has_blank,
    layout_of,
    quoting_of,
    ragged,
    record_spans,
    without_blank,
)
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
from aioprefetch.source.formats.record_format import FoundBatch, Wanted
from aioprefetch.source.formats.records import (
    JoinedRecords,
    LineEnds,
    Lines,
    ParseLines,
    count_lines,
    has_infinity,
    is_narrow,
    line_starts,
    only_batch,
    only_chunk,
    parse_joined,
    split_lines,
    starts_of,
)
from aioprefetch.source.options import FormatOptions, ReadOptions
from aioprefetch.source.values import FetchItem, SourceFile

_TRUE, _FALSE = ["true", "True", "TRUE"], ["false", "False", "FALSE"]
# pyarrow reads these types as integers.
_HEX = r"0[xX]"


class CsvParts:
    """Parses the parts of one item."""

    def __init__(self, layout: CsvLayout, want: Wanted, quoting: Quoting, ends: LineEnds, path: str) -> None:
        self._layout = layout
        self._want = want
        self._options = options = want.options
        self._quoting = quoting
        self._ends = ends
        self._path = path
        self._fields = layout.wanted(want)
        self._unknown = layout.unknown(want) if options.unknown_fields == "rescue" else []
        self._zone = zone_of(options)
        self._zoned: set[str] = set()
        # An empty quoted text is not a null under these options.
        self._has_text = bool(self._unknown) or any(_keeps_text(field.type) for field in self._fields)
        self._has_integers = any(pa.types.is_integer(field.type) for field in self._fields)
        self._parse = pv.ParseOptions(
            delimiter=options.delimiter,
            quote_char=options.quote or False,
            double_quote=options.quote is not None,
            escape_char=False,
            newlines_in_values=options.multi_line,
            invalid_row_handler=self._note_ragged,
        )
        self._ragged: tuple[int, int, int] | None = None
        self._is_searched = False

    def records(self, lines: Lines) -> FoundBatch | None:
        """The records of whole lines without the header; ``None`` without any record."""
        lines = without_blank(lines, self._options)
        if lines.offset < self._layout.header_stop:
            lines = self._without_header(lines)
        data = self._plain(lines)
        self._check_quotes(lines, data)
        self._note_differences(data)
        data = self._quoting.doubled(data)
        if not data or data.isspace():
            data = data.strip(b"\r\n")
            if not data:
                return None
        if not data.endswith((b"\n", b"\r")):  # Without a line end pyarrow takes an empty last field for a quoted one.
            data += b"\n"
        table = self._fast(data)
        if table is None or not self._is_complete(table, data):
            table = self._slow(lines, data)
        batch = only_batch(table)
        unknown = _rescued(batch.select(self._unknown)) if self._options.unknown_fields == "rescue" else None
        offsets = self._starts(lines) if self._want.offsets else None
        return FoundBatch(batch.select([field.name for field in self._fields]), offsets, unknown)

    def _note_differences(self, data: bytes) -> None:
        """Warn of what Spark's own reader reads otherwise. Only the first lines of some items are searched."""
        if self._is_searched or next(searches(), None) is None:
            return
        self._is_searched, data = True, data[:PIECE_BYTES]
        options = self._options
        quote, escaped = (options.quote or "").encode(), re.escape((options.quote or "").encode())
        delimiter = re.escape(options.delimiter.encode())
        start, end = rb"(?m)(?:^|%b)" % delimiter, rb"(?:$|[%b\r])" % delimiter
        doubled = rb"[^%b\n\r]%b{2}" % (delimiter, escaped)
        if self._has_text and quote and quote * 2 in data and options.escape is None and re.search(doubled, data):
            warn_of_difference("quotes")
        null = quote + options.null_value.encode() + quote
        if self._has_text and quote and null in data and re.search(start + re.escape(null) + end, data):
            warn_of_difference("nulls")
        if self._has_integers and b" " in data and re.search(start + rb"(?: +[+-]?\d+ *|[+-]?\d+ +)" + end, data):
            warn_of_difference("blanks")

    # --- at once ------------------------------------------------------------------------------------------------

    def _fast(self, data: bytes) -> pa.Table | None:
        kinds = {field.name: self._read_as(field) for field in self._fields}
        if self._has_integers and _may_have_hex(data):
            return None
        try:
            table = self._read(data, kinds, quoted_nulls=not self._has_text)
            return self._as_wanted(table)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, CannotCast):
            return None

    def _as_wanted(self, table: pa.Table) -> pa.Table:
        for field in self._fields:
            index = table.schema.get_field_index(field.name)
            if pa.types.is_decimal(field.type):
                texts = nulls_in(only_chunk(table.column(index)), self._options.null_value)
                table = table.set_column(index, field.name, cast_plain(pc.ascii_trim_whitespace(texts), field.type))
            elif is_narrow(field.type) and has_infinity(only_chunk(table.column(index))):
                raise CannotCast(f"{field.name} has an infinity, or what is too large")
            elif pa.types.is_timestamp(field.type) and table.schema.field(index).type != field.type:
                times = [instants(chunk, field.type, self._zone) for chunk in table.column(index).chunks]
                if self._options.time_zone is None and table.column(index).null_count < table.num_rows:
                    warn_of_no_zone()
                table = table.set_column(index, field.name, pa.chunked_array(times, field.type))
        return table

    def _read_as(self, field: pa.Field) -> pa.DataType:
        """The type to read a field as.

        pyarrow reads times either with or without offsets; decimals are read as texts and cast.
        """
        kind = field.type
        if pa.types.is_nested(kind):
            raise ConfigInvalid(f"the column {field.name!r} cannot be a {kind} in CSV", operation="read_items")
        if pa.types.is_decimal(kind):
            return pa.string()
        if pa.types.is_timestamp(kind) and kind.tz is not None and field.name not in self._zoned:
            return pa.timestamp(kind.unit)
        return kind

    def _read(self, data: bytes, kinds: dict[str, pa.DataType], *, quoted_nulls: bool) -> pa.Table:
        names = [*kinds, *self._unknown] or [self._layout.names[0]]
        return pv.read_csv(
            pa.BufferReader(data),
            pv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=self._layout.names),
            self._parse,
            pv.ConvertOptions(
                check_utf8=False,
                column_types={name: kinds.get(name, pa.string()) for name in names},
                include_columns=names,
                null_values=[self._options.null_value, ""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=quoted_nulls,
                true_values=_TRUE,
                false_values=_FALSE,
            ),
        )

    # --- column by column ---------------------------------------------------------------------------------------

    def _slow(self, lines: Lines, data: bytes) -> pa.Table:
        """Read all columns as texts, and convert each by itself.

        The first value that does not fit is raised with its position.
        """
        self._ragged = None
        try:
            table = self._read(data, {field.name: pa.string() for field in self._fields}, quoted_nulls=False)
        except pa.ArrowInvalid as error:
            raise self._unparsable(lines, error) from error
        starts = self._starts(lines)
        if table.num_rows != len(starts):
            raise corrupt("records and lines do not go together", path=self._path, offset=lines.offset)
        for field in self._fields:
            index = table.schema.get_field_index(field.name)
            texts = self._converted(only_chunk(table.column(index)), field, starts)
            table = table.set_column(index, field.name, texts)
        return table

    def _converted(self, texts: pa.StringArray, field: pa.Field, starts: pa.Int64Array) -> pa.Array:
        kind = field.type
        if _keeps_text(kind):
            return texts.cast(kind)
        texts = nulls_in(texts, self._options.null_value)
        if pa.types.is_timestamp(kind) and kind.tz is not None:
            note_local(texts, self._options)
        converted = self._column_at_once(texts, field)
        if converted is not None:
            return converted
        values: list[Any] = []
        for index, text in enumerate(texts.to_pylist()):
            try:
                values.append(None if text is None else from_text(text, kind, field.name, self._zone))
            except NotConvertible as error:
                raise unfit(error, path=self._path, offset=starts[index].as_py()) from error
        try:
            return pa.array(values, kind)
        except UNDECODABLE as error:
            place = first_unfit(values, kind)
            if place is None:
                raise
            misfit = NotConvertible(field.name, texts[place].as_py(), kind)
            raise unfit(misfit, path=self._path, offset=starts[place].as_py()) from error

    def _column_at_once(self, texts: pa.StringArray, field: pa.Field) -> pa.Array | None:
        """The column as pyarrow casts it; ``None`` if the cast fails or may change a value."""
        kind = field.type
        if pa.types.is_boolean(kind):
            return None
        if pa.types.is_integer(kind) and pc.any(pc.match_substring_regex(texts, _HEX)).as_py():
            return None
        is_instant = pa.types.is_timestamp(kind) and kind.tz is not None
        if is_instant and has_far_offset(texts):
            return None
        try:
            column = cast_plain(texts, kind) if pa.types.is_decimal(kind) else texts.cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, CannotCast):
            return None
        if is_narrow(kind) and has_infinity(column):
            return None
        if is_instant:
            self._zoned.add(field.name)  # All values have an offset, so the next part is read that way at once.
        return column

    def _unparsable(self, lines: Lines, error: Exception) -> Exception:
        if self._ragged is None:
            return corrupt(f"no CSV: {error}", path=self._path, offset=lines.offset)
        index, expected, actual = self._ragged
        return ragged(expected, actual, path=self._path, offset=self._starts(lines)[index].as_py())

    def _note_ragged(self, row: pv.InvalidRow) -> str:
        if self._ragged is None:
            self._ragged = ((row.number or 1) - 1, row.expected_columns, row.actual_columns)
        return "error"

    # --- lines --------------------------------------------------------------------------------------------------

    def _without_header(self, lines: Lines) -> Lines:
        span = first_record(lines.data, self._options, self._quoting)
        if span is None:
            return lines
        return Lines(lines.data[span[1] :], lines.place(span[1]), lines.length)

    def _plain(self, lines: Lines) -> bytes:
        """The data with line ends that pyarrow knows."""
        separator, data = self._ends.separator, lines.data
        if separator is None:
            return data
        rest = data.replace(separator, b"")
        if b"\n" in rest or b"\r" in rest:
            raise corrupt(
                f"with line_separator={separator.decode()!r} a record has another line break in it",
                path=self._path,
                offset=lines.offset,
            )
        return data.replace(separator, b"\n")

    def _is_complete(self, table: pa.Table, data: bytes) -> bool:
        """Whether each non-empty line became a record. If not, a quoted field hid line ends from pyarrow.

        With ``multi_line`` this is always true, since parts end where records end.
        """
        if self._options.multi_line or not self._quoting.hides(data):
            return True
        rows: int = table.num_rows
        if b"\r" not in data and rows == count_lines(data):
            return True
        texts = split_lines(data, LineEnds(None))
        return rows == (pc.sum(pc.greater(pc.binary_length(texts), 0)).as_py() or 0)

    def _starts(self, lines: Lines) -> pa.Int64Array:
        """The position in the file of each record."""
        if self._options.multi_line:
            return starts_of(lines, [start for start, _ in record_spans(lines.data, self._quoting, self._ends)])
        return line_starts(lines, self._ends, with_empty=False)

    def _check_quotes(self, lines: Lines, data: bytes) -> None:
        """Raise for a malformed or ambiguous quote that pyarrow might accept.

        ``data`` are the lines with plain ends.
        """
        fault = self._quoting.fault(data)
        if fault is None:
            return
        place, message = fault
        more = len(self._ends.separator or b"\n") - 1
        raise corrupt(message, path=self._path, offset=lines.place(place + more * data.count(b"\n", 0, place)))


def _may_have_hex(data: bytes) -> bool:
    """Whether the data have ``0x`` or ``0X``. numpy finds two bytes many times as fast as ``in``, except in new memory.

    The data are searched in pieces, each with the first byte of the next one.
    """
    if b"x" not in data and b"X" not in data:
        return False
    view = np.frombuffer(data, np.uint8)
    pieces = (view[start : start + PIECE_BYTES + 1] for start in range(0, len(data), PIECE_BYTES))
    return any(((piece[:-1] == ord("0")) & ((piece[1:] | 0x20) == ord("x"))).any() for piece in pieces)


def nulls_in(texts: pa.StringArray, null_value: str) -> pa.StringArray:
    """The texts of a column, with nulls in place of ``null_value``."""
    return pc.if_else(pc.is_in(texts, pa.array([null_value, ""])), None, texts)


def _keeps_text(kind: pa.DataType) -> bool:
    types = pa.types
    is_text = types.is_string(kind) or types.is_large_string(kind)
    return bool(is_text or types.is_binary(kind) or types.is_large_binary(kind))


def _rescued(batch: pa.RecordBatch) -> pa.StringArray:
    """The unknown columns of each record as a JSON text."""

    def texts() -> Iterator[str | None]:
        for row in batch.to_pylist():
            fields = {name: value for name, value in row.items() if value is not None}
            yield json_text(fields) if fields else None

    return pa.array(list(texts()), pa.string()) if batch.num_columns else pa.nulls(batch.num_rows, pa.string())


# --- the format -------------------------------------------------------------------------------------------------------


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
        if not options.infer_types:
            return pa.schema([(name, pa.string()) for name in layout.names])
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
        if want.bad_records is not None and want.options.multi_line:
            cutter = RecordCutter(_quoting(want.options), path=path, is_lenient=True)
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
        lines = await first_lines(operator, file, want, head)
        layout = _layout_in(lines, want.options, want, file.key)
        if layout is not None or head >= file.size:
            return layout
        head *= 8


def _quoting(options: FormatOptions) -> Quoting:
    check_options(options)
    return quoting_of(options)


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


# --- the schema of a sample -------------------------------------------------------------------------------------------

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

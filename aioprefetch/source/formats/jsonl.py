"""JSON lines: each line that is not blank is a record, which is a JSON object.

pyarrow parses a part of the file at once with an explicit schema, so types do not depend on where parts are cut. A part
that it refuses, or would read differently, is read line by line (``conversion``), with exact errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from aioprefetch.errors import ConfigInvalid
from aioprefetch.operator.operator import Operator
from aioprefetch.source.columns.casts import in_256_bits, local_times, parsed_instants, warn_of_no_zone, zone_of
from aioprefetch.source.formats.conversion import is_unicode, parse_record, read_rows
from aioprefetch.source.formats.corruption import corrupt, warn_of_unknown
from aioprefetch.source.formats.line_stream import Cutter, LineFormat, line_cutter, line_ends, on_thread, sample_lines
from aioprefetch.source.formats.record_format import FoundBatch, Wanted
from aioprefetch.source.formats.records import (
    JoinedRecords,
    LineEnds,
    Lines,
    ParseLines,
    has_infinity,
    is_narrow,
    line_starts,
    only_batch,
    parse_joined,
    split_lines,
)
from aioprefetch.source.options import FormatOptions, ReadOptions
from aioprefetch.source.values import FetchItem, SourceFile


class JsonLinesFormat(LineFormat):
    """Each line that is not blank is a JSON object."""

    name = "jsonl"
    is_textual = True

    async def sample(
        self, operator: Operator, file: SourceFile, options: FormatOptions, read: ReadOptions
    ) -> pa.Schema:
        ends = line_ends(options)
        lines = await sample_lines(operator, file, options, read, self.cutter(FetchItem(file), options))
        return await on_thread(operator, len(lines.data), partial(infer_json, lines, ends, file.key))

    def cutter(self, item: FetchItem, options: FormatOptions) -> Cutter:
        if options.multi_line:
            raise ConfigInvalid(
                "multi_line is for csv: in JSON lines each record is one line",
                operation="read_items",
                path=item.file.key,
            )
        return line_cutter(item, options)

    def parser(self, want: Wanted, path: str) -> ParseLines:
        return JsonParts(want, line_ends(want.options), path).records

    def likeness(self, data: bytes, options: FormatOptions) -> bytes | None:
        return b"" if one_object_a_line(data) else None

    def joined(self, texts: Sequence[bytes], want: Wanted) -> JoinedRecords | None:
        return parse_joined(texts, JsonParts(want, line_ends(want.options), "").at_once)


# A column that no record has: without columns pyarrow does not count rows.
_NO_COLUMN = pa.schema([("", pa.bool_())])


class JsonParts:
    """Parses the parts of one item."""

    def __init__(self, want: Wanted, ends: LineEnds, path: str) -> None:
        self._want = want
        self._ends = ends
        self._path = path
        self._zone = zone_of(want.options)
        # Times in a zone other than UTC are read as texts.
        self._local = [field for field in want.schema if self._zone is not UTC and _is_instant(field.type)]
        # Only the first part is checked.
        self._local_times = local_times(want.schema) if want.options.time_zone is None else None
        self._drops_unknown = want.options.drops_unknown
        self._warns_of_unknown = want.options.unknown_fields == "warn"
        read = want.schema if self._drops_unknown else want.known_fields
        for field in self._local:
            read = read.set(read.get_field_index(field.name), pa.field(field.name, pa.string()))
        read = pa.schema([field.with_type(in_256_bits(field.type)) for field in read])
        # Decimals that are read as wider ones and cast with a check.
        self._wide = [field for field in want.schema if in_256_bits(field.type) != field.type]
        self._is_direct = all(
            _is_direct(field.type, self._zone is UTC) for field in want.schema if field not in self._local
        )
        self._narrow = [place for place, field in enumerate(want.schema) if is_narrow(field.type)]
        self._read_schema = read if len(read) else _NO_COLUMN

    def records(self, lines: Lines) -> FoundBatch:
        """The records of whole lines."""
        records = self.at_once(lines)
        if records is not None:
            return records
        unknown: set[str] | None = set() if self._warns_of_unknown else None
        records = read_rows(lines, self._ends, self._want, self._path, unknown)
        if unknown:
            warn_of_unknown(sorted(unknown), path=self._path)
            self._warns_of_unknown, self._drops_unknown = False, True  # The other parts of the file are read at once.
        return records

    def at_once(self, lines: Lines) -> FoundBatch | None:
        """The records as read by pyarrow; ``None`` if they must be read one by one."""
        if self._local_times is not None:
            if self._local_times.search(lines.data):
                warn_of_no_zone()
            self._local_times = None
        data = self._plain(lines.data) if self._is_direct else None
        if data is None:
            return None
        count, texts = one_object_a_line(data), None
        if not count:
            texts = pc.utf8_trim(split_lines(data, LineEnds(None)), " \t\r\n")
            if not _are_objects(texts):
                return None  # pyarrow crashes on a null at the start, and joins objects that span lines.
            count = _count(texts)
        if count == 0:
            return None
        parse = pj.ParseOptions(
            explicit_schema=self._read_schema,
            unexpected_field_behavior="ignore" if self._drops_unknown else "error",
        )
        try:
            table = pj.read_json(
                pa.BufferReader(data), pj.ReadOptions(use_threads=False, block_size=len(data) + 1), parse
            )
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError):
            return None
        if table.num_rows != count:
            return None
        batch = self._as_wanted(only_batch(table.select(self._want.schema.names)))
        if batch is None:
            return None
        if any(has_infinity(batch.column(place)) for place in self._narrow):
            return None
        return FoundBatch(batch, self._starts(lines, texts), self._unknown(batch.num_rows))

    def _as_wanted(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        try:
            for field in self._wide:
                place = batch.schema.get_field_index(field.name)
                batch = batch.set_column(place, field.name, batch.column(place).cast(field.type))
            for field in self._local:
                place = batch.schema.get_field_index(field.name)
                times = parsed_instants(batch.column(place), field.type, self._zone)
                batch = batch.set_column(place, field.name, times)
        except pa.ArrowInvalid:
            return None
        return batch

    def _plain(self, data: bytes) -> bytes | None:
        """The data with line ends that pyarrow knows; ``None`` if these occur within records."""
        separator = self._ends.separator
        if separator is None or separator == b"\n":
            return None if separator is not None and b"\r" in data.replace(b"\r\n", b"") else data
        rest = data.replace(separator, b"")
        return None if b"\n" in rest or b"\r" in rest else data.replace(separator, b"\n")

    def _starts(self, lines: Lines, texts: pa.StringArray | None) -> pa.Int64Array | None:
        if not self._want.offsets:
            return None
        starts = line_starts(lines, self._ends)
        return starts if texts is None else starts.filter(pc.greater(pc.binary_length(texts), 0))

    def _unknown(self, count: int) -> pa.StringArray | None:
        return pa.nulls(count, pa.string()) if self._want.options.unknown_fields == "rescue" else None


def _is_instant(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) and kind.tz is not None)


def _is_direct(kind: pa.DataType, is_utc: bool) -> bool:
    """Whether pyarrow reads the type from JSON as ``conversion`` does."""
    types = pa.types
    if types.is_struct(kind):
        return all(_is_direct(field.type, is_utc) for field in kind)
    if types.is_list(kind):
        return _is_direct(kind.value_type, is_utc)
    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal128(kind)
    is_text = types.is_string(kind) or types.is_large_string(kind)
    return bool(is_number or is_text or types.is_boolean(kind) or (is_utc and _is_instant(kind)))


def one_object_a_line(data: bytes) -> int:
    """The number of lines if each is certainly one object, otherwise 0.

    Decided by the bytes around line ends: within an object a line end never has ``}`` before it and ``{`` after it.
    """
    if not (data.startswith(b"{") and data.endswith((b"}\n", b"}"))) or b"\r" in data:
        return 0
    view = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(view[:-1] == ord("\n"))
    is_usual = bool((view[ends - 1] == ord("}")).all() and (view[ends + 1] == ord("{")).all())
    return len(ends) + 1 if is_usual else 0


def _are_objects(texts: pa.StringArray) -> bool:
    blank = pc.equal(pc.binary_length(texts), 0)
    whole = pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))
    return pc.all(pc.or_(blank, whole)).as_py() is not False


def _count(texts: pa.StringArray) -> int:
    count: int = pc.sum(pc.greater(pc.binary_length(texts), 0)).as_py() or 0
    return count


_LONG_MAX = (1 << 63) - 1
_DECIMAL_DIGITS_MAX = 38

_SIMPLE = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "long": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
}

# An inferred type: the name of a simple type, a ``dict`` of fields, or a list of one type.
_Kind = Any


def infer_json(lines: Lines, ends: LineEnds, path: str) -> pa.Schema:
    """The schema of whole lines. ``UntrustedMetadata`` for a line that is not a JSON object."""
    merged: _Kind = {}
    for start, stop in ends.spans(lines.data):
        text = lines.data[start:stop].strip(b" \t\r\n")
        if text:
            try:
                merged = _merge(merged, _kind(parse_record(text)))
            except ValueError as error:
                raise corrupt(f"no JSON object: {error}", path=path, offset=lines.place(start)) from error
    return pa.schema([(name, _arrow(kind)) for name, kind in merged.items()])


def _kind(value: Any) -> _Kind:
    if isinstance(value, dict):
        wrong = next((name for name in value if not is_unicode(name)), None)
        if wrong is not None:
            raise ValueError(f"the name {wrong!r} contains an unpaired surrogate")
        return {name: _kind(item) for name, item in value.items()}
    if isinstance(value, list):
        inner: _Kind = "null"
        for item in value:
            inner = _merge(inner, _kind(item))
        return [inner]
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        if -_LONG_MAX - 1 <= value <= _LONG_MAX:
            return "long"
        digits = len(str(abs(value)))
        return digits if digits <= _DECIMAL_DIGITS_MAX else "double"
    return "double" if isinstance(value, float) else "string"


def _merge(first: _Kind, second: _Kind) -> _Kind:
    if first == second or second == "null":
        return first
    if first == "null":
        return second
    if isinstance(first, dict) and isinstance(second, dict):
        for name, kind in second.items():  # In place: a copy for each record would take quadratic time for many names.
            first[name] = _merge(first.get(name, "null"), kind)
        return first
    if isinstance(first, list) and isinstance(second, list):
        return [_merge(first[0], second[0])]
    numbers = [kind for kind in (first, second) if kind in ("long", "double") or isinstance(kind, int)]
    if len(numbers) < 2:
        return "string"
    if "double" in numbers:
        return "double"
    return max(kind for kind in numbers if isinstance(kind, int))


def _arrow(kind: _Kind) -> pa.DataType:
    if isinstance(kind, dict):
        return pa.struct([(name, _arrow(inner)) for name, inner in kind.items()])
    if isinstance(kind, list):
        return pa.list_(_arrow(kind[0]))
    if isinstance(kind, int):
        return pa.decimal128(kind, 0)
    return _SIMPLE[kind]

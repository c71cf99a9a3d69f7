"""Whole lines of JSON as record batches: at once by pyarrow, or, where that fails, one by one to tell why."""

from __future__ import annotations

from datetime import UTC

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from aioprefetch.source.columns.decimals import in_256_bits
from aioprefetch.source.columns.zones import warn_of_no_zone
from aioprefetch.source.formats.corruption import warn_of_unknown
from aioprefetch.source.formats.json_rows import read_rows
from aioprefetch.source.formats.lines import LineEnds, Lines
from aioprefetch.source.formats.record_format import FoundBatch, Wanted
from aioprefetch.source.formats.records import has_infinity, is_narrow, line_starts, only_batch, split_lines
from aioprefetch.source.formats.time_zones import local_times, parsed_instants, zone_of

# A column that no record has: pyarrow counts no rows without columns.
_NO_COLUMN = pa.schema([("", pa.bool_())])


class JsonParts:
    """How the parts of one item are parsed."""

    def __init__(self, want: Wanted, ends: LineEnds, path: str) -> None:
        self._want = want
        self._ends = ends
        self._path = path
        self._zone = zone_of(want.options)
        # Times of another zone than UTC are read as texts.
        self._local = [one for one in want.schema if self._zone is not UTC and _is_instant(one.type)]
        # Looked for in the first part alone.
        self._local_times = local_times(want.schema) if want.options.time_zone is None else None
        self._drops_unknown = want.options.drops_unknown
        self._warns_of_unknown = want.options.unknown_fields == "warn"
        read = want.schema if self._drops_unknown else want.known_fields
        for one in self._local:
            read = read.set(read.get_field_index(one.name), pa.field(one.name, pa.string()))
        read = pa.schema([one.with_type(in_256_bits(one.type)) for one in read])
        # Decimals that become what is wanted by a cast that is checked.
        self._wide = [one for one in want.schema if in_256_bits(one.type) != one.type]
        self._is_direct = all(_is_direct(one.type, self._zone is UTC) for one in want.schema if one not in self._local)
        self._narrow = [place for place, one in enumerate(want.schema) if is_narrow(one.type)]
        self._read_schema = read if len(read) else _NO_COLUMN

    def records(self, lines: Lines) -> FoundBatch:
        """The records of whole lines."""
        found = self.at_once(lines)
        if found is not None:
            return found
        unknown: set[str] | None = set() if self._warns_of_unknown else None
        found = read_rows(lines, self._ends, self._want, self._path, unknown)
        if unknown:
            warn_of_unknown(sorted(unknown), path=self._path)
            self._warns_of_unknown, self._drops_unknown = False, True  # The rest of the file is read at once.
        return found

    def at_once(self, lines: Lines) -> FoundBatch | None:
        """The records as pyarrow reads them; ``None`` where they have to be read one by one."""
        if self._local_times is not None:
            if self._local_times.search(lines.data):
                warn_of_no_zone()
            self._local_times = None
        data = self._plain(lines.data) if self._is_direct else None
        if data is None:
            return None
        count, texts = one_object_a_line(data), None
        if not count:
            texts = _trimmed(split_lines(data, LineEnds(None)))
            if not _are_objects(texts):
                return None  # pyarrow crashes on a null at the beginning, and joins objects that span lines.
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
            for one in self._wide:
                place = batch.schema.get_field_index(one.name)
                batch = batch.set_column(place, one.name, batch.column(place).cast(one.type))
            for one in self._local:
                place = batch.schema.get_field_index(one.name)
                times = parsed_instants(batch.column(place), one.type, self._zone)
                batch = batch.set_column(place, one.name, times)
        except pa.ArrowInvalid:
            return None
        return batch

    def _plain(self, data: bytes) -> bytes | None:
        """With line ends that pyarrow knows; ``None`` where these are in the records as well."""
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
    """Whether pyarrow reads it from JSON as we do."""
    types = pa.types
    if types.is_struct(kind):
        return all(_is_direct(one.type, is_utc) for one in kind)
    if types.is_list(kind):
        return _is_direct(kind.value_type, is_utc)
    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal128(kind)
    is_text = types.is_string(kind) or types.is_large_string(kind)
    return bool(is_number or is_text or types.is_boolean(kind) or (is_utc and _is_instant(kind)))


def one_object_a_line(data: bytes) -> int:
    """How many lines the usual file has, 0 for others.

    Told by what is around line ends, since a ``}`` before one and a ``{`` behind it are nowhere within an object.
    """
    if not (data.startswith(b"{") and data.endswith((b"}\n", b"}"))) or b"\r" in data:
        return 0
    found = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(found[:-1] == ord("\n"))
    is_usual = bool((found[ends - 1] == ord("}")).all() and (found[ends + 1] == ord("{")).all())
    return len(ends) + 1 if is_usual else 0


def _trimmed(lines: pa.StringArray) -> pa.StringArray:
    return pc.utf8_trim(lines, " \t\r\n")


def _are_objects(texts: pa.StringArray) -> bool:
    blank = pc.equal(pc.binary_length(texts), 0)
    whole = pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))
    return pc.all(pc.or_(blank, whole)).as_py() is not False


def _count(texts: pa.StringArray) -> int:
    found: int = pc.sum(pc.greater(pc.binary_length(texts), 0)).as_py() or 0
    return found

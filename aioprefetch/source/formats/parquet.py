"""Parquet: the wanted columns of the row groups that start in the bytes of an item.

Files of Spark have types of their own, and dates of the old calendar: before October 1582, Spark below 3.0 (and later
versions in ``LEGACY`` mode) count days by the Julian calendar; before 1900 they use the writer's local clock. Such
values would be read days or minutes off, so they are refused. Spark itself reads them.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from aioprefetch.accessor.response_check import VersionPin
from aioprefetch.errors import ConditionNotMatch, Unsupported, UntrustedMetadata
from aioprefetch.operator.operator import Operator
from aioprefetch.parquet import Footer, scan
from aioprefetch.parquet import footer as read_footer
from aioprefetch.parquet.chunk_columns import ChunkColumns, ChunkRead, GroupRows
from aioprefetch.parquet.chunks import SparseFile, WantedRows, column_chunks, resolve_columns
from aioprefetch.parquet.footer import TAIL_BYTES_EVERYTHING
from aioprefetch.parquet.page_metadata import PageOptions
from aioprefetch.parquet.plan import ScanArguments, plan_scan
from aioprefetch.parquet.pruning import prune_row_groups
from aioprefetch.ranges import Range, joined
from aioprefetch.source.columns.casts import INSTANT, is_any_list, is_number, plain_type
from aioprefetch.source.columns.row_filter import is_nan, normalized
from aioprefetch.source.columns.schemas import match_names
from aioprefetch.source.formats.columnar import READAHEAD_BATCHES, RowCounter, WantedColumns, batch_bytes, budget_bytes
from aioprefetch.source.formats.file_bytes import OVERWRITTEN, check_open_file
from aioprefetch.source.formats.record_format import FooterPlanning, FoundBatch, RecordFormat, Wanted
from aioprefetch.source.options import FormatOptions, ReadOptions
from aioprefetch.source.values import FetchItem, SourceFile

_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_VERSION = b"org.apache.spark.version"
_LEGACY_DATE_TIME = b"org.apache.spark.legacyDateTime"
_LEGACY_INT96 = b"org.apache.spark.legacyINT96"
_INT96 = 3
# From these times on, both calendars and all local clocks agree.
_FIRST_DATE = dt.date(1582, 10, 15)
_FIRST_TIME = dt.datetime(1900, 1, 1)


def check_types(footer: Footer, columns: Iterable[str] | None = None) -> None:
    """Raise ``Unsupported`` for a column (of ``columns``, or any) that is a VARIANT or an interval in Spark."""
    spark_types = _spark_types(_key_values(footer))
    for name in footer.schema.names if columns is None else columns:
        kind = spark_types.get(name)
        if kind is not None:
            raise Unsupported(
                f"column {name!r} is {kind} as Spark wrote it, which is read by Spark alone: give a schema without it",
                operation="footer",
                path=footer.path,
                context={"column": name},
            )


@dataclass(frozen=True, slots=True)
class Calendar:
    """The values of a file that may be of the old calendar: dates and instants, or instants of 96 bits."""

    path: str
    is_legacy: bool
    is_legacy_int96: bool

    def check(self, batch: pa.RecordBatch) -> None:
        """Raise ``Unsupported`` for a column with values of the old calendar."""
        if not self.is_legacy and not self.is_legacy_int96:
            return
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if self._is_old(column):
                raise Unsupported(
                    f"column {name!r} has dates before 1582-10-15, or times before 1900, in the old calendar of Spark: "
                    "write them again with spark.sql.parquet.datetimeRebaseModeInWrite=CORRECTED and "
                    "int96RebaseModeInWrite=CORRECTED, or leave the column out",
                    operation="scan",
                    path=self.path,
                    context={"column": name},
                )

    def _is_old(self, array: pa.Array) -> bool:
        kind = array.type
        if pa.types.is_date(kind):
            return self.is_legacy and _is_below(array, pa.scalar(_FIRST_DATE, kind))
        if pa.types.is_timestamp(kind):
            # A time without a zone has 96 bits, or is local and never of the old calendar.
            is_legacy = self.is_legacy_int96 if kind.tz is None else self.is_legacy
            first = _FIRST_TIME if kind.tz is None else _FIRST_TIME.replace(tzinfo=dt.UTC)
            return is_legacy and _is_below(array, pa.scalar(first, kind))
        if pa.types.is_struct(kind):
            return any(map(self._is_old, array.flatten()))
        if pa.types.is_map(kind):
            return self._is_old(array.keys) or self._is_old(array.items)
        return pa.types.is_list(kind) and self._is_old(array.flatten())


def calendar_of(footer: Footer) -> Calendar:
    """The calendar of a file."""
    metadata = _key_values(footer)
    version = re.match(rb"(\d+)\.(\d+)", metadata.get(_VERSION, b""))
    numbers = None if version is None else (int(version[1]), int(version[2]))
    is_legacy = numbers is not None and (numbers < (3, 0) or _LEGACY_DATE_TIME in metadata)
    is_legacy_int96 = numbers is not None and (numbers < (3, 1) or _LEGACY_INT96 in metadata)
    return Calendar(footer.path, is_legacy, is_legacy_int96 and _INT96 in footer.shape.physical_types)


def _is_below(array: pa.Array, first: pa.Scalar) -> bool:
    least = pc.min(array)
    return bool(least.is_valid and pc.less(least, first).as_py())


def _key_values(footer: Footer) -> dict[bytes, bytes]:
    return footer.metadata.metadata or {}


def _spark_types(metadata: dict[bytes, bytes]) -> dict[str, str]:
    """The top-level columns that are, or contain, a type that only Spark reads."""
    text = metadata.get(_SCHEMA, b"")
    if b"variant" not in text and b"interval" not in text:
        return {}
    try:
        fields = json.loads(text)["fields"]
        kinds = {field["name"]: _special_in(field["type"]) for field in fields}
    except (KeyError, TypeError, ValueError, RecursionError):
        return {}
    return {name: kind for name, kind in kinds.items() if kind is not None}


def _special_in(kind: Any) -> str | None:
    """The first such type within a Spark type in JSON form."""
    if isinstance(kind, str):
        return kind.upper() if kind == "variant" or "interval" in kind else None
    if kind["type"] == "struct":
        parts = [field["type"] for field in kind["fields"]]
    else:
        parts = [kind[part] for part in ("elementType", "keyType", "valueType", "sqlType") if part in kind]
    return next((special for part in parts if (special := _special_in(part)) is not None), None)


# --- the format -------------------------------------------------------------------------------------------------------


class ParquetFormat(RecordFormat):
    """Parquet files. A footer costs one request, which brings a file of up to 1 MiB as a whole."""

    name = "parquet"
    compresses_within = True
    plans_by_footer = True

    def can_split(self, file: SourceFile, options: FormatOptions) -> bool:
        return True

    async def sample(
        self, operator: Operator, file: SourceFile, options: FormatOptions, read: ReadOptions
    ) -> pa.Schema:
        if not file.size:
            return pa.schema([])
        footer = await pinned_footer(operator, file, read.open_file)
        check_types(footer)
        return file_schema(footer)

    async def read(self, operator: Operator, item: FetchItem, want: Wanted) -> AsyncGenerator[FoundBatch, None]:
        file = item.file
        if not file.size:
            return
        footer = await pinned_footer(operator, file, want.read.open_file)
        groups = wanted_row_groups(footer, item)
        columns = WantedColumns(footer.schema, want, path=file.key)
        check_types(footer, columns.read)
        calendar = calendar_of(footer)
        rows = await _wanted_rows(footer, groups, columns.read, want)
        if not rows:
            return
        numbers = RowCounter(rows) if want.offsets else None
        footer = footer.with_int96_unit("us", is_checked=False)  # Spark, too, drops what is below the microsecond.
        if rows == _all_rows(footer, groups) and is_small(footer, columns.read, groups):
            for batch in small_batches(footer, columns.read, groups, want.read.batch_rows, batch_bytes(want)):
                calendar.check(batch)
                yield columns.found(batch, None if numbers is None else numbers.take(batch.num_rows))
            return
        batches = scan(
            operator,
            file.key,
            columns=columns.read,
            row_groups=groups,
            rows=rows,
            batch_rows=want.read.batch_rows,
            batch_bytes=batch_bytes(want),
            readahead=READAHEAD_BATCHES,
            budget_bytes=budget_bytes(want),
            footer=footer,
        )
        async with batches:
            async for batch in batches:
                calendar.check(batch)
                yield columns.found(batch, None if numbers is None else numbers.take(batch.num_rows))

    async def plan(self, operator: Operator, item: FetchItem, planning: FooterPlanning) -> list[FetchItem]:
        footer = await pinned_footer(operator, item.file, planning.open_file)
        groups = list(range(footer.row_groups))
        if planning.filters is not None and planning.schema is not None:
            filters = prunable(footer, planning.filters, planning.schema, time_zone=planning.options.time_zone)
            groups = prune_row_groups(footer, filters, groups)
        return row_group_items(item.file, footer, groups, planning.target_bytes)


async def pinned_footer(operator: Operator, file: SourceFile, settings: Mapping[str, str]) -> Footer:
    """The footer of this version of a file. ``ObjectChanged`` if the store has another version.

    ``settings`` of ``openFile`` are checked and have no other effect, since pages are read by plan.
    """
    check_open_file(operator, file, settings)
    # A larger tail costs less than a second request.
    tail_bytes = file.size if file.size <= TAIL_BYTES_EVERYTHING else None
    pin = VersionPin(file.etag, file.version, file.size, path=file.key, operation="footer")
    try:
        footer = await read_footer(operator, file.key, version=file.version, if_match=file.etag, tail_bytes=tail_bytes)
    except ConditionNotMatch as error:
        raise pin.explain(error, message=OVERWRITTEN) from error
    if footer.size != file.size:
        raise pin.changed(footer.etag, f"the file has {footer.size} bytes, and had {file.size} when it was listed")
    return footer


def wanted_row_groups(footer: Footer, item: FetchItem) -> list[int]:
    """The row groups of an item: the named ones, otherwise all that start in its bytes.

    ``UntrustedMetadata`` for a named row group that the file lacks.
    """
    if item.row_groups is None:
        return [
            number
            for number, start in enumerate(row_group_starts(footer))
            if item.start <= min(max(start, 0), footer.size - 1) < item.stop
        ]
    for number in item.row_groups:
        if not 0 <= number < footer.row_groups:
            raise UntrustedMetadata(
                f"row group {number} was planned, and the file has {footer.row_groups}",
                operation="read_items",
                path=footer.path,
            )
    return sorted(set(item.row_groups))


def row_group_starts(footer: Footer) -> list[int]:
    """The start of each row group, which is the first page of its first column. Not checked against the file."""
    starts: list[int] = []
    for group in footer.chunks:
        first = group[0] if group else None
        if first is None:
            starts.append(0)
        elif 0 < first.dictionary_page < first.data_page:
            starts.append(first.dictionary_page)
        else:
            starts.append(first.data_page)
    return starts


def row_group_items(file: SourceFile, footer: Footer, groups: Sequence[int], target_bytes: int) -> list[FetchItem]:
    """Some row groups as items of about ``target_bytes``. All row groups of a small file are one whole item."""
    if not groups:
        return []
    starts = [min(max(start, 0), file.size) for start in row_group_starts(footer)]
    ends = [*starts[1:], max([footer.start, *starts])]
    if len(groups) == footer.row_groups and (len(groups) == 1 or ends[-1] - starts[0] <= target_bytes):
        return [FetchItem(file)]
    items: list[FetchItem] = []
    for number in groups:
        start, end = starts[number], max(ends[number], starts[number])
        last = items[-1] if items else None
        if last is not None and last.row_groups and end - last.start <= target_bytes:
            items[-1] = replace(last, end=max(end, last.stop), row_groups=(*last.row_groups, number))
        else:
            items.append(FetchItem(file, start, end, (number,)))
    return items


async def _wanted_rows(footer: Footer, groups: Sequence[int], columns: Sequence[str], want: Wanted) -> Sequence[Range]:
    """The rows that may match the filters by the statistics of row groups and pages."""
    filters = prunable(footer, want.read.filters, want.schema, time_zone=want.options.time_zone)
    if filters is None or not groups:
        return _all_rows(footer, groups)
    arguments = ScanArguments(columns=columns, row_groups=groups, filters=filters)
    return joined((await plan_scan(footer, arguments)).rows)


def _all_rows(footer: Footer, groups: Sequence[int]) -> Sequence[Range]:
    return joined((footer.first_rows[number], footer.first_rows[number + 1]) for number in groups)


def prunable(footer: Footer, filters: Any, schema: pa.Schema, *, time_zone: str | None = None) -> Any:
    """The part of filters on ``schema`` that the statistics of a file can decide; ``None`` if they decide nothing.

    Clauses on columns that the file lacks, or has with another kind of type, are dropped. This reads more rows and
    loses none, since filters are applied to each row in the end.
    """
    if filters is None or isinstance(filters, pc.Expression):
        return None
    names = footer.schema.names
    alternatives = []
    for clauses in normalized(filters, schema, may_miss=True, time_zone=time_zone):
        kept = []
        for name, operator, value in clauses:
            wanted = match_names(schema.names, [name])[0]
            place = None if wanted is None else match_names(names, [schema.names[wanted]])[0]
            if place is None or not _is_decidable(operator, value, footer.schema.field(place).type):
                continue
            if _compares_alike(footer.schema.field(place).type, schema.field(wanted).type):
                kept.append((names[place], operator, value))
        if not kept:
            return None
        alternatives.append(kept)
    return alternatives


def _is_decidable(operator: str, value: Any, file_type: pa.DataType) -> bool:
    """Whether statistics, which exclude NaN, can decide: NaN is larger than all numbers and equals itself here."""
    if operator in ("in", "not in"):
        return not any(map(is_nan, value))
    return not is_nan(value) and not (operator in (">", ">=") and pa.types.is_floating(file_type))


def _compares_alike(file_type: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values compare the same before and after ``conform``."""
    if pa.types.is_nested(file_type) or (pa.types.is_timestamp(file_type) and file_type.unit == "ns"):
        return False  # The conversion drops nanoseconds.
    plain = plain_type(file_type)
    return plain == wanted or (is_number(plain) and is_number(wanted) and not pa.types.is_floating(wanted))


# --- schema -----------------------------------------------------------------------------------------------------------


def file_schema(footer: Footer) -> pa.Schema:
    """The schema of a file as read by pyarrow, but with INT96 as an instant, which is what its writers mean."""
    if _INT96 not in footer.shape.physical_types:
        return footer.schema.remove_metadata()
    physical = iter(footer.shape.physical_types)
    return pa.schema([pa.field(field.name, _marked(field.type, physical), field.nullable) for field in footer.schema])


def _marked(kind: pa.DataType, physical: Any) -> pa.DataType:
    """A type with INT96 as an instant. Its leaves, in order, have the ``physical`` types of Parquet."""
    if pa.types.is_struct(kind):
        fields = [kind.field(place) for place in range(kind.num_fields)]
        return pa.struct([pa.field(field.name, _marked(field.type, physical), field.nullable) for field in fields])
    if pa.types.is_map(kind):
        return pa.map_(_marked(kind.key_type, physical), _marked(kind.item_type, physical))
    if is_any_list(kind):
        return pa.list_(_marked(kind.value_type, physical))
    return INSTANT if next(physical, None) == _INT96 else kind


# --- small row groups -------------------------------------------------------------------------------------------------

# This number of values is decoded in about a millisecond, which is not worth a thread.
_VALUES_MAX = 32 << 10
# This number of bytes, by the footer, is decompressed in that time too.
_UNCOMPRESSED_BYTES_MAX = 1 << 20


def is_small(footer: Footer, columns: Sequence[str], groups: Sequence[int]) -> bool:
    """Whether to read these columns of these row groups by ``small_batches``.

    A scan manages requests, memory and threads, which takes a millisecond to start. A small file is already in memory
    with its footer, and is decoded in place, with the same checks and decoders.
    """
    names = footer.schema.names
    if footer.pinned.tail_start > 0 or not columns or len(set(names)) < len(names):
        return False
    if any("." in name for name in columns):
        return False  # A dotted name may be a field of a struct.
    chunks = [chunk for number in groups for chunk in footer.chunks[number]]
    rows = sum(footer.first_rows[number + 1] - footer.first_rows[number] for number in groups)
    return (
        max(rows * len(footer.shape.paths), sum(chunk.values for chunk in chunks)) <= _VALUES_MAX
        and sum(chunk.uncompressed_bytes for chunk in chunks) <= _UNCOMPRESSED_BYTES_MAX
    )


def small_batches(
    footer: Footer, columns: Sequence[str], groups: Sequence[int], batch_rows: int, bytes_max: int
) -> Iterator[pa.RecordBatch]:
    """All rows of some row groups, in batches of ``batch_rows``, or of about ``bytes_max``. Raises as a scan does."""
    leaves = resolve_columns(footer, columns)
    wanted = set(columns)
    names = [name for name in footer.schema.names if name in wanted]
    memory = SparseFile(footer.size, path=footer.path)
    memory.put(0, footer.pinned.tail[: footer.start])
    groups = [number for number in groups if footer.first_rows[number] < footer.first_rows[number + 1]]
    parts: list[list[ChunkRead]] = []
    rows = 0
    for _, group in groupby(column_chunks(footer, groups, leaves), key=lambda chunk: chunk.row_group):
        chunks = list(group)
        all_of_it = GroupRows(WantedRows.all(chunks[0].rows), rows, memory, footer.path, PageOptions())
        parts.append([ChunkRead(chunks, all_of_it, is_resident=True)])
        rows += chunks[0].rows
    source = ChunkColumns(
        parts,
        wanted=WantedRows.all(rows),
        open_source=memory.source,
        metadata=footer.metadata,
        places=range(len(names)),
        row_bytes=0.0,
        path=footer.path,
        int96=footer.int96,
    )
    try:
        source.ready()  # Looks at the dictionaries, from which the sizes of rows follow.
        first = 0
        while first < rows:
            fitting = max(1, int(bytes_max / max(source.row_bytes(), 1)))
            last = min(rows, first + min(batch_rows, fitting))
            arrays = source.drain(first, last)()
            yield pa.RecordBatch.from_arrays([array for _, array in arrays], names=names)
            first = last
    finally:
        source.close()

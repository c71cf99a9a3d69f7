"""The parts of a scan: a file, or a fragment of a dataset, whose columns may lie in several files.

The arguments of a scan are checked here before any I/O.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypedDict, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aioprefetch.computed_columns import ComputedColumns, asked_columns
from aioprefetch.errors import ConfigInvalid, InvalidArgument
from aioprefetch.filters import Filters, checked_filters
from aioprefetch.lance import logical, structural
from aioprefetch.lance.batches import (
    FilteredColumn,
    FilteredRoot,
    Finish,
    KeptRows,
    Projection,
    make_projection,
)
from aioprefetch.lance.footer import LanceFile
from aioprefetch.lance.output import FieldDecoder, RecordRoot, WrappedColumn
from aioprefetch.lance.schema import Field, needed_columns, with_descriptions
from aioprefetch.operator.operator import Operator
from aioprefetch.ranges import ByteCount, Range
from aioprefetch.row_ranges import RowNumbers, RowRanges, RowSelection, row_numbers, select_rows
from aioprefetch.scan import Prepare, column_names, io_options, row_range
from aioprefetch.scheduler.io_service import IoService, ScannedFile
from aioprefetch.scheduler.pages import ColumnScheduler, PageIo, RootDecoder, ScanPart
from aioprefetch.verbs.arguments import Arguments

# The number of fields that are built before the event loop runs again: some milliseconds of work.
_FIELDS_IN_A_ROW = 32

# What comes for a blob: its bytes, or the place of its bytes.
Blobs: TypeAlias = Literal["bytes", "descriptions"]

Column = tuple[ColumnScheduler[Any], FieldDecoder[Any]]
# The columns of files, and those that no file holds, by their places in the schema.
MakeColumns: TypeAlias = "Callable[[Sequence[int], RowRanges], Awaitable[tuple[list[FileColumns], dict[int, Column]]]]"


@dataclass(frozen=True, slots=True)
class FileColumns:
    """Columns of one file, by their position in the schema of the scan; ``row_bytes`` is the size of a row of them."""

    file: LanceFile
    columns: dict[int, Column]
    row_bytes: float


@dataclass(frozen=True, slots=True)
class TablePart:
    """One file or fragment. Its wanted rows are ``ranges`` without those at the positions ``dropped`` among them.

    Files of one fragment share their ``rank``, since they are needed together.

    ``make`` gives the columns at some places of the schema, for some ranges of rows. ``on_close`` is called after the
    last row.
    """

    rank: int
    ranges: RowRanges
    make: MakeColumns
    dropped: RowNumbers = field(default_factory=lambda: np.empty(0, np.int64))
    on_close: Callable[[], None] = lambda: None

    @property
    def rows(self) -> int:
        """The number of wanted rows."""
        return self.ranges.rows - len(self.dropped)

    def rows_at(self, positions: RowNumbers) -> RowNumbers:
        """The numbers of the rows at ascending positions among the wanted ones."""
        before = self.dropped - np.arange(len(self.dropped))
        positions = positions + np.searchsorted(before, positions, "right")
        owners = np.searchsorted(self.ranges.positions, positions, "right") - 1
        rows: RowNumbers = self.ranges.starts[owners] + positions - self.ranges.positions[owners]
        return rows

    async def bind(
        self, service: IoService, schema: pa.Schema, places: Sequence[int], finish: Finish | None = None
    ) -> ScanPart:
        """The columns at ``places``, with their ``schema``, for the two loops, each bound to the I/O of its file."""
        files, computed = await self.make(places, self.ranges)
        bound: dict[int, ColumnScheduler[Any]] = {index: column for index, (column, _) in computed.items()}
        decoders = {index: decoder for index, (_, decoder) in computed.items()}
        io: PageIo | None = None
        for file in files:
            io = ScannedFile(service, file.file.pinned, rank=self.rank)
            for index, (column, decoder) in file.columns.items():
                bound[index], decoders[index] = BoundColumn(column, io), decoder
        columns = [bound[index] for index in sorted(bound)]
        ordered = [decoders[index] for index in sorted(bound)]
        root: RootDecoder[Any] = RecordRoot(schema, ordered, self.on_close, sum(file.row_bytes for file in files))
        if self.dropped.size:
            kept = KeptRows(self.dropped)
            columns = [FilteredColumn(column, kept) for column in columns]
            root = FilteredRoot(root, schema, kept)
        return ScanPart(columns, root, io or NoIo(), self.rows, finish)


@dataclass(frozen=True, slots=True)
class TableScan:
    """The wanted rows and columns of a table. Its parts are opened in order, on demand.

    ``rows`` is the number of distinct rows to read, ``order`` as in ``RowSelection``, and ``wanted_bytes`` the
    approximate size of these rows in the files, with all their columns.
    """

    projection: Projection
    rows: int
    order: RowNumbers | None
    parts: Callable[[], AsyncGenerator[TablePart, None]]
    wanted_bytes: int | None = None


class BoundColumn(WrappedColumn):
    """A column bound to its file. Other columns of the part may have other files."""

    def __init__(self, inner: ColumnScheduler[Any], io: PageIo) -> None:
        super().__init__(inner)
        self._io = io

    def schedule_next(self, io: PageIo) -> Any:
        """Schedule with the I/O of the column's file; ``io`` may belong to another file."""
        return self._inner.schedule_next(self._io)


class NoIo:
    """The ``PageIo`` of a part without reads, such as one without columns."""

    size = 0

    def submit(self, ranges: Sequence[Range], row: int, *, is_follow_up: bool = False) -> Any:
        raise NotImplementedError

    def spawn(self, work: Any, *, name: str) -> None:
        raise NotImplementedError


async def read_columns(file: LanceFile, fields: Sequence[Field], ranges: RowRanges) -> list[Column]:
    """The schedulers and decoders of fields of a file for row ranges. Loads their metadata first.

    Other tasks run in between, since the metadata of a thousand columns takes a while to parse.
    """
    await file.load_columns(needed_columns(fields, file.version))
    make_field = logical.make_field if file.version == (2, 0) else structural.make_field
    columns: list[Column] = []
    for top_field in fields:
        columns.append(make_field(file, top_field, ranges))
        if not len(columns) % _FIELDS_IN_A_ROW:
            await asyncio.sleep(0)
    return columns


async def file_columns(
    file: LanceFile, fields: Sequence[Field], places: Sequence[int], ranges: RowRanges
) -> FileColumns:
    """The columns of ``fields`` of a file, which stand at ``places`` of the schema. Loads their metadata."""
    columns = await read_columns(file, fields, ranges)
    return FileColumns(file, dict(zip(places, columns, strict=True)), row_bytes(file, fields))


def row_bytes(file: LanceFile, fields: Sequence[Field]) -> float:
    """The mean size of a row of fields in a file, whose metadata are loaded."""
    pages = (page for index in needed_columns(fields, file.version) for page in file.column(index).pages)
    return sum(end - start for page in pages for start, end in page.buffers) / max(file.rows, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanRequest:
    """The arguments of a scan, checked as well as is possible without metadata.

    ``rows`` is ``(start, stop)``, ``take`` a list of row numbers; ``filters`` have one of their two forms; ``limits``
    are the options of the I/O service. ``computed`` are made of ``columns``, where the caller gave a mapping.
    """

    columns: object | None
    rows: object | None
    take: object | None
    filters: Filters
    blobs: Blobs
    limits: dict[str, int]
    limit: int | None = None
    is_ordered: bool = True
    computed: ComputedColumns | None = None

    def prepare(self, prepare: Prepare, operator: Operator) -> Prepare:
        """``prepare``, with the columns that are made of others."""
        return prepare if self.computed is None else self.computed.prepare(prepare, operator)

    def project(
        self, fields: Sequence[Field], metadata: Mapping[str, bytes] | None, path: str, *, hidden: Sequence[Field] = ()
    ) -> Projection:
        """The columns to read of a table with ``fields``, and with ``hidden`` ones, which only a name selects."""
        if self.blobs == "descriptions":
            fields = [with_descriptions(field) for field in fields]
        return make_projection(fields, self.columns, self.filters, metadata, path=path, hidden=hidden)

    def select(self, total: int, path: str) -> RowSelection:
        """The wanted rows of a table of ``total`` rows."""
        return select_rows(self.rows, self.take, total, path=path)

    def service(self, operator: Operator, table: TableScan) -> IoService:
        """The I/O service of a scan of ``table``, running on the current event loop."""
        return IoService(operator.accessor(), operator.runtime(), wanted_bytes=table.wanted_bytes, **self.limits)


def scan_request(
    path: str,
    *,
    columns: object | None = None,
    rows: object | None = None,
    take: object | None = None,
    filters: object | None = None,
    limit: int | None = None,
    ordered: bool = True,
    blobs: Blobs = "bytes",
    gap_bytes: object | None = None,
    request_bytes_max: object | None = None,
    budget_bytes: object | None = None,
    slots: object | None = None,
) -> ScanRequest:
    """Check the arguments of a call. ``InvalidArgument`` before any I/O."""
    if rows is not None and take is not None:
        raise ConfigInvalid("rows= and take= exclude each other", operation="scan", path=path)
    columns, computed = asked_columns(columns, path=path)
    if columns is not None:
        columns = column_names(columns, path=path)
    if rows is not None:
        rows = row_range(rows, path=path)
    if take is not None:
        take = row_numbers(take, path=path)
    if limit is not None and filters is None:  # Then the first rows are known before any is read.
        if take is not None:
            take = take[:limit]
        else:
            start, stop = rows or (0, limit)
            rows = start, min(stop, start + limit)
    limits = io_options(
        path, gap_bytes=gap_bytes, request_bytes_max=request_bytes_max, budget_bytes=budget_bytes, slots=slots
    )
    if blobs not in get_args(Blobs):
        names = " or ".join(map(repr, get_args(Blobs)))
        raise InvalidArgument(f"blobs must be {names}, not {blobs!r}", operation="scan", path=path)
    checked = checked_filters(filters, path=path)
    return ScanRequest(
        columns=columns,
        rows=rows,
        take=take,
        filters=checked,
        blobs=blobs,
        limits=limits,
        limit=limit,
        is_ordered=Arguments("scan", path).flag("ordered", ordered),
        computed=computed,
    )


class TakeOptions(TypedDict, total=False):
    """The options of ``LanceDataset.take``; ``scan`` documents them."""

    columns: Sequence[str] | Mapping[str, str | pc.Expression] | None
    filters: Any
    limit: int | None
    blobs: Blobs
    batch_rows: int
    batch_bytes: ByteCount | None
    readahead: int
    gap_bytes: ByteCount | None
    request_bytes_max: ByteCount | None
    budget_bytes: ByteCount | None
    slots: int | None


class ScanOptions(TakeOptions, total=False):
    """The options of ``scan`` and ``read_table``; ``scan`` documents them."""

    rows: Sequence[int] | None
    take: Any
    ordered: bool

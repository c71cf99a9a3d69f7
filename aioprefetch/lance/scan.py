"""Scans of Lance files and datasets, and their plans: pages, requests and bytes, from metadata alone."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from typing import Any, Unpack

import pyarrow as pa
import pyarrow.compute as pc

from aioprefetch.errors import Closed, ConfigInvalid, Error, IsADirectory, NotADirectory, NotFound, UntrustedMetadata
from aioprefetch.filters import load_evaluation
from aioprefetch.lance.dataset import LanceDataset, open_wanted
from aioprefetch.lance.footer import LanceFile, open_file
from aioprefetch.lance.output import WrappedColumn
from aioprefetch.lance.parts import (
    Blobs,
    Column,
    FileColumns,
    ScanOptions,
    ScanRequest,
    TablePart,
    TableScan,
    file_columns,
    scan_request,
)
from aioprefetch.lance.prepared import prepared_scan
from aioprefetch.lance.versions import ABSENT, WantedVersion, latest_version, wanted_version
from aioprefetch.operator.operator import Operator
from aioprefetch.operator.shared import checked_operator
from aioprefetch.ranges import ByteCount, Range
from aioprefetch.row_ranges import RowRanges
from aioprefetch.scan import BATCH_ROWS, BatchScan, batch_options
from aioprefetch.scheduler.decode_loop import READAHEAD_BATCHES
from aioprefetch.scheduler.io_queue import plan_requests
from aioprefetch.scheduler.io_service import IoService
from aioprefetch.scheduler.pages import ColumnScheduler, PageIo, PreparedScan
from aioprefetch.scheduler.scheduling_loop import scan_lines


def scan(
    operator: Operator,
    path: str,
    *,
    columns: Sequence[str] | Mapping[str, str | pc.Expression] | None = None,
    rows: Sequence[int] | None = None,
    take: Any = None,
    filters: Any = None,
    limit: int | None = None,
    ordered: bool = True,
    blobs: Blobs = "bytes",
    version: int | datetime | None = None,
    tag: str | None = None,
    branch: str | None = None,
    batch_rows: int = BATCH_ROWS,
    batch_bytes: ByteCount | None = None,
    readahead: int = READAHEAD_BATCHES,
    gap_bytes: ByteCount | None = None,
    request_bytes_max: ByteCount | None = None,
    budget_bytes: ByteCount | None = None,
    slots: int | None = None,
) -> BatchScan:
    """The record batches of a Lance file of version 2.0, 2.1 or 2.2, or of a dataset; a plain call without I/O.

    Raises ``InvalidArgument`` at once for invalid arguments. The first batch raises ``NotFound``, ``Unsupported``
    for an unknown version or encoding, ``UntrustedMetadata`` for a damaged file, ``InvalidArgument`` for columns and
    ``InvalidRange`` for row numbers that the table does not have, and ``InvalidArgument`` for filters that do not go
    with its columns.

    Parameters
    ----------
    operator
        The store.
    path
        A file, or the directory of a dataset. A path that ends with ``/`` is a directory.
    columns
        Names, in the order of the result. ``"a.b"`` is field ``b`` of struct ``a``, and gives a struct with the named
        fields. An empty list gives batches with rows and no columns. Of a dataset, ``_rowid`` and ``_rowaddr`` are
        pylance's ids and addresses of rows, which come by name alone and cost no request. A mapping gives new names,
        and columns by expressions: ``{"total": pc.field("price") * pc.field("count")}``.
    rows
        ``(start, stop)``, cut at the end of the table like a slice.
    take
        Row numbers in any order, repeated ones included: a list, a range, or an array of numpy or Arrow. The result has
        their order. Sorted, distinct numbers stream; for any other order all rows are held in memory.
    filters
        As in pyarrow: ``[(column, operator, value), ...]``, lists of these, or an Expression. Columns that only the
        filters need are read, and left out of the result. They keep or drop rows that ``rows`` or ``take``
        name, which count all rows of the table; their order stays. Their columns are read first, of all these rows;
        the others are read near rows that match, unless ``take`` has an order of its own.
    limit
        The first rows that match, and no more: then requests end. With 0 no data is requested.
    ordered
        ``False``: batches as they are ready, of several fragments at once, each in its order. ``take`` in an order of
        its own is in that order.
    blobs
        Of blobs of version 2.0 ``"bytes"`` gives the values, ``large_binary``. ``"descriptions"`` gives structs of
        ``position`` and ``size`` in the data file, as pylance does: the values are not read, and a null is ``(1, 0)``.
    version
        The number of a version of the dataset, or a time with its zone: the latest version written at that time or
        before. The latest version of all by default. ``ConfigInvalid`` for a file, which has no versions.
    tag
        The name of a tag, in place of ``version``.
    branch
        The name of a branch, with ``version`` or at its latest version.
    batch_rows
        The rows of a batch (``BatchScan``).
    batch_bytes
        The Arrow memory of a batch, in bytes. ``None``: a sixteenth of ``memory_bytes``, 64 MiB at most.
    readahead
        The number of batches that are decoded ahead of the consumer.
    gap_bytes
        Reads with a gap of at most this between them share a request.
    request_bytes_max
        The maximum size of a request.
    budget_bytes
        The memory for pages.
    slots
        The maximum of requests in flight (``IoService``).
    """
    options = batch_options(batch_rows, batch_bytes, readahead, limit, path=path)
    request = scan_request(
        path,
        columns=columns,
        rows=rows,
        take=take,
        filters=filters,
        limit=options.limit,
        ordered=ordered,
        blobs=blobs,
        gap_bytes=gap_bytes,
        request_bytes_max=request_bytes_max,
        budget_bytes=budget_bytes,
        slots=slots,
    )

    wanted = wanted_version(version, tag, branch, operation="scan", path=path)

    async def prepare() -> PreparedScan:
        return await prepare_scan(operator, path, request, wanted)

    return BatchScan(operator, request.prepare(prepare, operator), path=path, options=options)


class VersionedOptions(ScanOptions, total=False):
    """The options of ``scan`` and ``read_table``; ``scan`` documents them."""

    version: int | datetime | None
    tag: str | None
    branch: str | None


async def read_table(operator: Operator, path: str, **options: Unpack[VersionedOptions]) -> pa.Table:
    """The result of ``scan`` with the same options, as one table."""
    return await scan(operator, path, **options).read_all()


async def prepare_scan(operator: Operator, path: str, request: ScanRequest, wanted: WantedVersion) -> PreparedScan:
    """Read the metadata of the file or dataset at ``path``, and prepare its scan."""
    table = await find_table(operator, path, request, wanted)
    return await prepared_scan(table, request, operator)


async def find_table(operator: Operator, path: str, request: ScanRequest, wanted: WantedVersion) -> TableScan:
    """The parts of the file or dataset at ``path`` that ``request`` selects."""
    opened = await _open_any(operator, path, wanted)
    await load_evaluation(request.filters, operator.runtime())
    return file_scan(opened, request) if isinstance(opened, LanceFile) else opened.table(request)


async def _open_any(operator: Operator, path: str, wanted: WantedVersion) -> LanceFile | LanceDataset:
    """The file at ``path``, or the dataset of that name where there is no such file."""
    if not path or path.endswith("/"):
        return await open_wanted(operator, path, wanted)
    if wanted.argument:
        try:
            return await open_wanted(operator, path, wanted)
        except (NotFound, NotADirectory):
            await _refuse_file(operator, path, wanted)
            raise
    try:
        return await open_file(operator, path)
    except (*ABSENT, IsADirectory, UntrustedMetadata):
        # Some servers send a page in place of a directory, or deny every path without an object.
        latest = await latest_version(operator, f"{path}/")
        if latest is None:
            raise
    return await open_wanted(operator, path, WantedVersion(found=latest))


async def _refuse_file(operator: Operator, path: str, wanted: WantedVersion) -> None:
    """``ConfigInvalid`` if there is a file at ``path``, and not a dataset."""
    with suppress(NotFound):
        if not (await operator.stat(path)).is_directory:
            raise ConfigInvalid(f"{wanted.argument}= is for datasets; this is a file, which has no versions")


def file_scan(file: LanceFile, request: ScanRequest) -> TableScan:
    """The scan of a file, which has one part."""
    projection = request.project(file.fields, file.schema.metadata, file.path)
    selection = request.select(file.rows, file.path)

    async def make(places: Sequence[int], ranges: RowRanges) -> tuple[list[FileColumns], dict[int, Column]]:
        fields = [projection.fields[place] for place in places]
        return [await file_columns(file, fields, places, ranges)], {}

    async def parts() -> AsyncGenerator[TablePart, None]:
        if selection.rows:
            yield TablePart(0, selection.ranges, make)

    wanted_bytes = file.size * selection.rows // max(file.rows, 1)
    return TableScan(projection, selection.rows, selection.order, parts, wanted_bytes)


async def count_rows(
    operator: Operator,
    path: str,
    *,
    filters: Any = None,
    version: int | datetime | None = None,
    tag: str | None = None,
    branch: str | None = None,
) -> int:
    """The number of rows of a file or a dataset, without deleted ones, as ``scan`` takes it.

    Without ``filters`` metadata alone is read; with them the columns that they name. Raises what ``scan`` raises. A
    cancelled call leaves nothing behind.
    """
    checked_operator(operator, "count_rows")
    if filters is not None:
        chosen: dict[str, Any] = {"version": version, "tag": tag, "branch": branch}
        async with scan(operator, path, columns=[], filters=filters, ordered=False, **chosen) as batches:
            return sum([batch.num_rows async for batch in batches])
    wanted = wanted_version(version, tag, branch, operation="count_rows", path=path)
    try:
        opened = await _open_any(operator, path, wanted)
    except Error as error:
        error.add_context(operation="count_rows", path=path)
        raise
    return opened.rows if isinstance(opened, LanceFile) else opened.count_rows()


# --- plans ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlannedPage:
    """The reads of one page of a top-level field, needed from row ``row`` of the file on.

    ``is_indirect`` says that their contents decide on further reads (the bytes of some strings, the items of some
    lists), which a plan cannot know.
    """

    column: str
    row: int
    ranges: tuple[Range, ...]
    is_indirect: bool


@dataclass(frozen=True, slots=True)
class FilePlan:
    """One file of a scan. ``pages`` are in the order of scheduling, ``requests`` in the order in which they are sent.

    Pages in the tail of the file are in no request, since the tail is already in memory.
    """

    path: str
    size: int
    version: tuple[int, int]
    rows: int
    pages: tuple[PlannedPage, ...]
    requests: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The reads of a scan. Sizes are in bytes; ``rows`` is the number of distinct rows to read."""

    files: tuple[FilePlan, ...]
    gap_bytes: int
    request_bytes_max: int
    rows: int

    @property
    def requests(self) -> tuple[tuple[str, int, int], ...]:
        """Every request as ``(path, start, end)``."""
        return tuple((file.path, start, end) for file in self.files for start, end in file.requests)

    @property
    def projected_bytes(self) -> int:
        """The bytes of the pages' reads. A byte of several reads counts for each."""
        return sum(end - start for file in self.files for page in file.pages for start, end in page.ranges)

    @property
    def requested_bytes(self) -> int:
        """The bytes of the requests, including gaps."""
        return sum(end - start for _, start, end in self.requests)

    @property
    def indirect_pages(self) -> int:
        """The number of pages with reads that are not in the plan."""
        return sum(page.is_indirect for file in self.files for page in file.pages)

    def _repr_html_(self) -> str:
        from aioprefetch.display import bytes_text
        from aioprefetch.display.bars import PlannedFile, plan_html

        later = f"; {self.indirect_pages:,} pages need more, which a plan cannot know" if self.indirect_pages else ""
        return plan_html(
            f"Plan of {self.files[0].path if len(self.files) == 1 else f'{len(self.files):,} files'}",
            f"{self.rows:,} rows: {bytes_text(self.projected_bytes)} wanted, {len(self.requests):,} requests for"
            f" {bytes_text(self.requested_bytes)}{later}",
            [PlannedFile(file.path, file.size, file.requests) for file in self.files],
        )


class PlanningIo:
    """A ``PageIo`` that records submissions and starts nothing."""

    def __init__(self, file: LanceFile) -> None:
        self._file = file
        self.size = file.size
        self.submitted: list[tuple[int, tuple[Range, ...]]] = []
        self.spawned = 0

    def submit(self, ranges: Sequence[Range], row: int, *, is_follow_up: bool = False) -> PlannedRead:
        """Record the ranges; ``UntrustedMetadata`` if one leaves the file."""
        self.submitted.append((row, tuple(self._file.pinned.check_range(*pair) for pair in ranges)))
        return PlannedRead()

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        """Count the follow-up without running it."""
        work.close()
        self.spawned += 1


class PlannedRead:
    """A ``PendingRead`` that never ends."""

    done = False

    @property
    def views(self) -> Sequence[memoryview]:
        """Raise ``Closed``: a plan has no bytes."""
        raise Closed("a plan has no bytes", operation="plan")

    def promote(self) -> None:
        """Do nothing: a plan has no reads to promote."""

    async def wait(self) -> Sequence[memoryview]:
        """Raise ``Closed``, as ``views`` does."""
        return self.views

    async def arrive(self) -> None:
        """Do nothing: the read never arrives."""

    def release(self) -> None:
        """Do nothing: the read holds no memory."""


async def plan(
    operator: Operator,
    path: str,
    *,
    columns: Sequence[str] | None = None,
    rows: Sequence[int] | None = None,
    take: Any = None,
    filters: Any = None,
    blobs: Blobs = "bytes",
    version: int | datetime | None = None,
    tag: str | None = None,
    branch: str | None = None,
    gap_bytes: ByteCount | None = None,
    request_bytes_max: ByteCount | None = None,
) -> Plan:
    """The reads of ``scan`` with the same arguments, except for metadata.

    Useful to warm a cache or to show a scan. ``filters`` add the columns that they read, and leave out nothing.

    Reads the metadata of the file, or of the files of the dataset that hold wanted rows. The requests are as for a
    scan whose budget holds all of them. Raises as ``scan`` does. A cancelled call leaves nothing behind.
    """
    checked_operator(operator, "plan")
    request = scan_request(
        path,
        columns=columns,
        rows=rows,
        take=take,
        filters=filters,
        blobs=blobs,
        gap_bytes=gap_bytes,
        request_bytes_max=request_bytes_max,
    )
    wanted = wanted_version(version, tag, branch, operation="plan", path=path)
    files: list[FilePlan] = []
    try:
        table = await find_table(operator, path, request, wanted)
        service = request.service(operator, table)
        async with aclosing(table.parts()) as parts:
            async for part in parts:
                names = table.projection.read_schema.names
                read, _ = await part.make(range(len(names)), part.ranges)
                files += [_file_plan(part, file, names, service) for file in read]
                part.on_close()
    except Error as error:
        error.add_context(operation="plan", path=path)
        raise
    return Plan(tuple(files), service.gap_bytes, service.request_bytes_max, table.rows)


def _file_plan(part: TablePart, columns: FileColumns, names: Sequence[str], service: IoService) -> FilePlan:
    file = columns.file
    io = PlanningIo(file)
    order = sorted(columns.columns)
    noting = [_Noting(columns.columns[index][0], names[index], io) for index in order]
    pages = tuple(page for line in scan_lines(noting, io, part.rows) for _, page in line.pages)
    needed = [span for _, ranges in sorted(io.submitted, key=itemgetter(0)) for span in ranges]
    missing = [span for span in needed if file.pinned.resident(*span) is None]
    requests = plan_requests(missing, gap_bytes=service.gap_bytes, request_bytes_max=service.request_bytes_max)
    return FilePlan(file.path, file.size, file.version, part.rows, pages, tuple(requests))


class _Noting(WrappedColumn):
    """A column scheduler whose pages are the byte ranges that they submit."""

    def __init__(self, inner: ColumnScheduler[Any], name: str, io: PlanningIo) -> None:
        super().__init__(inner)
        self._name = name
        self._io = io

    def schedule_next(self, io: PageIo) -> PlannedPage:
        before = self._inner.rows_scheduled
        submitted, spawned = len(self._io.submitted), self._io.spawned
        self._inner.schedule_next(self._io)
        submissions = self._io.submitted[submitted:]
        ranges = tuple(span for _, spans in submissions for span in spans)
        row = submissions[0][0] if submissions else before
        return PlannedPage(self._name, row, ranges, self._io.spawned > spawned)

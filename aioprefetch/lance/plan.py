"""The plan of a scan: its pages, requests and bytes, from metadata alone."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from aioprefetch.errors import Closed, Error
from aioprefetch.lance.dataset.wanted_version import wanted_version
from aioprefetch.lance.footer import LanceFile
from aioprefetch.lance.parts import Blobs, FileColumns, TablePart, scan_request
from aioprefetch.lance.scan import find_table
from aioprefetch.operator.shared import checked_operator
from aioprefetch.ranges import ByteCount, Range
from aioprefetch.scheduler.io_queue import plan_requests
from aioprefetch.scheduler.io_service import IoService
from aioprefetch.scheduler.pages import ColumnScheduler, PageIo
from aioprefetch.scheduler.scheduling_loop import scan_lines

if TYPE_CHECKING:
    from aioprefetch.operator.operator import Operator


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
    """The reads of ``scan`` with the same arguments, without those of metadata.

    Useful to warm a cache or to show a scan. ``filters`` add the columns that they read, and leave out nothing.

    Reads the metadata of the file, or of the files of the dataset that hold wanted rows. The requests are those of a
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
                files += [_file_plan(part, file, table.projection.read_schema.names, service) for file in part.files]
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


class _Noting:
    """A column scheduler whose pages are the byte ranges that they submit."""

    def __init__(self, inner: ColumnScheduler[Any], name: str, io: PlanningIo) -> None:
        self._inner = inner
        self._name = name
        self._io = io

    @property
    def rows_scheduled(self) -> int:
        return self._inner.rows_scheduled

    @property
    def is_finished(self) -> bool:
        return self._inner.is_finished

    def schedule_next(self, io: PageIo) -> PlannedPage:
        before = self._inner.rows_scheduled
        submitted, spawned = len(self._io.submitted), self._io.spawned
        self._inner.schedule_next(self._io)
        submissions = self._io.submitted[submitted:]
        ranges = tuple(span for _, spans in submissions for span in spans)
        row = submissions[0][0] if submissions else before
        return PlannedPage(self._name, row, ranges, self._io.spawned > spawned)

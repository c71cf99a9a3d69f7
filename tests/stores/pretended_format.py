"""A format without bytes: columns of pages with a given number of rows each, which arrive when the test says so."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from aioprefetch.ranges import Range
from aioprefetch.scheduler.pages import DecodeTask, PreparedScan, ScanPart


@dataclass(eq=False)
class PretendedPage:
    """Rows ``[first, first + rows)`` of a column."""

    name: str
    first: int
    rows: int
    arrived: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    wanted: bool = False
    released: int = 0

    @property
    def loaded(self) -> bool:
        """Whether it has come, and well."""
        return self.arrived.done() and self.arrived.exception() is None


class PretendedColumn:
    """A ColumnScheduler that logs what it schedules."""

    def __init__(self, index: int, rows: Sequence[int], log: list[str], make: Callable[..., Any]) -> None:
        self._index, self.page_rows, self._log, self._make = index, list(rows), log, make
        self.rows_scheduled = 0
        self.pages: list[Any] = []

    @property
    def is_finished(self) -> bool:
        """Whether the last page was scheduled."""
        return len(self.pages) == len(self.page_rows)

    def schedule_next(self, io: Any) -> Any:
        """The next page."""
        rows = self.page_rows[len(self.pages)]
        page = self._make(f"C{self._index}P{len(self.pages)}", self.rows_scheduled, rows)
        self._log.append(page.name)
        self.pages.append(page)
        self.rows_scheduled += rows
        return page


@dataclass
class NoIo:
    """A PageIo of which nothing is asked."""

    size: int = 0

    def submit(self, ranges: Sequence[Range], row: int, *, is_follow_up: bool = False) -> Any:
        """Not here."""
        raise AssertionError

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        """Not here."""
        raise AssertionError


class PretendedRoot:
    """A RootDecoder: each batch has one column, with the numbers of its rows."""

    def __init__(self, *, is_cheap: bool = True) -> None:
        self.pages: list[list[PretendedPage]] = []
        self.drained = 0
        self.is_cheap = is_cheap
        self.fails_at: int | None = None
        self.closed = 0

    def accept(self, column: int, page: PretendedPage) -> None:
        """A page."""
        while len(self.pages) <= column:
            self.pages.append([])
        self.pages[column].append(page)

    def _needed(self, rows: int) -> list[PretendedPage]:
        end = self.drained + rows
        return [p for column in self.pages for p in column if p.first < end and p.first + p.rows > self.drained]

    async def wait(self, rows: int) -> None:
        """Until all have arrived."""
        needed = self._needed(rows)
        for page in needed:
            page.wanted = True
        for page in needed:
            await asyncio.shield(page.arrived)

    def loaded_rows(self, rows_max: int) -> int:
        """Up to the first page that has not arrived."""
        missing = [page.first for page in self._needed(rows_max) if not page.loaded]
        return min(rows_max, max(0, min(missing, default=self.drained + rows_max) - self.drained))

    def likely_rows(self, rows: int, batch_bytes: int) -> int:
        """No more than would fit if rows had four bytes."""
        return max(1, min(rows, batch_bytes // 4))

    def fitting_rows(self, rows: int, batch_bytes: int) -> int:
        """Eight bytes a row."""
        return max(1, min(rows, batch_bytes // 8))

    def drain(self, rows: int) -> DecodeTask:
        """The numbers of the next rows."""
        first, self.drained = self.drained, self.drained + rows
        spent = [page for column in self.pages for page in column if first < page.first + page.rows <= self.drained]

        def decode() -> pa.RecordBatch:
            if self.fails_at is not None and first <= self.fails_at < first + rows:
                raise ValueError(f"row {self.fails_at} is bad")
            return pa.record_batch({"row": pa.array(range(first, first + rows), pa.int64())})

        def release() -> None:
            for page in spent:
                page.released += 1

        return DecodeTask(rows=rows, decode=decode, release=release, is_cheap=self.is_cheap)

    def close(self) -> None:
        """Give everything back."""
        self.closed += 1


class PretendedService:
    """A ReadService that is closed once at least."""

    def __init__(self) -> None:
        self.closed = 0
        self.on_progress: Callable[[], None] | None = None
        self.has_received = False

    def close(self) -> None:
        """Counted."""
        self.closed += 1


class PretendedScan:
    """A scan over pretended pages: one part for each list of columns."""

    def __init__(self, *parts: Sequence[Sequence[int]], is_cheap: bool = True) -> None:
        self.log: list[str] = []
        self.service = PretendedService()
        self.roots = [PretendedRoot(is_cheap=is_cheap) for _ in parts]
        self.columns = [
            [PretendedColumn(index, rows, self.log, PretendedPage) for index, rows in enumerate(part)] for part in parts
        ]
        self.parts = [
            ScanPart(columns, root, NoIo(), sum(part[0]) if part else 0)
            for part, columns, root in zip(parts, self.columns, self.roots, strict=True)
        ]
        self.finish: Callable[[pa.RecordBatch, int], pa.RecordBatch | None] | None = None
        self.is_ordered = True

    def prepared(self) -> PreparedScan:
        """What a format would give."""
        schema = pa.schema([("row", pa.int64())])
        parts = [replace(part, finish=self.finish) for part in self.parts]
        return PreparedScan(schema=schema, parts=parts, service=self.service, is_ordered=self.is_ordered)

    async def prepare(self) -> PreparedScan:
        """The same, as a scan asks for it."""
        return self.prepared()

    def pages(self) -> list[PretendedPage]:
        """Every page scheduled so far."""
        return [page for part in self.columns for column in part for page in column.pages]

    def arrive(self, *names: str) -> None:
        """Let pages arrive, all of them without names."""
        for page in self.pages():
            if (not names or page.name in names) and not page.arrived.done():
                page.arrived.set_result(None)
        if self.service.on_progress is not None:
            self.service.on_progress()

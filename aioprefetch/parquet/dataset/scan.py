"""Scans of many Parquet files as one table.

First the files are listed, and those whose partitions match nothing are left out. Then the footers of the others are
read, side by side, for the one schema that all batches have; as far as a part of the budget goes, small files come
whole with their footer, so that they are one request each. Then file after file is planned and read: what is still to
be fetched of the next ones is, while one is decoded, in one budget with its pages.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from aioprefetch.accessor.http_headers import is_weak
from aioprefetch.accessor.path_hints import hint_at_directory
from aioprefetch.errors import (
    ConditionNotMatch,
    Error,
    InvalidArgument,
    IsADirectory,
    NotFound,
    ObjectChanged,
)
from aioprefetch.filters import Dnf
from aioprefetch.operator.operator import Operator
from aioprefetch.parquet.byte_plan import Plan, PlanLimits
from aioprefetch.parquet.columns import (
    FileBatches,
    Target,
    WantedColumns,
    columns_alike,
    prunable_filters,
)
from aioprefetch.parquet.dataset.files import DatasetFile, Partitions, Source, files_instead, find_files, path_values
from aioprefetch.parquet.file_part import BUDGET_SHARE, REQUESTS_HELD, SEGMENT_BYTES_MIN, file_part, memory_limits
from aioprefetch.parquet.footer import TAIL_BYTES, Footer, seen_size, without_data
from aioprefetch.parquet.footer import footer as read_footer
from aioprefetch.parquet.page_metadata import PAGE_BYTES_DEFAULT, PageOptions
from aioprefetch.parquet.plan import ScanArguments, plan_scan
from aioprefetch.parquet.pruning import prune_by_expression
from aioprefetch.ranges import Range, intersected, joined
from aioprefetch.runtime.task_group import all_stopped
from aioprefetch.scheduler.decode_loop import PARTS_AT_ONCE
from aioprefetch.scheduler.io_service import SLOTS_MAX, IoService
from aioprefetch.scheduler.pages import PreparedScan, ScanPart

T = TypeVar("T")


class Job(NamedTuple, Generic[T]):
    """The work on one file, and the bytes that it may bring into memory."""

    start: Callable[[], Coroutine[Any, Any, T]]
    size_bytes: int


class Ahead(Generic[T]):
    """The results of jobs, in their order, while at most ``jobs_max`` of them are open, with ``bytes_max`` together.

    A job is open from its start until ``leave`` is called for it. Two are always let in, of any size: a file ends where
    the next one begins.
    ``aclose`` cancels what runs.
    """

    def __init__(self, jobs: Iterator[Job[T]], *, jobs_max: int, bytes_max: int) -> None:
        self._jobs = jobs
        self._jobs_max = jobs_max
        self._bytes_max = bytes_max
        self._running: deque[tuple[asyncio.Task[T], int]] = deque()
        self._next: Job[T] | None = next(jobs, None)
        self._open = 0
        self._open_bytes = 0
        self._room = asyncio.Event()
        self._closed = False

    async def next(self) -> tuple[T, Callable[[], None]] | None:
        """The result of the next job and its ``leave``, to be called once; ``None`` after the last."""
        self._launch()
        while not self._running:
            if self._next is None or self._closed:
                return None
            self._room.clear()
            await self._room.wait()
            self._launch()
        task, size = self._running.popleft()
        try:
            return await task, partial(self.leave, size)
        finally:
            del task  # The traceback of its error holds this frame.

    async def aclose(self) -> None:
        """Cancel the jobs that run, and wait for their ends."""
        self._closed = True
        self._room.set()
        tasks = [task for task, _ in self._running]
        self._running.clear()
        await all_stopped(tasks)

    def leave(self, size_bytes: int) -> None:
        """A job of this size is no longer open."""
        self._open -= 1
        self._open_bytes -= size_bytes
        self._launch()
        self._room.set()

    def _launch(self) -> None:
        while not self._closed and (job := self._next) is not None and self._has_room(job.size_bytes):
            self._open += 1
            self._open_bytes += job.size_bytes
            self._running.append((asyncio.ensure_future(job.start()), job.size_bytes))
            self._next = next(self._jobs, None)

    def _has_room(self, size_bytes: int) -> bool:
        return self._open < 2 or (self._open < self._jobs_max and self._open_bytes + size_bytes <= self._bytes_max)


async def in_order(starts: Iterable[Callable[[], Coroutine[Any, Any, T]]], width: int) -> AsyncGenerator[T, None]:
    """The results of works in their order; ``width`` works run at once."""
    ahead = Ahead((Job(start, 0) for start in starts), jobs_max=max(width, 1), bytes_max=0)
    try:
        while (found := await ahead.next()) is not None:
            result, leave = found
            leave()
            yield result
    finally:
        await ahead.aclose()


# --- the scan ---------------------------------------------------------------------------------------------------------

# The share of a scan's budget for files that come whole with their footer, before the first batch.
_WHOLE_FILES_SHARE = 4

# The share of a scan's budget for files that are opened ahead of the decoded one.
_AHEAD_SHARE = 2

# Parsed footers that wait for their turn take no more memory than about this; later ones are read again.
_FOOTER_BYTES_MAX = 32 << 20
_PARSED_SHARE = 10

# How many of the files left out by filters are searched for a column that no other file has.
_OTHERS_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetRequest:
    """The arguments of a scan of many files, checked as far as possible without them."""

    source: Source
    arguments: ScanArguments
    limits: Mapping[str, int]
    batch_rows: int
    schema: pa.Schema | None
    has_partitions: bool
    page_checksums: bool = True
    page_bytes_max: int | None = None
    is_ordered: bool = True
    int96_unit: str | None = None

    def page_options(self, memory_bytes: int) -> PageOptions:
        """How pages are checked, in a runtime of ``memory_bytes``."""
        page_bytes = self.page_bytes_max or min(PAGE_BYTES_DEFAULT, memory_bytes)
        return PageOptions(self.page_checksums, page_bytes, max(page_bytes, memory_bytes))


def checked_choice(name: str, value: object, *choices: str, path: str) -> str | None:
    """One of ``choices`` or ``None``, by the argument ``name`` of a caller. ``InvalidArgument`` for others."""
    if value is None or value in choices:
        return None if value is None else str(value)
    known = ", ".join(f'"{choice}"' for choice in choices)
    raise InvalidArgument(f"{name} must be {known} or None, not {value!r}", operation="scan", path=path)


async def prepare_dataset(
    operator: Operator, request: DatasetRequest, files: Sequence[DatasetFile] | None = None
) -> PreparedScan:
    """List the files, read what their schema takes, and prepare the scan. ``files`` come from an earlier listing."""
    if files is None:
        files = await source_files(operator, request.source)
    scan = _DatasetScan(operator, request, files)
    try:
        return await scan.prepared()
    except BaseException:
        scan.service.close()
        raise


async def plan_dataset(operator: Operator, request: DatasetRequest) -> list[Plan]:
    """The plan of each file that the scan of ``prepare_dataset`` reads, in their order."""
    scan = _DatasetScan(operator, request, await source_files(operator, request.source))
    try:
        return await scan.plans()
    finally:
        scan.service.close()


async def source_files(operator: Operator, source: Source) -> list[DatasetFile]:
    """The files of a source; a path alone is a file if it has a footer, and otherwise a directory."""
    path = source.one_file
    if path is None:
        return await find_files(operator, source)
    try:
        found = await read_footer(operator, path, everything=True, size=seen_size(operator, path))
    except (NotFound, IsADirectory) as error:
        return await files_instead(operator, path, error)
    return [DatasetFile(path, size=found.size, etag=found.etag)]


async def listed_footer(
    operator: Operator, file: DatasetFile, *, etag: str | None = None, everything: bool = False
) -> Footer:
    """The footer of the version of a file that was listed, or of that with ``etag``; see ``footer``.

    ``ObjectChanged`` if the file was overwritten since, where the store has conditions; ``NotFound`` if it is gone.
    """
    pinned = etag or file.etag
    if not operator.capability.read_if_match or (pinned and is_weak(pinned)):
        pinned = None
    size = file.size if everything else None
    try:
        return await read_footer(operator, file.path, if_match=pinned, everything=everything, size=size)
    except ConditionNotMatch as error:
        raise ObjectChanged(
            "the file was overwritten after it was listed; scan again",
            expected_etag=pinned,
            actual_etag=None,
            operation="scan",
            path=file.path,
        ) from error
    except (NotFound, IsADirectory) as error:
        if file.size is None:  # It was named in a list, and not listed.
            await hint_at_directory(operator.accessor(), error, file.path, "in a list it ends with a slash")
        raise


class _PlannedFile(NamedTuple):
    """A file whose reads are known, and how its batches become batches of the dataset."""

    footer: Footer
    plan: Plan
    batches: FileBatches


class _DatasetScan:
    """One scan: its files, what is known of each, and the service that reads them."""

    def __init__(self, operator: Operator, request: DatasetRequest, files: Sequence[DatasetFile]) -> None:
        self._operator = operator
        self._request = request
        self._arguments = request.arguments
        self._files = files
        values = [path_values(file.path, file.base) if request.has_partitions else {} for file in files]
        self._partitions = Partitions(values, request.schema)
        self._left: list[Dnf | None] = [None] * len(files)
        self._held: dict[int, Footer] = {}
        self._carried: dict[int, int] = {}
        self._etags: dict[int, str] = {}
        self._row_counts: dict[int, int] = {}
        self._rows: dict[int, list[Range]] = {}
        self._held_bytes = 0
        self.service = _service(operator, request)
        self._budget_bytes = self.service.memory.limit_bytes or operator.runtime().options.memory_bytes
        whole = whole_files([file.size for file in files], self._block_bytes, self._budget_bytes // _WHOLE_FILES_SHARE)
        self._is_whole = whole

    @property
    def _block_bytes(self) -> int:
        return self._operator.runtime().options.block_bytes

    async def prepared(self) -> PreparedScan:
        """Choose the files, and know the schema."""
        chosen, target = await self._targeted()
        return PreparedScan(target.schema, self._parts(chosen, target), self.service, self._request.is_ordered)

    async def plans(self) -> list[Plan]:
        """The plans of all files that are read."""
        chosen, target = await self._targeted()
        works = (partial(self._planned, number, target) for number in chosen)
        async with aclosing(in_order(works, self._slots)) as planned:
            return [each.plan async for each in planned if each.plan.row_count]

    async def _targeted(self) -> tuple[list[int], Target]:
        """The numbers of the files that have wanted rows, as far as their paths and footers tell, and the columns."""
        wanted, unseen = WantedColumns(self._arguments.columns, self._partitions.schema), 0
        chosen = await self._chosen()
        if self._request.schema is None:
            read = chosen or [0]
            async for footer in self._footers(read):
                wanted.add(footer)
            unseen = await self._look_at_others(read, wanted)
        else:
            wanted.declare(self._request.schema, self._files[0].path)
        try:
            target = wanted.target(self._arguments.filters)
        except InvalidArgument as error:
            if unseen:
                error.add_context(hint=f"{unseen} files were not looked at: schema= names the columns that they have")
            raise
        if self._arguments.rows is not None:
            chosen = await self._counted(chosen)
            shares = rows_of_files(self._arguments.rows, [self._row_counts[number] for number in chosen])
            self._rows = dict(zip(chosen, shares, strict=True))
            chosen = [number for number in chosen if self._rows[number]]
        return chosen, target

    async def _look_at_others(self, read: Sequence[int], wanted: WantedColumns) -> int:
        """Look for columns that files lack in some that are left out; the number of the rest if they still lack one.

        First in the last file, which has the latest schema; then, at once, in a few between the first and the last. A
        file that cannot be read tells nothing: the scan does not need it.
        """
        others = sorted(set(range(len(self._files))).difference(read))
        last, few = others[-1:], spread(others[:-1], min(_OTHERS_MAX - 1, self._slots))
        for wave in (last, few):
            if not wanted.lacks(self._arguments.filters):
                break
            works = (partial(self._footer_of_other, number) for number in wave)
            async with aclosing(in_order(works, self._slots)) as footers:
                async for footer in footers:
                    if footer is not None and wanted.lacks(self._arguments.filters):
                        with suppress(Error):
                            wanted.add_other(footer)
        return len(others) - len(last) - len(few) if wanted.lacks(self._arguments.filters) else 0

    async def _footer_of_other(self, number: int) -> Footer | None:
        try:
            found = await listed_footer(self._operator, self._files[number])
            return found.with_int96_unit(self._request.int96_unit)
        except Error:
            return None

    async def _counted(self, numbers: Sequence[int]) -> list[int]:
        """The first files, up to the one with the last wanted row: more and more footers at once, until it is known."""
        wanted = joined(self._arguments.rows or [])
        end = wanted[-1][1] if wanted else 0
        rows = known = 0
        while known < len(numbers) and rows < end:
            wave = numbers[known : 2 * known + 1][: self._slots]
            missing = [number for number in wave if number not in self._row_counts]
            async for _ in self._footers(missing):
                pass
            rows += sum(self._row_counts[number] for number in wave)
            known += len(wave)
        return list(numbers[:known])

    async def _chosen(self) -> list[int]:
        """The numbers of the files whose partitions may match the filters."""
        filters, numbers = self._arguments.filters, range(len(self._files))
        if filters is None:
            return list(numbers)
        if not isinstance(filters, pc.Expression):
            self._left = self._partitions.residual_filters(filters, path=self._files[0].path)
            return [number for number in numbers if self._left[number] != []]
        matching = self._partitions.may_match(filters, path=self._files[0].path)
        return [number for number in numbers if matching[number]]

    # --- footers ------------------------------------------------------------------------------------------------

    async def _footers(self, numbers: Sequence[int]) -> AsyncIterator[Footer]:
        """The footers of files in their order, read side by side, and kept for the scan as far as there is room."""
        numbered = iter(numbers)
        async with aclosing(in_order((partial(self._footer, number) for number in numbers), self._slots)) as footers:
            async for footer in footers:
                number = next(numbered)
                self._row_counts[number] = footer.rows
                self._held_bytes += _PARSED_SHARE * len(footer.raw)
                if number not in self._held and self._held_bytes <= _FOOTER_BYTES_MAX:
                    self._hold(number, footer if self._is_whole[number] else without_data(footer, self._operator))
                yield footer

    def _hold(self, number: int, footer: Footer) -> None:
        self._held[number] = footer
        self._carried[number] = len(footer.pinned.tail)
        self.service.carry(len(footer.pinned.tail))

    async def _footer(self, number: int, *, everything: bool | None = None) -> Footer:
        held = self._held.get(number)
        if held is not None:
            return held
        footer = await listed_footer(
            self._operator,
            self._files[number],
            etag=self._etags.get(number),
            everything=self._is_whole[number] if everything is None else everything,
        )
        if footer.etag:
            self._etags[number] = footer.etag
        return footer.with_int96_unit(self._request.int96_unit)

    @property
    def _slots(self) -> int:
        return min(self._request.limits.get("slots", SLOTS_MAX), self._operator.runtime().options.concurrency)

    # --- parts --------------------------------------------------------------------------------------------------

    async def _parts(self, numbers: Sequence[int], target: Target) -> AsyncIterator[ScanPart]:
        ahead = Ahead(
            self._jobs(numbers, target), jobs_max=max(2, self._slots), bytes_max=self._budget_bytes // _AHEAD_SHARE
        )
        try:
            while (found := await ahead.next()) is not None:
                part_of, leave = found
                part = part_of(leave)
                if part is None:
                    leave()
                else:
                    yield part
        finally:
            await ahead.aclose()

    def _jobs(self, numbers: Sequence[int], target: Target) -> Iterator[Job[_PartOf]]:
        for number in numbers:
            size = self._files[number].size
            whole = size if size is not None and size <= self._block_bytes else TAIL_BYTES
            yield Job(partial(self._open, number, target), 0 if number in self._held else whole)

    async def _open(self, number: int, target: Target) -> _PartOf:
        """Read the metadata of a file and plan its reads."""
        planned = await self._planned(number, target)
        footer = planned.footer
        if number not in self._carried:
            self._hold(number, footer)
        del self._held[number]
        return partial(self._part, number, planned)

    async def _planned(self, number: int, target: Target) -> _PlannedFile:
        footer = await self._footer(number, everything=True)
        filters = self._arguments.filters
        is_undecided = isinstance(filters, pc.Expression) or self._left[number] is not None
        is_filtered = filters is not None and self._arguments.filters_rows and is_undecided
        batches = FileBatches(target, footer, self._partitions.scalars(number), is_filtered=is_filtered)
        limits = PlanLimits.of(self._operator.runtime(), footer, self._request.limits)
        plan = await plan_scan(footer, self._file_arguments(number, footer, batches, target), limits)
        return _PlannedFile(footer, plan, batches)

    def _file_arguments(self, number: int, footer: Footer, batches: FileBatches, target: Target) -> ScanArguments:
        filters, rows, filters_rows = self._arguments.filters, self._rows.get(number), self._arguments.filters_rows
        alike = columns_alike(footer, target.filter_schema) - set(self._partitions.schema.names)
        if not isinstance(filters, pc.Expression):
            prunable = prunable_filters(self._left[number], alike)
            return ScanArguments(batches.columns, rows=rows, filters=prunable, filters_rows=filters_rows)
        if alike.issuperset(target.filter_schema.names):
            return ScanArguments(batches.columns, rows=rows, filters=filters, filters_rows=filters_rows)
        groups = prune_by_expression(
            footer,
            filters,
            range(footer.row_groups),
            schema=target.filter_schema,
            names=alike,
            guarantee=self._partitions.guarantee(number),
        )
        return ScanArguments(columns=batches.columns, row_groups=groups, rows=rows)

    def _part(self, number: int, planned: _PlannedFile, leave: Callable[[], None]) -> ScanPart | None:
        footer, plan, batches = planned
        carried = self._carried.pop(number)
        if not plan.row_count:
            self.service.put_down(carried)
            return None

        def close() -> None:
            self.service.put_down(carried)
            leave()

        request, memory_bytes = self._request, self._operator.runtime().options.memory_bytes
        budget_bytes = request.limits.get("budget_bytes")
        if not request.is_ordered and budget_bytes != 0:
            budget_bytes = self._budget_bytes // PARTS_AT_ONCE
        return file_part(
            footer,
            plan,
            batches.projection(plan.columns),
            self.service,
            memory_limits(plan, budget_bytes, memory_bytes),
            batch_rows=request.batch_rows,
            pages=request.page_options(memory_bytes),
            finish=batches.finish,
            rank=number,
            on_close=close,
        )


_PartOf = Callable[[Callable[[], None]], "ScanPart | None"]


def whole_files(sizes: Sequence[int | None], block_bytes: int, bytes_max: int) -> list[bool]:
    """For each file whether it comes whole with its footer: the first ones of at most a block, ``bytes_max`` in all."""
    left = bytes_max
    whole = []
    for size in sizes:
        whole.append(size is not None and size <= min(block_bytes, left))
        left -= size if size is not None and whole[-1] else 0
    return whole


def spread(numbers: Sequence[int], count: int) -> list[int]:
    """At most ``count`` of some numbers, at equal distances, the first and the last among them if there are two."""
    if len(numbers) <= count:
        return list(numbers)
    return [numbers[place * (len(numbers) - 1) // max(1, count - 1)] for place in range(count)]


def rows_of_files(rows: Sequence[Range], counts: Sequence[int]) -> list[list[Range]]:
    """The share of each file of ``counts`` rows in ``rows``, which count through all files; from its first row on."""
    wanted = joined(rows)
    shares, base = [], 0
    for count in counts:
        share = intersected(wanted, [(base, base + count)])
        shares.append([(start - base, end - base) for start, end in share])
        base += count
    return shares


def _service(operator: Operator, request: DatasetRequest) -> IoService:
    runtime, limits = operator.runtime(), request.limits
    memory_bytes, budget_bytes = runtime.options.memory_bytes, limits.get("budget_bytes")
    held = memory_bytes // BUDGET_SHARE if budget_bytes is None else min(budget_bytes, memory_bytes)
    request_bytes_max = limits.get("request_bytes_max") or runtime.options.block_bytes
    if held:
        request_bytes_max = min(request_bytes_max, max(held // REQUESTS_HELD, SEGMENT_BYTES_MIN))
    return IoService(
        operator.accessor(),
        runtime,
        gap_bytes=limits.get("gap_bytes"),
        request_bytes_max=request_bytes_max,
        budget_bytes=held,
        slots=limits.get("slots"),
    )

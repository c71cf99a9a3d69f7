"""Scans of many Parquet files as one table.

First the files are listed, and those whose partitions match nothing are left out. Then the footers of the others are
read, side by side, for the one schema that all batches have; within a part of the budget, small files come
whole with their footer, so that they are one request each. Then file after file is planned and read: what is still to
be fetched of the next ones is, while one is decoded, in one budget with its pages.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from typing import Any, NamedTuple

import pyarrow as pa

from aioprefetch import arrow_compute as pc
from aioprefetch.accessor.http_headers import is_weak
from aioprefetch.accessor.path_hints import hint_at_directory
from aioprefetch.errors import (
    ConditionNotMatch,
    Error,
    InvalidArgument,
    IsADirectory,
    NotFound,
    ObjectChanged,
    Unsupported,
)
from aioprefetch.filters import Dnf, load_evaluation
from aioprefetch.operator.operator import Operator
from aioprefetch.parquet.byte_plan import Plan, PlanLimits
from aioprefetch.parquet.columns import (
    FileBatches,
    Target,
    WantedColumns,
    columns_alike,
    prunable_filters,
)
from aioprefetch.parquet.dataset.ahead import Ahead, Job, in_order
from aioprefetch.parquet.dataset.catalog import CatalogFile
from aioprefetch.parquet.dataset.field_ids import FieldIds, Matching
from aioprefetch.parquet.dataset.files import (
    DatasetFile,
    Partitions,
    Source,
    files_instead,
    find_files,
    path_values,
    rows_of_files,
    whole_files,
)
from aioprefetch.parquet.file_part import BUDGET_SHARE, REQUESTS_HELD, SEGMENT_BYTES_MIN, file_part, memory_limits
from aioprefetch.parquet.footer import TAIL_BYTES, TAIL_BYTES_EVERYTHING, Footer, seen_size, without_data
from aioprefetch.parquet.footer import footer as read_footer
from aioprefetch.parquet.footer import read_footer as parsed_footer
from aioprefetch.parquet.page_metadata import PAGE_BYTES_DEFAULT, PageOptions
from aioprefetch.parquet.plan import ScanArguments, plan_scan
from aioprefetch.parquet.pruning import filter_tree, prune_by_tree
from aioprefetch.ranges import Range, joined
from aioprefetch.scheduler.decode_loop import PARTS_AT_ONCE
from aioprefetch.scheduler.io_service import SLOTS_MAX, IoService
from aioprefetch.scheduler.pages import PreparedScan, ScanPart
from aioprefetch.scheduler.pinned_file import PinnedFile

# --- the scan ---------------------------------------------------------------------------------------------------------

# The share of a scan's budget for files that come whole with their footer, before the first batch.
_WHOLE_FILES_SHARE = 2

# The share of a scan's budget for files that are opened ahead of the decoded one.
_AHEAD_SHARE = 2

# Footers that wait for their turn have at most this size, and no more than a share of the budget; later ones are read
# again. Parsed ones take no more memory than about half of it; others are parsed again.
_FOOTER_BYTES_MAX = 64 << 20
_FOOTERS_SHARE = 4
_PARSED_SHARE = 10

# How many of the files left out by filters are searched for a column that no other file has.
_OTHERS_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetRequest:
    """The arguments of a scan of many files, checked as well as is possible without them."""

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
    partition_schema: pa.Schema | None = None
    fills_missing: bool = True
    ignores_extra: bool = True
    path_column: str | None = None
    row_index: str | None = None
    files: Sequence[CatalogFile] | None = None
    matching: Matching = ((), None)

    @property
    def added(self) -> list[str]:
        """The names of the columns that tell of a row where it comes from."""
        return [name for name in (self.path_column, self.row_index) if name is not None]

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
    """List the files, read what their schema takes, and prepare the scan. ``files`` are those of an earlier listing."""
    await load_evaluation(request.arguments.filters, operator.runtime())
    scan = await _dataset_scan(operator, request, files)
    try:
        return await scan.prepared()
    except BaseException:
        scan.service.close()
        raise


async def plan_dataset(
    operator: Operator, request: DatasetRequest, files: Sequence[DatasetFile] | None = None
) -> list[Plan]:
    """The plan of each file that the scan of ``prepare_dataset`` reads, in their order."""
    scan = await _dataset_scan(operator, request, files)
    try:
        return await scan.plans()
    finally:
        scan.service.close()


async def _dataset_scan(
    operator: Operator, request: DatasetRequest, files: Sequence[DatasetFile] | None
) -> _DatasetScan:
    known, files = None, request.files if files is None else files
    if files is None:
        files, known = await source_files(operator, request.source)
    return _DatasetScan(operator, request, files, known)


async def source_files(operator: Operator, source: Source) -> tuple[list[DatasetFile], Footer | None]:
    """The files of a source; a path alone is a file if it has a footer, which is given too, or else a directory."""
    path = source.one_file
    if path is None:
        return await find_files(operator, source), None
    try:
        found = await read_footer(operator, path, everything=True, size=seen_size(operator, path))
    except (NotFound, IsADirectory) as error:
        return await files_instead(operator, path, error), None
    return [DatasetFile(path, size=found.size, etag=found.etag)], found


async def listed_footer(
    operator: Operator, file: DatasetFile, *, etag: str | None = None, everything: bool = False
) -> Footer:
    """The footer of the version of a file that was listed, or of that with ``etag``; see ``footer``.

    ``ObjectChanged`` if the file was overwritten since, where strong ETags show it; ``NotFound`` if it is gone.
    """
    expected = etag or file.etag
    if expected and is_weak(expected):
        expected = None
    size, pinned = file.size if everything else None, expected if operator.capability.read_if_match else None
    try:
        found = await read_footer(operator, file.path, if_match=pinned, everything=everything, size=size)
    except ConditionNotMatch as error:
        raise _overwritten(file, expected, None) from error
    except (NotFound, IsADirectory) as error:
        if file.size is None:  # It was named in a list, and not listed.
            await hint_at_directory(operator.accessor(), error, file.path, "in a list it ends with a slash")
        if isinstance(file, CatalogFile) and file.table is not None:
            error.add_context(table=file.table.text, hint="the table's files of this version were removed since")
        raise
    if expected and found.etag and not is_weak(found.etag) and found.etag != expected:
        raise _overwritten(file, expected, found.etag)  # By a store without conditions.
    return found


def _overwritten(file: DatasetFile, expected: str | None, actual: str | None) -> ObjectChanged:
    return ObjectChanged(
        "the file was overwritten after it was listed; scan again",
        expected_etag=expected,
        actual_etag=actual,
        operation="scan",
        path=file.path,
    )


class _PlannedFile(NamedTuple):
    """A file whose reads are known, and how its batches become batches of the dataset."""

    footer: Footer
    plan: Plan
    batches: FileBatches


class _DatasetScan:
    """One scan: its files, what is known of each, and the service that reads them."""

    def __init__(
        self,
        operator: Operator,
        request: DatasetRequest,
        files: Sequence[DatasetFile],
        known: Footer | None = None,
    ) -> None:
        """``known`` is the footer of the one file."""
        self._operator = operator
        self._request = request
        self._arguments = request.arguments
        self._files = files
        self._partitions = self._partitions_of(files)
        self._ids = None
        if request.matching[0] and request.schema is not None:
            passed = self._partitions.schema.names
            self._ids = FieldIds(request.schema, request.matching, passed, path=self._path)
        self._left: list[Dnf | None] = [None] * len(files)
        self._held: dict[int, Footer | PinnedFile] = {}
        self._carried: dict[int, int] = {}
        self._etags: dict[int, str] = {}
        self._row_counts: dict[int, int] = {}
        self._rows: dict[int, list[Range]] = {}
        self._held_bytes = 0
        self._known_names = None if request.schema is None else {*request.schema.names}
        self.service = _service(operator, request)
        self._budget_bytes = self.service.memory.limit_bytes or operator.runtime().options.memory_bytes
        whole_bytes_max, sizes = self._budget_bytes // _WHOLE_FILES_SHARE, [file.size for file in files]
        self._is_whole = whole = whole_files(sizes, self._block_bytes, whole_bytes_max)
        self._whole_bytes_left = whole_bytes_max - sum(size or 0 for size in compress(sizes, whole))
        self._large_tails = self._whole_bytes_left // TAIL_BYTES_EVERYTHING
        if known is not None:
            footer = known.with_int96_unit(request.int96_unit)
            self._hold(0, footer if whole[0] else without_data(footer, operator))

    def _partitions_of(self, files: Sequence[DatasetFile]) -> Partitions:
        """The columns of partitions, of paths and of row numbers."""
        request, typed = self._request, dict[str, pa.Field]()
        values: list[dict[str, Any]] = [self._partition_values(file) for file in files]
        for field in (*(request.schema or ()), *(request.partition_schema or ())):
            typed[field.name] = field
        for name in request.added:
            if any(name in of_file for of_file in values):
                raise self._taken(name)
        for field in request.partition_schema or ():
            for of_file in values[:1]:
                of_file.setdefault(field.name, None)
        if request.path_column is not None:
            typed[request.path_column] = pa.field(request.path_column, pa.string())
            values = [{**of_file, request.path_column: file.path} for of_file, file in zip(values, files, strict=True)]
        others = [] if request.row_index is None else [pa.field(request.row_index, pa.int64())]
        return Partitions(values, pa.schema(list(typed.values())), others, are_exact=request.files is not None)

    def _partition_values(self, file: DatasetFile) -> dict[str, Any]:
        if isinstance(file, CatalogFile):
            return dict(file.partition or {})
        return dict(path_values(file.path, file.base)) if self._request.has_partitions else {}

    @property
    def _path(self) -> str:
        """For errors that concern no file in particular."""
        return self._files[0].path if self._files else ""

    def _taken(self, name: str) -> InvalidArgument:
        return InvalidArgument(
            f"the files have a column {name!r} already: give include_file_paths= and row_index_name= another name",
            operation="scan",
            path=self._path,
        )

    def _check_extra(self, footer: Footer) -> None:
        """``Unsupported`` for a column of a file that the table does not have."""
        known = "the first file" if self._request.schema is None else "schema="
        for name in [] if self._request.ignores_extra else footer.schema.names:
            if name not in (self._known_names or ()):
                raise Unsupported(
                    f"column {name!r} is not in {known}, and extra_columns= says that files have no others",
                    operation="scan",
                    path=footer.path,
                )

    @property
    def _block_bytes(self) -> int:
        return self._operator.runtime().options.block_bytes

    async def prepared(self) -> PreparedScan:
        """Choose the files, and know the schema."""
        chosen, target = await self._targeted()
        return PreparedScan(target.schema, self._parts(chosen, target), self.service, self._request.is_ordered)

    async def plans(self) -> list[Plan]:
        """The plans of all files that are read; of one file also where no row of it is."""
        chosen, target = await self._targeted()
        if not chosen and self._request.source.one_file is not None:
            chosen, self._rows = [0], {0: []}
        works = (partial(self._planned, number, target) for number in chosen)
        async with aclosing(in_order(works, self._slots)) as planned:
            return [each.plan async for each in planned]

    async def _targeted(self) -> tuple[list[int], Target]:
        """The numbers of the files that may have wanted rows, by their paths and footers, and the columns."""
        added, columns, unseen = self._request.added, self._arguments.columns, 0
        if columns is not None:
            columns = [*columns, *(name for name in added if name not in columns)]
        wanted = WantedColumns(columns, self._partitions.schema)
        chosen = await self._chosen()
        if self._request.schema is None:
            read = chosen or [0]
            async for footer in self._footers(read):
                self._known_names = self._known_names or {*footer.schema.names}
                self._check_extra(footer)
                wanted.add(footer)
            unseen = await self._look_at_others(read, wanted)
        else:
            wanted.declare(self._request.schema, self._path, added)
        for name in added:
            if self._request.schema is None and wanted.union.has_in_files(name):
                raise self._taken(name)
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
            self._left = self._partitions.residual_filters(filters, path=self._path)
            return [number for number in numbers if self._left[number] != []]
        matching = self._partitions.may_match(filters, path=self._path)
        return [number for number in numbers if matching[number]]

    # --- footers ------------------------------------------------------------------------------------------------

    async def _footers(self, numbers: Sequence[int]) -> AsyncIterator[Footer]:
        """The footers of files in their order, read side by side, and kept for the scan as far as there is room."""
        numbered, bytes_max = iter(numbers), min(_FOOTER_BYTES_MAX, self._budget_bytes // _FOOTERS_SHARE)
        async with aclosing(in_order((partial(self._footer, number) for number in numbers), self._slots)) as footers:
            async for footer in footers:
                number = next(numbered)
                self._row_counts[number] = footer.rows
                self._held_bytes += len(footer.raw)
                if number not in self._held and self._held_bytes <= bytes_max:
                    keeps_data = self._is_whole[number] or self._keeps_tail(number, footer)
                    held = footer if keeps_data else without_data(footer, self._operator)
                    is_parsed = _PARSED_SHARE * self._held_bytes <= _FOOTER_BYTES_MAX // 2
                    self._hold(number, held if is_parsed else held.pinned)
                yield footer

    def _comes_with_data(self, number: int) -> bool:
        """Whether data are asked for with the footer: a whole file, or the larger tail of one of unknown size."""
        return self._is_whole[number] or (self._files[number].size is None and number < self._large_tails)

    def _keeps_tail(self, number: int, footer: Footer) -> bool:
        """Whether the tail of a file of unknown size may stay in memory until its turn."""
        tail_bytes, is_large = len(footer.pinned.tail), number < self._large_tails or not footer.pinned.tail_start
        if self._files[number].size is not None or not is_large or tail_bytes > self._whole_bytes_left:
            return False
        self._whole_bytes_left -= tail_bytes
        return True

    def _hold(self, number: int, held: Footer | PinnedFile) -> None:
        self._held[number] = held
        self._carried[number] = size_bytes = len((held.pinned if isinstance(held, Footer) else held).tail)
        self.service.carry(size_bytes)

    async def _footer(self, number: int, *, everything: bool | None = None) -> Footer:
        held = self._held.get(number)
        if isinstance(held, Footer):
            return held
        if held is not None:
            footer = await parsed_footer(held, self._operator.runtime())
        else:
            footer = await listed_footer(
                self._operator,
                self._files[number],
                etag=self._etags.get(number),
                everything=self._comes_with_data(number) if everything is None else everything,
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
        values = self._partitions.scalars(number)
        if self._ids is not None:
            footer = await self._operator.runtime().run_blocking(self._ids.named, footer)
            footer = footer.with_int96_unit(self._request.int96_unit)
            values = self._ids.defaults(footer) | values
        self._check_extra(footer)
        filters = self._arguments.filters
        is_undecided = isinstance(filters, pc.Expression) or self._left[number] is not None
        is_filtered = filters is not None and self._arguments.filters_rows and is_undecided
        file, dropped = self._files[number], None
        if isinstance(file, CatalogFile):
            run = self._operator.runtime().run_blocking
            rows, dropped = await run(file.wanted_rows, footer) if file.is_masked else file.wanted_rows(footer)
            if rows is not None:
                self._rows[number] = rows
        batches = FileBatches(
            target,
            footer,
            values,
            is_filtered=is_filtered,
            dropped=dropped,
            fills=self._request.fills_missing,
            row_index=self._request.row_index,
        )
        limits = PlanLimits.of(self._operator.runtime(), footer, self._request.limits)
        arguments = self._file_arguments(number, footer, batches, target)
        if dropped is not None:
            arguments = replace(arguments, counted=None)
        plan = await plan_scan(footer, arguments, limits)
        return _PlannedFile(footer, plan, batches)

    def _file_arguments(self, number: int, footer: Footer, batches: FileBatches, target: Target) -> ScanArguments:
        filters, left = self._arguments.filters, self._left[number]
        arguments = replace(self._arguments, columns=batches.columns, rows=self._rows.get(number))
        alike = columns_alike(footer, target.filter_schema) - set(self._partitions.scalars(number))
        if not isinstance(filters, pc.Expression):
            if not all(clause[0] in alike for clauses in left or () for clause in clauses):
                arguments = replace(arguments, counted=None)
            return replace(arguments, filters=prunable_filters(left, alike))
        if alike.issuperset(target.filter_schema.names):
            return arguments
        groups = prune_by_tree(
            footer,
            filter_tree(filters),
            range(footer.row_groups),
            schema=target.filter_schema,
            names=alike,
            guarantee=self._partitions.guarantee(number),
        )
        return replace(arguments, row_groups=groups, filters=None)

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
            batches.projection(plan),
            self.service,
            memory_limits(plan, budget_bytes, memory_bytes),
            batch_rows=request.batch_rows,
            pages=request.page_options(memory_bytes),
            finish=batches.finish,
            rank=number,
            on_close=close,
        )


_PartOf = Callable[[Callable[[], None]], "ScanPart | None"]


def spread(numbers: Sequence[int], count: int) -> list[int]:
    """At most ``count`` of some numbers, at equal distances, the first and the last among them if there are two."""
    if len(numbers) <= count:
        return list(numbers)
    return [numbers[place * (len(numbers) - 1) // max(1, count - 1)] for place in range(count)]


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

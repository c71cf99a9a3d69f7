"""A Lance dataset at one version, for reading; its fragments are the parts of a scan.

The metadata of files is kept for later scans, since a take of a few rows would mostly read metadata again. Columns that
were added after a fragment was written are null in it, without any I/O.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, TypeVar, Unpack

import pyarrow as pa

from aioprefetch.errors import Error, Unsupported, UntrustedMetadata
from aioprefetch.filters import load_evaluation
from aioprefetch.lance.batches import read_through
from aioprefetch.lance.footer import LanceFile, open_file
from aioprefetch.lance.fragment_rows import (
    ROW_FIELDS,
    THREAD_ROWS_MIN,
    RowNumbersField,
    physical_ranges,
    read_deletions,
)
from aioprefetch.lance.manifest import DataFile, Fragment, Manifest
from aioprefetch.lance.output import ArrayTask, ColumnWithoutReads, FieldDecoder, FieldWithoutReads, null_bits
from aioprefetch.lance.parts import (
    Column,
    FileColumns,
    ScanOptions,
    ScanRequest,
    TablePart,
    TableScan,
    TakeOptions,
    file_columns,
    scan_request,
)
from aioprefetch.lance.physical.protocols import check_nulls
from aioprefetch.lance.prepared import prepared_scan
from aioprefetch.lance.schema import Field, arrow_schema, needed_columns, walk
from aioprefetch.lance.versions import (
    DatasetVersion,
    WantedVersion,
    find_manifest,
    list_versions,
    resolved,
    wanted_version,
)
from aioprefetch.operator.operator import Operator
from aioprefetch.operator.shared import checked_operator
from aioprefetch.row_ranges import RowNumbers, RowRanges
from aioprefetch.runtime.callers import entering
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.task_group import all_stopped, gather_all
from aioprefetch.scan import BATCH_ROWS, BatchScan, batch_options
from aioprefetch.scheduler.decode_loop import READAHEAD_BATCHES
from aioprefetch.scheduler.pages import PreparedScan

K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V")

# The number of deletion files that are read concurrently if the manifest does not state their numbers of rows.
_DELETION_READS = 16


class LanceDataset:
    """One version of a dataset, which later versions do not change. ``open_dataset`` makes it.

    It holds metadata (of the dataset and the last used files), and need not be closed. It may be used on any event
    loop.
    """

    def __init__(
        self, operator: Operator, path: str, wanted: WantedVersion, manifest: Manifest, living_rows: Sequence[int]
    ) -> None:
        self._operator = operator
        self._wanted = wanted
        self._manifest = manifest
        self._living_rows = living_rows
        self._files = OpenFiles(operator)
        self.path = path

    def __repr__(self) -> str:
        return f"<LanceDataset {self.path!r} version {self.version}, {self.count_rows()} rows>"

    @property
    def version(self) -> int:
        """The version's number."""
        return self._manifest.version

    @property
    def branch(self) -> str | None:
        """The branch of the version, ``None`` for the main one."""
        return self._wanted.branch

    @property
    def committed(self) -> datetime | None:
        """When the version was written, in UTC, by the clock of its writer; ``None`` if the manifest does not say."""
        return self._manifest.committed

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema, with the dataset's metadata."""
        return arrow_schema(self._manifest.fields, self._manifest.schema_metadata)

    @property
    def fragments(self) -> tuple[Fragment, ...]:
        """The fragments in the order of their rows."""
        return self._manifest.fragments

    def count_rows(self) -> int:
        """The number of rows, without deleted ones. No I/O."""
        return sum(self._living_rows)

    async def versions(self) -> list[DatasetVersion]:
        """All versions of the branch in the store, oldest first, by one listing."""
        return await list_versions(self._operator, self._wanted.directory(base_of(self.path)))

    def scan(self, **options: Unpack[ScanOptions]) -> BatchScan:
        """The record batches of the dataset, fragment by fragment; a plain call without I/O.

        Options and errors as for ``aioprefetch.lance.scan``, except for versions. Row numbers count the
        rows of all fragments without deleted ones. No batch spans two fragments, unless ``take`` asks for another
        order. A column is null for the rows of a fragment that lacks it.
        """
        arguments: dict[str, Any] = {
            "batch_rows": BATCH_ROWS,
            "batch_bytes": None,
            "readahead": READAHEAD_BATCHES,
            "limit": None,
            **options,
        }
        shape = [arguments.pop(name) for name in ("batch_rows", "batch_bytes", "readahead", "limit")]
        batches = batch_options(*shape, path=self.path)
        request = scan_request(self.path, limit=batches.limit, **arguments)

        async def prepare() -> PreparedScan:
            await load_evaluation(request.filters, self._operator.runtime())
            return await prepared_scan(self.table(request), request, self._operator)

        return BatchScan(self._operator, request.prepare(prepare, self._operator), path=self.path, options=batches)

    async def read_table(self, **options: Unpack[ScanOptions]) -> pa.Table:
        """The result of ``scan`` with the same options, as one table."""
        return await self.scan(**options).read_all()

    async def take(self, indices: Any, **options: Unpack[TakeOptions]) -> pa.Table:
        """The rows with the numbers ``indices``, in that order: ``read_table(take=indices)``."""
        return await self.read_table(take=indices, **options)

    def table(self, request: ScanRequest) -> TableScan:
        """The scan of a request."""
        manifest = self._manifest
        projection = request.project(manifest.fields, manifest.schema_metadata, self.path, hidden=ROW_FIELDS)
        selection = request.select(self.count_rows(), self.path)
        wanted = wanted_fragments(manifest.fragments, self._living_rows, selection.ranges)

        def parts() -> AsyncGenerator[TablePart, None]:
            return fragment_parts(self._files, wanted, projection.fields)

        sizes = [file.size for fragment in manifest.fragments for file in fragment.files]
        stated_bytes = sum(size for size in sizes if size is not None)
        wanted_bytes = None if None in sizes else stated_bytes * selection.rows // max(self.count_rows(), 1)
        return TableScan(projection, selection.rows, selection.order, parts, wanted_bytes)


async def open_dataset(
    operator: Operator,
    path: str,
    version: int | datetime | None = None,
    *,
    tag: str | None = None,
    branch: str | None = None,
) -> LanceDataset:
    """The dataset in the directory ``path``: its latest version, or the one named by ``version`` or ``tag``.

    Costs one GET and, without both, one page of a listing. ``NotFound`` if the dataset or the version does not exist,
    ``Unsupported`` if it uses unknown features, ``UntrustedMetadata`` for a damaged manifest.
    A cancelled call leaves nothing behind.

    Parameters
    ----------
    version
        The number of a version. Or a time with its zone, for the latest version written at that time or before: the
        versions are listed, and the times in their manifests are searched by halves, a GET each.
    tag
        The name of a tag. It takes another GET.
    branch
        The name of a branch, whose versions count from the one where it began. It takes a HEAD.
    """
    wanted = wanted_version(version, tag, branch, operation="open", path=path)
    return await open_wanted(operator, path, wanted)


async def open_wanted(operator: Operator, path: str, wanted: WantedVersion) -> LanceDataset:
    """``open_dataset`` with arguments that were checked."""
    checked_operator(operator, "open")
    try:
        wanted = await resolved(operator, base_of(path), wanted)
        manifest = await find_manifest(operator, base_of(path), wanted)
        calls = (partial(_living_rows, operator, fragment) for fragment in manifest.fragments)
        living = await gather_all(calls, at_once=_DELETION_READS)
    except Error as error:
        error.add_context(operation="open", path=path)
        raise
    return LanceDataset(operator, path, wanted, manifest, living)


async def _living_rows(operator: Operator, fragment: Fragment) -> int:
    """The number of living rows of a fragment. Old manifests do not state the number of deleted rows."""
    file = fragment.deletion_file
    if file is None:
        return fragment.rows
    if file.rows is not None:
        return fragment.rows - file.rows
    return fragment.rows - len(await read_deletions(operator, fragment))


def base_of(path: str) -> str:
    """The directory of a dataset as a prefix of paths."""
    return f"{path.rstrip('/')}/" if path.strip("/") else ""


# --- metadata of files that is kept -----------------------------------------------------------------------------------

# The maximum number of kept files. Each holds its tail, mostly 64 KiB; lists of deleted rows are mostly smaller.
_KEPT_MAX = 128


class OpenFiles:
    """The last used files and lists of deleted rows of one dataset. Files of a dataset never change.

    Files belong to the runtime that opened them. On another event loop they are opened again and replace the first
    ones.
    """

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._files: tuple[Runtime | None, OrderedDict[str, LanceFile]] = (None, OrderedDict())
        self._deletions: OrderedDict[int, RowNumbers] = OrderedDict()

    async def file(self, wanted: DataFile) -> LanceFile:
        """An open data file, by one request unless it is kept."""
        runtime = self._operator.runtime()
        owner, files = self._files
        if owner is not runtime:
            self._files = runtime, files = runtime, OrderedDict()
        if (held := files.get(wanted.path)) is None:
            held = await open_file(self._operator, wanted.path, size=wanted.size)
        _keep(files, wanted.path, held)
        return held

    async def deletions(self, fragment: Fragment) -> RowNumbers:
        """The deleted rows of a fragment, ascending; by one request unless it has none or they are kept."""
        if (held := self._deletions.get(fragment.id)) is None:
            held = await read_deletions(self._operator, fragment)
        if fragment.deletion_file is not None:
            _keep(self._deletions, fragment.id, held)
        return held

    async def run(self, work: Callable[[], T], *, rows: int) -> T:
        """The result of work on ``rows`` deleted rows, done on another thread if the number is large."""
        return work() if rows < THREAD_ROWS_MIN else await self._operator.runtime().run_blocking(work)


def _keep(kept: OrderedDict[K, V], key: K, value: V) -> None:
    """Keep a value as the most recently used, and drop the least recently used one beyond the maximum."""
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > _KEPT_MAX:
        kept.popitem(last=False)


# --- fragments --------------------------------------------------------------------------------------------------------

# The number of fragments whose metadata is read ahead of scheduling.
_FRAGMENTS_AHEAD = 8

# The maximum number of fragments between scheduling and decoding, since no budget counts the memory of their metadata.
_FRAGMENTS_OPEN_MAX = 64


@dataclass(frozen=True, slots=True)
class WantedFragment:
    """A fragment with its wanted rows, counted without deleted ones. ``rank`` is its position in the dataset."""

    rank: int
    fragment: Fragment
    ranges: RowRanges


def wanted_fragments(
    fragments: Sequence[Fragment], living_rows: Sequence[int], ranges: RowRanges
) -> list[WantedFragment]:
    """The fragments with rows of ``ranges``, over the whole dataset, each with its share."""
    wanted: list[WantedFragment] = []
    base = 0
    for rank, (fragment, rows) in enumerate(zip(fragments, living_rows, strict=True)):
        end = base + rows
        share = ranges.within(base, end)
        if share.rows:
            wanted.append(WantedFragment(rank, fragment, share))
        base = end
    return wanted


async def fragment_parts(
    files: OpenFiles, wanted: Sequence[WantedFragment], fields: Sequence[Field]
) -> AsyncGenerator[TablePart, None]:
    """The parts of a scan, in order. The metadata of the next parts is read ahead.

    It waits for ``on_close`` of an earlier part while too many are open.
    """
    room = asyncio.Semaphore(_FRAGMENTS_OPEN_MAX)
    opening: deque[asyncio.Task[TablePart]] = deque()
    waiting = deque(wanted)
    try:
        while opening or waiting:
            while waiting and len(opening) < _FRAGMENTS_AHEAD:
                next_fragment = waiting.popleft()
                name = f"open fragment {next_fragment.fragment.id}"
                part_opened = _open_part(files, next_fragment, fields)
                opening.append(asyncio.create_task(part_opened, name=name, context=entering()))
            await room.acquire()
            part = await opening[0]
            opening.popleft()
            yield replace(part, on_close=room.release)
    finally:
        await all_stopped(opening)
        opening.clear()  # The traceback of an error holds this frame.


async def _open_part(open_files: OpenFiles, wanted: WantedFragment, fields: Sequence[Field]) -> TablePart:
    fragment = wanted.fragment
    homes = [_home(field, fragment) for field in fields]
    files = list(dict.fromkeys(home for home in homes if home is not None))
    opening = gather_all(partial(_open, open_files, fragment.files[index], fragment) for index in files)
    deletions = asyncio.create_task(open_files.deletions(fragment), context=entering())
    try:
        opened = await opening
        deleted = await deletions
    finally:
        deletions.cancel()
        await asyncio.gather(deletions, return_exceptions=True)
        del deletions  # The traceback of its error holds this frame.
    ranges, dropped = await open_files.run(
        lambda: read_through(physical_ranges(wanted.ranges, deleted), wanted.ranges), rows=len(deleted)
    )
    within: dict[int, Field] = {}
    for index, file in zip(files, opened, strict=True):
        own = [position for position, home in enumerate(homes) if home == index]
        within |= {position: placed(fields[position], fragment.files[index].columns, file) for position in own}
        await file.load_columns(needed_columns([within[position] for position in own], file.version))

    async def make(places: Sequence[int], ranges: RowRanges) -> tuple[list[FileColumns], dict[int, Column]]:
        columns: list[FileColumns] = []
        for index, file in zip(files, opened, strict=True):
            if own := [place for place in places if homes[place] == index]:
                columns.append(await file_columns(file, [within[place] for place in own], own, ranges))
        computed: dict[int, Column] = {
            place: (ColumnWithoutReads(ranges.rows), _computed(fields[place], fragment, ranges))
            for place in places
            if homes[place] is None
        }
        return columns, computed

    return TablePart(wanted.rank, ranges, make, dropped)


def _computed(field: Field, fragment: Fragment, ranges: RowRanges) -> FieldDecoder[None]:
    """The decoder of a field without a file."""
    if field in ROW_FIELDS:
        return RowNumbersField(field, fragment, ranges)
    return MissingField(field.arrow.type)


async def _open(open_files: OpenFiles, data_file: DataFile, fragment: Fragment) -> LanceFile:
    file = await open_files.file(data_file)
    if file.rows != fragment.rows:
        raise UntrustedMetadata(
            f"the file has {file.rows} rows where the manifest says {fragment.rows}",
            path=data_file.path,
        )
    return file


def _home(field: Field, fragment: Fragment) -> int | None:
    """The index of the file of a fragment with a field and its children; ``None`` if no file has it."""
    wanted = {inner.id for inner in walk([field])}
    homes = [index for index, file in enumerate(fragment.files) if not wanted.isdisjoint(file.columns)]
    if len(homes) > 1:
        raise Unsupported(
            f"field {field.name!r} lies in {len(homes)} files of fragment {fragment.id}, which is not supported",
        )
    return homes[0] if homes else None


def placed(field: Field, columns: Mapping[int, int], file: LanceFile) -> Field:
    """A field of the dataset with its columns, and its children's, in a file."""
    if field.metadata.get("ARROW:extension:name") == b"lance.blob.v2":
        raise Unsupported(
            f"blob field {field.name!r} of version 2.2 is not supported: name the other columns", path=file.path
        )
    if field.is_one_column(file.version):
        index = _column(field, columns, file)
        return replace(field, columns=range(index, index + 1))
    children = tuple(placed(child, columns, file) for child in field.children)
    first = _column(field, columns, file) if file.version == (2, 0) else children[0].columns.start
    return replace(field, children=children, columns=range(first, max(first + 1, children[-1].columns.stop)))


def _column(field: Field, columns: Mapping[int, int], file: LanceFile) -> int:
    index = columns.get(field.id)
    if index is None:
        raise Unsupported(f"a part of field {field.name!r} is not in the file that holds the rest", path=file.path)
    if index >= file.column_count:
        raise UntrustedMetadata(
            f"field {field.name!r} is said to be column {index} of {file.column_count}", path=file.path
        )
    return index


class MissingField(FieldWithoutReads):
    """A missing column, which is null."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._row_bits = null_bits(kind)

    def size_bytes(self, rows: int) -> int:
        return (rows * self._row_bits + 7) // 8

    def drain(self, rows: int) -> ArrayTask:
        """The next ``rows`` nulls. ``Unsupported`` if they take more memory than a batch may have."""
        check_nulls(self.size_bytes(rows))
        return ArrayTask(decode=lambda: pa.nulls(rows, self._kind))

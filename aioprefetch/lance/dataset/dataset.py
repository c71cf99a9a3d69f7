"""A Lance dataset at one version, for reading."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import pyarrow as pa

from aioprefetch.errors import Error
from aioprefetch.lance.dataset.deletions import read_deletions
from aioprefetch.lance.dataset.fragments import OpenFiles, fragment_parts, wanted_fragments
from aioprefetch.lance.dataset.manifest import Fragment, Manifest
from aioprefetch.lance.dataset.row_numbers import ROW_FIELDS
from aioprefetch.lance.dataset.versions import DatasetVersion, list_versions
from aioprefetch.lance.dataset.wanted_version import WantedVersion, find_manifest, resolved, wanted_version
from aioprefetch.lance.parts import (
    Blobs,
    ScanOptions,
    ScanRequest,
    TablePart,
    TableScan,
    TakeOptions,
    prepared_scan,
    scan_request,
)
from aioprefetch.lance.schema import arrow_schema
from aioprefetch.operator.shared import checked_operator
from aioprefetch.ranges import ByteCount
from aioprefetch.runtime.task_group import gather_all
from aioprefetch.scan import BATCH_ROWS, BatchScan, batch_options
from aioprefetch.scheduler.decode_loop import READAHEAD_BATCHES
from aioprefetch.scheduler.pages import PreparedScan

if TYPE_CHECKING:
    from aioprefetch.operator.operator import Operator

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
        return await list_versions(self._operator, self._wanted.directory(_base(self.path)))

    def scan(
        self,
        *,
        columns: Sequence[str] | None = None,
        rows: Sequence[int] | None = None,
        take: Any = None,
        filters: Any = None,
        blobs: Blobs = "bytes",
        batch_rows: int = BATCH_ROWS,
        batch_bytes: ByteCount | None = None,
        readahead: int = READAHEAD_BATCHES,
        gap_bytes: ByteCount | None = None,
        request_bytes_max: ByteCount | None = None,
        budget_bytes: ByteCount | None = None,
        slots: int | None = None,
    ) -> BatchScan:
        """The record batches of the dataset, fragment by fragment; a plain call without I/O.

        Arguments and errors are those of ``aioprefetch.lance.scan``. Row numbers count the rows of all fragments
        without deleted ones. No batch spans two fragments, unless ``take`` asks for another order. A column is null for
        the rows of a fragment that lacks it.
        """
        options = batch_options(batch_rows, batch_bytes, readahead, path=self.path)
        request = scan_request(
            self.path,
            columns=columns,
            rows=rows,
            take=take,
            filters=filters,
            blobs=blobs,
            gap_bytes=gap_bytes,
            request_bytes_max=request_bytes_max,
            budget_bytes=budget_bytes,
            slots=slots,
        )

        async def prepare() -> PreparedScan:
            table = self.table(request)
            return await prepared_scan(table, request.service(self._operator, table))

        return BatchScan(self._operator, prepare, path=self.path, options=options)

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
    """The dataset in the directory ``path``: its latest version, or the one that ``version`` or ``tag`` names.

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
        wanted = await resolved(operator, _base(path), wanted)
        manifest = await find_manifest(operator, _base(path), wanted)
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


def _base(path: str) -> str:
    """The directory of a dataset as a prefix of paths."""
    return f"{path.rstrip('/')}/" if path.strip("/") else ""

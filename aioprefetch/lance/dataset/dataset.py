"""A Lance dataset at one version, for reading."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import pyarrow as pa

from aioprefetch.errors import Error, NotFound, UntrustedMetadata
from aioprefetch.lance.dataset.deletions import read_deletions
from aioprefetch.lance.dataset.fragments import OpenFiles, fragment_parts, wanted_fragments
from aioprefetch.lance.dataset.manifest import TRAILER, Fragment, Manifest, manifest_range, parse_manifest
from aioprefetch.lance.dataset.versions import DatasetVersion, latest_version, list_versions, manifest_paths
from aioprefetch.lance.footer import MetadataBytes
from aioprefetch.lance.parts import (
    ScanOptions,
    ScanRequest,
    TablePart,
    TableScan,
    TakeOptions,
    prepared_scan,
    scan_request,
)
from aioprefetch.lance.schema import arrow_schema, project
from aioprefetch.operator.shared import checked_operator
from aioprefetch.ranges import ByteCount, at_least
from aioprefetch.runtime.task_group import gather_all
from aioprefetch.scan import BATCH_ROWS, BatchScan, batch_options
from aioprefetch.scheduler.decode_loop import READAHEAD_BATCHES
from aioprefetch.scheduler.pages import PreparedScan
from aioprefetch.scheduler.pinned_file import PinnedFile

if TYPE_CHECKING:
    from aioprefetch.operator.operator import Operator

# The number of deletion files that are read concurrently if the manifest does not state their numbers of rows.
_DELETION_READS = 16


class LanceDataset:
    """One version of a dataset, which later versions do not change. ``open_dataset`` makes it.

    It holds metadata (of the dataset and the last used files), and need not be closed. It may be used on any event
    loop.
    """

    def __init__(self, operator: Operator, path: str, manifest: Manifest, living_rows: Sequence[int]) -> None:
        self._operator = operator
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
        """All versions in the store, oldest first, by one listing."""
        return await list_versions(self._operator, _base(self.path))

    def scan(
        self,
        *,
        columns: Sequence[str] | None = None,
        rows: Sequence[int] | None = None,
        take: Any = None,
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
        fields = project(self._manifest.fields, request.columns, path=self.path)
        selection = request.select(self.count_rows(), self.path)
        wanted = wanted_fragments(self._manifest.fragments, self._living_rows, selection.ranges)

        def parts() -> AsyncGenerator[TablePart, None]:
            return fragment_parts(self._files, wanted, fields)

        schema = arrow_schema(fields, self._manifest.schema_metadata)
        sizes = [file.size for fragment in self._manifest.fragments for file in fragment.files]
        stated_bytes = sum(size for size in sizes if size is not None)
        wanted_bytes = None if None in sizes else stated_bytes * selection.rows // max(self.count_rows(), 1)
        return TableScan(schema, selection.rows, selection.order, parts, wanted_bytes)


async def open_dataset(operator: Operator, path: str, version: int | None = None) -> LanceDataset:
    """The dataset in the directory ``path``, at its latest version or at ``version``.

    Costs one GET and, without ``version``, one page of a listing. ``NotFound`` if the dataset or the version does
    not exist, ``Unsupported`` if it uses unknown features, ``UntrustedMetadata`` for a damaged manifest.
    A cancelled call leaves nothing behind.
    """
    checked_operator(operator, "open")
    base = _base(path)
    if version is not None:
        version = at_least(1, version, "version", operation="open", path=path)
    try:
        if version is None:
            manifest = await _read_manifest(operator, base, await latest_version(operator, base))
        else:
            manifest = await _manifest_of(operator, base, version)
        calls = (partial(_living_rows, operator, fragment) for fragment in manifest.fragments)
        living = await gather_all(calls, at_once=_DELETION_READS)
    except Error as error:
        error.add_context(operation="open", path=path)
        raise
    return LanceDataset(operator, path, manifest, living)


async def _read_manifest(operator: Operator, base: str, listed: DatasetVersion) -> Manifest:
    pinned = await PinnedFile.open(operator.accessor(), operator.runtime(), listed.path, known_size=listed.size)
    metadata = MetadataBytes(pinned)
    trailer = await metadata.read(max(0, pinned.size - TRAILER.size), pinned.size)
    start, end = manifest_range(trailer, pinned.size, listed.path)
    manifest = parse_manifest(await metadata.read(start, end), base, listed.path)
    if manifest.version != listed.version:
        raise UntrustedMetadata(
            f"the manifest is of version {manifest.version}, its name of {listed.version}",
            path=listed.path,
        )
    return manifest


async def _manifest_of(operator: Operator, base: str, version: int) -> Manifest:
    """The manifest of a version, found under one of its possible names."""
    for path in manifest_paths(base, version):
        with suppress(NotFound):
            return await _read_manifest(operator, base, DatasetVersion(version=version, path=path))
    raise NotFound(f"the dataset has no version {version}", path=base)


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

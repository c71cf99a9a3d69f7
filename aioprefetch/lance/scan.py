"""Scans of Lance files and datasets."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Unpack

import pyarrow as pa

from aioprefetch.errors import ConfigInvalid, IsADirectory, NotADirectory, NotFound
from aioprefetch.lance.dataset.dataset import open_wanted
from aioprefetch.lance.dataset.wanted_version import WantedVersion, wanted_version
from aioprefetch.lance.footer import LanceFile, open_file
from aioprefetch.lance.parts import (
    Blobs,
    ScanOptions,
    ScanRequest,
    TablePart,
    TableScan,
    file_table,
    prepared_scan,
    scan_request,
)
from aioprefetch.operator.listing import list_literally
from aioprefetch.ranges import ByteCount
from aioprefetch.scan import BATCH_ROWS, BatchScan, batch_options
from aioprefetch.scheduler.decode_loop import READAHEAD_BATCHES
from aioprefetch.scheduler.pages import PreparedScan

if TYPE_CHECKING:
    from aioprefetch.operator.operator import Operator


def scan(
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
        pylance's ids and addresses of rows, which come by name alone and cost no request.
    rows
        ``(start, stop)``, cut at the end of the table like a slice.
    take
        Row numbers in any order, repeated ones included: a list, a range, or an array of numpy or Arrow. The result has
        their order. Sorted, distinct numbers stream; for any other order all rows are held in memory.
    filters
        As in pyarrow: ``[(column, operator, value), ...]``, lists of these, or an Expression. Columns that only the
        filters need are read, and left out of the result. They keep or drop rows of those that ``rows`` or ``take``
        name, which count all rows of the table; their order stays. No page is left out: all wanted rows are read.
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
        The Arrow memory of a batch, in bytes.
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
    options = batch_options(batch_rows, batch_bytes, readahead, path=path)
    request = scan_request(
        path,
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

    wanted = wanted_version(version, tag, branch, operation="scan", path=path)

    async def prepare() -> PreparedScan:
        return await prepare_scan(operator, path, request, wanted)

    return BatchScan(operator, prepare, path=path, options=options)


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
    return await prepared_scan(table, request.service(operator, table))


async def find_table(operator: Operator, path: str, request: ScanRequest, wanted: WantedVersion) -> TableScan:
    """The parts of the file or dataset at ``path`` that ``request`` selects."""
    if not path or path.endswith("/"):
        return (await open_wanted(operator, path, wanted)).table(request)
    if wanted.argument:
        try:
            return (await open_wanted(operator, path, wanted)).table(request)
        except (NotFound, NotADirectory):
            await _refuse_file(operator, path, wanted)
            raise
    try:
        file = await open_file(operator, path)
    except (NotFound, IsADirectory):
        if await _is_dataset(operator, path):
            return (await open_wanted(operator, path, wanted)).table(request)
        raise
    return file_scan(file, request)


async def _refuse_file(operator: Operator, path: str, wanted: WantedVersion) -> None:
    """``ConfigInvalid`` if there is a file at ``path``, and not a dataset."""
    with suppress(NotFound):
        if not (await operator.stat(path)).is_directory:
            raise ConfigInvalid(f"{wanted.argument}= is for datasets; this is a file, which has no versions")


async def _is_dataset(operator: Operator, path: str) -> bool:
    if not operator.capability.list:
        return False
    async with list_literally(operator, f"{path}/_versions/") as entries:
        async for _ in entries:
            return True
    return False


def file_scan(file: LanceFile, request: ScanRequest) -> TableScan:
    """The scan of a file, which has one part."""
    projection = request.project(file.fields, file.schema.metadata, file.path)
    selection = request.select(file.rows, file.path)

    async def parts() -> AsyncGenerator[TablePart, None]:
        if selection.rows:
            yield TablePart(0, selection.rows, [await file_table(file, projection.fields, selection.ranges)])

    wanted_bytes = file.size * selection.rows // max(file.rows, 1)
    return TableScan(projection, selection.rows, selection.order, parts, wanted_bytes)

"""Lance: files and, in batch queries, directories of datasets at one version.

A file may be read in ranges: the share of a range in the rows is its share in the bytes, so that ranges that cover the
file cover each row once. The item of a dataset has the directory as its key, which ends with ``/`` (or is empty for the
root), and the version of the dataset; deleted rows are not read. Streams list files and not datasets: point them at
directories of files.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from typing import Any

import pyarrow as pa

from aioprefetch.accessor.response_check import VersionPin
from aioprefetch.errors import ConditionNotMatch
from aioprefetch.lance import LanceDataset, LanceFile, open_dataset, open_file
from aioprefetch.lance.parts import ScanRequest, TableScan, scan_request
from aioprefetch.lance.prepared import prepared_scan
from aioprefetch.lance.scan import file_scan
from aioprefetch.lance.versions import version_of
from aioprefetch.operator.operator import Operator
from aioprefetch.scan import BatchScan, batch_options
from aioprefetch.scheduler.pages import PreparedScan
from aioprefetch.source.formats.columnar import READAHEAD_BATCHES, RowCounter, WantedColumns, batch_bytes, budget_bytes
from aioprefetch.source.formats.file_bytes import OVERWRITTEN, check_open_file
from aioprefetch.source.formats.record_format import FoundBatch, RecordFormat, Wanted, is_dataset
from aioprefetch.source.options import FormatOptions, ReadOptions
from aioprefetch.source.values import FetchItem, SourceFile
from aioprefetch.values import Entry

_MANIFEST = re.compile(r"(|.*/)_versions/\d{1,20}\.manifest")


class LanceFormat(RecordFormat):
    """Files, and datasets at one version."""

    name = "lance"
    compresses_within = True

    def can_split(self, file: SourceFile, options: FormatOptions) -> bool:
        return not is_dataset(file)

    def dataset_of(self, key: str) -> str | None:
        match = _MANIFEST.fullmatch(key)
        return None if match is None else match[1]

    def dataset_version(self, entry: Entry, directory: str) -> int:
        listed = version_of(entry, directory)
        return 0 if listed is None else listed[0].version

    async def sample(
        self, operator: Operator, file: SourceFile, options: FormatOptions, read: ReadOptions
    ) -> pa.Schema:
        if not file.size:
            return pa.schema([])
        return (await _opened(operator, file, read)).schema.remove_metadata()

    async def read(self, operator: Operator, item: FetchItem, want: Wanted) -> AsyncGenerator[FoundBatch, None]:
        file = item.file
        if not file.size:
            return
        table = await _opened(operator, file, want.read)
        total = table.rows if isinstance(table, LanceFile) else table.count_rows()
        rows = total * item.start // file.size, total * item.stop // file.size
        columns = WantedColumns(table.schema, want, path=file.key)
        if rows[0] == rows[1]:
            return
        request = scan_request(file.key, columns=columns.read, rows=rows, budget_bytes=budget_bytes(want))
        numbers = RowCounter([rows]) if want.offsets else None
        async with _scan(operator, table, request, want) as batches:
            async for batch in batches:
                yield columns.found(batch, None if numbers is None else numbers.take(batch.num_rows))


async def _opened(operator: Operator, file: SourceFile, read: ReadOptions) -> LanceFile | LanceDataset:
    """This version of a file or dataset. ``ObjectChanged`` if the store has another version of the file."""
    if is_dataset(file):
        return await open_dataset(operator, file.key, None if file.version is None else int(file.version))
    check_open_file(operator, file, read.open_file)
    pin = VersionPin(file.etag, file.version, file.size, path=file.key, operation="open")
    try:
        lance_file = await open_file(operator, file.key, version=file.version, if_match=file.etag)
    except ConditionNotMatch as error:
        raise pin.explain(error, message=OVERWRITTEN) from error
    if lance_file.size != file.size:
        raise pin.changed(lance_file.pinned.etag, OVERWRITTEN)
    return lance_file


def _scan(operator: Operator, table: LanceFile | LanceDataset, request: ScanRequest, want: Wanted) -> BatchScan:
    options: Any = batch_options(want.read.batch_rows, batch_bytes(want), READAHEAD_BATCHES, path=table.path)

    async def prepare() -> PreparedScan:
        scan: TableScan = file_scan(table, request) if isinstance(table, LanceFile) else table.table(request)
        return await prepared_scan(scan, request, operator)

    return BatchScan(operator, prepare, path=table.path, options=options)

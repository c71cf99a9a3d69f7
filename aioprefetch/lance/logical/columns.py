"""The pages of one column by their rows, and the scheduler of each page, built at first use."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

import pyarrow as pa

from aioprefetch.errors import UntrustedMetadata
from aioprefetch.lance import encodings as enc
from aioprefetch.lance.physical.blob import BlobDescriptors
from aioprefetch.lance.physical.build import PageBuffers, PageScheduler, blob_scheduler, list_scheduler, page_scheduler
from aioprefetch.lance.physical.offsets import StoredEnds
from aioprefetch.lance.row_ranges import RowRanges
from aioprefetch.lance.schema import BLOB_DESCRIPTION
from aioprefetch.ranges import OFFSET_MAX

if TYPE_CHECKING:
    from aioprefetch.lance.footer import LanceFile


class ColumnPages:
    """The pages of a column in row order, without empty ones. All schedulers of the column share them."""

    def __init__(self, file: LanceFile, index: int, kind: pa.DataType) -> None:
        self.kind = kind
        self._column = file.column(index)
        self._index = index
        self._file = file
        self._pages = [page for page in self._column.pages if page.rows]
        self._starts: list[int] = []
        self.rows = 0
        for page in self._pages:
            self._starts.append(self.rows)
            self.rows += page.rows
        if self.rows > OFFSET_MAX:
            raise UntrustedMetadata(f"column {index} claims {self.rows} rows")
        self.is_blob = enc.is_blob_column(self._column.encoding, self._column.type_url)
        self._built: dict[int, PageScheduler | BlobDescriptors] = {}
        self._lists: dict[int, StoredEnds] = {}
        self._item_starts: list[int] = [0]

    def check(self, rows: int) -> None:
        """Raise ``UntrustedMetadata`` if the column has fewer than ``rows`` rows."""
        if rows > self.rows:
            raise UntrustedMetadata(f"column {self._index} has {self.rows} rows, and row {rows - 1} is wanted")

    def page_at(self, row: int) -> int:
        """The page that holds a row."""
        return bisect_right(self._starts, row) - 1

    def wanted(self, page: int, ranges: RowRanges) -> RowRanges:
        """The part of ``ranges`` in a page, counted from the first row of the page."""
        start = self._starts[page]
        return ranges.within(start, start + self._pages[page].rows)

    def page_rows(self, page: int) -> int:
        """The number of rows of the page."""
        return self._pages[page].rows

    def encoding(self, page: int) -> enc.Encoding:
        """The encoding of a page."""
        return enc.parse_encoding(self._pages[page].encoding, self._pages[page].type_url)

    def scheduler(self, page: int) -> PageScheduler | BlobDescriptors:
        """The scheduler of a page of values. ``UntrustedMetadata`` or ``Unsupported`` for its encoding."""
        scheduler = self._built.get(page)
        if scheduler is None:
            encoding, buffers, rows = self.encoding(page), self._buffers(page), self._pages[page].rows
            if self.is_blob and self.kind != BLOB_DESCRIPTION:
                scheduler = blob_scheduler(self.kind, encoding, buffers, rows, self._file.size)
            else:
                scheduler = page_scheduler(self.kind, encoding, buffers, rows)
            self._built[page] = scheduler
        return scheduler

    def list_scheduler(self, page: int) -> StoredEnds:
        """The scheduler of the ends of a page of lists."""
        scheduler = self._lists.get(page)
        if scheduler is None:
            scheduler = list_scheduler(self.encoding(page), self._buffers(page), self._pages[page].rows)
            self._lists[page] = scheduler
        return scheduler

    def first_item(self, page: int) -> int:
        """The number of the first item of a page of lists: the number of items in the pages before it."""
        starts = self._item_starts
        while len(starts) <= page:
            starts.append(starts[-1] + self.list_scheduler(len(starts) - 1).content_size)
        return starts[page]

    def _buffers(self, page: int) -> PageBuffers:
        return PageBuffers(self._pages[page].buffers, self._column.buffers, self._file.global_buffers)

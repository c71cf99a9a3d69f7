"""The pages of one column by their rows, and the decoder of each, made when it is needed first."""

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
from aioprefetch.ranges import OFFSET_MAX

if TYPE_CHECKING:
    from aioprefetch.lance.footer import LanceFile


class ColumnPages:
    """The pages of a column in row order; empty ones are left out. Shared by all who schedule from it."""

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
        """``UntrustedMetadata`` when rows up to ``rows`` are wanted and the column has fewer."""
        if rows > self.rows:
            raise UntrustedMetadata(f"column {self._index} has {self.rows} rows, and row {rows - 1} is wanted")

    def page_at(self, row: int) -> int:
        """The page that holds a row."""
        return bisect_right(self._starts, row) - 1

    def wanted(self, page: int, ranges: RowRanges) -> RowRanges:
        """What of ``ranges`` lies in a page, counted from its first row."""
        start = self._starts[page]
        return ranges.within(start, start + self._pages[page].rows)

    def page_rows(self, page: int) -> int:
        """How many rows a page has."""
        return self._pages[page].rows

    def encoding(self, page: int) -> enc.Encoding:
        """The encoding of a page."""
        return enc.parse_encoding(self._pages[page].encoding, self._pages[page].type_url)

    def scheduler(self, page: int) -> PageScheduler | BlobDescriptors:
        """Of a page of values. ``UntrustedMetadata`` or ``Unsupported`` by what the page says of itself."""
        known = self._built.get(page)
        if known is None:
            encoding, buffers, rows = self.encoding(page), self._buffers(page), self._pages[page].rows
            if self.is_blob:
                known = blob_scheduler(self.kind, encoding, buffers, rows, self._file.size)
            else:
                known = page_scheduler(self.kind, encoding, buffers, rows)
            self._built[page] = known
        return known

    def list_scheduler(self, page: int) -> StoredEnds:
        """Of a page of lists."""
        known = self._lists.get(page)
        if known is None:
            known = list_scheduler(self.encoding(page), self._buffers(page), self._pages[page].rows)
            self._lists[page] = known
        return known

    def first_item(self, page: int) -> int:
        """The number of items in the pages before this page: the first item of its lists."""
        starts = self._item_starts
        while len(starts) <= page:
            starts.append(starts[-1] + self.list_scheduler(len(starts) - 1).content_size)
        return starts[page]

    def _buffers(self, page: int) -> PageBuffers:
        return PageBuffers(self._pages[page].buffers, self._column.buffers, self._file.global_buffers)

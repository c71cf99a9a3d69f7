"""The bytes of a small row group on their way: all chunks of it at once.

Hundreds of chunks of a few KiB each would cost more time to schedule one by one than to receive and decode.
"""

from __future__ import annotations

from collections.abc import Sequence

from aioprefetch.errors import Error
from aioprefetch.parquet.chunks import ColumnChunk
from aioprefetch.parquet.page_checks import CheckedPages, check_pages
from aioprefetch.parquet.page_header import PAGE_BYTES_DEFAULT
from aioprefetch.parquet.row_ranges import RowRanges
from aioprefetch.parquet.sparse_file import SparseFile
from aioprefetch.scheduler.pages import PageIo, PendingRead


class GroupRead:
    """Chunks of one row group that are submitted together; see ``ChunkRead``.

    ``is_resident``: their bytes are in the memory already, and nothing is submitted.
    """

    parts = 1

    def __init__(
        self,
        chunks: Sequence[ColumnChunk],
        memory: SparseFile,
        *,
        wanted: RowRanges,
        first: int,
        is_resident: bool,
        path: str = "",
        page_bytes_max: int = PAGE_BYTES_DEFAULT,
    ) -> None:
        self.chunks = chunks
        self.rows = chunks[0].rows
        self._memory = memory
        self._wanted = wanted
        self._first = first
        self._path = path
        self._page_bytes_max = page_bytes_max
        self._read: PendingRead | None = None
        self._is_there = is_resident

    def scan_row(self, part: int) -> int:
        """See ``Unit``."""
        return self._first + self._wanted.count if part else self._first

    def submit(self, io: PageIo, count: int) -> None:
        """See ``Unit``."""
        if self._read is None and not self._is_there and count:
            self._read = io.submit([(one.start, one.end) for one in self.chunks if one.size], self._first)

    def want(self, row: int) -> None:
        """See ``ChunkRead``."""
        if self._read is not None:
            self._read.want()

    async def wait(self, row: int) -> None:
        """See ``ChunkRead``."""
        if self._read is not None:
            await self._read.wait()

    def rows_ready(self) -> int:
        """See ``ChunkRead``."""
        if not self._is_there and self._read is not None and self._read.done:
            try:
                self._is_there = len(self._read.views) > 0
            except Error:
                return 0
        return self.rows if self._is_there else 0

    def check_pages(self) -> CheckedPages:
        """See ``ChunkRead``."""
        most = self._page_bytes_max
        found = [check_pages(chunk, self._memory, self._path, page_bytes_max=most) for chunk in self.chunks]
        return CheckedPages(all(one.is_exact for one in found), sum(one.large_page_bytes for one in found))

    def release(self, row: int) -> None:
        """See ``ChunkRead``."""
        if row >= self.rows:
            self.close()

    def close(self) -> None:
        """See ``ChunkRead``."""
        read, self._read = self._read, None
        if read is not None:
            self._is_there = True
            read.release()

"""How many rows of a column chunk can be decoded with the bytes that have come, and which bytes are done with.

pyarrow decodes a chunk page by page, and touches a page only when it needs a row of it. So rows can be decoded while
the rest of the chunk is still to come. This walk follows the page headers as the bytes arrive.

* Leaves that no list contains: a page is touched with its first row, not before; the values of its header are rows.
* Leaves within lists: the end of a record shows at the beginning of the next one, so the page after that of a row must
  have come too. Pages of version 2 tell their rows. Those of version 1 do not: such a chunk is decoded when all of it
  has come, and is kept until its last row was.
"""

from __future__ import annotations

from bisect import bisect_right

from aioprefetch.parquet.page_header import (
    LARGE_PAGE_BYTES,
    PAGE_BYTES_DEFAULT,
    UNCOMPRESSED,
    BadPage,
    PageHeader,
    read_page_header,
)


class PageWalk:
    """The pages of one chunk ``[start, end)`` of ``rows`` rows, as far as they were seen. Pure.

    ``is_repeated``: a list contains the leaf. ``codec`` is the name that the footer gives its compression. No page may
    become larger than ``page_bytes_max``.
    """

    def __init__(
        self,
        start: int,
        end: int,
        rows: int,
        *,
        is_repeated: bool,
        codec: str,
        page_bytes_max: int = PAGE_BYTES_DEFAULT,
    ) -> None:
        self.start = start
        self.end = end
        self.rows = rows
        self.codec = codec
        self._is_repeated = is_repeated
        self._page_bytes_max = page_bytes_max
        self._position = start
        self._rows_seen = 0
        # Whether a page did not tell its rows, so that nothing is known before all of the chunk has come.
        self.is_blind = False
        # What the largest compressed page becomes of those that were seen, 0 where none is large.
        self.large_page_bytes = 0
        # Data pages with rows, in order: where each begins and ends, and the rows before it.
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._first_rows: list[int] = []

    def advance(self, view: memoryview, base: int, arrived_end: int) -> None:
        """Read the headers that have come: ``view`` holds the file from ``base`` on, good up to ``arrived_end``.

        Raises ``BadPage``, and when the pages of a chunk that has come do not have its rows.
        """
        limit = min(arrived_end, self.end)
        while not self.is_blind and self._position < limit and self._rows_seen < self.rows:
            header = read_page_header(
                view[: limit - base],
                self._position,
                self.end,
                self.codec,
                base=base,
                bytes_max=self._page_bytes_max,
            )
            if header is None:
                return
            self._append(header)
        if not self.is_blind and self._position >= self.end and self._rows_seen != self.rows:
            raise BadPage(f"the pages have {self._rows_seen} rows of the {self.rows} that the footer tells")

    def _append(self, header: PageHeader) -> None:
        self._position = header.end
        if header.uncompressed_bytes > LARGE_PAGE_BYTES and self.codec != UNCOMPRESSED:
            self.large_page_bytes = max(self.large_page_bytes, header.uncompressed_bytes)
        if not header.is_data:
            return
        rows = header.rows if self._is_repeated else header.values
        if rows is None:
            self.is_blind = True
            return
        if rows == 0:
            return
        if self._rows_seen + rows > self.rows:
            raise BadPage(f"the pages have more rows than the {self.rows} that the footer tells")
        self._starts.append(header.start)
        self._ends.append(header.end)
        self._first_rows.append(self._rows_seen)
        self._rows_seen += rows

    def rows_ready(self, arrived_end: int) -> int:
        """How many rows of the chunk can be decoded when its bytes up to ``arrived_end`` have come."""
        if arrived_end >= self.end:
            return self.rows
        if self.is_blind:
            return 0
        complete = bisect_right(self._ends, arrived_end)
        if self._is_repeated:
            return self._first_rows[complete - 1] if complete else 0
        return self._first_rows[complete] if complete < len(self._first_rows) else self._rows_seen

    def needed_from(self, row: int) -> int:
        """The first byte that decoding ``row`` and those after it may touch, once all rows before it were decoded."""
        if row >= self.rows:
            return self.end
        if self.is_blind or not self._first_rows or row <= 0:
            return self.start
        return self._starts[bisect_right(self._first_rows, row) - 1]

"""From wanted chunks to requests: which pages of a chunk, which gaps, which ranges are asked for together. Pure.

Where only some rows of a chunk are wanted and it has an offset index, pages are read. Gaps between wanted ranges are
asked for along with them as long as that is cheap: the smallest first, together at most ``GAP_SHARE`` of what is
wanted, so that few requests cost few bytes. The requests are those that the scan's queue makes of the same ranges
when all of them are queued at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import NamedTuple

from aioprefetch.parquet.chunks import ColumnChunk
from aioprefetch.parquet.page_index import OffsetIndex
from aioprefetch.parquet.row_ranges import joined
from aioprefetch.ranges import Range
from aioprefetch.scheduler.io_queue import cut, plan_requests

# Bytes between wanted ranges that are asked for along with them, as a share of what is wanted.
GAP_SHARE = 0.05
# No gap is larger, however much is wanted: at 90 MB/s it takes 12 ms, half of what another request does.
GAP_BYTES_MAX = 1 << 20

# A chunk of which pages make more than this share is read whole.
PAGES_SHARE_MAX = 0.9


class PlannedChunk(NamedTuple):
    """What is read of one chunk: ``ranges`` of the file, and ``rows`` of the row group, from its first on.

    ``pages`` are the numbers of the data pages in ``offset_index`` that hold these rows; the ranges are theirs and that
    of the dictionary page before them. ``None``: the whole chunk is read.
    """

    chunk: ColumnChunk
    rows: tuple[Range, ...]
    ranges: tuple[Range, ...]
    pages: tuple[int, ...] | None = None
    offset_index: OffsetIndex | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What a scan reads. Byte ranges and row ranges are half open; rows count from the file's first.

    Parameters
    ----------
    path
        The file.
    row_groups
        Numbers of the row groups that are read, ascending.
    columns
        Numbers of the leaves that are read, ascending: those of the columns and of the filters.
    rows
        The rows that are read, before filters.
    chunks
        What is read of each chunk, row group by row group. Those in the tail, which came with the footer, too.
    requests
        The requests in the order in which they are sent, with memory for all of them. Nothing that came with the
        footer is in them alone.
    projected_bytes
        Bytes of all wanted ranges.
    resident_bytes
        How many of them came with the footer.
    requested_bytes
        Bytes of the requests: what is wanted and not there yet, and gaps.
    gap_bytes, request_bytes_max
        Neighbours that lie this far apart share a request of up to this size.
    """

    path: str
    row_groups: tuple[int, ...]
    columns: tuple[int, ...]
    rows: tuple[Range, ...]
    chunks: tuple[PlannedChunk, ...]
    requests: tuple[Range, ...]
    projected_bytes: int
    resident_bytes: int
    requested_bytes: int
    gap_bytes: int
    request_bytes_max: int

    @property
    def row_count(self) -> int:
        """How many rows are read, before filters."""
        return sum(stop - start for start, stop in self.rows)

    @property
    def overhead(self) -> float:
        """Bytes of gaps as a share of what is wanted of the store."""
        wanted = self.projected_bytes - self.resident_bytes
        return (self.requested_bytes - wanted) / wanted if wanted else 0.0

    def describe(self) -> str:
        """The plan for people: one line on what is read, and one for each request."""
        lines = [
            f"{self.path}: {self.row_count} rows of {len(self.columns)} columns in {len(self.row_groups)} row groups,"
            f" {self.projected_bytes} bytes, of which {self.resident_bytes} came with the footer;"
            f" {len(self.requests)} requests for {self.requested_bytes} bytes"
            f" (+{self.overhead:.1%}, gaps of up to {self.gap_bytes})"
        ]
        lines += [f"  [{start}, {end})  {end - start} bytes" for start, end in self.requests]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return (
            f"<Plan {self.path!r} rows={self.row_count} columns={len(self.columns)} row_groups={len(self.row_groups)}"
            f" requests={len(self.requests)} requested_bytes={self.requested_bytes}"
            f" projected_bytes={self.projected_bytes}>"
        )


def planned_chunk(chunk: ColumnChunk, rows: Sequence[Range], index: OffsetIndex | None) -> PlannedChunk:
    """What to read of a chunk for ``rows`` of its row group (sorted, disjoint): pages if it has an index and they pay.

    Leaves within lists are read whole.
    """
    wanted = tuple(rows)
    whole = PlannedChunk(chunk, wanted, ((chunk.start, chunk.end),) if chunk.size else ())
    if index is None or not len(index) or chunk.max_repetition or wanted == ((0, chunk.rows),):
        return whole
    pages = index.pages_of(wanted)
    if not pages:
        return whole
    before = (chunk.start, index.starts[0])  # The dictionary, where there is one.
    ranges = tuple(joined([before, *(index.page_bytes(page) for page in pages)]))
    if sum(end - start for start, end in ranges) > PAGES_SHARE_MAX * chunk.size:
        return whole
    return PlannedChunk(chunk, wanted, ranges, tuple(pages), index)


def pieces_of(chunks: Sequence[PlannedChunk], tail_start: int, request_bytes_max: int) -> list[Range]:
    """What is to be asked for, in the order of the rows that need it: nothing that lies in the tail, cut to size."""
    pieces: list[tuple[int, int, Range]] = []
    for number, planned in enumerate(chunks):
        chunk = planned.chunk
        for start, end in planned.ranges:
            if start >= tail_start:
                continue
            for low, high in cut(start, end, request_bytes_max):
                if low < tail_start:
                    row = chunk.first_row + chunk.rows * (low - chunk.start) // chunk.size
                    pieces.append((row, number, (low, high)))
    return [piece for _, _, piece in sorted(pieces)]


def chosen_gap(
    pieces: Sequence[Range],
    *,
    unwanted_bytes: int = 0,
    share: float = GAP_SHARE,
    gap_bytes_max: int = GAP_BYTES_MAX,
) -> int:
    """The largest gap in bytes such that all gaps up to it take ``share`` of the pieces' bytes at most; 0 for none.

    ``unwanted_bytes`` of that share are used up already.
    """
    left = share * sum(end - start for start, end in pieces) - unwanted_bytes
    merged = joined(pieces)
    gaps = sorted(after[0] - before[1] for before, after in pairwise(merged))
    chosen = 0
    for gap_bytes, equal in groupby(gaps):
        left -= gap_bytes * sum(1 for _ in equal)
        if left < 0 or gap_bytes > gap_bytes_max:
            break
        chosen = gap_bytes
    return chosen


def requests_for(pieces: Sequence[Range], *, gap_bytes: int, request_bytes_max: int) -> tuple[Range, ...]:
    """The requests for pieces in the order in which they are needed."""
    return tuple(plan_requests(pieces, gap_bytes=gap_bytes, request_bytes_max=request_bytes_max))

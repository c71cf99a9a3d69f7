"""From wanted chunks to requests: the pages of a chunk, the gaps, and the ranges that one request brings.

If only some rows of a chunk are wanted and it has an offset index, pages are read.

**A request has a price**: the bytes that could arrive during the wait for its first byte. A smaller gap between wanted
ranges is requested with them, smallest gaps first, as long as all gaps together have at most as many bytes as the
wanted ranges and one block. So few requests bring tiny chunks, and no file takes much more than twice the wanted bytes.
Gaps of up to 8 KiB are always included, as in pyarrow's ``pre_buffer``: no plan has more requests than it has. An
object of at most a block is one request.

A **run** is a sequence of ranges that are requested together. A run of at most a block is one request; a larger run is
cut into parts that arrive in parallel. The scan's queue sends these requests if it has memory for all.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from aioprefetch.parquet.chunks import ColumnChunk
from aioprefetch.parquet.page_metadata import OffsetIndex
from aioprefetch.ranges import Range, bridged, intersected, joined, subtract, total_length
from aioprefetch.scheduler.io_queue import cut, request_bytes_for
from aioprefetch.scheduler.io_service import SLOTS_MAX

if TYPE_CHECKING:
    from aioprefetch.parquet.footer import Footer
    from aioprefetch.runtime.runtime import Runtime

# The latency of a first byte, the throughput of one connection, and the throughput of all connections: 10 Gbit/s.
FIRST_BYTE_SECONDS = 0.025
CONNECTION_BYTES_PER_SECOND = 90e6
BYTES_PER_SECOND = 1.25e9
PRICE_BYTES_MIN = 128 << 10

# If the wanted pages are more than this share of a chunk, it is read whole.
PAGES_SHARE_MAX = 0.9


class PlannedChunk(NamedTuple):
    """The reads of one chunk: ``ranges`` of the file, and ``rows`` of the row group, from its first on.

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
    """The reads of a scan. Byte ranges and row ranges are half open; rows count from the file's first.

    Parameters
    ----------
    path
        The file.
    row_groups
        Numbers of the row groups that are read, ascending.
    columns
        Numbers of the leaves that are read, ascending: for the columns and the filters.
    rows
        The rows that are read, before filters.
    chunks
        The reads of each chunk, row group by row group, including those in the tail that came with the footer.
    requests
        The requests in the order in which they are sent, with memory for all of them. Nothing that came with the
        footer, or is in memory, is in them alone.
    projected_bytes
        Bytes of all wanted ranges.
    resident_bytes
        The number of them that came with the footer, or are in the runtime's memory.
    requested_bytes
        The bytes of the requests: wanted bytes that are not in memory, and gaps.
    gap_bytes
        The price of a request: wider gaps are not requested with the wanted bytes.
    request_bytes_max
        The parts of a run larger than a block have at most this size.
    held_ranges
        The bytes that are already in the runtime's memory, and are copied from there.
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
    held_ranges: tuple[Range, ...] = ()

    @property
    def row_count(self) -> int:
        """The number of rows that are read, before filters."""
        return total_length(self.rows)

    @property
    def overhead(self) -> float:
        """Bytes of gaps as a share of the wanted bytes of the requests."""
        wanted = self.projected_bytes - self.resident_bytes
        return (self.requested_bytes - wanted) / wanted if wanted else 0.0

    def describe(self) -> str:
        """The plan as text: a line on the columns and rows, and a line for each request."""
        lines = [
            f"{self.path}: {self.row_count} rows of {len(self.columns)} columns in {len(self.row_groups)} row groups,"
            f" {self.projected_bytes} bytes, {self.resident_bytes} already in memory;"
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

    def _repr_html_(self) -> str:
        return plans_html(
            self.path, [self], f"{self.row_count:,} rows of {len(self.columns)} column{'s' * (len(self.columns) != 1)}"
        )


@dataclass(frozen=True, slots=True)
class FilesPlan:
    """The plans of the files that a scan reads, in their order: those with rows that filters and ``rows`` may leave.

    What came with a footer, as small files do whole, is in no request.
    """

    path: str
    files: tuple[Plan, ...]

    @property
    def row_count(self) -> int:
        """The number of rows that are read, before filters."""
        return sum(plan.row_count for plan in self.files)

    @property
    def request_count(self) -> int:
        """The number of requests for data, behind those for listings and footers."""
        return sum(len(plan.requests) for plan in self.files)

    @property
    def projected_bytes(self) -> int:
        """Bytes of all wanted ranges."""
        return sum(plan.projected_bytes for plan in self.files)

    @property
    def requested_bytes(self) -> int:
        """The bytes of the requests: wanted bytes that are not in memory, and gaps."""
        return sum(plan.requested_bytes for plan in self.files)

    def describe(self) -> str:
        """The plans as text, file after file."""
        summary = (
            f"{self.path}: {self.row_count} rows of {len(self.files)} files, {self.request_count} requests for"
            f" {self.requested_bytes} bytes"
        )
        return "\n".join([summary, *(plan.describe() for plan in self.files)])

    def __repr__(self) -> str:
        return (
            f"<FilesPlan {self.path!r} files={len(self.files)} rows={self.row_count} requests={self.request_count}"
            f" requested_bytes={self.requested_bytes}>"
        )

    def _repr_html_(self) -> str:
        return plans_html(self.path, self.files, f"{self.row_count:,} rows of {len(self.files):,} files")


def plans_html(path: str, plans: Sequence[Plan], rows: str) -> str:
    """The plan of a scan of files as HTML."""
    from aioprefetch.display import bytes_text
    from aioprefetch.display.bars import PlannedFile, plan_html

    wanted, resident, requested = (
        sum(getattr(plan, name) for plan in plans) for name in ("projected_bytes", "resident_bytes", "requested_bytes")
    )
    ends = [[end for chunk in plan.chunks for _, end in chunk.ranges] for plan in plans]
    files = [
        PlannedFile(plan.path, max([*end, *(stop for _, stop in plan.requests)], default=0), plan.requests)
        for plan, end in zip(plans, ends, strict=True)
    ]
    return plan_html(
        f"Plan of {path}",
        f"{rows}: {bytes_text(wanted)} wanted, {bytes_text(resident)} already in memory;"
        f" {sum(len(plan.requests) for plan in plans):,} requests for {bytes_text(requested)},"
        f" {bytes_text(requested - wanted + resident)} of gaps among them",
        files,
    )


def planned_chunk(chunk: ColumnChunk, rows: Sequence[Range], index: OffsetIndex | None) -> PlannedChunk:
    """The reads of a chunk for ``rows`` of its row group (sorted, disjoint): pages if it has an index and they pay.

    Leaves within lists are read whole.
    """
    wanted = tuple(rows)
    whole = PlannedChunk(chunk, wanted, ((chunk.start, chunk.end),) if chunk.start < chunk.end else ())
    if index is None or not len(index) or chunk.max_repetition or wanted == ((0, chunk.rows),):
        return whole
    pages = index.pages_of(wanted)
    if not pages:
        return whole
    before = (chunk.start, index.starts[0])  # The dictionary, if there is one.
    ranges = tuple(joined([before, *(index.page_bytes(page) for page in pages)]))
    if total_length(ranges) > PAGES_SHARE_MAX * chunk.size:
        return whole
    return PlannedChunk(chunk, wanted, ranges, tuple(pages), index)


def pieces_of(chunks: Sequence[PlannedChunk], tail_start: int, request_bytes_max: int) -> list[Range]:
    """The ranges to request, cut to size, in the order of the rows that need them, without those in the tail."""
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


# --- requests ---------------------------------------------------------------------------------------------------------


def request_price(slots: int) -> int:
    """The price of a request in bytes, if ``slots`` of them run at once and share the bandwidth."""
    share = min(CONNECTION_BYTES_PER_SECOND, BYTES_PER_SECOND / max(slots, 1))
    return max(PRICE_BYTES_MIN, int(FIRST_BYTE_SECONDS * share))


def requests_of(
    runs: Sequence[Range], pieces: Sequence[Range], *, run_bytes_max: int, request_bytes_max: int
) -> tuple[Range, ...]:
    """The requests for runs, in the order in which their ``pieces`` are needed. No request cuts a piece.

    A run of up to ``run_bytes_max`` is one request, a larger run several of ``request_bytes_max``.
    """
    ordered = joined_in_order(pieces)
    requests: list[Range] = []
    place = 0
    for start, end in runs:
        is_whole = end - start <= run_bytes_max
        requests.append((start, start))
        while place < len(ordered) and ordered[place][0] < end:
            low, high = ordered[place]
            first = requests[-1][0]
            if high - first > request_bytes_max and not is_whole and requests[-1][1] > first:
                requests.append((low, high))
            else:
                requests[-1] = (first, max(requests[-1][1], high))
            place += 1
    return tuple(_by_need(requests, pieces))


def joined_in_order(pieces: Sequence[Range]) -> list[Range]:
    """The union of the pieces, by position. Pieces that only touch stay apart."""
    union: list[Range] = []
    for start, end in sorted(pieces):
        if union and start < union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], end))
        else:
            union.append((start, end))
    return union


def _by_need(requests: Sequence[Range], pieces: Sequence[Range]) -> list[Range]:
    """Requests, sorted by position, in the order of the first piece in each."""
    starts = [start for start, _ in requests]
    numbers = dict.fromkeys(bisect_right(starts, start) - 1 for start, _ in pieces)
    return [requests[number] for number in numbers]


def missing_pieces(pieces: Sequence[Range], held: Sequence[Range]) -> list[Range]:
    """The parts of the pieces outside ``held`` (ordered, disjoint), in their order."""
    if not held:
        return list(pieces)
    return [missing for piece in pieces for missing in subtract(piece, held)]


def held_pieces(pieces: Sequence[Range], held: Sequence[Range], requests: Sequence[Range]) -> tuple[Range, ...]:
    """The held parts of the pieces that lie in no request."""
    if not held:
        return ()
    wanted = intersected(joined(pieces), held)
    asked = sorted(requests)
    return tuple(left for piece in wanted for left in subtract(piece, asked))


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """The properties of a runtime on which a plan depends: block size, concurrent requests, and ranges in memory.

    ``held`` are ranges of the file that are in memory, ordered and disjoint. ``gap_bytes`` and ``request_bytes_max``
    replace the automatic values.
    """

    block_bytes: int = 8 << 20
    slots: int = SLOTS_MAX
    held: Sequence[Range] = ()
    gap_bytes: int | None = None
    request_bytes_max: int | None = None

    @classmethod
    def of(cls, runtime: Runtime, footer: Footer, given: Mapping[str, int]) -> PlanLimits:
        """The limits of a runtime for a file, with the limits ``given`` to the scan."""
        slots = given.get("slots") or min(runtime.options.concurrency, SLOTS_MAX)
        held, gap_bytes = footer.pinned.held_ranges(), given.get("gap_bytes")
        return cls(runtime.options.block_bytes, slots, held, gap_bytes, given.get("request_bytes_max"))


def plan_reads(
    footer: Footer,
    planned: Sequence[PlannedChunk],
    *,
    row_groups: Sequence[int],
    rows: Sequence[Range],
    leaves: Sequence[int],
    limits: PlanLimits,
) -> Plan:
    """The requests for chunks of a file."""
    projected_bytes = sum([end - start for chunk in planned for start, end in chunk.ranges])
    gap_bytes, request_bytes_max = limits.gap_bytes, limits.request_bytes_max
    is_automatic = request_bytes_max is None
    if request_bytes_max is None:
        request_bytes_max = request_bytes_for(projected_bytes)
    tail_start = footer.pinned.tail_start
    pieces = pieces_of(planned, tail_start, request_bytes_max)
    missing = missing_pieces(pieces, limits.held)
    wanted_bytes = total_length(missing)
    if gap_bytes is not None:
        gap, gaps_bytes_max = gap_bytes, None
    elif footer.size <= limits.block_bytes:
        gap, gaps_bytes_max = footer.size, None
    else:
        # Unwanted data that came with the footer count as well.
        pieces_bytes = total_length(pieces)
        unwanted = max(0, footer.start - tail_start - (projected_bytes - pieces_bytes))
        gap, gaps_bytes_max = request_price(limits.slots), wanted_bytes + max(0, limits.block_bytes - unwanted)
    runs = bridged(missing, gap_bytes=gap, gaps_bytes_max=gaps_bytes_max)
    run_bytes_max = max(limits.block_bytes, request_bytes_max) if is_automatic else request_bytes_max
    requests = requests_of(runs, missing, run_bytes_max=run_bytes_max, request_bytes_max=request_bytes_max)
    requested = intersected(joined(pieces), sorted(requests))
    return Plan(
        path=footer.path,
        row_groups=tuple(row_groups),
        columns=tuple(leaves),
        rows=tuple(rows),
        chunks=tuple(planned),
        requests=requests,
        projected_bytes=projected_bytes,
        resident_bytes=projected_bytes - total_length(requested),
        requested_bytes=total_length(requests),
        gap_bytes=gap,
        request_bytes_max=request_bytes_max,
        held_ranges=held_pieces(pieces, limits.held, requests),
    )

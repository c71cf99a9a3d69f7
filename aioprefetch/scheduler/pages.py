"""The interface between a file format and the two loops.

The scheduling loop asks the columns of a file for their pages in row-major order, and each page submits its reads to
a ``PageIo`` without waiting. The decode loop hands every page to a ``RootDecoder`` and asks that for batches. After
the traits of Lance's decoder: ``PageIo`` is ``EncodingsIo``, a ``ColumnScheduler`` the ``LogicalPageScheduler`` of a
top-level field, the ``RootDecoder`` the ``LogicalPageDecoder`` of the one struct that a file is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from aioprefetch.ranges import Range

if TYPE_CHECKING:
    import pyarrow as pa

PageT = TypeVar("PageT")
PageT_co = TypeVar("PageT_co", covariant=True)
PageT_contra = TypeVar("PageT_contra", contravariant=True)


class PendingRead(Protocol):
    """Byte ranges that were submitted together: queued, in flight, arrived, or released."""

    @property
    def done(self) -> bool:
        """Whether it has ended, well or in an error."""

    @property
    def views(self) -> Sequence[memoryview]:
        """The bytes of each range in the order of submission, once done. Raises the error of a failed read."""

    def promote(self) -> None:
        """A decoder cannot continue without these bytes: they may exceed the budget."""

    async def wait(self) -> Sequence[memoryview]:
        """``promote`` and wait; the bytes of each range. A cancelled wait leaves the read as it is."""

    async def arrive(self) -> None:
        """Wait until it is done without promoting it: a task is not a decoder, and must not exceed the budget."""

    def release(self) -> None:
        """Release the bytes to the budget, and cancel a request that no other read needs.

        Existing views stay readable. A second call does nothing.
        """


class PageIo(Protocol):
    """Reads of one file, by priority of rows (the document's ``EncodingsIo``)."""

    @property
    def size(self) -> int:
        """The size of the file in bytes, which no range may exceed."""

    def submit(self, ranges: Sequence[Range], row: int, *, is_follow_up: bool = False) -> PendingRead:
        """Queue ranges; the first is needed for top-level row ``row``. Never waits, does no I/O by itself.

        ``is_follow_up``: the second half of an indirect read (items of a list, bytes of strings), whose first half
        has been admitted already; it may exceed the budget. A range that leaves the file is ``UntrustedMetadata``.
        """

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        """Run a free task: the follow-up of an indirect read. It reports its errors to its own waiters.

        It is cancelled when the scan is closed.
        """


class ColumnScheduler(Protocol[PageT_co]):
    """The pages of one top-level column in row order, each planned in its turn."""

    @property
    def rows_scheduled(self) -> int:
        """The number of rows of the scan (wanted rows, counted from 0) that its pages cover so far."""

    @property
    def is_finished(self) -> bool:
        """Whether the last page was scheduled."""

    def schedule_next(self, io: PageIo) -> PageT_co:
        """Submit the reads of the next page and return its decoder, not loaded yet. Never waits."""


@dataclass(frozen=True, slots=True)
class ScanLine(Generic[PageT]):
    """Pages that were scheduled until every column covered ``rows`` rows of the scan; with the column's index each."""

    rows: int
    pages: Sequence[tuple[int, PageT]]


@dataclass(frozen=True, slots=True)
class DecodeTask:
    """One batch to decode: ``decode`` runs once, on any thread, and touches nothing that the loop may change.

    ``release`` is called on the loop's thread when the batch is out of the consumer's hands: it releases the pages
    that ended with this batch. ``is_cheap``: slicing alone, not worth another thread.
    """

    rows: int
    decode: Callable[[], pa.RecordBatch]
    release: Callable[[], None]
    is_cheap: bool = False


class RootDecoder(Protocol[PageT_contra]):
    """All columns of a scan: takes pages and returns batches, in row order. Stateful, belongs to the loop's thread."""

    def accept(self, column: int, page: PageT_contra) -> None:
        """Append a scheduled page of a column."""

    async def wait(self, rows: int) -> None:
        """Wait until the next ``rows`` rows can be drained. Every read they need is promoted before one is awaited."""

    def likely_rows(self, rows: int, batch_bytes: int) -> int:
        """The number of the next ``rows`` rows that may stay within ``batch_bytes``, judged before their pages arrive.

        At least 1. So that no more is waited for than a batch will have; ``fitting_rows`` has the last word.
        """

    def loaded_rows(self, rows_max: int) -> int:
        """The number of the next rows, up to ``rows_max``, that could be drained at once without waiting."""

    def fitting_rows(self, rows: int, batch_bytes: int) -> int:
        """The number of the next ``rows`` loaded rows that stay within ``batch_bytes`` of memory; at least 1."""

    def drain(self, rows: int) -> DecodeTask:
        """Take the next ``rows`` rows, which are loaded."""

    def close(self) -> None:
        """Release every page that was not drained."""


@dataclass(frozen=True, slots=True)
class ScanPart:
    """The columns and rows that are scheduled and decoded together: a file. No batch spans two parts.

    ``columns`` emit pages that ``root`` accepts, until each covers ``rows`` rows. ``finish`` is applied to a decoded
    batch and the number of its first row in the part, in the thread that decoded it: filters, columns to be dropped;
    ``None`` or a batch without rows is not delivered.
    """

    columns: Sequence[ColumnScheduler[Any]]
    root: RootDecoder[Any]
    io: PageIo
    rows: int
    finish: Callable[[pa.RecordBatch, int], pa.RecordBatch | None] | None = None


class ReadService(Protocol):
    """The part of the I/O service that the loops of a scan use.

    ``on_progress`` is called whenever a request has ended, after its reads were notified.
    """

    on_progress: Callable[[], None] | None

    @property
    def has_received(self) -> bool:
        """Whether any request has brought bytes from the store; others were in memory."""

    def close(self) -> None:
        """Cancel requests in flight and release all memory. May be called twice."""


@dataclass(frozen=True, slots=True)
class PreparedScan:
    """A scan whose metadata is known.

    ``parts`` are taken one after the other; an iterator may read the metadata of the next ones meanwhile, and is closed
    in any case. Unless ``is_ordered``, several are decoded at once, and batches come as they are ready. ``compute``
    makes the batches of ``schema`` from the parts' batches, in the thread that decoded them.
    """

    schema: pa.Schema
    parts: Sequence[ScanPart] | AsyncIterator[ScanPart]
    service: ReadService
    is_ordered: bool = True
    compute: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None

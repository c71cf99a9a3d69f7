"""What a format has found out about a scan before its first page is scheduled."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from aioprefetch.scheduler.pages import ColumnScheduler, PageIo, RootDecoder

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class ScanPart:
    """What is scheduled and decoded together: a file. No batch spans two parts.

    ``columns`` emit pages that ``root`` accepts, until each covers ``rows`` rows.
    """

    columns: Sequence[ColumnScheduler[Any]]
    root: RootDecoder[Any]
    io: PageIo
    rows: int


class ReadService(Protocol):
    """The I/O service of a scan, as far as its loops know it.

    ``on_progress`` is called whenever a request has ended, after its reads were told.
    """

    on_progress: Callable[[], None] | None

    def close(self) -> None:
        """Break off what is in flight and give everything back. Safe to call twice."""
        ...


@dataclass(frozen=True, slots=True)
class PreparedScan:
    """A scan whose metadata is known.

    ``parts`` come one after the other; an iterator may read the metadata of the next ones meanwhile, and is closed in
    any case. ``finish`` is what is still to be done with a decoded batch, in the thread that decoded it: filters,
    columns to be dropped; ``None`` or a batch without rows is not delivered.
    """

    schema: pa.Schema
    parts: Sequence[ScanPart] | AsyncIterator[ScanPart]
    service: ReadService
    finish: Callable[[pa.RecordBatch], pa.RecordBatch | None] | None = None

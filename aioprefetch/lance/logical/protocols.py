"""Fields of version 2.0 at any depth: a stateless plan, which makes a scheduler and a decoder.

They follow the logical schedulers and decoders of the format's documentation. A decoder here gives *portions*, which
are decoded together with those of other pages; at the top level a ``FieldDecoder`` wraps it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from aioprefetch.lance.logical.portions import Portion
from aioprefetch.lance.row_ranges import RowRanges
from aioprefetch.scheduler.pages import ColumnScheduler

# From a position among the wanted rows of a field to the top-level row of the scan that it belongs to.
RowMap = Callable[[int], int]


class LogicalDecoder(Protocol):
    """The scheduled pages of one field. Stateful: ``rows`` are always the next ones."""

    def accept(self, page: Any) -> None:
        """A page of the field's scheduler."""
        ...

    def promote(self, rows: int) -> None:
        """Promote every read that is known to be needed."""
        ...

    async def wait(self, rows: int) -> None:
        """Wait until that many rows can be taken."""
        ...

    def loaded_rows(self, rows: int) -> int:
        """The number of rows that could be taken without waiting."""
        ...

    def size_bytes(self, rows: int) -> int:
        """The approximate Arrow memory of the rows."""
        ...

    def take(self, rows: int, portion: Any) -> None:
        """Move rows to a portion that the field has made."""
        ...

    def close(self) -> None:
        """Release every page that was not taken."""
        ...


class LogicalField(Protocol):
    """One field of a file, or the items of a list: stateless, shared by the free tasks of list pages."""

    @property
    def rows(self) -> int:
        """The number of rows, or items."""
        ...

    def scheduler(self, ranges: RowRanges, row_of: RowMap) -> ColumnScheduler[Any]:
        """The pages of ``ranges``. ``UntrustedMetadata`` if the field has fewer rows."""
        ...

    def decoder(self) -> LogicalDecoder:
        """A decoder that accepts the pages of one scheduler."""
        ...

    def portion(self) -> Portion:
        """A portion to which the decoders of this field move their rows."""
        ...


class RowProgress:
    """The part of a ``ColumnScheduler`` that counts: ``rows`` are wanted, its pages cover ``rows_scheduled`` so far."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self.rows_scheduled = 0

    @property
    def is_finished(self) -> bool:
        """Whether the last page was scheduled."""
        return self.rows_scheduled >= self._rows

"""Protocols of fields of version 2.0 at any depth: a stateless plan, which makes schedulers and decoders.

They follow the logical schedulers and decoders of the format's documentation. A decoder fills *portions*, which are
decoded together with rows of other pages; a ``FieldDecoder`` wraps the decoder of a top-level field.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from aioprefetch.lance.logical.portions import Portion
from aioprefetch.lance.row_ranges import RowRanges
from aioprefetch.scheduler.pages import ColumnScheduler

# Maps a position among the wanted rows of a field to the top-level row of the scan that it belongs to.
RowMap = Callable[[int], int]


class LogicalDecoder(Protocol):
    """The scheduled pages of one field. Stateful: each call is for the *next* rows."""

    def accept(self, page: Any) -> None:
        """Append a page of the field's scheduler."""
        ...

    def promote(self, rows: int) -> None:
        """Promote the reads of the next ``rows`` rows, as far as they are planned."""
        ...

    async def wait(self, rows: int) -> None:
        """Wait until the next ``rows`` rows can be taken."""
        ...

    def loaded_rows(self, rows: int) -> int:
        """The number of rows that could be taken without waiting."""
        ...

    def size_bytes(self, rows: int) -> int:
        """The approximate Arrow memory of the rows."""
        ...

    def take(self, rows: int, portion: Any) -> None:
        """Move rows to a portion of the field."""
        ...

    def close(self) -> None:
        """Release every page that was not taken."""
        ...


class LogicalField(Protocol):
    """One field of a file, or the items of a list. Stateless: the follow-up tasks of list pages share it."""

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
    """Counts the rows of a ``ColumnScheduler``: ``rows`` are wanted, ``rows_scheduled`` are scheduled."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self.rows_scheduled = 0

    @property
    def is_finished(self) -> bool:
        """Whether all wanted rows are scheduled."""
        return self.rows_scheduled >= self._rows

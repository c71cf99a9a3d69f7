"""How far the schedulers of columns have got."""

from __future__ import annotations


class RowProgress:
    """The part of a ``ColumnScheduler`` that counts: ``rows`` are wanted, its pages cover ``rows_scheduled`` so far."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self.rows_scheduled = 0

    @property
    def is_finished(self) -> bool:
        """Whether the last page was scheduled."""
        return self.rows_scheduled >= self._rows

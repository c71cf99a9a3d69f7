"""Columns that a fragment does not have, because they were added later: nulls, without any I/O."""

from __future__ import annotations

import pyarrow as pa

from aioprefetch.lance.logical.field import ArrayTask
from aioprefetch.lance.output import null_bits
from aioprefetch.lance.physical.memory import check_nulls
from aioprefetch.scheduler.pages import PageIo


class MissingColumn:
    """A ``ColumnScheduler`` with one page of all rows that reads nothing."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self.rows_scheduled = 0

    @property
    def is_finished(self) -> bool:
        """Whether its page was scheduled."""
        return self.rows_scheduled == self._rows

    def schedule_next(self, io: PageIo) -> None:
        """The one page."""
        self.rows_scheduled = self._rows


class MissingField:
    """A ``FieldDecoder`` of nulls."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._row_bits = null_bits(kind)

    def accept(self, page: None) -> None:
        """See ``FieldDecoder``."""

    def want(self, rows: int) -> None:
        """See ``FieldDecoder``."""

    async def wait(self, rows: int) -> None:
        """See ``FieldDecoder``."""

    def loaded_rows(self, most: int) -> int:
        """See ``FieldDecoder``."""
        return most

    def size_bytes(self, rows: int) -> int:
        """See ``FieldDecoder``."""
        return (rows * self._row_bits + 7) // 8

    def drain(self, rows: int) -> ArrayTask:
        """See ``FieldDecoder``. ``Unsupported`` for more nulls than a batch is given memory for."""
        check_nulls(self.size_bytes(rows))
        return ArrayTask(decode=lambda: pa.nulls(rows, self._kind))

    def close(self) -> None:
        """See ``FieldDecoder``."""

"""What a caller asks of a table, checked before any I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aioprefetch.errors import ConfigInvalid
from aioprefetch.lance.row_ranges import RowSelection, checked_row_range, row_numbers, select_rows
from aioprefetch.scan import column_names, io_options
from aioprefetch.scheduler.io_service import IoService

if TYPE_CHECKING:
    from aioprefetch.lance.parts import TableScan
    from aioprefetch.operator.operator import Operator


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanRequest:
    """What a caller wants of a table, checked as far as it can be without the table.

    ``rows`` is ``(start, stop)``, ``take`` a list of row numbers; ``limits`` are options of the I/O service.
    """

    columns: object | None
    rows: object | None
    take: object | None
    limits: dict[str, int]

    def select(self, total: int, path: str) -> RowSelection:
        """The wanted rows of a table of ``total`` rows."""
        return select_rows(self.rows, self.take, total, path=path)

    def service(self, operator: Operator, table: TableScan) -> IoService:
        """The I/O service of a scan of ``table``, live on the running loop."""
        return IoService(operator.accessor(), operator.runtime(), wanted_bytes=table.wanted_bytes, **self.limits)


def scan_request(
    path: str,
    *,
    columns: object | None = None,
    rows: object | None = None,
    take: object | None = None,
    gap_bytes: int | None = None,
    request_bytes_max: int | None = None,
    budget_bytes: int | None = None,
    slots: int | None = None,
) -> ScanRequest:
    """The request of a call. Raises ``InvalidArgument`` for what cannot be meant, before any I/O."""
    if rows is not None and take is not None:
        raise ConfigInvalid("rows= and take= exclude each other", operation="scan", path=path)
    if columns is not None:
        columns = column_names(columns, path=path)
    if rows is not None:
        rows = checked_row_range(rows, path=path)
    if take is not None:
        take = row_numbers(take, path=path)
    limits = io_options(
        path, gap_bytes=gap_bytes, request_bytes_max=request_bytes_max, budget_bytes=budget_bytes, slots=slots
    )
    return ScanRequest(columns=columns, rows=rows, take=take, limits=limits)

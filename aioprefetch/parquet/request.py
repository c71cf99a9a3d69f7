"""What a caller asks of a file, checked before any I/O, and copied: the scan may begin long after the call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from aioprefetch.errors import InvalidArgument, InvalidType
from aioprefetch.parquet.filters import Filters, checked_filters
from aioprefetch.ranges import Range, checked_int, checked_ranges
from aioprefetch.scan import column_names


@dataclass(frozen=True, slots=True)
class ScanRequest:
    """What a caller wants of a file, checked as far as it can be without the file. ``None`` is all of it."""

    columns: list[str] | None
    row_groups: list[int] | None
    rows: list[Range] | None
    filters: Filters


def scan_request(path: str, *, columns: object, row_groups: object, rows: Any, filters: Any) -> ScanRequest:
    """The request of a call. Raises ``InvalidArgument`` for what cannot be meant."""
    return ScanRequest(
        columns=None if columns is None else column_names(columns, path=path),
        row_groups=None if row_groups is None else group_numbers(row_groups, path=path),
        rows=None if rows is None else row_ranges(rows, path=path),
        filters=checked_filters(filters, path=path),
    )


def group_numbers(row_groups: object, *, path: str = "") -> list[int]:
    """Numbers of row groups from outside, ascending, each once; negative ones do not count from the end."""
    if isinstance(row_groups, str | bytes) or not isinstance(row_groups, Iterable):
        raise InvalidType(f"row_groups must be a list of numbers, not {row_groups!r}", operation="scan", path=path)
    numbers = sorted({checked_int(one, "row group", operation="scan", path=path) for one in row_groups})
    if numbers and numbers[0] < 0:
        raise InvalidArgument(f"there is no row group {numbers[0]}", operation="scan", path=path)
    return numbers


def row_ranges(rows: Any, *, path: str = "") -> list[Range]:
    """``(start, stop)``, or a list of them, from outside. ``InvalidType`` or ``InvalidRange``."""
    pair = isinstance(rows, Sequence) and len(rows) == 2 and not any(isinstance(one, Sequence) for one in rows)
    return checked_ranges([rows] if pair else rows, operation="scan", path=path)

"""Deleted rows of a fragment, and where its living rows lie."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from aioprefetch.errors import UntrustedMetadata
from aioprefetch.lance.dataset.manifest import Fragment
from aioprefetch.lance.dataset.roaring import parse_roaring
from aioprefetch.lance.row_ranges import RowNumbers, runs
from aioprefetch.ranges import Range

if TYPE_CHECKING:
    from aioprefetch.operator.operator import Operator

# So many deleted rows take some milliseconds to find their places: they are looked at on another thread.
THREAD_ROWS_MIN = 20_000


async def read_deletions(operator: Operator, fragment: Fragment) -> RowNumbers:
    """The deleted rows of a fragment, ascending: one request if it has any."""
    file = fragment.deletion_file
    if file is None:
        return np.empty(0, np.int64)
    data = await operator.read(file.path)
    parse = partial(_parsed, data, is_bitmap=file.is_bitmap, path=file.path)
    claimed = len(data) if file.rows is None else file.rows
    deleted = parse() if claimed < THREAD_ROWS_MIN else await operator.runtime().run_blocking(parse)
    if file.rows is not None and len(deleted) != file.rows:
        raise UntrustedMetadata(f"{len(deleted)} rows are deleted where the manifest says {file.rows}", path=file.path)
    if deleted.size and int(deleted[-1]) >= fragment.rows:
        raise UntrustedMetadata(f"row {int(deleted[-1])} of {fragment.rows} rows is deleted", path=file.path)
    return deleted


def _parsed(data: bytes, *, is_bitmap: bool, path: str) -> RowNumbers:
    found = parse_roaring(data, path=path) if is_bitmap else parse_arrow(data, path=path)
    return np.unique(found).astype(np.int64)


def parse_arrow(data: bytes, *, path: str = "") -> RowNumbers:
    """The numbers of an Arrow file with one column of them. ``UntrustedMetadata`` for what is none."""
    try:
        table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
        if table.num_columns != 1 or not pa.types.is_uint32(table.schema.types[0]):
            raise ValueError(f"its columns are {table.schema.types}")
        column = table.column(0)
        column.validate(full=True)
        if column.null_count:
            raise ValueError("it has nulls")
        numbers: RowNumbers = column.to_numpy().astype(np.int64)
        return numbers
    except (pa.ArrowException, ValueError, OSError, MemoryError, OverflowError) as error:
        raise UntrustedMetadata(f"the file of deleted rows is damaged: {error}", path=path) from error


def physical_ranges(living: Sequence[Range], deleted: RowNumbers) -> tuple[Range, ...]:
    """Where rows lie that are counted without the deleted ones: sorted disjoint ranges in, the same out."""
    if not deleted.size or not living:
        return tuple(living)
    before = deleted - np.arange(len(deleted))  # How many living rows lie before each deleted one.
    edges = np.asarray(living, np.int64)
    starts = edges[:, 0] + np.searchsorted(before, edges[:, 0], "right")
    stops = edges[:, 1] + np.searchsorted(before, edges[:, 1] - 1, "right")
    holes = np.asarray(runs(deleted), np.int64)
    first = np.searchsorted(holes[:, 0], starts, "left")
    last = np.searchsorted(holes[:, 0], stops, "left")
    found: list[Range] = []
    for start, stop, low, high in zip(starts.tolist(), stops.tolist(), first.tolist(), last.tolist(), strict=True):
        for hole_start, hole_stop in holes[low:high].tolist():
            found.append((start, hole_start))
            start = hole_stop
        found.append((start, stop))
    return tuple(found)

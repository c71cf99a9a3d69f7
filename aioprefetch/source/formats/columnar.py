"""What Parquet and Lance have in common: fields by name, numbers of rows, unknown fields as text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from aioprefetch.errors import Unsupported
from aioprefetch.ranges import Range
from aioprefetch.source.columns.names import match_names
from aioprefetch.source.formats.record_format import FoundBatch, Wanted

# Batches that a scan of one item decodes ahead: the window over items decodes others at the same time.
READAHEAD_BATCHES = 2
# The share of ``bytes_in_flight`` that the pages of one item may take.
_BUDGET_SHARE = 2


def budget_bytes(want: Wanted) -> int:
    """What the pages of one item may take in memory."""
    return max(1, want.read.bytes_in_flight // _BUDGET_SHARE)


class WantedColumns:
    """Which columns of a file are read: those that are wanted, and all others where unknown fields matter.

    ``Unsupported`` names unknown fields under ``unknown_fields="fail"``.
    """

    def __init__(self, found: Sequence[str], want: Wanted, *, path: str) -> None:
        places = match_names(found, want.schema.names)
        self.wanted = list(dict.fromkeys(found[place] for place in places if place is not None))
        others = () if want.known is None else match_names(found, want.known.names)
        known = {*self.wanted, *(found[place] for place in others if place is not None)}
        self.unknown = list(dict.fromkeys(name for name in found if name not in known))
        policy = want.options.unknown_fields
        if policy == "fail" and self.unknown:
            raise Unsupported(
                f"the file has {', '.join(map(repr, self.unknown))}, which the schema does not have: add it, or set"
                " unknown_fields to ignore or rescue",
                operation="read_items",
                path=path,
            )
        self._is_rescuing = policy == "rescue" and bool(self.unknown)
        self.read = self.wanted + self.unknown if self._is_rescuing else self.wanted

    def found(self, batch: pa.RecordBatch, offsets: pa.Int64Array | None) -> FoundBatch:
        """A batch of the columns ``read`` as those who read items have it."""
        if not self._is_rescuing:
            return FoundBatch(batch, offsets)
        unknown = batch.select(self.unknown)
        texts = [
            json.dumps({name: value for name, value in row.items() if value is not None}, default=str)
            for row in unknown.to_pylist()
        ]
        return FoundBatch(
            batch.select(self.wanted), offsets, pa.array([None if one == "{}" else one for one in texts], pa.string())
        )


class RowNumbers:
    """The numbers of rows that come in ranges, some at a time."""

    def __init__(self, ranges: Iterable[Range]) -> None:
        self._left = [one for one in ranges if one[0] < one[1]][::-1]

    def take(self, count: int) -> pa.Int64Array:
        """The next ones."""
        parts = []
        while count and self._left:
            start, stop = self._left.pop()
            end = min(stop, start + count)
            parts.append(np.arange(start, end, dtype=np.int64))
            count -= end - start
            if end < stop:
                self._left.append((end, stop))
        return pa.array(np.concatenate(parts) if parts else np.empty(0, np.int64))

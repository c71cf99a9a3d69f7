"""Which runs a compaction writes anew, and what is in them then. Pure.

A run has the keys from its first one up to the first one of the next run; the first run also those before it, the last
one also those after it. Only runs in whose range something changed, or has been gone long enough, are written anew.
New keys at the very end make runs of their own once the last run is full, so that a growing bucket is written once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

import pyarrow as pa
import pyarrow.compute as pc

from aioprefetch.source.known import KnownFile
from aioprefetch.source.state.delta import KeyChange, slice_of
from aioprefetch.source.state.runs import SCHEMA, RunInfo, key_bytes, table_of

# A neighbour smaller than this part of a full run is written anew along with it, so that runs do not crumble.
SMALL_PART = 8


@dataclass(slots=True)
class Rewrite:
    """Neighbouring runs that become others, and the changed keys in their range, in order. ``runs`` may be empty."""

    runs: list[RunInfo]
    keys: list[str]
    is_needed: bool

    @property
    def rows(self) -> int:
        """How many files there are afterwards, at most."""
        return sum(run.rows for run in self.runs) + len(self.keys)


def plan_rewrites(runs: Sequence[RunInfo], keys: Sequence[str], *, rows_max: int, gone_before_ms: int) -> list[Rewrite]:
    """All runs in the order of their keys, those to be written anew in one part with their neighbours and changes.

    ``keys`` are the changed ones, in order. A run is also written anew if one of its files is gone since before
    ``gone_before_ms``.
    """
    parts: list[Rewrite] = []
    for number, run in enumerate(runs):
        is_last = number + 1 == len(runs)
        inside = slice_of(keys, None if number == 0 else run.first, None if is_last else runs[number + 1].first)
        tail: Sequence[str] = ()
        if is_last and run.rows + len(inside) > rows_max:
            beyond = run.last + "\0"  # The least key after it.
            inside, tail = slice_of(inside, None, beyond), slice_of(inside, beyond, None)
        has_expired = run.gone_ms_min is not None and run.gone_ms_min < gone_before_ms
        _join(parts, Rewrite([run], list(inside), bool(inside) or has_expired), rows_max)
        if tail:
            parts.append(Rewrite([], list(tail), True))
    if not runs and keys:
        parts.append(Rewrite([], list(keys), True))
    return parts


def _join(parts: list[Rewrite], part: Rewrite, rows_max: int) -> None:
    """Add a part; to the one before it, where one of the two is written anew and the other one is small."""
    small = max(1, rows_max // SMALL_PART)
    before = parts[-1] if parts else None
    if before is not None and ((before.is_needed and part.rows < small) or (part.is_needed and before.rows < small)):
        before.runs += part.runs
        before.keys += part.keys
        before.is_needed = True
    else:
        parts.append(part)


def merge_rows(
    tables: Sequence[pa.Table], keys: Sequence[str], changes: Mapping[str, KeyChange], *, forget_before_ms: int
) -> pa.Table:
    """The rows of runs with what has changed since, in order, without the files gone before ``forget_before_ms``."""
    rows = pa.concat_tables(tables) if tables else SCHEMA.empty_table()
    decided = [change for change in map(changes.__getitem__, keys) if isinstance(change, KnownFile)]
    if rows.num_rows:
        rows = _with_gone(rows, {key: change for key in keys if not isinstance(change := changes[key], KnownFile)})
    if decided:
        changed = table_of(decided)
        if not rows.num_rows or rows.column("key")[-1].as_py() < changed.column("key")[0].as_py():
            rows = pa.concat_tables([rows, changed])
        else:
            goes = pc.is_in(rows.column("key"), value_set=changed.column("key"))
            changed = _with_since(changed, decided, rows.filter(goes))
            rows = pa.concat_tables([rows.filter(pc.invert(goes)), changed])
            rows = rows.take(pc.sort_indices(rows.column("key")))
    gone = rows.column("gone_ms")
    return rows.filter(pc.or_(pc.is_null(gone), pc.greater_equal(pc.fill_null(gone, 0), forget_before_ms)))


def _with_since(changed: pa.Table, decided: Sequence[KnownFile], before: pa.Table) -> pa.Table:
    """Changed rows, of which those that go on from a row before, which was not gone, are as long new as that one."""
    place = pc.index_in(changed.column("key").combine_chunks(), value_set=before.column("key").combine_chunks())
    was_there = pc.and_(pc.is_valid(place), pc.is_null(before.column("gone_ms").take(place)))
    goes_on = pc.and_(was_there, pa.array([one.continues for one in decided], pa.bool_()))
    since = pc.subtract(before.column("seq"), before.column("new_ago")).take(place)
    ago = pc.if_else(goes_on, pc.subtract(changed.column("seq"), since), changed.column("new_ago"))
    number = SCHEMA.get_field_index("new_ago")
    return changed.set_column(number, SCHEMA.field(number), ago)


def _with_gone(rows: pa.Table, gone: Mapping[str, int]) -> pa.Table:
    """The rows, those of keys that are gone now with the time."""
    if not gone:
        return rows
    keys = pa.array([key_bytes(key) for key in gone], pa.binary())
    times = pa.array(list(gone.values()), pa.int64())
    noted = times.take(pc.index_in(rows.column("key").combine_chunks(), value_set=keys))
    place = SCHEMA.get_field_index("gone_ms")
    return rows.set_column(place, SCHEMA.field(place), pc.coalesce(rows.column("gone_ms"), noted))


def cut_rows(rows: pa.Table, *, rows_max: int) -> list[pa.Table]:
    """The rows in as few parts as hold at most ``rows_max`` each, of about the same size; none if there are none."""
    count = ceil(rows.num_rows / rows_max)
    bounds = [rows.num_rows * number // count for number in range(count + 1)] if count else [0]
    return [rows.slice(start, end - start) for start, end in pairwise(bounds)]

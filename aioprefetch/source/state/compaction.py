"""Compaction: what records decided on goes into runs, then a snapshot names these, then the log is shortened.

A record is a fact once it is in the log, whether an engine has committed it or not, so all of them are compacted. What
an engine may ask for again stays in the log beside that: records with work that it has not committed, and some before.

A crash at any point is harmless. New runs are named by nobody until the snapshot is replaced, in one step, and only if
it is still the one that was read. What the snapshot made superfluous is deleted after it; what is left over goes with
the next compaction. The snapshot before is kept whole: its runs, and the records after it, are not deleted.
"""

from __future__ import annotations

import secrets
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import ceil

import pyarrow as pa
import pyarrow.compute as pc

from aioprefetch.source.file_index import KnownFile
from aioprefetch.source.options import StateOptions
from aioprefetch.source.state.delta import Changes, KeyChange, slice_of
from aioprefetch.source.state.index import RunFiles, RunMissing, missing_run
from aioprefetch.source.state.journal import log_seqs
from aioprefetch.source.state.runs import SCHEMA, RunInfo, encode_run, key_bytes, table_of
from aioprefetch.source.state.snapshot import Base, Snapshot
from aioprefetch.source.state.state_data import LoggedRecord
from aioprefetch.source.state.store import (
    KEPT_SNAPSHOTS,
    PROBES,
    RUNS,
    SNAPSHOT,
    StateStore,
    gather_in_turns,
    kept_snapshot_name,
    kept_through,
    log_name,
    run_name,
)

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


# A run is written anew for files that are gone so much longer than need be: not for each by itself.
EXPIRY_PART = 8
# A compaction for their sake alone waits so much longer.
OVERDUE_MS = 60_000


@dataclass(frozen=True, slots=True)
class Kept:
    """The records with work up to the last one that is compacted, and what the engine has committed."""

    work_seqs: Sequence[int]
    committed_seq: int


class Compactor:
    """Compacts one state, for as long as its writer is the newest one.

    ``leftovers`` are runs, kept snapshots and probes that were there when the state was opened. Only they, and what
    this compactor wrote, are ever deleted: a later writer's objects never are, however late a deletion comes.
    """

    def __init__(self, store: StateStore, files: RunFiles, state: str, options: StateOptions) -> None:
        self._store = store
        self._files = files
        self._state = state
        self._options = options
        self.leftovers: set[str] = set()

    async def list_leftovers(self) -> None:
        """Note what is there, to delete it when nothing names it."""
        for prefix in (RUNS, KEPT_SNAPSHOTS, PROBES):
            self.leftovers.update(await self._store.names(prefix))

    def is_overdue(self, gone_ms: int | None, now_ms: int) -> bool:
        """Whether a file that is gone since then should have been forgotten."""
        return gone_ms is not None and gone_ms < self._expired_ms(now_ms) - OVERDUE_MS

    def _expired_ms(self, now_ms: int) -> int:
        forget_after_ms = self._options.forget_after_ms
        return now_ms - forget_after_ms - forget_after_ms // EXPIRY_PART

    async def write(self, base: Base, changes: Changes, last: LoggedRecord, kept: Kept, *, now_ms: int) -> Base:
        """Write runs and the snapshot after the record ``last``; ``changes`` are those since the one in force.

        ``StateConflict`` if another writer has replaced that meanwhile.
        """
        forget_before_ms = now_ms - self._options.forget_after_ms
        parts = plan_rewrites(
            base.snapshot.runs,
            sorted(changes),
            rows_max=self._options.run_rows,
            gone_before_ms=self._expired_ms(now_ms),
        )
        token = secrets.token_hex(4)
        runs: list[RunInfo] = []
        number = 0
        for part in parts:
            if not part.is_needed:
                runs += part.runs
                continue
            for data, run in await self._encoded(part, changes, forget_before_ms, (last.record.seq, number, token)):
                self.leftovers.add(run.name)
                await self._store.write(run.name, data)
                await self._files.put(run, data)
                runs.append(run)
                number += 1
        # Arrow keeps what it used for the next time; that is more than all the rest of a state takes.
        pa.default_memory_pool().release_unused()
        return await self._replace(base, self._snapshot(base, runs, last, kept))

    async def _encoded(
        self, part: Rewrite, changes: Changes, forget_before_ms: int, name: tuple[int, int, str]
    ) -> list[tuple[bytes, RunInfo]]:
        """The new runs of a part, with their bytes."""
        try:
            tables = [await self._files.table(run) for run in part.runs]
        except RunMissing as missing:
            raise missing_run(missing.run) from missing
        through, first, token = name

        def encode() -> list[tuple[bytes, RunInfo]]:
            rows = merge_rows(tables, part.keys, changes, forget_before_ms=forget_before_ms)
            pieces = cut_rows(rows, rows_max=self._options.run_rows)
            return [
                encode_run(piece, run_name(through, number, token), group_rows=self._options.group_rows)
                for number, piece in enumerate(pieces, first)
            ]

        return await self._store.operator.runtime().run_blocking(encode)

    def _snapshot(self, base: Base, runs: Sequence[RunInfo], last: LoggedRecord, kept: Kept) -> Snapshot:
        record = last.record
        count = self._options.keep_records
        previous_seq = base.snapshot.through_seq
        log_from = max(base.snapshot.log_from, min(record.seq - count + 1, previous_seq))
        seqs = kept.work_seqs
        # Those that are committed, the last ones excepted, and not in the part of the log that is kept whole.
        removed = min(bisect_right(seqs, kept.committed_seq) - count, bisect_left(seqs, log_from))
        cut = max(0, removed)
        names = {run.name for run in runs}
        return Snapshot(
            state=self._state,
            writer=self._store.writer,
            through_seq=record.seq,
            record_crc32=last.crc32,
            cursor=record.cursor,
            carry=record.carry,
            files=record.files,
            total_bytes=record.bytes,
            runs=tuple(runs),
            previous_seq=previous_seq,
            previous_runs=tuple(run.name for run in base.snapshot.runs if run.name not in names),
            committed_seq=kept.committed_seq,
            work_seqs=tuple(seqs[cut:]),
            removed_seq=seqs[cut - 1] if cut else base.snapshot.removed_seq,
            log_from=log_from,
        )

    async def _replace(self, base: Base, snapshot: Snapshot) -> Base:
        if base.snapshot.through_seq >= 0:
            kept = kept_snapshot_name(base.snapshot.through_seq)
            self.leftovers.add(kept)
            await self._store.write(kept, base.version.data)
        version = await self._store.replace(SNAPSHOT, snapshot.to_bytes(), base.version)
        return Base(snapshot, version)

    async def take_over(self, base: Base) -> Base:
        """Write the snapshot anew in the name of this writer: no earlier one can replace it from now on."""
        snapshot = replace(base.snapshot, writer=self._store.writer)
        return Base(snapshot, await self._store.replace(SNAPSHOT, snapshot.to_bytes(), base.version))

    async def clean(self, base: Base) -> None:
        """Delete what neither the snapshot in force nor the one before it needs."""
        snapshot = base.snapshot
        needed = {run.name for run in snapshot.runs} | set(snapshot.previous_runs)
        needed.add(kept_snapshot_name(snapshot.previous_seq) if snapshot.previous_seq >= 0 else "")
        for name in sorted(self.leftovers - needed):
            through = kept_through(name)
            if through is None or through < snapshot.through_seq:
                await self._store.delete(name)
                self.leftovers.discard(name)
        work_seqs = set(snapshot.work_seqs)
        seqs = [seq for seq in await log_seqs(self._store) if seq < snapshot.log_from and seq not in work_seqs]
        await gather_in_turns([partial(self._store.delete, log_name(seq)) for seq in seqs])
        await self._files.keep_only(run.name for run in snapshot.runs)

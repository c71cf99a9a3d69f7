"""Compaction: merge the changes of records into runs, replace the snapshot, then shorten the log.

It runs in the background once there is enough to do, or on request.

A record in the log is a fact, whether an engine has committed it or not, so all records are compacted. Records that an
engine may request again also stay in the log: those with work that it has not committed, and some before them.

A crash at any point is harmless. No snapshot names the new runs until it is replaced, in one step, under the condition
that it has not changed since it was read. Superfluous objects are deleted afterwards, or by the next compaction. The
snapshot before is kept whole: its runs, and the records after it, are not deleted.

A run has the keys from its first one up to the first one of the next run; the first run also those before it, the last
one also those after it. A run is written again only if something in its range changed, or has been gone long enough.
New keys at the end make new runs once the last run is full, so each file of a growing bucket is written once.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import secrets
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import ceil

import pyarrow as pa
import pyarrow.compute as pc

from aioprefetch.errors import Error, StateConflict, copy_of
from aioprefetch.runtime.task_group import gather_all
from aioprefetch.source.options import StateOptions
from aioprefetch.source.polling import OutageLimit, is_transient
from aioprefetch.source.state.index import Changes, KeyChange, RunFiles, RunMissing, missing_run, slice_of
from aioprefetch.source.state.journal import LoggedRecord, StateData, log_seqs
from aioprefetch.source.state.snapshot import (
    SCHEMA,
    Base,
    RunInfo,
    Snapshot,
    encode_run,
    key_bytes,
    read_snapshot,
    table_of,
)
from aioprefetch.source.state.store import (
    CALLS_AT_ONCE,
    KEPT_SNAPSHOTS,
    PROBES,
    RUNS,
    SNAPSHOT,
    StateStore,
    kept_snapshot_name,
    kept_through,
    log_name,
    run_name,
)
from aioprefetch.source.values import KnownFile

logger = logging.getLogger(__name__)

# A neighbour smaller than this fraction of a full run is merged into a rewrite, so that runs do not become tiny.
SMALL_PART = 8


@dataclass(slots=True)
class Rewrite:
    """Neighbouring runs to replace, and the sorted changed keys in their range. ``runs`` may be empty."""

    runs: list[RunInfo]
    keys: list[str]
    is_needed: bool

    @property
    def rows(self) -> int:
        """The maximum number of files afterwards."""
        return sum(run.rows for run in self.runs) + len(self.keys)


def plan_rewrites(runs: Sequence[RunInfo], keys: Sequence[str], *, rows_max: int, gone_before_ms: int) -> list[Rewrite]:
    """All runs in the order of their keys, grouped into parts that are replaced together or stay.

    ``keys`` are the sorted changed keys. A run is also replaced if one of its files disappeared before
    ``gone_before_ms``.
    """
    parts: list[Rewrite] = []
    for number, run in enumerate(runs):
        is_last = number + 1 == len(runs)
        inside = slice_of(keys, None if number == 0 else run.first, None if is_last else runs[number + 1].first)
        tail: Sequence[str] = ()
        if is_last and run.rows + len(inside) > rows_max:
            beyond = run.last + "\0"  # The least key after the run.
            inside, tail = slice_of(inside, None, beyond), slice_of(inside, beyond, None)
        has_expired = run.gone_ms_min is not None and run.gone_ms_min < gone_before_ms
        _join(parts, Rewrite([run], list(inside), bool(inside) or has_expired), rows_max)
        if tail:
            parts.append(Rewrite([], list(tail), True))
    if not runs and keys:
        parts.append(Rewrite([], list(keys), True))
    return parts


def _join(parts: list[Rewrite], part: Rewrite, rows_max: int) -> None:
    """Add a part; merge it into the part before if one of the two is replaced and the other one is small."""
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
    """The sorted rows of runs with the changes applied, without the files gone before ``forget_before_ms``."""
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
    """Changed rows; a row that continues an existing file takes over the record that made its name new."""
    place = pc.index_in(changed.column("key").combine_chunks(), value_set=before.column("key").combine_chunks())
    was_there = pc.and_(pc.is_valid(place), pc.is_null(before.column("gone_ms").take(place)))
    goes_on = pc.and_(was_there, pa.array([file.continues for file in decided], pa.bool_()))
    since = pc.subtract(before.column("seq"), before.column("new_ago")).take(place)
    ago = pc.if_else(goes_on, pc.subtract(changed.column("seq"), since), changed.column("new_ago"))
    number = SCHEMA.get_field_index("new_ago")
    return changed.set_column(number, SCHEMA.field(number), ago)


def _with_gone(rows: pa.Table, gone: Mapping[str, int]) -> pa.Table:
    """The rows, with the time for keys that are gone now."""
    if not gone:
        return rows
    keys = pa.array([key_bytes(key) for key in gone], pa.binary())
    times = pa.array(list(gone.values()), pa.int64())
    noted = times.take(pc.index_in(rows.column("key").combine_chunks(), value_set=keys))
    place = SCHEMA.get_field_index("gone_ms")
    return rows.set_column(place, SCHEMA.field(place), pc.coalesce(rows.column("gone_ms"), noted))


def cut_rows(rows: pa.Table, *, rows_max: int) -> list[pa.Table]:
    """The rows in as few parts of at most ``rows_max`` as possible, of similar size; no part without rows."""
    count = ceil(rows.num_rows / rows_max)
    bounds = [rows.num_rows * number // count for number in range(count + 1)] if count else [0]
    return [rows.slice(start, end - start) for start, end in pairwise(bounds)]


# --- the compaction ---------------------------------------------------------------------------------------------------

# A run is replaced for files that are gone longer than needed by this fraction: not for each file by itself.
EXPIRY_PART = 8
# A compaction for these files alone waits this much longer.
OVERDUE_MS = 60_000


@dataclass(frozen=True, slots=True)
class Kept:
    """The records with work up to the compacted one, and the newest record that the engine has committed."""

    work_seqs: Sequence[int]
    committed_seq: int


class Compactor:
    """Compacts one state while its writer is the newest one.

    ``leftovers`` are the runs, kept snapshots and probes from before the opening, and the objects that this compactor
    wrote. Nothing else is deleted, so a late deletion never removes an object of a later writer.
    """

    def __init__(self, store: StateStore, files: RunFiles, state: str, options: StateOptions) -> None:
        self._store = store
        self._files = files
        self._state = state
        self._options = options
        self.leftovers: set[str] = set()

    async def list_leftovers(self) -> None:
        """Note the existing objects, to delete what no snapshot names."""
        for prefix in (RUNS, KEPT_SNAPSHOTS, PROBES):
            self.leftovers.update(await self._store.names(prefix))

    def is_overdue(self, gone_ms: int | None, now_ms: int) -> bool:
        """Whether a file that disappeared at that time should have been forgotten."""
        return gone_ms is not None and gone_ms < self._expired_ms(now_ms) - OVERDUE_MS

    def _expired_ms(self, now_ms: int) -> int:
        forget_after_ms = self._options.forget_after_ms
        return now_ms - forget_after_ms - forget_after_ms // EXPIRY_PART

    async def write(self, base: Base, changes: Changes, last: LoggedRecord, kept: Kept, *, now_ms: int) -> Base:
        """Write runs and the snapshot after the record ``last``, with the ``changes`` since the snapshot in force.

        ``StateConflict`` if another writer has replaced that snapshot.
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
        # Arrow keeps freed memory, which is more than all other memory of a state.
        pa.default_memory_pool().release_unused()
        return await self._replace(base, self._snapshot(base, runs, last, kept))

    async def _encoded(
        self, part: Rewrite, changes: Changes, forget_before_ms: int, name: tuple[int, int, str]
    ) -> list[tuple[bytes, RunInfo]]:
        """The new runs of a part, and their bytes."""
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
        # Committed records, except the last ones, and outside of the part of the log that is kept whole.
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
        """Write the snapshot again under the name of this writer: no earlier writer can replace it from now on."""
        snapshot = replace(base.snapshot, writer=self._store.writer)
        return Base(snapshot, await self._store.replace(SNAPSHOT, snapshot.to_bytes(), base.version))

    async def clean(self, base: Base) -> None:
        """Delete all objects that neither the snapshot in force nor the one before it needs."""
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
        await gather_all((partial(self._store.delete, log_name(seq)) for seq in seqs), at_once=CALLS_AT_ONCE)
        await self._files.keep_only(run.name for run in snapshot.runs)


# --- the schedule -----------------------------------------------------------------------------------------------------

# A failed compaction is repeated at the next record or commit. After this many failures in a row that have also lasted
# for ``retry_seconds``, the error is raised to the caller.
FAILURES_MAX = 5
# Appends and commits wait for the running compaction once this many times the changes that started it are in memory.
# With this many times ``compact_records`` an opening compacts at once, without waiting for the first commit.
BACKLOG_MAX = 2


class CompactionSchedule:
    """Runs the compactions of one open state, one at a time, beside appends and lookups.

    See the methods of the same name of ``SourceState``.
    """

    def __init__(self, data: StateData, compactor: Compactor, clock_ms: Callable[[], int]) -> None:
        self._data = data
        self._compactor = compactor
        self._clock_ms = clock_ms
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        # Failures in a row: the last one, and their number since one was raised.
        self._failure: Exception | None = None
        self._failures = 0
        self._outage = OutageLimit(data.options.retry_seconds)
        self._is_first = True
        # True between the start of a compaction and its response; it stays true if no response comes.
        self._is_uncertain = False

    @property
    def is_running(self) -> bool:
        """Whether a compaction runs in the background."""
        return self._task is not None

    async def committed(self, seq: int) -> None:
        """The engine has committed the records up to ``seq``, as ``SourceState.committed``."""
        data = self._data
        data.committed_seq = max(data.committed_seq, min(seq, data.newest_seq))
        failure = self._failure
        if failure is not None and self._is_lasting(failure):
            self._failure, self._failures = None, 0
            raise copy.copy(failure)
        if self._is_first:
            self._is_first = False
            await self.catch_up(data.options.compact_records)
        await self.keep_up()

    async def keep_up(self) -> None:
        """Start a compaction if there is enough to do; wait for a slow one."""
        data = self._data
        if self._task is not None and len(data.index.view.delta) >= BACKLOG_MAX * self._changes_enough():
            await self.join()
        if not (data.is_closed or data.conflict) and self._task is None and self._is_worthwhile():
            self._task = asyncio.create_task(self._run_quietly(), name="aioprefetch compaction of a state")

    async def catch_up(self, records_max: int) -> None:
        """Compact if earlier processes left ``records_max`` records, and wait: a short process would never finish."""
        if self._data.index.view.delta.records >= records_max:
            await self.keep_up()
            await self.join()

    async def join(self) -> None:
        """Wait for the compaction that is in progress."""
        if self._task is not None:
            await asyncio.wait({self._task})

    def _is_worthwhile(self) -> bool:
        data, delta = self._data, self._data.index.view.delta
        assert data.base is not None
        if delta.records >= data.options.compact_records or delta.changes >= self._changes_enough():
            return True
        now_ms = self._clock_ms()
        times = (delta.gone_ms_min, *(run.gone_ms_min for run in data.base.snapshot.runs))
        return any(self._compactor.is_overdue(gone_ms, now_ms) for gone_ms in times)

    def _changes_enough(self) -> int:
        """The number of changes that is worth a compaction."""
        assert self._data.base is not None
        return self._data.options.compact_entries_for(self._data.base.snapshot.rows)

    async def _run_quietly(self) -> None:
        try:
            await self.run()
            self._failure, self._failures = None, 0
            self._outage.end()
        except Exception as error:
            logger.warning("compacting the state at %s failed: %s", self._data.store.url, error)
            self._failure = copy_of(error)
            self._failures += 1
        finally:
            self._task = None

    def _is_lasting(self, failure: Exception) -> bool:
        """Whether another attempt is useless, or transient failures have lasted too long."""
        if not isinstance(failure, Error) or not is_transient(failure):
            return True
        is_tolerated = self._outage.tolerates(failure)
        return self._failures >= FAILURES_MAX and not is_tolerated

    async def run(self) -> None:
        """Compact now, as ``SourceState.compact``."""
        data = self._data
        data.check_writable()
        async with self._lock:
            if self._is_uncertain:
                await self._adopt_own_snapshot()
            assert data.head is not None
            if data.head.record.seq > data.through_seq or self._is_worthwhile():
                await self._compact()
            assert data.base is not None
            await self._compactor.clean(data.base)

    async def _compact(self) -> None:
        base: Base | None = None
        while base is None:
            self._is_uncertain = True
            try:
                base = await self._write()
            except StateConflict as error:
                # An earlier attempt of this writer may have arrived late.
                if not await self._adopt_own_snapshot():
                    self._data.conflict = copy_of(error)
                    raise
        self._data.compacted(base)
        self._is_uncertain = False

    async def _write(self) -> Base:
        data = self._data
        last, delta, now_ms = data.head, data.index.view.delta, self._clock_ms()
        assert data.base is not None
        assert last is not None
        kept = Kept(data.work_between(-1, last.record.seq), data.committed_seq)
        changes = delta.up_to(last.record.seq)
        return await self._compactor.write(data.base, changes, last, kept, now_ms=now_ms)

    async def _adopt_own_snapshot(self) -> bool:
        """Continue from a snapshot of this writer that is in force although its response was lost, if there is one."""
        data = self._data
        assert data.base is not None
        base = await read_snapshot(data.store, data.meta.uuid)
        self._is_uncertain = False
        if base is None or base.snapshot.writer != data.store.writer or base.version == data.base.version:
            return False
        data.compacted(base)
        return True

    async def aclose(self) -> None:
        """Cancel the compaction that is in progress."""
        if self._task is not None:
            self._task.cancel()
            await self.join()

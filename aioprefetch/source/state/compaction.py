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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from aioprefetch.source.state.delta import Changes
from aioprefetch.source.state.known import missing_run
from aioprefetch.source.state.layout import (
    KEPT_SNAPSHOTS,
    PROBES,
    RUNS,
    SNAPSHOT,
    kept_snapshot_name,
    kept_through,
    log_name,
    run_name,
)
from aioprefetch.source.state.log import LoggedRecord, log_seqs, together
from aioprefetch.source.state.merging import Rewrite, cut_rows, merge_rows, plan_rewrites
from aioprefetch.source.state.options import StateOptions
from aioprefetch.source.state.run_files import RunFiles, RunMissing
from aioprefetch.source.state.runs import RunInfo, encode_run
from aioprefetch.source.state.snapshot import Snapshot
from aioprefetch.source.state.store import StateStore, Versioned

# A run is written anew for files that are gone so much longer than need be: not for each by itself.
EXPIRY_PART = 8
# A compaction for their sake alone waits so much longer.
OVERDUE_MS = 60_000


@dataclass(frozen=True, slots=True)
class Base:
    """The snapshot that is in force, and its version in the store."""

    snapshot: Snapshot
    version: Versioned


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

    async def look_around(self) -> None:
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
        await together([partial(self._store.delete, log_name(seq)) for seq in seqs])
        await self._files.keep_only(run.name for run in snapshot.runs)

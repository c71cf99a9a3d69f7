"""When a state is compacted: by itself, when there is enough to do, or when it is asked for."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Callable

from aioprefetch.errors import Error, StateConflict
from aioprefetch.source.pace import Patience, may_pass
from aioprefetch.source.state.compaction import Base, Compactor, Kept
from aioprefetch.source.state.live import LiveState
from aioprefetch.source.state.snapshot import read_snapshot

logger = logging.getLogger(__name__)

# Compaction is tried again at the next record or commit; so many failures in a row are the caller's to know, once they
# have lasted for ``retry_seconds``.
FAILURES_MAX = 5
# Records and commits wait for the compaction under way when so many times the changes that started it are in memory.
# With so many times the records, an opening does not wait for the first commit, which says what may be removed.
BACKLOG_MAX = 2


class Compactions:
    """Runs the compactions of one open state, one at a time. Records are appended and files looked up meanwhile."""

    def __init__(self, live: LiveState, compactor: Compactor, clock_ms: Callable[[], int]) -> None:
        self._live = live
        self._compactor = compactor
        self._clock_ms = clock_ms
        self._turn = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        # Of the failures in a row: the last one, and how many there were since they were told.
        self._failure: Exception | None = None
        self._failures = 0
        self._patience = Patience(live.options.retry_seconds)
        self._is_first = True
        # Between the beginning of a compaction and its response, and from then on if that never comes.
        self._is_uncertain = False

    async def committed(self, seq: int) -> None:
        """See ``SourceState.committed``."""
        live = self._live
        live.committed_seq = max(live.committed_seq, min(seq, live.newest_seq))
        failure = self._failure
        if failure is not None and self._is_to_be_told(failure):
            self._failure, self._failures = None, 0
            raise copy.copy(failure)
        if self._is_first:
            self._is_first = False
            await self.catch_up(live.options.compact_records)
        await self.keep_up()

    async def keep_up(self) -> None:
        """Start a compaction when there is enough for one; wait for one that does not keep up."""
        live = self._live
        if self._task is not None and len(live.known.view.delta) >= BACKLOG_MAX * self._enough():
            await asyncio.wait({self._task})
        if not (live.is_closed or live.lost) and self._task is None and self._is_worthwhile():
            self._task = asyncio.create_task(self._run_quietly(), name="aioprefetch compaction of a state")

    async def catch_up(self, records_max: int) -> None:
        """Compact so many records that other processes have left, and wait: one that ends soon would never end it."""
        if self._live.known.view.delta.records >= records_max:
            await self.keep_up()
            if self._task is not None:
                await asyncio.wait({self._task})

    def _is_worthwhile(self) -> bool:
        live, delta = self._live, self._live.known.view.delta
        assert live.base is not None
        if delta.records >= live.options.compact_records or delta.changes >= self._enough():
            return True
        now_ms = self._clock_ms()
        times = (delta.gone_ms_min, *(run.gone_ms_min for run in live.base.snapshot.runs))
        return any(self._compactor.is_overdue(gone_ms, now_ms) for gone_ms in times)

    def _enough(self) -> int:
        """So many changes are worth a compaction."""
        assert self._live.base is not None
        return self._live.options.compact_entries_for(self._live.base.snapshot.rows)

    async def _run_quietly(self) -> None:
        try:
            await self.run()
            self._failure, self._failures = None, 0
            self._patience.succeeded()
        except Exception as error:
            logger.warning("compacting the state at %s failed: %s", self._live.store.url, error)
            self._failure = error
            self._failures += 1
        finally:
            self._task = None

    def _is_to_be_told(self, failure: Exception) -> bool:
        """Whether it is no use to try again, or failures that may pass have lasted for too long."""
        if not isinstance(failure, Error) or not may_pass(failure):
            return True
        is_patient = self._patience.bears(failure)
        return self._failures >= FAILURES_MAX and not is_patient

    async def run(self) -> None:
        """See ``SourceState.compact``."""
        live = self._live
        live.check_writable()
        async with self._turn:
            if self._is_uncertain:
                await self._look_again()
            assert live.head is not None
            if live.head.record.seq > live.through_seq or self._is_worthwhile():
                await self._compact()
            assert live.base is not None
            await self._compactor.clean(live.base)

    async def _compact(self) -> None:
        base: Base | None = None
        while base is None:
            self._is_uncertain = True
            try:
                base = await self._write()
            except StateConflict as error:
                # Our own snapshot, that of an earlier try, may have come so late.
                if not await self._look_again():
                    self._live.lost = error
                    raise
        self._live.compacted(base)
        self._is_uncertain = False

    async def _write(self) -> Base:
        live = self._live
        last, delta, now_ms = live.head, live.known.view.delta, self._clock_ms()
        assert live.base is not None
        assert last is not None
        kept = Kept(live.work_between(-1, last.record.seq), live.committed_seq)
        changes = delta.up_to(last.record.seq)
        return await self._compactor.write(live.base, changes, last, kept, now_ms=now_ms)

    async def _look_again(self) -> bool:
        """Go on from a snapshot of this writer that is in force although its reply was lost; whether there is one."""
        live = self._live
        assert live.base is not None
        found = await read_snapshot(live.store, live.meta.uuid)
        self._is_uncertain = False
        if found is None or found[0].writer != live.store.writer or found[1] == live.base.version:
            return False
        live.compacted(Base(*found))
        return True

    async def aclose(self) -> None:
        """End the one that is under way."""
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

"""When a state is compacted: in the background once there is enough to do, or on request."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Callable

from aioprefetch.errors import Error, StateConflict
from aioprefetch.source.polling import OutageLimit, is_transient
from aioprefetch.source.state.compaction import Compactor, Kept
from aioprefetch.source.state.snapshot import Base, read_snapshot
from aioprefetch.source.state.state_data import StateData

logger = logging.getLogger(__name__)

# A failed compaction is repeated at the next record or commit. After this many failures in a row that have also lasted
# for ``retry_seconds``, the error is raised to the caller.
FAILURES_MAX = 5
# Appends and commits wait for the running compaction once this many times the changes that started it are in memory.
# With this many times ``compact_records`` an opening compacts at once, without waiting for the first commit.
BACKLOG_MAX = 2


class CompactionSchedule:
    """Runs the compactions of one open state, one at a time, beside appends and lookups.

    The methods of ``SourceState`` describe those that have the same name.
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
        """Start a compaction if there is enough to do; wait for one that is too slow."""
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
            self._failure = error
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
                    self._data.conflict = error
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

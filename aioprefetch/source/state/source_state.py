"""The state of one source: the object that planners, followers and engines use."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from aioprefetch.errors import Error, InvalidArgument, StateConflict
from aioprefetch.operator.operator import Operator
from aioprefetch.source.cursor import Cursor
from aioprefetch.source.file_index import FileIndex
from aioprefetch.source.offset import Offset
from aioprefetch.source.options import StateOptions
from aioprefetch.source.record import Record
from aioprefetch.source.state.compaction import Compactor
from aioprefetch.source.state.compaction_schedule import BACKLOG_MAX, CompactionSchedule
from aioprefetch.source.state.index import RunFiles, StateIndex
from aioprefetch.source.state.journal import Journal
from aioprefetch.source.state.meta import SourceIdentity, StateMeta, new_writer
from aioprefetch.source.state.opening import claim_state, find_state, load
from aioprefetch.source.state.state_data import StateData
from aioprefetch.source.state.store import SideFiles, StateStore, checked_directory


def _now_ms() -> int:
    return int(time.time() * 1000)


@dataclass(frozen=True, slots=True)
class StateStatistics:
    """The size of an open state, in memory and on the local disk.

    Parameters
    ----------
    newest_seq
        The number of the newest record; -1 if there is none.
    compacted_seq
        The newest record whose files are in runs; -1 if there is none.
    runs
        Runs that the snapshot in force names.
    run_files
        Known files in these runs.
    changed_files
        Known files that changed after the snapshot: they are held in memory.
    local_bytes
        Bytes of runs on the local disk.
    cached_groups
        Row groups of runs in memory.
    is_compacting
        Whether a compaction runs in the background.
    """

    newest_seq: int
    compacted_seq: int
    runs: int
    run_files: int
    changed_files: int
    local_bytes: int
    cached_groups: int
    is_compacting: bool


class SourceState:
    """The plans and the known files of a source, durable in a store with conditional writes.

    Made by ``open``. The newest writer to open a state owns it: its claim ends every earlier writer at the next append
    with ``StateConflict``. A state belongs to one event loop. The store is whole at any time, without ``aclose``, which
    releases local files.
    """

    def __init__(
        self,
        store: StateStore,
        meta: StateMeta,
        options: StateOptions,
        clock_ms: Callable[[], int],
        *,
        is_writer: bool,
    ) -> None:
        self._files = RunFiles(store, options)
        self._index = StateIndex(self._files)
        self._data = StateData(store, meta, self._index, options, is_writer=is_writer)
        self._journal = Journal(self._data, partial(load, store, meta.uuid))
        if not is_writer:
            self._index.refresh = self._journal.reload
        self._compactor = Compactor(store, self._files, meta.uuid, options)
        self._schedule = CompactionSchedule(self._data, self._compactor, clock_ms)
        self._side_files = SideFiles(store.operator, store.directory)

    @classmethod
    async def open(
        cls,
        operator: Operator,
        directory: str,
        identity: SourceIdentity | None,
        *,
        first: Cursor,
        writer: bool = True,
        clock_ms: Callable[[], int] = _now_ms,
        options: StateOptions | None = None,
    ) -> SourceState:
        """Open the state in a directory of the operator (``""``, or a path that ends with ``/``).

        A writer makes the state if it is missing, with ``first`` as its cursor, and claims it. With ``writer=False`` it
        is only read: by a query that follows another one, or that plans no batches.

        Raises ``ConfigInvalid`` for a writer in a store that ignores conditions of writes (five requests find out, and
        leave nothing behind); ``StateConflict`` when ``identity``, the settings of the source, differs from that of the
        source that made the state (readers may pass ``None``); ``UntrustedMetadata`` for a damaged state,
        ``Unsupported`` for a newer format, ``NotFound`` for a reader without a state, ``PermissionDenied``, ... After a
        cancellation the state may be claimed.
        """
        if writer and identity is None:
            raise InvalidArgument("a writer must say which source it is: identity", operation="open_state")
        store = StateStore(operator, checked_directory(directory), new_writer())
        try:
            meta = await find_state(store, identity, writer=writer, now_ms=clock_ms())
            state = cls(store, meta, options or StateOptions(), clock_ms, is_writer=writer)
            loaded = await (claim_state(store, meta, state._compactor, first) if writer else load(store, meta.uuid))
        except Error as error:
            error.add_context(state=store.url)
            raise
        state._data.adopt(loaded)
        if writer:
            try:
                await state._schedule.catch_up(BACKLOG_MAX * state._data.options.compact_records)
            except BaseException:
                await state.aclose()
                raise
        return state

    @property
    def uuid(self) -> str:
        """The id of the state, which offsets carry."""
        return self._data.meta.uuid

    @property
    def identity(self) -> SourceIdentity:
        """The settings of the source that made the state."""
        return self._data.meta.identity

    @property
    def writer(self) -> str:
        """The id of this opening, which its records carry."""
        return self._data.store.writer

    @property
    def is_overtaken(self) -> bool:
        """Whether another writer has taken over: this one writes nothing any more."""
        return self._data.conflict is not None

    @property
    def head(self) -> Record | None:
        """The newest record, claims included. Its cursor, carry and totals are those of the state."""
        return None if self._data.head is None else self._data.head.record

    @property
    def index(self) -> FileIndex:
        """The known files: the exact lookup over all records up to ``head``."""
        return self._index

    @property
    def statistics(self) -> StateStatistics:
        """Sizes at this moment."""
        data, view = self._data, self._index.view
        return StateStatistics(
            newest_seq=data.newest_seq,
            compacted_seq=data.through_seq,
            runs=len(view.runs),
            run_files=sum(run.rows for run in view.runs),
            changed_files=len(view.delta),
            local_bytes=self._files.local_bytes,
            cached_groups=self._files.cached_groups,
            is_compacting=self._schedule.is_running,
        )

    async def append(self, record: Record) -> None:
        """Make the next record durable. Appending the newest record again has no effect.

        ``StateConflict`` if another writer has taken over, or if another record has that number. After any other error,
        or a cancellation, the record may be there or not: append the same one again, or ask ``newest``.

        May start a compaction in the background. Waits for a compaction that is too slow, so that memory stays bounded.
        """
        await self._journal.append(record)
        await self._schedule.keep_up()

    async def newest(self) -> Record | None:
        """The newest record of the log in the store.

        ``StateConflict`` for a writer whose state was taken over, and for a reader whose state was deleted or replaced.
        """
        return await self._journal.newest()

    async def records(self, after: int, through: int) -> list[Record]:
        """The records above ``after`` and up to ``through``, claims included; from memory if possible.

        Early records without work are left out, as they are not kept. ``NotFound`` if a record with work was removed,
        ``UntrustedMetadata`` if a record never existed.
        """
        return await self._journal.records(after, through)

    async def work(self, after: int, through: int) -> list[Record]:
        """The records with work above ``after`` and up to ``through``; reads no others. Raises as ``records`` does."""
        return await self._journal.work(after, through)

    def work_seqs(self, after: int) -> list[int]:
        """The numbers of the records with work above ``after``. ``NotFound`` if one of them was removed."""
        return self._journal.work_seqs(after)

    def check_offset(self, offset: Offset) -> None:
        """Refuse the offset of a checkpoint that does not belong to this state.

        ``StateConflict`` for the offset of another state, ``UntrustedMetadata`` for an offset beyond the log.
        """
        if offset.state != self.uuid:
            raise StateConflict(
                f"the checkpoint belongs to the state {offset.state}, and the one at {self._data.store.url} is"
                f" {self.uuid}. Give the state location that was used with this checkpoint, or a new checkpoint, which"
                " reads everything again",
                operation="check_offset",
            )
        if offset.seq > self._data.newest_seq:
            raise self._journal.beyond(offset.seq)

    async def check_totals(self, offset: Offset) -> None:
        """Refuse an offset whose record has other totals: the log was cut, and continued from there.

        ``UntrustedMetadata``. An offset whose record was removed can no longer be checked.
        """
        await self._journal.check_totals(offset)

    async def committed(self, seq: int) -> None:
        """The engine has committed the records up to ``seq``. Repeated and out-of-order calls are allowed.

        These records may be removed from the log, except the last ones with work. May start a compaction, as ``append``
        does. Raises the error of earlier compactions if another attempt is useless, or if they have failed for longer
        than ``StateOptions.retry_seconds``. Has no effect on a state that is closed or was opened for reading.
        """
        if self._data.is_writer and not self._data.is_closed:
            await self._schedule.committed(seq)

    async def compact(self) -> None:
        """Merge all records into runs, and shorten the log.

        ``StateConflict`` if another writer has taken over. After an error or a cancellation the state is as good as
        before, and the next compaction repeats the work.
        """
        await self._schedule.run()

    async def join(self) -> None:
        """Wait for the end of the compaction in the background, if one is in progress. Its error is not raised."""
        await self._schedule.join()

    async def get_json(self, name: str) -> Any | None:
        """The content of a small file beside the state, such as ``schema.json``; ``None`` if it does not exist."""
        return await self._side_files.get_json(name)

    async def put_json_if_absent(self, name: str, value: Any) -> Any:
        """Write a small file beside the state if it is absent; returns its content afterwards."""
        return await self._side_files.put_json_if_absent(name, value)

    async def aclose(self) -> None:
        """Cancel a compaction that is in progress and release local files. The store stays whole."""
        self._data.is_closed = True
        await self._schedule.aclose()
        await self._files.aclose()

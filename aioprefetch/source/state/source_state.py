"""The state of one source: the one object that everybody else uses."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from aioprefetch.errors import Error, InvalidArgument, StateConflict
from aioprefetch.operator.operator import Operator
from aioprefetch.source.cursor import Cursor
from aioprefetch.source.known import Known
from aioprefetch.source.offset import Offset
from aioprefetch.source.record import Record
from aioprefetch.source.state.background import BACKLOG_MAX, Compactions
from aioprefetch.source.state.compaction import Compactor
from aioprefetch.source.state.journal import Journal
from aioprefetch.source.state.known import StateKnown
from aioprefetch.source.state.layout import checked_directory
from aioprefetch.source.state.live import LiveState
from aioprefetch.source.state.loading import load
from aioprefetch.source.state.meta import SourceIdentity, StateMeta, new_writer
from aioprefetch.source.state.opening import claim_state, find_state
from aioprefetch.source.state.options import StateOptions
from aioprefetch.source.state.run_files import RunFiles
from aioprefetch.source.state.side_files import SideFiles
from aioprefetch.source.state.store import StateStore


def _now_ms() -> int:
    return int(time.time() * 1000)


class SourceState:
    """What a source has planned and knows, durable in any store that can be written and listed.

    Made by ``open``. One writer at a time: the newest one to open it, whose claim ends all others at their next
    append with ``StateConflict``. Belongs to one event loop. Nothing needs to be closed for the state to be whole;
    ``aclose`` gives local files back.

    ``uuid`` is the id of the state, ``writer`` that of this opening, which the records that are appended carry.
    ``known`` is the exact look-up of files, all records up to ``head`` included.
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
        self._known = StateKnown(self._files)
        self._live = LiveState(store, meta, self._known, options, is_writer=is_writer)
        self._journal = Journal(self._live)
        if not is_writer:
            self._known.refresh = self._journal.reload
        self._compactor = Compactor(store, self._files, meta.uuid, options)
        self._compactions = Compactions(self._live, self._compactor, clock_ms)
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

        A writer makes what is not there, with ``first`` as its cursor, and claims the state. Without ``writer`` it is
        only read: by a query that follows another one, or that plans no batches.

        ``StateConflict`` names what differs from ``identity``, the settings of the source that made the state;
        ``None``, for readers, is any. ``UntrustedMetadata`` for a state that is not whole, ``Unsupported`` for one of a
        newer format, ``NotFound`` for a reader where there is none, ``PermissionDenied``, ... If it is cancelled, the
        state may be claimed.
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
        state._live.adopt(loaded)
        if writer:
            try:
                await state._compactions.catch_up(BACKLOG_MAX * state._live.options.compact_records)
            except BaseException:
                await state.aclose()
                raise
        return state

    @property
    def uuid(self) -> str:
        """The id of the state, which offsets carry."""
        return self._live.meta.uuid

    @property
    def identity(self) -> SourceIdentity:
        """The source that made the state."""
        return self._live.meta.identity

    @property
    def writer(self) -> str:
        """The id of this opening, which the records that it appends carry."""
        return self._live.store.writer

    @property
    def is_overtaken(self) -> bool:
        """Whether another writer has taken over: this one writes nothing any more."""
        return self._live.lost is not None

    @property
    def head(self) -> Record | None:
        """The newest record, claims included; cursor, carry and totals of the state are those of it."""
        return None if self._live.head is None else self._live.head.record

    @property
    def known(self) -> Known:
        """The files that records up to ``head`` decided on."""
        return self._known

    @property
    def known_count(self) -> int:
        """About how many files are known: those in runs, and the changes since."""
        view = self._known.view
        return sum(run.rows for run in view.runs) + len(view.delta)

    async def append(self, record: Record) -> None:
        """Make the next record durable. The newest one again is fine.

        ``StateConflict`` if another writer has taken over, or if there is another record of that number. If it raises
        anything else, or is cancelled, the record is there or it is not: append the same one again, or ask ``newest``.

        Starts a compaction in the background when there is enough for one; waits for one that does not keep up, so that
        memory stays bounded.
        """
        await self._journal.append(record)
        await self._compactions.keep_up()

    async def newest(self) -> Record | None:
        """The newest record, looked for in the log.

        ``StateConflict`` for a writer that finds another one's, and for a reader whose state was deleted or made anew.
        """
        return await self._journal.newest()

    async def records(self, after: int, through: int) -> list[Record]:
        """The records above ``after`` and up to ``through``, claims included; from memory, or else from the log.

        Early ones without work are left out: they are not kept. ``NotFound`` where one with work was removed,
        ``UntrustedMetadata`` for those that were never there.
        """
        return await self._journal.records(after, through)

    async def work(self, after: int, through: int) -> list[Record]:
        """Those of them that have work; no others are read. Raises as ``records`` does."""
        return await self._journal.work(after, through)

    def work_seqs(self, after: int) -> list[int]:
        """The numbers of the records with work above ``after``. ``NotFound`` where one was removed."""
        return self._journal.work_seqs(after)

    def check_offset(self, offset: Offset) -> None:
        """Refuse the offset of a checkpoint that does not go with this state.

        ``StateConflict`` for another state's, ``UntrustedMetadata`` for one that is ahead of the log.
        """
        if offset.state != self.uuid:
            raise StateConflict(
                f"the checkpoint belongs to the state {offset.state}, and the one at {self._live.store.url} is"
                f" {self.uuid}. Give the state location that was used with this checkpoint, or a new checkpoint, which"
                " reads everything again",
                operation="check_offset",
            )
        if offset.seq > self._live.newest_seq:
            raise self._journal.beyond(offset.seq)

    async def check_totals(self, offset: Offset) -> None:
        """Refuse an offset whose record is another one: the log was cut, and went on from there.

        ``UntrustedMetadata``. An offset whose record was compacted and removed is past checking.
        """
        await self._journal.check_totals(offset)

    async def committed(self, seq: int) -> None:
        """The engine has committed the records up to ``seq``; again, and in any order, is fine.

        They may be removed from the log, but for the last ones with work. May start a compaction, as ``append`` does.
        Raises what has made earlier ones fail, if trying again does not help. Without effect on a state that was opened
        for reading, or closed.
        """
        if self._live.is_writer and not self._live.is_closed:
            await self._compactions.committed(seq)

    async def compact(self) -> None:
        """Bring what records decided on into runs, and shorten the log.

        ``StateConflict`` if another writer has taken over. If it raises or is cancelled, the state is as good as it
        was, and what was begun is done again.
        """
        await self._compactions.run()

    async def get_json(self, name: str) -> Any | None:
        """What a small file beside the state holds, such as ``schema.json``; ``None`` when there is none."""
        return await self._side_files.get_json(name)

    async def put_json_if_absent(self, name: str, value: Any) -> Any:
        """Write such a file unless it is there; returns what is there then."""
        return await self._side_files.put_json_if_absent(name, value)

    async def aclose(self) -> None:
        """End a compaction that is under way and give local files back; what the store has is whole at any time."""
        self._live.is_closed = True
        await self._compactions.aclose()
        await self._files.aclose()

"""The state of one source: the object that planners, followers and engines use, and how it is opened.

A state is found or made, checked, read, and claimed by the new writer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from aioprefetch.errors import Error, InvalidArgument, StateConflict
from aioprefetch.operator.operator import Operator
from aioprefetch.source.options import StateOptions
from aioprefetch.source.polling import now_ms
from aioprefetch.source.state.compaction import BACKLOG_MAX, CompactionSchedule, Compactor
from aioprefetch.source.state.index import RunFiles, StateIndex
from aioprefetch.source.state.journal import (
    Journal,
    Loaded,
    LoggedRecord,
    StateData,
    check_chain,
    encode,
    log_seqs,
    read_records,
)
from aioprefetch.source.state.snapshot import Base, Snapshot, read_snapshot
from aioprefetch.source.state.store import (
    KEPT_SNAPSHOTS,
    RUNS,
    SNAPSHOT,
    SourceIdentity,
    StateMeta,
    StateStore,
    check_capable,
    check_identity,
    checked_directory,
    create_meta,
    load_meta,
    log_name,
    missing_state,
    new_writer,
)
from aioprefetch.source.stored_json import damaged
from aioprefetch.source.values import Cursor, FileIndex, Offset, Record

# Each failure means that another writer has claimed or compacted within the last moment.
CLAIMS_MAX = 10
# A compaction may shorten the log while it is read. Two of them during one reading are rare.
LOADS_MAX = 5


async def find_state(store: StateStore, identity: SourceIdentity | None, *, writer: bool, now_ms: int) -> StateMeta:
    """The meta of the state. A writer makes it if it is missing.

    ``StateConflict`` for the state of another source, ``ConfigInvalid`` for a writer in a store that ignores conditions
    of writes: nothing is written there.
    """
    check_capable(store, writer=writer)
    meta = await load_meta(store)
    if meta is not None and identity is not None:
        check_identity(meta, identity, url=store.url)
    if writer:
        await store.require_conditional_writes()
    if meta is None:
        if not writer or identity is None:
            raise missing_state(store)
        meta = await create_meta(store, identity, now_ms=now_ms)
        check_identity(meta, identity, url=store.url)
    return meta


async def claim_state(store: StateStore, meta: StateMeta, compactor: Compactor, first: Cursor) -> Loaded:
    """Read the state and take it over from its earlier writer: the head is then a claim of this writer.

    The next append of an earlier writer finds its number taken, and its compaction finds another snapshot than it read.
    """
    loaded = await load(store, meta.uuid)
    if loaded.base is None:
        await _create_snapshot(store, meta.uuid, first)
        loaded = await load(store, meta.uuid)
    for _ in range(CLAIMS_MAX):
        claim, previous = _next_claim(loaded, first, store.writer)
        data, logged = encode(claim, previous)
        if await store.create(log_name(claim.seq), data) == data:
            loaded.records.append(logged)
            return await _take_over(store, meta, compactor, loaded)
        loaded = await load(store, meta.uuid)
    raise _contended(store)


def _next_claim(loaded: Loaded, first: Cursor, writer: str) -> tuple[Record, str]:
    """The claim after the newest record, and the checksum of that record. The claim keeps its cursor and totals."""
    head = loaded.head
    if head is None:
        return Record(seq=0, writer=writer, cursor=first, claim=True), ""
    claim = replace(head.record, seq=head.record.seq + 1, writer=writer, items=(), known=(), gone=(), claim=True)
    return claim, head.crc32


async def _take_over(store: StateStore, meta: StateMeta, compactor: Compactor, loaded: Loaded) -> Loaded:
    for _ in range(CLAIMS_MAX):
        assert loaded.base is not None
        try:
            loaded.base = await compactor.take_over(loaded.base)
        except StateConflict:
            # The earlier writer has compacted after our claim, which is fine; or a newer writer has claimed the state.
            loaded = await load(store, meta.uuid)
            if loaded.head is None or loaded.head.record.writer != store.writer:
                raise
        else:
            await compactor.list_leftovers()
            return loaded
    raise _contended(store)


def _contended(store: StateStore) -> StateConflict:
    return StateConflict(
        f"the state at {store.url} is claimed again and again: other queries use it too. Give each its own, or let all"
        " but one attach to it",
        operation="open_state",
    )


# --- reading ----------------------------------------------------------------------------------------------------------


async def load(store: StateStore, state: str) -> Loaded:
    """Read the state with the id ``state``. ``UntrustedMetadata`` unless it is whole: nothing is guessed."""
    for attempt in range(1, LOADS_MAX + 1):
        base = await read_snapshot(store, state)
        try:
            return await _load(store, base)
        except _Incomplete as incomplete:
            again = await read_snapshot(store, state)
            unchanged = (again and again.snapshot) == (base and base.snapshot)
            if unchanged or attempt == LOADS_MAX:
                raise damaged(str(incomplete), store.path(incomplete.name)) from incomplete
    raise AssertionError("unreachable")


class _Incomplete(Exception):
    """An object is missing; a compaction during the reading may be the reason."""

    def __init__(self, why: str, name: str) -> None:
        super().__init__(why)
        self.name = name


async def _load(store: StateStore, base: Base | None) -> Loaded:
    seqs = await log_seqs(store)
    if base is None:
        await _check_new(store, seqs)
        return Loaded()
    through = base.snapshot.through_seq
    seqs = [seq for seq in seqs if seq >= base.snapshot.log_from]  # Gaps are allowed before that.
    for expected, seq in enumerate(seqs, seqs[0] if seqs else 0):
        if seq != expected:
            raise _Incomplete(
                f"record {expected} is missing from the log, and record {seq} is there", log_name(expected)
            )
    first = max(through, 0)
    if through >= 0 and not (seqs and seqs[0] <= through <= seqs[-1]):
        raise _Incomplete(f"record {through} is missing, and {SNAPSHOT} goes up to it", log_name(through))
    if seqs and seqs[0] > first:
        raise _Incomplete(f"record {first} is missing, and record {seqs[0]} is there", log_name(first))
    wanted = [seq for seq in seqs if seq >= first]
    records = []
    for seq, logged in zip(wanted, await read_records(store, wanted), strict=True):
        if logged is None:
            raise _Incomplete(f"record {seq} is missing from the log", log_name(seq))
        records.append(logged)
    if through < 0:
        check_chain(records, "", store=store)
    else:
        _check_snapshot(base.snapshot, records[0], store)
        check_chain(records[1:], records[0].crc32, store=store)
    return Loaded(base, records)


async def _check_new(store: StateStore, seqs: list[int]) -> None:
    """A state without a snapshot has neither records nor runs: the snapshot is made before the first record."""
    names = [log_name(seqs[0])] if seqs else await store.names(RUNS)
    kept = await store.names(KEPT_SNAPSHOTS)
    if names or kept:
        hint = f"; {kept[-1]} is the one before it, and may be put in its place" if kept else ""
        raise _Incomplete(f"{SNAPSHOT} is missing, although {(names or kept)[0]} is there{hint}", SNAPSHOT)


def _check_snapshot(snapshot: Snapshot, last: LoggedRecord, store: StateStore) -> None:
    if last.crc32 != snapshot.record_crc32:
        raise damaged(
            f"record {last.record.seq} does not precede {SNAPSHOT}",
            store.path(log_name(last.record.seq)),
        )


async def _create_snapshot(store: StateStore, state: str, cursor: Cursor) -> None:
    """Make the snapshot of a state without records, if it is absent."""
    empty = Snapshot(
        state=state,
        writer=store.writer,
        through_seq=-1,
        record_crc32="",
        cursor=cursor,
        carry=(),
        files=0,
        total_bytes=0,
        runs=(),
    )
    await store.create(SNAPSHOT, empty.to_bytes())


# --- the state --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StateStatistics:
    """The size of an open state, in memory and on the local disk.

    Parameters
    ----------
    newest_seq
        The number of the newest record, or -1.
    compacted_seq
        The newest record whose files are in runs, or -1.
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

    @classmethod
    async def open(
        cls,
        operator: Operator,
        directory: str,
        identity: SourceIdentity | None,
        *,
        first: Cursor,
        writer: bool = True,
        clock_ms: Callable[[], int] = now_ms,
        options: StateOptions | None = None,
    ) -> SourceState:
        """Open the state in a directory of the operator (``""``, or a path that ends with ``/``).

        A writer makes the state if it is missing, with ``first`` as its cursor, and claims it. With ``writer=False`` it
        is only read: by a query that follows another one, or that plans no batches.

        Raises ``ConfigInvalid`` for a writer in a store that ignores conditions of writes (five requests find out, and
        leave nothing behind); ``StateConflict`` when ``identity``, the settings of the source, differs from the
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

    def use(self, operator: Operator) -> None:
        """Use another operator of the same store from now on, such as one with other retries."""
        self._data.store.operator = operator

    @property
    def uuid(self) -> str:
        """The id of the state, which offsets carry."""
        return self._data.meta.uuid

    @property
    def created_ms(self) -> int:
        """When the state was made, by the clock of the machine that made it."""
        return self._data.meta.created_ms

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
    def committed_seq(self) -> int:
        """The newest record that is known to be committed by the engine, as of the last compaction for a reader."""
        return self._data.committed_seq

    @property
    def head(self) -> Record | None:
        """The newest record, claims included. Its cursor, carry and totals are the state's."""
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

    async def aclose(self) -> None:
        """Cancel a compaction that is in progress and release local files. The store stays whole."""
        self._data.is_closed = True
        await self._schedule.aclose()
        await self._files.aclose()

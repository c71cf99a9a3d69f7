"""How a state is opened: found or made, checked, read, and claimed by the new writer."""

from __future__ import annotations

from dataclasses import replace

from aioprefetch.errors import StateConflict
from aioprefetch.source.cursor import Cursor
from aioprefetch.source.record import Record
from aioprefetch.source.state.checksummed_json import damaged
from aioprefetch.source.state.compaction import Compactor
from aioprefetch.source.state.journal import check_chain, encode, log_seqs, read_records
from aioprefetch.source.state.meta import (
    SourceIdentity,
    StateMeta,
    check_capable,
    check_identity,
    create_meta,
    load_meta,
    missing_state,
)
from aioprefetch.source.state.snapshot import Base, Snapshot, read_snapshot
from aioprefetch.source.state.state_data import Loaded, LoggedRecord
from aioprefetch.source.state.store import KEPT_SNAPSHOTS, RUNS, SNAPSHOT, StateStore, log_name

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


# --- reading ----------------------------------------------------------------------------------------------------


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
            f"record {last.record.seq} is not the one that {SNAPSHOT} was made after",
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

"""How a state is opened: found or made, checked, read, and claimed by whoever is going to write."""

from __future__ import annotations

from dataclasses import replace

from aioprefetch.errors import StateConflict
from aioprefetch.source.cursor import Cursor
from aioprefetch.source.record import Record
from aioprefetch.source.state.compaction import Compactor
from aioprefetch.source.state.conditions import probe, refuses_to_create, refuses_to_replace
from aioprefetch.source.state.layout import SNAPSHOT, log_name
from aioprefetch.source.state.loading import Loaded, create_snapshot, load
from aioprefetch.source.state.log import encode
from aioprefetch.source.state.meta import (
    SourceIdentity,
    StateMeta,
    check_capable,
    check_identity,
    create_meta,
    load_meta,
    missing_state,
    warn_unless_conditional,
)
from aioprefetch.source.state.store import StateStore

# Each failure means that another writer has claimed or compacted within the last moment.
CLAIMS_MAX = 10


async def find_state(store: StateStore, identity: SourceIdentity | None, *, writer: bool, now_ms: int) -> StateMeta:
    """The meta of the state, which is made if a writer finds none. ``StateConflict`` for another source's state."""
    check_capable(store, writer=writer)
    meta = await load_meta(store)
    if meta is None:
        if not writer or identity is None:
            raise missing_state(store)
        meta = await create_meta(store, identity, now_ms=now_ms)
    store.conditions = meta.conditions
    if identity is not None:
        check_identity(meta, identity, url=store.url)
    if writer:
        warn_unless_conditional(store)
    return meta


async def claim_state(store: StateStore, meta: StateMeta, compactor: Compactor, first: Cursor) -> Loaded:
    """Read the state and take it over from whoever wrote it: the head is then a claim of this writer.

    An earlier writer's next append finds its number taken, and its compaction finds another snapshot than it read.
    """
    await store.take_over()
    loaded = await load(store, meta.uuid)
    if loaded.base is None:
        await create_snapshot(store, meta.uuid, first)
        loaded = await load(store, meta.uuid)
    for _ in range(CLAIMS_MAX):
        claim, previous = next_claim(loaded, first, store.writer)
        data, logged = encode(claim, previous)
        if await store.create(log_name(claim.seq), data) == data:
            loaded.records.append(logged)
            loaded = await _take_over(store, meta, compactor, loaded)
            await _check_conditions(store, log_name(claim.seq), data, loaded)
            return loaded
        loaded = await load(store, meta.uuid)
    raise _contended(store)


def next_claim(loaded: Loaded, first: Cursor, writer: str) -> tuple[Record, str]:
    """The claim that comes after the newest record, and that one's checksum. It goes on from where that one was."""
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
            # The writer before us has compacted in between, which is well; or another one has come after us.
            loaded = await load(store, meta.uuid)
            if loaded.head is None or loaded.head.record.writer != store.writer:
                raise
        else:
            await compactor.look_around()
            return loaded
    raise _contended(store)


async def _check_conditions(store: StateStore, claim: str, data: bytes, loaded: Loaded) -> None:
    """Take to the lock where the store does not do what it did when the state was made: it was moved, for example.

    What was written just now is written again, under conditions that do not hold.
    """
    assert loaded.base is not None
    operator, version = store.operator, loaded.base.version
    if not store.conditions.all:
        return
    if await refuses_to_create(operator, store.path(claim), data):
        if version.etag is None or await refuses_to_replace(operator, store.path(SNAPSHOT), version.data):
            return
        found = await store.read_versioned(SNAPSHOT)
        if found is not None and found.data == version.data:
            loaded.base = replace(loaded.base, version=found)
    store.conditions = await probe(operator, store.directory)
    if not store.conditions.all:
        warn_unless_conditional(store)
        await store.take_over()


def _contended(store: StateStore) -> StateConflict:
    return StateConflict(
        f"the state at {store.url} is claimed again and again: other queries use it too. Give each its own, or let all"
        " but one attach to it",
        operation="open_state",
    )

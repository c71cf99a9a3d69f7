"""Where a store ignores conditions: a late write of an earlier writer may replace a record of ours. It is put back.

A request of a writer that was paused or killed may arrive long after another one has claimed the state. It can only be
the record whose number the claim has, and whoever sent it was never told that it is there: it finds ``writer.json``
changed, or is dead. So the claim counts, as long as nobody has gone on from what stands in its place.
"""

from __future__ import annotations

from aioprefetch.errors import StateConflict, UntrustedMetadata
from aioprefetch.source.state.layout import log_name
from aioprefetch.source.state.live import LiveState
from aioprefetch.source.state.log import LoggedRecord, decode, encode


async def restore_own(live: LiveState) -> None:
    """Look whether our claim and the newest record stand in the log, and put them back if not.

    ``StateConflict`` if another writer has taken over, or has gone on after them.
    """
    store, claim, head = live.store, live.claim, live.head
    if store.conditions.creates or claim is None or head is None:
        return
    for logged in (claim,) if claim.record.seq == head.record.seq else (claim, head):
        if logged.record.seq < live.through_seq or await _stands(live, logged):
            continue  # Before the snapshot nobody goes on from it.
        name, following = log_name(logged.record.seq), log_name(head.record.seq + 1)
        await store.check_writer()
        if await store.read(following) is not None:
            raise StateConflict("another writer has gone on", operation="append_record", path=store.path(following))
        await store.write(name, encode(logged.record, logged.previous)[0])
        await store.check_writer()


async def _stands(live: LiveState, logged: LoggedRecord) -> bool:
    name, seq = log_name(logged.record.seq), logged.record.seq
    found = await live.store.read(name)
    try:
        return found is not None and decode(found, seq, path=live.store.path(name)).crc32 == logged.crc32
    except UntrustedMetadata:
        return False

"""Records of an open state: appended, looked for, read again."""

from __future__ import annotations

import asyncio

from aioprefetch.errors import NotFound, StateConflict, UntrustedMetadata
from aioprefetch.source.offset import Offset
from aioprefetch.source.record import Record
from aioprefetch.source.state.layout import META, log_name
from aioprefetch.source.state.live import LiveState
from aioprefetch.source.state.loading import load
from aioprefetch.source.state.log import (
    CALLS_AT_ONCE,
    LoggedRecord,
    check_chain,
    check_own,
    decode,
    encode,
    log_seqs,
    read_records,
)
from aioprefetch.source.state.meta import load_meta
from aioprefetch.source.state.restoring import restore_own
from aioprefetch.source.state.sealed import damaged
from aioprefetch.source.state.snapshot import read_snapshot

# A reader that finds more new ones than these asks first whether they were compacted: each may have many files.
RECORDS_FEW = 8


class Journal:
    """Reads and writes the log of one open state, one call at a time."""

    def __init__(self, live: LiveState) -> None:
        self._live = live
        self._store = live.store
        self._turn = asyncio.Lock()
        # Between the beginning of an append and its response, and from then on if that never comes.
        self._is_uncertain = False

    async def append(self, record: Record) -> None:
        """See ``SourceState.append``."""
        live = self._live
        async with self._turn:
            live.check_writable()
            check_own(record, self._store.writer)
            if self._is_uncertain:
                await self._catch_up()
            head = live.head
            assert head is not None
            if record == head.record:
                return
            path = self._store.path(log_name(record.seq))
            if record.seq != head.record.seq + 1:
                raise StateConflict(
                    f"record {record.seq} cannot be appended: the newest one is {head.record.seq}",
                    operation="append_record",
                    path=path,
                )
            data, logged = encode(record, head.crc32)
            self._is_uncertain = True
            try:
                await restore_own(live)
                found = await self._store.create(log_name(record.seq), data)
            except StateConflict as error:
                live.lost = error
                raise
            if found != data:
                self._refuse(decode(found, record.seq, path=path))
            self._is_uncertain = False
            live.apply(logged)

    def _refuse(self, logged: LoggedRecord) -> None:
        """Raise for a record that stands where ours was to be."""
        seq, writer = logged.record.seq, logged.record.writer
        is_own = writer == self._store.writer
        if is_own:
            why = f"an earlier append of record {seq} has arrived meanwhile, with other content; ask newest()"
        else:
            why = f"another writer has taken over the state at {self._store.url} with record {seq}; this one ends"
        error = StateConflict(
            why, operation="append_record", path=self._store.path(log_name(seq)), context={"writer": writer}
        )
        if not is_own:
            self._live.lost = error
        raise error

    async def newest(self) -> Record | None:
        """See ``SourceState.newest``."""
        async with self._turn:
            self._live.check_open()
            await self._catch_up()
        return None if self._live.head is None else self._live.head.record

    async def reload(self) -> None:
        """Read everything again, for a reader whose snapshot is no longer in force."""
        async with self._turn:
            await self._load()

    async def _load(self) -> None:
        await self._check_same_state()
        self._live.adopt(await load(self._store, self._live.meta.uuid))

    async def _check_same_state(self) -> None:
        """For a reader: ``StateConflict`` when the state that it has opened is there no more."""
        meta = await load_meta(self._store)
        uuid = self._live.meta.uuid
        if meta is None or meta.uuid != uuid:
            now = "nothing is there now" if meta is None else f"there is another one now, {meta.uuid}"
            raise StateConflict(
                f"the state {uuid} at {self._store.url} was deleted while it was read, and {now}: whoever reads or"
                " follows it must begin anew, with a state and a checkpoint of its own that are new",
                operation="read_state",
                path=self._store.path(META),
            )

    async def _catch_up(self) -> None:
        """Take in the records that are in the log after the head."""
        live = self._live
        if live.is_writer:
            seqs = await log_seqs(self._store, after=live.newest_seq)
        else:
            # From the head on, which is there unless it was compacted, or the state is another one.
            seqs = await log_seqs(self._store, after=live.newest_seq - 1)
            if await self._is_behind(seqs):
                await self._load()
                return
            seqs = seqs[1:]
        for start in range(0, len(seqs), CALLS_AT_ONCE):
            if not await self._take_in(seqs[start : start + CALLS_AT_ONCE]):
                return  # A compaction is shortening the log; the next look begins at its snapshot.
        self._is_uncertain = False

    async def _take_in(self, seqs: list[int]) -> bool:
        """Some records after the head. ``False``: a reader finds that one of them was removed."""
        live = self._live
        for seq, logged in zip(seqs, await read_records(self._store, seqs), strict=True):
            if logged is not None and live.is_writer and logged.record.writer != self._store.writer:
                self._refuse(logged)
            if logged is None or seq != live.newest_seq + 1:
                if live.is_writer:
                    raise damaged("a record is missing from the log", self._store.path(log_name(live.newest_seq + 1)))
                return False
            assert live.head is not None
            if not live.is_writer and logged.previous != live.head.crc32:
                await self._check_same_state()
            check_chain([logged], live.head.crc32, store=self._store)
            live.apply(logged)
        return True

    async def _is_behind(self, seqs: list[int]) -> bool:
        """Whether a reader must begin at the snapshot; ``seqs`` are the records in the log from its head on.

        It has nothing yet, or the log was shortened; or it would hold much that is in the snapshot by now.
        """
        live = self._live
        if live.base is None or live.head is None or seqs[:1] != [live.newest_seq]:
            return True
        come = len(seqs) - 1
        if come and seqs[1] != live.newest_seq + 1:
            return True
        holds_much = len(live.known.view.delta) > 2 * live.options.compact_entries_for(live.base.snapshot.rows)
        if not holds_much and come <= RECORDS_FEW:
            return False
        found = await read_snapshot(self._store, live.meta.uuid)
        return found is not None and found[0].through_seq > (live.through_seq if holds_much else live.newest_seq)

    async def records(self, after: int, through: int) -> list[Record]:
        """See ``SourceState.records``."""
        live = self._live
        live.check_open()
        await self._reach(through)
        self._check_kept(after, through)
        return await self._read(live.kept_between(after, through))

    async def work(self, after: int, through: int) -> list[Record]:
        """See ``SourceState.work``."""
        live = self._live
        live.check_open()
        await self._reach(through)
        self._check_kept(after, through)
        return await self._read(live.work_between(after, through))

    def work_seqs(self, after: int) -> list[int]:
        """See ``SourceState.work_seqs``."""
        live = self._live
        live.check_open()
        self._check_kept(after, live.newest_seq)
        return live.work_between(after, live.newest_seq)

    async def check_totals(self, offset: Offset) -> None:
        """See ``SourceState.check_totals``."""
        if offset.seq <= self._live.removed_seq:
            return
        found = await self._read(self._live.work_between(offset.seq - 1, offset.seq))
        if not found or (found[0].files, found[0].bytes) != (offset.files, offset.bytes):
            raise damaged(
                f"the checkpoint knows record {offset.seq} with {offset.files} files of {offset.bytes} bytes in all,"
                " and the log has another one of this number: newer records were removed, or an older copy was put in"
                " place",
                self._store.path(log_name(offset.seq)),
            )

    async def _reach(self, through: int) -> None:
        live = self._live
        if through > live.newest_seq and not live.is_writer:
            await self.newest()
        if through > live.newest_seq:
            raise self.beyond(through)

    def _check_kept(self, after: int, through: int) -> None:
        """``NotFound`` if a record with work was removed that may be asked for."""
        if after < min(through, self._live.removed_seq):
            raise self._removed(min(through, self._live.removed_seq))

    async def _read(self, seqs: list[int]) -> list[Record]:
        found = {seq: self._live.recent.get(seq) for seq in seqs}
        missing = [seq for seq, record in found.items() if record is None]
        # The first one alone: the oldest are removed first, and a checkpoint may go back very far.
        for wanted in (missing[:1], missing[1:]):
            for seq, logged in zip(wanted, await read_records(self._store, wanted), strict=True):
                if logged is None:
                    if not self._live.is_writer:
                        await self.reload()  # A later snapshot may tell that it was removed.
                    raise self._removed(seq)
                found[seq] = logged.record
        return [record for record in found.values() if record is not None]

    def beyond(self, seq: int) -> UntrustedMetadata:
        """The error for a record that a checkpoint knows and the log has not."""
        return damaged(
            f"the checkpoint knows record {seq}, and the log ends with record {self._live.newest_seq}: newer ones were"
            " removed, or an older copy was put in place",
            self._store.path(log_name(seq)),
        )

    def _removed(self, seq: int) -> NotFound | UntrustedMetadata:
        path = self._store.path(log_name(seq))
        if seq > self._live.through_seq:
            return damaged("a record is missing from the log", path)
        return NotFound(
            f"record {seq} was removed after its files had been compacted: the log keeps the last"
            f" {self._live.options.keep_records} with work, and the checkpoint goes further back. Go on from a newer"
            " checkpoint; or give another state location and another checkpoint, which reads everything again",
            operation="read_state",
            path=path,
        )

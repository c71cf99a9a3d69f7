"""What is in the store of a state, read and checked: the snapshot, the records after it, what they decided on."""

from __future__ import annotations

from dataclasses import dataclass, field

from aioprefetch.source.cursor import Cursor
from aioprefetch.source.state.compaction import Base
from aioprefetch.source.state.delta import Delta, carried_files, changes_of
from aioprefetch.source.state.layout import KEPT_SNAPSHOTS, RUNS, SNAPSHOT, log_name
from aioprefetch.source.state.log import LoggedRecord, check_chain, log_seqs, read_records
from aioprefetch.source.state.sealed import damaged
from aioprefetch.source.state.snapshot import Snapshot, read_snapshot
from aioprefetch.source.state.store import StateStore

# A compaction may shorten the log while it is read. Two of them within one reading are rare.
LOADS_MAX = 5


@dataclass(slots=True)
class Loaded:
    """A state as it was read: ``base`` is ``None`` for one that was made and never opened by a writer."""

    base: Base | None = None
    records: list[LoggedRecord] = field(default_factory=list)

    @property
    def head(self) -> LoggedRecord | None:
        """The newest record."""
        return self.records[-1] if self.records else None

    def delta(self) -> Delta:
        """What the records after the snapshot decided on."""
        delta = Delta()
        if self.base is None:
            return delta
        snapshot = self.base.snapshot
        carried = carried_files(snapshot.carry)
        for logged in self.records:
            if logged.record.seq > snapshot.through_seq:
                delta.add(logged.record.seq, changes_of(logged.record, carried))
                carried = carried_files(logged.record.carry)
        return delta


async def load(store: StateStore, state: str) -> Loaded:
    """Read the state with the id ``state``. ``UntrustedMetadata`` unless it is whole: nothing is guessed."""
    for attempt in range(1, LOADS_MAX + 1):
        found = await read_snapshot(store, state)
        base = None if found is None else Base(*found)
        try:
            return await _load(store, base)
        except _Incomplete as incomplete:
            again = await read_snapshot(store, state)
            unchanged = (again and again[0]) == (base and base.snapshot)
            if unchanged or attempt == LOADS_MAX:
                raise damaged(str(incomplete), store.path(incomplete.name)) from incomplete
    raise AssertionError("unreachable")


class _Incomplete(Exception):
    """Something is not there; a compaction that ran meanwhile may be why."""

    def __init__(self, why: str, name: str) -> None:
        super().__init__(why)
        self.name = name


async def _load(store: StateStore, base: Base | None) -> Loaded:
    seqs = await log_seqs(store)
    if base is None:
        await _check_new(store, seqs)
        return Loaded()
    through = base.snapshot.through_seq
    seqs = [seq for seq in seqs if seq >= base.snapshot.log_from]  # Before that there are gaps.
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
    """A state without a snapshot has nothing: the snapshot is made before the first record."""
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


async def create_snapshot(store: StateStore, state: str, cursor: Cursor) -> None:
    """Make the snapshot of a state that has no record yet, unless it is there."""
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

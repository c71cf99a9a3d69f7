"""The log of an open state: records appended, looked for, and read again; and the contents of the state in memory.

The log has one compressed object for each record. Each record contains the checksum of the record before it, so that a
record that was truncated, edited, or exchanged for a record of another history is recognised when it is read.

The contents are shared by the journal, the compactions and the file index.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from aioprefetch.errors import Closed, InvalidArgument, NotFound, StateConflict, Unsupported, UntrustedMetadata, copy_of
from aioprefetch.runtime.task_group import gather_all
from aioprefetch.source.options import StateOptions
from aioprefetch.source.state.index import Delta, IndexView, StateIndex, carried_files, changes_of
from aioprefetch.source.state.snapshot import Base, read_snapshot
from aioprefetch.source.state.store import CALLS_AT_ONCE, LOG, META, StateMeta, StateStore, load_meta, log_name, seq_of
from aioprefetch.source.stored_json import check_version, damaged, fields_of, seal, text, unseal
from aioprefetch.source.values import RECORD_VERSION, Offset, Record


@dataclass(frozen=True, slots=True)
class LoggedRecord:
    """A record, its checksum, and the checksum of the record before it (``""`` without one)."""

    record: Record
    crc32: str
    previous: str


@dataclass(slots=True)
class Loaded:
    """A state as read from the store. ``base`` is ``None`` if no writer has opened it yet."""

    base: Base | None = None
    records: list[LoggedRecord] = field(default_factory=list)

    @property
    def head(self) -> LoggedRecord | None:
        """The newest record."""
        return self.records[-1] if self.records else None

    def delta(self) -> Delta:
        """The changes by the records after the snapshot."""
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


class RecordCache:
    """The newest records by number, limited by the items in them. The newest one always stays."""

    def __init__(self, items_max: int) -> None:
        self._items_max = items_max
        self._items = 0
        self._records: OrderedDict[int, Record] = OrderedDict()

    def add(self, record: Record) -> None:
        """Keep the next record, and drop the oldest ones beyond the limit."""
        self._records[record.seq] = record
        self._items += _size(record)
        while self._items > self._items_max and len(self._records) > 1:
            self._items -= _size(self._records.popitem(last=False)[1])

    def get(self, seq: int) -> Record | None:
        """A record, if it is in the cache."""
        return self._records.get(seq)

    def clear(self) -> None:
        """Drop all records."""
        self._records.clear()
        self._items = 0


def _size(record: Record) -> int:
    return 1 + len(record.items) + len(record.carry) + len(record.known) + len(record.gone)


class StateData:
    """The head, the newest records, the snapshot in force, and the file index.

    ``conflict`` is set once another writer has taken over: from then on this writer writes nothing.
    """

    def __init__(
        self, store: StateStore, meta: StateMeta, index: StateIndex, options: StateOptions, *, is_writer: bool
    ) -> None:
        self.store = store
        self.meta = meta
        self.index = index
        self.options = options
        self.is_writer = is_writer
        self.is_closed = False
        self.conflict: StateConflict | None = None
        self.base: Base | None = None
        self.head: LoggedRecord | None = None
        self.recent = RecordCache(options.memory_items)
        # The newest record known to be committed by the engine, and the kept records with work.
        self.committed_seq = -1
        self.work_seqs: list[int] = []

    def adopt(self, loaded: Loaded) -> None:
        """Replace everything by the contents of the store."""
        self.base, self.head = loaded.base, loaded.head
        self.index.view = IndexView(() if loaded.base is None else loaded.base.snapshot.runs, loaded.delta())
        self.recent.clear()
        self.work_seqs = []
        through = self.through_seq
        if self.base is not None:
            self.committed_seq = max(self.committed_seq, self.base.snapshot.committed_seq)
            self.work_seqs += self.base.snapshot.work_seqs
        for logged in loaded.records:
            self.recent.add(logged.record)
            if logged.record.items and logged.record.seq > through:
                self.work_seqs.append(logged.record.seq)

    def apply(self, logged: LoggedRecord) -> None:
        """Take over a new record of the log."""
        carry = self.head.record.carry if self.head is not None else ()
        self.index.view.delta.add(logged.record.seq, changes_of(logged.record, carried_files(carry)))
        self.recent.add(logged.record)
        if logged.record.items:
            self.work_seqs.append(logged.record.seq)
        self.head = logged

    def compacted(self, base: Base) -> None:
        """Another snapshot is in force. Records may have been appended since its last one."""
        through = base.snapshot.through_seq
        self.base = base
        self.index.view = IndexView(base.snapshot.runs, self.index.view.delta.after(through))
        self.work_seqs = [*base.snapshot.work_seqs, *self.work_between(through, self.newest_seq)]

    def work_between(self, after: int, through: int) -> list[int]:
        """The kept records with work above ``after`` and up to ``through``."""
        return self.work_seqs[bisect_right(self.work_seqs, after) : bisect_right(self.work_seqs, through)]

    def kept_between(self, after: int, through: int) -> list[int]:
        """All kept records above ``after`` and up to ``through``. Early records without work are not kept."""
        first = max(after + 1, 0 if self.base is None else self.base.snapshot.log_from)
        return [*self.work_between(after, min(through, first - 1)), *range(first, through + 1)]

    @property
    def newest_seq(self) -> int:
        """The number of the head, or -1."""
        return -1 if self.head is None else self.head.record.seq

    @property
    def through_seq(self) -> int:
        """The newest record in the runs, or -1."""
        return -1 if self.base is None else self.base.snapshot.through_seq

    @property
    def removed_seq(self) -> int:
        """The newest record with work that is no longer kept, or -1."""
        return -1 if self.base is None else self.base.snapshot.removed_seq

    def check_open(self) -> None:
        """``Closed`` after ``aclose``."""
        if self.is_closed:
            raise Closed("the state was closed", operation="use_state", path=self.store.directory)

    def check_writable(self) -> None:
        """``Closed`` after ``aclose``, ``Unsupported`` for a reader, ``StateConflict`` after another writer's claim."""
        self.check_open()
        if not self.is_writer:
            raise Unsupported("this state was opened for reading: writer=False", operation="write_state")
        if self.conflict is not None:
            raise copy_of(self.conflict)


# --- the journal ------------------------------------------------------------------------------------------------------

# A planner takes 100,000 files at most, which is far below this.
RECORD_BYTES_MAX = 1 << 30
# With more new records than this a reader looks for a newer snapshot first: each record may have many files.
RECORDS_FEW = 8
_ZSTD_LEVEL = 3
_PIECE_BYTES = 1 << 20


class Journal:
    """Reads and writes the log of one open state, one call at a time. The methods of ``SourceState`` describe them.

    ``load`` reads the whole state again, for a reader whose snapshot is no longer in force.
    """

    def __init__(self, data: StateData, load: Callable[[], Awaitable[Loaded]]) -> None:
        self._data = data
        self._store = data.store
        self._load = load
        self._lock = asyncio.Lock()
        # True between the start of an append and its response; it stays true if no response comes.
        self._is_uncertain = False

    # --- appending ----------------------------------------------------------------------------------------------

    async def append(self, record: Record) -> None:
        """Make the next record durable, as ``SourceState.append``."""
        data = self._data
        async with self._lock:
            data.check_writable()
            if record.writer != self._store.writer:
                raise InvalidArgument(
                    f"record {record.seq} names the writer {record.writer!r}; it must be the state's own,"
                    f" {self._store.writer!r}",
                    operation="append_record",
                )
            if self._is_uncertain:
                await self._catch_up()
            head = data.head
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
            body, logged = encode(record, head.crc32)
            self._is_uncertain = True
            try:
                content = await self._store.create(log_name(record.seq), body)
            except StateConflict as error:
                data.conflict = copy_of(error)
                raise
            if content != body:
                self._refuse(decode(content, record.seq, path=path))
            self._is_uncertain = False
            data.apply(logged)

    def _refuse(self, logged: LoggedRecord) -> None:
        """Raise ``StateConflict`` for another record under the number of ours."""
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
            self._data.conflict = error
        raise copy_of(error)

    # --- the newest record --------------------------------------------------------------------------------------

    async def newest(self) -> Record | None:
        """Look at the log in the store, as ``SourceState.newest``."""
        async with self._lock:
            self._data.check_open()
            await self._catch_up()
        return None if self._data.head is None else self._data.head.record

    async def reload(self) -> None:
        """Read the whole state again."""
        async with self._lock:
            await self._reload()

    async def _reload(self) -> None:
        await self._check_same_state()
        self._data.adopt(await self._load())

    async def _check_same_state(self) -> None:
        """For a reader: ``StateConflict`` when the state that it has opened no longer exists."""
        meta = await load_meta(self._store)
        uuid = self._data.meta.uuid
        if meta is None or meta.uuid != uuid:
            now = "nothing is there now" if meta is None else f"there is another one now, {meta.uuid}"
            raise StateConflict(
                f"the state {uuid} at {self._store.url} was deleted while it was read, and {now}: each source that"
                " reads or follows it must start again, with a new state and a new checkpoint",
                operation="read_state",
                path=self._store.path(META),
            )

    async def _catch_up(self) -> None:
        """Take over the records in the log after the head."""
        data = self._data
        if data.is_writer:
            seqs = await log_seqs(self._store, after=data.newest_seq)
        else:
            # The listing begins with the head, which is there unless it was compacted, or the state is another one.
            seqs = await log_seqs(self._store, after=data.newest_seq - 1)
            if await self._is_behind(seqs):
                await self._reload()
                return
            seqs = seqs[1:]
        for start in range(0, len(seqs), CALLS_AT_ONCE):
            if not await self._take_over(seqs[start : start + CALLS_AT_ONCE]):
                return  # A compaction is shortening the log; the next call starts at its snapshot.
        self._is_uncertain = False

    async def _take_over(self, seqs: list[int]) -> bool:
        """Take over some records after the head. ``False``: a reader misses one, which was removed."""
        data = self._data
        for seq, logged in zip(seqs, await read_records(self._store, seqs), strict=True):
            if logged is not None and data.is_writer and logged.record.writer != self._store.writer:
                self._refuse(logged)
            if logged is None or seq != data.newest_seq + 1:
                if data.is_writer:
                    raise damaged("a record is missing from the log", self._store.path(log_name(data.newest_seq + 1)))
                return False
            assert data.head is not None
            if not data.is_writer and logged.previous != data.head.crc32:
                await self._check_same_state()
            check_chain([logged], data.head.crc32, store=self._store)
            data.apply(logged)
        return True

    async def _is_behind(self, seqs: list[int]) -> bool:
        """Whether a reader must start at the snapshot; ``seqs`` are the records in the log from its head on.

        True if it has nothing yet, if the log was shortened, or if it would hold much that a newer snapshot contains.
        """
        data = self._data
        if data.base is None or data.head is None or seqs[:1] != [data.newest_seq]:
            return True
        new = len(seqs) - 1
        if new and seqs[1] != data.newest_seq + 1:
            return True
        holds_much = len(data.index.view.delta) > 2 * data.options.compact_entries_for(data.base.snapshot.rows)
        if not holds_much and new <= RECORDS_FEW:
            return False
        base = await read_snapshot(self._store, data.meta.uuid)
        return base is not None and base.snapshot.through_seq > (data.through_seq if holds_much else data.newest_seq)

    # --- earlier records ----------------------------------------------------------------------------------------

    async def records(self, after: int, through: int) -> list[Record]:
        """The kept records in a range, as ``SourceState.records``."""
        await self._reach(through)
        self._check_kept(after, through)
        return await self._read(self._data.kept_between(after, through))

    async def work(self, after: int, through: int) -> list[Record]:
        """The records with work in a range, as ``SourceState.work``."""
        await self._reach(through)
        self._check_kept(after, through)
        return await self._read(self._data.work_between(after, through))

    def work_seqs(self, after: int) -> list[int]:
        """The numbers of the records with work, as ``SourceState.work_seqs``."""
        data = self._data
        data.check_open()
        self._check_kept(after, data.newest_seq)
        return data.work_between(after, data.newest_seq)

    async def check_totals(self, offset: Offset) -> None:
        """Compare an offset with the totals of its record, as ``SourceState.check_totals``."""
        if offset.seq <= self._data.removed_seq:
            return
        records = await self._read(self._data.work_between(offset.seq - 1, offset.seq))
        if not records or (records[0].files, records[0].bytes) != (offset.files, offset.bytes):
            raise damaged(
                f"the checkpoint knows record {offset.seq} with {offset.files} files of {offset.bytes} bytes in all,"
                " and the log has another one of this number: newer records were removed, or an older copy was put in"
                " place",
                self._store.path(log_name(offset.seq)),
            )

    async def _reach(self, through: int) -> None:
        self._data.check_open()
        if through > self._data.newest_seq and not self._data.is_writer:
            await self.newest()
        if through > self._data.newest_seq:
            raise self.beyond(through)

    def _check_kept(self, after: int, through: int) -> None:
        """``NotFound`` if a record with work in this range was removed."""
        if after < min(through, self._data.removed_seq):
            raise self._removed(min(through, self._data.removed_seq))

    async def _read(self, seqs: list[int]) -> list[Record]:
        records = {seq: self._data.recent.get(seq) for seq in seqs}
        missing = [seq for seq, record in records.items() if record is None]
        # The first one alone: the oldest are removed first, and a checkpoint may go back very far.
        for batch in (missing[:1], missing[1:]):
            for seq, logged in zip(batch, await read_records(self._store, batch), strict=True):
                if logged is None:
                    if not self._data.is_writer:
                        await self.reload()  # A newer snapshot may say that it was removed.
                    raise self._removed(seq)
                records[seq] = logged.record
        return [record for record in records.values() if record is not None]

    def beyond(self, seq: int) -> UntrustedMetadata:
        """The error for a checkpoint with a record that the log does not have."""
        return damaged(
            f"the checkpoint knows record {seq}, and the log ends with record {self._data.newest_seq}: newer ones were"
            " removed, or an older copy was put in place",
            self._store.path(log_name(seq)),
        )

    def _removed(self, seq: int) -> NotFound | UntrustedMetadata:
        path = self._store.path(log_name(seq))
        if seq > self._data.through_seq:
            return damaged("a record is missing from the log", path)
        return NotFound(
            f"record {seq} was removed after its files had been compacted: the log keeps the last"
            f" {self._data.options.keep_records} with work, and the checkpoint goes further back. Go on from a newer"
            " checkpoint; or give another state location and another checkpoint, which reads everything again",
            operation="read_state",
            path=path,
        )


# --- records as objects -----------------------------------------------------------------------------------------------


def encode(record: Record, previous: str) -> tuple[bytes, LoggedRecord]:
    """The bytes of a record that follows the record with the checksum ``previous``."""
    sealed, crc = seal({"v": RECORD_VERSION, "previous": previous, "record": record.to_json()})
    data = pa.Codec("zstd", compression_level=_ZSTD_LEVEL).compress(sealed, asbytes=True)
    return data, LoggedRecord(record, crc, previous)


def decode(data: bytes, seq: int, *, path: str) -> LoggedRecord:
    """The record in these bytes. ``UntrustedMetadata`` for damaged bytes, ``Unsupported`` for a newer format."""
    body, crc = unseal(_decompressed(data, path), path=path)
    check_version(body, RECORD_VERSION, path=path)
    try:
        fields = fields_of(body, ("v", "previous", "record"))
        record = Record.from_json(fields["record"])
        logged = LoggedRecord(record, crc, text(fields["previous"]))
    except ValueError as error:
        raise damaged(f"a field of the record is not what it should be: {error}", path) from error
    if record.seq != seq:
        raise damaged(f"it holds record {record.seq} under the name of record {seq}", path)
    return logged


def _decompressed(data: bytes, path: str) -> bytes:
    """In pieces: pyarrow allocates the requested size before it knows how much there is."""
    sealed = bytearray()
    try:
        with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
            while len(sealed) <= RECORD_BYTES_MAX and (piece := stream.read(_PIECE_BYTES)):
                sealed += piece
    except (OSError, ValueError) as error:  # Arrow's own error classes derive from these.
        raise damaged("the record cannot be decompressed", path) from error
    if len(sealed) > RECORD_BYTES_MAX:
        raise damaged(f"the record is longer than {RECORD_BYTES_MAX} bytes", path)
    return bytes(sealed)


async def log_seqs(store: StateStore, *, after: int = -1) -> list[int]:
    """The sorted numbers of the records in the log after ``after``."""
    names = await store.names(LOG, after=log_name(after) if after >= 0 else None)
    return [seq for seq in map(seq_of, names) if seq is not None]


async def read_records(store: StateStore, seqs: Sequence[int]) -> list[LoggedRecord | None]:
    """These records of the log; ``None`` for a missing one."""

    async def read_record(seq: int) -> LoggedRecord | None:
        name = log_name(seq)
        data = await store.read(name)
        return None if data is None else decode(data, seq, path=store.path(name))

    return await gather_all((partial(read_record, seq) for seq in seqs), at_once=CALLS_AT_ONCE)


def check_chain(records: Sequence[LoggedRecord], previous: str, *, store: StateStore) -> None:
    """``UntrustedMetadata`` unless each record follows the one before it, and the first the checksum ``previous``."""
    for logged in records:
        if logged.previous != previous:
            raise damaged(
                f"record {logged.record.seq} does not follow the record before it: one of the two was exchanged",
                store.path(log_name(logged.record.seq)),
            )
        previous = logged.crc32

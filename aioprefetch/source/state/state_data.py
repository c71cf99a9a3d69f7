"""The contents of an open state in memory, shared by the journal, the compactions and the file index."""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass, field

from aioprefetch.errors import Closed, StateConflict, Unsupported
from aioprefetch.source.options import StateOptions
from aioprefetch.source.record import Record
from aioprefetch.source.state.delta import Delta, carried_files, changes_of
from aioprefetch.source.state.index import IndexView, StateIndex
from aioprefetch.source.state.meta import StateMeta
from aioprefetch.source.state.snapshot import Base
from aioprefetch.source.state.store import StateStore


@dataclass(frozen=True, slots=True)
class LoggedRecord:
    """A record, its checksum, and the checksum of the record before it (``""``: there is none)."""

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
        """The number of the head; -1 if there is none."""
        return -1 if self.head is None else self.head.record.seq

    @property
    def through_seq(self) -> int:
        """The newest record in the runs; -1 if there is none."""
        return -1 if self.base is None else self.base.snapshot.through_seq

    @property
    def removed_seq(self) -> int:
        """The newest record with work that is no longer kept; -1 if there is none."""
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
            raise copy.copy(self.conflict)

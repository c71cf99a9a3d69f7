"""What an open state holds in memory, shared by those who append, read and compact."""

from __future__ import annotations

import copy
from bisect import bisect_right

from aioprefetch.errors import Closed, StateConflict, Unsupported
from aioprefetch.source.state.compaction import Base
from aioprefetch.source.state.delta import carried_files, changes_of
from aioprefetch.source.state.known import KnownView, StateKnown
from aioprefetch.source.state.loading import Loaded
from aioprefetch.source.state.log import LoggedRecord
from aioprefetch.source.state.meta import StateMeta
from aioprefetch.source.state.options import StateOptions
from aioprefetch.source.state.recent import RecentRecords
from aioprefetch.source.state.store import StateStore


class LiveState:
    """The head, the newest records, the snapshot in force, and the look-up of files.

    ``lost`` is set once another writer has taken over: nothing is written any more.
    """

    def __init__(
        self, store: StateStore, meta: StateMeta, known: StateKnown, options: StateOptions, *, is_writer: bool
    ) -> None:
        self.store = store
        self.meta = meta
        self.known = known
        self.options = options
        self.is_writer = is_writer
        self.is_closed = False
        self.lost: StateConflict | None = None
        self.base: Base | None = None
        self.head: LoggedRecord | None = None
        # The record by which this writer took over.
        self.claim: LoggedRecord | None = None
        self.recent = RecentRecords(options.memory_items)
        # The newest record that the engine has committed, as far as is known, and those with work that are kept.
        self.committed_seq = -1
        self.work_seqs: list[int] = []

    def adopt(self, loaded: Loaded) -> None:
        """Go on from what was read."""
        self.base, self.head = loaded.base, loaded.head
        self.known.view = KnownView(() if loaded.base is None else loaded.base.snapshot.runs, loaded.delta())
        self.claim = self.head if self.is_writer else None
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
        """A new record is in the log."""
        carry = self.head.record.carry if self.head is not None else ()
        self.known.view.delta.add(logged.record.seq, changes_of(logged.record, carried_files(carry)))
        self.recent.add(logged.record)
        if logged.record.items:
            self.work_seqs.append(logged.record.seq)
        self.head = logged

    def compacted(self, base: Base) -> None:
        """Another snapshot is in force. Records may have been appended since the one that it goes up to."""
        through = base.snapshot.through_seq
        self.base = base
        self.known.view = KnownView(base.snapshot.runs, self.known.view.delta.after(through))
        self.work_seqs = [*base.snapshot.work_seqs, *self.work_between(through, self.newest_seq)]

    def work_between(self, after: int, through: int) -> list[int]:
        """The kept records with work above ``after`` and up to ``through``."""
        return self.work_seqs[bisect_right(self.work_seqs, after) : bisect_right(self.work_seqs, through)]

    def kept_between(self, after: int, through: int) -> list[int]:
        """All kept records above ``after`` and up to ``through``: early ones without work are not kept."""
        first = max(after + 1, 0 if self.base is None else self.base.snapshot.log_from)
        return [*self.work_between(after, min(through, first - 1)), *range(first, through + 1)]

    @property
    def newest_seq(self) -> int:
        """The number of the head, -1 if there is none."""
        return -1 if self.head is None else self.head.record.seq

    @property
    def through_seq(self) -> int:
        """The newest record that is in the runs, -1 for none."""
        return -1 if self.base is None else self.base.snapshot.through_seq

    @property
    def removed_seq(self) -> int:
        """The newest record with work that is no longer kept, -1 for none."""
        return -1 if self.base is None else self.base.snapshot.removed_seq

    def check_open(self) -> None:
        """``Closed`` after ``aclose``."""
        if self.is_closed:
            raise Closed("the state was closed", operation="use_state", path=self.store.directory)

    def check_writable(self) -> None:
        """Also ``Unsupported`` for a reader, and ``StateConflict`` once another writer has taken over."""
        self.check_open()
        if not self.is_writer:
            raise Unsupported("this state was opened for reading: writer=False", operation="write_state")
        if self.lost is not None:
            raise copy.copy(self.lost)

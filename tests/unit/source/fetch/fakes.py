"""A state and a feed in memory, for tests of what stands between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from aioprefetch.errors import Error, StateConflict
from aioprefetch.source.state.source_state import SourceState
from aioprefetch.source.values import Change, ChangeKind, Cursor, FoundPage, KnownFile, Record, SourceFile, TailAndSweep


def file_of(key: str, size: int = 10, etag: str = "1") -> SourceFile:
    """A file of one version."""
    return SourceFile(key, size, etag)


class FakeState:
    """The log, and what is known from it. ``failures`` are raised by the next calls of ``append``, one each."""

    uuid = "00000000-0000-4000-8000-000000000000"
    writer = "w1"

    def __init__(self) -> None:
        self.log: list[Record] = [Record(seq=0, writer=self.writer, cursor=TailAndSweep(), claim=True)]
        self.files: dict[str, KnownFile] = {}
        self.failures: list[tuple[bool, BaseException]] = []
        self.commits: list[int] = []
        self.lost: StateConflict | None = None

    def as_state(self) -> SourceState:
        """The part of a state that a cleaner uses."""
        return cast("SourceState", self)

    @property
    def head(self) -> Record:
        return self.log[-1]

    @property
    def index(self) -> FakeState:
        return self

    async def append(self, record: Record) -> None:
        """Take a record; one that is the head already was written by a call whose response was lost."""
        after, failure = self.failures.pop(0) if self.failures else (False, None)
        if failure is not None and not after:
            raise failure
        if record != self.head:
            assert record.seq == self.head.seq + 1
            self.log.append(record)
            for item in record.items:
                self.files[item.file.key] = KnownFile(item.file, record.seq)
            for file in record.known:
                self.files[file.key] = KnownFile(file, record.seq)
            for key, now_ms in record.gone:
                self.files[key] = replace(self.files[key], gone_ms=now_ms)
        if failure is not None:
            raise failure

    async def records(self, after: int, through: int) -> list[Record]:
        return [record for record in self.log if after < record.seq <= through]

    async def newest(self) -> Record | None:
        if self.lost is not None:
            raise self.lost
        return self.head

    async def committed(self, seq: int) -> None:
        self.commits.append(seq)

    async def find(self, keys: Sequence[str]) -> dict[str, KnownFile]:
        return {key: self.files[key] for key in keys if key in self.files}

    async def page(self, after: str, *, count: int) -> Sequence[KnownFile]:
        found = [self.files[key] for key in sorted(self.files) if key > after]
        return found[:count]


@dataclass
class FakeFeed:
    """A tail, then a sweep, over files in memory, compared with what the state knows."""

    state: FakeState
    files: dict[str, SourceFile] = field(default_factory=dict)
    page_files: int = 4
    sweep_pages: int = 2
    pages: int = 0
    share: int = 0
    finish_ms: int | None = None
    swept: bool = False
    sweeping: bool = True
    failures: list[Error] = field(default_factory=list)

    def put(self, *keys: str, size: int = 10, etag: str = "1") -> None:
        self.files |= {key: file_of(key, size, etag) for key in keys}

    def begin_trigger(self) -> None:
        self.share = self.sweep_pages

    def finish_by(self, modified_ms: int | None) -> None:
        """As ``TailSweepLister.finish_by``: a sweep that was under way is given up for a whole one."""
        self.finish_ms = modified_ms
        self.swept = False
        self.sweeping = modified_ms is None

    async def page(self, cursor: Cursor) -> FoundPage:
        assert isinstance(cursor, TailAndSweep)
        self.pages += 1
        if self.failures:
            raise self.failures.pop(0)
        above = [key for key in sorted(self.files) if key > cursor.frontier][: self.page_files]
        if above:
            changes = tuple((Change("new", self.files[key]), replace(cursor, frontier=key)) for key in above)
            return FoundPage(changes, replace(cursor, frontier=above[-1]), False)
        return self._swept(cursor)

    def _swept(self, cursor: TailAndSweep) -> FoundPage:
        if self.swept if self.finish_ms is not None else self.share < 1:
            return FoundPage((), cursor, True)
        self.share -= 1
        if not self.sweeping:
            self.sweeping, cursor = True, replace(cursor, sweep_key=None)
        after = cursor.sweep_key or ""
        keys = [key for key in sorted(self.files) if after < key <= cursor.frontier]
        ends = len(keys) <= self.page_files
        through = cursor.frontier if ends else keys[self.page_files - 1]
        known = {key: one for key, one in self.state.files.items() if after < key <= through}
        changes = []
        for key in sorted({*keys[: self.page_files], *known}):
            kind = _compared(self.files.get(key), known.get(key))
            if kind is not None:
                file = self.files.get(key) or known[key].file
                changes.append((Change(kind, file), replace(cursor, sweep_key=key)))
        swept = (
            replace(cursor, sweep_key=None, sweeps=cursor.sweeps + 1) if ends else replace(cursor, sweep_key=through)
        )
        self.swept = ends
        return FoundPage(tuple(changes), swept, ends)


def _compared(found: SourceFile | None, known: KnownFile | None) -> ChangeKind | None:
    if found is None:
        return None if known is None or known.gone_ms is not None else "gone"
    if known is None:
        return "new"
    if not found.is_same_version(known.file):
        return "overwritten"
    return None if known.gone_ms is None else "returned"

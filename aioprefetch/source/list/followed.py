"""The state of another source, as a follower reads it: what its records decided on, some of them at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from aioprefetch.errors import NotFound
from aioprefetch.source.files import SourceFile
from aioprefetch.source.known import Known
from aioprefetch.source.record import Record
from aioprefetch.source.state.delta import Changes, carried_files, changes_of

RECORDS = 16


class Followed(Protocol):
    """What a follower needs of the other's ``SourceState``, which is opened for reading."""

    @property
    def uuid(self) -> str:
        """The id of the state."""
        ...

    @property
    def head(self) -> Record | None:
        """The newest record that was seen."""
        ...

    @property
    def known(self) -> Known:
        """All files up to the head, or some record after it."""
        ...

    async def newest(self) -> Record | None:
        """Look at the log again; the head is then the newest record."""
        ...

    async def records(self, after: int, through: int) -> list[Record]:
        """Some records. ``NotFound`` when they were removed."""
        ...


class FollowedRecords:
    """Reads the records of a followed state one after the other, each once while nobody goes back.

    A record has from none to a hundred thousand files, so one is read first, and more at once as they prove small.
    """

    def __init__(self, state: Followed) -> None:
        self._state = state
        # The last record given out, what it carried over, and those that were read after it.
        self._seq = -1
        self._carried: frozenset[SourceFile] = frozenset()
        self._ahead: list[Record] = []
        # So many files the next ones may have; it shrinks slowly.
        self._files_each: int | None = None

    async def after(
        self, seq: int, end: int, takes: Callable[[str], bool], *, files_max: int
    ) -> list[tuple[int, Changes]] | None:
        """What the records after ``seq`` decided on, of the keys that are taken; none beyond ``end``, which is above.

        As many as have ``files_max`` keys together, at least one record. ``None``: some were removed.
        """
        if not await self._go_to(seq):
            return None
        decided: list[tuple[int, Changes]] = []
        files = 0
        each = files_max if self._files_each is None else self._files_each
        while self._seq < end and files < files_max and len(decided) < RECORDS:
            if not self._ahead:
                step = max(1, min(RECORDS - len(decided), (files_max - files) // max(1, each)))
                records = await self._read(self._seq, min(end, self._seq + step))
                if records is None:
                    return decided or None
                self._ahead = records
            record = self._ahead.pop(0)
            changes = changes_of(record, self._carried)
            self._seq, self._carried = record.seq, carried_files(record.carry)
            taken = {key: change for key, change in changes.items() if takes(key)}
            decided.append((record.seq, taken))
            files += len(taken)
            each = self._files_each = max(len(changes), each // 2)
        return decided

    async def _go_to(self, seq: int) -> bool:
        """Stand behind the record ``seq``; what it carried over was decided on there. ``False``: it was removed."""
        if seq == self._seq:
            return True
        self._ahead = []
        if seq >= 0:
            records = await self._read(seq - 1, seq)
            if records is None:
                return False
            self._carried = carried_files(records[0].carry)
        else:
            self._carried = frozenset()
        self._seq = seq
        return True

    async def _read(self, after: int, through: int) -> list[Record] | None:
        try:
            records = await self._state.records(after, through)
        except NotFound:
            return None
        return records if [one.seq for one in records] == list(range(after + 1, through + 1)) else None

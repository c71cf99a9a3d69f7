"""Finds files through the lister of another source, by reading its state: one lists, others follow.

First all files that the other one knows, in the order of their keys, then its records one by one. A follower that was
away for so long that records were removed compares once more all that the other one knows with what it knows itself,
which also tells what is gone. It asks the bucket for nothing, and takes only what its own glob matches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from aioprefetch.errors import Error, InvalidArgument, NotFound, StateConflict, excerpt
from aioprefetch.source.cursor import Cursor, Follow
from aioprefetch.source.feed import FoundPage
from aioprefetch.source.file_index import FileIndex, KnownFile
from aioprefetch.source.files import Change, SourceFile
from aioprefetch.source.list.comparison import ChangeSteps, compare, kind_of
from aioprefetch.source.list.selection import Selection
from aioprefetch.source.options import ListOptions
from aioprefetch.source.polling import PollTimer
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
    def index(self) -> FileIndex:
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


KNOWN_FILES = 1000


class Follower:
    """A ``Feed`` over the state of another source. ``known`` is what the follower itself has decided on.

    Every version of a file that the other one plans is told once; one that is overwritten before the follower has come
    to it is not, as it can be read no more.
    """

    def __init__(
        self,
        state: Followed,
        options: ListOptions,
        known: FileIndex,
        *,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._state = state
        self._records = FollowedRecords(state)
        self._known = known
        self._selection = Selection("", options.glob, hidden_files=options.hidden_files)
        self._timer = PollTimer(options.interval_seconds, clock)
        self._found = False
        # What this trigger was told, and does not know yet; as long as each page was taken whole.
        self._told: dict[str, KnownFile] = {}
        self._after: Follow | None = None
        self._finish_ms: int | None = None
        self._finish_seq: int | None = None

    def first(self) -> Follow:
        """The cursor of a source that has found nothing yet."""
        return Follow(state=self._state.uuid)

    def begin_trigger(self) -> None:
        """A new trigger."""
        self._found = False
        self._told.clear()

    def finish_by(self, modified_ms: int | None) -> None:
        """Be idle for good after the record that is the newest one then: it is the other's lister that knows times.

        Whoever goes back to an earlier cursor calls this again with the same time, and the end stays where it was.
        """
        if modified_ms != self._finish_ms:
            self._finish_seq = None
        self._finish_ms = modified_ms
        self._timer.wake()

    async def page(self, cursor: Cursor) -> FoundPage:
        """The next changes. See ``Feed.page``, and ``TailSweepLister.page`` for what happens after an error.

        Raises ``StateConflict`` when the state is not the one that the cursor is of, or was put back to an older one.
        """
        if not isinstance(cursor, Follow):
            raise InvalidArgument(
                f"a follower goes on from a cursor of its own kind, not from {excerpt(repr(cursor))}", operation="list"
            )
        if cursor.state != self._state.uuid:
            raise StateConflict(
                f"the source follows the state {cursor.state!r}, and what it is attached to is {self._state.uuid!r}:"
                " attach it to the one it began with, or start it with a state of its own that is new",
                operation="list",
            )
        if self._timer.is_resting:
            return FoundPage((), cursor, 0, is_idle=True)
        await self._timer.wait()
        if cursor != self._after:
            self._told.clear()
        try:
            found = await self._next_page(cursor)
        except Error:
            self._timer.failed()
            raise
        self._timer.succeeded()
        self._after = found.after if isinstance(found.after, Follow) else None
        self._found = self._found or bool(found.changes)
        if found.is_idle and not self._found:
            self._timer.rest()
        return found

    async def aclose(self) -> None:
        """Nothing is held; the state belongs to whoever opened it."""

    async def _next_page(self, cursor: Follow) -> FoundPage:
        end, is_newest = await self._end(cursor)
        if cursor.backfill_key is None:
            if cursor.seq >= end:
                return FoundPage((), cursor, 0, is_idle=True)
            found = await self._followed(cursor, end)
            return found if is_newest else replace(found, is_idle=False)
        if cursor.through < 0:
            if end < 0:
                return FoundPage((), cursor, 0, is_idle=True)
            cursor = replace(cursor, through=end)
        found = await self._backfilled(cursor, cursor.backfill_key or "", end)
        return found if is_newest else replace(found, is_idle=False)

    async def _end(self, cursor: Follow) -> tuple[int, bool]:
        """The record to go to, and whether the log was asked just now: in a run that is to end, at its beginning."""
        if self._finish_seq is not None:
            return self._finish_seq, True
        head, is_finishing = self._state.head, self._finish_ms is not None
        come = max(cursor.seq, cursor.through)
        is_newest = head is None or head.seq <= come or is_finishing
        if is_newest:
            head = await self._state.newest()
        end = -1 if head is None else head.seq
        if end < come:
            raise StateConflict(
                f"the source has followed the state {cursor.state!r} to record {come}, and it ends at {end}: it was"
                " put back to an older copy",
                operation="list",
            )
        if is_finishing:
            self._finish_seq = end
        return end, is_newest

    # --- all files that the other one knows ---------------------------------------------------------------------

    async def _backfilled(self, cursor: Follow, after: str, end: int) -> FoundPage:
        """Some keys of both, compared. What records after ``through`` decided on comes with these records."""
        theirs = await self._state.index.page(after, count=KNOWN_FILES)
        through = theirs[-1].file.key if len(theirs) == KNOWN_FILES else None
        ours = await self._known.page(after, count=KNOWN_FILES)
        if len(ours) == KNOWN_FILES and (through is None or ours[-1].file.key < through):
            through = ours[-1].file.key
        theirs, ours = _up_to(theirs, through), self._with_told(_up_to(ours, through), after, through)
        later = {one.file.key for one in theirs if one.seq > cursor.through}
        # Names that were gone since the last record that was followed, whatever came in their place. Of the one after
        # that a part may have been followed; a name that it has anew was seen to be gone before it.
        anew = {one.file.key for one in theirs if cursor.seq + 1 < one.since <= cursor.through}
        takes = self._selection.takes
        files = [
            one.file for one in theirs if one.gone_ms is None and one.file.key not in later and takes(one.file.key)
        ]
        changes: ChangeSteps = [
            (_anew(change, anew), replace(cursor, backfill_key=change.file.key))
            for change in compare(files, [one for one in ours if one.file.key not in later - anew])
        ]
        self._told |= {
            change.file.key: KnownFile(change.file, cursor.through, 0 if change.kind == "gone" else None)
            for change, _ in changes
        }
        if through is not None:
            return FoundPage(tuple(changes), replace(cursor, backfill_key=through), 0, is_idle=False)
        done = replace(cursor, seq=cursor.through, backfill_key=None)
        return FoundPage(tuple(changes), done, 0, is_idle=done.seq >= end)

    def _with_told(self, ours: Sequence[KnownFile], after: str, through: str | None) -> Sequence[KnownFile]:
        """What is known here of a range of keys, and what this trigger was told of it before."""
        if not self._told or max(self._told) <= after:
            return ours
        told = {key: one for key, one in self._told.items() if after < key and (through is None or key <= through)}
        merged = {one.file.key: one for one in ours} | told
        return [merged[key] for key in sorted(merged)]

    # --- its records --------------------------------------------------------------------------------------------

    async def _followed(self, cursor: Follow, end: int) -> FoundPage:
        """What the next records decided on, as it compares with what is known here."""
        decided = await self._records.after(cursor.seq, end, self._selection.takes, files_max=KNOWN_FILES)
        if decided is None:
            return FoundPage((), replace(cursor, through=end, backfill_key=""), 0, is_idle=False)
        keys = sorted({key for _, changes in decided for key in changes})
        theirs = await self._state.index.find(keys) if keys else {}
        before = dict(await self._known.find(keys)) if keys else {}
        before |= {key: self._told[key] for key in keys if key in self._told}
        pairs: ChangeSteps = []
        for seq, changes in decided:
            told = _told(changes, before, theirs)
            pairs += [(change, replace(cursor, seq=seq - 1)) for change in told[:-1]]
            pairs += [(change, replace(cursor, seq=seq)) for change in told[-1:]]
            self._told |= {change.file.key: before[change.file.key] for change in told}
        after = replace(cursor, seq=decided[-1][0])
        return FoundPage(tuple(pairs), after, 0, is_idle=after.seq >= end)


def _anew(change: Change, anew: set[str]) -> Change:
    return replace(change, kind="new") if change.kind == "overwritten" and change.file.key in anew else change


def _told(changes: Changes, before: dict[str, KnownFile], theirs: Mapping[str, KnownFile]) -> list[Change]:
    """What one record changes; ``before`` is brought up to date with it.

    ``theirs`` is what later records made of it: a version that they replaced, or missed, can be read no more.
    """
    told: list[Change] = []
    for key, now in changes.items():
        known = before.get(key)
        if isinstance(now, KnownFile):
            kind = kind_of(now.file, known) if _is_there(now.file, theirs.get(key)) else None
            if kind is not None:
                told.append(Change(kind, now.file))
                before[key] = now
        elif known is not None and known.gone_ms is None:
            told.append(Change("gone", known.file))
            before[key] = replace(known, gone_ms=now)
    return told


def _is_there(file: SourceFile, now: KnownFile | None) -> bool:
    return now is not None and now.gone_ms is None and file.is_same_version(now.file)


def _up_to(known: Sequence[KnownFile], through: str | None) -> Sequence[KnownFile]:
    return known if through is None else known[: bisect_right(known, through, key=lambda one: one.file.key)]

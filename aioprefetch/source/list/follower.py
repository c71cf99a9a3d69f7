"""Finds files by following the lister of another source, through its state: one source lists, others follow.

A new follower first takes all files that the other source knows, in the order of their keys, then its records one by
one. If records were removed while the follower was away, it compares all files that the other source knows with its own
once more, which also finds deletions. It sends no request to the bucket, and takes only files that match its own glob.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from aioprefetch.errors import Error, InvalidArgument, NotFound, StateConflict, excerpt
from aioprefetch.source.list.pages import ChangeSteps, Selection, compare, kind_of
from aioprefetch.source.options import ListOptions
from aioprefetch.source.polling import PollTimer
from aioprefetch.source.state.index import Changes, carried_files, changes_of
from aioprefetch.source.state.source_state import SourceState
from aioprefetch.source.values import Change, Cursor, FileIndex, Follow, FoundPage, KnownFile, Record, SourceFile

# Records read at once, at most.
RECORDS = 16


class FollowedRecords:
    """Reads the records of a followed state in order, each once unless the caller goes back.

    A record has between none and a hundred thousand files. One record is read first, then more at once if they are
    small.
    """

    def __init__(self, state: SourceState) -> None:
        self._state = state
        # The last record returned, the files that it carried over, and the records read after it.
        self._seq = -1
        self._carried: frozenset[SourceFile] = frozenset()
        self._ahead: list[Record] = []
        # The expected number of files in the next records; it shrinks slowly.
        self._files_each: int | None = None

    async def after(
        self, seq: int, end: int, takes: Callable[[str], bool], *, files_max: int
    ) -> list[tuple[int, Changes]] | None:
        """The changes by the records after ``seq`` and up to ``end``, each with its number, of the selected keys.

        At least one record, and no further ones once ``files_max`` keys are reached. ``None`` if records were removed.
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
        """Move after the record ``seq``, and note the files that it carried over. ``False`` if it was removed."""
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
        return records if [record.seq for record in records] == list(range(after + 1, through + 1)) else None


KNOWN_FILES = 1000


class Follower:
    """A ``Feed`` over the state of another source. ``index`` has the files that the follower itself has decided on.

    Every version of a file that the other source plans is returned once. A version that was overwritten before the
    follower reached it is left out, as it can no longer be read. ``page_files`` is the number of files that are
    compared at once.
    """

    def __init__(
        self,
        state: SourceState,
        options: ListOptions,
        index: FileIndex,
        *,
        clock: Callable[[], float] | None = None,
        page_files: int = KNOWN_FILES,
    ) -> None:
        self._page_files = page_files
        self._state = state
        self._records = FollowedRecords(state)
        self._index = index
        self._selection = Selection(options.glob, hidden_files=options.hidden_files)
        self._timer = PollTimer(options.interval_seconds, clock)
        self._has_changes = False
        # Changes returned in this trigger that the index does not contain yet, while each page is taken whole.
        self._pending: dict[str, KnownFile] = {}
        self._after: Follow | None = None
        self._finish_ms: int | None = None
        self._finish_seq: int | None = None

    def begin_trigger(self) -> None:
        """Start a new trigger."""
        self._has_changes = False
        self._pending.clear()

    def finish_by(self, modified_ms: int | None) -> None:
        """End after the record that is the newest one at the next look: only the other source's lister knows times.

        A caller that goes back to an earlier cursor calls this again with the same time, and the end stays the same.
        """
        if modified_ms != self._finish_ms:
            self._finish_seq = None
        self._finish_ms = modified_ms
        self._timer.wake()

    async def page(self, cursor: Cursor) -> FoundPage:
        """The next changes, as ``Feed.page``. After an error the next call waits for a pause that grows each time.

        Raises ``StateConflict`` if the cursor belongs to another state, or the state was put back to an older copy.
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
            return FoundPage((), cursor, is_idle=True)
        await self._timer.wait()
        if cursor != self._after:
            self._pending.clear()
        try:
            page = await self._next_page(cursor)
        except Error:
            self._timer.failed()
            raise
        self._timer.succeeded()
        self._after = page.after if isinstance(page.after, Follow) else None
        self._has_changes = self._has_changes or bool(page.changes)
        if page.is_idle and not self._has_changes:
            self._timer.rest()
        return page

    async def aclose(self) -> None:
        """Has no effect: the follower holds nothing, and its creator closes the state."""

    async def _next_page(self, cursor: Follow) -> FoundPage:
        end, is_newest = await self._end(cursor)
        if cursor.backfill_key is None:
            if cursor.seq >= end:
                return FoundPage((), cursor, is_idle=True)
            page = await self._followed(cursor, end)
            return page if is_newest else replace(page, is_idle=False)
        if cursor.through < 0:
            if end < 0:
                return FoundPage((), cursor, is_idle=True)
            cursor = replace(cursor, through=end)
        page = await self._backfilled(cursor, cursor.backfill_key or "", end)
        return page if is_newest else replace(page, is_idle=False)

    async def _end(self, cursor: Follow) -> tuple[int, bool]:
        """The record to follow up to, and whether the log was read just now (in a run that ends: at its beginning)."""
        if self._finish_seq is not None:
            return self._finish_seq, True
        head, is_finishing = self._state.head, self._finish_ms is not None
        reached = max(cursor.seq, cursor.through)
        is_newest = head is None or head.seq <= reached or is_finishing
        if is_newest:
            head = await self._state.newest()
        end = -1 if head is None else head.seq
        if end < reached:
            raise StateConflict(
                f"the source has followed the state {cursor.state!r} to record {reached}, and it ends at {end}: it was"
                " put back to an older copy",
                operation="list",
            )
        if is_finishing:
            self._finish_seq = end
        return end, is_newest

    # --- all files that the other source knows ------------------------------------------------------------------

    async def _backfilled(self, cursor: Follow, after: str, end: int) -> FoundPage:
        """Compare a range of keys of both. Changes by records after ``through`` come with these records."""
        theirs = await self._state.index.page(after, count=self._page_files)
        through = theirs[-1].file.key if len(theirs) == self._page_files else None
        ours = await self._index.page(after, count=self._page_files)
        if len(ours) == self._page_files and (through is None or ours[-1].file.key < through):
            through = ours[-1].file.key
        theirs, ours = _up_to(theirs, through), self._with_pending(_up_to(ours, through), after, through)
        later = {file.file.key for file in theirs if file.seq > cursor.through}
        # Names that were gone at some time after the last followed record, and were created again. The record after
        # that one may have been followed in part; a name that is new in it was gone before it.
        recreated = {file.file.key for file in theirs if cursor.seq + 1 < file.since <= cursor.through}
        takes = self._selection.takes
        files = [
            file.file for file in theirs if file.gone_ms is None and file.file.key not in later and takes(file.file.key)
        ]
        changes: ChangeSteps = [
            (_as_new(change, recreated), replace(cursor, backfill_key=change.file.key))
            for change in compare(files, [file for file in ours if file.file.key not in later - recreated])
        ]
        self._pending |= {
            change.file.key: KnownFile(change.file, cursor.through, 0 if change.kind == "gone" else None)
            for change, _ in changes
        }
        if through is not None:
            return FoundPage(tuple(changes), replace(cursor, backfill_key=through), is_idle=False)
        done = replace(cursor, seq=cursor.through, backfill_key=None)
        return FoundPage(tuple(changes), done, is_idle=done.seq >= end)

    def _with_pending(self, ours: Sequence[KnownFile], after: str, through: str | None) -> Sequence[KnownFile]:
        """The known files of a range of keys, with the pending changes of this trigger."""
        if not self._pending or max(self._pending) <= after:
            return ours
        pending = {
            key: file for key, file in self._pending.items() if after < key and (through is None or key <= through)
        }
        merged = {file.file.key: file for file in ours} | pending
        return [merged[key] for key in sorted(merged)]

    # --- its records --------------------------------------------------------------------------------------------

    async def _followed(self, cursor: Follow, end: int) -> FoundPage:
        """The changes by the next records, compared with the known files of the follower."""
        decided = await self._records.after(cursor.seq, end, self._selection.takes, files_max=self._page_files)
        if decided is None:
            return FoundPage((), replace(cursor, through=end, backfill_key=""), is_idle=False)
        keys = sorted({key for _, changes in decided for key in changes})
        theirs = await self._state.index.find(keys) if keys else {}
        before = dict(await self._index.find(keys)) if keys else {}
        before |= {key: self._pending[key] for key in keys if key in self._pending}
        pairs: ChangeSteps = []
        for seq, changes in decided:
            new = _new_changes(changes, before, theirs)
            pairs += [(change, replace(cursor, seq=seq - 1)) for change in new[:-1]]
            pairs += [(change, replace(cursor, seq=seq)) for change in new[-1:]]
            self._pending |= {change.file.key: before[change.file.key] for change in new}
        after = replace(cursor, seq=decided[-1][0])
        return FoundPage(tuple(pairs), after, is_idle=after.seq >= end)


def _as_new(change: Change, recreated: set[str]) -> Change:
    return replace(change, kind="new") if change.kind == "overwritten" and change.file.key in recreated else change


def _new_changes(changes: Changes, before: dict[str, KnownFile], theirs: Mapping[str, KnownFile]) -> list[Change]:
    """The changes by one record; ``before`` is updated with them.

    ``theirs`` are the files after all records: a version that was replaced or deleted since can no longer be read.
    """
    new: list[Change] = []
    for key, now in changes.items():
        earlier = before.get(key)
        if isinstance(now, KnownFile):
            kind = kind_of(now.file, earlier) if _is_there(now.file, theirs.get(key)) else None
            if kind is not None:
                new.append(Change(kind, now.file))
                before[key] = now
        elif earlier is not None and earlier.gone_ms is None:
            new.append(Change("gone", earlier.file))
            before[key] = replace(earlier, gone_ms=now)
    return new


def _is_there(file: SourceFile, now: KnownFile | None) -> bool:
    return now is not None and now.gone_ms is None and file.is_same_version(now.file)


def _up_to(files: Sequence[KnownFile], through: str | None) -> Sequence[KnownFile]:
    return files if through is None else files[: bisect_right(files, through, key=lambda file: file.file.key)]

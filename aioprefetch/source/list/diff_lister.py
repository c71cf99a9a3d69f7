"""Finds files in a store that lists in no order by repeated full listings.

Such are all that promise none (``Capability.list_ordered``), S3's directory buckets among them. No key is a position in
such a listing: it continues by the page token while this process lives, and a later process starts it again. Each key
is looked up among the known files. Deletions show at the end of a listing, when the listed keys are compared in order
with the known files. Of the listed keys hashes are kept until then, eight bytes each.

A page with changes costs one request. Each trigger lists at most ``sweep_pages`` pages without changes, at least one.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from aioprefetch.errors import Error, InvalidArgument, excerpt
from aioprefetch.operator.operator import Operator
from aioprefetch.source.list.pages import ReadAhead, Selection, file_of, is_young, kind_of
from aioprefetch.source.options import ListOptions
from aioprefetch.source.polling import ListingProgress, Overrun, PollTimer, loop_seconds
from aioprefetch.source.values import (
    REST_SECONDS_MAX,
    Change,
    Cursor,
    Diff,
    FileIndex,
    FoundPage,
    KnownFile,
    SourceFile,
)
from aioprefetch.values import ListRequest


class ListedKeys:
    """The keys of one listing, in any order, as hashes of eight bytes: ten million keys take 80 MB.

    A key that was not added passes for an added one by a chance of one in a million million, in this process alone: the
    file is seen to be gone by a later one. Add all keys before the first ``missing``, which may take seconds.
    """

    def __init__(self) -> None:
        self._hashes = array("q")
        self._sorted: npt.NDArray[np.int64] | None = None

    def add(self, keys: Iterable[str]) -> None:
        """Add keys."""
        self._hashes.extend(map(hash, keys))

    def missing(self, keys: Sequence[str]) -> set[str]:
        """The ``keys`` that were not added."""
        if self._sorted is None:
            self._sorted = np.sort(np.frombuffer(self._hashes, np.int64))
        wanted = np.fromiter(map(hash, keys), np.int64, len(keys))
        first, end = (np.searchsorted(self._sorted, wanted, side=side) for side in ("left", "right"))
        return {key for key, count in zip(keys, end - first, strict=True) if not count}


# --- the lister -------------------------------------------------------------------------------------------------------

# The known files that are compared at once with the listed keys.
KNOWN_FILES = 1000


@dataclass(slots=True)
class _CurrentListing:
    """One listing in progress. ``compared`` is the last known key compared with it; ``None`` before the comparison."""

    pages: ReadAhead
    listed: ListedKeys = field(default_factory=ListedKeys)
    compared: str | None = None


class DiffLister:
    """A ``Feed`` over a store without order. Parameters as for ``TailSweepLister``."""

    def __init__(
        self,
        operator: Operator,
        options: ListOptions,
        index: FileIndex,
        *,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._operator = operator
        self._options = options
        self._selection = Selection(options.glob, hidden_files=options.hidden_files)
        self._index = index
        self._clock = clock or loop_seconds
        self._timer = PollTimer(options.interval_seconds, clock, lambda: operator.runtime().random.random())
        self._progress = ListingProgress(operator.info.url, clock)
        self._listing: _CurrentListing | None = None
        self._dropped: list[ReadAhead] = []
        self._held: FoundPage | None = None
        self._held_since = 0.0
        self._until_ms: int | None = None
        self._overrun = Overrun()
        self._done = False
        self._young = self._youngest_ms = 0
        self.begin_trigger()

    def begin_trigger(self) -> None:
        """Start a new trigger: again a share of pages without changes, and a new listing if the last one has ended."""
        self._left = max(1, self._options.sweep_pages)
        self._ended = False
        self._has_changes = False

    def finish_by(self, modified_ms: int | None) -> None:
        """Leave younger files to a later run, and end after one whole listing. ``None``: no end."""
        self._drop()
        self._progress.begin()
        self._until_ms = modified_ms
        self._overrun = Overrun()
        self._done = False
        self._young = self._youngest_ms = 0
        self._timer.wake()
        self.begin_trigger()

    async def page(self, cursor: Cursor) -> FoundPage:
        """The next changes, as ``Feed.page``. After an error the next call waits for a pause that grows each time."""
        if not isinstance(cursor, Diff):
            raise InvalidArgument(
                f"a lister without order goes on from a cursor of its own kind, not from {excerpt(repr(cursor))}",
                operation="list",
            )
        rest = await self._rest_of_page(cursor)
        if rest is not None:
            return rest
        if self._timer.is_resting or self._is_idle():
            return FoundPage((), cursor, is_idle=True)
        await self._timer.wait()
        try:
            page = await self._next_page(cursor)
        except Error as error:
            self._timer.failed()
            if error.status == "permanent":  # A refused token would be refused again.
                self._drop()
            raise
        self._timer.succeeded()
        return page

    async def aclose(self) -> None:
        """End listing ahead. The next call of ``page`` starts a new listing."""
        self._drop()
        while self._dropped:
            await self._dropped[-1].aclose()
            self._dropped.pop()

    # --- the position -------------------------------------------------------------------------------------------

    async def _rest_of_page(self, cursor: Diff) -> FoundPage | None:
        """The untaken rest of the last page, compared with the known files again; ``None`` if nothing is left.

        A cursor that does not continue the page ends the listing. A rest that has waited too long is dropped, as the
        next listing returns it again, except in a run that ends, which lists only once.
        """
        held = self._held
        if held is None or cursor == held.after:
            return None
        numbers = [after.taken for _, after in held.changes if isinstance(after, Diff)]
        if cursor.taken + 1 not in numbers:
            self._drop()
            return None
        if self._until_ms is None and self._clock() - self._held_since > REST_SECONDS_MAX:
            self._held = None
            return None
        rest = [change for change, _ in held.changes[numbers.index(cursor.taken + 1) :]]
        known_files = await self._index.find([change.file.key for change in rest])
        changes = [
            new for change in rest if (new := _compared_again(change, known_files.get(change.file.key))) is not None
        ]
        self._has_changes = True
        assert isinstance(held.after, Diff)
        return self._hold(cursor, changes, held.after, is_idle=self._is_idle())

    def _hold(self, cursor: Diff, changes: list[Change], after: Diff, *, is_idle: bool) -> FoundPage:
        """A page of numbered changes, which is kept until all of it is taken."""
        after = replace(after, taken=cursor.taken + len(changes))
        pairs = tuple(
            (change, after if number == len(changes) else replace(cursor, taken=cursor.taken + number))
            for number, change in enumerate(changes, 1)
        )
        self._held = FoundPage(pairs, after, is_idle)
        return self._held

    def _is_idle(self) -> bool:
        if self._until_ms is not None:
            return self._done
        return self._ended or self._left <= 0

    def _drop(self) -> None:
        self._held = None
        if self._listing is not None:
            self._listing.pages.cancel()
            self._dropped = [pages for pages in (*self._dropped, self._listing.pages) if pages.is_running]
            self._listing = None

    def _begun(self) -> _CurrentListing:
        if self._listing is None:
            request = ListRequest(path=self._selection.prefix, recursive=True)
            pages = ReadAhead(self._operator, request, self._options.ahead_pages)
            self._listing = _CurrentListing(pages)
            self._overrun = Overrun()
        return self._listing

    # --- the pages ----------------------------------------------------------------------------------------------

    async def _next_page(self, cursor: Diff) -> FoundPage:
        listing = self._begun()
        if listing.compared is None:
            after, changes = await self._listed(listing, cursor)
        else:
            after, changes = await self._compared(listing, cursor, listing.compared)
        self._has_changes = self._has_changes or bool(changes)
        self._left -= not changes
        is_idle = self._is_idle()
        if self._done and self._young and self._until_ms is not None:
            self._progress.left_young(self._young, self._youngest_ms - self._until_ms)
            self._young = 0
        if is_idle and not self._has_changes:
            self._timer.rest()
        self._held_since = self._clock()
        return self._hold(cursor, changes, after, is_idle=is_idle)

    async def _listed(self, listing: _CurrentListing, cursor: Diff) -> tuple[Diff, list[Change]]:
        """A page of the listing, compared with the known files of its keys."""
        entries = await listing.pages.next()
        files = [file_of(entry) for entry in entries if self._selection.takes(entry.path)]
        until_ms = self._until_ms
        old = files if until_ms is None else [file for file in files if not is_young(file, until_ms)]
        try:
            listing.listed.add([entry.path for entry in entries])
            changes = await self._looked_up(old)
            if until_ms is not None:
                await self._count_young([file for file in files if is_young(file, until_ms)])
        except BaseException:
            self._drop()  # The page is lost, and its token leads to the next one.
            raise
        if until_ms is not None and entries:
            self._progress.listed(len(entries), entries[-1].path)
        if listing.pages.finished:
            listing.compared = ""
        elif until_ms is not None and self._overrun.after(len(old), len(files) - len(old)):
            self._drop()
            self._done = True
        else:
            listing.pages.start()
        times = [file.modified_ms for file in files if file.modified_ms is not None]
        if times and (cursor.high_modified_ms is None or max(times) > cursor.high_modified_ms):
            cursor = replace(cursor, high_modified_ms=max(times))
        return cursor, changes

    async def _count_young(self, files: list[SourceFile]) -> None:
        """Count the files left to a later run, without known versions."""
        if files:
            left = [change.file for change in await self._looked_up(files)]
            self._young += len(left)
            self._youngest_ms = max([self._youngest_ms, *(file.modified_ms or 0 for file in left)])

    async def _looked_up(self, files: list[SourceFile]) -> list[Change]:
        before = await self._index.find([file.key for file in files]) if files else {}
        kinds = [(kind_of(file, before.get(file.key)), file) for file in files]
        return [Change(kind, file) for kind, file in kinds if kind is not None]

    async def _compared(self, listing: _CurrentListing, cursor: Diff, after: str) -> tuple[Diff, list[Change]]:
        """Compare some known files with the listed keys; after the last known file the listing has ended."""
        known_files = await self._index.page(after, count=KNOWN_FILES)
        keys = [file.file.key for file in known_files]
        absent = await self._operator.runtime().run_blocking(listing.listed.missing, keys)
        if len(known_files) == KNOWN_FILES:
            listing.compared = keys[-1]
        else:
            cursor = replace(cursor, listings=cursor.listings + 1)
            self._drop()
            self._ended = True
            self._done = self._until_ms is not None
        return cursor, [
            Change("gone", file.file) for file in known_files if file.file.key in absent and file.gone_ms is None
        ]


def _compared_again(change: Change, known_file: KnownFile | None) -> Change | None:
    """A change of a kept page, compared again: a taken change may be of the same key, listed twice."""
    if change.kind != "gone":
        kind = kind_of(change.file, known_file)
        return None if kind is None else Change(kind, change.file)
    is_known = known_file is not None and known_file.gone_ms is None and known_file.file.is_same_version(change.file)
    return change if is_known else None

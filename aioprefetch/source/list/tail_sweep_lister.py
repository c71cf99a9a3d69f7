"""Finds files by two cursors over the keys in order: the tail lists what is new, a rolling sweep looks again.

*The tail* asks for the keys above its frontier. Each is new, whatever its time says: nothing is looked up. *The sweep*
lists the keys up to the frontier once more, some pages in each trigger, and merges them with the known files: late
files with lower names, overwrites and deletions show there. A file that stays for one whole sweep is found, whatever
its name, its ``LastModified`` and any clock.

What it costs, in requests of a page each: a look at an unchanged bucket is one for the tail and up to ``sweep_pages``
for the sweep, then none until the interval is over. A trigger that takes ``n`` pages of new keys and leaves others
makes ``n`` requests for them and one for the sweep. For each cursor up to ``ahead_pages`` are listed before they are
needed, and no more than the look will use.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from aioprefetch.errors import Error, InvalidArgument, excerpt
from aioprefetch.operator.operator import Operator
from aioprefetch.source.cursor import Cursor, TailAndSweep
from aioprefetch.source.feed import FoundPage
from aioprefetch.source.file_index import FileIndex
from aioprefetch.source.list.comparison import Compared, compare_sweep, compare_tail
from aioprefetch.source.list.finishing import Finishing, ListingProgress
from aioprefetch.source.list.listing_pages import KeyPages
from aioprefetch.source.list.selection import Selection
from aioprefetch.source.options import ListOptions
from aioprefetch.source.polling import PollTimer

# How many known files are looked at beside a page, which has fewer where many were deleted.
KNOWN_FILES = 1000
KNOWN_FILES_MORE = 100

Half = Literal["tail", "sweep"]


class TailSweepLister:
    """A ``Feed`` over a store that lists in the order of keys. ``page`` is called by one task at a time.

    Parameters
    ----------
    operator
        Its root is that of the source: keys are relative to it.
    prefix
        Nothing else is listed; narrowed by what every path begins with that the glob matches.
    known
        Everything that was decided on before the last ``begin_trigger``, and possibly more.
    clock
        Seconds; that of the running loop by default.
    """

    def __init__(
        self,
        operator: Operator,
        prefix: str,
        options: ListOptions,
        known: FileIndex,
        *,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._selection = Selection(prefix, options.glob, hidden_files=options.hidden_files)
        self._known = known
        self._timer = PollTimer(options.interval_seconds, clock, lambda: operator.runtime().random.random())
        self._tail = KeyPages(operator, self._selection.prefix, options.ahead_pages, self._count_request)
        self._sweep = KeyPages(operator, self._selection.prefix, options.ahead_pages, self._count_request)
        self._sweep_pages = options.sweep_pages
        self._progress = ListingProgress(operator.info.url, clock)
        self._requests = 0
        self._finishing: Finishing | None = None
        self._sweep_is_next = False
        self._begin()

    def first(self) -> TailAndSweep:
        """The cursor of a source that has found nothing yet."""
        return TailAndSweep()

    def begin_trigger(self) -> None:
        """A new trigger: look at the end of the bucket again, and go on with the sweep."""
        self._begin()

    def _begin(self) -> None:
        self._tail_ended = False
        self._sweep_left = self._sweep_pages
        self._sweep_ended = False
        self._found = False
        # The frontier at the beginning: what the tail decides on from here on is not known before the next trigger.
        self._settled: str | None = None

    def finish_by(self, modified_ms: int | None) -> None:
        """Leave younger files to a later run, and be idle for good after one tail and one whole sweep.

        There is neither a share nor an interval then: the whole bucket is listed, as much of it for each page asked
        for as ever, and progress is logged. With ``sweep_pages=0`` there is no sweep, which would find later what the
        tail passes over: it ends before the first younger file. Whoever goes back to an earlier cursor calls this
        again. ``None`` goes back to listing for ever.
        """
        self._progress.begin()
        self._finishing = None if modified_ms is None else Finishing(modified_ms, sweep_done=not self._sweep_pages)
        self._tail.drop()  # What was listed before that time lacks files that came before it.
        self._sweep.drop()
        self._timer.wake()
        self._begin()

    async def page(self, cursor: Cursor) -> FoundPage:
        """The next changes. See ``Feed.page``.

        After an error the next call waits for the rest of a pause that grows with each one, and goes on.
        """
        if not isinstance(cursor, TailAndSweep):
            raise InvalidArgument(
                f"a lister goes on from a cursor of its own kind, not from {excerpt(repr(cursor))}", operation="list"
            )
        if self._settled is None:
            self._settled = cursor.frontier
        if self._finishing is not None:
            self._finishing.begin(cursor)
        half = None if self._timer.is_resting else self._next_half(cursor)
        if half is None:
            self._tell_young()
            return FoundPage((), cursor, 0, is_idle=True)
        await self._timer.wait()
        try:
            found = await (self._tail_page(cursor) if half == "tail" else self._sweep_page(cursor))
        except Error:
            self._timer.failed()
            raise
        self._timer.succeeded()
        self._found = self._found or bool(found.changes)
        is_idle = self._next_half(found.after) is None
        if is_idle:
            self._tell_young()
            if not self._found:
                self._timer.rest()
        requests, self._requests = self._requests, 0
        return FoundPage(tuple(found.changes), found.after, requests, is_idle)

    async def aclose(self) -> None:
        """End listing ahead. The next page starts it again."""
        await self._tail.aclose()
        await self._sweep.aclose()

    def _count_request(self) -> None:
        self._requests += 1

    # --- whose turn it is ---------------------------------------------------------------------------------------

    def _next_half(self, cursor: TailAndSweep) -> Half | None:
        """The tail has precedence while it has news, but for one page of the sweep in each trigger."""
        sweep = self._may_sweep(cursor)
        if self._may_tail(cursor) and not (sweep and self._sweep_is_next):
            return "tail"
        return "sweep" if sweep else None

    def _may_tail(self, cursor: TailAndSweep) -> bool:
        ended = self._tail_ended if self._finishing is None else self._finishing.tail_done
        return not ended or self._tail.has_after(cursor.frontier)

    def _may_sweep(self, cursor: TailAndSweep) -> bool:
        if self._finishing is not None:
            return not self._finishing.sweep_done or self._finishing.is_sweeping(cursor)
        if self._sweep_left <= 0:
            return False
        return cursor.sweep_key is not None or (bool(self._settled) and not self._sweep_ended)

    # --- the two halves -----------------------------------------------------------------------------------------

    @property
    def _until_ms(self) -> int | None:
        return None if self._finishing is None else self._finishing.until_ms

    async def _tail_page(self, cursor: TailAndSweep) -> Compared:
        if self._tail.is_at_end(cursor.frontier) and not self._tail.has_after(cursor.frontier):
            self._tail.drop()  # That was the end when it was listed.
        listed = await self._tail.after(cursor.frontier)
        stops = self._finishing is not None and not self._sweep_pages
        found = compare_tail(cursor, listed.entries, self._selection, self._until_ms, stops=stops)
        self._tell(len(listed.entries), found.after.frontier)
        self._count_young("tail", found)
        self._sweep_is_next = self._finishing is None and self._sweep_left == self._sweep_pages
        self._tail_ended = self._tail_ended or listed.is_last
        if self._finishing is not None and (listed.is_last or self._finishing.overrun.after(found.old, found.young)):
            self._finishing.tail_done = True
        if self._finishing is not None and stops and found.young:
            self._finishing.tail_done = True
            self._tail.drop()
        return found

    async def _sweep_page(self, cursor: TailAndSweep) -> Compared:
        cursor = self._in_sweep(cursor)
        begin = cursor.sweep_key or ""
        pages = self._sweep_left - 1 if self._finishing is None else None
        listed = await self._sweep.after(begin, pages=pages, end=cursor.sweep_end)
        through = cursor.sweep_end if listed.is_last else min(listed.through, cursor.sweep_end)
        entries = listed.entries[: bisect_right(listed.entries, through, key=lambda entry: entry.path)]
        count = max(KNOWN_FILES, len(entries) + KNOWN_FILES_MORE)
        known = await self._known.page(begin, count=count) if through > begin else ()
        if len(known) == count and known[-1].file.key < through:
            # Many files of this page are gone: the next ones are looked at with what is left of it.
            through = known[-1].file.key
            entries = entries[: bisect_right(entries, through, key=lambda entry: entry.path)]
        known = known[: bisect_right(known, through, key=lambda one: one.file.key)]
        found = compare_sweep(cursor, entries, known, through, self._selection, self._until_ms)
        self._tell(len(entries), through)
        self._count_young("sweep", found)
        self._sweep_left -= 1
        self._sweep_is_next = False
        finishing = self._finishing
        if finishing is not None and finishing.overrun.after(found.old, found.young):
            found.after = replace(found.after, sweep_key=None, sweep_end="")
        if found.after.sweep_key is None:
            self._sweep_ended = True
            if finishing is not None:
                finishing.sweep_done = True
        return found

    def _count_young(self, half: Half, found: Compared) -> None:
        if self._finishing is not None:
            self._finishing.count_young(half, found.left)

    def _tell_young(self) -> None:
        """Once in a run that is to end, at its end: which files it leaves nobody would find out otherwise."""
        finishing = self._finishing
        if finishing is not None and finishing.young and not finishing.is_reported:
            finishing.is_reported = True
            self._progress.left_young(finishing.young, finishing.youngest_ms - finishing.until_ms)

    def _tell(self, keys: int, last: str) -> None:
        if self._finishing is not None:
            self._progress.listed(keys, last)

    def _in_sweep(self, cursor: TailAndSweep) -> TailAndSweep:
        """The cursor if it is in the middle of the sweep, otherwise at the beginning of a new one."""
        finishing = self._finishing
        if cursor.sweep_key is not None and (finishing is None or finishing.is_sweeping(cursor)):
            return cursor
        self._sweep.drop()
        if finishing is not None:
            return finishing.sweep_from(cursor)
        return replace(cursor, sweep_key="", sweep_end=self._settled or "")

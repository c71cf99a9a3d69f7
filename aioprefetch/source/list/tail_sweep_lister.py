"""Finds files by two positions in the keys: the tail lists new keys, a rolling sweep lists all known ones again.

*The tail* lists the keys above its frontier. Each of them is new, with any time, so none is looked up. *The
sweep* lists the keys up to the frontier again, some pages in each trigger, and merges them with the known files. It
finds late files with lower names, overwrites and deletions. A file that exists during one whole sweep is found,
with any name, any ``LastModified`` and any clock.

Cost, in requests of one page each: a trigger over an unchanged bucket costs one for the tail and up to ``sweep_pages``
for the sweep, then none until the interval has ended. A trigger that takes ``n`` pages of new keys and leaves others
costs ``n`` requests for them and one for the sweep. For each position up to ``ahead_pages`` are listed before they are
needed, and never more than the trigger will use.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from aioprefetch.errors import Error, InvalidArgument, excerpt
from aioprefetch.operator.operator import Operator
from aioprefetch.source.list.pages import Compared, KeyPages, Selection, compare_sweep, compare_tail
from aioprefetch.source.options import ListOptions
from aioprefetch.source.polling import Finishing, ListingProgress, PollTimer
from aioprefetch.source.values import Cursor, FileIndex, FoundPage, TailAndSweep

# Known files compared with one page: at least this many, as the page has fewer after many deletions.
KNOWN_FILES = 1000
KNOWN_FILES_MORE = 100

Half = Literal["tail", "sweep"]


class TailSweepLister:
    """A ``Feed`` over a store that lists in the order of keys. ``page`` is called by one task at a time.

    Parameters
    ----------
    operator
        Its root is the root of the source: keys are relative to it.
    index
        The index of all files decided on before the last ``begin_trigger``, and possibly later ones.
    clock
        Returns seconds; by default the clock of the running loop.
    """

    def __init__(
        self,
        operator: Operator,
        options: ListOptions,
        index: FileIndex,
        *,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._selection = Selection(options.glob, hidden_files=options.hidden_files)
        self._index = index
        self._timer = PollTimer(options.interval_seconds, clock, lambda: operator.runtime().random.random())
        self._tail = KeyPages(operator, self._selection.prefix, options.ahead_pages)
        self._sweep = KeyPages(operator, self._selection.prefix, options.ahead_pages)
        self._sweep_pages = options.sweep_pages
        self._progress = ListingProgress(operator.info.url, clock)
        self._finishing: Finishing | None = None
        self._sweep_is_next = False
        self.begin_trigger()

    def begin_trigger(self) -> None:
        """Start a new trigger: list the end of the bucket again, and continue the sweep."""
        self._tail_ended = False
        self._sweep_left = self._sweep_pages
        self._sweep_ended = False
        self._has_changes = False
        # The frontier at the start: the index contains later keys of the tail only from the next trigger on.
        self._settled: str | None = None

    def finish_by(self, modified_ms: int | None) -> None:
        """Leave younger files to a later run, and end after one tail and one whole sweep.

        The whole bucket is then listed without a share for each trigger and without an interval, and progress is
        logged. With ``sweep_pages=0`` no later sweep would find files that the tail skips, so it ends before the first
        younger file. A caller that goes back to an earlier cursor calls this again. ``None``: list without an end.
        """
        self._progress.begin()
        self._finishing = None if modified_ms is None else Finishing(modified_ms, sweep_done=not self._sweep_pages)
        self._tail.drop()  # Pages listed earlier lack files that arrived before that time.
        self._sweep.drop()
        self._timer.wake()
        self.begin_trigger()

    async def page(self, cursor: Cursor) -> FoundPage:
        """The next changes, as ``Feed.page``.

        After an error the next call waits for the rest of a pause, which grows with each error, and continues.
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
            self._report_young()
            return FoundPage((), cursor, is_idle=True)
        await self._timer.wait()
        try:
            compared = await (self._tail_page(cursor) if half == "tail" else self._sweep_page(cursor))
        except Error:
            self._timer.failed()
            raise
        self._timer.succeeded()
        self._has_changes = self._has_changes or bool(compared.changes)
        is_idle = self._next_half(compared.after) is None
        if is_idle:
            self._report_young()
            if not self._has_changes:
                self._timer.rest()
        return FoundPage(tuple(compared.changes), compared.after, is_idle)

    async def aclose(self) -> None:
        """End listing ahead. The next call of ``page`` starts it again."""
        await self._tail.aclose()
        await self._sweep.aclose()

    # --- tail or sweep -------------------------------------------------------------------------------------------

    def _next_half(self, cursor: TailAndSweep) -> Half | None:
        """The tail comes first while it has news, except for one page of the sweep in each trigger."""
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
            self._tail.drop()  # It was the last page when it was listed; there may be more now.
        listed = await self._tail.after(cursor.frontier)
        stops = self._finishing is not None and not self._sweep_pages
        compared = compare_tail(cursor, listed.entries, self._selection, self._until_ms, stops=stops)
        self._count_listed(len(listed.entries), compared.after.frontier)
        self._count_young("tail", compared)
        self._sweep_is_next = self._finishing is None and self._sweep_left == self._sweep_pages
        self._tail_ended = self._tail_ended or listed.is_last
        finishing = self._finishing
        if finishing is not None and (listed.is_last or finishing.overrun.after(compared.old, compared.young)):
            finishing.tail_done = True
        if finishing is not None and stops and compared.young:
            finishing.tail_done = True
            self._tail.drop()
        return compared

    async def _sweep_page(self, cursor: TailAndSweep) -> Compared:
        cursor = self._in_sweep(cursor)
        begin = cursor.sweep_key or ""
        pages = self._sweep_left - 1 if self._finishing is None else None
        listed = await self._sweep.after(begin, pages=pages, end=cursor.sweep_end)
        through = cursor.sweep_end if listed.is_last else min(listed.through, cursor.sweep_end)
        entries = listed.entries[: bisect_right(listed.entries, through, key=lambda entry: entry.path)]
        count = max(KNOWN_FILES, len(entries) + KNOWN_FILES_MORE)
        known_files = await self._index.page(begin, count=count) if through > begin else ()
        if len(known_files) == count and known_files[-1].file.key < through:
            # Many files of this range are gone: the rest of the page is compared by the next call.
            through = known_files[-1].file.key
            entries = entries[: bisect_right(entries, through, key=lambda entry: entry.path)]
        known_files = known_files[: bisect_right(known_files, through, key=lambda file: file.file.key)]
        compared = compare_sweep(cursor, entries, known_files, through, self._selection, self._until_ms)
        self._count_listed(len(entries), through)
        self._count_young("sweep", compared)
        self._sweep_left -= 1
        self._sweep_is_next = False
        finishing = self._finishing
        if finishing is not None and finishing.overrun.after(compared.old, compared.young):
            compared.after = replace(compared.after, sweep_key=None, sweep_end="")
        if compared.after.sweep_key is None:
            self._sweep_ended = True
            if finishing is not None:
                finishing.sweep_done = True
        return compared

    def _count_young(self, half: Half, compared: Compared) -> None:
        if self._finishing is not None:
            self._finishing.count_young(half, compared.left)

    def _report_young(self) -> None:
        """At the end of a run that ends, log once which files it leaves to a later one."""
        finishing = self._finishing
        if finishing is not None and finishing.young and not finishing.is_reported:
            finishing.is_reported = True
            self._progress.left_young(finishing.young, finishing.youngest_ms - finishing.until_ms)

    def _count_listed(self, keys: int, last: str) -> None:
        if self._finishing is not None:
            self._progress.listed(keys, last)

    def _in_sweep(self, cursor: TailAndSweep) -> TailAndSweep:
        """The cursor itself in the middle of a sweep, otherwise the cursor at the beginning of a new sweep."""
        finishing = self._finishing
        if cursor.sweep_key is not None and (finishing is None or finishing.is_sweeping(cursor)):
            return cursor
        self._sweep.drop()
        if finishing is not None:
            return finishing.sweep_from(cursor)
        return replace(cursor, sweep_key="", sweep_end=self._settled or "")

"""How a run that is to end knows that it has: one tail to the end of the bucket, one whole sweep. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from aioprefetch.source.cursor import TailAndSweep
from aioprefetch.source.files import SourceFile

# So many pages in a row with nothing but files that came after the run had begun: somebody adds them as fast as they
# are listed. What lies behind them is left to the next run, or this one would never end.
YOUNG_PAGES_MAX = 100


@dataclass(slots=True)
class Overrun:
    """Whether files come as fast as they are listed."""

    young_pages: int = 0

    def after(self, old: int, young: int) -> bool:
        """With one more page, of so many files that had been there and so many that came since."""
        if old:
            self.young_pages = 0
        elif young:
            self.young_pages += 1
        return self.young_pages >= YOUNG_PAGES_MAX


@dataclass(slots=True)
class Finishing:
    """One such run. ``until_ms``: younger files are left to a later one.

    The sweep begins anew, and goes to where the frontier was at first: what the tail lists in this run needs no second
    look. Whoever goes back to an earlier cursor begins the run anew.
    """

    until_ms: int
    tail_done: bool = False
    sweep_done: bool = False
    overrun: Overrun = field(default_factory=Overrun)
    # Of the files that are left: how many, and the youngest time. Each half counts a key once.
    young: int = 0
    youngest_ms: int = 0
    is_told: bool = False
    _counted: dict[str, str] = field(default_factory=dict)
    _sweep_end: str | None = None
    _sweeps: int = 0

    def begin(self, cursor: TailAndSweep) -> None:
        """Take note of the first cursor."""
        if self._sweep_end is None:
            self._sweep_end = cursor.frontier
            # A sweep that was under way is given up; counting it tells its cursors from those of this run.
            self._sweeps = cursor.sweeps + (cursor.sweep_key is not None)
            self.sweep_done = self.sweep_done or not cursor.frontier

    def count_young(self, half: str, files: Iterable[SourceFile]) -> None:
        """Count the files of a page, in the order of their keys, that are left to a later run."""
        last = self._counted.get(half, "")
        for file in files:
            if file.key > last:
                self.young += 1
                self.youngest_ms = max(self.youngest_ms, file.modified_ms or 0)
                self._counted[half] = file.key

    def is_sweeping(self, cursor: TailAndSweep) -> bool:
        """Whether a cursor is in the middle of this run's sweep."""
        return cursor.sweep_key is not None and cursor.sweeps >= self._sweeps

    def sweep_from(self, cursor: TailAndSweep) -> TailAndSweep:
        """The cursor at the beginning of this run's sweep."""
        return replace(cursor, sweep_key="", sweep_end=self._sweep_end or "", sweeps=self._sweeps)

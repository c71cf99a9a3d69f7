"""The known files of a state: the runs, read where they are asked for, and in memory what changed since."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from aioprefetch.source.known import KnownFile
from aioprefetch.source.state.delta import Delta
from aioprefetch.source.state.layout import SNAPSHOT
from aioprefetch.source.state.run_files import RunFiles, RunMissing
from aioprefetch.source.state.runs import RunInfo, files_of
from aioprefetch.source.state.sealed import damaged

T = TypeVar("T")

STEP_FILES = 1000


@dataclass(frozen=True, slots=True)
class KnownView:
    """Runs, in the order of their keys, and the changes that are not in them yet. A compaction makes another one."""

    runs: tuple[RunInfo, ...]
    delta: Delta


class StateKnown:
    """Implements ``Known``. Each look-up sees the records up to its beginning, and perhaps some that came meanwhile.

    Beside what it returns, a look-up holds some row groups. ``refresh`` is for a state that another process writes: it
    loads the newest snapshot, when runs of the one in use have been removed.
    """

    def __init__(self, files: RunFiles) -> None:
        self.view = KnownView((), Delta())
        self.refresh: Callable[[], Awaitable[None]] | None = None
        self._files = files

    async def between(self, after: str, through: str) -> Sequence[KnownFile]:
        """Those whose key is above ``after`` and at most ``through``, in the order of their keys."""
        if after >= through:
            return []

        async def look(view: KnownView) -> list[KnownFile]:
            rows: list[KnownFile] = []
            for run in _overlapping(view.runs, after, through):
                for table in await self._files.between(run, after, through):
                    rows += files_of(table)
            return view.delta.merge(rows, after, through)

        return await self._looked(look)

    async def find(self, keys: Sequence[str]) -> dict[str, KnownFile]:
        """Those of ``keys``, in any order, that are known."""

        async def look(view: KnownView) -> dict[str, KnownFile]:
            entries = view.delta.entries
            wanted = sorted({key for key in keys if not isinstance(entries.get(key), KnownFile)})
            rows: dict[str, KnownFile] = {}
            for run in view.runs:
                inside = wanted[bisect_left(wanted, run.first) : bisect_right(wanted, run.last)]
                if inside:
                    for table in await self._files.find(run, inside):
                        rows |= {row.file.key: row for row in files_of(table)}
            found = {key: view.delta.apply(key, rows.get(key)) for key in keys}
            return {key: known for key, known in found.items() if known is not None}

        return await self._looked(look)

    async def page(self, after: str, *, count: int) -> Sequence[KnownFile]:
        """The next ``count`` known files above a key, in the order of their keys."""
        # Steps of at least so many, so that a page in which many were forgotten does not take a step for each.
        limit = max(count, STEP_FILES)

        async def look(view: KnownView) -> list[KnownFile]:
            found: list[KnownFile] = []
            position: str | None = after
            for run in view.runs[_first_beyond(view.runs, after) :]:
                while position is not None and position < run.last and len(found) < count:
                    rows, through = await self._stretch(run, position, limit)
                    merged, position = _step(view.delta, rows, position, through, limit)
                    found += merged
            while position is not None and len(found) < count:
                merged, position = _step(view.delta, [], position, None, limit)
                found += merged
            return found[:count]

        return await self._looked(look)

    async def _stretch(self, run: RunInfo, position: str, limit: int) -> tuple[list[KnownFile], str]:
        """The next rows of a run above a key, and the key up to which they are all."""
        rows = files_of((await self._files.following(run, position)).slice(0, limit))
        return rows, rows[-1].file.key

    async def _looked(self, look: Callable[[KnownView], Awaitable[T]]) -> T:
        try:
            return await look(self.view)
        except RunMissing as missing:
            if self.refresh is None:
                raise missing_run(missing.run) from missing
        await self.refresh()
        try:
            return await look(self.view)
        except RunMissing as missing:
            raise missing_run(missing.run) from missing


def _step(
    delta: Delta, rows: list[KnownFile], position: str, through: str | None, limit: int
) -> tuple[list[KnownFile], str | None]:
    """The files above a key up to another one, or up to an earlier one where many changed; with where that is."""
    keys = delta.keys(position, through)
    if len(keys) > limit:
        through = keys[limit - 1]
        rows = [row for row in rows if row.file.key <= through]
    return delta.merge(rows, position, through), through


def missing_run(run: RunInfo) -> Exception:
    """The error for a run that the snapshot names and the store has not."""
    return damaged(f"{SNAPSHOT} names a run that is missing, with {run.rows} files", run.name)


def _first_beyond(runs: Sequence[RunInfo], key: str) -> int:
    """The number of the first run that has keys above ``key``."""
    return bisect_right(runs, key, key=lambda run: run.last)


def _overlapping(runs: Sequence[RunInfo], after: str, through: str) -> Sequence[RunInfo]:
    return runs[_first_beyond(runs, after) : bisect_right(runs, through, key=lambda run: run.first)]

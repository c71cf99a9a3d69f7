"""Metadata of a dataset's files, kept from one scan to the next: takes of a few rows would mostly read it again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from aioprefetch.lance.dataset.deletions import THREAD_ROWS_MIN, read_deletions
from aioprefetch.lance.dataset.manifest import DataFile, Fragment
from aioprefetch.lance.footer import LanceFile, open_file
from aioprefetch.lance.row_ranges import RowNumbers
from aioprefetch.runtime.runtime import Runtime

if TYPE_CHECKING:
    from aioprefetch.operator.operator import Operator

K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V")

# Files hold their tail each, mostly 64 KiB; lists of deleted rows are mostly smaller.
_KEPT_MAX = 128


class OpenFiles:
    """The latest files and lists of deleted rows of one dataset. Files never change once they were written.

    Files belong to the runtime that opened them: on another loop they are opened again, and kept for that one then.
    """

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._files: tuple[Runtime | None, OrderedDict[str, LanceFile]] = (None, OrderedDict())
        self._deletions: OrderedDict[int, RowNumbers] = OrderedDict()

    async def file(self, wanted: DataFile) -> LanceFile:
        """A data file, by one request unless it is kept."""
        runtime = self._operator.runtime()
        owner, files = self._files
        if owner is not runtime:
            self._files = runtime, files = runtime, OrderedDict()
        if (found := files.get(wanted.path)) is None:
            found = await open_file(self._operator, wanted.path, size=wanted.size)
        _keep(files, wanted.path, found)
        return found

    async def deletions(self, fragment: Fragment) -> RowNumbers:
        """The deleted rows of a fragment, ascending; by one request unless there are none or they are kept."""
        if (found := self._deletions.get(fragment.id)) is None:
            found = await read_deletions(self._operator, fragment)
        if fragment.deletion_file is not None:
            _keep(self._deletions, fragment.id, found)
        return found

    async def run(self, work: Callable[[], T], *, rows: int) -> T:
        """The result of work on so many deleted rows, on another thread where these are many."""
        return work() if rows < THREAD_ROWS_MIN else await self._operator.runtime().run_blocking(work)


def _keep(kept: OrderedDict[K, V], key: K, value: V) -> None:
    """Keep a value as the latest one, and forget the oldest beyond the maximum."""
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > _KEPT_MAX:
        kept.popitem(last=False)

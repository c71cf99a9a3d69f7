"""A file index in a dictionary, and a consumer that takes the changes of a feed as a planner does."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from aioprefetch.source.list.diff_lister import DiffLister
from aioprefetch.source.options import Overwrites
from aioprefetch.source.values import Change, Cursor, Diff, Feed, KnownFile, TailAndSweep

T = TypeVar("T")


class DictIndex:
    """A ``FileIndex`` without any storage. It counts its look-ups."""

    def __init__(self) -> None:
        self.files: dict[str, KnownFile] = {}
        self.calls: Counter[str] = Counter()
        self.rows_max = 0
        self._sorted: list[str] = []
        self._sorted_of: dict[str, KnownFile] | None = None

    def keys(self) -> list[str]:
        """In order."""
        if self._sorted_of is not self.files or len(self._sorted) != len(self.files):
            self._sorted, self._sorted_of = sorted(self.files), self.files
        return self._sorted

    async def find(self, keys: Sequence[str]) -> dict[str, KnownFile]:
        """Implement ``FileIndex``."""
        self._counted("find", keys)
        return {key: self.files[key] for key in keys if key in self.files}

    async def page(self, after: str, *, count: int) -> Sequence[KnownFile]:
        """Implement ``FileIndex``."""
        keys = self.keys()
        above = (self.files[key] for key in islice(keys, bisect_right(keys, after), None))
        return self._counted("page", list(islice(above, count)))

    def _counted(self, name: str, rows: Sequence[T]) -> Sequence[T]:
        self.calls[name] += 1
        self.rows_max = max(self.rows_max, len(rows))
        return rows

    def apply(self, change: Change, seq: int = 0) -> None:
        """Remember what was decided on."""
        gone_ms = 1 if change.kind == "gone" else None
        self.files[change.file.key] = KnownFile(change.file, seq, gone_ms)


def first_cursor(feed: Feed) -> Cursor:
    """The cursor of a new source with this lister."""
    return Diff() if isinstance(feed, DiffLister) else TailAndSweep()


@dataclass(eq=False)
class Consumer:
    """Takes changes trigger by trigger; what it took is known before the next one. ``delivered`` is by key and ETag."""

    feed: Feed
    known: DictIndex = field(default_factory=DictIndex)
    overwrites: Overwrites = "reread"
    cursor: Cursor | None = None
    delivered: Counter[tuple[str, str | None]] = field(default_factory=Counter)
    reported: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    is_idle: bool = False
    triggers: int = 0

    async def trigger(self, room: int = 1 << 60, pages_max: int = 1 << 60) -> list[Change]:
        """One trigger: at most ``room`` changes, of at most ``pages_max`` pages."""
        self.feed.begin_trigger()
        self.triggers += 1
        taken: list[Change] = []
        try:
            self.is_idle = False
            for _ in range(pages_max):
                await self._page(taken, room)
                if self.is_idle or len(taken) >= room:
                    break
        finally:
            for change in taken:
                self._decide(change)
        return taken

    async def _page(self, taken: list[Change], room: int) -> None:
        page = await self.feed.page(first_cursor(self.feed) if self.cursor is None else self.cursor)
        self.is_idle = page.is_idle
        for change, after in page.changes:
            if len(taken) >= room:
                self.is_idle = False
                return
            taken.append(change)
            self.cursor = after
        self.cursor = page.after

    def _decide(self, change: Change) -> None:
        self.reported[change.kind] += 1
        self.lost[change.file.key] += change.kind == "gone"
        self.known.apply(change, self.triggers)
        if change.kind == "new" or (change.kind == "overwritten" and self.overwrites == "reread"):
            self.delivered[change.file.key, change.file.etag] += 1

    @property
    def passes(self) -> int:
        """How many times it has been through everything."""
        match self.cursor:
            case TailAndSweep():
                return self.cursor.sweeps
            case Diff():
                return self.cursor.listings
            case _:
                return 0

    async def through(self, passes: int = 2, *, triggers_max: int = 1000, room: int = 1 << 60) -> list[Change]:
        """Triggers until one is empty and ``passes`` passes have ended: of two, one has started here."""
        everything: list[Change] = []
        end = self.passes + passes
        for _ in range(triggers_max):
            taken = await self.trigger(room)
            everything += taken
            nothing = isinstance(self.cursor, TailAndSweep) and not self.cursor.frontier
            if not taken and self.is_idle and (nothing or self.passes >= end):
                return everything
        raise AssertionError(f"there is news after {triggers_max} triggers")

    async def until_idle(self, room: int = 1 << 60) -> list[Change]:
        """Triggers until one has nothing."""
        return await self.through(0, room=room)

"""Listings and entries that a file system keeps for a while: they answer questions, and decide nothing.

A verb that writes, creates, refuses or deletes runs in ``asking``: it believes only what was listed since it began.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic
from typing import Any, ParamSpec, TypeVar

from aioprefetch.accessor.changes import latest_change
from aioprefetch.ranges import at_least
from aioprefetch.runtime.forks import free_in_child

P = ParamSpec("P")
T = TypeVar("T")
Info = dict[str, Any]

# The options of what is kept, beside ``listings_expiry_time``.
CACHING = ("use_listings_cache", "max_paths", "listings_max_entries")
# The entries of all listings that are kept, by default: some 600 bytes each.
ENTRIES_MAX = 200_000
# How long the entry of an object that was asked for alone is believed, and how many such entries are kept.
ALONE_SECONDS = 5.0
ALONE_MAX = 1000

_since: ContextVar[float] = ContextVar("aioprefetch_fsspec_since", default=float("-inf"))


@contextmanager
def asking() -> Iterator[None]:
    """A verb that decides by what is there: nothing that was kept before the block is believed in it."""
    token = _since.set(max(_since.get(), monotonic()))
    try:
        yield
    finally:
        _since.reset(token)


def deciding(verb: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """A verb that is ``asking``."""

    @functools.wraps(verb)
    async def call(*arguments: P.args, **options: P.kwargs) -> T:
        with asking():
            return await verb(*arguments, **options)

    return call


class Listing(list[Info]):
    """The entries of one directory, found by their names, of which an object and a directory may have the same."""

    def __init__(self, entries: Iterable[Info]) -> None:
        super().__init__(entries)
        self._files: dict[str, Info] = {info["name"]: info for info in self if info["type"] == "file"}
        self._directories: dict[str, Info] = {info["name"]: info for info in self if info["type"] == "directory"}

    def find(self, name: str) -> Info | None:
        """The entry of that name: of the object, if there is one."""
        return self._files.get(name) or self._directories.get(name)

    def has_directory(self, name: str) -> bool:
        """Whether there is a directory of that name."""
        return name in self._directories


def parents_of(name: str, root: str) -> Iterable[str]:
    """The directories above ``name``, up to and with ``root``, the nearest first."""
    while len(name) > len(root):
        above, slash, _ = name.rpartition("/")
        if not slash or len(above) < len(root):
            return
        yield above
        name = above


class Kept(MutableMapping[str, Listing]):
    """Listings by their directories, and the entries of objects that were asked for alone. From any thread.

    A listing goes when it has expired, when a change at, above or below its directory is ``forget``-ted, and the oldest
    when there are more than ``max_paths`` of them, or ``listings_max_entries`` entries in all. Without an expiry time
    they stay. The entry of an object goes with any change that this process makes, and after ``ALONE_SECONDS``.
    """

    def __init__(
        self,
        listings_expiry_time: float | None,
        *,
        use_listings_cache: bool | None,
        max_paths: int | None,
        listings_max_entries: int | None,
    ) -> None:
        self.listings_expiry_time = listings_expiry_time
        self.use_listings_cache = use_listings_cache is None or use_listings_cache
        most = ENTRIES_MAX if listings_max_entries is None else listings_max_entries
        self.max_entries = at_least(1, most, "listings_max_entries", operation="configure", path="")
        self.max_paths = max_paths or self.max_entries
        self._listings: OrderedDict[str, tuple[float, Listing]] = OrderedDict()  # The oldest first.
        self._below: dict[str, set[str]] = {}  # The directories in one at or below which there are listings.
        self._alone: OrderedDict[str, tuple[float, object, Info]] = OrderedDict()
        self._entries = 0
        self._changes = 0
        self._lock = free_in_child(threading.RLock())

    # --- as a mapping, which is the ``dircache`` of a file system -----------------------------------------------------

    def __getitem__(self, name: str) -> Listing:
        with self._lock:
            self._make_room()
            began, listing = self._listings[name]
            if began < _since.get():
                raise KeyError(name)
            return listing

    def __setitem__(self, name: str, listing: Listing) -> None:
        self.keep(name, listing, self.begin())

    def __delitem__(self, name: str) -> None:
        with self._lock:
            if not self._drop(name):
                raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        with self._lock:
            self._make_room()
            return iter(tuple(self._listings))

    def __len__(self) -> int:
        with self._lock:
            self._make_room()
            return len(self._listings)

    def clear(self) -> None:
        """Believe nothing."""
        with self._lock:
            self._changes += 1
            self._entries = 0
            for each in (self._listings, self._below, self._alone):
                each.clear()

    # --- listings -----------------------------------------------------------------------------------------------------

    def begin(self) -> tuple[int, float]:
        """A listing begins now: for ``keep``, when it has ended."""
        return self._changes, monotonic()

    def keep(self, name: str, listing: Listing, begun: tuple[int, float]) -> None:
        """Keep a listing, unless something was forgotten since it began. It replaces the entries of objects alone."""
        with self._lock:
            if not self.use_listings_cache or begun[0] != self._changes:
                return
            self._alone.clear()
            self._drop(name)
            if len(listing) >= self.max_entries:
                return
            self._listings[name] = (begun[1], listing)
            self._entries += len(listing) + 1
            for above in parents_of(name, ""):
                below = self._below.setdefault(above, set())
                if name in below:
                    break
                below.add(name)
                name = above
            self._make_room()

    def forget(self, path: str) -> None:
        """Believe nothing of which ``path``, or what is below it, is a part; nothing at all for the root."""
        if not path:
            self.clear()
            return
        with self._lock:
            self._changes += 1
            self._alone.clear()
            left = [path]
            while left:
                name = left.pop()
                left += self._below.pop(name, ())
                self._take(name)
            self._unlink(path)
            for above in (*parents_of(path, ""), "/"):
                self._drop(above)

    def _make_room(self) -> None:
        oldest = float("-inf") if self.listings_expiry_time is None else monotonic() - self.listings_expiry_time
        while self._listings:
            name, (began, _) = next(iter(self._listings.items()))
            is_too_many = self._entries > self.max_entries or len(self._listings) > self.max_paths
            if began > oldest and not is_too_many:
                return
            self._drop(name)

    def _drop(self, name: str) -> bool:
        is_kept = self._take(name)
        if is_kept:
            self._unlink(name)
        return is_kept

    def _take(self, name: str) -> bool:
        _, listing = self._listings.pop(name, (0, None))
        if listing is not None:
            self._entries -= len(listing) + 1
        return listing is not None

    def _unlink(self, name: str) -> None:
        """Leave the directories above, if there is no listing at or below ``name`` any more."""
        for above in parents_of(name, ""):
            if name in self._listings or self._below.get(name):
                return
            self._below.pop(name, None)
            self._below.get(above, set()).discard(name)
            name = above
        if not self._below.get(name, True):
            del self._below[name]

    # --- objects alone ------------------------------------------------------------------------------------------------

    def keep_alone(self, path: str, info: Info, change: object) -> None:
        """Keep the entry of an object, which was asked for when ``change`` was the latest."""
        with self._lock:
            if self.use_listings_cache:
                self._alone.pop(path, None)
                self._alone[path] = (monotonic() + ALONE_SECONDS, change, info)
                while len(self._alone) > ALONE_MAX:
                    self._alone.popitem(last=False)

    def forget_alone(self) -> None:
        """Believe no entry that was asked for alone: it is to be compared with another, as caches of files do."""
        self._alone.clear()

    def alone(self, path: str) -> Info | None:
        """The entry of an object that was asked for within the last seconds."""
        until, change, info = self._alone.get(path, (0.0, None, None))
        if change is not latest_change() or until - ALONE_SECONDS < _since.get() or monotonic() >= until:
            return None
        return info

"""Listings and entries that a file system keeps for a while: they answer questions, and decide nothing.

A verb that writes, creates, refuses or deletes runs in ``asking``: it believes only what was listed since it began.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic
from typing import Any

from aioprefetch.accessor.counted_requests import latest_change
from aioprefetch.directories import parents_of
from aioprefetch.ranges import at_least
from aioprefetch.runtime.forks import free_in_child

Info = dict[str, Any]

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


class Listing(list[Info]):
    """The entries of one directory, found by their names; an object and a directory may share one."""

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


class Kept(Mapping[str, Listing]):
    """Listings by their directories, and ``alone`` the entries of objects that were asked for alone. From any thread.

    A listing goes after ``seconds`` (``None``: never), and the oldest where there are more than ``max_paths``, or
    ``max_entries`` entries in all. It is believed unless it began before a change at, above or below its directory. The
    entry of an object is believed for ``ALONE_SECONDS``, and until this process changes anything.
    """

    def __init__(self, seconds: float | None, options: dict[str, Any]) -> None:
        is_on, most = options.pop("use_listings_cache", None), options.pop("listings_max_entries", ENTRIES_MAX)
        self.seconds = float("inf") if seconds is None else seconds
        self.use_listings_cache = is_on is None or bool(is_on)
        self.max_entries = at_least(1, most, "listings_max_entries", operation="configure", path="")
        self.max_paths = options.pop("max_paths", None) or self.max_entries
        self.alone: dict[str, tuple[float, object, Info]] = {}
        self._listings: OrderedDict[str, tuple[float, Listing]] = OrderedDict()  # The oldest first.
        self._entries = 0
        self._changed: OrderedDict[str, float] = (
            OrderedDict()
        )  # When something at or below a name was, the last one last.
        self._changed_at = float("-inf")
        self._lock = free_in_child(threading.Lock())

    def __getitem__(self, name: str) -> Listing:
        with self._lock:
            self._make_room()
            began, listing = self._listings[name]
            if began <= max(_since.get(), *(self._changed.get(each, 0.0) for each in (name, *parents_of(name, "")))):
                raise KeyError(name)
            return listing

    def __iter__(self) -> Iterator[str]:
        with self._lock:
            self._make_room()
            return iter(tuple(self._listings))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def keep(self, name: str, listing: Listing, began: float) -> None:
        """Keep a listing, unless something was changed since it ``began``. Entries of objects alone are older."""
        with self._lock:
            self.alone.clear()
            if self.use_listings_cache and began > self._changed_at:
                self._drop(name)
                self._listings[name] = began, listing
                self._entries += len(listing) + 1
                self._make_room()

    def forget(self, path: str, *above: str) -> None:
        """Drop all that contains ``path``, or what is below it; below ``""`` is everything."""
        with self._lock:
            self.alone.clear()
            self._changed_at = self._changed[path] = monotonic()
            self._changed.move_to_end(path)
            for name in (path, *parents_of(path, ""), *above):
                self._drop(name)
            self._make_room()

    def clear(self) -> None:
        """Believe nothing."""
        self.forget("")

    def _drop(self, name: str) -> None:
        if name in self._listings:
            self._entries -= len(self._listings.pop(name)[1]) + 1

    def _make_room(self) -> None:
        """Drop what has expired or is too much, and the changes before the oldest listing that is left."""
        oldest = max(monotonic() - self.seconds, self._changed.get("", 0.0))
        while self._listings:
            name, (began, _) = next(iter(self._listings.items()))
            is_room = self._entries + len(self._changed) <= self.max_entries and len(self._listings) <= self.max_paths
            if began > oldest and is_room:
                break
            self._drop(name)
        while self._changed and (not self._listings or next(iter(self._changed.values())) < began):
            self._changed.popitem(last=False)

    def keep_alone(self, path: str, info: Info, change: object) -> None:
        """Keep the entry of an object, which was asked for when ``change`` was the latest one of this process."""
        if self.use_listings_cache:
            if len(self.alone) >= ALONE_MAX:
                self.alone.clear()
            self.alone[path] = monotonic(), change, info

    def find_alone(self, path: str) -> Info | None:
        """The entry of an object that was asked for alone."""
        kept_at, change, info = self.alone.get(path, (0.0, None, None))
        is_old = change is not latest_change() or kept_at <= max(_since.get(), monotonic() - ALONE_SECONDS)
        return None if is_old else info

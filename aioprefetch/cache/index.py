"""The index of a cache: its entries by their use, which of them have to go, and when to look for others. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from itertools import takewhile
from typing import Generic, TypeVar

T = TypeVar("T")

# A home is listed again after one part in this many of the capacity was written: other processes may have written as
# much.
LOOK_WRITTEN_SHARE = 16
# A listing that takes longer than this is not repeated more often than this share of the time.
LOOK_SECONDS_FREE, LOOK_TIME_SHARE = 0.02, 0.05


class LruIndex(Generic[T]):
    """Names with their sizes and values, the least recently read first. ``in`` may be used from any thread.

    ``used_at`` is wall-clock time in seconds. An entry takes its place by the time at which it was last read, not by
    the time at which it was written or listed.
    """

    def __init__(self) -> None:
        self.total_bytes = 0
        self._entries: OrderedDict[str, tuple[float, int, T]] = OrderedDict()

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, name: str) -> T | None:
        """The value of an entry. Not a use of it."""
        entry = self._entries.get(name)
        return None if entry is None else entry[2]

    def size(self, name: str) -> int:
        """Bytes of an entry, 0 for an unknown one."""
        entry = self._entries.get(name)
        return 0 if entry is None else entry[1]

    def items(self) -> list[tuple[str, T]]:
        """Names and values, the least recently read first."""
        return [(name, value) for name, (_, _, value) in self._entries.items()]

    def add(self, name: str, size_bytes: int, value: T, *, used_at: float) -> T | None:
        """Add an entry that was last read at ``used_at``. Returns the value that it replaces."""
        replaced = self.discard(name)
        entries = self._entries
        is_first = bool(entries) and used_at < next(iter(entries.values()))[0]
        later: list[str] = []
        if not is_first:
            later = [other for other, _ in takewhile(lambda item: item[1][0] > used_at, reversed(entries.items()))]
        entries[name] = (used_at, size_bytes, value)
        if is_first:
            entries.move_to_end(name, last=False)
        for other in reversed(later):
            entries.move_to_end(other)
        self.total_bytes += size_bytes
        return replaced

    def use(self, name: str, used_at: float, value: T | None = None) -> None:
        """An entry was read, and has this value now if it is not ``None``. An unknown name is ignored."""
        entry = self._entries.get(name)
        if entry is not None:
            last = entry if len(self._entries) == 1 else next(reversed(self._entries.values()))
            self._entries[name] = (max(used_at, last[0]), entry[1], entry[2] if value is None else value)
            self._entries.move_to_end(name)

    def discard(self, name: str) -> T | None:
        """Remove an entry and return its value. An unknown name is ignored."""
        entry = self._entries.pop(name, None)
        if entry is None:
            return None
        self.total_bytes -= entry[1]
        return entry[2]

    def victims(self, need_bytes: int, *, used_before: float = float("inf")) -> list[str]:
        """The entries to remove so that ``need_bytes`` are freed, or all there are, of those read before a time."""
        names: list[str] = []
        for name, (used_at, size_bytes, _) in self._entries.items():
            if need_bytes <= 0 or used_at >= used_before:
                break
            names.append(name)
            need_bytes -= size_bytes
        return names

    def differing(self, names: Iterable[str]) -> tuple[list[str], list[str]]:
        """The ``names`` missing from the index, and the names in the index missing from ``names``."""
        listed = set(names)
        new = [name for name in listed if name not in self._entries]
        return new, [name for name in self._entries if name not in listed]


class Looks:
    """When to list a home of entries again. Times come from the caller's clock, in seconds."""

    def __init__(self, capacity_bytes: int) -> None:
        self._bytes_max = capacity_bytes // LOOK_WRITTEN_SHARE
        self._written_bytes = 0
        self._again_at = float("-inf")

    def wrote(self, size_bytes: int) -> None:
        """An entry was written."""
        self._written_bytes += size_bytes

    @property
    def has_written_much(self) -> bool:
        """Whether a sixteenth of the capacity was written since the last listing: others may have filled the cache."""
        return self._written_bytes >= self._bytes_max

    def is_cheap(self, now: float) -> bool:
        """Whether a listing now keeps to its share of the time."""
        return now >= self._again_at

    def began(self) -> None:
        """A listing begins."""
        self._written_bytes = 0

    def ended(self, began_at: float, now: float) -> None:
        """It has ended."""
        took = now - began_at
        self._again_at = now + (took / LOOK_TIME_SHARE if took > LOOK_SECONDS_FREE else 0.0)

    def forget(self) -> None:
        """The home is another one: nothing is known of it."""
        self._again_at = float("-inf")

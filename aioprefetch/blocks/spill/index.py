"""The entries of a cache in the order in which they were last read, and their bytes. Pure, no I/O."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from itertools import takewhile
from typing import Generic, TypeVar

T = TypeVar("T")


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
        if not entries or used_at < next(iter(entries.values()))[0]:
            later: list[str] = []
            entries[name] = (used_at, size_bytes, value)
            entries.move_to_end(name, last=False)
        else:
            later = [other for other, _ in takewhile(lambda item: item[1][0] > used_at, reversed(entries.items()))]
            entries[name] = (used_at, size_bytes, value)
            for other in reversed(later):
                entries.move_to_end(other)
        self.total_bytes += size_bytes
        return replaced

    def use(self, name: str, used_at: float) -> None:
        """An entry was read. An unknown name is ignored."""
        entry = self._entries.get(name)
        if entry is not None:
            last = entry if len(self._entries) == 1 else next(reversed(self._entries.values()))
            self._entries[name] = (max(used_at, last[0]), entry[1], entry[2])
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
        """Those of ``names`` that are not in the index, and those in the index that are not among ``names``."""
        listed = set(names)
        return (
            [name for name in listed if name not in self._entries],
            [name for name in self._entries if name not in listed],
        )

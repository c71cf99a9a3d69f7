"""Which entries are in the cache, in the order of their last use, bounded in bytes. Pure, no I/O."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from aioprefetch.layers.lru_cache.entry import EntryHeader

NAMES_MAX = 10_000


@dataclass(slots=True, kw_only=True, eq=False)
class IndexEntry:
    """One entry: its name and size in the cache, and what this process has learnt of it.

    ``header`` is ``None`` until it was read and verified; the data begins at ``data_offset`` of the file.
    ``store_etag`` and ``store_modified`` are what the cache's own store said of the file when it was first read.
    ``is_verified``: the checksum of all its data was right; that holds while the store says the same of the file.
    ``validated_at`` is the time of the runtime's clock at which the object's store last said that this is the current
    version.
    """

    slot: str
    name: str
    size_bytes: int
    header: EntryHeader | None = None
    data_offset: int = 0
    store_etag: str | None = None
    store_modified: datetime | None = None
    is_verified: bool = False
    validated_at: float | None = None


class LruIndex:
    """At most one entry for each slot, never more than ``capacity_bytes`` together with what is being written.

    An entry is written in three steps: ``make_room`` reserves its bytes and tells what has to go, then the file is
    written, then ``put`` makes it known (or ``give_back`` ends the reservation).
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.reserved_bytes = 0
        self._entries: OrderedDict[str, IndexEntry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, slot: str) -> IndexEntry | None:
        """The entry of a slot, which counts as a use of it."""
        entry = self._entries.get(slot)
        if entry is not None:
            self._entries.move_to_end(slot)
        return entry

    def fits(self, size_bytes: int) -> bool:
        """Whether an entry of this size may be stored at all, beside those that are being written."""
        return size_bytes + self.reserved_bytes <= self.capacity_bytes

    def make_room(self, size_bytes: int) -> list[IndexEntry]:
        """Reserve bytes that ``fits`` allows; returns the least recently used entries, which are out of the index."""
        self.reserved_bytes += size_bytes
        return self._shrink()

    def give_back(self, size_bytes: int) -> None:
        """End a reservation: nothing was written."""
        self.reserved_bytes -= size_bytes

    def put(self, entry: IndexEntry) -> IndexEntry | None:
        """Make a written entry known, in place of its reservation. Returns the one that it replaces."""
        self.give_back(entry.size_bytes)
        replaced = self._entries.pop(entry.slot, None)
        if replaced is not None:
            self.used_bytes -= replaced.size_bytes
        self._entries[entry.slot] = entry
        self.used_bytes += entry.size_bytes
        return replaced

    def remove(self, entry: IndexEntry) -> bool:
        """Forget this very entry; ``False`` when it was not known any more."""
        if self._entries.get(entry.slot) is not entry:
            return False
        del self._entries[entry.slot]
        self.used_bytes -= entry.size_bytes
        return True

    def pop(self, slot: str) -> IndexEntry | None:
        """Forget and return the entry of a slot."""
        entry = self._entries.pop(slot, None)
        if entry is not None:
            self.used_bytes -= entry.size_bytes
        return entry

    def rebuild(self, entries: Iterable[IndexEntry]) -> list[IndexEntry]:
        """Take up entries found in the cache, least recently used first; returns those for which there is no place.

        Of two in one slot the later one stays.
        """
        superfluous: list[IndexEntry] = []
        for entry in entries:
            older = self.pop(entry.slot)
            if older is not None:
                superfluous.append(older)
            self._entries[entry.slot] = entry
            self.used_bytes += entry.size_bytes
        return superfluous + self._shrink()

    def _shrink(self) -> list[IndexEntry]:
        evicted: list[IndexEntry] = []
        while self._entries and self.used_bytes + self.reserved_bytes > self.capacity_bytes:
            _, entry = self._entries.popitem(last=False)
            self.used_bytes -= entry.size_bytes
            evicted.append(entry)
        return evicted


class PassedBy:
    """The objects that are not cached (too large, or without an ETag), so that the next read does not try again.

    Remembers ``names_max`` slots with size and ETag, the least recently used ones are forgotten.
    """

    def __init__(self, names_max: int = NAMES_MAX) -> None:
        self._names_max = names_max
        self._known: OrderedDict[str, tuple[int | None, str | None]] = OrderedDict()

    def __contains__(self, slot: str) -> bool:
        if slot not in self._known:
            return False
        self._known.move_to_end(slot)
        return True

    def remember(self, slot: str, total: int | None, etag: str | None) -> None:
        """The object of this slot has this size and ETag, and is not cached."""
        self._known[slot] = (total, etag)
        self._known.move_to_end(slot)
        if len(self._known) > self._names_max:
            self._known.popitem(last=False)

    def check(self, slot: str, total: int | None, etag: str | None) -> None:
        """Forget the slot when a response shows another object than the one that was remembered."""
        if self._known.get(slot, (total, etag)) != (total, etag):
            self.forget(slot)

    def forget(self, slot: str) -> None:
        """The object may have changed."""
        self._known.pop(slot, None)

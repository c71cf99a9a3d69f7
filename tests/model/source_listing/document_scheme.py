"""The listing scheme of the document, to show what it loses: a page number, a timestamp and a Bloom filter.

In each trigger the first ``p`` pages are listed and objects not newer than ``ts`` are passed over there; on request
of the planner ``p`` grows by one, and all of that page is dispatched. What was dispatched before is left out, by a
Bloom filter, or by an exact set to tell its losses from the others.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from zlib import crc32

from tests.stores.simulated_bucket import SimulatedBucket


@dataclass
class SmallFilter:
    """A Bloom filter of fixed size."""

    size: int
    hashes: int = 3
    bits: set[int] = field(default_factory=set)

    def takes(self, key: str) -> bool:
        """Whether the key is certainly new; it is not any more afterwards."""
        wanted = {crc32(f"{number}{key}".encode()) % self.size for number in range(self.hashes)}
        is_new = not wanted <= self.bits
        self.bits |= wanted
        return is_new


@dataclass
class ExactSet:
    """The document's filter without errors."""

    keys: set[str] = field(default_factory=set)

    def takes(self, key: str) -> bool:
        """Whether the key is new; it is not any more afterwards."""
        is_new = key not in self.keys
        self.keys.add(key)
        return is_new


@dataclass
class DocumentScheme:
    """State table 1 (``pages``, ``since_ms``), state table 2 (``seen``). ``clock_ms`` gives ``ts``."""

    bucket: SimulatedBucket
    clock_ms: Callable[[], int]
    seen: SmallFilter | ExactSet
    page_entries: int = 20
    pages: int = 0
    since_ms: int = -(10**15)

    def trigger(self, *, grow: bool = True) -> list[str]:
        """The names that go downstream."""
        begun_ms = self.clock_ms()
        keys = self.bucket.keys()
        old = self.pages * self.page_entries
        found = [key for key in keys[:old] if (self.bucket.objects[key].modified_ms or 0) > self.since_ms]
        if grow and len(keys) > old:
            found += keys[old : old + self.page_entries]
            self.pages += 1
        self.since_ms = begun_ms
        return [key for key in found if self.seen.takes(key)]

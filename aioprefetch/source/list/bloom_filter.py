"""A Bloom filter that grows: "not in it" is certain, "in it" has to be confirmed by an exact look-up."""

from __future__ import annotations

import math
from collections.abc import Iterable

from aioprefetch.errors import ConfigInvalid

# Each further filter holds twice as many keys and is half as often wrong, so that all together keep to the rate.
GROWTH = 2
TIGHTENING = 0.5
_LOW = (1 << 32) - 1


class BloomFilter:
    """Keys of this process. Saying that a key is in it is wrong for at most ``false_positive_rate`` of the others.

    ``expected`` keys fit into the first filter, of 1.2 bytes each at 1 %; further ones are added as they are needed.
    It lives as long as the process: hashes of text are others in the next one. Raises ``ConfigInvalid``.
    """

    def __init__(self, expected: int = 10_000, false_positive_rate: float = 0.01) -> None:
        if not 0 < false_positive_rate < 1 or expected < 1:
            raise ConfigInvalid(
                f"a Bloom filter needs expected >= 1 and a rate between 0 and 1, not {expected!r} and"
                f" {false_positive_rate!r}",
                operation="list",
            )
        self._rate = false_positive_rate
        self._parts = [_Part(expected, false_positive_rate * (1 - TIGHTENING))]
        self._count = 0

    def __len__(self) -> int:
        """How many keys were added that were not taken for old ones."""
        return self._count

    @property
    def bytes(self) -> int:
        """The memory of all filters."""
        return sum(len(part.bits) for part in self._parts)

    def __contains__(self, key: str) -> bool:
        """``False``: it was certainly never added. ``True``: perhaps it was."""
        code = hash(key)
        return any(part.has(code) for part in self._parts)

    def add(self, key: str) -> None:
        """From now on the key is in it."""
        code = hash(key)
        if any(part.has(code) for part in self._parts):
            return
        part = self._parts[-1]
        if part.count >= part.capacity:
            number = len(self._parts)
            rate = self._rate * (1 - TIGHTENING) * TIGHTENING**number
            part = _Part(part.capacity * GROWTH, rate)
            self._parts.append(part)
        part.add(code)
        self._count += 1

    def update(self, keys: Iterable[str]) -> None:
        """Add several."""
        for key in keys:
            self.add(key)


class _Part:
    """One filter of fixed size. The bits of a key follow from the two halves of its hash (Kirsch, Mitzenmacher)."""

    __slots__ = ("bits", "capacity", "count", "probes", "size")

    def __init__(self, capacity: int, rate: float) -> None:
        self.capacity = capacity
        self.count = 0
        self.size = max(8, math.ceil(-capacity * math.log(rate) / math.log(2) ** 2))
        self.probes = max(1, round(self.size / capacity * math.log(2)))
        self.bits = bytearray((self.size + 7) // 8)

    def has(self, code: int) -> bool:
        position, step, size, bits = code & _LOW, (code >> 32 & _LOW) | 1, self.size, self.bits
        for _ in range(self.probes):
            bit = position % size
            if not bits[bit >> 3] >> (bit & 7) & 1:
                return False
            position += step
        return True

    def add(self, code: int) -> None:
        position, step, size, bits = code & _LOW, (code >> 32 & _LOW) | 1, self.size, self.bits
        for _ in range(self.probes):
            bit = position % size
            bits[bit >> 3] |= 1 << (bit & 7)
            position += step
        self.count += 1

"""Sets of keys in bounded memory: a Bloom filter that grows, and sorted runs of keys in temporary files."""

from __future__ import annotations

import heapq
import math
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO

from aioprefetch.errors import ConfigInvalid

# Each further filter holds twice as many keys at half the error rate, so that all together keep the rate.
GROWTH = 2
TIGHTENING = 0.5
_LOW = (1 << 32) - 1


class BloomFilter:
    """A set of keys that answers "absent" with certainty, and "present" wrongly for ``false_positive_rate`` of others.

    The first filter has room for ``expected`` keys, of 1.2 bytes each at 1 %; further filters are added on demand. It
    is valid in this process only: another process hashes text differently. Raises ``ConfigInvalid``.
    """

    def __init__(self, expected: int = 10_000, false_positive_rate: float = 0.01) -> None:
        if not 0 < false_positive_rate < 1 or expected < 1:
            raise ConfigInvalid(
                f"a Bloom filter needs expected >= 1 and a rate between 0 and 1, not {expected!r} and"
                f" {false_positive_rate!r}",
                operation="list",
            )
        self._rate = false_positive_rate
        self._parts = [_FixedFilter(expected, false_positive_rate * (1 - TIGHTENING))]
        self._count = 0

    def __len__(self) -> int:
        """The number of added keys, without those that looked present before."""
        return self._count

    @property
    def bytes(self) -> int:
        """The memory of all filters, in bytes."""
        return sum(len(part.bits) for part in self._parts)

    def __contains__(self, key: str) -> bool:
        """``False``: certainly never added. ``True``: probably added, to be confirmed by an exact lookup."""
        code = hash(key)
        return any(part.has(code) for part in self._parts)

    def add(self, key: str) -> None:
        """Add a key."""
        code = hash(key)
        if any(part.has(code) for part in self._parts):
            return
        part = self._parts[-1]
        if part.count >= part.capacity:
            number = len(self._parts)
            rate = self._rate * (1 - TIGHTENING) * TIGHTENING**number
            part = _FixedFilter(part.capacity * GROWTH, rate)
            self._parts.append(part)
        part.add(code)
        self._count += 1

    def update(self, keys: Iterable[str]) -> None:
        """Add several keys."""
        for key in keys:
            self.add(key)


class _FixedFilter:
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


# The keys sorted in memory: about 20 MB. A run is one open file, so ten million keys need fifty.
RUN_KEYS = 200_000


class KeySpill:
    """Keys added in any order, then compared in order. Sorted runs lie in files without a name, gone with the process.

    Call ``add``, then ``missing``, then ``close``; all of them block. A small set never touches the disk.
    """

    def __init__(self, run_keys: int = RUN_KEYS) -> None:
        self._run_keys = run_keys
        self._keys: list[str] = []
        self._runs: list[TextIO] = []
        self._merged: Iterator[str] | None = None
        self._next: str | None = None

    @property
    def is_full(self) -> bool:
        """Whether the next ``add`` writes a run."""
        return len(self._keys) >= self._run_keys

    def add(self, keys: Iterable[str]) -> None:
        """Add keys."""
        if self.is_full:
            self._write()
        self._keys += keys

    def missing(self, keys: Sequence[str]) -> set[str]:
        """The keys that were not added. ``keys`` must be sorted, and above the keys of earlier calls."""
        if self._merged is None:
            self._keys.sort()
            self._merged = heapq.merge(self._keys, *(_read(run) for run in self._runs))
            self._next = next(self._merged, None)
        absent = set()
        for key in keys:
            while self._next is not None and self._next < key:
                self._next = next(self._merged, None)
            if self._next != key:
                absent.add(key)
        return absent

    def close(self) -> None:
        """Drop all keys and close the files. May be called twice."""
        self._merged = iter(())
        self._next = None
        self._keys = []
        while self._runs:
            self._runs.pop().close()

    def _write(self) -> None:
        self._keys.sort()
        # Names of files may contain surrogates and line ends.
        run = tempfile.TemporaryFile("w+", encoding="utf-8", errors="surrogatepass", newline="\n")  # noqa: SIM115
        self._runs.append(run)
        run.writelines(key.replace("\\", "\\\\").replace("\n", "\\n") + "\n" for key in self._keys)
        run.seek(0)
        self._keys = []


def _read(run: TextIO) -> Iterator[str]:
    for line in run:
        key = line[:-1]
        yield "\\".join(part.replace("\\n", "\n") for part in key.split("\\\\")) if "\\" in key else key

"""Which block files there are, in the order of their use, and whether more are worth writing. Pure, no I/O."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

# While writing does not pay, one block in SAMPLE is written all the same.
SAMPLE = 16
# A round is as many blocks offered as there are files, and no fewer than these.
ROUND_BLOCKS_MIN = 8
# Writing pays as long as one file is read for every OFFERS_FOR_A_HIT blocks that are offered.
OFFERS_FOR_A_HIT = 4
# How many rounds pass before writing is tried again: the first pause, and the longest.
REST_ROUNDS_MIN, REST_ROUNDS_MAX = 4, 64


class LruIndex:
    """Names and sizes, the least recently used first. ``in`` may be asked from any thread."""

    def __init__(self) -> None:
        self.total_bytes = 0
        self._sizes: OrderedDict[str, int] = OrderedDict()

    def __contains__(self, name: object) -> bool:
        return name in self._sizes

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, name: str, size_bytes: int, *, goes_first: bool = False) -> None:
        """A file was written: it is the last used now, or with ``goes_first`` the next to go unless it is used."""
        self.discard(name)
        self._sizes[name] = size_bytes
        if goes_first:
            self._sizes.move_to_end(name, last=False)
        self.total_bytes += size_bytes

    def discard(self, name: str) -> None:
        """A file is gone. One that is not known is no error."""
        self.total_bytes -= self._sizes.pop(name, 0)

    def use(self, name: str) -> None:
        """A file was read."""
        if name in self._sizes:
            self._sizes.move_to_end(name)

    def size(self, name: str) -> int:
        """Bytes of a file, 0 for one that is not known."""
        return self._sizes.get(name, 0)

    def victims(self, need_bytes: int) -> list[str]:
        """The files to remove so that ``need_bytes`` become free, or all there are."""
        found: list[str] = []
        for name, size_bytes in self._sizes.items():
            if need_bytes <= 0:
                break
            found.append(name)
            need_bytes -= size_bytes
        return found

    def differing(self, names: Iterable[str]) -> tuple[list[str], list[str]]:
        """Which of ``names`` are new, and which of the known are not among them."""
        there = set(names)
        return [name for name in there if name not in self._sizes], [name for name in self._sizes if name not in there]


class WriteFilter:
    """Whether a block is worth a file, now that other files must go for it.

    A scan that goes round and round over more than the disk holds would write every block and evict it before its turn
    comes again: all is written, and nothing is ever found. So when hardly any file was read in a round of writes, only
    a sample is written from then on. What is there stays, which is the share of the scan that the disk can hold.
    """

    def __init__(self) -> None:
        self.is_sampling = False
        self._offers = 0
        self._hits = 0
        self._rest = 0
        self._rest_rounds = REST_ROUNDS_MIN

    def hit(self) -> None:
        """A file was read."""
        self._hits += 1

    def admits(self, held: int) -> bool:
        """Whether to write one more block, where ``held`` files are there."""
        if self._offers >= max(ROUND_BLOCKS_MIN, held):
            self._begin_round(is_worth_it=OFFERS_FOR_A_HIT * self._hits >= self._offers)
        self._offers += 1
        return not self.is_sampling or self._offers % SAMPLE == 0

    def _begin_round(self, *, is_worth_it: bool) -> None:
        self._offers = self._hits = 0
        if not self.is_sampling:
            self.is_sampling = not is_worth_it
            self._rest = self._rest_rounds
            self._rest_rounds = REST_ROUNDS_MIN if is_worth_it else min(2 * self._rest_rounds, REST_ROUNDS_MAX)
        elif not is_worth_it:  # The files there are of little use, so the block may be of more.
            self._rest -= 1
            self.is_sampling = self._rest > 0

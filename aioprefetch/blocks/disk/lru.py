"""Which block files there are, in the order of their use, and how many bytes they take together. Pure, no I/O."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


class LruIndex:
    """Names and sizes, the least recently used first. ``in`` may be asked from any thread."""

    def __init__(self) -> None:
        self.total_bytes = 0
        self._sizes: OrderedDict[str, int] = OrderedDict()

    def __contains__(self, name: object) -> bool:
        return name in self._sizes

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, name: str, size_bytes: int) -> None:
        """A file was written: it is the last used now."""
        self.discard(name)
        self._sizes[name] = size_bytes
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

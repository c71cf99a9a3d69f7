"""The readers that a ``BlockingOperator`` keeps open between reads of the same paths: a small LRU."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from aioprefetch.sync.loop_thread import LoopThread, loop_thread

if TYPE_CHECKING:
    from aioprefetch.operator.operator import Operator
    from aioprefetch.reader.range_reader import RangeReader

CLOSE_SECONDS_MAX = 5.0


class OpenReader:
    """A reader, and how many threads wait for a read of it; closed when it was dropped and nobody does."""

    __slots__ = ("dropped", "reader", "users")

    def __init__(self, reader: RangeReader) -> None:
        self.reader = reader
        self.users = 0
        self.dropped = False


class OpenReaders:
    """At most ``readers_max`` open readers by path, of one loop thread. Safe from any other thread."""

    def __init__(self, operator: Operator, readers_max: int) -> None:
        self._operator = operator
        self._readers_max = readers_max
        self._lock = threading.Lock()
        self._open: OrderedDict[str, OpenReader] = OrderedDict()
        self._thread: LoopThread = loop_thread()

    def __len__(self) -> int:
        return len(self._open)

    def peek(self, path: str, offset: int, size: int | None) -> bytes | None:
        """The bytes if all of them are resident, on the caller's thread."""
        with self._lock:  # so that the reader is not closed meanwhile
            found = self._open.get(path)
            if found is None:
                return None
            self._open.move_to_end(path)
            return found.reader._peek(offset, size)

    def read_at(self, path: str, offset: int, size: int | None) -> bytes:
        """Read through the path's reader, opened if there is none."""
        entry = self._take(path)
        try:
            return self._thread.run(entry.reader.read_at(offset, size))
        finally:
            self._give_back(entry)

    def drop(self, path: str) -> None:
        """Forget the path's reader: the next read sees the object as it is then."""
        with self._lock:
            entry = self._open.pop(path, None)
            idle = entry is not None and self._retire(entry)
        if idle and entry is not None:
            self._close(entry)

    def drop_under(self, directory: str) -> None:
        """``drop`` for every path that begins with ``directory``."""
        with self._lock:
            paths = [path for path in self._open if path.startswith(directory)]
        for path in paths:
            self.drop(path)

    def _take(self, path: str) -> OpenReader:
        with self._lock:
            entry = self._open.get(path)
            if entry is not None:
                entry.users += 1
                return entry
        made = OpenReader(self._operator.reader(path))
        with self._lock:
            entry = self._open.setdefault(path, made)  # another thread may have been faster
            entry.users += 1
            self._open.move_to_end(path)
            surplus = [made] if entry is not made else []
            while len(self._open) > self._readers_max:
                _, evicted = self._open.popitem(last=False)
                if self._retire(evicted):
                    surplus.append(evicted)
        for one in surplus:
            self._close(one)
        return entry

    def _give_back(self, entry: OpenReader) -> None:
        with self._lock:
            entry.users -= 1
            idle = entry.dropped and not entry.users
        if idle:
            self._close(entry)

    @staticmethod
    def _retire(entry: OpenReader) -> bool:
        """Mark as dropped; whether nobody uses it, so that the caller closes it."""
        entry.dropped = True
        return not entry.users

    def _close(self, entry: OpenReader) -> None:
        self._thread.finish(entry.reader.aclose, timeout_seconds=CLOSE_SECONDS_MAX)

"""How far a small exact request reaches beyond the read that sends it. Pure, no I/O.

Libraries that read a format in small pieces (a header of 30 bytes, then a name, then the data behind it) wait for a
first byte each time. A request that brings more takes no longer, as long as its body arrives in a small part of that
wait. So a read that is alone asks for the bytes behind it too: ``FREE_BYTES_MIN`` at first, and all that is free once
reads have used them. After a few requests whose additional bytes were not read, requests are exact again, until a read
continues the one before it. Where a request costs nearly nothing, as in local files, they are exact until then from the
start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from aioprefetch.blocks.line_rate import FREE_BYTES_MIN

# The widened requests whose use is still open. Each is judged by the time this many others were sent.
_OPEN_MAX = 4
# Each widened request costs a credit if its additional bytes were not used, and otherwise earns one. Without credit
# requests are exact. A miss at most _NEAR_BYTES behind the end of the last exact read earns some.
_CREDIT_FIRST = 4
_CREDIT_MAX = 8
_NEAR_CREDIT = 2
_NEAR_BYTES = 4 << 10
# A widened request is at most this part of a block. With blocks of less than 512 KiB requests stay exact.
_BLOCK_SHARE = 8

_NOWHERE = -1 - _NEAR_BYTES


class SmallReads:
    """Decides for one reader how far its exact requests reach. ``block_bytes`` is the size of its blocks."""

    def __init__(self, block_bytes: int) -> None:
        self._bytes_max = block_bytes // _BLOCK_SHARE if block_bytes >= _BLOCK_SHARE * FREE_BYTES_MIN else 0
        self._credit: int | None = None
        self._is_used = False
        self._last_end = _NOWHERE
        self._open: deque[int] = deque()

    def end_of(
        self, start: int, end: int, *, free_bytes: int, is_near: bool, is_used: Callable[[int], bool | None]
    ) -> int:
        """The end of the request for a missing range ``[start, end)``; 0 if it stays exact.

        ``free_bytes`` is the size of a request that costs no more than a smaller one; ``is_near``: no byte is free at
        this store. ``is_used(end)`` tells whether bytes behind the read that ended at ``end`` were read since; ``None``
        if that is not known.
        """
        size = min(free_bytes, self._bytes_max)
        if end - start >= size:
            return 0
        while len(self._open) >= _OPEN_MAX:
            self._judge(is_used(self._open.popleft()))
        credit = self._credit
        if credit is None:
            credit = 0 if is_near else _CREDIT_FIRST
        if 0 <= start - self._last_end <= _NEAR_BYTES:
            credit, self._is_used = min(_CREDIT_MAX, credit + _NEAR_CREDIT), True
        self._credit = credit
        if not self._is_used:
            size = min(size, FREE_BYTES_MIN)
        if not credit or end - start >= size:
            self._last_end = end
            return 0
        self._last_end = _NOWHERE
        self._open.append(end)
        return start + size

    def _judge(self, is_used: bool | None) -> None:
        if is_used is not None and self._credit is not None:
            self._credit = max(0, min(_CREDIT_MAX, self._credit + (1 if is_used else -1)))
            self._is_used = self._credit > 0 and (self._is_used or is_used)

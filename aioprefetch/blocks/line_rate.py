"""How long the first byte of a request takes and how fast its body arrives, as measured by the fetches of a store.

From these follows how many bytes a request can bring beside the wanted ones at no noticeable cost. Pure, no I/O.
"""

from __future__ import annotations

# Before anything was measured: an object store in the same region, one connection.
FIRST_BYTE_SECONDS = 0.025
BYTES_PER_SECOND = 90e6

# Bytes are free as long as they lengthen a request by at most this share of the wait for its first byte.
FREE_SHARE = 0.1
FREE_BYTES_MIN = 64 << 10
FREE_BYTES_MAX = 256 << 10

# A store that responds faster than this is memory, a local file or on this machine: bytes cost as much as requests.
_NEAR_SECONDS = 0.001
# Within this time a store in the same rack responds: one connection brings what the network gives.
_FAR_SECONDS = 0.005

# Bodies below this say nothing about the bandwidth: they arrive together with their head.
_BODY_BYTES_MIN = 64 << 10
# The first requests are measured, and later one in _SAMPLING.
_FIRST = 4
_SAMPLING = 8
# A slower sample moves a figure by this share: it may have waited for a connection, or for the loop.
_SLOW_SHARE = 0.125


class LineRate:
    """The measured figures of one store. Better samples count at once, worse ones slowly."""

    __slots__ = ("bytes_per_second", "first_byte_seconds", "is_measured")

    def __init__(self) -> None:
        self.first_byte_seconds = FIRST_BYTE_SECONDS
        self.bytes_per_second = BYTES_PER_SECOND
        self.is_measured = False

    @property
    def is_near(self) -> bool:
        """Whether requests cost so little that additional bytes are never free."""
        return self.first_byte_seconds < _NEAR_SECONDS

    @property
    def is_far(self) -> bool:
        """Whether several connections bring more than one."""
        return self.first_byte_seconds >= _FAR_SECONDS

    @staticmethod
    def samples(number: int) -> bool:
        """Whether the request with this number, counted from 0, is measured."""
        return number < _FIRST or number % _SAMPLING == 0

    def note(self, *, first_byte_seconds: float, size_bytes: int, body_seconds: float) -> None:
        """A request has brought ``size_bytes``: its head came after ``first_byte_seconds``, its body took the rest."""
        slower = first_byte_seconds > self.first_byte_seconds
        share = _SLOW_SHARE if slower and self.is_measured else 1.0
        self.first_byte_seconds += share * (first_byte_seconds - self.first_byte_seconds)
        self.is_measured = True
        if size_bytes < _BODY_BYTES_MIN or body_seconds <= 0:
            return
        rate = size_bytes / body_seconds
        self.bytes_per_second += (_SLOW_SHARE if rate < self.bytes_per_second else 1.0) * (rate - self.bytes_per_second)

    def free_bytes(self, in_flight: int) -> int:
        """The size that a small request may have at no noticeable cost, beside ``in_flight`` others.

        Between ``FREE_BYTES_MIN`` and ``FREE_BYTES_MAX`` for a request alone. Requests in flight share the bandwidth:
        0 if too little of it is left.
        """
        alone = FREE_SHARE * self.first_byte_seconds * self.bytes_per_second
        free = int(max(FREE_BYTES_MIN, min(FREE_BYTES_MAX, alone))) // (1 + in_flight)
        return free if free >= FREE_BYTES_MIN else 0

"""The expected results of a reader, without any code of the library: content by a rule, and a model on `io.BytesIO`.

The byte at an offset depends only on the offset and a version, and eight adjacent bytes occur practically once, so the
origin of a misplaced byte can be found. It imports only the standard library.
"""

import io
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Generic, TypeVar

E = TypeVar("E", bound=BaseException)

PAGE_BYTES = 1 << 16
# The length of the excerpt that is searched for. A shorter one would match by chance.
WITNESS_BYTES = 8
VERSIONS_SEARCHED = 3


@lru_cache(maxsize=2048)
def _page(number: int, version: int) -> bytes:
    return random.Random(f"aioprefetch {version} {number}").randbytes(PAGE_BYTES)


def pattern(start: int, end: int, *, version: int = 0) -> bytes:
    """The bytes `[start, end)` of the endless content of a version."""
    if end <= start:
        return b""
    first, last = start // PAGE_BYTES, (end - 1) // PAGE_BYTES
    pages = [_page(number, version) for number in range(first, last + 1)]
    return b"".join(pages)[start - first * PAGE_BYTES : end - first * PAGE_BYTES]


def content(size: int, *, version: int = 0) -> bytes:
    """An object of `size` bytes. Every byte differs between versions."""
    return pattern(0, size, version=version)


def first_difference(actual: bytes | memoryview, expected: bytes | memoryview) -> int | None:
    """The position of the first byte that differs or is missing on one side, None if both are equal."""
    shorter = min(len(actual), len(expected))
    low, high = 0, shorter
    while low < high:  # bisection on slices: comparing in C is much faster than in Python
        middle = (low + high + 1) // 2
        if actual[low:middle] == expected[low:middle]:
            low = middle
        else:
            high = middle - 1
    return None if low == shorter and len(actual) == len(expected) else low


def origin_of(witness: bytes, *, search_bytes: int = 1 << 20) -> str:
    """The position of some bytes in the content by rule, in words."""
    for version in range(VERSIONS_SEARCHED):
        at = content(search_bytes, version=version).find(witness)
        if at >= 0:
            return f"offset {at} of version {version}"
    return "all zero" if not any(witness) else "nowhere in the content"


def assert_same_bytes(
    actual: bytes | bytearray | memoryview, expected: bytes | memoryview, *, offset: int = 0, what: str = "read"
) -> None:
    """Fail unless both are equal, with the first wrong offset and the origin of the byte there.

    `offset` is the position of the bytes in the object, for the message.
    """
    received = memoryview(actual).cast("B") if not isinstance(actual, bytes) else actual
    if received == expected:
        return
    at = first_difference(received, expected)
    assert at is not None
    seen = bytes(received[at : at + WITNESS_BYTES])
    origin = f", which are {origin_of(seen)}" if len(seen) == WITNESS_BYTES else ""
    raise AssertionError(
        f"{what}: {len(received)} bytes where {len(expected)} were due at [{offset}, {offset + len(expected)}); "
        f"first wrong byte at offset {offset + at}: {seen.hex() or 'nothing'} instead of "
        f"{bytes(expected[at : at + WITNESS_BYTES]).hex() or 'the end'}{origin}"
    )


class ReaderModel:
    """A model of a reader, over bytes in memory: short at the end, empty beyond it, without negative positions.

    Every method raises the errors of the reader (`ValueError`, `EOFError`), and then keeps the position.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._file = io.BytesIO(data)

    @property
    def size(self) -> int:
        """The size of the object in bytes."""
        return len(self.data)

    def tell(self) -> int:
        """The position."""
        return self._file.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position, which may exceed the end. Below zero is an error, where `BytesIO` would stop at zero."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._file.tell(), io.SEEK_END: len(self.data)}[whence]
        if base + offset < 0:
            raise ValueError(f"position {base + offset} is negative")
        return self._file.seek(base + offset)

    def read(self, size: int = -1) -> bytes:
        """Read from the position on."""
        return self._file.read(size)

    def readinto(self, buffer: bytearray | memoryview) -> int:
        """Read from the position on into a buffer."""
        return self._file.readinto(buffer)

    def read_at(self, offset: int, size: int) -> bytes:
        """Read from `offset` on, without moving the position."""
        if offset < 0 or size < 0:
            raise ValueError("offset and size must not be negative")
        return self.data[offset : offset + size]

    def read_exactly_at(self, offset: int, size: int) -> bytes:
        """Read from `offset` on. `EOFError` if fewer bytes are left."""
        data = self.read_at(offset, size)
        if len(data) < size:
            raise EOFError(f"[{offset}, {offset + size}) leaves the object of {self.size} bytes")
        return data

    def read_ranges(self, ranges: Iterable[Sequence[int]]) -> list[bytes]:
        """The bytes of each range, in the order given."""
        wanted = [(start, end) for start, end in ranges]
        if any(start < 0 or end < start for start, end in wanted):
            raise ValueError("a range must have 0 <= start <= end")
        if any(end > self.size and end > start for start, end in wanted):
            raise EOFError("a range leaves the object")
        return [self.data[start:end] for start, end in wanted]


class Caught(Generic[E]):
    """The error that a block of `raises` ended with."""

    value: E


@contextmanager
def raises(kinds: type[E] | tuple[type[E], ...], *, match: str = "") -> Iterator[Caught[E]]:
    """The block has to end with such an error, whose text matches; `AssertionError` where it ends without one."""
    caught: Caught[E] = Caught()
    try:
        yield caught
    except kinds as error:
        if not re.search(match, str(error)):
            raise AssertionError(f"{error!r} does not say {match!r}") from error
        caught.value = error
    else:
        names = [kind.__name__ for kind in (kinds if isinstance(kinds, tuple) else (kinds,))]
        raise AssertionError(f"no {' or '.join(names)} was raised")

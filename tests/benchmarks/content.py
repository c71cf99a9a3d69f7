"""Objects whose bytes follow from their offset, so that what a contestant read can be checked without a copy of it.

A mebibyte of random bytes repeats, and each 4 KiB page begins with its own offset in the object: a misplaced page, a
lost byte and a stale buffer all show. Objects of every size have the same bytes at the same offset.
"""

from __future__ import annotations

import random
import struct
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

MIB = 1 << 20
PAGE_BYTES = 4096
SPOT_BYTES = 64
_BASE = random.Random("aioprefetch benchmark").randbytes(MIB)


@lru_cache(maxsize=8)
def _mebibyte(number: int) -> bytes:
    block = bytearray(_BASE)
    for offset in range(0, MIB, PAGE_BYTES):
        struct.pack_into(">Q", block, offset, number * MIB + offset)
    return bytes(block)


def _page(number: int) -> bytes:
    offset = number * PAGE_BYTES
    inside = offset % MIB
    return struct.pack(">Q", offset) + _BASE[inside + 8 : inside + PAGE_BYTES]


def expected(start: int, end: int) -> bytes:
    """The bytes ``[start, end)`` of every object."""
    if end - start <= PAGE_BYTES:
        unit_bytes, unit = PAGE_BYTES, _page
    else:
        unit_bytes, unit = MIB, _mebibyte
    first, last = start // unit_bytes, max(end - 1, start) // unit_bytes
    found = b"".join(unit(number) for number in range(first, last + 1))
    return found[start - first * unit_bytes : end - first * unit_bytes]


def write_object(path: Path, size_bytes: int) -> None:
    """Make a file of ``size_bytes`` bytes."""
    with path.open("wb") as file:
        for start in range(0, size_bytes, MIB):
            file.write(expected(start, min(start + MIB, size_bytes)))


def check(data: ReadableBuffer, offset: int, *, every_byte: bool) -> int:
    """The length of ``data``, after a look at its bytes: at all of them, or at 64 at either end.

    Raises:
        AssertionError: these are not the object's bytes at ``offset``.
    """
    with memoryview(data).cast("B") as view:
        length = len(view)
        spot = length if every_byte else min(SPOT_BYTES, length)
        for start in {0, length - spot}:
            at = offset + start
            assert bytes(view[start : start + spot]) == expected(at, at + spot), f"wrong bytes in {spot} at {at}"
    return length

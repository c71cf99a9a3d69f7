"""Memory for the buffers of a batch, and copies of bitmaps from and to any bit position.

Bit ``i`` is bit ``i % 8`` of byte ``i // 8``, lowest first.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from aioprefetch.errors import Unsupported

# The maximum size of one buffer of a batch, far above real pages and rows.
BUFFER_BYTES_MAX = 1 << 32
# The maximum memory for the nulls of one column of a batch: a file can claim any number without storing a byte.
NULL_BYTES_MAX = 1 << 28
INT32_MAX = (1 << 31) - 1


def allocate(size_bytes: int) -> npt.NDArray[np.uint8]:
    """Memory for one buffer, aligned to 64 bytes, not initialised. ``Unsupported`` beyond ``BUFFER_BYTES_MAX``.

    It comes from Arrow's pool, which keeps freed memory for the next batch; numpy returns it to the kernel each time.
    """
    check_size(size_bytes)
    return np.frombuffer(pa.allocate_buffer(size_bytes), np.uint8)


def zeros(size_bytes: int) -> npt.NDArray[np.uint8]:
    """Zeros that take no memory until they are used. ``Unsupported`` beyond ``NULL_BYTES_MAX``."""
    check_nulls(size_bytes)
    return np.zeros(size_bytes, np.uint8)


def check_size(size_bytes: int) -> None:
    """Raise ``Unsupported`` for more than ``BUFFER_BYTES_MAX``."""
    if size_bytes > BUFFER_BYTES_MAX:
        raise Unsupported(f"one column of a batch takes {size_bytes} bytes: ask for fewer rows a batch")


def check_nulls(size_bytes: int) -> None:
    """Raise ``Unsupported`` for more than ``NULL_BYTES_MAX``: a tiny file can claim any number of nulls."""
    if size_bytes > NULL_BYTES_MAX:
        raise Unsupported(f"the nulls of one column of a batch take {size_bytes} bytes: ask for fewer rows a batch")


def check_offsets(size: int, width: int) -> None:
    """Raise ``Unsupported`` if ``size`` bytes or items exceed offsets of ``width`` bytes."""
    if width == 4 and size > INT32_MAX:
        raise Unsupported(f"32-bit offsets cannot count {size} bytes or items in one batch: ask for fewer rows a batch")


Bytes = npt.NDArray[np.uint8]


def aligned(bits: Bytes, offset: int, count: int) -> Bytes:
    """``count`` bits from bit ``offset`` on, moved to bit 0: no copy where ``offset`` is a multiple of eight.

    Bits after the last one are undefined.
    """
    if count == 0:
        return bits[:0]
    return _shifted(bits, offset, (count + 7) // 8)


def _shifted(bits: Bytes, offset: int, size: int) -> Bytes:
    """``size`` bytes whose first bit is bit ``offset``, which may be negative. Bits outside of ``bits`` are 0."""
    first, shift = offset // 8, offset % 8
    if first >= 0 and shift == 0 and first + size <= len(bits):
        return bits[first : first + size]
    window = np.zeros(size + 1, np.uint8)
    low, high = max(first, 0), min(first + size + 1, len(bits))
    if high > low:
        window[low - first : high - first] = bits[low:high]
    if shift == 0:
        return window[:size]
    low_bits, high_bits = np.uint8(shift), np.uint8(8 - shift)
    return (window[:-1] >> low_bits) | (window[1:] << high_bits)


def copy_bits(bits: Bytes, offset: int, target: Bytes, position: int, count: int) -> None:
    """Write ``count`` bits from bit ``offset`` of ``bits`` to bit ``position`` of ``target``.

    Bits before ``position`` are kept. Bits after the last one, up to the end of its byte, become undefined.
    """
    if count == 0:
        return
    first, kept = position // 8, position % 8
    source = _shifted(bits, offset - kept, (kept + count + 7) // 8)
    mask = (1 << kept) - 1
    start = (int(target[first]) & mask) | (int(source[0]) & ~mask & 0xFF)
    target[first : first + len(source)] = source
    target[first] = start


def fill_bits(target: Bytes, position: int, count: int, value: bool) -> None:
    """Write ``count`` equal bits to bit ``position`` of ``target``, as ``copy_bits`` does."""
    if count == 0:
        return
    first, kept = position // 8, position % 8
    mask = (1 << kept) - 1
    start = (int(target[first]) & mask) | ((~mask & 0xFF) if value else 0)
    target[first : (position + count + 7) // 8] = 0xFF if value else 0
    target[first] = start


def packed(flags: npt.NDArray[np.bool_]) -> Bytes:
    """Pack booleans into bits."""
    return np.packbits(flags, bitorder="little")

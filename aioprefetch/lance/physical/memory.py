"""Memory for the buffers of a batch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from aioprefetch.errors import Unsupported

# What one buffer of one batch may take. Beyond it no page of a writer and no row of a sane file gets.
BUFFER_BYTES_MAX = 1 << 32
# What the nulls of one column of one batch may take where no byte of the file stands behind them.
NULL_BYTES_MAX = 1 << 28
INT32_MAX = (1 << 31) - 1


def allocate(size_bytes: int) -> npt.NDArray[np.uint8]:
    """Memory for one buffer, aligned to 64 bytes, not initialised. ``Unsupported`` beyond ``BUFFER_BYTES_MAX``.

    It is of Arrow's pool, which keeps memory for the next batch where numpy gives it back to the kernel each time.
    """
    check_size(size_bytes)
    return np.frombuffer(pa.allocate_buffer(size_bytes), np.uint8)


def zeros(size_bytes: int) -> npt.NDArray[np.uint8]:
    """Zeros, which take no memory until they are read or written. ``Unsupported`` beyond ``NULL_BYTES_MAX``."""
    check_nulls(size_bytes)
    return np.zeros(size_bytes, np.uint8)


def check_size(size_bytes: int) -> None:
    """``Unsupported`` for more than ``BUFFER_BYTES_MAX``."""
    if size_bytes > BUFFER_BYTES_MAX:
        raise Unsupported(f"one column of a batch takes {size_bytes} bytes: ask for fewer rows a batch")


def check_nulls(size_bytes: int) -> None:
    """``Unsupported`` for more than ``NULL_BYTES_MAX``: a file of some bytes can claim any number of nulls."""
    if size_bytes > NULL_BYTES_MAX:
        raise Unsupported(f"the nulls of one column of a batch take {size_bytes} bytes: ask for fewer rows a batch")


def check_offsets(size: int, width: int) -> None:
    """``Unsupported`` when ``size`` bytes or items cannot be counted by offsets of ``width`` bytes."""
    if width == 4 and size > INT32_MAX:
        raise Unsupported(f"32-bit offsets cannot count {size} bytes or items in one batch: ask for fewer rows a batch")

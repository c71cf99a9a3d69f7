"""The answers to a plan, put together."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from aioprefetch.errors import UntrustedMetadata
from aioprefetch.lance.physical.protocols import Bytes
from aioprefetch.ranges import Range


def joined(reads: Iterator[memoryview], count: int) -> Bytes:
    """The next ``count`` answers as one array: no copy of a single one."""
    if count == 1:
        return np.frombuffer(next(reads), np.uint8)
    return np.frombuffer(b"".join(islice(reads, count)), np.uint8)


def check_fits(needed_bytes: int, buffer: Range, what: str) -> None:
    """``UntrustedMetadata`` when a buffer of the file is smaller than what the page claims to keep in it."""
    if needed_bytes > buffer[1] - buffer[0]:
        raise UntrustedMetadata(f"{what} need {needed_bytes} bytes and have {buffer[1] - buffer[0]}")

"""Array types of the structural decoders, and functions to join and index pieces of buffers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from aioprefetch.errors import UntrustedMetadata

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Levels = npt.NDArray[np.uint16]


def damaged(message: str) -> UntrustedMetadata:
    """The error for a page that contradicts itself or its metadata."""
    return UntrustedMetadata(message, operation="scan")


def as_bytes(view: memoryview) -> Bytes:
    """A view as an array, without a copy."""
    return np.frombuffer(view, np.uint8)


def joined(data: Bytes, starts: Positions, sizes: Positions) -> Bytes:
    """The pieces ``data[start:start + size]`` back to back. No copy is made if they already are."""
    if starts.size == 0:
        return data[:0]
    if starts.size == 1 or bool(np.all(starts[1:] == starts[:-1] + sizes[:-1])):
        return data[int(starts[0]) : int(starts[-1] + sizes[-1])]
    return np.concatenate(
        [data[start : start + size] for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)]
    )


def runs(starts: Positions, lengths: Positions) -> Positions:
    """The numbers ``start, start + 1, ..., start + length - 1`` of every run, run by run."""
    total = int(lengths.sum())
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(total, dtype=np.int64)


def little_endian(data: Bytes, size_bytes: int) -> npt.NDArray[np.unsignedinteger]:
    """``data`` as unsigned numbers of 1, 2, 4 or 8 bytes. An incomplete number at the end is ignored."""
    kind = np.dtype(f"<u{size_bytes}")
    whole = data[: data.size // size_bytes * size_bytes]
    return whole.view(kind) if whole.flags.c_contiguous else np.ascontiguousarray(whole).view(kind)


def exclusive_sum(lengths: Positions) -> Positions:
    """The ``n + 1`` boundaries of ``n`` lengths, from 0 to their sum."""
    out = np.zeros(lengths.size + 1, np.int64)
    np.cumsum(lengths, out=out[1:])
    return out

"""Pieces of buffers: the arrays that every decoder here works on, and how pieces are put together."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from aioprefetch.errors import UntrustedMetadata

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Levels = npt.NDArray[np.uint16]


def damaged(message: str) -> UntrustedMetadata:
    """The error for pages whose bytes contradict themselves or their metadata."""
    return UntrustedMetadata(message, operation="scan")


def as_bytes(view: memoryview) -> Bytes:
    """The bytes of a view, not copied."""
    return np.frombuffer(view, np.uint8)


def joined(data: Bytes, starts: Positions, sizes: Positions) -> Bytes:
    """The pieces ``data[start:start + size]`` back to back; not copied where they lie so already."""
    if starts.size == 0:
        return data[:0]
    if starts.size == 1 or bool(np.all(starts[1:] == starts[:-1] + sizes[:-1])):
        return data[int(starts[0]) : int(starts[-1] + sizes[-1])]
    return np.concatenate(
        [data[start : start + size] for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)]
    )


def runs(starts: Positions, lengths: Positions) -> Positions:
    """The numbers ``start, start + 1, ..., start + length - 1`` of every run, one after the other."""
    total = int(lengths.sum())
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(total, dtype=np.int64)


def little_endian(data: Bytes, size_bytes: int) -> npt.NDArray[np.unsignedinteger]:
    """``data`` as unsigned numbers of 1, 2, 4 or 8 bytes; bytes behind the last whole one are left out."""
    kind = np.dtype(f"<u{size_bytes}")
    whole = data[: data.size // size_bytes * size_bytes]
    return whole.view(kind) if whole.flags.c_contiguous else np.ascontiguousarray(whole).view(kind)


def exclusive_sum(lengths: Positions) -> Positions:
    """``n + 1`` positions that start with 0: where each of ``n`` lengths begins, and where the last one ends."""
    out = np.zeros(lengths.size + 1, np.int64)
    np.cumsum(lengths, out=out[1:])
    return out

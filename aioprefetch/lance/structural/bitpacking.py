"""FastLanes bit-packing: groups of 1024 numbers of 8, 16, 32 or 64 bits, packed into fewer bits each.

A group of words of T bits has 1024 / T lanes. Packed to W bits it is a matrix of W rows of one word per lane; number r
of a lane starts at bit r * W of that lane's column. All groups of equal W are unpacked together by a few array
operations: pick the words, shift them, add the bits of the next word, mask, and move every number to its place.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from aioprefetch.errors import UntrustedMetadata
from aioprefetch.lance.structural.buffers import Bytes, Positions

GROUP = 1024
# The size of a packed group is W times this, for any T.
ROW_BYTES = GROUP // 8
# The number of groups that are unpacked together: the temporary arrays fit into the nearest CPU caches.
GROUPS_AT_ONCE = 128

_ORDER = (0, 4, 2, 6, 1, 5, 3, 7)
_DTYPES: dict[int, np.dtype[np.unsignedinteger]] = {
    8: np.dtype("<u1"),
    16: np.dtype("<u2"),
    32: np.dtype("<u4"),
    64: np.dtype("<u8"),
}

Words = npt.NDArray[np.unsignedinteger]


def word_type(bits: int) -> np.dtype[np.unsignedinteger]:
    """The little-endian unsigned type of ``bits`` bits (8, 16, 32 or 64)."""
    return _DTYPES[bits]


def unpack(
    data: Bytes, starts: Positions, widths: Positions, bits: int, *, groups_at_once: int = GROUPS_AT_ONCE
) -> Words:
    """The numbers of all groups, shape ``(groups, 1024)``, of words of ``bits`` bits.

    ``starts`` are the positions in ``data`` of each group's packed bytes, at multiples of 8 counted from the first.
    ``widths`` are the bits of a packed number of each group. ``UntrustedMetadata`` if either is impossible.
    ``groups_at_once`` groups of equal width are unpacked together.
    """
    if starts.size and (
        int(widths.min()) < 0 or int(widths.max()) > bits or int((starts + widths * ROW_BYTES).max()) > data.size
    ):
        raise UntrustedMetadata("bit-packed numbers wider than they may be, or beyond their buffer", operation="scan")
    out = np.empty((starts.size, GROUP), word_type(bits))
    first = int(widths[0]) if starts.size else 0
    if bool(np.all(widths == first)):
        _unpack_equal(data, starts, first, bits, out, None, groups_at_once)
        return out
    for width in np.unique(widths):
        rows = np.flatnonzero(widths == width)
        _unpack_equal(data, starts[rows], int(width), bits, out, rows, groups_at_once)
    return out


def _unpack_equal(
    data: Bytes,
    starts: Positions,
    width: int,
    bits: int,
    out: Words,
    rows: npt.NDArray[np.intp] | None,
    groups_at_once: int,
) -> None:
    """Unpack groups of equal width into ``rows`` of ``out``, or into all rows."""
    for first in range(0, starts.size, groups_at_once):
        part = slice(first, min(first + groups_at_once, starts.size))
        if rows is None:
            _unpack_few(data, starts[part], width, bits, out[part])
            continue
        unpacked = np.empty((part.stop - part.start, GROUP), out.dtype)
        _unpack_few(data, starts[part], width, bits, unpacked)
        out[rows[part]] = unpacked


def _unpack_few(data: Bytes, starts: Positions, width: int, bits: int, out: Words) -> None:
    groups, lanes, word = starts.size, GROUP // bits, out.dtype
    if width == 0:
        out[:] = 0
        return
    plan = _plan(bits, width)
    # [width][groups * lanes]: each number's words of all groups are one contiguous run.
    packed = _gather(data, starts, width).view(word).reshape(groups, width, lanes)
    columns = np.ascontiguousarray(packed.transpose(1, 0, 2)).reshape(width, groups * lanes)
    numbers = columns[plan.rows]
    np.right_shift(numbers, plan.shifts, out=numbers)
    if plan.split.size:
        upper = columns[plan.upper_rows]
        np.left_shift(upper, plan.upper_shifts, out=upper)
        numbers[plan.split] |= upper
    if width < bits:
        np.bitwise_and(numbers, word.type((1 << width) - 1), out=numbers)
    blocks = bits // 8
    out.reshape(groups, 8, blocks, lanes)[:] = numbers.reshape(8, blocks, groups, lanes).transpose(2, 0, 1, 3)


@dataclass(frozen=True, slots=True)
class _Plan:
    """How to unpack a lane: the word and the shift of each of its T numbers, in the order of the output.

    ``split`` are the numbers that continue in the next word.
    """

    rows: npt.NDArray[np.intp]
    shifts: Words
    split: npt.NDArray[np.intp]
    upper_rows: npt.NDArray[np.intp]
    upper_shifts: Words


@functools.lru_cache(maxsize=256)
def _plan(bits: int, width: int) -> _Plan:
    # Number r of a lane goes to ORDER[r // 8] * 16 + r % 8 * 128: eight rows of 128, each of bits / 8 blocks.
    blocks = bits // 8
    places = np.argsort(_ORDER[:blocks], kind="stable")
    numbers = (places[None, :] * 8 + np.arange(8)[:, None]).reshape(-1)
    rows, shifts = numbers * width // bits, numbers * width % bits
    split = np.flatnonzero(shifts + width > bits)
    word = word_type(bits)
    return _Plan(
        rows,
        shifts.astype(word)[:, None],
        split,
        rows[split] + 1,
        (bits - shifts[split]).astype(word)[:, None],
    )


def _gather(data: Bytes, starts: Positions, width: int) -> Bytes:
    """The packed bytes of each group, ``(groups, width * 128)``, copied into one array."""
    record = np.dtype((np.void, width * ROW_BYTES))
    count = data.size - record.itemsize + 1
    windows = np.ndarray((count,), record, data, strides=(1,))
    return windows[starts].view(np.uint8).reshape(starts.size, record.itemsize)


def trimmed(groups: Words, lengths: Positions) -> Words:
    """The first ``lengths[i]`` numbers of each group, back to back. No copy is made if only the last group is short."""
    flat = groups.reshape(-1)
    total = int(lengths.sum())
    if bool(np.all(lengths[:-1] == GROUP)):
        return flat[:total]
    return np.concatenate([group[:length] for group, length in zip(groups, lengths.tolist(), strict=True)])

"""FastLanes unpacking against a packer that goes bit by bit."""

import numpy as np
import pytest

from aioprefetch.errors import UntrustedMetadata
from aioprefetch.lance.structural.chunk_values import GROUP, trimmed, unpack

ORDER = (0, 4, 2, 6, 1, 5, 3, 7)


def pack(numbers: list[int], width: int, bits: int) -> bytes:
    """1024 numbers as one group: number r of a lane stands at bit r * width of that lane."""
    lanes = GROUP // bits
    words = [0] * (width * lanes)
    for lane in range(lanes):
        line = 0
        for row in range(bits):
            line |= numbers[ORDER[row // 8] * 16 + row % 8 * 128 + lane] << (row * width)
        for word in range(width):
            words[word * lanes + lane] = line >> (word * bits) & ((1 << bits) - 1)
    return np.array(words, f"<u{bits // 8}").tobytes()


def groups(bits: int, widths: list[int], seed: int) -> tuple[bytes, list[int], np.ndarray]:
    """Packed groups with a gap of odd size before each, where they start, and their numbers."""
    rng = np.random.default_rng(seed)
    data, starts, expected = b"", [], []
    for width in widths:
        numbers = [int.from_bytes(rng.bytes(8), "little") & ((1 << width) - 1) for _ in range(GROUP)]
        data += b"?" * 3
        starts.append(len(data))
        data += pack(numbers, width, bits)
        expected.append(numbers)
    return data, starts, np.array(expected, f"u{bits // 8}")


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_widths_of_every_kind(bits: int) -> None:
    widths = [0, 1, bits // 2 - 1, bits - 1, bits, 3, 3, 3, bits]
    data, starts, expected = groups(bits, widths, bits)
    found = unpack(np.frombuffer(data, np.uint8), np.array(starts), np.array(widths), bits, groups_at_once=2)
    assert found.dtype.itemsize * 8 == bits
    assert np.array_equal(found, expected)


def test_groups_of_one_width() -> None:
    data, starts, expected = groups(16, [5] * 3, 1)
    assert np.array_equal(unpack(np.frombuffer(data, np.uint8), np.array(starts), np.array([5] * 3), 16), expected)
    assert unpack(np.zeros(0, np.uint8), np.zeros(0, np.int64), np.zeros(0, np.int64), 16).shape == (0, GROUP)


@pytest.mark.parametrize(("start", "width"), [(1, 8), (0, 9), (0, -1), (900, 1)])
def test_values_beyond_their_buffer_are_refused(start: int, width: int) -> None:
    with pytest.raises(UntrustedMetadata, match="bit-packed"):
        unpack(np.zeros(1024, np.uint8), np.array([start]), np.array([width]), 8)


def test_trimming() -> None:
    numbers = np.arange(3 * GROUP, dtype=np.uint32).reshape(3, GROUP)
    assert np.shares_memory(trimmed(numbers, np.array([GROUP, GROUP, 5])), numbers)
    found = trimmed(numbers, np.array([2, 0, 3]))
    assert found.tolist() == [0, 1, 2 * GROUP, 2 * GROUP + 1, 2 * GROUP + 2]

"""Roaring bitmaps against a separate encoder, with every kind of container, and invalid bitmaps."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioprefetch.errors import UntrustedMetadata
from aioprefetch.lance.fragment_rows import parse_roaring


def containers(numbers: list[int]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for number in numbers:
        found.setdefault(number >> 16, []).append(number & 0xFFFF)
    return found


def runs_of(low: list[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for number in low:
        if runs and runs[-1][0] + runs[-1][1] + 1 == number:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((number, 0))
    return runs


def encode(numbers: list[int], *, as_runs: set[int]) -> bytes:
    """Encode in the portable form. Containers whose upper half is in ``as_runs`` are stored as runs."""
    found = containers(sorted(set(numbers)))
    bodies = []
    for key, low in found.items():
        if key in as_runs:
            runs = runs_of(low)
            bodies.append(struct.pack("<H", len(runs)) + b"".join(struct.pack("<HH", *run) for run in runs))
        elif len(low) > 4096:
            bits = bytearray(8192)
            for number in low:
                bits[number // 8] |= 1 << number % 8
            bodies.append(bytes(bits))
        else:
            bodies.append(struct.pack(f"<{len(low)}H", *low))
    with_runs = bool(as_runs & found.keys())
    if with_runs:
        flags = sum(1 << index for index, key in enumerate(found) if key in as_runs)
        head = struct.pack("<I", 12347 | (len(found) - 1) << 16) + flags.to_bytes(-(-len(found) // 8), "little")
    else:
        head = struct.pack("<II", 12346, len(found))
    head += b"".join(struct.pack("<HH", key, len(low) - 1) for key, low in found.items())
    if not with_runs or len(found) >= 4:
        position = len(head) + 4 * len(found)
        for body in bodies:
            head += struct.pack("<I", position)
            position += len(body)
    return head + b"".join(bodies)


numbers = st.lists(st.integers(0, (1 << 32) - 1) | st.integers(0, 300_000), max_size=40)
stretches = st.lists(st.tuples(st.integers(0, 400_000), st.integers(1, 9000)), max_size=4)


@given(numbers, stretches, st.sets(st.integers(0, 5)))
def test_every_kind_of_container(single: list[int], several: list[tuple[int, int]], as_runs: set[int]) -> None:
    wanted = sorted({*single, *(number for start, count in several for number in range(start, start + count))})
    found = parse_roaring(encode(wanted, as_runs=as_runs))
    assert found.dtype == np.uint32
    assert found.tolist() == wanted


DATA = encode([1, 5, *range(70_000, 80_000), 200_000, 300_000], as_runs={0})
ARRAYS = encode([1, 5, 70_000], as_runs=set())


@pytest.mark.parametrize("data", [DATA, ARRAYS])
def test_refuses_truncated_files(data: bytes) -> None:
    for size in range(0, len(data), 7):
        with pytest.raises(UntrustedMetadata, match="ends after"):
            parse_roaring(data[:size])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (struct.pack("<II", 1, 1), "begins with 1"),
        (struct.pack("<II", 12346, 65537), "65537 containers"),
        (struct.pack("<II", 12346, (1 << 32) - 1), "containers"),
        (struct.pack("<IIHHHHIIHH", 12346, 2, 7, 0, 7, 0, 0, 0, 1, 1), "containers are out of order"),
        (struct.pack("<IIHHIHH", 12346, 1, 0, 1, 0, 9, 9), "numbers of a container are out of order"),
        (struct.pack("<IBHHHHH", 12347, 1, 0, 3, 1, 65534, 3), "runs of a container are out of order"),
        (struct.pack("<IBHHHHHHH", 12347, 1, 0, 3, 2, 5, 1, 6, 1), "runs of a container are out of order"),
        (struct.pack("<IBHHHHH", 12347, 1, 0, 9, 1, 1, 3), "holds 4 numbers where 10 are due"),
        (struct.pack("<IIHHI", 12346, 1, 0, 5000, 0) + bytes(8192), "holds 0 numbers where 5001 are due"),
    ],
)
def test_refuses(data: bytes, message: str) -> None:
    with pytest.raises(UntrustedMetadata, match=message):
        parse_roaring(data, path="p")


@given(st.binary(max_size=40) | st.binary(max_size=30).map(lambda tail: ARRAYS[:10] + tail))
def test_any_bytes_are_a_bitmap_or_refused(data: bytes) -> None:
    try:
        found = parse_roaring(data)
    except UntrustedMetadata:
        return
    assert np.all(found[1:] > found[:-1])

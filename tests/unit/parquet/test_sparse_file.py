"""Memory at the offsets of a file: needed bytes stay, others go, and neighbours are left alone."""

import mmap
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from aioprefetch.errors import Unsupported
from aioprefetch.parquet.chunks import Coverage, SparseFile

PAGE = mmap.PAGESIZE
MIB = 1 << 20


def resident_bytes(file: SparseFile, start: int, size_bytes: int) -> int:
    """The memory that a range of a file takes, without all else that this process holds."""
    first = np.frombuffer(file.view(start, start + 1), np.uint8).ctypes.data // PAGE
    with Path("/proc/self/pagemap").open("rb") as pages:
        pages.seek(8 * first)
        entries = np.frombuffer(pages.read(8 * (size_bytes // PAGE)), np.uint64)
    return int(np.count_nonzero(entries >> np.uint64(63))) * PAGE


def test_bytes_lie_at_the_offsets_of_the_file() -> None:
    file = SparseFile(10 * PAGE)
    file.allocate(5, 9)[:] = b"abcd"
    file.put(PAGE - 1, b"xy")
    assert bytes(file.view(4, 10)) == b"\0abcd\0"
    source = file.source()
    source.seek(PAGE - 1)
    assert source.read(2) == b"xy"
    assert source.size() >= 10 * PAGE


def test_pyarrow_reads_the_mapping_without_a_copy() -> None:
    file = SparseFile(4 * PAGE)
    memory = file.allocate(100, 200)
    memory[:] = b"a" * 100
    source = file.source()
    source.seek(100)
    read = source.read_buffer(100)
    memory[0:1] = b"b"
    assert read.to_pybytes()[:2] == b"ba"


def test_views_for_readers_cannot_be_written() -> None:
    with pytest.raises(TypeError):
        SparseFile(100).view(0, 10)[0] = 1


def test_a_file_of_nothing_has_a_mapping() -> None:
    assert bytes(SparseFile(0).view(0, 0)) == b""


def test_discarded_pages_read_as_zeros_and_the_rest_stays() -> None:
    file = SparseFile(8 * PAGE)
    file.allocate(0, 8 * PAGE)[:] = b"x" * (8 * PAGE)
    file.discard(PAGE // 2, 3 * PAGE + PAGE // 2)
    kept = bytes(file.view(0, 8 * PAGE))
    assert kept[:PAGE] == b"x" * PAGE, "its first half is needed"
    assert kept[PAGE : 3 * PAGE] == bytes(2 * PAGE)
    assert kept[3 * PAGE :] == b"x" * (5 * PAGE)


def test_a_page_goes_with_its_last_neighbour() -> None:
    file = SparseFile(2 * PAGE)
    file.allocate(0, 100)[:] = b"a" * 100
    file.allocate(100, 300)[:] = b"b" * 200
    file.discard(0, 100)
    assert bytes(file.view(0, 300)) == b"a" * 100 + b"b" * 200
    file.discard(100, 300)
    assert bytes(file.view(0, 300)) == bytes(300)


def test_what_was_allocated_twice_is_discarded_twice() -> None:
    file = SparseFile(4 * PAGE)
    for _ in range(2):
        file.allocate(0, 2 * PAGE)[:] = b"x" * (2 * PAGE)
    file.discard(0, 2 * PAGE)
    assert bytes(file.view(0, 4)) == b"xxxx"
    file.discard(0, 2 * PAGE)
    assert bytes(file.view(0, 4)) == bytes(4)


def test_random_ranges_keep_what_is_needed() -> None:
    rng = random.Random(5)
    pages = 40
    file = SparseFile(pages * PAGE)
    needed: list[tuple[int, int, int]] = []
    for step in range(400):
        if needed and rng.random() < 0.5:
            start, end, _ = needed.pop(rng.randrange(len(needed)))
            file.discard(start, end)
        else:
            start = rng.randrange(pages * PAGE - 1)
            end = min(start + rng.randrange(1, 5 * PAGE), pages * PAGE)
            if any(low < end and start < high for low, high, _ in needed):
                continue
            needed.append((start, end, 1 + step % 255))
            file.allocate(start, end)[:] = bytes([1 + step % 255]) * (end - start)
        for low, high, value in needed:
            assert file.view(low, high) == bytes([value]) * (high - low)


def test_a_mapping_larger_than_memory_costs_what_is_touched() -> None:
    file, place = SparseFile(1 << 42), (1 << 40, 64 * MIB)
    for start in range(1 << 40, (1 << 40) + 64 * MIB, 8 * MIB):
        file.allocate(start, start + 4 * MIB)[:] = b"x" * (4 * MIB)
    assert resident_bytes(file, *place) >= 32 * MIB
    for start in range(1 << 40, (1 << 40) + 64 * MIB, 8 * MIB):
        file.discard(start, start + 4 * MIB)
    assert resident_bytes(file, *place) < MIB


def test_memory_goes_with_what_is_in_it() -> None:
    file = SparseFile(32 * MIB)
    ranges = [(3 * MIB + 7, 6 * MIB), (9 * MIB, 12 * MIB + 5)]
    for start, end in ranges:
        file.allocate(start, end)[:] = b"y" * (end - start)
    assert resident_bytes(file, 0, 32 * MIB) >= 5 * MIB
    file.discard(*ranges[0])
    assert bytes(file.view(9 * MIB, 9 * MIB + 4)) == b"yyyy"
    file.discard(*ranges[1])
    assert resident_bytes(file, 0, 32 * MIB) < MIB


def test_a_lack_of_address_space_is_an_error() -> None:
    with pytest.raises(Unsupported, match="no room for a mapping as large as the file"):
        SparseFile(1 << 62, path="k")


def test_the_mapping_lives_as_long_as_its_readers() -> None:
    file = SparseFile(PAGE)
    file.put(0, b"abc")
    source: pa.BufferReader = file.source()
    del file
    assert source.read(3) == b"abc"


def test_coverage_tells_what_came_to_nothing() -> None:
    coverage = Coverage()
    coverage.add(10, 30)
    coverage.add(20, 40)
    assert coverage.remove(10, 30) == [(10, 20)]
    assert coverage.is_idle(10, 20)
    assert not coverage.is_idle(10, 21)
    assert coverage.remove(0, 100) == [(20, 40)]
    assert coverage.remove(0, 100) == []
    assert coverage.is_idle(0, 1000)
    assert coverage.remove(5, 5) == []

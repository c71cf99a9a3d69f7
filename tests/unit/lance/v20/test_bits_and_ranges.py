"""Bitmaps at any position, row ranges, ends of rows: the arithmetic of pages, compared with plain Python."""

import numpy as np
import pytest

import aioprefetch as ap
from aioprefetch.lance.physical.protocols import aligned, copy_bits, fill_bits, packed
from aioprefetch.lance.physical.strings import StoredEnds
from aioprefetch.lance.physical.value import Bitmap, Value
from aioprefetch.lance.row_ranges import RowRanges


def _bits(memory: np.ndarray, offset: int, count: int) -> list[int]:
    return [int(bit) for bit in np.unpackbits(memory, bitorder="little")[offset : offset + count]]


def test_bits_are_copied_between_any_two_positions() -> None:
    rng = np.random.default_rng(1)
    for _ in range(2000):
        source = rng.integers(0, 256, int(rng.integers(1, 12)), np.uint8)
        offset = int(rng.integers(0, 8 * len(source)))
        count = int(rng.integers(0, 8 * len(source) - offset + 1))
        position = int(rng.integers(0, 20))
        target = rng.integers(0, 256, (position + count + 7) // 8 + 2, np.uint8)
        before = target.copy()
        copy_bits(source, offset, target, position, count)
        assert _bits(target, position, count) == _bits(source, offset, count)
        assert _bits(target, 0, position) == _bits(before, 0, position)
        assert target[(position + count + 7) // 8 :].tolist() == before[(position + count + 7) // 8 :].tolist()
        moved = aligned(source, offset, count)
        assert _bits(moved, 0, count) == _bits(source, offset, count)
        if offset % 8 == 0:
            assert np.shares_memory(moved, source) or not count


@pytest.mark.parametrize("value", [True, False])
def test_bits_are_filled_from_any_position(value: bool) -> None:
    for position in range(17):
        for count in range(19):
            target = np.full(6, 0xA5, np.uint8)
            fill_bits(target, position, count, value)
            assert _bits(target, position, count) == [int(value)] * count
            assert _bits(target, 0, position) == _bits(np.full(6, 0xA5, np.uint8), 0, position)


def test_row_ranges_within_a_page() -> None:
    rng = np.random.default_rng(2)
    for _ in range(300):
        bounds = sorted(set(rng.integers(0, 200, 2 * int(rng.integers(0, 8))).tolist()))
        pairs = list(zip(bounds[::2], bounds[1::2], strict=False))
        ranges = RowRanges.of(pairs)
        rows = [row for start, end in pairs for row in range(start, end)]
        assert ranges.rows == len(rows)
        assert [ranges.row_at(position) for position in range(len(rows))] == rows
        start, end = sorted(rng.integers(0, 210, 2).tolist())
        inside = ranges.within(start, end)
        found = [row for a, b in zip(inside.starts, inside.ends, strict=True) for row in range(a, b)]
        assert found == [row - start for row in rows if start <= row < end]
        assert inside.rows == len(found)
        assert not np.any(inside.starts >= inside.ends)


def test_a_plan_names_the_bytes_of_rows() -> None:
    ranges = RowRanges.of([(0, 3), (9, 17), (20, 21)])
    assert Value((1000, 1200), 25, 8).plan(ranges) == [(1000, 1024), (1072, 1136), (1160, 1168)]
    assert Bitmap((1000, 1004), 25).plan(ranges) == [(1000, 1001), (1001, 1003), (1002, 1003)]
    assert StoredEnds((1000, 1200), 25, 99, 98).plan(ranges) == [(1000, 1024), (1064, 1136), (1152, 1168)]
    assert Value((1000, 1100), 25, 8, "zstd").plan(ranges) == [(1000, 1100)]
    assert Value((1000, 1200), 25, 8).plan(RowRanges.one(4, 25)) == [(1032, 1200)]


@pytest.mark.parametrize("size", [0, 199])
def test_a_page_that_claims_more_than_it_has_is_refused(size: int) -> None:
    for make in (
        lambda: Value((1000, 1000 + size), 25, 8),
        lambda: StoredEnds((1000, 1000 + size), 25, 99, 98),
        lambda: Bitmap((1000, 1000 + size), 8 * 199 + 1),
    ):
        with pytest.raises(ap.errors.UntrustedMetadata):
            make()


def _stored(lengths: list[int | None], adjustment: int) -> np.ndarray:
    ends = np.cumsum([length or 0 for length in lengths], dtype=np.uint64)
    marks = [adjustment if length is None else 0 for length in lengths]
    return ends + np.array(marks, np.uint64)


def _decode(
    values: np.ndarray, ranges: RowRanges, adjustment: int, size: int
) -> tuple[list[int], list[int], RowRanges]:
    stored = StoredEnds((0, 8 * len(values)), len(values), adjustment, size)
    reads = [memoryview(values.tobytes()[start:end]) for start, end in stored.plan(ranges)]
    ends, contents = stored.decoder(ranges, iter(reads))
    out = np.zeros(ends.rows, np.int32)
    is_valid = ends.write(0, ends.rows, 7, out)
    valid = [1] * ends.rows if is_valid is None else is_valid.astype(int).tolist()
    return out.tolist(), valid, contents


def test_ends_of_wanted_rows_count_their_contents_alone() -> None:
    rng = np.random.default_rng(3)
    for _ in range(300):
        lengths = [None if rng.random() < 0.2 else int(rng.integers(0, 5)) for _ in range(40)]
        size = sum(length or 0 for length in lengths)
        bounds = sorted(set(rng.integers(0, 41, 2 * int(rng.integers(1, 6))).tolist()))
        pairs = list(zip(bounds[::2], bounds[1::2], strict=False)) or [(0, 40)]
        out, valid, contents = _decode(_stored(lengths, size + 1), RowRanges.of(pairs), size + 1, size)
        wanted = [lengths[row] for start, end in pairs for row in range(start, end)]
        assert out == (7 + np.cumsum([length or 0 for length in wanted])).tolist()
        assert valid == [int(length is not None) for length in wanted]
        before = np.concatenate([[0], np.cumsum([length or 0 for length in lengths])]).tolist()
        found = [(a, b) for a, b in zip(contents.starts, contents.ends, strict=True)]
        assert found == [(before[a], before[b]) for a, b in pairs if before[b] > before[a]]


@pytest.mark.parametrize(
    ("values", "pairs"),
    [
        ([3, 2, 5], [(0, 3)]),
        ([3, 4, 99], [(0, 3)]),
        ([3, 4, 11 + 11 + 3], [(0, 3)]),
        ([2**64 - 1, 4, 5], [(0, 3)]),
        ([5, 4, 6, 3], [(1, 2), (3, 4)]),
        ([5, 4, 6, 99], [(1, 2), (3, 4)]),
        ([1, 9, 4, 5, 6], [(0, 1), (2, 3), (1, 2)]),
        ([1, 9, 4, 5, 6], [(1, 3), (4, 5)]),
    ],
)
def test_ends_that_do_not_ascend_are_refused(values: list[int], pairs: list[tuple[int, int]]) -> None:
    with pytest.raises(ap.errors.UntrustedMetadata):
        _decode(np.array(values, np.uint64), RowRanges.of(pairs), 11, 10)


@pytest.mark.parametrize("adjustment", [0, -1, 1 << 63])
def test_an_adjustment_that_marks_everything_is_refused(adjustment: int) -> None:
    with pytest.raises(ap.errors.UntrustedMetadata):
        StoredEnds((0, 80), 10, adjustment, 5)


def test_packed_bits_are_read_by_arrow() -> None:
    assert packed(np.array([True, False, True])).tolist() == [5]

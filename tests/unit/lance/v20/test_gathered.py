"""Thousands of small responses joined: the bytes are right, and only used responses become views."""

import random
from itertools import accumulate

import numpy as np
import pytest

from aioprefetch.errors import Closed
from aioprefetch.lance.physical.reads import Gathered, Responses, gathered, joined
from aioprefetch.ranges import Range
from tests.profile import chosen
from tests.stores.scan_service import scene

DATA = random.Random("gathered").randbytes(100_000)


def made(sizes: list[int]) -> Gathered:
    bounds = [0, *accumulate(sizes)]
    return Gathered(np.frombuffer(DATA[: bounds[-1]], np.uint8), bounds)


def test_answers_one_by_one_and_together() -> None:
    plans = [made([3, 0, 5]), [memoryview(b"ab"), memoryview(b"")], made([4, 4])]
    one_by_one = [bytes(view) for plan in plans for view in plan]
    assert [bytes(view) for view in Responses(plans)] == one_by_one
    for first in range(8):
        for count in range(1, 8 - first):
            responses = Responses(plans)
            for _ in range(first):
                next(responses)
            assert joined(responses, count).tobytes() == b"".join(one_by_one[first : first + count])
            assert [bytes(view) for view in responses] == one_by_one[first + count :]


def test_it_is_a_sequence() -> None:
    found = made([3, 0, 5])
    assert [bytes(found[number]) for number in range(3)] == [DATA[:3], b"", DATA[3:8]]
    assert [bytes(view) for view in found[1:]] == [b"", DATA[3:8]]
    with pytest.raises(IndexError):
        found[3]


@pytest.mark.parametrize("seed", chosen(quick=range(2), full=range(6)))
async def test_ranges_in_any_order_are_put_together(seed: int) -> None:
    rng = random.Random(seed)
    starts = [rng.randrange(800_000) for _ in range(2000)]
    ranges: list[Range] = [(start, start + rng.randrange(1, 40)) for start in starts]
    if seed % 2:
        ranges.sort()
    async with scene(is_open=True, gap_bytes=100, request_bytes_max=50_000) as s:
        read = s.io.submit(ranges, 0)
        with pytest.raises(Closed):
            _ = read.stretches
        await read.arrive()
        found = gathered(ranges, read.stretches)
        assert found is not None
        assert [bytes(view) for view in found] == [bytes(view) for view in read.views]
        assert read.stretches == []  # The views were made from them.
        read.release()
        with pytest.raises(Closed):
            _ = read.stretches


async def test_few_or_large_responses_are_not_copied() -> None:
    async with scene(is_open=True) as s:
        for ranges in ([(number * 100, number * 100 + 8) for number in range(200)], [(0, 1000)] * 300):
            read = s.io.submit(ranges, 0)
            await read.arrive()
            assert gathered(ranges, read.stretches) is None


async def test_cut_and_resident_ranges_have_no_stretches() -> None:
    async with scene(is_open=True, request_bytes_max=1000) as s:
        cut = s.io.submit([(0, 100), (200, 5000)], 0)
        await cut.arrive()
        assert cut.stretches == []
        resident = s.io.submit([(0, 100), (s.pinned.size - 50, s.pinned.size)], 0)
        await resident.arrive()
        assert resident.stretches == []

"""The Bloom filter: what was added is in it, and how often it is wrong."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioprefetch.errors import ConfigInvalid
from aioprefetch.source.list import BloomFilter


@given(st.lists(st.text(max_size=5)), st.integers(1, 20))
def test_l10_what_was_added_is_in_it(keys: list[str], expected: int) -> None:
    """However much it had to grow."""
    one = BloomFilter(expected, 0.3)
    for number, key in enumerate(keys):
        one.add(key)
        assert all(added in one for added in keys[: number + 1])
    assert len(one) <= len(set(keys))


@pytest.mark.parametrize("rate", [0.1, 0.01])
@pytest.mark.parametrize("expected", [20_000, 500])
@pytest.mark.parametrize("seed", range(2))
def test_it_is_wrong_as_often_as_it_says(rate: float, expected: int, seed: int) -> None:
    """Also when it grew to forty times its size."""
    chance = random.Random(seed)
    one = BloomFilter(expected, rate)
    one.update(f"a/{chance.random()}" for _ in range(20_000))
    wrong = sum(f"b/{chance.random()}" in one for _ in range(20_000)) / 20_000
    assert rate / 10 < wrong < rate * 1.5
    assert len(one) > 20_000 * (1 - 1.5 * rate)


def test_its_size_is_what_its_rate_needs() -> None:
    one = BloomFilter(100_000, 0.01)
    one.update(str(number) for number in range(100_000))
    assert one.bytes < 1.5 * 100_000


@pytest.mark.parametrize(("expected", "rate"), [(0, 0.1), (10, 0.0), (10, 1.0)])
def test_sizes_that_cannot_be(expected: int, rate: float) -> None:
    with pytest.raises(ConfigInvalid):
        BloomFilter(expected, rate)

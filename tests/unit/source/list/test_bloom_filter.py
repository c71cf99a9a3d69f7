"""The Bloom filter: added keys are in it, and its error rate."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioprefetch.errors import ConfigInvalid
from aioprefetch.source.list.diff_lister import BloomFilter
from aioprefetch.testing.conformance.suite import checks
from tests.profile import combinations


@checks("source:L10")
@given(st.lists(st.text(max_size=5)), st.integers(1, 20))
def test_added_keys_are_in_it(keys: list[str], expected: int) -> None:
    """However much it had to grow."""
    one = BloomFilter(expected, 0.3)
    for number, key in enumerate(keys):
        one.add(key)
        assert all(added in one for added in keys[: number + 1])
    assert len(one) <= len(set(keys))


def test_its_error_rate_is_the_requested_one() -> None:
    """Also after it has grown to forty times its size."""
    for rate, expected, seed in combinations([0.1, 0.01], [20_000, 500], [0, 1]):
        chance = random.Random(seed)
        keys = BloomFilter(expected, rate)
        keys.update(f"a/{chance.random()}" for _ in range(20_000))
        wrong = sum(f"b/{chance.random()}" in keys for _ in range(20_000)) / 20_000
        assert rate / 10 < wrong < rate * 1.5, (rate, expected, seed)
        assert len(keys) > 20_000 * (1 - 1.5 * rate), (rate, expected, seed)


def test_its_size_follows_from_its_rate() -> None:
    keys = BloomFilter(20_000, 0.01)
    keys.update(str(number) for number in range(20_000))
    assert keys.bytes < 1.5 * 20_000


@pytest.mark.parametrize(("expected", "rate"), [(0, 0.1), (10, 0.0), (10, 1.0)])
def test_invalid_sizes_are_refused(expected: int, rate: float) -> None:
    with pytest.raises(ConfigInvalid):
        BloomFilter(expected, rate)

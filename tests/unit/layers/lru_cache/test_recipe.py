"""The recipe: what it refuses, and that it travels."""

import pickle
from dataclasses import FrozenInstanceError

import pytest

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.errors import ConfigInvalid
from aioprefetch.layers.lru_cache import LruCacheLayer
from tests.profile import each_of


class Recipe:
    """A cache that pickles."""

    def accessor(self) -> Accessor:
        raise NotImplementedError


@each_of(
    "options",
    [
        {"cache": None},
        {"cache": "file:///cache"},
        {"capacity_bytes": 0},
        {"capacity_bytes": 1.5},
        {"capacity_bytes": True},
        {"object_bytes_max": -1},
        {"revalidate_seconds": -0.1},
        {"revalidate_seconds": "0"},
        {"revalidate_seconds": float("nan")},
        {"cache_timeout_seconds": 0},
        {"cache_timeout_seconds": None},
    ],
)
def test_invalid_options_are_refused(options: dict[str, object]) -> None:
    name = next(iter(options))
    with pytest.raises(ConfigInvalid, match=name):
        LruCacheLayer(**{"cache": Recipe(), **options})  # type: ignore[arg-type]


def test_the_recipe_pickles_with_its_options_and_does_not_change() -> None:
    layer = LruCacheLayer(cache=Recipe(), capacity_bytes=5, object_bytes_max=4, revalidate_seconds=None)
    copy = pickle.loads(pickle.dumps(layer))
    assert isinstance(copy.cache, Recipe)
    assert (copy.capacity_bytes, copy.object_bytes_max, copy.revalidate_seconds) == (5, 4, None)
    assert copy.cache_timeout_seconds == 5.0
    with pytest.raises(FrozenInstanceError):
        layer.capacity_bytes = 6  # type: ignore[misc]

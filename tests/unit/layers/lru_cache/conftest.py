"""The fixture of these tests."""

from collections.abc import AsyncIterator

import pytest

from tests.unit.layers.lru_cache.harness import Bed, settle


@pytest.fixture
async def bed() -> AsyncIterator[Bed]:
    """A store and a cache in memory; closed in the end, when nothing may be held any more."""
    made = Bed()
    yield made
    await settle()
    await made.aclose()

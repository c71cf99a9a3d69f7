"""Hits that the cache's store has at hand: they end without a turn of the loop, and are checked as all others."""

from __future__ import annotations

import pytest

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.sink import CollectSink
from aioprefetch.values import ReadRequest
from tests.reliability.turns import at_once
from tests.unit.layers.lru_cache.harness import Bed, Holder, complete, read, read_settled

DATA = bytes(range(250)) * 10


@pytest.fixture
async def stack(bed: Bed) -> Accessor:
    """The stack, with an entry and its header in memory."""
    bed.holder = Holder(complete(bed.cache.inner, bed.cache_runtime))
    bed.put("k", DATA)
    made = bed.stack(revalidate_seconds=None)
    await read_settled(made, "k")
    await read(made, "k")
    return made


async def test_a_hit_ends_in_its_call(bed: Bed, stack: Accessor) -> None:
    sink = CollectSink()
    assert at_once(stack.read(ReadRequest(path="k", offset=5, size=10), sink)) is not None
    assert sink.to_bytes() == DATA[5:15]
    assert bed.gets == 1


async def test_damage_is_found_by_the_checksum(bed: Bed, stack: Accessor) -> None:
    ((name, found),) = bed.cache_store.store.objects.items()
    damaged = bytearray(found.data)
    damaged[5] ^= 1
    bed.cache_store.store.objects[name] = type(found)(data=bytes(damaged), metadata=found.metadata)
    assert await read_settled(stack, "k") == DATA
    assert bed.gets == 2
    assert bed.counters["failures"] == 1

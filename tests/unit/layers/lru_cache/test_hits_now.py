"""Hits that the cache's store has in memory: no task, the same checks, and the usual way wherever that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from aioprefetch.accessor.protocols import Accessor, WrappedAccessor
from aioprefetch.accessor.sink import Sink
from aioprefetch.errors import ObjectChanged
from aioprefetch.values import ReadHead, ReadReply, ReadRequest
from tests.unit.layers.lru_cache.harness import Bed, Holder, read, read_settled, settle

DATA = bytes(range(250)) * 10


class InMemory(WrappedAccessor):
    """A cache's store whose objects are in memory; ``before`` may raise, and says whether this one is."""

    def __init__(self, inner: Accessor, bed: Bed) -> None:
        super().__init__(inner)
        self.before: Callable[[], bool] = lambda: True
        self.count = 0
        self._objects = bed.cache_store.store.objects

    def read_now(self, request: ReadRequest, sink: Sink) -> ReadReply | None:
        """Read from the dict."""
        self.count += 1
        if not self.before():
            return None
        found = self._objects[request.path]
        assert request.size is not None
        data = found.data[request.offset : request.offset + request.size]
        head = ReadHead(
            start=request.offset,
            size=len(data),
            total=len(found.data),
            etag=found.metadata.etag,
            last_modified=found.metadata.last_modified,
        )
        sink.begin(head, path=request.path)
        sink.feed(data)
        return ReadReply(head=head, received=len(data))


@pytest.fixture
async def cache(bed: Bed) -> InMemory:
    """The store of the cache, with one object in the cache."""
    made = InMemory(bed.holder.built, bed)
    bed.holder = Holder(made)
    bed.put("k", DATA)
    return made


async def hits(bed: Bed) -> Accessor:
    """The stack, with the entry and its header in memory."""
    stack = bed.stack(revalidate_seconds=None)
    await read_settled(stack, "k")
    await read(stack, "k")
    bed.cache.calls.clear()
    bed.source.calls.clear()
    return stack


async def test_a_hit_in_memory_is_one_call(bed: Bed, cache: InMemory) -> None:
    stack = await hits(bed)
    before, spawned = cache.count, bed.runtime.supervisor.spawn
    bed.runtime.supervisor.spawn = None  # type: ignore[method-assign, assignment]  # No task is needed.
    try:
        assert await read(stack, "k", offset=5, size=10) == DATA[5:15]
    finally:
        bed.runtime.supervisor.spawn = spawned  # type: ignore[method-assign]
    assert cache.count == before + 1
    assert (bed.cache.calls["read"], bed.gets) == (0, 0)


async def test_hits_of_many_tasks_are_one_call_each(bed: Bed, cache: InMemory) -> None:
    """However many bytes they read together; another task gets its turns meanwhile."""
    stack = await hits(bed)
    before, spawned = cache.count, bed.runtime.supervisor.spawn
    bed.runtime.supervisor.spawn = None  # type: ignore[method-assign, assignment]  # No task is needed.
    turns, done = 0, False

    async def other() -> None:
        nonlocal turns
        while not done:
            turns += 1
            await asyncio.sleep(0)

    async def read_on() -> None:
        for start in range(20):
            assert await read(stack, "k", offset=start, size=1000) == DATA[start : start + 1000]

    task = asyncio.ensure_future(other())
    try:
        await asyncio.gather(*[read_on() for _ in range(20)])
    finally:
        done = True
        await task
        bed.runtime.supervisor.spawn = spawned  # type: ignore[method-assign]
    assert cache.count == before + 400
    assert (bed.cache.calls["read"], bed.gets) == (0, 0)
    assert turns >= 20


async def test_a_part_that_is_too_long_for_the_loop_takes_the_usual_way(bed: Bed, cache: InMemory) -> None:
    bed.put("k", data := bytes(range(250)) * 300)
    stack = await hits(bed)
    before = cache.count
    assert await read(stack, "k") == data
    assert (cache.count, bed.cache.calls["read"], bed.gets) == (before, 1, 0)


async def test_a_hit_that_is_elsewhere_takes_the_usual_way(bed: Bed, cache: InMemory) -> None:
    stack = await hits(bed)
    cache.before = lambda: False
    assert await read(stack, "k") == DATA
    assert (bed.cache.calls["read"], bed.gets) == (1, 0)


@pytest.mark.parametrize("number", [1, 2, 3, 4])
async def test_a_failing_call_is_a_failure_of_the_cache(bed: Bed, cache: InMemory, number: int) -> None:
    """For every call: the bytes come nevertheless."""
    stack = await hits(bed)
    calls = 0

    def failing() -> bool:
        nonlocal calls
        calls += 1
        if calls == number:
            raise RuntimeError("broken")
        return True

    cache.before = failing
    for _ in range(4):
        assert await read(stack, "k") == DATA
        await settle()
    assert bed.counters["failures"] == 1


async def test_a_replaced_file_is_found_by_its_etag(bed: Bed, cache: InMemory) -> None:
    """The entry is forgotten, and the object comes from its store or from the new file."""
    stack = await hits(bed)
    objects = bed.cache_store.store.objects
    (name,) = objects
    changed = True

    def replaced() -> bool:
        nonlocal changed
        if changed:
            changed = False
            raise ObjectChanged("another file", expected_etag="a", actual_etag="b")
        return True

    cache.before = replaced
    assert await read_settled(stack, "k") == DATA
    assert name in objects
    assert "failures" not in bed.counters


async def test_damage_is_found_by_the_checksum(bed: Bed, cache: InMemory) -> None:
    stack = await hits(bed)
    ((name, found),) = bed.cache_store.store.objects.items()
    damaged = bytearray(found.data)
    damaged[-5] ^= 1
    bed.cache_store.store.objects[name] = type(found)(data=bytes(damaged), metadata=found.metadata)
    assert await read_settled(stack, "k") == DATA
    assert bed.gets == 1
    assert bed.counters["failures"] == 1

"""The index: rebuilt after a restart, bounded in bytes, in the order of use."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from aioprefetch.values import ListRequest, ReadRequest, WriteRequest
from tests.unit.layers.lru_cache.harness import Bed, Gate, read, read_settled, settle

DATA = bytes(range(100)) * 10
ENTRY_BYTES = 1400  # a little more than one entry of DATA with its header


async def fill(bed: Bed, names: str, **options: object) -> None:
    stack = bed.stack(**options)
    for name in names:
        bed.put(name, name.encode() * 1000)
        await read_settled(stack, name)


async def cached(bed: Bed, names: str, **options: object) -> str:
    """Those of the objects that are served without the store, by a new process that trusts its entries."""
    await bed.restart()
    gate = Gate("read")
    bed.source.before = gate
    stack = bed.stack(revalidate_seconds=None, **options)
    found = ""
    for name in names:
        task = asyncio.create_task(read(stack, name))
        await settle()
        if task.done():
            assert task.result() == name.encode() * 1000
            found += name
        task.cancel()
        await asyncio.wait([task])
    bed.source.before = None
    return found


async def test_entries_survive_a_restart(bed: Bed) -> None:
    await fill(bed, "abc")
    await bed.restart()
    stack = bed.stack(revalidate_seconds=None)
    for name in "abc":
        for _ in range(3):
            assert await read(stack, name, offset=1, size=5) == name.encode() * 5
    assert bed.gets == 0
    # One listing; of each entry the header once, all of it with the first part, then only what is wanted.
    assert bed.cache.calls["list"] == 1
    assert bed.cache.calls["read"] == 3 + 9
    wanted = [request for request in bed.cache.requests if isinstance(request, ReadRequest) and request.offset]
    assert [request.size for request in wanted] == [1000, 5, 5] * 3


async def test_an_entry_of_a_former_life_is_revalidated_whatever_its_age(bed: Bed) -> None:
    await fill(bed, "a")
    await bed.restart()
    stack = bed.stack(revalidate_seconds=3600)
    for _ in range(2):
        assert await read(stack, "a") == b"a" * 1000
    assert bed.gets == 1
    assert bed.counters == {"hits": 2, "revalidations": 1}


async def test_the_bytes_are_bounded_and_the_least_recently_used_go_first(bed: Bed) -> None:
    stack = bed.stack(capacity_bytes=3 * ENTRY_BYTES, revalidate_seconds=None)
    for name in "abc":
        bed.put(name, name.encode() * 1000)
        await read_settled(stack, name)
    await read(stack, "a")  # used again, so b goes first
    bed.put("d", b"d" * 1000)
    await read_settled(stack, "d")
    assert len(bed.files) == 3
    assert sum(map(len, bed.files.values())) <= 3 * ENTRY_BYTES
    assert bed.counters["evictions"] == 1
    assert [event.name for event in bed.events].count("cache.evicted") == 1
    assert await cached(bed, "abcd") == "acd"


async def test_many_objects_at_once_keep_the_bound(bed: Bed) -> None:
    capacity = 3 * ENTRY_BYTES
    stack = bed.stack(capacity_bytes=capacity)
    for i in range(30):
        bed.put(f"k{i}", DATA)

    def check(name: str) -> None:
        assert sum(map(len, bed.files.values())) <= capacity

    bed.cache.before = check
    assert await asyncio.gather(*(read(stack, f"k{i}") for i in range(30))) == [DATA] * 30
    await settle()
    assert 0 < sum(map(len, bed.files.values())) <= capacity
    assert "failures" not in bed.counters


async def test_a_smaller_capacity_after_a_restart_evicts_the_oldest(bed: Bed) -> None:
    await fill(bed, "abcd")
    start = datetime.now(UTC)
    objects = bed.cache_store.store.objects
    ages = dict(zip("abcd", (3, 0, 4, 1), strict=True))  # c is the oldest, then a
    for key, stored in objects.items():
        age = ages[stored.data[-1:].decode()]
        metadata = replace(stored.metadata, last_modified=start - timedelta(hours=age))
        objects[key] = replace(stored, metadata=metadata)
    assert await cached(bed, "abcd", capacity_bytes=2 * ENTRY_BYTES) == "bd"
    assert len(bed.files) == 2


async def test_files_of_others_are_left_alone(bed: Bed) -> None:
    foreign = ["notes.txt", "objects/notes", "objects/00/" + "0" * 64, "objects/zz/" + "0" * 64 + "-" + "0" * 64]
    for name in foreign:
        bed.cache_store.store.put(WriteRequest(path=name), DATA)
    await fill(bed, "abc", capacity_bytes=2 * ENTRY_BYTES)
    assert await cached(bed, "abc", capacity_bytes=ENTRY_BYTES) == "c"
    assert set(foreign) < bed.files.keys()


async def test_of_two_entries_in_one_slot_the_later_one_stays(bed: Bed) -> None:
    """Another process left the entry of another version behind."""
    bed.put("k", DATA)
    await read_settled(bed.stack(), "k")
    left = dict(bed.cache_store.store.objects)
    bed.put("k", DATA + b"2")
    await read_settled(bed.stack(), "k")
    for key, stored in left.items():
        old = replace(stored.metadata, last_modified=datetime(2020, 1, 1, tzinfo=UTC))
        bed.cache_store.store.objects[key] = replace(stored, metadata=old)
        bed.cache_store.store._sorted = None
    assert len(bed.files) == 2
    await bed.restart()
    assert await read_settled(bed.stack(revalidate_seconds=None), "k") == DATA + b"2"
    assert bed.gets == 0
    assert len(bed.files) == 1


async def test_a_long_listing_is_read_page_by_page(bed: Bed) -> None:
    await fill(bed, "abcde")
    await bed.restart()
    original = bed.cache.inner.list_page
    bed.cache.inner.list_page = lambda request: original(replace(request, page_entries_max=2))  # type: ignore[method-assign]
    stack = bed.stack(revalidate_seconds=None)
    for name in "abcde":
        await read(stack, name)
    assert bed.gets == 0
    assert sum(isinstance(request, ListRequest) for request in bed.cache.requests) == 3


@pytest.mark.virtual
async def test_reads_pass_by_while_the_index_takes_long(bed: Bed) -> None:
    """Each page is in time, all of them are not: the rebuild goes on in the background."""
    await fill(bed, "abcde")
    await bed.restart()
    original = bed.cache.inner.list_page
    bed.cache.inner.list_page = lambda request: original(replace(request, page_entries_max=1))  # type: ignore[method-assign]
    loop = asyncio.get_running_loop()

    async def slow(name: str) -> None:
        if name == "list":
            future = loop.create_future()
            loop.call_later(4, future.set_result, None)
            await future

    bed.cache.before = slow
    start = loop.time()
    stack = bed.stack(revalidate_seconds=None, cache_timeout_seconds=5)
    assert await read(stack, "a") == b"a" * 1000
    assert (loop.time() - start, bed.gets) == (5, 1)
    for _ in range(4):
        await read(stack, "a")
    assert bed.gets == 4  # after 20 seconds the five pages were there
    assert bed.counters == {"misses": 4, "hits": 1}

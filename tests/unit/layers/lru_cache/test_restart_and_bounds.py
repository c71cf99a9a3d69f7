"""The index: rebuilt after a restart, bounded in bytes, in the order of use."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from aioprefetch.cache.index import LOOK_WRITTEN_SHARE
from aioprefetch.cache.objects import TAIL_READ_BYTES
from aioprefetch.errors import ConditionNotMatch, Unavailable
from aioprefetch.values import ListPage, ListRequest, ReadRequest, WriteRequest
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
    # One listing; of each entry the tail once, then the pieces that are touched.
    assert bed.cache.calls["list"] == 1
    assert bed.cache.calls["read"] == 3 + 9
    ranges = [request for request in bed.cache.requests if isinstance(request, ReadRequest) and request.size]
    assert [request.size for request in ranges] == [1000] * 9


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
        bed.put(f"k{i}", DATA[:-1] + bytes([i]))

    def check(name: str) -> None:
        assert sum(map(len, bed.files.values())) <= capacity

    bed.cache.before = check
    assert await asyncio.gather(*(read(stack, f"k{i}", size=9) for i in range(30))) == [DATA[:9]] * 30
    for _ in range(30):
        await settle()
    # Each is stored while others are being stored, and in the end those that were read last are there.
    assert sorted(data[999] for data in bed.files.values()) == [27, 28, 29]
    assert "failures" not in bed.counters


async def test_a_smaller_capacity_after_a_restart_evicts_the_oldest(bed: Bed) -> None:
    await fill(bed, "abcd")
    start = datetime.now(UTC)
    objects = bed.cache_store.store.objects
    ages = dict(zip("abcd", (3, 0, 4, 1), strict=True))  # c is the oldest, then a
    for key, stored in objects.items():
        age = ages[stored.data[:1].decode()]
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


async def test_the_order_is_that_of_the_reads_and_not_of_the_writes() -> None:
    """Room for three: reads back to back, whose objects are stored while others are being stored."""
    for first_to_end in ("", *"abc"):
        bed = Bed()
        stack = bed.stack(capacity_bytes=3 * ENTRY_BYTES, revalidate_seconds=None)
        for name in "abcd":
            bed.put(name, name.encode() * 1000)
        bed.source.chunk_bytes = 100
        gates = {"": Gate("body_close")} | {name: Gate("body_close") for name in "abc"}
        closes = iter(["a", "b", "c", ""])
        if first_to_end:
            bed.cache.before = lambda name, gates=gates, closes=closes: (
                gates[next(closes, "")](name) if name == "body_close" else None
            )
        for name in "abcad":
            assert await read(stack, name, size=10) == name.encode() * 10
            await settle()
        for name in dict.fromkeys((first_to_end, *"abc", "")):
            gates[name].opened.set()
            for _ in range(5):
                await settle()
        assert await cached(bed, "abcd") == "acd", first_to_end
        await bed.aclose()


async def test_an_entry_that_is_stored_late_evicts_none_that_was_read_later(bed: Bed) -> None:
    """Its write was slow, and meanwhile others were read: then it is the one that is not stored."""
    stack = bed.stack(capacity_bytes=2 * ENTRY_BYTES, revalidate_seconds=None)
    gate = bed.source.before = Gate("chunk")
    bed.put("a", b"a" * 1000)
    slow = asyncio.create_task(read(stack, "a"))
    await gate.reached.wait()
    bed.source.before = None
    for name in "bc":
        bed.put(name, name.encode() * 1000)
        await read_settled(stack, name)
    gate.opened.set()
    assert await slow == b"a" * 1000
    await settle()
    assert await cached(bed, "abc") == "bc"


# --- several processes over one cache -------------------------------------------------------------------------------


@pytest.fixture
async def other(bed: Bed) -> AsyncIterator[Bed]:
    """Another process over the same store and the same cache."""
    made = Bed(store=bed.store, cache_store=bed.cache_store)
    yield made
    await settle()
    await made.aclose()


async def test_processes_see_each_others_entries(bed: Bed, other: Bed) -> None:
    """Written after the index of the other one was loaded; and what one evicts is a miss of the other."""
    ours, theirs = bed.stack(revalidate_seconds=None), other.stack(revalidate_seconds=None)
    for stack in (ours, theirs):
        bed.put("first", DATA)
        await read_settled(stack, "first")
    assert (bed.gets, other.gets) == (1, 0)
    for number, (writer, reader) in enumerate([(ours, theirs), (theirs, ours)]):
        etag = bed.put(f"k{number}", DATA)
        await read_settled(writer, f"k{number}")
        gets = bed.gets + other.gets
        assert await read(reader, f"k{number}", offset=5, size=9) == DATA[5:14]
        assert await read(reader, f"k{number}", if_match=etag) == DATA
        assert bed.gets + other.gets == gets
    assert "failures" not in bed.counters | other.counters
    for name in list(bed.files):
        bed.cache_store.store.remove(name)
    assert await read_settled(ours, "k0") == DATA
    assert await read(theirs, "k0") == DATA
    assert (bed.counters["misses"], other.counters["misses"]) == (3, 1)
    assert "failures" not in bed.counters | other.counters


async def test_a_newer_version_that_another_process_stored_serves_a_pinned_read(bed: Bed, other: Bed) -> None:
    ours, theirs = bed.stack(), other.stack()
    bed.put("k", DATA)
    for stack in (ours, theirs):
        await read_settled(stack, "k")
    etag = bed.put("k", DATA[::-1])
    await read_settled(theirs, "k")
    gets = bed.gets
    assert await read(ours, "k", size=9, if_match=etag) == DATA[::-1][:9]
    assert bed.gets == gets
    assert len(bed.files) == 1


async def test_an_entry_that_another_process_replaced_is_left_to_it(bed: Bed, other: Bed) -> None:
    """Found out by the ETag of the file, although both have as many bytes: no damage, and nothing is deleted."""
    ours, theirs = bed.stack(), other.stack()
    old = bed.put("k", DATA)
    await read_settled(ours, "k")
    bed.put("k", DATA[::-1])
    await read_settled(theirs, "k")
    files = bed.files
    with pytest.raises(ConditionNotMatch):
        await read(ours, "k", size=9, if_match=old)
    assert bed.files == files
    assert "failures" not in bed.counters
    assert await read(ours, "k", size=9) == DATA[::-1][:9]
    assert bed.counters["misses"] == 2


async def test_a_long_header_is_read_out_of_one_file(bed: Bed, other: Bed) -> None:
    """It takes two reads. A file that another process replaces between them is a miss, no damage, and stays."""
    path = "k" * (TAIL_READ_BYTES - 200)  # The header holds it, and the facts behind it are cut by the first read.
    ours, theirs = bed.stack(), other.stack()
    for name in ("first", path):
        bed.put(name, DATA)
    await read_settled(ours, "first")
    await read_settled(theirs, path)
    gate = bed.cache.before = Gate("read", passing=1)
    reading = asyncio.create_task(read(ours, path, size=9))
    await gate.reached.wait()
    bed.put(path, DATA[::-1])
    await read_settled(theirs, path)
    files = bed.files
    gate.opened.set()
    assert await reading == DATA[::-1][:9]
    assert "failures" not in bed.counters
    assert bed.files.keys() == files.keys()


async def test_a_write_of_one_process_drops_the_entry_of_another(bed: Bed, other: Bed) -> None:
    """Also one that was stored in the middle of the write."""
    ours, theirs = bed.stack(revalidate_seconds=None), other.stack(revalidate_seconds=None)
    bed.put("k", DATA)

    async def read_first(name: str) -> None:
        if name == "write":
            assert await read_settled(theirs, "k") == DATA

    await read_settled(ours, "k")
    bed.source.before = read_first
    await ours.write(WriteRequest(path="k"), b"new")
    bed.source.before = None
    await settle()
    assert bed.files == {}
    assert await read_settled(theirs, "k") == b"new"
    assert await read(ours, "k") == b"new"


async def test_an_entry_that_is_looked_up_while_it_is_invalidated_is_not_served(bed: Bed, other: Bed) -> None:
    """Not even where its file cannot be deleted."""
    ours, theirs = bed.stack(revalidate_seconds=None), other.stack(revalidate_seconds=None)
    bed.put("first", DATA)
    await read_settled(ours, "first")
    bed.put("k", DATA)
    await read_settled(theirs, "k")
    gate = Gate("chunk")

    def before(name: str) -> Awaitable[None] | None:
        if name == "delete":
            raise Unavailable("not now")
        return gate(name)

    bed.cache.before = before
    task = asyncio.create_task(read(ours, "k"))
    await gate.reached.wait()
    await ours.write(WriteRequest(path="k"), b"new")
    gate.opened.set()
    assert await task == b"new"
    assert await read(ours, "k") == b"new"


@pytest.mark.virtual
async def test_the_bytes_of_all_processes_are_bounded(bed: Bed, other: Bed) -> None:
    capacity = 8 * ENTRY_BYTES
    stacks = [one.stack(capacity_bytes=capacity, revalidate_seconds=None) for one in (bed, other)]
    for number in range(60):
        bed.put(f"k{number}", DATA)
        assert await read_settled(stacks[number % 2], f"k{number}") == DATA
        await settle()
        assert sum(map(len, bed.files.values())) <= capacity + 2 * ENTRY_BYTES
    assert "failures" not in bed.counters | other.counters


@pytest.mark.virtual
async def test_an_entry_that_is_written_during_a_listing_stays_in_the_index(bed: Bed) -> None:
    """The listing does not have it. It is found as before, without another look at its header."""
    stack = bed.stack(capacity_bytes=LOOK_WRITTEN_SHARE * 1000, revalidate_seconds=None)
    for name in ("first", "a", "b"):
        bed.put(name, DATA)
    await read_settled(stack, "first")
    gate, original = Gate(""), bed.cache.inner.list_page

    async def held(request: ListRequest) -> ListPage:
        page = await original(request)
        await gate("")
        return page

    bed.cache.inner.list_page = held  # type: ignore[method-assign]
    await read_settled(stack, "a")
    await gate.reached.wait()
    await read_settled(stack, "b")
    gate.opened.set()
    await settle()
    reads = bed.cache.calls["read"]
    assert await read(stack, "b", size=9) == DATA[:9]
    assert bed.cache.calls["read"] == reads + 1


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

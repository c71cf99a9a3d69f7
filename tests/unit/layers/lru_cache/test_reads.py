"""What a read gets and what it costs: hits, ranges, conditions, revalidation, versions."""

import asyncio
from dataclasses import replace

import pytest

from aioprefetch.accessor.sink import CollectSink, Sink
from aioprefetch.errors import ConditionNotMatch, NotFound, RangeNotSatisfied, Unavailable
from aioprefetch.values import ReadHead, ReadReply, ReadRequest, StatRequest
from tests.unit.layers.lru_cache.harness import Bed, after, read, read_settled, settle

DATA = bytes(range(256)) * 20
TOTAL = len(DATA)
RANGES = [
    ({}, DATA),
    ({"offset": 0, "size": 10}, DATA[:10]),
    ({"offset": 100, "size": 1000}, DATA[100:1100]),
    ({"offset": 5000}, DATA[5000:]),
    ({"offset": TOTAL - 1, "size": 100}, DATA[-1:]),
    ({"offset": 0, "size": TOTAL}, DATA),
    ({"offset": 0, "size": TOTAL + 1}, DATA),
    ({"suffix": 7}, DATA[-7:]),
    ({"suffix": TOTAL + 5}, DATA),
]


@pytest.mark.parametrize(("fields", "expected"), RANGES)
async def test_a_miss_costs_one_get_and_a_trusted_hit_none(bed: Bed, fields: dict[str, int], expected: bytes) -> None:
    bed.put("k", DATA)
    stack = bed.stack(revalidate_seconds=None)
    assert await read_settled(stack, "k", **fields) == expected
    assert (bed.gets, bed.source.calls["stat"]) == (1, 0)
    for _ in range(2):
        assert await read(stack, "k", **fields) == expected
    assert (bed.gets, bed.source.calls["stat"]) == (1, 0)
    assert bed.counters == {"misses": 1, "fills": 1, "hits": 2}
    assert bed.source.broken_off == 0


@pytest.mark.parametrize("state", ["miss", "hit"])
async def test_heads_are_complete(bed: Bed, state: str) -> None:
    etag = bed.put("k", DATA)
    stack = bed.stack(revalidate_seconds=None)
    if state == "hit":
        await read_settled(stack, "k")
    sink = CollectSink()
    reply = await stack.read(ReadRequest(path="k", offset=3, size=4), sink)
    stored = bed.store.store.objects["k"].metadata
    assert reply.head == ReadHead(
        start=3, size=4, total=TOTAL, etag=etag, last_modified=stored.last_modified, content_type="text/x"
    )


@pytest.mark.parametrize("state", ["miss", "hit"])
async def test_a_range_at_or_beyond_the_end_is_not_satisfied(bed: Bed, state: str) -> None:
    bed.put("k", DATA)
    stack = bed.stack(revalidate_seconds=None)
    if state == "hit":
        await read_settled(stack, "k")
    for offset in (TOTAL, TOTAL + 1):
        with pytest.raises(RangeNotSatisfied) as caught:
            await read(stack, "k", offset=offset, size=5)
        assert (caught.value.total, caught.value.operation, caught.value.path) == (TOTAL, "read", "k")
    assert bed.gets == 1
    assert bed.counters["hits" if state == "hit" else "misses"] >= 1


async def test_an_empty_object_is_served(bed: Bed) -> None:
    bed.put("k", b"")
    stack = bed.stack(revalidate_seconds=None)
    for fields in ({}, {"suffix": 4}, {"size": 9}):
        assert await read_settled(stack, "k", **fields) == b""
    assert bed.gets == 1


async def test_empty_ranges_and_other_operations_pass_through(bed: Bed) -> None:
    bed.put("k", DATA)
    stack = bed.stack()
    assert (await stack.stat(StatRequest(path="k"))).size == TOTAL
    assert await read(stack, "k", offset=5, size=0) == b""
    assert bed.files == {}


async def test_each_unpinned_read_revalidates_once_and_a_pinned_one_does_not(bed: Bed) -> None:
    etag = bed.put("k", DATA)
    stack = bed.stack()
    await read_settled(stack, "k")
    assert bed.gets == 1
    for count in (1, 2, 3):
        assert await read(stack, "k", offset=count, size=5) == DATA[count : count + 5]
        assert bed.gets == 1 + count
        last = bed.source.requests[-1]
        assert isinstance(last, ReadRequest)
        assert last.if_none_match == etag
    for _ in range(3):
        assert await read(stack, "k", offset=7, size=5, if_match=etag) == DATA[7:12]
    assert bed.gets == 4
    assert await read(stack, "k", size=5, if_match="*") == DATA[:5]  # any version: this binds to none
    assert bed.gets == 5
    assert bed.counters == {"misses": 1, "fills": 1, "hits": 7, "revalidations": 4}


async def test_a_changed_object_is_fetched_by_the_revalidation_itself(bed: Bed) -> None:
    bed.put("k", DATA)
    stack = bed.stack()
    await read_settled(stack, "k")
    bed.put("k", b"new" + DATA)
    assert await read_settled(stack, "k", size=5) == (b"new" + DATA)[:5]
    assert bed.gets == 2
    assert len(bed.files) == 1
    assert await read(stack, "k") == b"new" + DATA
    assert bed.counters == {"misses": 2, "fills": 2, "hits": 1, "revalidations": 1}


async def test_a_store_that_ignores_the_condition_is_recognised_by_the_etag(bed: Bed) -> None:
    bed.put("k", DATA)

    async def deaf(request: ReadRequest, sink: Sink) -> ReadReply:
        return await original(replace(request, if_none_match=None), sink)

    original = bed.source.inner.read
    bed.source.inner.read = deaf  # type: ignore[method-assign]
    stack = bed.stack()
    await read_settled(stack, "k")
    assert await read(stack, "k", size=3) == DATA[:3]
    assert bed.source.broken_off == 1
    assert bed.counters == {"misses": 1, "fills": 1, "hits": 1, "revalidations": 1}


@pytest.mark.virtual
async def test_an_entry_is_trusted_for_its_seconds(bed: Bed) -> None:
    bed.put("k", DATA)
    stack = bed.stack(revalidate_seconds=10)
    await read_settled(stack, "k")
    start = bed.runtime.now()

    async def wait_until(seconds: float) -> None:
        future = bed.runtime.loop.create_future()
        bed.runtime.loop.call_at(start + seconds, future.set_result, None)
        await future

    await wait_until(9.9)
    await read(stack, "k")
    assert bed.gets == 1
    await wait_until(10.1)
    await read(stack, "k")
    assert bed.gets == 2  # revalidated at 10.1
    await wait_until(20.0)
    await read(stack, "k")
    assert bed.gets == 2
    await wait_until(20.2)
    await read(stack, "k")
    assert bed.gets == 3


@pytest.mark.virtual
async def test_an_entry_trusted_for_no_time_is_asked_about_in_the_same_tick(bed: Bed) -> None:
    """With 0 seconds every read asks, also one at the very moment of the last response."""
    bed.put("k", DATA)
    stack = bed.stack(revalidate_seconds=0)
    await read_settled(stack, "k")
    now = bed.runtime.now()
    for asked in (2, 3):
        assert await read(stack, "k") == DATA
        assert bed.gets == asked
    assert bed.runtime.now() == now


@pytest.mark.virtual
async def test_a_callers_own_question_renews_the_entry(bed: Bed) -> None:
    """Not modified for the caller is not modified for the entry: neither hit nor miss, and its seconds begin again."""
    etag = bed.put("k", DATA)
    stack = bed.stack(revalidate_seconds=10)
    await read_settled(stack, "k")
    await after(11)
    with pytest.raises(ConditionNotMatch):
        await read(stack, "k", if_none_match=etag)
    assert bed.counters == {"misses": 1, "fills": 1, "revalidations": 1}
    await after(9)
    assert await read(stack, "k") == DATA
    assert bed.gets == 2
    assert bed.counters == {"misses": 1, "fills": 1, "hits": 1, "revalidations": 1}
    assert [event.name for event in bed.events].count("cache.missed") == 1


async def test_a_question_about_what_is_not_cached_is_no_miss(bed: Bed) -> None:
    """Without an entry too: nothing was fetched that a cache could have served."""
    etag = bed.put("k", DATA)
    stack = bed.stack()
    with pytest.raises(ConditionNotMatch):
        await read(stack, "k", if_none_match=etag)
    assert bed.counters == {"revalidations": 1}
    with pytest.raises(ConditionNotMatch):
        await read(stack, "k", if_match='"another"', if_none_match='"third"')
    assert bed.counters == {"revalidations": 1, "misses": 1}
    assert await read_settled(stack, "k", if_none_match='"another"') == DATA
    assert bed.counters["misses"] == 2


async def test_an_object_that_is_gone_takes_its_entry_along(bed: Bed) -> None:
    bed.put("k", DATA)
    stack = bed.stack()
    await read_settled(stack, "k")
    bed.store.store.remove("k")
    with pytest.raises(NotFound) as caught:
        await read(stack, "k")
    assert caught.value.path == "k"
    await settle()
    assert bed.files == {}


async def test_a_failing_revalidation_fails_the_read_and_keeps_the_entry(bed: Bed) -> None:
    bed.put("k", DATA)
    stack = bed.stack()
    await read_settled(stack, "k")

    def fail(name: str) -> None:
        raise Unavailable("down")

    bed.source.before = fail
    with pytest.raises(Unavailable):
        await read(stack, "k")
    bed.source.before = None
    assert await read(stack, "k") == DATA
    assert bed.counters["revalidations"] == 1


async def test_another_etag_goes_to_the_store_and_keeps_the_entry(bed: Bed) -> None:
    etag = bed.put("k", DATA)
    stack = bed.stack()
    await read_settled(stack, "k")
    with pytest.raises(ConditionNotMatch):
        await read(stack, "k", if_match="another")
    assert bed.gets == 2
    assert await read(stack, "k", if_match=etag) == DATA
    assert bed.gets == 2


async def test_a_pinned_read_of_a_newer_version_replaces_the_entry(bed: Bed) -> None:
    bed.put("k", DATA)
    stack = bed.stack()
    await read_settled(stack, "k")
    etag = bed.put("k", b"newer")
    assert await read_settled(stack, "k", if_match=etag) == b"newer"
    assert len(bed.files) == 1
    assert await read(stack, "k", if_match=etag) == b"newer"
    assert bed.gets == 2


async def test_if_none_match_is_evaluated(bed: Bed) -> None:
    etag = bed.put("k", DATA)
    stack = bed.stack()
    with pytest.raises(ConditionNotMatch):  # nothing in the cache: the store's response
        await read(stack, "k", if_none_match=etag)
    assert bed.files == {}
    await read_settled(stack, "k")
    gets = bed.gets
    with pytest.raises(ConditionNotMatch):
        await read(stack, "k", if_none_match=etag)
    assert bed.gets == gets + 1  # the caller's condition is the revalidation
    with pytest.raises(ConditionNotMatch):
        await read(stack, "k", if_none_match=etag, if_match=etag)
    with pytest.raises(ConditionNotMatch):
        await read(stack, "k", if_none_match="*", if_match=etag)
    assert bed.gets == gets + 1
    assert await read(stack, "k", if_none_match="other") == DATA
    bed.put("k", b"new")
    assert await read(stack, "k", if_none_match=etag) == b"new"


async def test_versions_do_not_mix(bed: Bed) -> None:
    """The response's version serves reads that ask for it; a read by version is never taken for the current one."""
    bed.put("k", DATA)
    bed.source.amend = lambda head: replace(head, version="v1")
    stack = bed.stack(revalidate_seconds=None)
    await read_settled(stack, "k")
    assert await read(stack, "k", version="v1", size=9) == DATA[:9]
    assert bed.gets == 1
    bed.put("k", b"second")
    bed.source.amend = lambda head: replace(head, version="v2")
    assert await read_settled(stack, "k", version="v2") == b"second"
    assert bed.gets == 2
    assert await read(stack, "k") == DATA  # trusted, as configured
    assert await read(stack, "k", version="v2", suffix=3) == b"ond"
    assert bed.gets == 2
    last = bed.source.requests[-1]
    assert isinstance(last, ReadRequest)
    assert last.version == "v2"


async def test_an_object_without_etag_is_not_cached_and_not_tried_again(bed: Bed) -> None:
    bed.put("k", DATA)
    bed.source.amend = lambda head: replace(head, etag=None)
    stack = bed.stack()
    assert await read_settled(stack, "k", size=4) == DATA[:4]
    assert bed.gets == 2
    assert await read_settled(stack, "k", size=4) == DATA[:4]
    assert bed.gets == 3
    assert bed.files == {}
    bed.source.amend = None
    await read_settled(stack, "k")  # shows an ETag now, so the next read tries again
    assert await read_settled(stack, "k", offset=1, size=4) == DATA[1:5]
    assert len(bed.files) == 1


async def test_a_large_object_is_bypassed_and_remembered(bed: Bed) -> None:
    """The response that shows how large it is is broken off, for all who wait for it."""
    bed.put("k", DATA)
    stack = bed.stack(object_bytes_max=1000)
    found = await asyncio.gather(*(read(stack, "k", offset=number, size=10) for number in range(5)))
    assert found == [DATA[number : number + 10] for number in range(5)]
    assert (bed.gets, bed.source.broken_off) == (6, 1)
    assert await read_settled(stack, "k") == DATA
    assert bed.gets == 7
    assert bed.files == {}
    bed.put("k", b"small")
    assert await read_settled(stack, "k", size=10) == b"small"  # by itself, and seen to be another object
    assert await read_settled(stack, "k", size=10) == b"small"
    assert len(bed.files) == 1
    assert bed.counters == {"misses": 8, "fills": 1}


async def test_a_response_that_has_begun_and_has_no_reader_is_closed(bed: Bed) -> None:
    bed.put("k", DATA)
    stack = bed.stack(object_bytes_max=1000)
    for turns in range(12):
        task = asyncio.ensure_future(read(stack, f"k{turns}" if turns else "k"))
        bed.put(f"k{turns}", DATA)
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        await settle()
        assert bed.source.open_bodies == 0


async def test_a_response_that_shows_a_smaller_object_ends_the_bypassing(bed: Bed) -> None:
    bed.put("k", DATA)
    stack = bed.stack(object_bytes_max=1000)
    await read(stack, "k")
    bed.put("k", b"small")
    for _ in range(2):
        assert await read(stack, "k") == b"small"
        await settle()
    assert len(bed.files) == 1


async def test_a_read_far_inside_a_large_object_costs_one_get(bed: Bed) -> None:
    bed.put("k", DATA)
    stack = bed.stack(object_bytes_max=1000)
    assert await read(stack, "k", offset=4000, size=10) == DATA[4000:4010]
    assert bed.gets == 1


async def test_an_object_larger_than_the_capacity_is_not_stored(bed: Bed) -> None:
    bed.put("k", DATA)
    bed.put("just", DATA[:1000])
    stack = bed.stack(capacity_bytes=1000)
    assert await read_settled(stack, "k") == DATA
    assert await read_settled(stack, "just") == DATA[:1000]  # fits alone, but not with its header
    assert bed.files == {}


async def test_two_principals_never_share(bed: Bed) -> None:
    """The same store and path under two identities over one cache: each has its own entry."""
    etag = bed.put("k", DATA)
    others = Bed(store=bed.store, cache_store=bed.cache_store, info=replace(bed.store.info, principal="another"))
    mine, theirs = bed.stack(revalidate_seconds=None), others.stack(revalidate_seconds=None)
    await read_settled(mine, "k")

    def refuse(name: str) -> None:
        raise NotFound("not for you")

    others.source.before = refuse
    for fields in ({}, {"if_match": etag}):
        with pytest.raises(NotFound):
            await read(theirs, "k", **fields)
    others.source.before = None
    assert await read_settled(theirs, "k") == DATA
    assert len(bed.files) == 2
    await others.aclose()


async def test_events_tell_what_happened(bed: Bed) -> None:
    bed.put("k", DATA)
    stack = bed.stack()
    await read_settled(stack, "k")
    await read(stack, "k")
    assert [(event.name, event.path) for event in bed.events] == [
        ("cache.missed", "k"),
        ("cache.filled", "k"),
        ("cache.revalidated", "k"),
        ("cache.hit", "k"),
    ]

"""The shared fill: one GET for many readers, bytes as they arrive, waiters that come and go, memory."""

import asyncio
from dataclasses import replace
from typing import cast

import pytest

from aioprefetch.accessor.sink import CollectSink
from aioprefetch.cache.object_entry import slot_of
from aioprefetch.errors import Closed, ConditionNotMatch, ProtocolError, TimedOut, Unavailable
from aioprefetch.layers.lru_cache.fill import Fill
from aioprefetch.layers.lru_cache.lookup import Fills
from aioprefetch.runtime.options import RuntimeOptions
from aioprefetch.values import ReadHead, ReadRequest
from tests.unit.layers.lru_cache.harness import Bed, Gate, read, read_settled, settle

DATA = bytes(range(250)) * 40
TOTAL = len(DATA)
CHUNK = 1000


def gated(bed: Bed, passing: int, name: str = "chunk") -> Gate:
    """The source's bodies come in chunks, of which the first ``passing`` pass."""
    bed.put("k", DATA)
    bed.source.chunk_bytes = CHUNK
    gate = Gate(name, passing)
    bed.source.before = gate
    return gate


@pytest.mark.parametrize("revalidate_seconds", [0, None])
async def test_fifty_readers_share_one_get(bed: Bed, revalidate_seconds: float | None) -> None:
    bed.put("k", DATA)
    bed.source.chunk_bytes = CHUNK
    stack = bed.stack(revalidate_seconds=revalidate_seconds)
    ranges = [{"offset": 13 * i, "size": 500 + i} for i in range(40)] + [{"suffix": i} for i in range(1, 11)]
    whole = [DATA[13 * i : 13 * i + 500 + i] for i in range(40)] + [DATA[-i:] for i in range(1, 11)]
    reads = [read(stack, "k", **fields) for fields in ranges]
    assert await asyncio.gather(*reads) == whole
    assert bed.gets == 1
    await settle()
    assert bed.counters == {"misses": 50, "fills": 1}


async def test_fifty_readers_share_one_revalidation(bed: Bed) -> None:
    bed.put("k", DATA)
    stack = bed.stack()
    await read_settled(stack, "k")
    assert await asyncio.gather(*(read(stack, "k", size=i) for i in range(1, 51))) == [DATA[:i] for i in range(1, 51)]
    assert bed.gets == 2
    assert bed.counters == {"misses": 1, "fills": 1, "hits": 50, "revalidations": 1}


async def test_bytes_are_delivered_before_the_fill_ends(bed: Bed) -> None:
    gate = gated(bed, 3)
    stack = bed.stack()
    sink = CollectSink()
    whole = asyncio.create_task(stack.read(ReadRequest(path="k"), sink))
    assert await read(stack, "k", offset=100, size=2900) == DATA[100:3000]
    await settle()
    assert sink.to_bytes() == DATA[: 3 * CHUNK]
    assert not gate.opened.is_set()
    late = asyncio.create_task(read(stack, "k", offset=2900, size=200))
    await settle()
    assert not late.done()
    gate.opened.set()
    assert await late == DATA[2900:3100]
    await whole
    assert sink.to_bytes() == DATA
    assert bed.gets == 2  # The late one asks whether what arrives is still current.
    assert bed.counters["revalidations"] == 1


async def test_an_object_is_written_to_the_cache_while_it_arrives(bed: Bed) -> None:
    """What has arrived is written before the rest has; the entry appears when all of it is there."""
    gate = gated(bed, 3)
    stack = bed.stack()
    reading = asyncio.create_task(read(stack, "k"))
    await gate.reached.wait()
    await settle()
    assert bed.cache.calls["body_write"] >= 1
    assert bed.files == {}
    gate.opened.set()
    assert await reading == DATA
    await settle()
    assert bed.counters["fills"] == 1
    assert [data[:TOTAL] for data in bed.files.values()] == [DATA]


async def test_a_body_that_breaks_off_leaves_nothing_in_the_cache(bed: Bed) -> None:
    """Although a part of it was written already."""
    gate = gated(bed, 3)
    stack = bed.stack()
    reading = asyncio.create_task(read(stack, "k"))
    await gate.reached.wait()
    await settle()

    def fail(name: str) -> None:
        raise Unavailable("the line is cut")

    bed.source.before = fail
    gate.opened.set()
    with pytest.raises(Unavailable):
        await reading
    await settle()
    assert (bed.cache.calls["body_abort"], bed.files) == (1, {})


async def test_a_cancelled_waiter_does_not_disturb_the_others(bed: Bed) -> None:
    gate = gated(bed, 1)
    stack = bed.stack()
    first = asyncio.create_task(read(stack, "k"))  # it is the one that started the fill
    others = [asyncio.create_task(read(stack, "k", offset=i)) for i in range(5)]
    await gate.reached.wait()
    first.cancel()
    others[0].cancel()
    await settle()
    assert first.cancelled()
    gate.opened.set()
    assert await asyncio.gather(*others[1:]) == [DATA[i:] for i in range(1, 5)]
    await settle()
    assert bed.gets == 1
    assert bed.counters["fills"] == 1


@pytest.mark.parametrize("name", ["read", "chunk"])
async def test_a_fill_dies_with_its_last_waiter(bed: Bed, name: str) -> None:
    gate = gated(bed, 0 if name == "read" else 4, name)
    stack = bed.stack()
    tasks = [asyncio.create_task(read(stack, "k")) for _ in range(3)]
    await gate.reached.wait()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    again = asyncio.create_task(read(stack, "k"))  # does not join the dying one
    await settle()
    assert bed.source.open_bodies == (0 if name == "read" else 1)
    gate.opened.set()
    assert await again == DATA
    assert bed.gets == 2
    await settle()
    assert bed.counters["fills"] == 1


async def test_a_fill_that_is_half_done_goes_on_without_waiters(bed: Bed) -> None:
    gate = gated(bed, 5)
    stack = bed.stack()
    task = asyncio.create_task(read(stack, "k"))
    await gate.reached.wait()
    task.cancel()
    await asyncio.wait([task])
    gate.opened.set()
    await settle()
    assert bed.counters["fills"] == 1
    assert bed.runtime.budget.used_bytes == 0
    assert await read(stack, "k") == DATA
    assert bed.counters["hits"] == 1


async def test_a_served_reader_lets_the_fill_go_on(bed: Bed) -> None:
    gate = gated(bed, 1)
    stack = bed.stack()
    assert await read(stack, "k", size=10) == DATA[:10]
    gate.opened.set()
    await settle()
    assert bed.counters["fills"] == 1


async def test_a_failing_fill_fails_its_waiters_and_nothing_else(bed: Bed) -> None:
    gate = gated(bed, 3)
    stack = bed.stack()
    tasks = [asyncio.create_task(read(stack, "k", offset=i)) for i in range(3)]
    assert await read(stack, "k", size=2000) == DATA[:2000]
    await gate.reached.wait()

    def fail(name: str) -> None:
        raise Unavailable("the line is cut")

    bed.source.before = fail
    gate.opened.set()
    await settle()  # this chunk passes, the next fails
    errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(error, Unavailable) and error.path == "k" for error in errors)
    assert len({id(error) for error in errors}) == 3
    bed.source.before = None
    assert bed.files == {}
    assert await read_settled(stack, "k") == DATA
    assert bed.counters["fills"] == 1


async def test_a_short_body_is_never_stored(bed: Bed) -> None:
    bed.put("k", DATA)
    bed.source.amend = lambda head: replace(head, size=TOTAL + 1, total=TOTAL + 1)
    stack = bed.stack()
    with pytest.raises(ProtocolError, match="10000 bytes"):
        await read(stack, "k")
    await settle()
    assert bed.files == {}


async def test_a_foreign_exception_reaches_the_waiters(bed: Bed) -> None:
    """An inner layer may raise any exception: no reader hangs."""
    bed.put("k", DATA)
    stack = bed.stack()

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    stack._lookup._inner = type("Broken", (), {"read": fail, "capability": stack.capability})()  # type: ignore[attr-defined]
    with pytest.raises(ZeroDivisionError):
        await read(stack, "k")


@pytest.mark.virtual
async def test_a_waiter_keeps_its_own_deadline(bed: Bed) -> None:
    gate = gated(bed, 1)
    stack = bed.stack()
    patient = asyncio.create_task(read(stack, "k"))
    with pytest.raises(TimedOut) as caught:
        await read(stack, "k", deadline=bed.runtime.now() + 3)
    assert (caught.value.operation, caught.value.path) == ("read", "k")
    assert bed.runtime.now() == 3
    gate.opened.set()
    assert await patient == DATA


async def test_closing_the_runtime_ends_the_waiting(bed: Bed) -> None:
    gate = gated(bed, 1)
    stack = bed.stack()
    task = asyncio.create_task(read(stack, "k"))
    await gate.reached.wait()
    await bed.runtime.aclose()
    with pytest.raises(Closed):
        await task
    assert bed.source.open_bodies == 0


async def test_pinned_readers_join_the_version_they_are_pinned_to(bed: Bed) -> None:
    gate = gated(bed, 1)
    stack = bed.stack()
    etag = bed.store.store.objects["k"].metadata.etag
    first = asyncio.create_task(read(stack, "k"))
    await gate.reached.wait()
    pinned = asyncio.create_task(read(stack, "k", offset=5, if_match=etag))
    with pytest.raises(ConditionNotMatch):
        await read(stack, "k", if_match="another")
    await settle()
    gate.opened.set()
    assert [await first, await pinned] == [DATA, DATA[5:]]
    assert bed.gets == 2  # the second is the one of the other ETag


async def test_an_object_is_served_from_memory_while_it_is_written(bed: Bed) -> None:
    bed.put("k", DATA)
    gate = Gate("body_close")
    bed.cache.before = gate
    stack = bed.stack()
    assert await read(stack, "k") == DATA
    await gate.reached.wait()
    assert await read(stack, "k", offset=9) == DATA[9:]  # asks the store, as a stored entry would
    etag = bed.store.store.objects["k"].metadata.etag
    assert await read(stack, "k", offset=9, if_match=etag) == DATA[9:]
    assert bed.gets == 2
    assert bed.counters == {"misses": 1, "hits": 2, "revalidations": 1}
    assert bed.cache.calls["read"] == 1  # The look-up of the first read.
    gate.opened.set()
    await settle()
    assert bed.counters["fills"] == 1


async def test_an_older_version_is_not_stored_over_a_newer_one(bed: Bed) -> None:
    """The first fill is still being written when the second shows another version."""
    bed.put("k", DATA)
    gate = Gate("body_close")
    bed.cache.before = gate
    stack = bed.stack()
    await read(stack, "k")
    await gate.reached.wait()
    etag = bed.put("k", b"newer")
    assert await read(stack, "k") == b"newer"
    gate.opened.set()
    await settle()
    assert len(bed.files) == 1
    assert await read(stack, "k", if_match=etag) == b"newer"
    assert bed.counters == {"misses": 2, "fills": 1, "hits": 1}


async def test_memory_is_reserved_before_the_body_and_given_back(bed: Bed) -> None:
    gate = gated(bed, 1)
    stack = bed.stack()
    task = asyncio.create_task(read(stack, "k", size=10))
    await gate.reached.wait()
    assert bed.runtime.budget.used_bytes == TOTAL
    gate.opened.set()
    await task
    await settle()
    assert bed.runtime.budget.used_bytes == 0
    assert await read(stack, "k") == DATA
    assert bed.runtime.budget.used_bytes == 0


async def test_a_memory_full_of_waiting_readers_does_not_stand_still(bed: Bed) -> None:
    """Readers hold memory of their own while they wait for fills, which then go one by one."""
    bed.put("k", DATA)
    for i in range(5):
        bed.put(f"k{i}", DATA)
    stack = bed.stack()
    held = bed.runtime.budget.request(bed.runtime.budget.limit_bytes + 1, "demand")
    assert held.granted
    assert await asyncio.gather(*(read(stack, f"k{i}") for i in range(5))) == [DATA] * 5
    await settle()
    assert bed.counters == {"misses": 5, "fills": 5}
    bed.runtime.budget.cancel(held)


@pytest.mark.virtual
async def test_without_memory_reads_bypass_the_cache_after_a_while() -> None:
    bed = Bed(options=RuntimeOptions(budget_wait_seconds=7))
    gate = gated(bed, 0, "chunk")
    gate.passing = 1
    stack = bed.stack()
    held = bed.runtime.budget.request(bed.runtime.budget.limit_bytes + 1, "demand")
    bed.put("other", DATA)
    first = asyncio.create_task(read(stack, "k"))  # takes the one overdraft there is
    await gate.reached.wait()
    bed.source.before = None
    assert await read(stack, "other") == DATA
    assert bed.runtime.now() == 7
    gate.opened.set()
    assert await first == DATA
    bed.runtime.budget.cancel(held)
    assert await read(stack, "other") == DATA
    await settle()
    assert bed.counters["fills"] == 2
    await bed.aclose()


async def test_a_fill_that_has_not_opened_is_joined_by_equal_pins_only(bed: Bed) -> None:
    gate = gated(bed, 0, "read")
    stack = bed.stack()
    etag = bed.store.store.objects["k"].metadata.etag
    pins = [None, "another", etag, None, "another", etag]
    tasks = [asyncio.create_task(read(stack, "k", if_match=pin)) for pin in pins]
    await gate.reached.wait()
    await settle()
    gate.opened.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [results[i] for i in (0, 2, 3, 5)] == [DATA] * 4
    assert isinstance(results[1], ConditionNotMatch)
    assert isinstance(results[4], ConditionNotMatch)
    assert bed.gets == 3


async def test_a_fill_is_joined_by_reads_of_its_own_version_only(bed: Bed) -> None:
    gate = gated(bed, 0, "chunk")
    bed.source.amend = lambda head: replace(head, version="v2")
    stack = bed.stack()
    begun = asyncio.create_task(read(stack, "k"))
    await gate.reached.wait()
    bed.source.amend = None
    same = asyncio.create_task(read(stack, "k", version="v2"))
    await settle()
    assert bed.gets == 1
    other = asyncio.create_task(read(stack, "k", version="v1"))
    await settle()
    assert bed.gets == 2
    gate.opened.set()
    assert [await task for task in (begun, same, other)] == [DATA] * 3


class OpenedFill:
    """What the registry looks at."""

    def __init__(self, etag: str) -> None:
        self.slot = slot_of(("memory",), "k", None)
        self.head = ReadHead(start=0, size=1, total=1, etag=etag)
        self.is_invalidated = False

    def start(self, on_end: object) -> None:
        """Nothing is fetched."""


def test_only_earlier_fills_of_another_version_are_invalidated() -> None:
    fills = Fills()
    made = [OpenedFill(etag) for etag in ("old", "new", "new", "newest")]
    for fill in made:
        fills.start(cast("Fill", fill))
    fills.invalidate_older(cast("Fill", made[2]))
    assert [fill.is_invalidated for fill in made] == [True, False, False, False]

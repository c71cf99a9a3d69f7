"""Values, their parts and the chunks of shards: which requests they cost, and which version they are of."""

import asyncio
import gc
import pickle
import random
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import Buffer, cpu, default_buffer_prototype
from zarr.core.sync import sync

import aioprefetch as ap
from aioprefetch.runtime.events import Event
from aioprefetch.scheduler.pinned_file import TAIL_BYTES, PinnedFile
from aioprefetch.testing import FaultLayer, FaultServer, Injection, content
from aioprefetch.values import ReadRequest
from aioprefetch.zarr import Store
from aioprefetch.zarr.shard_reads import (
    AROUND_BYTES_MIN,
    AROUND_BYTES_UNPROVEN,
    SAVED_BYTES,
    SURPLUS_BYTES_UNPROVEN,
    SURPLUS_SHARE,
    Piece,
    ShardReads,
    Surplus,
    Surroundings,
)
from tests.stores.layer_stack import was_cancelled

KIB = 1 << 10
DATA = content(1 << 20)
INDEX = SuffixByteRequest(1 * KIB)
PROTOTYPE = default_buffer_prototype()


def over_memory(plan: tuple[Injection, ...] = (), **options: Any) -> ap.Operator:
    """An operator over a memory of its own, whose outermost layer keeps the requests."""
    return ap.Operator(ap.services.Memory(), **options).layer(FaultLayer(plan))


def ranges_read(store: Store) -> list[tuple[str, int, int | None, int | None]]:
    """Path, offset, size and suffix of each read so far."""
    accessor: Any = store.operator.accessor()
    reads = [request for request in accessor.requests if isinstance(request, ReadRequest)]
    return [(read.path, read.offset, read.size, read.suffix) for read in reads]


async def value(store: Store, key: str, part: ByteRequest | None = None) -> bytes | None:
    """The bytes of a value or of a part of it."""
    found = await store.get(key, PROTOTYPE, part)
    return None if found is None else found.to_bytes()


async def values(store: Store, *parts: tuple[str, ByteRequest | None]) -> list[bytes | None]:
    """The bytes of several parts."""
    found = await store.get_partial_values(PROTOTYPE, parts)
    return [None if one is None else one.to_bytes() for one in found]


def held_bytes(reads: ShardReads) -> int:
    """The bytes of all buffers that the reads of a shard keep in memory."""
    todo: list[Any] = [reads]
    buffers: dict[int, int] = {}
    while todo:
        for one in gc.get_referents(todo.pop()):
            if isinstance(one, memoryview):
                buffers[id(one.obj)] = len(memoryview(one.obj).cast("B"))
            elif isinstance(one, list | tuple | dict | Piece):
                todo.append(one)
    return sum(buffers.values())


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    """A store with a shard in it."""
    async with over_memory() as op:
        await op.write("shard", DATA)
        yield Store(op)


class TestShards:
    async def test_the_tail_brings_a_small_shard_whole(self) -> None:
        """Its index and all of its chunks: one request."""
        async with over_memory() as op:
            await op.write("shard", DATA[: 60 * KIB])
            store = Store(op)
            assert await value(store, "shard", INDEX) == DATA[59 * KIB : 60 * KIB]
            for start in (40 * KIB, 0, 20 * KIB):
                assert (
                    await value(store, "shard", RangeByteRequest(start, start + 10 * KIB)) == DATA[start:][: 10 * KIB]
                )
            assert ranges_read(store) == [("shard", 0, None, 64 * KIB)]

    async def test_an_index_at_the_beginning_brings_what_follows_it(self, store: Store) -> None:
        assert await value(store, "shard", RangeByteRequest(0, KIB)) == DATA[:KIB]
        assert await value(store, "shard", RangeByteRequest(KIB, 60 * KIB)) == DATA[KIB : 60 * KIB]
        assert ranges_read(store) == [("shard", 0, 64 * KIB, None)]

    @pytest.mark.parametrize("index", [INDEX, RangeByteRequest(0, KIB)], ids=["last", "first"])
    async def test_what_zarr_got_is_reported(self, index: ByteRequest) -> None:
        """The index and the chunks, not what came along with them."""
        async with over_memory() as op:
            await op.write("shard", DATA)
            store, seen = Store(op), list[Event]()
            op.events.subscribe(seen.append, "read.served")
            await value(store, "shard", index)
            for start in (100 * KIB, 200 * KIB, 210 * KIB):
                await value(store, "shard", RangeByteRequest(start, start + KIB))
            first = 0 if isinstance(index, RangeByteRequest) else len(DATA) - KIB
            starts = [first, 100 * KIB, 200 * KIB, 210 * KIB]
            assert [(event.facts["start"], event.facts["end"]) for event in seen] == [(at, at + KIB) for at in starts]
            assert [event.facts["tier"] for event in seen] == ["store", "store", "store", "memory"]

    async def test_what_parts_got_is_reported(self) -> None:
        async with over_memory() as op:
            await op.write("k", DATA)
            store, seen = Store(op), list[Event]()
            op.events.subscribe(seen.append, "read.served")
            await values(store, ("k", RangeByteRequest(5, 10)), ("k", SuffixByteRequest(7)))
            got = sorted((event.facts["start"], event.facts["end"]) for event in seen)
            assert got == [(5, 10), (len(DATA) - 7, len(DATA))]
            assert {event.facts["tier"] for event in seen} == {"store"}

    async def test_an_index_that_readers_had_is_reported_from_memory(self) -> None:
        """The store says that it has not changed, and sends nothing."""
        async with over_memory() as op:
            await op.write("shard", DATA)
            async with op.reader("shard") as reader:
                await reader.read_at(0, len(DATA))
                seen = list[Event]()
                op.events.subscribe(seen.append, "read.served")
                await value(Store(op), "shard", INDEX)
            assert [event.facts["tier"] for event in seen] == ["memory"]

    async def test_one_chunk_is_fetched_alone(self, store: Store) -> None:
        """No byte beside it, since it may be the only one."""
        await value(store, "shard", INDEX)
        assert await value(store, "shard", RangeByteRequest(5, 1005)) == DATA[5:1005]
        assert ranges_read(store)[1:] == [("shard", 5, 1000, None)]

    @pytest.mark.parametrize("seed", range(5))
    async def test_many_chunks_share_requests(self, store: Store, seed: int) -> None:
        """In any order: far fewer requests than chunks, and the right bytes."""
        await value(store, "shard", INDEX)
        starts = list(range(0, 960 * KIB, 8 * KIB))
        random.Random(seed).shuffle(starts)
        for start in starts:
            assert await value(store, "shard", RangeByteRequest(start, start + 8 * KIB)) == DATA[start:][: 8 * KIB]
        assert len(ranges_read(store)) <= len(starts) / 5

    @pytest.mark.parametrize("order", ["ascending", "shuffled", "every second"])
    async def test_a_shard_of_any_size_takes_little_memory(self, order: str) -> None:
        """What was read is dropped, what came along is bounded, and little is fetched in vain."""
        size, chunk, around = 8 << 20, 64 * KIB, 256 * KIB
        data = content(size)
        async with over_memory() as op:
            await op.write("shard", data)
            accessor: Any = op.accessor()
            file = await PinnedFile.open(accessor, op.runtime(), "shard", tail_bytes=KIB)
            reads = ShardReads(file, Surplus(), (0, 0), budget=op.runtime().budget, around_bytes_max=around)
            starts = list(range(0, size - chunk, chunk * 2 if order == "every second" else chunk))
            if order == "shuffled":
                random.Random(7).shuffle(starts)
            for start in starts:
                assert await reads.read(start, start + chunk) == data[start : start + chunk]
                assert held_bytes(reads) <= chunk + around + around + KIB
            fetched = [one.size or 0 for one in accessor.requests if isinstance(one, ReadRequest) and not one.suffix]
            assert sum(fetched) <= (size if order == "ascending" else 2 * size)
            assert len(fetched) < len(starts) or order == "every second"

    @pytest.mark.parametrize("has_index_first", [False, True])
    async def test_many_shards_at_once_stay_within_the_memory(self, has_index_first: bool) -> None:
        """What 100 tasks keep of a shard each is charged, and is little where there is little memory."""
        limit, count = 2 << 20, 100
        chunks = [RangeByteRequest(at, at + 8 * KIB) for at in range(16 * KIB, 900 * KIB, 40 * KIB)]
        index = RangeByteRequest(0, KIB) if has_index_first else INDEX
        all_have_begun = asyncio.Barrier(count + 1)

        async def read(store: Store, number: int) -> None:
            await value(store, f"many-{number}", index)
            for turn, chunk in enumerate(chunks):
                assert await value(store, f"many-{number}", chunk) == DATA[chunk.start : chunk.end]
                if turn == 3:
                    await all_have_begun.wait()
                    await all_have_begun.wait()

        async with over_memory(memory_bytes=limit, block_bytes=1 << 20) as op:
            for number in range(count):
                await op.write(f"many-{number}", DATA)
            budget = op.runtime().budget
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(read(Store(op), number)) for number in range(count)]
                await all_have_begun.wait()
                kept = [one for one in gc.get_objects() if isinstance(one, ShardReads) and "many-" in one.file.path]
                assert len(kept) == count
                assert 0 < sum(map(held_bytes, kept)) <= budget.used_bytes <= limit
                del kept
                await all_have_begun.wait()
            assert budget.peak_bytes <= limit
            tasks.clear()
            gc.collect()
            assert budget.used_bytes == 0

    async def test_a_chunk_is_read_again_after_it_was_dropped(self, store: Store) -> None:
        await value(store, "shard", INDEX)
        for start in (100 * KIB, 140 * KIB, 100 * KIB, 120 * KIB, 90 * KIB, 0):
            assert await value(store, "shard", RangeByteRequest(start, start + 50 * KIB)) == DATA[start:][: 50 * KIB]

    async def test_chunks_far_apart_move_few_bytes_beside_their_own(self) -> None:
        """What is fetched around them stays below what they have."""
        data = content(64 << 20)
        async with over_memory() as op:
            await op.write("shard", data)
            store = Store(op)
            await value(store, "shard", INDEX)
            for start in range(0, 60 << 20, 4 << 20):
                await value(store, "shard", RangeByteRequest(start, start + 100 * KIB))
            chunks = ranges_read(store)[1:]
            assert len(chunks) == 15
            assert sum(size or 0 for _, _, size, _ in chunks) <= 2 * 15 * 100 * KIB

    async def test_what_comes_with_indexes_and_is_not_read_is_not_asked_for_again(self) -> None:
        """One chunk of each of 100 shards, which lies elsewhere."""
        async with over_memory() as op:
            store = Store(op)
            for number in range(100):
                await op.write(f"shard-{number}", DATA)
                await value(store, f"shard-{number}", INDEX)
                await value(store, f"shard-{number}", RangeByteRequest(0, 4 * KIB))
            sizes = [(suffix or 0) - INDEX.suffix for _, _, _, suffix in ranges_read(store) if suffix]
            assert len(sizes) == 100
            assert sizes[0] > 0
            assert sum(sizes) <= SURPLUS_BYTES_UNPROVEN + 100 * 4 * KIB // SURPLUS_SHARE

    async def test_what_comes_with_indexes_and_is_read_comes_with_all(self) -> None:
        """100 shards that are whole with their index, however many are read at once; some are not there."""
        async with over_memory() as op:
            store = Store(op)
            await asyncio.gather(*(op.write(f"shard-{number}", DATA[: 40 * KIB]) for number in range(100)))

            async def read(number: int) -> None:
                assert await value(store, f"missing-{number}", INDEX) is None
                await value(store, f"shard-{number}", INDEX)
                for at in range(3):
                    await value(store, f"shard-{number}", RangeByteRequest(at << 13, (at + 1) << 13))

            for first in range(0, 100, 4):
                await asyncio.gather(*(asyncio.create_task(read(number)) for number in range(first, first + 4)))
            assert len(ranges_read(store)) == 200

    async def test_a_shard_that_is_overwritten_is_never_mixed(self, store: Store) -> None:
        """The chunks would be cut at the places of another index."""
        await value(store, "shard", INDEX)
        await store.operator.write("shard", DATA[::-1])
        with pytest.raises(ap.ObjectChanged):
            await value(store, "shard", RangeByteRequest(0, 100))
        assert await value(store, "shard", INDEX) == DATA[::-1][-KIB:]
        assert await value(store, "shard", RangeByteRequest(0, 100)) == DATA[::-1][:100]

    async def test_what_the_task_writes_itself_is_read_again(self) -> None:
        async with over_memory() as op:
            await op.write("shard", DATA[: 10 * KIB])
            store = Store(op)
            await value(store, "shard", INDEX)
            await store.set("shard", cpu.Buffer.from_bytes(b"new bytes"))
            assert await value(store, "shard", RangeByteRequest(4, 9)) == b"bytes"

    async def test_another_task_asks_the_store(self) -> None:
        """Nothing that one task has fetched is another's: the store is not a cache."""
        async with over_memory() as op:
            await op.write("shard", DATA[: 10 * KIB])
            store = Store(op)
            await value(store, "shard", INDEX)
            await op.write("shard", DATA[5:][: 10 * KIB])
            part = RangeByteRequest(10, 20)
            assert await asyncio.create_task(value(store, "shard", part)) == DATA[15:25]

    @pytest.mark.virtual
    async def test_a_task_that_comes_back_later_asks_the_store(self) -> None:
        async with over_memory() as op:
            await op.write("shard", DATA[: 10 * KIB])
            store = Store(op)
            await value(store, "shard", INDEX)
            await op.write("shard", DATA[5:][: 10 * KIB])
            loop = asyncio.get_running_loop()
            later = loop.create_future()
            loop.call_later(11, later.set_result, None)
            await later
            assert await value(store, "shard", RangeByteRequest(10, 20)) == DATA[15:25]

    async def test_a_chunk_beyond_the_shard_is_an_error(self, store: Store) -> None:
        """An index that lies must not give the values of an empty chunk."""
        await value(store, "shard", INDEX)
        with pytest.raises(ap.UntrustedMetadata):
            await value(store, "shard", RangeByteRequest(2 << 20, 3 << 20))

    @pytest.mark.parametrize("occurrence", range(4))
    async def test_a_request_that_fails_fails_its_read_alone(self, occurrence: int) -> None:
        plan = (Injection(operation="read", occurrence=occurrence, error=ap.PermissionDenied),)
        async with over_memory(plan) as op:
            await op.write("shard", DATA)
            store = Store(op)
            parts: list[ByteRequest] = [INDEX, *(RangeByteRequest(at << 18, (at << 18) + 99) for at in (0, 2, 1))]
            failures = 0
            for part in parts:
                try:
                    await value(store, "shard", part)
                except ap.PermissionDenied:
                    failures += 1
                    assert await value(store, "shard", part) is not None
            assert failures == 1
            assert await value(store, "shard", RangeByteRequest(7, 99)) == DATA[7:99]

    async def test_cancelled_at_every_suspension_nothing_is_left_behind(self) -> None:
        async def read_shard(store: Store) -> None:
            await value(store, "shard", INDEX)
            for at in (0, 2, 1):
                await value(store, "shard", RangeByteRequest(at << 18, (at << 18) + 99))

        suspension, cancelled = 0, True
        while cancelled:
            suspension += 1
            async with over_memory() as op:
                await op.write("shard", DATA)
                store = Store(op)
                cancelled = await was_cancelled(read_shard(store), suspension)
                assert await value(store, "shard", RangeByteRequest(7, 99)) == DATA[7:99]
                accessor: Any = store.operator.accessor()
                assert accessor.in_flight == 0
        assert suspension > 4


spans = st.tuples(st.integers(0, 1000), st.integers(1, 300)).map(lambda one: (one[0] << 10, (one[0] + one[1]) << 10))


@given(missing=st.lists(spans, min_size=1, max_size=12), before=st.integers(0, 1 << 22), after=st.integers(0, 1 << 22))
def test_a_window_has_what_is_missing_and_lies_in_what_is_free(
    missing: list[tuple[int, int]], before: int, after: int
) -> None:
    """And all windows together are bounded by what is read."""
    surroundings = Surroundings(8 << 20)
    read = fetched = 0
    for number, (start, end) in enumerate(missing):
        free = max(0, start - before), end + after
        surroundings.read(end - start, end - start)
        first, last = surroundings.window((start, end), free)
        assert free[0] <= first <= start < end <= last <= free[1]
        assert (last - first) - (end - start) <= (AROUND_BYTES_UNPROVEN if number else 0)
        read += end - start
        fetched += last - first
        assert fetched <= 2 * read + number * AROUND_BYTES_MIN


@given(st.lists(st.tuples(st.integers(1, 1 << 17), st.integers(0, 1 << 20), st.booleans()), max_size=60))
def test_what_comes_along_in_vain_is_bounded(shards: list[tuple[int, int, bool]]) -> None:
    """By a share of what is read; a chunk that came along pays for others."""
    surplus = Surplus()
    spent_bytes = read_bytes = 0
    for index_bytes, chunk_bytes, is_beside in shards:
        size = surplus.ask(index_bytes)
        assert size in (index_bytes, TAIL_BYTES)
        spent_bytes += size - index_bytes
        assert spent_bytes <= SURPLUS_BYTES_UNPROVEN + read_bytes // SURPLUS_SHARE
        came_along = is_beside and size > index_bytes
        surplus.read(chunk_bytes, came_along=came_along)
        read_bytes += chunk_bytes
        spent_bytes -= SAVED_BYTES if came_along else 0


class TestPartialValues:
    @pytest.mark.parametrize(
        "parts",
        [
            (SuffixByteRequest(5), RangeByteRequest(0, 5)),
            (OffsetByteRequest(150), SuffixByteRequest(100)),
            (OffsetByteRequest(150), SuffixByteRequest(100), RangeByteRequest(7, 9)),
        ],
        ids=str,
    )
    async def test_all_parts_of_a_value_are_of_one_version(self, parts: tuple[ByteRequest, ...]) -> None:
        """A value that is overwritten between two requests is an error, not a mixture."""
        whole = content(200)
        async with over_memory((Injection(operation="read", etag="older"),)) as op:
            await op.write("k", whole)
            with pytest.raises(ap.ObjectChanged):
                await values(Store(op), *(("k", one) for one in parts))
            assert await values(Store(op), *(("k", one) for one in parts)) == [sliced(whole, one) for one in parts]

    @pytest.mark.parametrize("occurrence", range(2))
    async def test_each_request_of_the_parts_of_a_value_may_fail(self, occurrence: int) -> None:
        plan = (Injection(operation="read", occurrence=occurrence, error=ap.PermissionDenied),)
        parts = (("k", SuffixByteRequest(5)), ("k", RangeByteRequest(0, 5)))
        async with over_memory(plan) as op:
            await op.write("k", DATA)
            store = Store(op)
            with pytest.raises(ap.PermissionDenied):
                await values(store, *parts)
            assert await values(store, *parts) == [DATA[-5:], DATA[:5]]

    async def test_parts_of_one_key_share_requests(self) -> None:
        """Ranges that lie close together, in the order asked for; keys that are not there."""
        async with over_memory() as op:
            await op.write("p/a", DATA)
            await op.write("p/b", b"0123456789")
            store = Store(op, "p")
            found = await values(
                store,
                ("a", RangeByteRequest(5000, 6000)),
                ("b", None),
                ("missing", RangeByteRequest(0, 5)),
                ("a", RangeByteRequest(0, 10)),
                ("a", RangeByteRequest(5000, 6000)),
                ("b", SuffixByteRequest(3)),
                ("b", RangeByteRequest(2, 4)),
                ("missing", None),
            )
            assert found == [DATA[5000:6000], b"0123456789", None, DATA[:10], DATA[5000:6000], b"789", b"23", None]
            reads = [read for read in ranges_read(store) if not read[0].endswith("missing")]
            assert sorted(reads, key=lambda read: read[0]) == [("p/a", 0, 6000, None), ("p/b", 0, None, None)]

    async def test_a_range_may_cross_the_end(self) -> None:
        async with over_memory() as op:
            await op.write("b", b"0123456789")
            store = Store(op)
            parts = [("b", RangeByteRequest(8, 20)), ("b", RangeByteRequest(1, 3))]
            assert (await values(store, *parts), len(ranges_read(store))) == ([b"89", b"12"], 1)
            with pytest.raises(ap.RangeNotSatisfied):
                await values(store, ("b", RangeByteRequest(10, 20)), ("b", RangeByteRequest(8, 9)))

    @given(data=st.data())
    async def test_every_part_is_the_slice_that_it_names(self, data: st.DataObject) -> None:
        whole = content(200)
        position = st.integers(0, 199)
        part = st.one_of(
            st.none(),
            st.builds(lambda start, size: RangeByteRequest(start, start + size), position, st.integers(0, 250)),
            st.builds(OffsetByteRequest, position),
            st.builds(SuffixByteRequest, st.integers(0, 250)),
        )
        parts = data.draw(st.lists(part, max_size=6))
        async with over_memory() as op:
            await op.write("k", whole)
            found = await values(Store(op), *(("k", one) for one in parts))
        assert found == [sliced(whole, one) for one in parts]

    async def test_the_first_failure_is_raised_as_it_is(self) -> None:
        plan = (Injection(operation="read", path="b", error=ap.PermissionDenied),)
        async with over_memory(plan) as op:
            await op.write("a", DATA)
            await op.write("b", DATA)
            store = Store(op)
            with pytest.raises(ap.PermissionDenied):
                await values(store, ("a", None), ("b", None))
            accessor: Any = store.operator.accessor()
            assert accessor.in_flight == 0


def sliced(whole: bytes, part: ByteRequest | None) -> bytes:
    """What Python says that a part is."""
    if isinstance(part, RangeByteRequest):
        return whole[part.start : part.end]
    if isinstance(part, OffsetByteRequest):
        return whole[part.offset :]
    if isinstance(part, SuffixByteRequest):
        return whole[-part.suffix :] if part.suffix else b""
    return whole


class TestLife:
    def test_it_works_in_the_thread_of_zarr_and_closes_there(self) -> None:
        """Its runtime is given up by ``close``, and the store may be used again."""
        op = ap.Operator.from_uri("memory://store-in-the-thread-of-zarr")
        with Store(op) as store:
            sync(store.set("k", cpu.Buffer.from_bytes(b"bytes")))
            runtime = sync(runtime_of(store))
            assert runtime.holders == 1
        assert runtime.closed
        assert read_in_zarr(store) == b"bytes"
        store.close()
        store.close()

    def test_two_stores_of_one_operator_share_a_runtime(self) -> None:
        op = ap.Operator.from_uri("memory://two-stores-of-one-operator")
        with Store(op) as one, Store(op, "p").with_read_only(True) as other:
            assert [read_in_zarr(store) for store in (one, other)] == [None, None]
            runtime = sync(runtime_of(one))
            assert sync(runtime_of(other)) is runtime
            one.close()
            assert not runtime.closed
        assert runtime.closed

    async def test_closing_on_a_loop_does_not_wait_for_it(self) -> None:
        async with over_memory() as op:
            store = await Store.open(op)
            await store.set("k", cpu.Buffer.from_bytes(b"bytes"))
            runtime = op.runtime()
            store.close()
            assert runtime.holders == 2
            for _ in range(10):
                await asyncio.sleep(0)
            assert runtime.holders == 1
            assert await op.read("k") == b"bytes"

    def test_stores_are_used_from_many_threads(self) -> None:
        op = ap.Operator.from_uri("memory://from-many-threads")
        with Store(op) as store:
            sync(store.set("k", cpu.Buffer.from_bytes(b"bytes")))
            found: list[bytes | None] = []
            threads = [threading.Thread(target=lambda: found.append(read_in_zarr(store))) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert found == [b"bytes"] * 8

    async def test_a_pickled_store_is_the_same(self) -> None:
        async with ap.Operator.from_uri("memory://a-pickled-store") as op:
            store = Store(op, "p", read_only=True)
            copy = pickle.loads(pickle.dumps(store))
            assert (copy, copy.prefix, copy.read_only) == (store, "p/", True)
            assert copy != store.with_read_only(False)
            assert copy != Store(op, "q", read_only=True)
            assert store != "a store"

    def test_what_is_no_operator_is_refused(self) -> None:
        operator: Any = "s3://bucket"
        with pytest.raises(ap.InvalidType, match="from_uri"):
            Store(operator)
        for text in ("/data", "s3://bucket/data"):
            with pytest.raises(ap.InvalidArgument, match="prefix is a directory of the operator"):
                Store(ap.Operator.from_uri("memory://"), text)

    async def test_a_store_of_an_http_server_is_read_only(self) -> None:
        """It cannot list either, and says so."""
        async with FaultServer({"data/k": b"bytes"}) as server, ap.Operator.from_uri(f"{server.url}/data/") as op:
            store = Store(op)
            assert await value(store, "k") == b"bytes"
            assert (store.supports_writes, store.supports_deletes, store.supports_listing) == (False, False, False)
            with pytest.raises(ap.Unsupported):
                await store.set("k", cpu.Buffer.from_bytes(b"other"))

    async def test_only_buffers_are_values(self) -> None:
        async with over_memory() as op:
            wrong: Any = b"bytes"
            with pytest.raises(TypeError, match="Buffer"):
                await Store(op).set("k", wrong)

    async def test_a_directory_goes_with_its_values(self, tmp_path: Any) -> None:
        """On a file system the directories would be listed although they are empty."""
        async with ap.Operator.from_uri(f"file://{tmp_path}") as op:
            store = Store(op)
            for key in ("a/c/0/0", "a/c/1/0", "b/zarr.json", "zarr.json"):
                await store.set(key, cpu.Buffer.from_bytes(b"v"))
            await store.delete_dir("a")
            assert sorted([name async for name in store.list_dir("")]) == ["b", "zarr.json"]
            await store.clear()
            assert [name async for name in store.list_dir("")] == []
            assert list(tmp_path.iterdir()) == []

    async def test_more_values_than_one_request_takes_are_deleted(self) -> None:
        async with over_memory() as op:
            store = Store(op)
            await asyncio.gather(*(store.set(f"d/{number}", EMPTY) for number in range(1000)))
            await store.set("e", EMPTY)
            await store.delete_dir("d")
            assert [key async for key in store.list()] == ["e"]


EMPTY: Buffer = cpu.Buffer.from_bytes(b"")


async def runtime_of(store: Store) -> Any:
    """The runtime of the running loop."""
    return store.operator.runtime()


def read_in_zarr(store: Store) -> bytes | None:
    """The value of ``k``, read in zarr's thread."""
    return sync(value(store, "k"))

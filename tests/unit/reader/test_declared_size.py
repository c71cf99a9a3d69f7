"""What a caller declares of an object stays its own: other readers see the object as it is."""

import asyncio
import dataclasses

import pytest

from aioprefetch.accessor.protocols import Accessor, Layer, WrappedAccessor
from aioprefetch.accessor.sink import Sink
from aioprefetch.errors import ConfigInvalid, ObjectChanged, RangeNotSatisfied
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import Metadata, ReadReply, ReadRequest, WriteRequest
from tests.profile import combinations, each_of
from tests.stores.disk_tier import BLOCK as DISK_BLOCK
from tests.stores.disk_tier import counts, disk_bench, written
from tests.stores.gated_reader import KIB, MIB, bench, settle
from tests.unit.reader.ahead import READS

BLOCK = 64 * KIB


@pytest.mark.parametrize("clone", [False, True])
async def test_a_declared_size_belongs_to_one_reader_and_its_clones(clone: bool) -> None:
    async with bench(200) as b:
        etag = (await b.operator.stat("k")).etag
        async with b.reader(size=100, etag=etag) as short:
            assert await short.read() == b.data[:100]
            if clone:
                async with short.clone() as twin:
                    assert await twin.read() == b.data[:100]
        async with b.reader() as reader:
            assert await reader.read() == b.data
            assert reader.size == 200
            assert await reader.read_at(150, 10) == b.data[150:160]


async def test_nothing_is_fetched_ahead_beyond_a_declared_size() -> None:
    async with bench(4 * MIB, prefetch_blocks=8) as b, b.reader(size=3 * BLOCK) as reader:
        assert await reader.read() == b.data[: 3 * BLOCK]
        reader.seek(0)
        while await reader.read(1000):
            pass
        await settle()
        assert sum(call.request.size or 0 for call in b.calls) == 3 * BLOCK


@each_of("policy", ["parquet", "hbase"])
@each_of("known", [(), ("size",), ("size", "etag")])
async def test_the_tail_comes_whole_however_much_is_known(policy: str, known: tuple[str, ...]) -> None:
    async with bench() as b:
        meta = await b.operator.stat("k")
        options = {name: getattr(meta, name) for name in known}
        async with b.reader(policy=policy, **options) as reader:
            assert await reader.read_at(MIB - 8, 8) == b.data[-8:]
            assert await reader.read_at(MIB - 5000, 100) == b.data[-5000:-4900]
        assert len(b.calls) == 1


async def test_a_footer_must_fit_into_memory() -> None:
    async with bench() as b:
        with pytest.raises(ConfigInvalid, match=r"footer_cache=16777216 .* memory_bytes=8388608"):
            b.reader(footer_cache=16 * MIB)


@each_of("turns", [(first, second) for first in range(4) for second in range(4)])
async def test_reads_beyond_the_end_do_not_disturb_the_first_request_of_others(turns: tuple[int, int]) -> None:
    async with bench(1) as b, b.reader() as reader:

        async def later(offset: int, count: int) -> bytes:
            for _ in range(count):
                await asyncio.sleep(0)
            return await reader.read_at(offset, 1)

        found = await asyncio.gather(later(5, 0), later(0, turns[0]), later(7, turns[1]))
        assert list(found) == [b"", b.data, b""]


async def test_many_tiny_blocks_in_one_request() -> None:
    async with bench(20_000, block_bytes=1) as b, b.reader() as reader:
        assert await reader.read() == b.data
        assert len(b.calls) == 2


# --- declared too long ----------------------------------------------------------------------------------------------

REAL = 5 * BLOCK + 1000
SHORT_READS = sorted(set(READS) - {"read_ranges", "iter_ranges", "stream"})


@each_of(
    ("declared", "policy", "growth", "with_etag"),
    combinations(
        [REAL + 1, 6 * BLOCK, 9 * BLOCK, 1 << 62],
        ["adaptive", "sequential", "random", "parquet", "whole-file"],
        ["stall", "step"],
        [False, True],
    ),
)
async def test_all_that_is_there_is_read_whatever_was_declared(
    with_etag: bool, growth: str, policy: str, declared: int
) -> None:
    """In order, by stream, and at once; then the size is the object's."""
    async with bench(REAL, prefetch_blocks=4) as b:
        etag = (await b.operator.stat("k")).etag if with_etag else None
        for way in ("read", "stream", "read_at"):
            async with b.reader(policy=policy, size=declared, etag=etag, prefetch_growth=growth) as reader:
                if way == "stream":
                    found = b"".join([chunk async for chunk in reader.stream(10_000)])
                else:
                    found = await (reader.read() if way == "read" else reader.read_at(0, declared))
                assert found == b.data
                assert reader.size == REAL
                assert await reader.read_at(REAL, 10) == b""
                assert reader.seek(-10, 2) == REAL - 10
                assert await reader.read() == b.data[-10:]


@each_of(
    ("way", "start", "with_etag", "policy"),
    combinations(SHORT_READS, [REAL - 10, REAL, 8 * BLOCK + 5], [False, True], ["adaptive", "random"]),
)
async def test_every_way_to_read_is_short_where_the_object_ends(
    policy: str, with_etag: bool, start: int, way: str
) -> None:
    """As the first read of a reader, and as a later one."""
    async with bench(REAL) as b:
        etag = (await b.operator.stat("k")).etag if with_etag else None
        for first in (start, 0):
            async with b.reader(policy=policy, size=9 * BLOCK, etag=etag) as reader:
                await reader.read_at(first, 1)
                assert await READS[way](reader, start, 100) == b.data[start : start + 100]
                assert await READS[way](reader, 3, 100) == b.data[3:103]


@each_of(
    ("policy", "way", "with_etag"),
    combinations(["sequential", "random", "parquet"], ["read_ranges", "iter_ranges"], [False, True]),
)
async def test_ranges_are_whole_or_an_end_of_file(with_etag: bool, way: str, policy: str) -> None:
    """Of several ranges none comes short."""
    async with bench(REAL) as b:
        etag = (await b.operator.stat("k")).etag if with_etag else None
        async with b.reader(policy=policy, size=9 * BLOCK, etag=etag) as reader:
            assert await READS[way](reader, 5, 100) == b.data[5:105]
        for start in (REAL - 50, REAL + 50, 8 * BLOCK):
            async with b.reader(policy=policy, size=9 * BLOCK, etag=etag) as reader:
                with pytest.raises(EOFError) as caught:
                    await READS[way](reader, start, 100)
                assert isinstance(caught.value, RangeNotSatisfied)
                assert caught.value.total == REAL
                assert await READS[way](reader, 5, 100) == b.data[5:105]


@pytest.mark.parametrize("size", [REAL + 1, 9 * BLOCK])
async def test_a_stale_status_without_an_etag_is_a_hint(size: int) -> None:
    async with bench(REAL) as b:
        for builder in (
            b.operator.open_file("k").with_status(Metadata(path="k", size=size)),
            b.operator.open_file("k").opt_long("fs.option.openfile.length", size),
        ):
            async with await builder.build() as reader:
                assert await reader.read_exactly_at(REAL - 10, 10) == b.data[-10:]
                assert await reader.read_at(REAL - 10, 100) == b.data[-10:]
                with pytest.raises(EOFError):
                    await reader.read_exactly_at(REAL - 10, 11)


@each_of("offset", [0, REAL - 1, 8 * BLOCK])
@each_of("understands_conditions", [True, False])
async def test_a_stale_status_with_an_etag_is_a_changed_object(understands_conditions: bool, offset: int) -> None:
    """Whatever its size says, and whether or not the store looks at conditions."""
    async with bench(REAL) as b:
        b.gate.open = understands_conditions
        status = Metadata(path="k", size=9 * BLOCK, etag="stale")
        async with await b.operator.open_file("k").with_status(status).build() as reader:
            reading = asyncio.create_task(reader.read_at(offset, 10))
            if not understands_conditions:
                call = await b.next_call()
                call.request = dataclasses.replace(call.request, if_match=None)
                call.finish()
            with pytest.raises(ObjectChanged):
                await reading


async def test_an_object_that_shrinks_under_its_etag_after_it_was_read_has_changed() -> None:
    """A declared size is given up for what the first response says, and for no later one."""
    async with bench(REAL) as b:
        etag = (await b.operator.stat("k")).etag
        async with b.reader(size=REAL, etag=etag) as reader:
            assert await reader.read_at(0, 10) == b.data[:10]
            b.gate.falsify = lambda head: dataclasses.replace(head, total=REAL - 1)
            with pytest.raises(ObjectChanged):
                await reader.read_at(3 * BLOCK, 10)


async def test_readers_that_declare_the_same_size_find_the_same_end() -> None:
    """They share blocks; what one has found out holds for the other, and all is given back."""
    async with bench(REAL) as b:
        etag = (await b.operator.stat("k")).etag
        async with b.reader(size=9 * BLOCK, etag=etag) as one, b.reader(size=9 * BLOCK, etag=etag) as other:
            assert await other.read_at(0, 10) == b.data[:10]
            assert await one.read_at(5 * BLOCK, BLOCK) == b.data[5 * BLOCK :]
            assert await other.read() == b.data
            assert other.size == REAL
        async with b.reader(size=9 * BLOCK, etag=etag) as late:
            assert await late.read() == b.data
        assert len(b.calls) <= 6


async def test_blocks_of_a_size_that_was_wrong_are_written_as_what_they_are(tmp_path: object) -> None:
    """The last block is as long as the object has it, on the disk too."""
    async with disk_bench(tmp_path, blocks=6, memory_blocks=2) as b:  # type: ignore[arg-type]
        b.data = b.data[:-100]
        b.put(b.data)
        etag = (await b.operator.stat("k")).etag
        async with b.reader(size=6 * DISK_BLOCK, etag=etag) as reader:
            for _ in range(3):
                for start in (*range(5 * DISK_BLOCK, -1, -DISK_BLOCK), 0):
                    assert await reader.read_at(start, DISK_BLOCK) == b.data[start : start + DISK_BLOCK]
                    await written(b)
        assert counts(b)[2] == 0


# --- declared too short ---------------------------------------------------------------------------------------------


@each_of(
    ("policy", "size", "with_etag"),
    combinations(
        ["adaptive", "sequential", "whole-file", "random", "parquet", "hbase"],
        [100, BLOCK, 2 * BLOCK + 7],
        [False, True],
    ),
)
async def test_nothing_beyond_a_declared_size_is_asked_for(with_etag: bool, size: int, policy: str) -> None:
    """Not to the end of its block either: no read can give it out."""
    async with bench(4 * MIB, prefetch_blocks=8) as b:
        etag = (await b.operator.stat("k")).etag if with_etag else None
        async with b.reader(policy=policy, size=size, etag=etag) as reader:
            assert await reader.read_at(0, 100) == b.data[:100]
            assert await reader.read_at(size - 50, 100) == b.data[size - 50 : size]
            while await reader.read(10_000):
                pass
            await settle()
        assert all(end is not None and end <= size for _, end in b.ranges)
        assert sum((end or 0) - start for start, end in b.ranges) == size
        if size == 100:
            assert b.ranges == [(0, 100)]


async def test_who_declares_less_shares_what_it_read_with_the_others() -> None:
    """And takes nothing from them: they read the object to its end."""
    async with bench(2 * BLOCK) as b, b.reader(size=100) as short, b.reader() as reader:
        assert await short.read() == b.data[:100]
        assert await reader.read() == b.data
        assert await short.read_at(0, 1000) == b.data[:100]


async def test_an_object_that_shrinks_while_it_is_opened_is_read_as_it_is() -> None:
    """Its first response tells a size that is too large again when the second one comes."""

    class Shrinking(WrappedAccessor):
        async def read(self, request: ReadRequest, sink: Sink) -> ReadReply:
            try:
                return await self.inner.read(request, sink)
            except RangeNotSatisfied:
                size = next(sizes, None)
                if size is not None:
                    await self.inner.write(WriteRequest(path="k"), bytes(size))
                raise

    class ShrinkingLayer(Layer):
        def wrap(self, inner: Accessor, runtime: Runtime) -> Accessor:
            return Shrinking(inner)

    sizes = iter([300 * KIB, 200 * KIB])
    async with bench(MIB, layers=[ShrinkingLayer()]) as b, b.reader(policy="parquet", size=2 * MIB) as reader:
        assert await reader.read_at(0, 100) == bytes(100)
        assert reader.size == 200 * KIB

"""What build() returns: an awaitable that needs no loop to be made, and is the keyword form in other words."""

import asyncio
import inspect
from collections.abc import Awaitable

import pytest

from aioprefetch import Metadata, Operator, RangeReader
from aioprefetch.open_file import PendingReader
from aioprefetch.open_file import keys as k
from aioprefetch.services import Memory
from tests.unit.gates import bench, settle


def test_building_needs_no_loop() -> None:
    """Made outside of every loop, awaited on one."""
    operator = Operator(Memory())
    pending = operator.open_file("k").opt(k.READ_POLICY, "random").build()
    missing = operator.open_file("none").build()
    assert isinstance(pending, PendingReader)
    assert isinstance(pending, Awaitable)
    assert inspect.isawaitable(pending)

    async def read() -> bytes:
        async with operator:
            await operator.write("k", b"0123456789")
            async with await pending as reader:
                with pytest.raises(FileNotFoundError):
                    await (await missing).read()
                return await reader.read_at(3, 4)

    assert asyncio.run(read()) == b"3456"


async def test_it_may_be_awaited_any_number_of_times() -> None:
    """The same reader each time; another build() opens another."""
    async with bench(1000) as b:
        builder = b.operator.open_file("k").opt(k.LENGTH, 500)
        pending = builder.build()
        reader = await pending
        found = await asyncio.gather(pending, asyncio.ensure_future(pending), asyncio.wait_for(pending, 60))
        assert all(one is reader for one in found)
        other = await builder.opt(k.LENGTH, 400).build()
        assert other is not reader
        assert (reader.size, other.size) == (500, 400)
        await reader.aclose()
        assert await other.read() == b.data[:400]


async def test_a_cancelled_await_leaves_the_reader_to_the_next() -> None:
    async with bench(1000) as b:
        pending = b.operator.open_file("k").build()
        future = asyncio.ensure_future(pending)
        future.cancel()
        with pytest.raises(asyncio.CancelledError):
            await future
        await settle()
        assert b.calls == []
        async with await pending as reader:
            assert await reader.read() == b.data


async def test_keys_are_keywords_in_other_words() -> None:
    """Both go through the same options."""
    async with bench(1000) as b:
        built = await (
            b.operator.open_file("k")
            .must(k.READ_POLICY, "of-tomorrow, Parquet")
            .opt_long(k.SPLIT_START, 10)
            .must_long(k.SPLIT_END, 500)
            .opt(k.FOOTER_CACHE, False)
            .must(k.PREFETCH_BLOCK_SIZE, "16K")
            .opt(k.PREFETCH_BLOCK_COUNT, 3)
            .opt(k.PREFETCH_ENABLED, True)
            .buffer_size(4096)
            .with_status(Metadata(path="x/k", size=900, etag='"e"', version="v"))
            .build()
        )
        written = b.reader(
            policy="parquet",
            split=(10, 500),
            footer_cache=False,
            block_bytes=16 << 10,
            prefetch_blocks=3,
            prefetch_enabled=True,
            buffer_bytes=4096,
            size=900,
            etag="e",
            version="v",
        )
        assert isinstance(built, RangeReader)
        assert built._options == written._options
        assert (built.path, repr(built)) == (written.path, repr(written))


async def test_prefetching_switched_off() -> None:
    """Then reads ask for exactly their ranges, whatever the policy, and nothing is fetched ahead."""
    async with bench(1 << 20, prefetch_blocks=8) as b:
        for policy in ("whole-file", "adaptive", "parquet"):
            b.calls.clear()
            builder = b.operator.open_file("k").must(k.PREFETCH_ENABLED, "FALSE").opt(k.READ_POLICY, policy)
            async with await builder.build() as reader:
                for start in (5, 105, 205):
                    assert await reader.read_at(start, 100) == b.data[start : start + 100]
                await settle()
                assert b.ranges == [(5, 105), (105, 205), (205, 305)]
                await reader.unbuffer()

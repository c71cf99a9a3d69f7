"""What build() returns: an awaitable that needs no loop to be made, and is the keyword form in other words."""

import asyncio
import inspect
from collections.abc import Awaitable
from types import SimpleNamespace

import pytest

from aioprefetch import Metadata, Operator, RangeReader
from aioprefetch.errors import IsADirectory, NotFound
from aioprefetch.operator import open_file as k
from aioprefetch.operator.open_file import PendingReader
from aioprefetch.services import Memory
from tests.stores.gated_reader import bench, settle


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
        assert built.options == written.options
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


async def test_it_is_used_by_async_with() -> None:
    """As what `await` gives would be: closed at the end, and under whole-file asked for at the beginning."""
    async with bench(1000) as b:
        pending = b.operator.open_file("k").opt(k.READ_POLICY, "whole-file").build()
        async with pending as reader:
            assert isinstance(reader, RangeReader)
            await settle()
            assert len(b.calls) == 1
            assert await reader.read() == b.data
        assert reader.closed
        assert await pending is reader
        with pytest.raises(RuntimeError, match="left by an error"):
            async with b.operator.open_file("k").build() as other:
                raise RuntimeError("left by an error")
        assert other.closed


@pytest.mark.parametrize("use", ["await", "async with"])
async def test_a_directory_is_reported_when_it_is_used(use: str) -> None:
    """By whichever way, under the name of the verb that was called."""
    async with bench(1000) as b:
        listed = SimpleNamespace(path="k", is_directory=True)
        for pending, kind in (
            (b.operator.open_file("dir/").build(), IsADirectory),
            (b.operator.open_file("k").with_status(listed).build(), NotFound),
        ):
            using = pending if use == "await" else pending.__aenter__()
            with pytest.raises(kind) as caught:
                await using
            assert caught.value.operation == "open_file"


async def test_a_forgotten_await_says_so() -> None:
    async with bench(1000) as b:
        pending = b.operator.open_file("k").build()
        for name in ("read", "read_at", "size", "nothing_that_there_is"):
            with pytest.raises(AttributeError, match=r"await builder\.build\(\)") as caught:
                getattr(pending, name)
            assert (caught.value.name, caught.value.obj) == (name, pending)
        assert not hasattr(pending, "read")


async def test_what_is_shown_of_a_builder_and_its_reader() -> None:
    """The path and the known keys, which tell builders apart; no value of an unknown key."""
    async with bench(1000) as b:
        builder = b.operator.open_file("k").opt(k.READ_POLICY, "random").must_long(k.LENGTH, 500)
        builder.opt("fs.s3a.secret.key", "hunter2")
        shown = f"'k' {k.READ_POLICY}='random', {k.LENGTH}='500'"
        assert repr(builder) == f"<OpenFileBuilder {shown}>"
        pending = builder.build()
        builder.opt(k.LENGTH, None)
        assert repr(pending) == f"<PendingReader {shown}>"
        assert repr(b.operator.open_file("k")) == "<OpenFileBuilder 'k'>"

"""A size is that of one version: once a reader has reported it, it gives out no bytes of an object of another size."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import aioprefetch as ap
from aioprefetch import RangeReader
from aioprefetch.errors import ObjectChanged, RangeNotSatisfied
from aioprefetch.layers import LruCacheLayer
from aioprefetch.reader.policy import POLICIES, PolicyName
from aioprefetch.testing.oracle import content
from tests.profile import each_of, in_turns
from tests.stores.gated_reader import KIB, MIB, bench, settle, with_etag

BLOCK = 64 * KIB
FAR = 20 * BLOCK

Read = Callable[[RangeReader, int], Awaitable[Any]]


async def _by_cursor(reader: RangeReader, offset: int) -> bytes:
    reader.seek(offset)
    return await reader.read(10)


async def _into(reader: RangeReader, offset: int) -> bytes:
    reader.seek(offset)
    target = bytearray(10)
    return bytes(target[: await reader.readinto(target)])


async def _ranges(reader: RangeReader, offset: int) -> bytes:
    try:
        return (await reader.read_ranges([(offset, offset + 10)]))[0]
    except RangeNotSatisfied:
        return b""


async def _chunk(reader: RangeReader, offset: int) -> bytes:
    reader.seek(offset)
    async with reader.stream(10) as chunks:
        return await anext(chunks, b"")


READS: dict[str, Read] = {
    "read_at": lambda reader, offset: reader.read_at(offset, 10),
    "view_at": lambda reader, offset: reader.view_at(offset, 10),
    "read": _by_cursor,
    "readinto": _into,
    "read_ranges": _ranges,
    "stream": _chunk,
}


async def _read_or_changed(read: Read, reader: RangeReader, offset: int) -> bytes | None:
    """Ten bytes, or ``None`` if the object has changed."""
    try:
        return bytes(await read(reader, offset))
    except ObjectChanged:
        return None


@pytest.mark.parametrize("size", [300, 3 * BLOCK])
@pytest.mark.parametrize(("policy", "read"), in_turns(sorted(POLICIES), list(READS)))
async def test_the_size_of_a_refusal_holds_for_all_later_reads(policy: str, read: str, size: int) -> None:
    async with bench(1000) as b, b.reader(policy=policy) as reader:
        assert bytes(await READS[read](reader, FAR)) == b""
        assert reader.size == 1000
        b.put(content(size, version=1))
        for other in READS.values():
            assert await _read_or_changed(other, reader, 4) in (b.data[4:14], None)  # Some policies have it all by now.
            assert reader.size == 1000
        await reader.reopen()
        assert await reader.read_at(0, size + 1) == content(size, version=1)


@each_of("read", READS)
async def test_a_size_without_a_version_is_that_of_whatever_has_it(read: str) -> None:
    """No byte was read of the version before, so none can be mixed."""
    async with bench(1000) as b, b.reader(policy="random") as reader:
        assert await reader.read_at(FAR, 10) == b""
        b.put(content(1000, version=1))
        assert bytes(await READS[read](reader, 4)) == content(1000, version=1)[4:14]
        assert reader.etag is not None


@each_of("declared", [600, 1000, 2 * BLOCK])
@each_of("policy", ["adaptive", "random", "parquet", "hbase"])
async def test_a_declared_length_does_not_grow_with_another_version(policy: str, declared: int) -> None:
    """An object may be shorter than the length that a caller declares; then that end is the end of one version."""
    async with bench(500) as b:
        opening = b.operator.open_file("k").opt("fs.option.openfile.length", declared)
        async with await opening.opt("fs.option.openfile.read.policy", policy).build() as reader:
            assert await reader.read_at(declared - 10, 10) == b""
            assert reader.size == 500
            b.put(content(3 * BLOCK, version=1))
            assert await _read_or_changed(READS["read_at"], reader, 495) in (b.data[495:], None)
            assert reader.size == 500


@each_of("declared", [None, 200, 5000])
@each_of("size", [300, 3 * BLOCK])
async def test_a_store_without_etags_has_sizes_to_tell_versions_by(size: int, declared: int | None) -> None:
    """A smaller object is refused by the store, a larger one is seen at its response."""
    async with bench(1000) as b, b.reader(size=declared, policy="random") as reader:
        b.gate.falsify = with_etag(None)
        assert await reader.read_at(0, 10) == b.data[:10]
        reported = reader.size
        b.put(content(size, version=1))
        with pytest.raises(ObjectChanged):
            await reader.read_at(50 if size > 1000 or declared == 200 else 500, 10)
        assert reader.size == reported == min(1000, declared or 1000)


@pytest.mark.parametrize("has_etag", [True, False])
@pytest.mark.parametrize("offset", [4, FAR])
async def test_a_clone_reads_the_version_that_its_reader_knows(offset: int, has_etag: bool) -> None:
    async with bench(1000) as b, b.reader(policy="random") as reader:
        if not has_etag:
            b.gate.falsify = with_etag(None)
        await reader.read_at(offset, 10)
        b.put(content(3 * BLOCK, version=1))
        async with reader.clone() as clone, clone.clone() as another:
            for one in (clone, another):
                assert one.size == 1000
                with pytest.raises(ObjectChanged):
                    await one.read_at(20, 10)


async def test_readers_that_know_different_sizes_share_no_first_request() -> None:
    """A reader that knows nothing reads the new version, beside one that has reported the old size."""
    async with bench(1000) as b, b.reader() as knows, b.reader() as new:
        assert await knows.read_at(FAR, 10) == b""
        b.put(content(3 * BLOCK, version=1))
        old, fresh = await asyncio.gather(knows.read_at(0, 10), new.read_at(0, 10), return_exceptions=True)
        assert isinstance(old, ObjectChanged)
        assert fresh == content(10, version=1)
        assert len(b.calls) == 3


async def test_a_size_that_was_not_reported_binds_no_read() -> None:
    """The first request of this policy is refused, and its read goes on with the version that it then finds."""
    async with bench(1000) as b, b.reader(policy="parquet", size=MIB) as reader:
        b.gate.open = False
        reading = asyncio.create_task(reader.read_at(0, 10))
        (await b.next_call()).finish()
        await settle()
        b.put(content(3 * BLOCK, version=1))
        (await b.next_call()).finish()
        assert await reading == content(10, version=1)
        assert reader.size == 3 * BLOCK


@each_of("offset", [0, FAR])
@each_of("policy", sorted(POLICIES))
async def test_an_empty_object_stays_empty(policy: str, offset: int) -> None:
    async with bench(0) as b, b.reader(policy=policy) as reader:
        reader.seek(0, os.SEEK_END)
        assert await reader.read() == b""
        b.put(content(1000))
        assert await reader.read_at(offset, 10) == b""
        assert reader.size == 0


@pytest.mark.parametrize("policy", ["adaptive", "random"])
async def test_a_cache_between_keeps_no_size_of_another_version(policy: PolicyName) -> None:
    async with ap.Operator.from_uri("memory://learnt-sizes-cache") as cache, bench(1000) as b:
        cached = b.operator.layer(LruCacheLayer(cache=cache, revalidate_seconds=0))
        async with cached, cached.reader("k", policy=policy) as reader:
            assert await reader.read_at(FAR, 10) == b""
            b.put(content(3 * BLOCK, version=1))
            with pytest.raises(ObjectChanged):
                await reader.read_at(4, 8000)
            assert reader.size == 1000

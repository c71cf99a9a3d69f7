"""Clauses 1 to 15: the builder, and when build() raises."""

import asyncio
import io

import pytest

from aioprefetch.errors import Error, InvalidPath, PermissionDenied
from aioprefetch.operator import open_file as k
from aioprefetch.operator.open_file import PendingReader
from tests.unit.operator.open_file.clauses import Scene, clause

UNKNOWN = "fs.example.option"


@clause(1, "M")
async def _(scene: Scene) -> None:
    """Nothing is checked before build(), except the syntax of the path."""
    builder = scene.builder("nowhere/none").must(UNKNOWN, 1).opt("fs.s3a.select.sql", "SELECT 1")
    builder.with_status(object()).opt(k.LENGTH, "five").must_double(k.SPLIT_END, -1.5).buffer_size(-1)
    assert scene.requests == (0, 0)
    with pytest.raises(InvalidPath):
        scene.builder("../k")


@clause(2, "M")
async def _(scene: Scene) -> None:
    """build() returns for a missing object and for a directory."""
    for path in ("none", "dir/", "dir", ""):
        assert isinstance(scene.builder(path).build(), PendingReader)
    assert scene.requests == (0, 0)


@clause(3, "M")
async def _(scene: Scene) -> None:
    """A missing object, a directory and an unreadable object are OSErrors, by the first read at the latest."""
    scene.store.put(b"x", "dir/k")
    for path in ("none", "dir", "dir/", ""):
        pending = scene.builder(path).build()
        for _ in range(2):
            with pytest.raises(OSError, match=path or "empty"):
                await (await pending).read(1)


@clause(4, "M")
async def _(scene: Scene) -> None:
    """Permission is a matter of the first read."""
    scene.store.gate.open = False
    reader = await scene.open()
    task = asyncio.ensure_future(reader.read(1))
    (await scene.store.next_call()).fail(PermissionDenied("no"))
    with pytest.raises(PermissionError):
        await task


@clause(5, "N")
async def _(scene: Scene) -> None:
    """A seek in a missing object does not fail: the read after it does."""
    reader = await scene.open("none")
    assert reader.seek(100) == reader.tell() == 100
    assert scene.requests == (0, 0)
    with pytest.raises(FileNotFoundError):
        await reader.read(1)


@clause(6, "Y")
async def _(scene: Scene) -> None:
    """The probe for existence is left out, with and without a length."""
    for options in ({}, {"length": 10}):
        await scene.open("none", **options)
    assert scene.requests == (0, 0)


@clause(7, "M")
async def _(scene: Scene) -> None:
    """build() itself raises for an unknown mandatory key, and names it and the known ones."""
    builder = scene.builder().must(UNKNOWN, "of no matter")
    with pytest.raises(ValueError, match=UNKNOWN) as caught:
        builder.build()
    assert all(key in str(caught.value) for key in k.KEYS)


@clause(8, "M")
async def _(scene: Scene) -> None:
    """An unknown optional key changes nothing."""
    reader = await scene.set(UNKNOWN, "of no matter")
    assert reader.options == scene.default
    assert scene.warnings() == []


@clause(9, "M")
async def _(scene: Scene) -> None:
    """A feature that is recognised but not there is an UnsupportedOperation, at build()."""
    builder = scene.builder().must("fs.s3a.select.sql", "SELECT 1")
    with pytest.raises(io.UnsupportedOperation, match=r"fs\.s3a\.select\.sql"):
        builder.build()


@clause(10, "M")
async def _(scene: Scene) -> None:
    """A call that build() would refuse may still be taken back."""
    builder = scene.builder().must(UNKNOWN, 1).opt(UNKNOWN, 1).must(k.PREFETCH_BLOCK_COUNT, 0)
    reader = await builder.must(k.PREFETCH_BLOCK_COUNT, 3).build()
    assert reader.options.prefetch_blocks == 3


@clause(11, "M")
async def _(scene: Scene) -> None:
    """opt and must validate alike: the same options, or the same error."""
    values = (7, -7, 0, "7", "x", "", None, True, 1.5, "8K", "random", "9" * 30)

    async def outcome(key: str, value: object, *, must: bool) -> object:
        try:
            return (await scene.set(key, value, must=must)).options
        except Error as error:
            return str(error)

    for key in k.KEYS:
        for value in values:
            assert await outcome(key, value, must=True) == await outcome(key, value, must=False), (key, value)


@clause(12, "M")
async def _(scene: Scene) -> None:
    """The last call decides on the value and on whether it is mandatory."""
    with pytest.raises(ValueError, match=UNKNOWN):
        scene.builder().opt(UNKNOWN, 1).must(UNKNOWN, 1).build()
    await scene.builder().must(UNKNOWN, 1).opt(UNKNOWN, 1).build()
    assert (await scene.builder(length=5).must(k.LENGTH, 6).build()).size == 6
    assert (await scene.builder().must(k.LENGTH, 5).opt(k.LENGTH, 6).build()).size == 6
    assert (await scene.builder().buffer_size(5).opt(k.BUFFER_SIZE, 6).build()).options.chunk_bytes == 6
    assert (await scene.builder().opt(k.BUFFER_SIZE, 6).buffer_size(5).build()).options.chunk_bytes == 5


@clause(13, "M")
async def _(scene: Scene) -> None:
    """Failures travel: callbacks see them, an awaiting caller gets the original type, and time-outs work."""
    seen: list[BaseException | None] = []
    future = asyncio.ensure_future(scene.builder("dir/").build())
    future.add_done_callback(lambda done: seen.append(done.exception()))
    with pytest.raises(IsADirectoryError):
        await future
    await asyncio.sleep(0)
    assert [type(error).__name__ for error in seen] == ["IsADirectory"]

    async def first_byte(path: str) -> bytes:
        reader = await scene.builder(path).build()
        return await reader.read(1)

    with pytest.raises(FileNotFoundError):
        await asyncio.wait_for(first_byte("none"), 60)
    scene.store.gate.open = False
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(first_byte("k"), 60)


@clause(14, "M")
async def _(scene: Scene) -> None:
    """A callback on success runs, with the reader."""
    seen: list[object] = []
    future = asyncio.ensure_future(scene.builder().build())
    future.add_done_callback(lambda done: seen.append(done.result()))
    reader = await asyncio.wait_for(asyncio.shield(future), 60)
    await asyncio.sleep(0)
    assert seen == [reader]


@clause(15, "Y")
async def _(scene: Scene) -> None:
    """Standard keys, those of vendors and unknown ones in one open."""
    builder = scene.builder(read_policy="random", length=1000).must(k.READAHEAD_RANGE, "1M").opt(UNKNOWN, 1)
    reader = await builder.must(k.BUFFERED_PREAD_DISABLE, True).build()
    assert await reader.read() == scene.data[:1000]

"""What an object is written from: bytes, files and iterators, sync or async, in pieces that are worth a step."""

import asyncio
import io
import mmap
import threading
from array import array
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiofiles
import numpy as np
import pytest

from aioprefetch import Operator
from aioprefetch.accessor.protocols import Accessor, WriteBody
from aioprefetch.errors import Error, InvalidType, WrongLoop
from aioprefetch.runtime.threads import Threads
from aioprefetch.sync import BlockingOperator
from aioprefetch.sync import open as open_file
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import Metadata, WriteRequest
from tests.stores.verb_layer import VerbLayer

PART = 8 << 20
LINES = b"".join(b"line %d\n" % number for number in range(60_000))


class Recorded(VerbLayer):
    """Notes how long each piece of a streamed write is."""

    def __init__(self) -> None:
        self.pieces: list[int] = []

    async def open_write(self, inner: Accessor, request: WriteRequest) -> WriteBody:
        return RecordedBody(await inner.open_write(request), self.pieces)


class RecordedBody:
    def __init__(self, body: WriteBody, pieces: list[int]) -> None:
        self._body = body
        self._pieces = pieces

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        self._pieces.append(len(chunk))
        await self._body.write(chunk)

    async def close(self) -> Metadata:
        return await self._body.close()

    async def abort(self) -> None:
        await self._body.abort()


class CountedFile(io.BytesIO):
    """Notes the sizes that it was asked for, and refuses to be read by lines."""

    def __init__(self, data: bytes, at_most: int = PART) -> None:
        super().__init__(data)
        self.sizes: list[int | None] = []
        self.threads: set[str] = set()
        self._at_most = at_most

    def read(self, size: int | None = -1, /) -> bytes:
        self.sizes.append(size)
        self.threads.add(threading.current_thread().name)
        return super().read(min(size or 0, self._at_most))

    def __next__(self) -> bytes:
        raise AssertionError("a file is not read by lines")


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


@pytest.fixture
async def op(random_name: Callable[[], str], recorded: Recorded) -> AsyncIterator[Operator]:
    async with Operator.from_uri(f"memory://{random_name()}").layer(recorded) as operator:
        yield operator


@pytest.fixture
def blocking(random_name: Callable[[], str]) -> Iterator[BlockingOperator]:
    with BlockingOperator(Operator.from_uri(f"memory://{random_name()}")) as operator:
        yield operator


@pytest.fixture
def hops(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each step to a worker thread."""
    made: list[str] = []
    submit = Threads.submit

    def counted(threads: Threads, call: Callable[..., Any], *arguments: Any) -> Any:
        made.append(str(call))
        return submit(threads, call, *arguments)

    monkeypatch.setattr(Threads, "submit", counted)
    return made


async def test_a_file_is_read_by_the_part_on_a_worker_thread(op: Operator, recorded: Recorded, hops: list[str]) -> None:
    data = bytes(range(256)) * (2 * PART // 256) + b"the rest"
    file = CountedFile(data)
    file.seek(3)
    assert (await op.write("k", file)).size == len(data) - 3
    assert await op.read("k") == data[3:]
    assert recorded.pieces == [PART, PART, 5]
    assert set(file.sizes) == {PART}
    assert len(file.sizes) == 4  # the last one finds the end
    assert len(hops) == 3
    assert threading.current_thread().name not in file.threads


def test_a_file_of_short_lines_crosses_once(blocking: BlockingOperator, hops: list[str], tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(LINES)
    with open(tmp_path / "lines", "rb") as file:
        assert blocking.write("k", file).size == len(LINES)
    assert blocking.read("k") == LINES
    assert len(hops) == 1


async def test_what_a_pipe_gives_bit_by_bit_is_gathered(op: Operator, recorded: Recorded, hops: list[str]) -> None:
    await op.write("k", CountedFile(bytes(3 << 20), at_most=4096))
    assert recorded.pieces == [1 << 20] * 3
    assert len(hops) == 4


def test_an_object_of_another_store_is_a_file(blocking: BlockingOperator, random_name: Callable[[], str]) -> None:
    with BlockingOperator(Operator.from_uri(f"memory://{random_name()}")) as source:
        source.write("a", LINES)
        with source.open("a") as file:
            blocking.write("b", file)
    assert blocking.read("b") == LINES


async def test_a_file_of_ap_sync_is_written_where_a_loop_runs(op: Operator, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(LINES)
    file = open_file(f"file://{tmp_path}/lines")
    try:
        await op.write("k", file)
    finally:
        await asyncio.to_thread(file.close)
    assert await op.read("k") == LINES


async def test_a_reader_and_a_file_of_aiofiles_are_read_on_the_loop(
    op: Operator, recorded: Recorded, hops: list[str], tmp_path: Path
) -> None:
    (tmp_path / "lines").write_bytes(LINES)
    async with aiofiles.open(tmp_path / "lines", "rb") as file:
        await op.write("a", file)
    async with op.reader("a") as reader:
        await op.write("b", reader)
    assert await op.read("b") == await op.read("a") == LINES
    assert recorded.pieces == [len(LINES)] * 2
    assert hops == []


@pytest.mark.parametrize("item", [b"a" * 100, bytearray(b"a" * 100), memoryview(b"a" * 100), array("H", [0] * 50)])
async def test_small_items_are_gathered(item: Any, op: Operator, recorded: Recorded, hops: list[str]) -> None:
    async def items() -> AsyncIterator[Any]:
        for _ in range(30_000):
            yield item

    await op.write("sync", [item] * 30_000)
    assert len(hops) <= 5
    await op.write("async", items())
    assert len(recorded.pieces) == 6
    assert await op.read("sync") == await op.read("async") == bytes(memoryview(item).cast("B")) * 30_000


async def test_a_large_item_passes_as_it_is_and_in_its_place(op: Operator, recorded: Recorded) -> None:
    large = bytes(2 << 20)

    async def items() -> AsyncIterator[bytes]:
        for item in (b"small", large, b"end"):
            yield item

    for source in (items(), (b"small", large, b"end")):
        recorded.pieces.clear()
        await op.write("k", source)
        assert recorded.pieces == [5, len(large), 3]
        assert await op.read("k") == b"small" + large + b"end"


async def test_a_buffer_that_is_filled_again_is_copied_in_time(op: Operator) -> None:
    def items() -> Iterator[bytearray]:
        buffer = bytearray(1)
        for number in range(100):
            buffer[0] = number
            yield buffer

    await op.write("k", items())
    assert await op.read("k") == bytes(range(100))


@pytest.mark.parametrize("item", [None, 5, "text", [b"x"]])
@pytest.mark.parametrize("kind", ["iterator", "async iterator", "file", "async file"])
async def test_an_item_that_is_not_bytes_is_refused_and_nothing_appears(item: Any, kind: str, op: Operator) -> None:
    async def items() -> AsyncIterator[Any]:
        yield b"first,"
        yield item
        yield b"second"

    class File:
        def __init__(self) -> None:
            self._items = iter([b"first,", item, b"second", b""])

        def read(self, size: int, /) -> Any:
            return next(self._items)

    class AsyncFile(File):
        async def read(self, size: int, /) -> Any:
            return next(self._items)

    sources: dict[str, Callable[[], Any]] = {
        "iterator": lambda: iter([b"first,", item, b"second"]),
        "async iterator": items,
        "file": File,
        "async file": AsyncFile,
    }
    with pytest.raises(InvalidType, match=f"not {type(item).__name__}") as caught:
        await op.write("n", sources[kind]())
    assert (caught.value.operation, caught.value.path) == ("write", "n")
    assert not await op.exists("n")


def test_nothing_is_cut_off_at_an_item_that_is_none(blocking: BlockingOperator) -> None:
    def parts() -> Iterator[Any]:
        yield b"first,"
        yield None
        yield b"second"

    with pytest.raises(InvalidType, match="NoneType"):
        blocking.write("n", parts())
    assert not blocking.exists("n")


async def test_a_file_in_text_mode_is_refused_before_it_is_read(op: Operator, tmp_path: Path) -> None:
    (tmp_path / "t").write_text("text")
    with (tmp_path / "t").open() as file:
        with pytest.raises(InvalidType, match="text mode"):
            await op.write("k", file)
        assert file.tell() == 0
    async with aiofiles.open(tmp_path / "t") as file:
        with pytest.raises(InvalidType, match="text mode"):
            await op.write("k", file)
    with pytest.raises(InvalidType, match="open the file"):
        await op.write("k", tmp_path / "t")  # type: ignore[arg-type]
    with pytest.raises(InvalidType, match="encode"):
        await op.write("k", "text")  # type: ignore[arg-type]
    assert not await op.exists("k")


async def test_whatever_has_a_buffer_is_bytes(op: Operator, recorded: Recorded) -> None:
    mapped = mmap.mmap(-1, 4)
    mapped[:] = b"abcd"
    buffers: list[Any] = [
        array("I", [1, 2]),
        memoryview(array("I", [1, 2])),
        memoryview(b"abcdef")[::2],
        memoryview(array("I")),
        memoryview(b"a" * 12).cast("I", [3]).cast("B").cast("B", [3, 4]),
    ]
    for buffer in buffers:
        written = await op.write("k", buffer)
        view = memoryview(buffer)
        assert await op.read("k") == view.tobytes()
        assert written.size == view.nbytes
    assert recorded.pieces == []  # One request each: nothing was streamed.
    await op.write("k", mapped)
    assert await op.read("k") == b"abcd"
    mapped.close()


async def test_a_blocking_write_of_an_asynchronous_source_is_refused_where_a_loop_runs(
    blocking: BlockingOperator,
) -> None:
    async def items() -> AsyncIterator[bytes]:
        yield b"x"

    with pytest.raises(WrongLoop, match="await"):
        blocking.write("k", items())
    await asyncio.to_thread(blocking.write, "k", items())
    assert await asyncio.to_thread(blocking.read, "k") == b"x"


@checks("reliability:W43")
async def test_a_source_that_fails_leaves_nothing(op: Operator) -> None:
    class Broken(CountedFile):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.sizes:
                raise OSError("the disk is gone")
            return super().read(size)

    with pytest.raises(OSError, match="disk") as caught:
        await op.write("k", Broken(bytes(PART * 2)))
    assert not isinstance(caught.value, Error)
    assert not await op.exists("k")


async def test_a_file_that_ends_by_stop_iteration_is_refused(op: Operator) -> None:
    """It cannot pass a future: the write would wait for ever."""

    class File:
        def __init__(self) -> None:
            self._items = iter([b"first"])

        def read(self, size: int, /) -> bytes:
            return next(self._items)

    class Items:
        def __iter__(self) -> Iterator[bytes]:
            raise StopIteration

    for source in (File(), Items()):
        with pytest.raises(InvalidType, match="StopIteration"):
            await op.write("n", source)
    assert not await op.exists("n")


async def test_what_has_a_buffer_of_something_else_is_refused(op: Operator) -> None:
    released = memoryview(b"x")
    released.release()
    sources: list[Any] = [np.array(["2020-01-01"], dtype="M8[D]"), np.array([object()]), released]
    for data in sources:
        with pytest.raises(InvalidType):
            await op.write("n", data)
        with pytest.raises(InvalidType):
            await op.write("n", [data])


async def test_a_coroutine_is_refused_and_closed(op: Operator) -> None:
    async def data() -> bytes:
        return b"x"

    with pytest.raises(InvalidType, match="await it first"):
        await op.write("n", data())  # type: ignore[arg-type]

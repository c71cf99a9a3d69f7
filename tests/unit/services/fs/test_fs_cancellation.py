"""A cancelled call, wherever it waits: no descriptor, no temporary file, no thread at work with its memory."""

import asyncio
import gc
import glob
import os
import threading
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import aioprefetch as ap
from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.sink import BufferSink, CollectSink
from aioprefetch.local_files.files import ConfinedRoot, OpenedFile, open_file
from aioprefetch.local_files.threads import settled
from aioprefetch.runtime.options import RuntimeOptions
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.threads import Threads
from aioprefetch.services.fs import Fs
from aioprefetch.services.fs.accessor import FsAccessor
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import (
    CopyRequest,
    DeleteRequest,
    ListRequest,
    ReadRequest,
    ReadSession,
    StatRequest,
    WriteRequest,
)

DATA = bytes(range(250)) * 10
TURNS = 5


class Gate:
    """Holds the job of one number in its thread, before or after it has done its work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.number = -1
        self.after = False
        self.jobs = 0
        self.go = threading.Event()
        self.reached = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        submit = Threads.submit

        def gated(pool: Threads, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
            number, self.jobs = self.jobs, self.jobs + 1
            return submit(pool, self._hold if number == self.number else call, *self._wrapped(number, call), *arguments)

        monkeypatch.setattr(Threads, "submit", gated)

    def arm(self, number: int, *, after: bool) -> None:
        """Hold the ``number``-th job from now on."""
        self.number, self.after, self.jobs = number, after, 0
        self.go.clear()
        self.reached.clear()

    def _wrapped(self, number: int, call: Callable[..., Any]) -> tuple[Callable[..., Any], ...]:
        return (call,) if number == self.number else ()

    def _hold(self, call: Callable[..., Any], *arguments: Any) -> Any:
        if not self.after:
            self._wait()
            return call(*arguments)
        try:
            return call(*arguments)
        finally:
            self._wait()

    def _wait(self) -> None:
        self._loop.call_soon_threadsafe(self.reached.set)
        self.go.wait()


@pytest.fixture
async def gate(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Gate]:
    """The gate; open again after the test whatever happens."""
    made = Gate(monkeypatch)
    yield made
    made.go.set()


@pytest.fixture
def accessor(root: Path, runtime: Runtime, gate: Gate) -> Accessor:
    """The live service over a root with one file."""
    (root / "k").write_bytes(DATA)
    return FsAccessor(Fs(str(root)), runtime, piece_bytes=1000)


def take_what_is_left(root: Path) -> list[bytes]:
    """The contents of all files but ``k``, which are removed."""
    left = [path for path in root.rglob("*") if path.is_file() and path.name != "k"]
    contents = [path.read_bytes() for path in left]
    for path in left:
        path.unlink()
    return contents


async def read(accessor: Accessor) -> None:
    await accessor.read(ReadRequest(path="k"), BufferSink(memoryview(bytearray(len(DATA)))))


async def copy(accessor: Accessor) -> None:
    await accessor.copy(CopyRequest(path="k", target="d/copied"))


async def write(accessor: Accessor) -> None:
    await accessor.write(WriteRequest(path="d/new"), DATA)


async def stat(accessor: Accessor) -> None:
    await accessor.stat(StatRequest(path="k"))


async def listing(accessor: Accessor) -> None:
    await accessor.list_page(ListRequest(path="", recursive=True))


async def delete(accessor: Accessor) -> None:
    await accessor.delete(DeleteRequest(path="d/x", paths=("d/x",)))


async def read_side_by_side(accessor: Accessor) -> None:
    assert isinstance(accessor, FsAccessor)
    root = accessor.info.root
    parts = FsAccessor(Fs(root), accessor.runtime, piece_bytes=400, side_by_side=3)
    buffer = bytearray(len(DATA))
    await parts.read(ReadRequest(path="k"), BufferSink(memoryview(buffer)))
    assert buffer == DATA


OPERATIONS = [read, read_side_by_side, copy, write, stat, listing, delete]


@checks("reliability:W39", "reliability:C06")
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_cancelled_in_every_job(
    accessor: Accessor,
    root: Path,
    gate: Gate,
    descriptors: Callable[[], list[str]],
    operation: Callable[[Accessor], Awaitable[None]],
    after: bool,
) -> None:
    """The call waits for its thread, and then leaves nothing; the first job that it has not ends the test."""
    number = 0
    while True:
        gate.arm(number, after=after)
        task = asyncio.ensure_future(operation(accessor))
        reached = asyncio.ensure_future(gate.reached.wait())
        await asyncio.wait({task, reached}, return_when=asyncio.FIRST_COMPLETED)
        if not reached.done():
            reached.cancel()
            await task
            break
        for _ in range(TURNS):
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
        gate.go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert descriptors() == []
        # Only where the last rename was done already is there a file, and that is whole.
        assert take_what_is_left(root) in ([], [DATA] if after else [])
        number += 1
    assert number >= 1
    assert descriptors() == []


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_cancelled_after_any_number_of_turns(
    accessor: Accessor,
    root: Path,
    descriptors: Callable[[], list[str]],
    operation: Callable[[Accessor], Awaitable[None]],
) -> None:
    """From before the first step on."""
    for turns in range(40):
        task = asyncio.ensure_future(operation(accessor))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        assert descriptors() == []
        assert not any(path.endswith(".tmp") for path in glob.glob("**/.*", root_dir=root, recursive=True))


async def test_a_buffer_is_at_rest_when_its_cancelled_read_has_ended(accessor: Accessor, gate: Gate) -> None:
    """Its next owner keeps what he puts in: the thread had to finish first."""
    buffer = bytearray(len(DATA))
    gate.arm(1, after=False)
    task = asyncio.ensure_future(accessor.read(ReadRequest(path="k"), BufferSink(memoryview(buffer))))
    await gate.reached.wait()
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    gate.go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert buffer[:1000] == DATA[:1000]
    buffer[:] = b"-" * len(buffer)
    await read(accessor)
    assert buffer == b"-" * len(buffer)


async def test_a_timeout_is_still_a_timeout(accessor: Accessor, gate: Gate) -> None:
    """asyncio.timeout recognises its own cancellation although it came late."""
    gate.arm(1, after=False)

    async def timed() -> None:
        async with asyncio.timeout(None) as limit:
            reached = asyncio.ensure_future(gate.reached.wait())
            reached.add_done_callback(lambda _: limit.reschedule(0))
            await read(accessor)

    task = asyncio.ensure_future(timed())
    await gate.reached.wait()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    gate.go.set()
    with pytest.raises(TimeoutError):
        await task


async def test_a_failing_sink_closes_its_file(accessor: Accessor, descriptors: Callable[[], list[str]]) -> None:
    """In the middle of a read."""

    class FailingSink(BufferSink):
        def _advanced(self) -> None:
            assert len(descriptors()) == 1
            raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        await accessor.read(ReadRequest(path="k"), FailingSink(memoryview(bytearray(len(DATA)))))
    assert descriptors() == []


def test_a_file_is_closed_by_the_last_read_that_runs(
    root: Path, descriptors: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closed while a thread is in it: its number must not go to another file before the thread is out."""
    (root / "k").write_bytes(DATA)
    file = open_file(ConfinedRoot(str(root), follow_symlinks=False), ("k",))
    reading, go, preadv = threading.Event(), threading.Event(), os.preadv

    def held(*arguments: Any) -> int:
        reading.set()
        go.wait()
        return preadv(*arguments)

    monkeypatch.setattr(os, "preadv", held)
    thread = threading.Thread(target=lambda: file.read(0, 1000))
    thread.start()
    reading.wait()
    file.close()
    assert len(descriptors()) == 1
    go.set()
    thread.join()
    assert descriptors() == []


class WaitingSink(BufferSink):
    """Asks for a pause before its first byte."""

    def __init__(self, buffer: memoryview) -> None:
        super().__init__(buffer)
        self.is_full, self.reached, self.go = True, asyncio.Event(), asyncio.Event()

    async def drained(self) -> None:
        """Until the test lets it go on."""
        self.reached.set()
        await self.go.wait()
        self.is_full = False


@pytest.mark.parametrize("end", ["its session is closed", "its session keeps another file", "the other read ends"])
async def test_a_read_goes_on_with_its_file_after_others_close_it(
    accessor: Accessor, root: Path, descriptors: Callable[[], list[str]], end: str
) -> None:
    """A response may be of use to another reader, and reads that begin together open a file each."""
    data = DATA * 400  # More than one job with the opening reads.
    (root / "k").write_bytes(data)
    etag = (await accessor.stat(StatRequest(path="k"))).etag
    session = ReadSession()
    request = ReadRequest(path="k", if_match=etag, session=session)
    sinks = [WaitingSink(memoryview(bytearray(len(data)))) for _ in range(2)]
    reads = [asyncio.create_task(accessor.read(request, sink)) for sink in sinks]
    for sink in sinks:
        await sink.reached.wait()
    if end == "its session is closed":
        session.close()
    elif end == "its session keeps another file":
        session.keep(open_file(ConfinedRoot(str(root), follow_symlinks=False), ("k",)))
    for read, sink in zip(reads, sinks, strict=True):
        sink.go.set()
        assert (await read).received == len(data)
        assert sink.complete
    session.close()
    assert descriptors() == []


async def test_a_kept_file_is_closed_while_a_thread_looks_at_it(
    root: Path, runtime: Runtime, descriptors: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reader closes between the look and the read: the read has its bytes all the same."""
    (root / "k").write_bytes(DATA)
    in_threads = FsAccessor(Fs(root), runtime, cache="off")
    session, etag = ReadSession(), (await in_threads.stat(StatRequest(path="k"))).etag
    request, is_current = ReadRequest(path="k", if_match=etag, session=session), OpenedFile.is_current
    await in_threads.read(request, CollectSink())
    assert session.kept is not None

    def look_and_close(file: OpenedFile) -> bool:
        current = is_current(file)
        session.close()
        return current

    monkeypatch.setattr(OpenedFile, "is_current", look_and_close)
    sink = CollectSink()
    await in_threads.read(request, sink)
    assert sink.to_bytes() == DATA
    assert descriptors() == []


async def test_settled_hands_an_unwanted_result_to_dispose() -> None:
    """And an unwanted failure is no noise."""
    disposed: list[str] = []
    given_up: list[bool] = []
    for failing in (False, True):
        go = asyncio.Event()

        async def job(go: asyncio.Event = go, failing: bool = failing) -> str:
            await go.wait()
            if failing:
                raise OSError("it reaches no caller")
            return "result"

        task = asyncio.ensure_future(settled(job(), disposed.append, give_up=lambda: given_up.append(True)))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert disposed == ["result"]
    assert given_up == [True, True]


def test_a_loop_that_ends_in_the_middle_of_a_read(root: Path, descriptors: Callable[[], list[str]]) -> None:
    """asyncio.run cancels every task at its end, ours too: nothing hangs and nothing stays open."""
    (root / "k").write_bytes(DATA * 1000)

    async def scenario() -> None:
        runtime = Runtime(RuntimeOptions())
        accessor = Fs(str(root)).build(runtime)
        readers = [asyncio.ensure_future(read_all(accessor)) for _ in range(20)]
        await asyncio.wait(readers, return_when=asyncio.FIRST_COMPLETED)

    async def read_all(accessor: Accessor) -> None:
        size = len(DATA) * 1000
        await accessor.read(ReadRequest(path="k"), BufferSink(memoryview(bytearray(size))))

    before = set(threading.enumerate())  # Of other tests: the loop of `ap.sync` keeps its threads.
    asyncio.run(scenario())
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("aioprefetch-blocking"):
            thread.join(20)
    gc.collect()  # A file opened for a task that was cancelled meanwhile may hang in a cycle with its traceback.
    assert descriptors() == []


@checks("reliability:W42")
def test_a_loop_that_ends_at_any_step_of_a_write(
    root: Path, descriptors: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then too nothing is left, nor a coroutine that was made and never awaited."""

    def submit_done(pool: Threads, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(call(*arguments))
        except BaseException as error:
            done.set_exception(error)
        return done

    async def scenario(turns: int) -> None:
        accessor = Fs(str(root)).build(Runtime(RuntimeOptions()))
        writing = asyncio.ensure_future(write_body(accessor))
        for _ in range(turns):
            await asyncio.sleep(0)
        ended.append(writing.done())

    async def write_body(accessor: Accessor) -> None:
        body = await accessor.open_write(WriteRequest(path="k"))
        try:
            await body.write(DATA)
            await body.close()
        except BaseException:
            await body.abort()
            raise

    monkeypatch.setattr(Threads, "submit", submit_done)  # So each turn is the same in every run.
    ended = [False]
    while not ended[-1]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            asyncio.run(scenario(len(ended)))
            gc.collect()
        assert [str(one.message) for one in caught] == []
        assert descriptors() == []
        assert not list(root.rglob(".*.tmp"))
    assert (root / "k").read_bytes() == DATA
    assert len(ended) > 5


@checks("reliability:W42")
async def test_an_operator_that_is_closed_in_a_write_leaves_no_partial_file(tmp_path: Path) -> None:
    operator = ap.Operator.from_uri(f"file://{tmp_path}")
    begun, go = asyncio.Event(), asyncio.Event()

    async def chunks() -> AsyncIterator[bytes]:
        yield bytes(9 << 20)
        begun.set()
        await go.wait()
        yield b"rest"

    writing = asyncio.create_task(operator.write("k", chunks()))
    await begun.wait()
    await operator.aclose()
    go.set()
    with pytest.raises(ap.Closed):
        await writing
    assert os.listdir(tmp_path) == []

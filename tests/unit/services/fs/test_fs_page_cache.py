"""Reads of bytes that the kernel has in memory: on the loop, bounded, and by a thread wherever that does not work."""

import asyncio
import errno
import gc
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aioprefetch import Operator, errors
from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.sink import BufferSink, CollectSink
from aioprefetch.layers import HedgeLayer
from aioprefetch.operator.stack import default_stack
from aioprefetch.runtime.page_cache import KNOWS_NOWAIT, PageCache
from aioprefetch.runtime.runtime import TURN_BYTES, Runtime
from aioprefetch.services.fs import Fs
from aioprefetch.services.fs.accessor import FsAccessor
from aioprefetch.services.fs.reading import KEPT_MAX
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import ReadRequest, ReadSession
from tests.probes.turns import OtherTask
from tests.reliability.turns import at_once

DATA = bytes(range(250)) * 40


class ScriptedCache(PageCache):
    """A page cache that has every byte, on any file system, except where a script says otherwise.

    ``script`` has an entry for each read: ``None`` for all bytes, a number of bytes, or the errno of a failure.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(str(root), follow_symlinks=False)
        self.root = root
        self.script: Iterator[int | None] = iter(())
        self.sizes: list[int] = []
        self.opened = 0
        self.opens = True

    @property
    def can_open(self) -> bool:
        return True

    def open(self, path: str) -> int | None:
        self.opened += 1
        return os.open(self.root / path, os.O_RDONLY) if self.opens and (self.root / path).is_file() else None

    def read(self, descriptor: int, buffer: memoryview, position: int) -> int:
        self.sizes.append(len(buffer))
        step = next(self.script, None)
        if step is not None and step < 0:
            raise OSError(-step, os.strerror(-step))
        return os.preadv(descriptor, [buffer[:step]], position)


class Jobs:
    """Counts the jobs that a runtime runs in threads."""

    def __init__(self, runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        run = runtime.run_blocking

        def counted(call: Callable[..., object], *arguments: object) -> object:
            self.count += 1
            return run(call, *arguments)

        monkeypatch.setattr(runtime, "run_blocking", counted)

    def take(self) -> int:
        """The jobs since the last call."""
        count, self.count = self.count, 0
        return count


@pytest.fixture
def cache(root: Path) -> ScriptedCache:
    """A page cache over a root with one file."""
    (root / "k").write_bytes(DATA)
    return ScriptedCache(root)


@pytest.fixture
async def accessor(root: Path, runtime: Runtime, cache: ScriptedCache) -> FsAccessor:
    """The live service; it has learned that the file system answers."""
    made = FsAccessor(Fs(str(root)), runtime, cache=cache)
    await read(made, "k")
    cache.sizes.clear()
    return made


@pytest.fixture
def jobs(accessor: FsAccessor, runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> Jobs:
    """The jobs of threads after the first read."""
    return Jobs(runtime, monkeypatch)


async def read(accessor: FsAccessor, path: str, **fields: object) -> bytes:
    """Bytes read into a sink of its own."""
    sink = CollectSink()
    reply = await accessor.read(ReadRequest(path=path, **fields), sink)  # type: ignore[arg-type]
    assert reply.received == sink.received == reply.head.size
    return sink.to_bytes()


async def etag_of(accessor: FsAccessor, path: str) -> str:
    """The ETag of a file."""
    etag = (await accessor.read(ReadRequest(path=path), CollectSink())).head.etag
    assert etag is not None
    return etag


# --- where the bytes are -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "expected"),
    [({}, DATA), ({"offset": 10, "size": 5}, DATA[10:15]), ({"suffix": 7}, DATA[-7:]), ({"size": 0}, b"")],
)
async def test_cached_bytes_need_no_thread(
    accessor: FsAccessor, jobs: Jobs, fields: dict[str, object], expected: bytes
) -> None:
    assert await read(accessor, "k", **fields) == expected
    assert jobs.count == 0


@pytest.mark.skipif(not KNOWS_NOWAIT, reason="preadv has no RWF_NOWAIT here")
async def test_the_page_cache_of_the_system(root: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second read of a file that was just written needs no thread, where the file system knows the flag."""
    (root / "d").mkdir()
    (root / "d" / "k").write_bytes(DATA)
    accessor = Fs(str(root)).build(runtime)
    assert isinstance(accessor, FsAccessor)
    await read(accessor, "d/k")
    jobs = Jobs(runtime, monkeypatch)
    assert await read(accessor, "d/k") == DATA
    descriptor = os.open(root / "d" / "k", os.O_RDONLY)
    real = PageCache(str(root), follow_symlinks=False)
    try:
        is_answered = real.read(descriptor, memoryview(bytearray(1)), 0) == 1
    except OSError:
        is_answered = False
    finally:
        os.close(descriptor)
    assert jobs.count == (0 if is_answered and real.can_open else 1)


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.EIO, errno.EINTR])
@pytest.mark.parametrize("keeps", [False, True])
async def test_a_thread_reads_what_is_not_cached(
    accessor: FsAccessor, cache: ScriptedCache, jobs: Jobs, code: int, keeps: bool
) -> None:
    """A failure is found again, or not, by the thread."""
    session = ReadSession() if keeps else None
    etag = await etag_of(accessor, "k")
    await read(accessor, "k", size=1, session=session)
    cache.script = iter([-code])
    assert await read(accessor, "k", if_match=etag, session=session) == DATA
    assert jobs.count == 1
    assert await read(accessor, "k", if_match=etag, session=session) == DATA
    assert jobs.count == 1
    if session is not None:
        session.close()


@pytest.mark.parametrize("count", [0, 1, 100, len(DATA) - 1])
async def test_a_thread_reads_all_after_a_short_answer(
    accessor: FsAccessor, cache: ScriptedCache, jobs: Jobs, count: int
) -> None:
    cache.script = iter([count])
    assert await read(accessor, "k") == DATA
    assert jobs.count == 1


async def test_a_file_system_without_the_flag_is_asked_once(
    accessor: FsAccessor, cache: ScriptedCache, jobs: Jobs
) -> None:
    cache.script = iter([-errno.EOPNOTSUPP])
    assert await read(accessor, "k") == DATA
    asked = len(cache.sizes)
    for _ in range(3):
        assert await read(accessor, "k") == DATA
    assert len(cache.sizes) == asked
    assert jobs.count == 4


async def test_a_file_system_that_never_answers_is_not_asked_on_the_loop(
    root: Path, runtime: Runtime, cache: ScriptedCache
) -> None:
    """Its ``open`` may wait too."""
    cache.script = iter([-errno.EOPNOTSUPP])
    accessor = FsAccessor(Fs(str(root)), runtime, cache=cache)
    for _ in range(3):
        assert await read(accessor, "k") == DATA
    assert (len(cache.sizes), cache.opened) == (1, 0)


async def test_a_path_that_is_not_cached_is_opened_by_a_thread(
    accessor: FsAccessor, cache: ScriptedCache, jobs: Jobs
) -> None:
    """In one job with the reading of a small file."""
    cache.opens = False
    assert await read(accessor, "k") == DATA
    assert jobs.count == 1


@checks("reliability:C29")
async def test_the_loop_is_held_for_a_bounded_read(
    accessor: FsAccessor, root: Path, cache: ScriptedCache, jobs: Jobs
) -> None:
    """A longer one goes to a thread as a whole."""
    (root / "long").write_bytes(data := os.urandom(TURN_BYTES + 1))
    assert await read(accessor, "long", size=TURN_BYTES) == data[:-1]
    assert (jobs.take(), max(cache.sizes)) == (0, TURN_BYTES)
    assert await read(accessor, "long") == data
    assert (jobs.take(), max(cache.sizes)) == (1, TURN_BYTES)


async def test_other_tasks_get_turns(accessor: FsAccessor, jobs: Jobs) -> None:
    """While a task reads one cached range after another, a second one runs."""
    async with OtherTask() as other:
        for _ in range(200):
            await read(accessor, "k", size=10)
    assert jobs.count == 0
    assert other.turns >= 200 * (4 << 10) // TURN_BYTES


# --- long bodies -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1999, 2000, 2001, 2999, 3000, 3001, 6001, 10_000])
async def test_parts_that_are_read_side_by_side(root: Path, runtime: Runtime, size: int) -> None:
    """The bytes are exact, and no view of the memory is left with a thread."""
    (root / "k").write_bytes(data := os.urandom(size))
    accessor = FsAccessor(Fs(str(root)), runtime, piece_bytes=1000, side_by_side=3)
    memory = bytearray(size)
    await accessor.read(ReadRequest(path="k"), BufferSink(memoryview(memory)))
    assert memory == data
    memory.append(0)  # BufferError if a view of it were alive.
    assert await read(accessor, "k", offset=500, size=size - 900) == data[500:-400]


@pytest.mark.parametrize("number", range(1, 9))
async def test_a_failing_part_fails_the_read(
    root: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """After all threads have left the memory, with the bytes before its round."""
    (root / "k").write_bytes(DATA[:8000])
    accessor = FsAccessor(Fs(str(root)), runtime, piece_bytes=1000, side_by_side=3, cache="off")
    preadv, calls = os.preadv, itertools.count(1)

    def failing(*arguments: Any) -> int:
        if next(calls) == number:
            raise OSError(errno.EIO, "broken")
        return preadv(*arguments)

    monkeypatch.setattr(os, "preadv", failing)
    memory = bytearray(8000)
    sink = BufferSink(memoryview(memory))
    with pytest.raises(errors.Unexpected, match="input/output") as caught:
        await accessor.read(ReadRequest(path="k"), sink)
    done = (number - 1) // 3 * 3000
    assert (caught.value.received, sink.received) == (done, done)
    assert memory[:done] == DATA[:done]


@pytest.mark.parametrize("change", [os.unlink, "truncate", "overwrite"])
async def test_a_change_between_parts_is_seen(root: Path, runtime: Runtime, change: Any) -> None:
    (root / "k").write_bytes(DATA[:8000])
    change = {"truncate": truncate, "overwrite": overwrite}.get(change, change)

    class ChangingSink(CollectSink):
        def _advanced(self) -> None:
            if self.received == 3000:
                change(root / "k")

    accessor = FsAccessor(Fs(str(root)), runtime, piece_bytes=1000, side_by_side=3)
    sink = ChangingSink()
    with pytest.raises(errors.ObjectChanged) as caught:
        await accessor.read(ReadRequest(path="k"), sink)
    assert sink.to_bytes() == DATA[:3000]
    assert caught.value.received == 3000


# --- without a suspension ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", ["none", "default"])
async def test_reads_of_cached_bytes_never_meet_the_loop(root: Path, runtime: Runtime, layers: str) -> None:
    """Through all layers, counted as every read; what the kernel does not have is waited for."""
    (root / "k").write_bytes(DATA)
    cache = ScriptedCache(root)
    files = FsAccessor(Fs(str(root)), runtime, cache=cache)
    stack: Accessor = files
    if layers == "default":
        for layer in (*default_stack(Fs(str(root))), HedgeLayer()):
            stack = layer.wrap(stack, runtime)
    await read(files, "k")
    sink = CollectSink()
    reply = at_once(stack.read(ReadRequest(path="k", offset=5, size=10), sink))
    assert reply is not None
    assert (reply.head.start, sink.to_bytes()) == (5, DATA[5:15])
    assert runtime.counters["action_http_get_request"] == (layers == "default")
    cache.script = iter([-errno.EAGAIN])
    assert at_once(stack.read(ReadRequest(path="k"), CollectSink())) is None


async def test_a_file_is_looked_at_before_it_is_opened_for_the_first_time(root: Path) -> None:
    """A FIFO that takes its place is refused nevertheless, and so is its place in a directory that was left."""
    (root / "k").write_bytes(DATA)
    real = PageCache(str(root), follow_symlinks=False)
    if not real.can_open:
        pytest.skip("openat2 cannot tell what is cached here")
    for _ in range(2):
        descriptor = real.open("k")
        assert descriptor is not None
        os.close(descriptor)
    (root / "k").unlink()
    assert real.open("k") is None
    os.mkfifo(root / "pipe")
    assert real.open("pipe") is None


# --- confinement -------------------------------------------------------------------------------------------------


async def test_what_is_refused_in_a_thread_is_refused_on_the_loop(root: Path, runtime: Runtime) -> None:
    """Links, other files than regular ones, and a root that was replaced since."""
    (root / "d").mkdir()
    (root / "d" / "k").write_bytes(DATA)
    (root / "file").symlink_to("d/k")
    (root / "dir").symlink_to("d")
    (root / "out").symlink_to(root.parent / "outside")
    os.mkfifo(root / "fifo")
    accessor = Fs(str(root)).build(runtime)
    assert isinstance(accessor, FsAccessor)
    for _ in range(2):
        assert await read(accessor, "d/k") == DATA
        for path in ("file", "dir/k", "out/secret", "fifo"):
            with pytest.raises(errors.InvalidPath):
                await read(accessor, path)
        with pytest.raises(errors.IsADirectory):
            await read(accessor, "d")
        with pytest.raises(errors.NotFound):
            await read(accessor, "none")
    os.rename(root, root.parent / "before")
    with pytest.raises(errors.NotFound):
        await read(accessor, "d/k")
    os.makedirs(root / "d")
    (root / "d" / "k").write_bytes(b"another")
    assert await read(accessor, "d/k") == b"another"


async def test_links_that_are_followed_stay_below_the_root(root: Path, runtime: Runtime) -> None:
    (root / "d").mkdir()
    (root / "d" / "k").write_bytes(DATA)
    (root / "near").symlink_to("d/k")
    (root / "absolute").symlink_to(root / "d" / "k")
    (root / "far").symlink_to("../outside/secret")
    accessor = Fs(str(root), follow_symlinks=True).build(runtime)
    assert isinstance(accessor, FsAccessor)
    for _ in range(2):
        assert await read(accessor, "near") == await read(accessor, "absolute") == DATA
        with pytest.raises(errors.InvalidPath):
            await read(accessor, "far")


# --- the descriptor of a reader ----------------------------------------------------------------------------------


async def test_a_session_keeps_one_descriptor(
    accessor: FsAccessor, cache: ScriptedCache, jobs: Jobs, descriptors: Callable[[], list[str]]
) -> None:
    """Opened by its first read, used by the pinned ones after it, closed with it."""
    session, etag = ReadSession(), await etag_of(accessor, "k")
    cache.opened = 0
    assert await read(accessor, "k", size=5, session=session) == DATA[:5]
    for start in range(10):
        assert (
            await read(accessor, "k", offset=start, size=5, if_match=etag, session=session) == DATA[start : start + 5]
        )
    assert (cache.opened, len(descriptors()), jobs.count) == (1, 1, 0)
    session.close()
    assert descriptors() == []
    assert await read(accessor, "k", if_match=etag, session=session) == DATA
    assert descriptors() == []


async def test_threads_use_the_kept_descriptor(
    accessor: FsAccessor, cache: ScriptedCache, jobs: Jobs, descriptors: Callable[[], list[str]]
) -> None:
    session, etag = ReadSession(), await etag_of(accessor, "k")
    await read(accessor, "k", size=5, session=session)
    cache.script = iter([-errno.EAGAIN])
    assert await read(accessor, "k", if_match=etag, session=session) == DATA
    cache.script = iter([-errno.EOPNOTSUPP])
    assert await read(accessor, "k", if_match=etag, session=session) == DATA
    assert await read(accessor, "k", if_match=etag, session=session) == DATA
    assert (cache.opened, len(descriptors()), jobs.count) == (2, 1, 3)
    session.close()
    assert descriptors() == []


def replace(path: Path) -> None:
    (path.parent / "new").write_bytes(b"n" * len(DATA))
    os.replace(path.parent / "new", path)


def move_away(path: Path) -> None:
    path.rename(path.parent / "elsewhere")
    path.write_bytes(b"n" * len(DATA))


def replace_linked(path: Path) -> None:
    os.link(path, path.parent / "other name")
    replace(path)


def truncate(path: Path) -> None:
    os.truncate(path, 100)


def overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"n" * len(DATA))
    os.utime(path, ns=(1, 1))


CHANGES = [replace, move_away, replace_linked, truncate, overwrite]


@pytest.mark.parametrize("answers", [True, False])
@pytest.mark.parametrize("change", [*CHANGES, os.unlink])
async def test_a_change_between_reads_is_seen(
    accessor: FsAccessor,
    cache: ScriptedCache,
    root: Path,
    descriptors: Callable[[], list[str]],
    change: Callable[[Path], None],
    answers: bool,
) -> None:
    """Although the descriptor of the old file is kept, on the loop and in threads."""
    session, etag = ReadSession(), await etag_of(accessor, "k")
    await read(accessor, "k", session=session)
    if not answers:
        cache.script = iter([-errno.EOPNOTSUPP])
        await read(accessor, "k", if_match=etag, session=session)
    change(root / "k")
    with pytest.raises((errors.ConditionNotMatch, errors.NotFound)):
        await read(accessor, "k", size=5, if_match=etag, session=session)
    session.close()
    assert descriptors() == []


@pytest.mark.parametrize("change", CHANGES)
async def test_a_reader_never_mixes_versions(root: Path, change: Callable[[Path], None]) -> None:
    (root / "k").write_bytes(DATA)
    async with Operator(Fs(str(root))) as operator, operator.reader("k", policy="random") as reader:
        assert await reader.read_at(0, 10) == DATA[:10]
        assert await reader.read_at(50, 10) == DATA[50:60]
        change(root / "k")
        with pytest.raises(errors.ObjectChanged):
            await reader.read_at(90, 20)


async def test_a_change_of_the_mode_alone_disturbs_no_reader(root: Path) -> None:
    (root / "k").write_bytes(DATA)
    async with Operator(Fs(str(root))) as operator, operator.reader("k", policy="random") as reader:
        assert await reader.read_at(0, 10) == DATA[:10]
        (root / "k").chmod(0o600)
        assert await reader.read_at(50, 10) == DATA[50:60]


async def test_descriptors_end_with_reader_operator_and_garbage(
    root: Path, descriptors: Callable[[], list[str]]
) -> None:
    (root / "k").write_bytes(DATA)
    operator = Operator(Fs(str(root)))
    async with operator.reader("k") as reader:
        await reader.read_at(0, 10)
        assert len(descriptors()) == 1
    assert descriptors() == []
    dropped = operator.reader("k", policy="random")
    await dropped.read_at(0, 10)
    del dropped
    await asyncio.sleep(0)  # Until then another reader may share its first request.
    gc.collect()
    assert descriptors() == []
    left_open = operator.reader("k", policy="random")
    await left_open.read_at(5, 10)
    await operator.aclose()
    assert descriptors() == []


async def test_kept_descriptors_are_bounded(accessor: FsAccessor, descriptors: Callable[[], list[str]]) -> None:
    sessions = [ReadSession() for _ in range(KEPT_MAX + 10)]
    for session in sessions:
        assert await read(accessor, "k", size=5, session=session) == DATA[:5]
    assert len(descriptors()) == KEPT_MAX
    sessions[0].close()
    assert await read(accessor, "k", size=5, session=sessions[-1]) == DATA[:5]
    assert len(descriptors()) == KEPT_MAX
    for session in sessions:
        session.close()
    assert descriptors() == []


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.EOPNOTSUPP])
async def test_cancelled_after_any_number_of_turns(
    accessor: FsAccessor, cache: ScriptedCache, descriptors: Callable[[], list[str]], code: int
) -> None:
    """With and without a session: nothing stays open but what a session keeps, and its reads go on."""
    etag = await etag_of(accessor, "k")
    for turns in range(30):
        session = ReadSession()
        if turns % 2:
            await read(accessor, "k", size=5, session=session)
        cache.script = iter([-code])
        task = asyncio.ensure_future(read(accessor, "k", if_match=etag, session=session))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        assert await read(accessor, "k", if_match=etag, session=session) == DATA
        session.close()
        assert descriptors() == []


async def test_two_first_reads_of_one_session(accessor: FsAccessor, descriptors: Callable[[], list[str]]) -> None:
    """Beside each other in threads: one descriptor is kept."""
    session = ReadSession()
    assert await asyncio.gather(*[read(accessor, "k", session=session) for _ in range(5)]) == [DATA] * 5
    assert len(descriptors()) == 1
    session.close()
    assert descriptors() == []


async def test_a_session_that_closes_lets_its_reads_end(
    accessor: FsAccessor, cache: ScriptedCache, descriptors: Callable[[], list[str]]
) -> None:
    """A read that has its file gets all bytes, and is the last to use the descriptor."""
    session, etag = ReadSession(), await etag_of(accessor, "k")
    assert await read(accessor, "k", size=5, session=session) == DATA[:5]
    cache.script = iter([-errno.EAGAIN])
    task = asyncio.ensure_future(read(accessor, "k", if_match=etag, session=session))
    await asyncio.sleep(0)
    session.close()
    assert await task == DATA
    assert descriptors() == []


async def test_a_closed_operator_reads_nothing(accessor: FsAccessor, runtime: Runtime) -> None:
    await runtime.aclose()
    with pytest.raises(errors.Closed):
        await read(accessor, "k")

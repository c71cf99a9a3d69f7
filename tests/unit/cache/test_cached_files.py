"""Block files that the kernel has in memory are read on the loop, the others by one job straight into their block."""

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from aioprefetch.cache.directory import SystemCalls
from aioprefetch.cache.entry import PIECE_BYTES, PIECE_BYTES_MIN
from aioprefetch.cache.files import OPEN_MAX, SCRATCH_BYTES
from aioprefetch.reader.reader import RangeReader
from aioprefetch.runtime.page_cache import KNOWS_NOWAIT
from aioprefetch.testing.conformance.suite import checks
from tests.probes.calls import counted_calls
from tests.probes.descriptors import descriptors_below, needs_proc
from tests.probes.turns import OtherTask
from tests.stores.disk_tier import (
    BLOCK,
    READ_TIMEOUT_SECONDS,
    counts,
    disk_bench,
    key_in,
    on_disk,
    pass_time,
    read_block,
    reader_of,
    tier_of,
    written,
)
from tests.stores.failing_disk import (
    StillCalls,
    WarmCalls,
    cache_in,
    data_of,
    failing,
    file_of,
    files_in,
    key_of,
    overwrite,
    put,
    until,
)
from tests.stores.gated_reader import KIB, MIB, Bench, settle


@asynccontextmanager
async def warm_bench(
    path: Path, calls: StillCalls | None = None, **more: Any
) -> AsyncIterator[tuple[Bench, RangeReader]]:
    """A bench whose blocks 1 to 3 are on the disk and in the memory of the kernel; a thread has read block 0."""
    more = {"memory_blocks": 4, **more}
    async with disk_bench(path, calls=calls, **more) as b, reader_of(b) as reader:
        await on_disk(b, reader, 0, 1, 2, 3)
        await read_block(b, reader, 0)
        await written(b)
        b.calls.clear()
        if isinstance(calls, WarmCalls):
            calls.made.clear()
        yield b, reader
        if isinstance(calls, WarmCalls):
            calls.before = None


async def test_what_the_kernel_has_needs_no_thread(tmp_path: Path) -> None:
    """One file opened, looked at and read on the loop; it counts as what it is."""
    calls = WarmCalls()
    async with warm_bench(tmp_path, calls) as (b, reader):
        hits, before = counts(b)[0], reader.statistics["hits_disk"]
        for number, index in enumerate((1, 2, 3), start=1):
            await read_block(b, reader, index)
            assert (calls.made.count("open_cached"), calls.made.count("read_cached")) == (number, number)
        assert "read" not in calls.made
        assert b.calls == []
        assert counts(b)[0] - hits == 3
        assert counts(b)[2] == 0
        assert reader.statistics["hits_disk"] - before == 3


async def test_a_part_of_a_small_block(tmp_path: Path) -> None:
    """The piece and the tail are verified, and the part that was asked for is kept."""
    calls = WarmCalls()
    async with warm_bench(tmp_path, calls) as (b, reader):
        reader.set_policy("random")
        used_bytes = b.runtime.budget.used_bytes
        assert await reader.read_at(BLOCK + 100, 50) == b.data[BLOCK + 100 : BLOCK + 150]
        assert b.runtime.budget.used_bytes <= used_bytes + 50
        assert calls.made.count("read_cached") == 2
        assert "read" not in calls.made
        assert b.calls == []


class Real(SystemCalls):
    """The system's own calls, those that wait counted."""

    def __init__(self) -> None:
        self.reads = 0

    def seconds(self) -> float:
        return 0.0

    def read(self, descriptor: int, parts: Any, position: int) -> int:  # type: ignore[override]
        self.reads += 1
        return super().read(descriptor, parts, position)


@pytest.mark.skipif(not KNOWS_NOWAIT, reason="preadv has no RWF_NOWAIT here")
async def test_the_page_cache_of_the_system(tmp_path: Path) -> None:
    """A file that was just written needs no thread, where the file system knows the flag."""
    calls = Real()
    async with disk_bench(tmp_path, memory_blocks=4, calls=calls) as b, reader_of(b) as reader:
        await on_disk(b, reader, 0, 1)
        await read_block(b, reader, 0)
        calls.reads = 0
        b.calls.clear()
        await read_block(b, reader, 1)
        descriptor = os.open(file_of(tmp_path, key_in(b, reader, 1)), os.O_RDONLY)
        try:
            is_answered = calls.answers_from_memory(descriptor)
        finally:
            os.close(descriptor)
        assert calls.reads == (0 if is_answered else 1)
        assert b.calls == []


# --- what has to be waited for --------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.EIO, errno.EINTR, errno.EOPNOTSUPP])
@pytest.mark.parametrize("operation", ["open_cached", "read_cached"])
async def test_a_thread_reads_what_is_not_cached(tmp_path: Path, operation: str, code: int) -> None:
    """It is no failure. A file system that does not know the flag is not asked again."""
    calls = WarmCalls()
    async with warm_bench(tmp_path, calls) as (b, reader):
        calls.before = failing(operation, code)
        await read_block(b, reader, 1)
        assert calls.made.count(operation) == 1
        assert calls.made.count("read") == 1
        calls.before = None
        calls.made.clear()
        await read_block(b, reader, 2)
        assert calls.made.count("read_cached") == (0 if code == errno.EOPNOTSUPP else 1)
        assert b.calls == []
        assert counts(b)[2] == 0


@pytest.mark.parametrize("count", [0, 1, 100, BLOCK - 1, BLOCK])
async def test_a_short_answer_is_carried_on_and_a_thread_reads_all_after_an_empty_one(
    tmp_path: Path, count: int
) -> None:
    calls = WarmCalls()
    async with warm_bench(tmp_path, calls) as (b, reader):
        calls.counts = [count]
        await read_block(b, reader, 1)
        assert (calls.made.count("read_cached"), calls.made.count("read")) == ((2, 0) if count else (1, 1))
        assert b.calls == []
        assert counts(b)[2] == 0


async def test_a_name_that_is_not_cached_is_opened_by_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = WarmCalls()
    async with warm_bench(tmp_path, calls) as (b, reader):
        monkeypatch.setattr(calls, "open_cached", lambda name, directory: None)
        await read_block(b, reader, 1)
        assert calls.made.count("read") == 1
        assert b.calls == []
        assert counts(b)[2] == 0


@checks("reliability:C29")
async def test_a_block_that_would_hold_the_loop_is_left_to_a_thread(tmp_path: Path) -> None:
    calls = WarmCalls()
    more: dict[str, Any] = {"block_bytes": 2 * BLOCK, "blocks": 16, "memory_bytes": 8 * BLOCK}
    async with disk_bench(tmp_path, calls=calls, **more) as b, reader_of(b) as reader:
        for index in range(8):
            assert await reader.read_at(2 * index * BLOCK, BLOCK) == b.data[2 * index * BLOCK :][:BLOCK]
            await written(b)
        calls.made.clear()
        b.calls.clear()
        assert await reader.read_at(0, BLOCK) == b.data[:BLOCK]
        assert await reader.read_at(2 * BLOCK, BLOCK) == b.data[2 * BLOCK : 3 * BLOCK]
        assert b.calls == []
        assert calls.made.count("read") == 2
        assert "read_cached" not in calls.made


async def test_a_part_of_a_large_block(tmp_path: Path) -> None:
    """Its piece and the tail are read on the loop. One that crosses two large pieces is left to a thread."""
    calls, large = WarmCalls(), 65 * PIECE_BYTES
    more: dict[str, Any] = {"block_bytes": large, "memory_bytes": large, "blocks": 2 * large // BLOCK}
    async with (
        disk_bench(tmp_path, calls=calls, disk={"capacity_bytes": MIB * 128}, **more) as b,
        reader_of(b) as reader,
    ):
        for start in (0, large):
            await reader.read_at(start, large)
            await written(b)
        reader.set_policy("random")
        b.calls.clear()
        for start, on_loop, by_thread in ((100, 0, 2), (PIECE_BYTES + 100, 2, 0), (2 * PIECE_BYTES - 100, 0, 2)):
            calls.made.clear()
            assert await reader.read_at(start, 200) == b.data[start : start + 200]
            assert (calls.made.count("read_cached"), calls.made.count("read")) == (on_loop, by_thread)
        assert b.calls == []


# --- files that are not as they were --------------------------------------------------------------------------------


async def test_a_file_that_was_removed_is_a_miss_and_no_failure(tmp_path: Path) -> None:
    async with warm_bench(tmp_path, WarmCalls()) as (b, reader):
        file_of(tmp_path, key_in(b, reader, 1)).unlink()
        await read_block(b, reader, 1)
        assert b.ranges == [(BLOCK, 2 * BLOCK)]
        assert counts(b)[2] == 0


@pytest.mark.parametrize("position", [0, 20, 60, -5, -BLOCK])
async def test_a_damaged_file_is_a_miss_and_removed(tmp_path: Path, position: int) -> None:
    """In its data or in its tail."""
    async with warm_bench(tmp_path, WarmCalls()) as (b, reader):
        key = key_in(b, reader, 1)
        file = file_of(tmp_path, key)
        before, at = file.stat(), position % key.file_bytes
        overwrite(file, at, bytes([file.read_bytes()[at] ^ 1]))
        await read_block(b, reader, 1)
        assert b.ranges == [(BLOCK, 2 * BLOCK)]
        assert counts(b)[2] == 1
        assert not file.exists() or file.stat().st_ino != before.st_ino


def plant_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def plant_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def plant_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def lengthen(path: Path) -> None:
    os.truncate(path, path.stat().st_size + 1)


@pytest.mark.parametrize("plant", [plant_link, plant_fifo, plant_directory, truncate, lengthen])
async def test_a_name_of_something_else_is_a_miss_and_removed(tmp_path: Path, plant: Callable[[Path], None]) -> None:
    async with warm_bench(tmp_path, WarmCalls()) as (b, reader):
        file = file_of(tmp_path, key_in(b, reader, 1))
        plant(file)
        await read_block(b, reader, 1)
        assert b.ranges == [(BLOCK, 2 * BLOCK)]
        assert counts(b)[2] == 1
        await written(b)
        assert not file.exists() or (file.is_file() and not file.is_symlink())


class FailOnce:
    """The n-th call fails. Unless ``is_cached`` the kernel has no byte in memory, which is no failure."""

    def __init__(self, n: int, *, is_cached: bool) -> None:
        self.left = n
        self._is_cached = is_cached

    def __call__(self, operation: str) -> None:
        if operation == "read_cached" and not self._is_cached:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self.left -= 1
        if self.left == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("is_cached", [True, False])
async def test_every_call_of_a_hit_may_fail(tmp_path: Path, is_cached: bool) -> None:
    """Each in turn, on the loop and in the thread that takes its place."""
    n, has_failed = 0, True
    while has_failed:
        n += 1
        calls, fails = WarmCalls(), FailOnce(n, is_cached=is_cached)
        async with warm_bench(tmp_path / str(n), calls) as (b, reader):
            calls.before = fails
            await read_block(b, reader, 1)
            await written(b)
            calls.before = None
            await read_block(b, reader, 2)
            assert not tier_of(b).calls.is_off
        has_failed = fails.left <= 0
    assert n > (3 if is_cached else 6)


# --- turns of the loop ----------------------------------------------------------------------------------------------


async def test_other_tasks_get_their_turns(tmp_path: Path) -> None:
    """A task that only reads what is in memory would otherwise never let go."""
    async with warm_bench(tmp_path, WarmCalls(), memory_blocks=2) as (b, reader), OtherTask() as other:
        hits = counts(b)[0]
        for _ in range(10):
            for index in (1, 2, 3):
                await read_block(b, reader, index)
        assert other.turns >= (counts(b)[0] - hits) // 2 > 5


@pytest.mark.cost
async def test_a_hit_takes_few_calls_of_functions(tmp_path: Path) -> None:
    """Of the package, while memory is free: 218 when this was written."""
    small = 2 * KIB
    more: dict[str, Any] = {"block_bytes": small, "blocks": 1, "memory_bytes": BLOCK}
    async with disk_bench(tmp_path, calls=WarmCalls(), **more) as b, reader_of(b) as reader:
        for _ in range(2):
            for start in range(0, BLOCK, small):
                assert await reader.read_at(start, small) == b.data[start : start + small]
                await written(b)
        there = [index for index in range(32) if key_in(b, reader, index).name in tier_of(b).cache][:12]
        await reader.unbuffer()
        await reader.read_at(there.pop() * small, small)  # A thread reads it, and learns that the others are cached.
        b.calls.clear()
        hits = counts(b)[0]
        with counted_calls(of_package=True) as calls:
            for index in there:
                await reader.read_at(index * small, small)
        assert b.calls == []
        assert counts(b)[0] - hits == len(there) > 5
        assert calls.number / len(there) < 250


# --- which files were used ------------------------------------------------------------------------------------------


def test_a_read_on_the_loop_counts_as_a_use(tmp_path: Path) -> None:
    """The file that was read stays, and the one that was not makes room."""
    keys = [key_of(index) for index in range(4)]
    cache = cache_in(tmp_path, capacity_bytes=3 * keys[0].file_bytes, calls=WarmCalls())
    for key in keys[:3]:
        put(cache, key)
    assert cache.find(keys[2]) is not None
    data = bytearray(keys[0].data_bytes)
    assert cache.read_cached(keys[0], 0, memoryview(data), memoryview(bytearray(SCRATCH_BYTES)))
    assert data == data_of(keys[0])
    put(cache, keys[3])
    assert sorted(files_in(tmp_path)) == sorted(keys[index].name for index in (0, 2, 3))


def test_a_tail_that_was_verified_is_not_read_again(tmp_path: Path) -> None:
    """Its checksums still hold: damage in the data is found by them, and a new entry of the name has others."""
    calls, key = WarmCalls(), key_of(size=4 * PIECE_BYTES_MIN, block_bytes=4 * PIECE_BYTES_MIN)
    cache = cache_in(tmp_path, calls=calls)
    put(cache, key)
    assert cache.find(key) is not None
    data, scratch = bytearray(100), memoryview(bytearray(SCRATCH_BYTES))

    def reads() -> int:
        calls.made.clear()
        is_read = cache.read_cached(key, 7, memoryview(data), scratch)
        assert not is_read or data == data_of(key)[7:107]
        cache.touch()
        return calls.made.count("read_cached") if is_read else 0

    assert [reads(), reads(), reads()] == [2, 1, 1]
    overwrite(file_of(tmp_path, key), 50, b"?")
    assert reads() == 0
    assert cache.put(key, [memoryview(data_of(key))], replaces=True)
    assert [reads(), reads()] == [2, 1]


@needs_proc
def test_files_stay_open_until_their_use_is_known(tmp_path: Path) -> None:
    """One that is read again is not opened again. There are not many of them, and none of a cache that is closed."""
    calls, keys = WarmCalls(), [key_of(index, size=10_000) for index in range(OPEN_MAX + 5)]
    cache, scratch = cache_in(tmp_path, calls=calls), memoryview(bytearray(SCRATCH_BYTES))
    for key in keys:
        put(cache, key)
    assert cache.find(keys[0]) is not None

    def opened() -> tuple[int, int]:
        calls.made.clear()
        for key in keys:
            data = memoryview(bytearray(key.data_bytes))
            assert cache.read_cached(key, 0, data, scratch)
            assert data == data_of(key)
        is_open = [path for path in descriptors_below(tmp_path) if not os.path.isdir(path)]
        return calls.made.count("open_cached"), len(is_open)

    assert [opened(), opened()] == [(len(keys), OPEN_MAX), (5, OPEN_MAX)]
    cache.touch()
    assert opened() == (len(keys), OPEN_MAX)
    cache.close()
    assert descriptors_below(tmp_path) == []


def test_an_open_file_that_was_damaged_is_opened_again(tmp_path: Path) -> None:
    key, data, scratch = key_of(), memoryview(bytearray(100)), memoryview(bytearray(SCRATCH_BYTES))
    cache = cache_in(tmp_path, calls=WarmCalls())
    put(cache, key)
    assert cache.find(key) is not None
    assert cache.read_cached(key, 0, data, scratch)
    overwrite(file_of(tmp_path, key), 50, b"?")
    assert not cache.read_cached(key, 0, data, scratch)
    assert cache.put(key, [memoryview(data_of(key))], replaces=True)
    assert cache.read_cached(key, 0, data, scratch)
    assert data == data_of(key)


@pytest.mark.parametrize("closes", [False, True])
async def test_other_processes_see_the_use(tmp_path: Path, closes: bool) -> None:
    """In the times of the files: a while after the read, and when the operator is closed."""
    async with warm_bench(tmp_path, WarmCalls(), touch_seconds=1000.0 if closes else 0.0) as (b, reader):
        file = file_of(tmp_path, key_in(b, reader, 1))
        os.utime(file, (1000.0, 1000.0))
        await read_block(b, reader, 1)
        if closes:
            await settle()
            assert file.stat().st_mtime == 1000.0
            await b.operator.aclose()
        await until(lambda: file.stat().st_mtime > 1000.0)


async def test_a_use_that_cannot_be_noted_is_no_failure(tmp_path: Path) -> None:
    calls = WarmCalls()
    async with warm_bench(tmp_path, calls) as (b, reader):
        calls.before = failing("touch", errno.EROFS)
        await read_block(b, reader, 1)
        await b.operator.aclose()
        assert "touch" in calls.made


async def test_closing_waits_for_no_disk_that_hangs(tmp_path: Path) -> None:
    released, returned = threading.Event(), threading.Event()

    def before(operation: str) -> None:
        if operation == "touch":
            released.wait(20)
            returned.set()

    calls = WarmCalls()
    async with warm_bench(tmp_path, calls) as (b, reader):
        await read_block(b, reader, 1)
        calls.before = before
        await b.operator.aclose()
        assert not returned.is_set()
        released.set()
        await until(returned.is_set)


# --- large blocks ---------------------------------------------------------------------------------------------------

LARGE = 3 * MIB


@asynccontextmanager
async def large_bench(path: Path, calls: StillCalls, **disk: Any) -> AsyncIterator[tuple[Bench, RangeReader]]:
    """A bench whose block 0, of 3 MiB, is on the disk and not in memory."""
    more: dict[str, Any] = {"block_bytes": LARGE, "memory_bytes": LARGE, "blocks": 2 * LARGE // BLOCK, "disk": disk}
    async with disk_bench(path, calls=calls, **more) as b, reader_of(b) as reader:
        for start in (0, LARGE):
            await reader.read_at(start, LARGE)
            await written(b)
        assert key_in(b, reader, 0).name in tier_of(b).cache
        b.calls.clear()
        yield b, reader


async def test_a_large_block_is_one_job_of_few_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tail, and the data by the MiB; no memory is used beside the block's own."""
    calls = WarmCalls()
    async with large_bench(tmp_path, calls) as (b, reader):
        disk, jobs = tier_of(b).calls, 0
        call = disk.call

        def counted(what: Any, job: Callable[[], object]) -> object:
            nonlocal jobs
            jobs += 1
            return call(what, job)

        monkeypatch.setattr(disk, "call", counted)
        calls.made.clear()
        assert await reader.read_at(0, LARGE) == b.data[:LARGE]
        assert b.calls == []
        assert jobs == 1
        assert calls.made.count("read") == 4
        assert b.runtime.budget.peak_bytes <= 2 * LARGE


async def test_a_job_that_takes_long_lets_its_bytes_be_seen(tmp_path: Path) -> None:
    """On a slow disk the first bytes do not wait for the last."""
    calls = WarmCalls()
    async with large_bench(tmp_path, calls) as (b, reader):
        now, reading, released = 0.0, threading.Event(), threading.Event()

        def before(operation: str) -> None:
            nonlocal now
            now += 1.0
            if operation == "read" and calls.made.count("read") == 3:
                reading.set()
                released.wait(20)

        calls.seconds = lambda: now  # type: ignore[method-assign]
        calls.made.clear()
        calls.before = before
        assert await reader.read_at(0, 1000) == b.data[:1000]
        await until(reading.is_set)
        released.set()
        assert await reader.read_at(0, LARGE) == b.data[:LARGE]
        assert b.calls == []
        calls.before = None


class Hang:
    """The n-th read hangs until it is released."""

    def __init__(self, n: int) -> None:
        self.left = n
        self.hanging, self.released, self.returned = threading.Event(), threading.Event(), threading.Event()

    def __call__(self, operation: str) -> None:
        if operation != "read":
            return
        self.left -= 1
        if self.left == 0:
            self.hanging.set()
            self.released.wait(20)
        elif self.left < 0:
            self.returned.set()


@pytest.mark.parametrize("n", [1, 2])
async def test_a_late_thread_writes_into_no_block(tmp_path: Path, n: int) -> None:
    """Not into the one that the store has filled meanwhile; its memory counts until it lets go."""
    calls, hang = WarmCalls(), Hang(n)
    async with large_bench(tmp_path, calls) as (b, reader):
        calls.before = hang
        reading = asyncio.ensure_future(reader.view_at(0, LARGE))
        await until(hang.hanging.is_set)
        pass_time(READ_TIMEOUT_SECONDS)
        view = await reading
        del reading
        assert b.ranges == [(0, LARGE)]
        assert b.runtime.budget.used_bytes >= 2 * LARGE
        overwrite(file_of(tmp_path, key_in(b, reader, 0)), 0, b"\xff" * (LARGE + 100))
        hang.released.set()
        await until(lambda: tier_of(b).calls.hanging_count == 0)
        assert bytes(view) == b.data[:LARGE]
        del view
        assert await reader.read_at(0, LARGE) == b.data[:LARGE]
        calls.before = None
        await until(lambda: b.runtime.budget.used_bytes <= LARGE)


@checks("reliability:C06")
@pytest.mark.parametrize("n", [1, 2, 3])
async def test_a_cancelled_read_leaves_its_memory_to_the_thread(tmp_path: Path, n: int) -> None:
    """The next read gets other memory than that to which the thread may still write."""
    calls, hang = WarmCalls(), Hang(n)
    async with large_bench(tmp_path, calls) as (b, reader):
        calls.before = hang
        task = asyncio.create_task(reader.read_at(0, LARGE))
        await until(hang.hanging.is_set)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await reader.unbuffer()
        file_of(tmp_path, key_in(b, reader, 0)).unlink()
        view = await reader.view_at(0, LARGE)
        assert b.ranges == [(0, LARGE)]
        hang.released.set()
        await settle()
        assert bytes(view) == b.data[:LARGE]
        del view
        calls.before = None
        await reader.unbuffer()
        await until(lambda: b.runtime.budget.used_bytes <= LARGE)

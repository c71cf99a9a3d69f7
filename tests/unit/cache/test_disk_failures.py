"""Whatever the disk does, every read gets the right bytes: full, broken, gone, forbidden, forged, slow or hanging."""

import asyncio
import errno
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aioprefetch.reader.reader import RangeReader
from aioprefetch.testing.conformance.suite import checks
from tests.stores.disk_tier import (
    BLOCK,
    counts,
    disk_bench,
    key_in,
    on_disk,
    read_all_over,
    read_block,
    reader_of,
    tier_of,
    warnings,
    written,
)
from tests.stores.failing_disk import (
    FailingCalls,
    cache_in,
    failing,
    file_of,
    files_in,
    overwrite,
    private,
    until,
)
from tests.stores.failing_disk import (
    read as read_file,
)


@checks("reliability:D01")
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("operation", ["write", "close", "rename", "change_mode", "space"])
async def test_a_disk_that_takes_nothing(
    tmp_path: Path, operation: str, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Reads go on, nothing is written for a while, there is one warning, and nothing is left behind."""
    calls = FailingCalls()
    async with disk_bench(tmp_path, calls=calls) as b:
        calls.before = failing(operation, number)
        await read_all_over(b)
        assert tier_of(b).writer.is_off
        made = len(calls.made)
        await read_all_over(b)
        assert len(calls.made) == made
        assert counts(b) == (0, 0, 1)
        assert files_in(tmp_path) == []
        assert len(warnings(caplog)) == 1
        assert os.strerror(number) in warnings(caplog)[0]
        assert str(tmp_path) in warnings(caplog)[0]
        calls.before = None


@checks("reliability:D01")
async def test_after_a_while_the_disk_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    calls = FailingCalls()
    async with disk_bench(tmp_path, calls=calls, disk={"cool_down_seconds": 0.01}) as b:
        calls.before = failing("write", errno.ENOSPC)
        await read_all_over(b)
        assert not files_in(tmp_path)
        calls.before = None
        await until(lambda: not tier_of(b).writer.is_off)
        await read_all_over(b)
        assert counts(b)[1] > 0
        assert len(warnings(caplog)) == 1


@checks("reliability:D29")
async def test_a_disk_without_room_is_not_written_to(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    calls = FailingCalls()
    full: Any = SimpleNamespace(f_bavail=0, f_frsize=1, f_blocks=1 << 30)
    calls.space = lambda directory: full
    async with disk_bench(tmp_path, calls=calls) as b:
        await read_all_over(b)
        assert counts(b) == (0, 0, 0)
        assert not tier_of(b).calls.is_off
        assert tier_of(b).writer.is_off
    assert "write" not in calls.made
    assert warnings(caplog) == []


@checks("reliability:D04")
async def test_a_file_that_cannot_be_read_is_a_miss_and_removed(tmp_path: Path) -> None:
    calls = FailingCalls()
    async with disk_bench(tmp_path, calls=calls) as b:
        reader = reader_of(b)
        await on_disk(b, reader, 0)
        name = key_in(b, reader, 0).name
        calls.before = failing("read", errno.EIO)
        await read_block(b, reader, 0)
        assert b.ranges == [(0, BLOCK)]
        assert counts(b)[2] == 1
        calls.before = None
        assert not tier_of(b).calls.is_off
        assert name not in files_in(tmp_path)
        await reader.aclose()


@checks("reliability:D04")
async def test_a_disk_that_reads_nothing_any_more_is_left_alone(tmp_path: Path) -> None:
    calls = FailingCalls()
    async with disk_bench(tmp_path, memory_blocks=4, calls=calls) as b:
        reader = reader_of(b)
        await on_disk(b, reader, 0, 1, 2, 3)
        calls.before = failing("read", errno.EIO)
        for index in (0, 1, 2, 3):
            await read_block(b, reader, index)
        assert tier_of(b).calls.is_off
        assert counts(b)[2] == 3
        calls.before = None
        await reader.aclose()


READS: dict[str, Callable[[RangeReader, int], Awaitable[bytes]]] = {}


def a_read(read: Callable[[RangeReader, int], Awaitable[bytes]]) -> Callable[[RangeReader, int], Awaitable[bytes]]:
    READS[read.__name__] = read
    return read


@a_read
async def read_at(reader: RangeReader, size: int) -> bytes:
    return await reader.read_at(0, size)


@a_read
async def view_at(reader: RangeReader, size: int) -> bytes:
    return bytes(await reader.view_at(0, size))


@a_read
async def read_ranges(reader: RangeReader, size: int) -> bytes:
    return b"".join(await reader.read_ranges([(0, size // 2), (size // 2, size)]))


@a_read
async def stream(reader: RangeReader, size: int) -> bytes:
    reader.seek(0)
    chunks = [chunk async for chunk in reader.stream(chunk_bytes=100_000)]
    return b"".join(chunks)[:size]


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("piece", [0, 1, 2])
async def test_a_file_that_is_damaged_in_the_middle_gives_the_bytes_before(
    tmp_path: Path, piece: int, read: str
) -> None:
    """The rest comes from the store, and no byte of the damaged piece from the file."""
    block_bytes = 3 << 20
    options: dict[str, Any] = {"block_bytes": block_bytes, "memory_bytes": block_bytes, "blocks": 96}
    async with disk_bench(tmp_path, **options) as b:
        reader = reader_of(b)
        await reader.read_at(0, 10)
        await reader.read_at(block_bytes, 10)
        await written(b)
        b.calls.clear()
        key = key_in(b, reader, 0)
        overwrite(file_of(tmp_path, key), (piece << 20) + 7, b"harm")
        assert await READS[read](reader, block_bytes) == b.data[:block_bytes]
        assert b.ranges[0] == (piece << 20, block_bytes)
        assert counts(b)[2] == 1
        await written(b)
        # What the store gave may have been written again.
        assert read_file(cache_in(tmp_path), key) in (None, b.data[:block_bytes])
        await reader.aclose()


@checks("reliability:D12")
async def test_a_directory_that_is_removed_while_it_is_used(tmp_path: Path) -> None:
    async with disk_bench(tmp_path / "given") as b:
        await read_all_over(b)
        shutil.rmtree(tmp_path / "given")
        await read_all_over(b, times=3)
        assert counts(b)[2] == 0
        assert len(files_in(tmp_path / "given")) > 4


@checks("reliability:D13")
async def test_a_directory_that_is_a_link_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "given").symlink_to(tmp_path / "target")
    async with disk_bench(tmp_path / "given", disk={"cool_down_seconds": 0.001}) as b:
        await read_all_over(b)
        assert tier_of(b).calls.is_off
        assert counts(b) == (0, 0, 1)
    assert list((tmp_path / "target").iterdir()) == []
    assert len(warnings(caplog)) == 1
    assert "symbolic link" in warnings(caplog)[0]
    assert "from now on" in warnings(caplog)[0]


@checks("reliability:D16")
async def test_a_directory_that_others_can_write_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    private(tmp_path).mkdir(mode=0o700)
    private(tmp_path).chmod(0o777)
    async with disk_bench(tmp_path) as b:
        await read_all_over(b)
    assert files_in(tmp_path) == []
    assert "mode 777" in warnings(caplog)[0]


@checks("reliability:D19")
@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
@pytest.mark.parametrize("operation", ["open", "make_directory"])
async def test_a_directory_that_may_not_be_entered(
    tmp_path: Path, operation: str, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    calls = FailingCalls(failing(operation, number))
    async with disk_bench(tmp_path / "new", calls=calls, disk={"cool_down_seconds": 0.001}) as b:
        await read_all_over(b, times=4)
        assert counts(b)[:2] == (0, 0)
        assert counts(b)[2] >= 1
    assert len(warnings(caplog)) == 1


@checks("reliability:D19")
async def test_a_file_system_that_cannot_be_written_still_gives_its_blocks(tmp_path: Path) -> None:
    calls = FailingCalls()
    async with disk_bench(tmp_path, calls=calls) as b:
        reader = reader_of(b)
        await on_disk(b, reader, 0, 1)

        def before(operation: str) -> None:
            if operation in ("touch", "rename", "remove"):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))

        calls.before = before
        await read_block(b, reader, 0)
        assert b.calls == []
        await reader.aclose()
        calls.before = None


@checks("reliability:D19")
@pytest.mark.parametrize("number", [errno.EROFS, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("operation", ["write", "rename"])
async def test_a_write_that_fails_ends_no_reading(
    tmp_path: Path, operation: str, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Half of the blocks are there: they serve every sweep, and the store is asked for the others alone."""
    calls = FailingCalls()
    async with disk_bench(tmp_path, calls=calls) as b, reader_of(b) as reader:
        await read_all_over(b)
        await reader.read_at(0, 1)
        there = [index for index in range(8) if key_in(b, reader, index).name in tier_of(b).cache]
        for index in there[::2]:
            file_of(tmp_path, key_in(b, reader, index)).unlink()
        there = there[1::2]
        calls.before = failing(operation, number)
        before = counts(b)
        for sweep in range(1, 4):
            b.calls.clear()
            for index in range(8):
                await read_block(b, reader, index)
            await written(b)
            assert counts(b)[0] - before[0] >= sweep * (len(there) - 1)  # One may be in memory still.
            assert counts(b)[1:] == (before[1], 1)
            assert not {start // BLOCK for start, _ in b.ranges} & set(there)
        assert tier_of(b).writer.is_off
        assert not tier_of(b).calls.is_off
        (message,) = warnings(caplog)
        assert "are not written" in message
        assert os.strerror(number) in message
        calls.before = None


@checks("reliability:D04")
async def test_reads_that_fail_end_reading_whatever_was_written(tmp_path: Path) -> None:
    """Writes that fail do not count for them, nor the other way round."""
    calls = FailingCalls()
    async with disk_bench(tmp_path, memory_blocks=4, blocks=16, calls=calls) as b:
        reader = reader_of(b)
        await on_disk(b, reader, 0, 1, 2, 3)
        calls.before = failing("write", errno.EROFS)
        for index in range(8, 16):
            await read_block(b, reader, index)
            await written(b)
        assert tier_of(b).writer.is_off
        calls.before = failing("read", errno.EIO)
        for number, index in enumerate((0, 1, 2), start=1):
            await read_block(b, reader, index)
            assert tier_of(b).calls.is_off is (number == 3)
        calls.before = None
        await reader.aclose()


@checks("reliability:D23")
async def test_a_block_that_vanished_is_a_miss_and_no_failure(tmp_path: Path) -> None:
    async with disk_bench(tmp_path) as b:
        reader = reader_of(b)
        await on_disk(b, reader, 0)
        child = await asyncio.create_subprocess_exec("rm", str(file_of(tmp_path, key_in(b, reader, 0))))
        assert await child.wait() == 0
        await read_block(b, reader, 0)
        assert b.ranges == [(0, BLOCK)]
        assert counts(b)[2] == 0
        await reader.aclose()

"""Conformance of positioned reads: `read_at`, `view_at`, `read_exactly_at`."""

import asyncio
import random
from typing import Any

import pytest

from aioprefetch.operator.operator import Operator
from aioprefetch.testing.conformance.ids import checks
from aioprefetch.testing.conformance.probes import RecordingLayer
from aioprefetch.testing.conformance.suite import ConformanceSuite
from aioprefetch.testing.oracle import assert_same_bytes, content

KIB = 1024
SIZE = 64 * KIB
BLOCK = 8 * KIB


class PositionedReadChecks(ConformanceSuite):
    """Tests of reads at an offset."""

    @checks("s3a:P01")
    async def test_pread_leaves_the_cursor_alone(self, operator: Operator) -> None:
        """A positioned read does not change the next sequential byte."""
        await self.put_directly("k", content(SIZE))
        async with operator.reader("k", block_bytes=BLOCK) as reader:
            reader.seek(40_000)
            assert_same_bytes(await reader.read_at(128, 256), content(SIZE)[128:384], offset=128)
            assert_same_bytes(await reader.view_at(50, 10), content(SIZE)[50:60], offset=50)
            await reader.read_ranges([(0, 5), (60_000, 60_010)])
            assert reader.tell() == 40_000
            assert await reader.read(1) == content(SIZE)[40_000:40_001]

    @checks("s3a:P02")
    async def test_pread_from_many_tasks(self, operator: Operator) -> None:
        """Twenty tasks with positioned reads and one sequential task share a reader, and each gets its own bytes."""
        await self.put_directly("k", content(SIZE))

        async def read_somewhere(seed: int) -> None:
            chance = random.Random(seed)
            for _ in range(10):
                start = chance.randrange(SIZE)
                size = chance.randrange(3000)
                data = await reader.read_at(start, size)
                assert_same_bytes(data, content(SIZE)[start : start + size], offset=start, what=f"task {seed}")

        async def read_through() -> None:
            received = b""
            while chunk := await reader.read(3000):
                received += chunk
            assert_same_bytes(received, content(SIZE), what="sequential task")

        async with operator.reader("k", block_bytes=BLOCK) as reader:
            await asyncio.gather(read_through(), *map(read_somewhere, range(20)))

    @checks("s3a:P04", "s3a:P06")
    async def test_pread_invalid_arguments(self, operator: Operator) -> None:
        """Negative or non-integer offsets and sizes are refused, and the reader stays usable."""
        await self.put_directly("k", content(100))
        log = RecordingLayer()
        async with operator.layer(log).reader("k") as reader:
            for read in (reader.read_at, reader.view_at, reader.read_exactly_at):
                for offset, size in ((-1, 5), (0, -1), (-5, -5)):
                    with pytest.raises(ValueError, match="between"):
                        await read(offset, size)
                untyped: tuple[tuple[Any, Any], ...] = ((1.5, 1), (0, 1.5), ("0", 1), (True, 1), (None, 1))
                for wrong_offset, wrong_size in untyped:
                    with pytest.raises(TypeError):
                        await read(wrong_offset, wrong_size)
            assert log.requests == []
            assert_same_bytes(await reader.read_at(0, 100), content(100))

    @checks("s3a:P08")
    async def test_pread_into_what_is_no_buffer(self, operator: Operator) -> None:
        """None and read-only memory raise `TypeError` before any request, without moving the position."""
        await self.put_directly("k", content(100))
        log = RecordingLayer()
        watched = operator.layer(log)
        async with watched.reader("k") as reader:
            for buffer in (None, b"read-only", 5):
                with pytest.raises(TypeError):
                    await reader.readinto(buffer)
                with pytest.raises(TypeError):
                    await watched.read_into("k", 0, buffer)
            assert reader.tell() == 0
            assert log.requests == []

    @checks("s3a:P09", "opendal:R9")
    async def test_pread_at_the_end(self, operator: Operator) -> None:
        """Reads are short at the end of the object and empty beyond it, with an unknown size too."""
        await self.put_directly("k", content(SIZE))
        for size in (None, SIZE):
            async with operator.reader("k", block_bytes=BLOCK, size=size) as reader:
                assert await reader.read_at(SIZE, 10) == b""
                assert await reader.read_at(SIZE + 1000, 10) == b""
                assert_same_bytes(await reader.read_at(SIZE - 10, 100), content(SIZE)[-10:], offset=SIZE - 10)
                assert len(await reader.view_at(SIZE + 5, 10)) == 0
                assert len(await reader.view_at(SIZE - 10, 100)) == 10

    @checks("s3a:P10", "s3a:P11", "s3a:P14")
    async def test_pread_exactly_fails_at_the_end(self, operator: Operator) -> None:
        """A read that would be short raises `EOFError`; the position is kept, and the reader stays usable."""
        await self.put_directly("k", content(SIZE))
        for size in (None, SIZE):
            async with operator.reader("k", block_bytes=BLOCK, size=size) as reader:
                reader.seek(7)
                for offset, wanted in ((SIZE - 10, 11), (SIZE, 1), (SIZE + 1, 1), (0, SIZE + 1)):
                    with pytest.raises(EOFError):
                        await reader.read_exactly_at(offset, wanted)
                assert reader.tell() == 7
                assert_same_bytes(await reader.read_exactly_at(SIZE - 10, 10), content(SIZE)[-10:])
                assert_same_bytes(await reader.read(3), content(SIZE)[7:10], offset=7)

    @checks("s3a:P13")
    async def test_pread_of_everything(self, operator: Operator) -> None:
        """One read returns all bytes and leaves the position at zero."""
        await self.put_directly("k", content(SIZE))
        async with operator.reader("k", block_bytes=BLOCK) as reader:
            assert_same_bytes(await reader.read_at(0, SIZE), content(SIZE))
            assert_same_bytes(await reader.view_at(0, SIZE), content(SIZE))
            assert reader.tell() == 0

    @checks("opendal:R24", "s3a:P09")
    async def test_pread_tells_the_size_of_the_object(self, operator: Operator) -> None:
        """After a read of a part, `size` is the size of the object."""
        await self.put_directly("k", content(SIZE))
        async with operator.reader("k", block_bytes=BLOCK) as reader:
            sizes = [reader.size]
            await reader.read_at(100, 10)
            sizes.append(reader.size)
            assert sizes == [None, SIZE]
            assert await reader.ensure_size() == SIZE

    @checks("opendal:R23")
    async def test_pread_options_that_cannot_work(self, operator: Operator) -> None:
        """Invalid and unknown options are refused by the plain call, before any I/O."""
        wrong: tuple[dict[str, Any], ...] = (
            {"block_bytes": 0},
            {"block_bytes": -1},
            {"prefetch_blocks": -1},
            {"size": -1},
            {"policy": "no such policy"},
        )
        for options in wrong:
            with pytest.raises(ValueError, match=next(iter(options))):
                operator.reader("k", **options)
        await self.put_directly("k", content(100))
        async with operator.reader("k") as reader:
            for chunk_bytes in (0, -1):
                with pytest.raises(ValueError, match="chunk_bytes"):
                    reader.stream(chunk_bytes=chunk_bytes)

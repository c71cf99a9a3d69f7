"""Conformance of a reader's reads: of the cursor, at positions, and of many ranges.

The cursor is as in POSIX: seek, tell, read and readinto. `read_at`, `view_at` and `read_exactly_at` leave it where it
is, and so do `read_ranges` and `iter_ranges`.
"""

from __future__ import annotations

import asyncio
import io
import random
from typing import Any

from aioprefetch.errors import Closed, InvalidRange, InvalidType, NotFound, SizeUnknown, Unavailable
from aioprefetch.operator.operator import Operator
from aioprefetch.testing.conformance.suite import ConformanceSuite, FailingLayer, GateLayer, RecordingLayer, checks
from aioprefetch.testing.oracle import ReaderModel, assert_same_bytes, content, raises

KIB = 1024
SIZE = 64 * KIB
BLOCK = 8 * KIB


class SeekChecks(ConformanceSuite):
    """Tests of the cursor of a `RangeReader`."""

    @checks("s3a:S01", "s3a:S02", "s3a:S03", "s3a:P12")
    async def test_seek_in_an_empty_object(self, operator: Operator) -> None:
        """Every read of an empty object is at its end, and the position stays zero."""
        await self.put_directly("empty", b"")
        async with operator.reader("empty") as reader:
            assert await reader.read(1) == b""
            assert reader.tell() == 0
            assert reader.seek(0) == 0
            assert await reader.read(1) == b""
            assert await reader.read() == b""
            assert await reader.readinto(bytearray(1)) == 0
            assert await reader.read_at(0, 16) == b""
            assert await reader.read_exactly_at(0, 0) == b""
            with raises(EOFError):
                await reader.read_exactly_at(0, 16)
            assert (reader.tell(), reader.size) == (0, 0)

    @checks("s3a:S04", "s3a:S05", "s3a:S06", "s3a:S07")
    async def test_seek_and_tell(self, operator: Operator) -> None:
        """The position starts at zero and follows reads and seeks, backward too; a seek sends no request."""
        log = RecordingLayer()
        async with self.reading(operator.layer(log), content(SIZE), block_bytes=BLOCK) as reader:
            assert reader.tell() == 0
            assert reader.seek(128) == 128
            assert reader.tell() == 128
            assert log.requests == []
            reader.seek(0)
            assert await reader.read(1) + await reader.read(1) == content(2)
            assert reader.tell() == 2
            reader.seek(128)
            assert await reader.read(1) == content(SIZE)[128:129]
            reader.seek(63)
            assert await reader.read(1) == content(SIZE)[63:64]
            assert reader.tell() == 64

    @checks("s3a:S08")
    async def test_seek_to_the_current_position_is_free(self, operator: Operator) -> None:
        """A seek to the current position sends no request and keeps the held bytes."""
        log = RecordingLayer()
        async with self.reading(operator.layer(log), content(SIZE), block_bytes=BLOCK, prefetch_blocks=0) as reader:
            await reader.read(100)
            before = len(log.requests)
            assert reader.seek(0, io.SEEK_CUR) == 100
            assert reader.seek(100) == 100
            assert_same_bytes(await reader.read(50), content(SIZE)[100:150], offset=100)
            assert len(log.requests) == before

    @checks("s3a:S09", "s3a:S19", "opendal:R26")
    async def test_seek_to_a_negative_position(self, operator: Operator) -> None:
        """A negative position raises `ValueError`; the position is kept, and the reader stays usable."""
        async with self.reading(operator, content(SIZE), block_bytes=BLOCK) as reader:
            await reader.read(10)
            for offset, whence in ((-1, io.SEEK_SET), (-11, io.SEEK_CUR), (-SIZE - 1, io.SEEK_END)):
                with raises(ValueError, match="position"):
                    reader.seek(offset, whence)
                assert reader.tell() == 10
            with raises(ValueError, match="whence"):
                reader.seek(0, 7)
            with raises(TypeError):
                reader.seek(1.5)  # type: ignore[arg-type]
            assert_same_bytes(await reader.read(10), content(SIZE)[10:20], offset=10)

    @checks("s3a:S10", "s3a:S11")
    async def test_seek_to_and_beyond_the_end(self, operator: Operator) -> None:
        """Seeks to the end and beyond are allowed; reads there are empty, and a seek back works."""
        async with self.reading(operator, content(SIZE), block_bytes=BLOCK) as reader:
            for position in (SIZE, SIZE + 1, 10 * SIZE):
                assert reader.seek(position) == position
                assert await reader.read(1) == b""
                assert await reader.read() == b""
                assert reader.tell() == position
            reader.seek(1)
            assert await reader.read(1) == content(2)[1:]

    @checks("s3a:S12")
    async def test_seek_just_before_the_end(self, operator: Operator) -> None:
        """Two bytes remain, and then every read is empty."""
        async with self.reading(operator, content(SIZE), block_bytes=BLOCK) as reader:
            reader.seek(SIZE - 2)
            chunks = [await reader.read(1) for _ in range(4)]
            assert chunks == [content(SIZE)[-2:-1], content(SIZE)[-1:], b"", b""]
            assert reader.tell() == SIZE

    @checks("s3a:S13")
    async def test_seek_through_a_large_object(self, operator: Operator) -> None:
        """Reads are right after near and far seeks in both directions."""
        async with self.reading(operator, content(SIZE), block_bytes=BLOCK) as reader:
            for position in (32768, 40000, 8191, 0):
                reader.seek(position)
                assert await reader.read(1) == content(SIZE)[position : position + 1]

    @checks("s3a:S14", "opendal:R26")
    async def test_seek_and_read_at_random(self, operator: Operator) -> None:
        """A hundred random seeks and reads match the model, with all three whences."""
        data = content(10 * KIB)
        await self.put_directly("k", data)
        for known_size in (None, 10 * KIB):
            chance, model, history = random.Random(14), ReaderModel(data), []
            async with operator.reader("k", block_bytes=KIB, size=known_size) as reader:
                await reader.ensure_size()
                for _ in range(100):
                    whence = chance.choice((io.SEEK_SET, io.SEEK_CUR, io.SEEK_END))
                    target, size = chance.randrange(len(data) + 200), chance.randrange(2000)
                    base = {io.SEEK_SET: 0, io.SEEK_CUR: model.tell(), io.SEEK_END: len(data)}[whence]
                    history.append(f"seek({target - base}, {whence}) read({size})")
                    assert reader.seek(target - base, whence) == model.seek(target - base, whence), history[-10:]
                    assert_same_bytes(await reader.read(size), model.read(size), offset=target, what=str(history[-10:]))
                    assert reader.tell() == model.tell(), history[-10:]

    @checks("s3a:S15", "s3a:P03")
    async def test_seek_read_of_nothing(self, operator: Operator) -> None:
        """A read of zero bytes sends no request at any position."""
        log = RecordingLayer()
        async with self.reading(operator.layer(log), content(100)) as reader:
            for position in (0, 50, 100, 1000):
                reader.seek(position)
                assert await reader.read(0) == b""
                assert await reader.readinto(bytearray()) == 0
                assert await reader.read_at(position, 0) == b""
                assert await reader.read_exactly_at(position, 0) == b""
                assert len(await reader.view_at(position, 0)) == 0
            assert log.requests == []

    @checks("s3a:S16", "s3a:S17", "opendal:R28")
    async def test_seek_reads_are_full_until_the_end(self, operator: Operator) -> None:
        """`read(n)` and `readinto` return `n` bytes except at the end of the object."""
        await self.put_directly("k", content(SIZE))
        for into in (False, True):
            received = b""
            async with operator.reader("k", block_bytes=BLOCK) as reader:
                while True:
                    buffer = bytearray(5000)
                    if into:
                        chunk = bytes(buffer[: await reader.readinto(buffer)])
                    else:
                        chunk = await reader.read(5000)
                    assert len(chunk) == min(5000, SIZE - len(received))
                    if not chunk:
                        break
                    received += chunk
            assert_same_bytes(received, content(SIZE))

    @checks("s3a:S18")
    async def test_seek_is_lazy(self, operator: Operator) -> None:
        """A seek in a missing object succeeds; the read fails."""
        async with operator.reader("no/such") as reader:
            assert reader.seek(1000) == 1000
            with raises(NotFound):
                await reader.read(1)
            assert reader.tell() == 1000

    @checks("opendal:R26")
    async def test_seek_from_an_unknown_end(self, operator: Operator) -> None:
        """The next read resolves the position by a suffix GET, which brings the tail; before it `tell` fails."""
        async with self.reading(operator, content(SIZE), block_bytes=BLOCK) as reader:
            reader.seek(-10, io.SEEK_END)
            with raises(SizeUnknown):
                reader.tell()
            assert_same_bytes(await reader.read(4), content(SIZE)[-10:-6], offset=SIZE - 10)
            assert reader.tell() == SIZE - 6
            assert_same_bytes(await reader.read(), content(SIZE)[-6:], offset=SIZE - 6)
            assert reader.size == SIZE


class PositionedReadChecks(ConformanceSuite):
    """Tests of reads at an offset."""

    @checks("s3a:P01")
    async def test_pread_leaves_the_cursor_alone(self, operator: Operator) -> None:
        """A positioned read does not change the next sequential byte."""
        async with self.reading(operator, content(SIZE), block_bytes=BLOCK) as reader:
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
        log = RecordingLayer()
        async with self.reading(operator.layer(log), content(100)) as reader:
            for read in (reader.read_at, reader.view_at, reader.read_exactly_at):
                for offset, size in ((-1, 5), (0, -1), (-5, -5)):
                    with raises(ValueError, match="between"):
                        await read(offset, size)
                untyped: tuple[tuple[Any, Any], ...] = ((1.5, 1), (0, 1.5), ("0", 1), (True, 1), (None, 1))
                for wrong_offset, wrong_size in untyped:
                    with raises(TypeError):
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
                with raises(TypeError):
                    await reader.readinto(buffer)
                with raises(TypeError):
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
                    with raises(EOFError):
                        await reader.read_exactly_at(offset, wanted)
                assert reader.tell() == 7
                assert_same_bytes(await reader.read_exactly_at(SIZE - 10, 10), content(SIZE)[-10:])
                assert_same_bytes(await reader.read(3), content(SIZE)[7:10], offset=7)

    @checks("s3a:P13")
    async def test_pread_of_everything(self, operator: Operator) -> None:
        """One read returns all bytes and leaves the position at zero."""
        async with self.reading(operator, content(SIZE), block_bytes=BLOCK) as reader:
            assert_same_bytes(await reader.read_at(0, SIZE), content(SIZE))
            assert_same_bytes(await reader.view_at(0, SIZE), content(SIZE))
            assert reader.tell() == 0

    @checks("opendal:R24", "s3a:P09")
    async def test_pread_tells_the_size_of_the_object(self, operator: Operator) -> None:
        """After a read of a part, `size` is the size of the object."""
        async with self.reading(operator, content(SIZE), block_bytes=BLOCK) as reader:
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
            with raises(ValueError, match=next(iter(options))):
                operator.reader("k", **options)
        async with self.reading(operator, content(100)) as reader:
            for chunk_bytes in (0, -1):
                with raises(ValueError, match="chunk_bytes"):
                    reader.stream(chunk_bytes=chunk_bytes)


FAR_APART = [(0, 100), (30_000, 30_100), (60_000, 60_100)]


class VectoredChecks(ConformanceSuite):
    """Tests of several ranges in one call."""

    async def _read_and_compare(self, operator: Operator, ranges: list[tuple[int, int]]) -> None:
        """Read through both calls, with known and unknown size, and compare with the model."""
        expected = ReaderModel(content(SIZE)).read_ranges(ranges)
        for size in (None, SIZE):
            async with operator.reader("k", block_bytes=BLOCK, size=size) as reader:
                for (start, _), part, due in zip(ranges, await reader.read_ranges(ranges), expected, strict=True):
                    assert_same_bytes(part, due, offset=start)
                seen = {}
                async for position, part in reader.iter_ranges(ranges):
                    assert position not in seen
                    seen[position] = part
                    assert_same_bytes(part, expected[position], offset=ranges[position][0])
                assert len(seen) == len(ranges)
                assert reader.tell() == 0

    @checks("s3a:V01", "s3a:V02", "s3a:V03", "s3a:V04", "s3a:V05", "s3a:V13", "s3a:V21")
    async def test_vectored_reads_of_all_shapes(self, operator: Operator) -> None:
        """Adjacent, unsorted, overlapping, identical and empty ranges are right."""
        await self.put_directly("k", content(SIZE))
        await self._read_and_compare(operator, [(100 * n, 100 * n + 100) for n in range(10)])
        await self._read_and_compare(operator, [(50_000, 50_010), (10, 20), (30_000, 40_000)])
        await self._read_and_compare(operator, [(0, 100), (50, 150), (0, 100), (99, 101)])
        await self._read_and_compare(operator, [(5, 5), (SIZE, SIZE), (0, 0), (3, 4)])
        chance = random.Random(21)
        starts = [chance.randrange(SIZE) for _ in range(25)]
        await self._read_and_compare(operator, [(start, min(SIZE, start + chance.randrange(3000))) for start in starts])

    @checks("s3a:V06", "s3a:V07", "s3a:V09", "opendal:R12")
    async def test_vectored_invalid_ranges(self, operator: Operator) -> None:
        """Invalid ranges are refused before any request."""
        log = RecordingLayer()
        async with operator.layer(log).reader("k") as reader:
            for wrong in ([(10, 5)], [(-1, 5)], [(0, 5), (-10, -5)]):
                with raises(InvalidRange):
                    await reader.read_ranges(wrong)
                with raises(InvalidRange):
                    [part async for part in reader.iter_ranges(wrong)]
            for untyped in (None, [None], [(0, None)], [5], [(0, 1.5)]):
                with raises(InvalidType):
                    await reader.read_ranges(untyped)  # type: ignore[arg-type]
                with raises(InvalidType):
                    [part async for part in reader.iter_ranges(untyped)]  # type: ignore[arg-type]
            assert log.requests == []

    @checks("s3a:V08")
    async def test_vectored_read_of_no_ranges(self, operator: Operator) -> None:
        """No ranges are valid and send no request."""
        log = RecordingLayer()
        async with operator.layer(log).reader("k") as reader:
            assert await reader.read_ranges([]) == []
            assert [part async for part in reader.iter_ranges([])] == []
            assert log.requests == []

    @checks("s3a:V10", "s3a:V12")
    async def test_vectored_read_past_the_end(self, operator: Operator) -> None:
        """A range past the end raises `EOFError`, before any request if the size is known."""
        await self.put_directly("k", content(SIZE))
        beyond = ([(0, SIZE + 1)], [(SIZE, SIZE + 1)], [(0, 10), (SIZE + 5, SIZE + 10)])
        log = RecordingLayer()
        async with operator.layer(log).reader("k", block_bytes=BLOCK, size=SIZE) as reader:
            for ranges in beyond:
                with raises(EOFError):
                    await reader.read_ranges(ranges)
                with raises(EOFError):
                    [part async for part in reader.iter_ranges(ranges)]
            assert log.requests == []
        for ranges in beyond:
            async with operator.reader("k", block_bytes=BLOCK) as reader:
                with raises(EOFError):
                    await reader.read_ranges(ranges)
                assert_same_bytes((await reader.read_ranges([(1, 5)]))[0], content(5)[1:])

    @checks("s3a:V11")
    async def test_vectored_read_of_an_object_shorter_than_declared(self, operator: Operator) -> None:
        """With a declared size that is too large, missing bytes raise `EOFError`; no part is short.

        The store may respond with fewer bytes or, for a range beyond the end, with 416.
        """
        await self.put_directly("k", content(SIZE))
        for missing in ((SIZE - 10, SIZE + 50), (SIZE + BLOCK, SIZE + BLOCK + 5)):
            for policy in ("adaptive", "random"):
                async with operator.reader("k", block_bytes=BLOCK, size=SIZE + 2 * BLOCK, policy=policy) as reader:
                    with raises(EOFError):
                        await reader.read_ranges([missing])

    @checks("s3a:V14")
    async def test_vectored_and_sequential_reads_mix(self, operator: Operator) -> None:
        """Only sequential reads move the position, before, during and after vectored reads."""
        async with self.reading(operator, content(SIZE), block_bytes=BLOCK) as reader:
            assert_same_bytes(await reader.read(10), content(10))
            parts, middle = await asyncio.gather(reader.read_ranges(FAR_APART), reader.read(10))
            assert_same_bytes(middle, content(20)[10:], offset=10)
            for (start, end), part in zip(FAR_APART, parts, strict=True):
                assert_same_bytes(part, content(SIZE)[start:end], offset=start)
            assert reader.tell() == 20
            assert_same_bytes(await reader.read(10), content(30)[20:], offset=20)

    @checks("s3a:V15")
    async def test_vectored_read_while_another_is_pending(self, operator: Operator) -> None:
        """Both reads are right if the second is started while the first is held back."""
        gate = GateLayer(holds=lambda request: request.offset == 0 and request.suffix is None)
        gated = operator.layer(gate)
        async with self.reading(gated, content(SIZE), block_bytes=BLOCK, size=SIZE, policy="random") as reader:
            await reader.read_at(20_000, 10)  # pins the version, so that the next reads are separate requests
            first = asyncio.create_task(reader.read_ranges([(0, 100)]))
            await gate.wait_for_arrivals(1)
            second = await reader.read_ranges([(40_000, 40_100)])
            assert_same_bytes(second[0], content(SIZE)[40_000:40_100], offset=40_000)
            assert not first.done()
            gate.open()
            assert_same_bytes((await first)[0], content(100))

    @checks("s3a:V16")
    async def test_vectored_parts_arrive_as_they_complete(self, operator: Operator) -> None:
        """A complete part is returned while an earlier one is held back, to another task too."""
        gate = GateLayer(holds=lambda request: request.offset == 0 and request.suffix is None)
        gated = operator.layer(gate)
        async with self.reading(gated, content(SIZE), block_bytes=BLOCK, size=SIZE, policy="random") as reader:
            await reader.read_at(20_000, 10)
            async with reader.iter_ranges(FAR_APART, gap_bytes=0) as parts:
                early = [await asyncio.create_task(_next(parts)) for _ in range(2)]
                assert sorted(position for position, _ in early) == [1, 2]
                gate.open()
                late = [part async for part in parts]
            for position, part in early + late:
                start, end = FAR_APART[position]
                assert_same_bytes(part, content(SIZE)[start:end], offset=start)

    @checks("s3a:V17")
    async def test_vectored_read_fails_when_the_reader_is_closed(self, operator: Operator) -> None:
        """Closing does not wait for a response, the pending read fails with `Closed`, and a new reader works."""
        await self.put_directly("k", content(SIZE))
        gate = GateLayer()
        gated = operator.layer(gate)
        reader = gated.reader("k", block_bytes=BLOCK)
        async with reader:
            pending = asyncio.create_task(reader.read_ranges(FAR_APART))
            await gate.wait_for_arrivals(1)
        with raises(Closed):
            await pending
        gate.open()
        async with gated.reader("k", block_bytes=BLOCK) as again:
            assert_same_bytes((await again.read_ranges(FAR_APART))[2], content(SIZE)[60_000:60_100], offset=60_000)

    @checks("s3a:V19")
    async def test_vectored_failure_of_one_request_fails_its_ranges_alone(self, operator: Operator) -> None:
        """The other ranges are returned before the failure is raised, and the reader stays usable."""
        await self.put_directly("k", content(SIZE))
        failing = FailingLayer(
            error=lambda request: Unavailable("made to fail", operation="read", path=request.path, status="permanent"),
            fails=lambda request: request.offset >= 60_000 and failing.failed == 0,
        )
        gate = GateLayer(holds=lambda request: request.offset >= 60_000)
        watched = operator.layer(failing).layer(gate)
        async with watched.reader("k", block_bytes=BLOCK, size=SIZE, policy="random") as reader:
            await reader.read_at(20_000, 10)
            async with reader.iter_ranges(FAR_APART, gap_bytes=0) as parts:
                for position in sorted([await _next(parts) for _ in range(2)]):
                    start, end = FAR_APART[position[0]]
                    assert_same_bytes(position[1], content(SIZE)[start:end], offset=start)
                gate.open()
                with raises(Unavailable, match="made to fail"):
                    await _next(parts)
            assert failing.failed == 1
            assert_same_bytes((await reader.read_ranges(FAR_APART))[2], content(SIZE)[60_000:60_100], offset=60_000)


async def _next(parts: object) -> tuple[int, bytes]:
    return await anext(parts)  # type: ignore[no-any-return, call-overload]

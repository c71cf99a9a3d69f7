"""Conformance of vectored reads: `read_ranges` and `iter_ranges` of a reader."""

import asyncio
import random

import pytest

from aioprefetch.errors import Closed, InvalidRange, InvalidType, Unavailable
from aioprefetch.operator.operator import Operator
from aioprefetch.testing.conformance.ids import checks
from aioprefetch.testing.conformance.probes import FailingLayer, GateLayer, RecordingLayer
from aioprefetch.testing.conformance.suite import ConformanceSuite
from aioprefetch.testing.oracle import ReaderModel, assert_same_bytes, content

KIB = 1024
SIZE = 64 * KIB
BLOCK = 8 * KIB
FAR_APART = [(0, 100), (30_000, 30_100), (60_000, 60_100)]


class VectoredChecks(ConformanceSuite):
    """Tests of several ranges in one call."""

    async def _compare(self, operator: Operator, ranges: list[tuple[int, int]]) -> None:
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
        await self._compare(operator, [(100 * n, 100 * n + 100) for n in range(10)])
        await self._compare(operator, [(50_000, 50_010), (10, 20), (30_000, 40_000)])
        await self._compare(operator, [(0, 100), (50, 150), (0, 100), (99, 101)])
        await self._compare(operator, [(5, 5), (SIZE, SIZE), (0, 0), (3, 4)])
        chance = random.Random(21)
        starts = [chance.randrange(SIZE) for _ in range(25)]
        await self._compare(operator, [(start, min(SIZE, start + chance.randrange(3000))) for start in starts])

    @checks("s3a:V06", "s3a:V07", "s3a:V09", "opendal:R12")
    async def test_vectored_invalid_ranges(self, operator: Operator) -> None:
        """Invalid ranges are refused before any request."""
        log = RecordingLayer()
        async with operator.layer(log).reader("k") as reader:
            for wrong in ([(10, 5)], [(-1, 5)], [(0, 5), (-10, -5)]):
                with pytest.raises(InvalidRange):
                    await reader.read_ranges(wrong)
                with pytest.raises(InvalidRange):
                    [part async for part in reader.iter_ranges(wrong)]
            for untyped in (None, [None], [(0, None)], [5], [(0, 1.5)]):
                with pytest.raises(InvalidType):
                    await reader.read_ranges(untyped)  # type: ignore[arg-type]
                with pytest.raises(InvalidType):
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
                with pytest.raises(EOFError):
                    await reader.read_ranges(ranges)
                with pytest.raises(EOFError):
                    [part async for part in reader.iter_ranges(ranges)]
            assert log.requests == []
        for ranges in beyond:
            async with operator.reader("k", block_bytes=BLOCK) as reader:
                with pytest.raises(EOFError):
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
                    with pytest.raises(EOFError):
                        await reader.read_ranges([missing])

    @checks("s3a:V14")
    async def test_vectored_and_sequential_reads_mix(self, operator: Operator) -> None:
        """Only sequential reads move the position, before, during and after vectored reads."""
        await self.put_directly("k", content(SIZE))
        async with operator.reader("k", block_bytes=BLOCK) as reader:
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
        await self.put_directly("k", content(SIZE))
        gate = GateLayer(holds=lambda request: request.offset == 0 and request.suffix is None)
        async with operator.layer(gate).reader("k", block_bytes=BLOCK, size=SIZE, policy="random") as reader:
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
        await self.put_directly("k", content(SIZE))
        gate = GateLayer(holds=lambda request: request.offset == 0 and request.suffix is None)
        async with operator.layer(gate).reader("k", block_bytes=BLOCK, size=SIZE, policy="random") as reader:
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
        with pytest.raises(Closed):
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
                with pytest.raises(Unavailable, match="made to fail"):
                    await _next(parts)
            assert failing.failed == 1
            assert_same_bytes((await reader.read_ranges(FAR_APART))[2], content(SIZE)[60_000:60_100], offset=60_000)


async def _next(parts: object) -> tuple[int, bytes]:
    return await anext(parts)  # type: ignore[no-any-return, call-overload]

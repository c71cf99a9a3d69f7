"""Conformance of `Operator.read_ranges`: many ranges, few requests."""

import random
from typing import Any

import pytest

from aioprefetch.errors import InvalidRange, InvalidType, RangeNotSatisfied
from aioprefetch.operator.operator import Operator
from aioprefetch.testing.conformance.ids import checks
from aioprefetch.testing.conformance.probes import RecordingLayer
from aioprefetch.testing.conformance.suite import ConformanceSuite
from aioprefetch.testing.oracle import ReaderModel, assert_same_bytes, content

SIZE = 60_000
KIB = 1024


class ReadRangesChecks(ConformanceSuite):
    """Tests of `Operator.read_ranges` and `view_ranges`."""

    async def _compare(self, operator: Operator, ranges: list[tuple[int, int]], **options: int) -> int:
        """Read the ranges, compare each with the model, and return the number of reads that reached the stack."""
        log = RecordingLayer()
        parts = await operator.layer(log).read_ranges("k", ranges, **options)  # type: ignore[arg-type]
        expected = ReaderModel(content(SIZE)).read_ranges(ranges)
        assert len(parts) == len(expected)
        for (start, _), part, due in zip(ranges, parts, expected, strict=True):
            assert type(part) is bytes
            assert_same_bytes(part, due, offset=start)
        return len(log.reads)

    @checks("opendal:R25", "s3a:V03", "s3a:V04", "s3a:V05")
    async def test_ranges_unsorted_duplicate_overlapping_adjacent_empty(self, operator: Operator) -> None:
        """Results have the order of the ranges, in any order of responses."""
        await self.put_directly("k", content(SIZE))
        ranges = [(900, 1000), (0, 100), (900, 1000), (50, 150), (100, 200), (7, 7), (59_999, SIZE), (SIZE, SIZE)]
        await self._compare(operator, ranges)
        await self._compare(operator, ranges, gap_bytes=0)

    @checks("opendal:R25")
    @pytest.mark.parametrize(("gap_bytes", "requests"), [(0, 2), (99, 2), (100, 1), (101, 1)])
    async def test_ranges_gap_at_the_threshold(self, operator: Operator, gap_bytes: int, requests: int) -> None:
        """A gap of the maximum size is read through, a gap of one byte more is not."""
        await self.put_directly("k", content(SIZE))
        assert await self._compare(operator, [(1000, 2000), (2100, 3000)], gap_bytes=gap_bytes) == requests

    @checks("opendal:R25", "s3a:V01")
    async def test_ranges_adjacent_ranges_are_one_request(self, operator: Operator) -> None:
        """Ten adjacent ranges of a hundred bytes are one request."""
        await self.put_directly("k", content(SIZE))
        ranges = [(5000 + 100 * number, 5100 + 100 * number) for number in range(10)]
        assert await self._compare(operator, ranges, gap_bytes=0) == 1

    @checks("opendal:R25")
    async def test_ranges_request_size_limit(self, operator: Operator) -> None:
        """Merged requests do not exceed the maximum size; a larger single range is served anyway."""
        await self.put_directly("k", content(SIZE))
        ranges = [(1000 * number, 1000 * number + 1000) for number in range(10)]
        assert await self._compare(operator, ranges, gap_bytes=0, request_bytes_max=5000) == 2
        await self._compare(operator, [(0, 20_000)], gap_bytes=0, request_bytes_max=5000)

    @checks("s3a:V22")
    async def test_ranges_oracle_of_merging(self, operator: Operator) -> None:
        """Five ranges are three requests, which read through gaps of 1948 and 3996 bytes."""
        await self.put_directly("k", content(SIZE))
        starts = [(2 * KIB - 101, 100), (8 * KIB, 100), (10 * KIB, 100), (14 * KIB, 100), (40 * KIB, 1024)]
        ranges = [(start, start + size) for start, size in starts]
        log = RecordingLayer()
        parts = await operator.layer(log).read_ranges("k", ranges, gap_bytes=4 * KIB, request_bytes_max=1 << 20)
        assert sum(map(len, parts)) == 1424
        assert len(log.reads) == 3
        assert sum(request.size or 0 for request in log.reads) == 1424 + 5944

    @checks("s3a:V23")
    async def test_ranges_oracle_of_adjacent_merging(self, operator: Operator) -> None:
        """Two adjacent ranges, read twice, are two requests without discarded bytes."""
        await self.put_directly("k", content(SIZE))
        log = RecordingLayer()
        watched = operator.layer(log)
        for _ in range(2):
            parts = await watched.read_ranges("k", [(100, 600), (600, 1100)], gap_bytes=4 * KIB)
            assert_same_bytes(b"".join(parts), content(SIZE)[100:1100], offset=100)
        assert [(request.offset, request.size) for request in log.reads] == [(100, 1000)] * 2

    @checks("s3a:V24")
    async def test_ranges_oracle_of_gaps_near_the_threshold(self, operator: Operator) -> None:
        """A gap of 4001 bytes at a threshold of 4096: only the data is asserted."""
        await self.put_directly("k", content(SIZE))
        await self._compare(operator, [(0, 100), (4101, 4201), (16_101, 16_201)], gap_bytes=4 * KIB)

    @checks("opendal:R25", "s3a:V21")
    async def test_ranges_random_ranges(self, operator: Operator) -> None:
        """Parts of merged requests are right at any offset."""
        await self.put_directly("k", content(SIZE))
        chance = random.Random(25)
        for gap_bytes in (0, 1, 500, 10_000):
            starts = [chance.randrange(SIZE) for _ in range(30)]
            ranges = [(start, min(SIZE, start + chance.randrange(800))) for start in starts]
            await self._compare(operator, ranges, gap_bytes=gap_bytes)

    @checks("s3a:V08", "s3a:V13")
    async def test_ranges_nothing_costs_nothing(self, operator: Operator) -> None:
        """No ranges, and empty ranges, send no request."""
        log = RecordingLayer()
        watched = operator.layer(log)
        assert await watched.read_ranges("k", []) == []
        assert await watched.read_ranges("k", [(5, 5), (0, 0)]) == [b"", b""]
        assert log.requests == []

    @checks("opendal:R12", "s3a:V06", "s3a:V07", "s3a:V09")
    async def test_invalid_ranges(self, operator: Operator) -> None:
        """Reversed and negative ranges, None and single numbers are refused before any request."""
        log = RecordingLayer()
        watched = operator.layer(log)
        for wrong in ([(10, 5)], [(-1, 5)], [(0, 5), (-10, -5)]):
            with pytest.raises(InvalidRange):
                await watched.read_ranges("k", wrong)
        for untyped in (None, [None], [(0, None)], [5], [(0, 1.5)], [(0, 1, 2)]):
            with pytest.raises(InvalidType):
                await watched.read_ranges("k", untyped)  # type: ignore[arg-type]
        wrong_options: tuple[dict[str, Any], ...] = ({"gap_bytes": -1}, {"request_bytes_max": 0})
        for options in wrong_options:
            with pytest.raises(ValueError, match=next(iter(options))):
                await watched.read_ranges("k", [(0, 5)], **options)
        assert log.requests == []

    @checks("s3a:V10", "s3a:V12")
    async def test_ranges_past_the_end(self, operator: Operator) -> None:
        """One byte beyond the end is an `EOFError`, never a short part."""
        await self.put_directly("k", content(SIZE))
        for ranges in ([(0, SIZE + 1)], [(SIZE, SIZE + 1)], [(0, 10), (SIZE - 5, SIZE + 5)], [(5 * SIZE, 6 * SIZE)]):
            with pytest.raises(EOFError) as caught:
                await operator.read_ranges("k", ranges)
            assert isinstance(caught.value, RangeNotSatisfied)

    @checks("s3a:V02")
    async def test_ranges_views(self, operator: Operator) -> None:
        """`view_ranges` returns the bytes as read-only memory."""
        await self.put_directly("k", content(SIZE))
        ranges = [(10, 20), (5, 15), (40_000, 50_000)]
        for (start, end), view in zip(ranges, await operator.view_ranges("k", ranges), strict=True):
            assert isinstance(view, memoryview)
            assert view.readonly
            assert_same_bytes(view, content(SIZE)[start:end], offset=start)

"""Conformance of `read`, `view` and `read_into`: ranges, suffixes, edges; and of `read_ranges`: few requests."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from aioprefetch.errors import (
    InvalidArgument,
    InvalidRange,
    InvalidType,
    IsADirectory,
    NotFound,
    RangeNotSatisfied,
    Unsupported,
)
from aioprefetch.operator.operator import Operator
from aioprefetch.testing.conformance.suite import (
    DOUBLE_SLASH_KEYS,
    SPECIAL_KEYS,
    ConformanceSuite,
    RecordingLayer,
    checks,
    needs,
)
from aioprefetch.testing.oracle import ReaderModel, assert_same_bytes, content, raises

SIZE = 10_000


class ReadChecks(ConformanceSuite):
    """Tests of `Operator.read`, `view` and `read_into`."""

    @checks("opendal:R1")
    async def test_read_full_read(self, operator: Operator) -> None:
        """A read returns all bytes, as `bytes`."""
        await self.put_directly("k", content(SIZE))
        data = await operator.read("k")
        assert type(data) is bytes
        assert_same_bytes(data, content(SIZE))

    @checks("opendal:R2", "reliability:I01")
    async def test_read_random_ranges(self, operator: Operator) -> None:
        """Random ranges within the object are right."""
        await self.put_directly("k", content(SIZE))
        chance = random.Random(2)
        for _ in range(20):
            start = chance.randrange(SIZE)
            size = chance.randrange(1, SIZE - start + 1)
            data = await operator.read("k", offset=start, size=size)
            assert_same_bytes(data, content(SIZE)[start : start + size], offset=start)

    @checks("opendal:R2")
    async def test_read_open_ended_range(self, operator: Operator) -> None:
        """A range without a size goes to the end."""
        await self.put_directly("k", content(SIZE))
        for start in (0, 1, 5000, SIZE - 1):
            assert_same_bytes(await operator.read("k", offset=start), content(SIZE)[start:], offset=start)

    @checks("opendal:R3", "opendal:R4", "reliability:I05")
    @needs("read_suffix")
    async def test_read_suffix(self, operator: Operator) -> None:
        """A suffix is the last bytes, or the whole object if it is shorter."""
        await self.put_directly("k", content(SIZE))
        for suffix in (1, 100, SIZE - 1, SIZE, SIZE + 1, 10 * SIZE):
            assert_same_bytes(await operator.read("k", suffix=suffix), content(SIZE)[-suffix:])

    @checks("opendal:R5", "opendal:R7")
    async def test_read_empty_ranges_cost_no_request(self, operator: Operator) -> None:
        """An empty range sends no request."""
        await self.put_directly("k", content(SIZE))
        log = RecordingLayer()
        watched = operator.layer(log)
        assert await watched.read("k", size=0) == b""
        assert await watched.read("k", offset=50, size=0) == b""
        assert await watched.read("k", offset=10 * SIZE, size=0) == b""
        assert await watched.read("k", suffix=0) == b""
        assert len(await watched.view("k", offset=50, size=0)) == 0
        assert await watched.read_into("k", 0, bytearray()) == 0
        assert log.requests == []

    @checks("opendal:R6")
    @needs("read_suffix")
    async def test_read_suffixes_at_once(self, operator: Operator) -> None:
        """Concurrent suffix reads are complete."""
        await self.put_directly("k", content(SIZE))
        suffixes = (1, 777, SIZE, SIZE + 5)
        bodies = await asyncio.gather(*(operator.read("k", suffix=suffix) for suffix in suffixes))
        for suffix, data in zip(suffixes, bodies, strict=True):
            assert_same_bytes(data, content(SIZE)[-suffix:])

    @checks("opendal:R8")
    async def test_read_empty_object(self, operator: Operator) -> None:
        """Every range of an empty object is empty, even beyond its end."""
        await self.put_directly("empty", b"")
        assert await operator.read("empty") == b""
        assert await operator.read("empty", offset=0, size=1) == b""
        assert await operator.read("empty", offset=5) == b""

    @checks("opendal:R8")
    @needs("read_suffix")
    async def test_read_suffix_of_an_empty_object(self, operator: Operator) -> None:
        """A suffix of an empty object is empty, although stores respond with 416."""
        await self.put_directly("empty", b"")
        assert await operator.read("empty", suffix=10) == b""

    @checks("opendal:R9", "opendal:R10", "reliability:I04")
    async def test_read_range_that_starts_at_or_beyond_the_end(self, operator: Operator) -> None:
        """`RangeNotSatisfied` on every service, bounded or not, and an `EOFError` too."""
        await self.put_directly("k", content(SIZE))
        for offset, size in ((SIZE, None), (SIZE, 1), (SIZE + 1, None), (SIZE + 1, 10), (100 * SIZE, 1)):
            with raises(RangeNotSatisfied) as caught:
                await operator.read("k", offset=offset, size=size)
            assert isinstance(caught.value, EOFError)
            assert (caught.value.operation, caught.value.path) == ("read", "k")

    @checks("opendal:R10", "reliability:I04")
    async def test_read_range_that_crosses_the_end_gives_what_is_there(self, operator: Operator) -> None:
        """A range across the end is cut there, as a slice is."""
        await self.put_directly("k", content(SIZE))
        assert_same_bytes(await operator.read("k", offset=SIZE - 10, size=100), content(SIZE)[-10:])
        assert_same_bytes(await operator.read("k", offset=0, size=SIZE + 1), content(SIZE))

    @checks("opendal:R11", "reliability:I02")
    async def test_read_huge_offsets(self, operator: Operator) -> None:
        """An offset beyond any object is `RangeNotSatisfied`; beyond any integer type it is a `ValueError`."""
        await self.put_directly("k", content(SIZE))
        with raises(RangeNotSatisfied):
            await operator.read("k", offset=1 << 60, size=10)
        for offset, size in ((1 << 63, 1), (1 << 100, None), (0, 1 << 100)):
            with raises(ValueError, match="between"):
                await operator.read("k", offset=offset, size=size)

    @checks("opendal:R12", "opendal:R23", "reliability:I03", "reliability:K23")
    async def test_read_invalid_ranges(self, operator: Operator) -> None:
        """Negative numbers, floats, bools and a suffix with an offset are refused before any request."""
        log = RecordingLayer()
        watched = operator.layer(log)
        wrong_options: tuple[dict[str, Any], ...] = (
            {"offset": -1},
            {"size": -1},
            {"suffix": -1},
            {"offset": 5, "suffix": 5},
        )
        for options in wrong_options:
            with raises(ValueError) as caught:
                await watched.read("k", **options)
            assert isinstance(caught.value, InvalidArgument)
        for wrong in (1.5, True, "1", None):
            with raises(TypeError):
                await watched.read("k", offset=wrong)  # type: ignore[arg-type]
        assert log.requests == []

    @checks("opendal:R19")
    async def test_read_missing_object(self, operator: Operator) -> None:
        """`NotFound` with operation and path, for every kind of read."""
        for read in (
            operator.read("no/such"),
            operator.read("no/such", offset=5, size=5),
            operator.read("no/such", suffix=5),
            operator.view("no/such"),
            operator.read_ranges("no/such", [(0, 5)]),
        ):
            with raises(NotFound) as caught:
                await read
            assert (caught.value.operation, caught.value.path) == ("read", "no/such")

    @checks("opendal:R20")
    async def test_read_directory_is_refused(self, operator: Operator) -> None:
        """A path with a slash at its end is an object only if there is one of that key; the root costs no request."""
        log = RecordingLayer()
        watched = operator.layer(log)
        for path in ("folder/", "/", ""):
            with raises(IsADirectory):
                await watched.read(path)
        assert {request.path for request in log.requests} <= {"folder/"}

    @checks("opendal:R21", "object_store:O4", "reliability:I06")
    async def test_read_special_keys(self, operator: Operator) -> None:
        """Special keys reach the store unchanged."""
        for key in SPECIAL_KEYS:
            await self.put_directly(key, content(100))
            assert_same_bytes(await operator.read(key, offset=10, size=50), content(100)[10:60], what=key)

    @checks("opendal:R21", "opendal:P1", "reliability:I07")
    @needs("double_slash_keys")
    async def test_read_keys_with_several_slashes(self, operator: Operator) -> None:
        """Empty segments are kept as part of the key."""
        for key in DOUBLE_SLASH_KEYS:
            await self.put_directly(key, content(100))
            assert_same_bytes(await operator.read(key), content(100), what=key)

    @checks("opendal:R17")
    @needs(without=("read_version",))
    async def test_read_version_is_refused_where_there_are_none(self, operator: Operator) -> None:
        """A store without versions raises `Unsupported` before any request, instead of reading the newest object."""
        await self.put_directly("k", content(10))
        with self.counting(operator) as spent:
            with raises(Unsupported):
                await operator.read("k", version="abc")
            with raises(Unsupported):
                await operator.read("k", offset=5, size=1, version="abc")
        assert spent.none

    @checks("opendal:R28")
    async def test_read_view_and_read_into(self, operator: Operator) -> None:
        """A view is read-only and has the bytes of `read`; `read_into` fills the buffer up to the end of the object."""
        await self.put_directly("k", content(SIZE))
        view = await operator.view("k", offset=100, size=50)
        assert isinstance(view, memoryview)
        assert view.readonly
        assert_same_bytes(view, content(SIZE)[100:150], offset=100)
        buffer = bytearray(200)
        assert await operator.read_into("k", 7, buffer) == 200
        assert_same_bytes(buffer, content(SIZE)[7:207], offset=7)
        buffer = bytearray(200)
        assert await operator.read_into("k", SIZE - 50, buffer) == 50
        assert_same_bytes(buffer[:50], content(SIZE)[-50:], offset=SIZE - 50)


LARGE_SIZE = 60_000
KIB = 1024


class ReadRangesChecks(ConformanceSuite):
    """Tests of `Operator.read_ranges` and `view_ranges`."""

    async def _compare(self, operator: Operator, ranges: list[tuple[int, int]], **options: int) -> int:
        """Read the ranges, compare each with the model, and return the number of reads that reached the stack."""
        log = RecordingLayer()
        parts = await operator.layer(log).read_ranges("k", ranges, **options)  # type: ignore[arg-type]
        expected = ReaderModel(content(LARGE_SIZE)).read_ranges(ranges)
        assert len(parts) == len(expected)
        for (start, _), part, due in zip(ranges, parts, expected, strict=True):
            assert type(part) is bytes
            assert_same_bytes(part, due, offset=start)
        return len(log.reads)

    @checks("opendal:R25", "s3a:V03", "s3a:V04", "s3a:V05")
    async def test_ranges_unsorted_duplicate_overlapping_adjacent_empty(self, operator: Operator) -> None:
        """Results have the order of the ranges, in any order of responses."""
        await self.put_directly("k", content(LARGE_SIZE))
        ranges = [
            (900, 1000),
            (0, 100),
            (900, 1000),
            (50, 150),
            (100, 200),
            (7, 7),
            (59_999, LARGE_SIZE),
            (LARGE_SIZE, LARGE_SIZE),
        ]
        await self._compare(operator, ranges)
        await self._compare(operator, ranges, gap_bytes=0)

    @checks("opendal:R25")
    async def test_ranges_gap_at_the_threshold(self, operator: Operator) -> None:
        """A gap of the maximum size is read through, a gap of one byte more is not."""
        await self.put_directly("k", content(LARGE_SIZE))
        for gap_bytes, requests in ((0, 2), (99, 2), (100, 1), (101, 1)):
            assert await self._compare(operator, [(1000, 2000), (2100, 3000)], gap_bytes=gap_bytes) == requests

    @checks("opendal:R25", "s3a:V01")
    async def test_ranges_adjacent_ranges_are_one_request(self, operator: Operator) -> None:
        """Ten adjacent ranges of a hundred bytes are one request."""
        await self.put_directly("k", content(LARGE_SIZE))
        ranges = [(5000 + 100 * number, 5100 + 100 * number) for number in range(10)]
        assert await self._compare(operator, ranges, gap_bytes=0) == 1

    @checks("opendal:R25")
    async def test_ranges_request_size_limit(self, operator: Operator) -> None:
        """Merged requests do not exceed the maximum size; a larger single range is served anyway."""
        await self.put_directly("k", content(LARGE_SIZE))
        ranges = [(1000 * number, 1000 * number + 1000) for number in range(10)]
        assert await self._compare(operator, ranges, gap_bytes=0, request_bytes_max=5000) == 2
        await self._compare(operator, [(0, 20_000)], gap_bytes=0, request_bytes_max=5000)

    @checks("s3a:V22")
    async def test_ranges_oracle_of_merging(self, operator: Operator) -> None:
        """Five ranges are three requests, which read through gaps of 1948 and 3996 bytes."""
        await self.put_directly("k", content(LARGE_SIZE))
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
        await self.put_directly("k", content(LARGE_SIZE))
        log = RecordingLayer()
        watched = operator.layer(log)
        for _ in range(2):
            parts = await watched.read_ranges("k", [(100, 600), (600, 1100)], gap_bytes=4 * KIB)
            assert_same_bytes(b"".join(parts), content(LARGE_SIZE)[100:1100], offset=100)
        assert [(request.offset, request.size) for request in log.reads] == [(100, 1000)] * 2

    @checks("s3a:V24")
    async def test_ranges_oracle_of_gaps_near_the_threshold(self, operator: Operator) -> None:
        """A gap of 4001 bytes at a threshold of 4096: only the data is asserted."""
        await self.put_directly("k", content(LARGE_SIZE))
        await self._compare(operator, [(0, 100), (4101, 4201), (16_101, 16_201)], gap_bytes=4 * KIB)

    @checks("opendal:R25", "s3a:V21")
    async def test_ranges_random_ranges(self, operator: Operator) -> None:
        """Parts of merged requests are right at any offset."""
        await self.put_directly("k", content(LARGE_SIZE))
        chance = random.Random(25)
        for gap_bytes in (0, 1, 500, 10_000):
            starts = [chance.randrange(LARGE_SIZE) for _ in range(30)]
            ranges = [(start, min(LARGE_SIZE, start + chance.randrange(800))) for start in starts]
            await self._compare(operator, ranges, gap_bytes=gap_bytes)

    @checks("s3a:V08", "s3a:V13")
    async def test_ranges_nothing_costs_nothing(self, operator: Operator) -> None:
        """No ranges, and empty ranges, send no request."""
        log = RecordingLayer()
        watched = operator.layer(log)
        assert await watched.read_ranges("k", []) == []
        assert await watched.read_ranges("k", [(5, 5), (0, 0)]) == [b"", b""]
        assert log.requests == []

    @checks("opendal:R12", "s3a:V06", "s3a:V07", "s3a:V09", "reliability:I03")
    async def test_invalid_ranges(self, operator: Operator) -> None:
        """Reversed and negative ranges, None and single numbers are refused before any request."""
        log = RecordingLayer()
        watched = operator.layer(log)
        for wrong in ([(10, 5)], [(-1, 5)], [(0, 5), (-10, -5)]):
            with raises(InvalidRange):
                await watched.read_ranges("k", wrong)
        for untyped in (None, [None], [(0, None)], [5], [(0, 1.5)], [(0, 1, 2)]):
            with raises(InvalidType):
                await watched.read_ranges("k", untyped)  # type: ignore[arg-type]
        wrong_options: tuple[dict[str, Any], ...] = ({"gap_bytes": -1}, {"request_bytes_max": 0})
        for options in wrong_options:
            with raises(ValueError, match=next(iter(options))):
                await watched.read_ranges("k", [(0, 5)], **options)
        assert log.requests == []

    @checks("s3a:V10", "s3a:V12")
    async def test_ranges_past_the_end(self, operator: Operator) -> None:
        """One byte beyond the end is an `EOFError`, never a short part."""
        await self.put_directly("k", content(LARGE_SIZE))
        for ranges in (
            [(0, LARGE_SIZE + 1)],
            [(LARGE_SIZE, LARGE_SIZE + 1)],
            [(0, 10), (LARGE_SIZE - 5, LARGE_SIZE + 5)],
            [(5 * LARGE_SIZE, 6 * LARGE_SIZE)],
        ):
            with raises(EOFError) as caught:
                await operator.read_ranges("k", ranges)
            assert isinstance(caught.value, RangeNotSatisfied)

    @checks("s3a:V02")
    async def test_ranges_views(self, operator: Operator) -> None:
        """`view_ranges` returns the bytes as read-only memory."""
        await self.put_directly("k", content(LARGE_SIZE))
        ranges = [(10, 20), (5, 15), (40_000, 50_000)]
        for (start, end), view in zip(ranges, await operator.view_ranges("k", ranges), strict=True):
            assert isinstance(view, memoryview)
            assert view.readonly
            assert_same_bytes(view, content(LARGE_SIZE)[start:end], offset=start)

"""Programs for a RangeReader, drawn by Hypothesis, and their execution beside the model."""

import asyncio
import io
import random
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from aioprefetch.errors import ObjectChanged, RangeNotSatisfied, SizeUnknown, Unavailable
from aioprefetch.reader import RangeReader
from aioprefetch.reader.growth import GrowthName
from aioprefetch.reader.policy import PolicyName
from aioprefetch.testing.oracle import ReaderModel, assert_same_bytes
from aioprefetch.values import ReadRequest, Request
from tests.stores.verb_layer import Forward, VerbLayer

BLOCK = 16
SIZES = (0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK - 1, 3 * BLOCK + 1, 10 * BLOCK, 10 * BLOCK + 1)
GROWTHS: tuple[GrowthName, ...] = ("stall", "geometric", "linear", "step")
# Every row of the table, some by their other names, and a list of which the first known one counts.
POLICIES: tuple[Any, ...] = (
    "adaptive",
    "sequential",
    "whole-file",
    "random",
    "vector",
    "hbase",
    "columnar",
    "parquet",
    "orc",
    "unheard-of, csv, random",
)

Step = tuple[Any, ...]


class Weather(VerbLayer):
    """Delays each read by a random time and fails some, all drawn from a seed.

    ``requests`` are the reads so far, without those that were broken off: they brought nothing.
    """

    def __init__(self, seed: int, failure_rate: float) -> None:
        self.random = random.Random(seed)
        self.failure_rate = failure_rate
        self.requests: list[ReadRequest] = []

    async def around(self, request: Request, forward: Forward) -> Any:
        if isinstance(request, ReadRequest):
            self.requests.append(request)
        try:
            await asyncio.sleep(self.random.choice((0, 0, 0.1, 1.0)))
            if self.random.random() < self.failure_rate:
                raise Unavailable("bad weather", operation=request.operation, path=request.path)
            return await forward(request)
        except asyncio.CancelledError:
            self.requests = [one for one in self.requests if one is not request]
            raise


@dataclass(frozen=True, kw_only=True)
class Program:
    """What to run: an object, a reader, one task that owns the cursor and others that read by position."""

    size: int
    size_known: bool
    memory_blocks: int
    policy: PolicyName
    prefetch_blocks: int = 2
    growth: GrowthName = "stall"
    cursor_steps: tuple[Step, ...]
    position_steps: tuple[tuple[Step, ...], ...]
    seed: int
    failure_rate: float = 0.0


def _offsets() -> st.SearchStrategy[int]:
    return st.integers(0, 12 * BLOCK)


def _ranges() -> st.SearchStrategy[list[tuple[int, int]]]:
    return st.lists(st.tuples(_offsets(), st.integers(0, 3 * BLOCK)).map(lambda r: (r[0], r[0] + r[1])), max_size=5)


def position_steps() -> st.SearchStrategy[Step]:
    """Steps that name their offset, so that any number of tasks may take them at once."""
    lengths = st.integers(0, 12 * BLOCK)
    return st.one_of(
        st.tuples(st.just("read_at"), _offsets(), lengths),
        st.tuples(st.just("view_at"), _offsets(), lengths),
        st.tuples(st.just("read_exactly_at"), _offsets(), lengths),
        st.tuples(st.just("read_ranges"), _ranges()),
        st.tuples(st.just("iter_ranges"), _ranges()),
        st.tuples(st.just("cancel_read_at"), _offsets(), lengths, st.integers(0, 6)),
    )


def cursor_steps() -> st.SearchStrategy[Step]:
    """Steps of the cursor, and those by position."""
    return st.one_of(
        st.tuples(st.just("read"), st.integers(-1, 6 * BLOCK)),
        st.tuples(st.just("readinto"), st.integers(0, 6 * BLOCK)),
        st.tuples(st.just("seek"), st.integers(-3 * BLOCK, 12 * BLOCK), st.sampled_from((0, 1, 2))),
        st.tuples(st.just("tell")),
        st.tuples(st.just("stream"), st.integers(1, 3 * BLOCK)),
        st.tuples(st.just("leave_stream"), st.integers(1, 3 * BLOCK), st.integers(0, 4)),
        st.tuples(st.just("cancel_read"), st.integers(1, 6 * BLOCK), st.integers(0, 6)),
        position_steps(),
    )


def upheavals() -> st.SearchStrategy[Step]:
    """Steps that change how the reader works, and must not change what it reads."""
    return st.one_of(
        st.tuples(st.just("set_policy"), st.sampled_from(POLICIES)),
        st.tuples(st.just("will_need"), _ranges()),
        st.just(("unbuffer",)),
        st.just(("reopen",)),
        st.tuples(st.just("clone"), st.integers(0, 3 * BLOCK)),
    )


def long_program(seed: int) -> Program:
    """A program drawn from a seed: a long object, runs that go on for long, jumps, and everything else in between."""
    dice = random.Random(seed)
    size = dice.choice((40 * BLOCK, 60 * BLOCK + 7, 33 * BLOCK - 1))

    def ranges() -> list[tuple[int, int]]:
        starts = [dice.randrange(size) for _ in range(dice.randrange(4))]
        return [(start, start + dice.randrange(4 * BLOCK)) for start in starts]

    def by_position() -> Step:
        start, length = dice.randrange(size), dice.choice((1, BLOCK // 2, BLOCK, 7 * BLOCK))
        names = ("read_at", "read_at", "view_at", "read_exactly_at", "cancel_read_at", "read_ranges", "iter_ranges")
        name = dice.choice(names)
        if name == "cancel_read_at":
            return name, start, length, dice.randrange(7)
        return (name, ranges()) if name.endswith("ranges") else (name, start, length)

    def by_cursor() -> list[Step]:
        length = dice.choice((3, BLOCK // 2, BLOCK, 5 * BLOCK))
        run: list[Step] = [("read", length)] * dice.randrange(1, 12)
        chunk = dice.randrange(1, 3 * BLOCK)
        return dice.choice(
            (
                run,
                run,
                [("seek", dice.randrange(size), 0), *run],
                [("seek", dice.randrange(size), 0), *run],
                [("readinto", length)] * 3,
                [("leave_stream", chunk, dice.randrange(5))],
                [("stream", chunk)],
                [("cancel_read", length, dice.randrange(7)), ("tell",)],
                [by_position()],
                [("set_policy", dice.choice(POLICIES))],
                [("will_need", ranges())],
                [("clone", length)],
                [("unbuffer",)],
                [("seek", -dice.randrange(size), 2)],
            )
        )

    return Program(
        size=size,
        size_known=dice.random() < 0.3,
        memory_blocks=dice.choice((2, 4, 8, 20, 64)),
        policy=dice.choice(POLICIES),
        prefetch_blocks=dice.choice((1, 3, 8)),
        growth=dice.choice(GROWTHS),
        cursor_steps=tuple(step for _ in range(25) for step in by_cursor()),
        position_steps=tuple(tuple(by_position() for _ in range(15)) for _ in range(dice.randrange(3))),
        seed=seed,
        failure_rate=dice.choice((0.0, 0.0, 0.1)),
    )


class Machine:
    """Takes steps on a reader and on the model, and compares after each."""

    def __init__(self, reader: RangeReader, model: ReaderModel, *, beside_reopen: bool = False) -> None:
        self.reader = reader
        self.model = model
        # Another task may call reopen(), which ends the reads that are under way.
        self.beside_reopen = beside_reopen

    async def take(self, step: Step) -> None:
        """One step; bad weather may fail it, and then nothing may have moved."""
        name, *arguments = step
        before = self.model.tell()
        try:
            await getattr(self, f"_{name}")(*arguments)
        except Unavailable:
            self.model.seek(before)
        except ObjectChanged:
            assert self.beside_reopen
            self.model.seek(before)

    async def _read(self, size: int) -> None:
        data = await self.reader.read(size)
        assert_same_bytes(data, self.model.read(size), what=f"read({size})")
        assert self.reader.tell() == self.model.tell()

    async def _readinto(self, size: int) -> None:
        buffer, expected = bytearray(size), bytearray(size)
        count = await self.reader.readinto(buffer)
        assert count == self.model.readinto(expected)
        assert_same_bytes(buffer[:count], bytes(expected[:count]), what=f"readinto({size})")
        assert self.reader.tell() == self.model.tell()

    async def _seek(self, offset: int, whence: int) -> None:
        if whence == io.SEEK_END:
            offset = max(offset, -self.model.size) if self.reader.size is None else offset
        try:
            found = self.reader.seek(offset, whence)
        except SizeUnknown:
            assert self.reader.size is None
            assert whence == io.SEEK_CUR
            return
        except ValueError:
            found = -1
        try:
            expected = self.model.seek(offset, whence)
        except ValueError:
            expected = -1
        assert found == expected or (found is None and whence == io.SEEK_END and self.reader.size is None)

    async def _tell(self) -> None:
        try:
            assert self.reader.tell() == self.model.tell()
        except SizeUnknown:
            assert self.reader.size is None

    async def _stream(self, chunk_bytes: int) -> None:
        await self._leave_stream(chunk_bytes, None)

    async def _leave_stream(self, chunk_bytes: int, chunks_max: int | None) -> None:
        """Unlike other steps one that fails may have moved the cursor: behind the last chunk that came."""
        count = 0
        async with self.reader.stream(chunk_bytes=chunk_bytes) as chunks:
            while count != chunks_max:
                try:
                    chunk = await anext(chunks)
                except (StopAsyncIteration, Unavailable):
                    break
                assert_same_bytes(chunk, self.model.read(chunk_bytes), what="stream")
                count += 1
        if self.reader.size is not None:
            assert self.reader.tell() == self.model.tell()

    async def _cancel_read(self, size: int, steps: int) -> None:
        data = await _cancelled(self.reader.read(size), steps)
        if data is not None:
            assert_same_bytes(data, self.model.read(size), what="read that ended before it was cancelled")
        await self._tell()

    async def _cancel_read_at(self, offset: int, size: int, steps: int) -> None:
        data = await _cancelled(self.reader.read_at(offset, size), steps)
        if data is not None:
            assert_same_bytes(data, self.model.read_at(offset, size), offset=offset)

    async def _read_at(self, offset: int, size: int) -> None:
        data = await self.reader.read_at(offset, size)
        assert_same_bytes(data, self.model.read_at(offset, size), offset=offset, what="read_at")

    async def _view_at(self, offset: int, size: int) -> None:
        view = await self.reader.view_at(offset, size)
        assert view.readonly
        assert_same_bytes(view, self.model.read_at(offset, size), offset=offset, what="view_at")

    async def _read_exactly_at(self, offset: int, size: int) -> None:
        try:
            expected = self.model.read_exactly_at(offset, size)
        except EOFError:
            await _fails_at_the_end(self.reader.read_exactly_at(offset, size))
            return
        assert_same_bytes(await self.reader.read_exactly_at(offset, size), expected, offset=offset)

    async def _read_ranges(self, ranges: list[tuple[int, int]]) -> None:
        try:
            expected = self.model.read_ranges(ranges)
        except EOFError:
            await _fails_at_the_end(self.reader.read_ranges(ranges))
            return
        assert await self.reader.read_ranges(ranges) == expected

    async def _iter_ranges(self, ranges: list[tuple[int, int]]) -> None:
        ranges = [one for one in ranges if one[1] <= self.model.size]
        found = {}
        async with self.reader.iter_ranges(ranges, gap_bytes=3, request_bytes_max=40) as parts:
            async for position, part in parts:
                assert position not in found
                found[position] = part
        assert [found[position] for position in range(len(ranges))] == self.model.read_ranges(ranges)

    async def _set_policy(self, policy: PolicyName) -> None:
        self.reader.set_policy(policy)

    async def _will_need(self, ranges: list[tuple[int, int]]) -> None:
        self.reader.will_need(ranges)

    async def _unbuffer(self) -> None:
        await self.reader.unbuffer()
        await self._tell()

    async def _reopen(self) -> None:
        await self.reader.reopen()
        await self._tell()

    async def _clone(self, size: int) -> None:
        async with self.reader.clone() as clone:
            assert clone.tell() == 0
            assert_same_bytes(await clone.read(size), self.model.data[:size], what="clone")
        await self._tell()


async def _fails_at_the_end(read: Awaitable[object]) -> None:
    try:
        await read
    except RangeNotSatisfied:
        return
    raise AssertionError("a read past the end must be an EOFError")


async def _cancelled(read: Any, steps: int) -> bytes | None:
    """Let a read run for some steps of the loop, then cancel it; its result if it was faster."""
    task = asyncio.ensure_future(read)
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    try:
        data: bytes = await task
    except asyncio.CancelledError:
        return None
    return data

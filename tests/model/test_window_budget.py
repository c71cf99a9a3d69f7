"""What windows cost: bytes of random reads beside plain ranged GETs, and bytes fetched for runs and never read."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from aioprefetch import RangeReader
from aioprefetch.operator.operator import Operator
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.testing.oracle import assert_same_bytes, pattern
from tests.profile import chosen, combinations, each_of, few_rows
from tests.stores.computed_store import GIB, KIB, MIB, Arithmetic, Distance, Read, blank, covered_bytes
from tests.stores.gated_reader import reads_of, settle

READS = 1000
SMALL = 4 * KIB
# An overhead of a fifth over what was asked for.
RATIO_MAX = 1.2
# Bytes fetched and never read, for each that was.
WASTE_MAX = 0.10
# Reads of resident bytes take no turn of the loop: without a pause a window would be read before it was asked for.
THINK_SECONDS = 0.001

FAR_AWAY = Distance(first_byte_seconds=0.030, bytes_per_second=90e6)

ReadAt = Callable[[RangeReader, int, int], Awaitable[bytes]]


async def by_position(reader: RangeReader, start: int, size: int) -> bytes:
    """A positioned read."""
    return await reader.read_at(start, size)


async def by_cursor(reader: RangeReader, start: int, size: int) -> bytes:
    """A seek and a read."""
    reader.seek(start)
    return await reader.read(size)


def places(size: int, *, seed: int, aligned: bool) -> list[int]:
    """Where random reads begin."""
    step = SMALL if aligned else 1
    return [random.Random(seed + n).randrange(0, size - SMALL, step) for n in range(READS)]


# --- random reads ---------------------------------------------------------------------------------------------------


@checks("reliability:C25")
@each_of(
    ("read", "aligned", "size"), combinations([by_position, by_cursor], [True, False], [16 * MIB, 100 * MIB + 17, GIB])
)
async def test_random_reads_cost_what_was_asked_for(size: int, aligned: bool, read: ReadAt) -> None:
    """1000 reads of 4 KiB under ``random``: less than plain ranged GETs, since what is resident is not asked again."""
    service = Arithmetic(size)
    async with Operator(service) as operator, operator.reader("k", policy="random") as reader:
        for start in places(size, seed=1, aligned=aligned):
            assert_same_bytes(await read(reader, start, SMALL), pattern(start, start + SMALL), offset=start)
    assert service.sent_bytes <= READS * SMALL


# How to read at random, whether at multiples of the length, and how much was read in order before.
WAYS: list[tuple[ReadAt, bool, int]] = [
    (by_position, True, 0),
    (by_position, False, 4 * MIB),
    (by_cursor, True, 4 * MIB),
    (by_cursor, False, 0),
]


@checks("reliability:C25")
@pytest.mark.parametrize(
    ("block", "size", "way"),
    few_rows(combinations([64 * KIB, MIB, 8 * MIB], [16 * MIB, 100 * MIB + 17, GIB], range(len(WAYS))), 3),
)
async def test_random_reads_cost_little_more_under_adaptive(size: int, block: int, way: int) -> None:
    """From the fourth miss far from all others on, also after a run; in objects and blocks of any size."""
    read, aligned, before = WAYS[way]
    service = Arithmetic(size, content=blank)
    async with Operator(service, block_bytes=block) as operator, operator.reader("k") as reader:
        for start in range(0, before, 256 * KIB):
            await read(reader, start, 256 * KIB)
        await settle(200)
        misses, first = 0, 0
        for start in places(size, seed=block, aligned=aligned):
            asked = len(service.log)
            await read(reader, start, SMALL)
            if misses < 3:
                await settle(200)
                misses, first = misses + (len(service.log) > asked), len(service.log)
        asked_bytes = sum(one.end - one.start for one in service.log[first:])
    assert asked_bytes <= RATIO_MAX * READS * SMALL


@each_of("gap", [0, 1, SMALL - 1, SMALL, -1, -SMALL])
@each_of("read", chosen(quick=[by_cursor], full=[by_position, by_cursor]))
async def test_a_random_read_beside_the_end_of_a_run_costs_no_window(gap: int, read: ReadAt) -> None:
    """It happens once in a while among a thousand; a window would cost as much as all of them."""
    service = Arithmetic(GIB)
    async with Operator(service) as operator, operator.reader("k") as reader:
        for start in range(512 * MIB, 520 * MIB, MIB):
            await read(reader, start, MIB)
        await reader.unbuffer()
        for start in places(500 * MIB, seed=9, aligned=True)[:100]:
            await read(reader, start, SMALL)
        before = service.sent_bytes
        await read(reader, 520 * MIB + gap, SMALL)
    assert service.sent_bytes - before <= 2 * SMALL


# --- runs and random reads on one reader ----------------------------------------------------------------------------

# Size of the object, of its blocks, of the reads of a run, and how many of these there are for one random read.
MIXTURES = [
    (512 * MIB, 8 * MIB, MIB, 1),
    (512 * MIB, 8 * MIB, MIB, 50),
    (256 * MIB, MIB, MIB, 1),
    (128 * MIB, MIB, 64 * KIB, 4),
    (64 * MIB, 256 * KIB, 64 * KIB, 1),
    (64 * MIB, 256 * KIB, 300 * KIB, 10),
]


class Mixture:
    """Two runs, over the halves of an object, and random reads, all on one reader of a store that is far away."""

    def __init__(self, size: int, block: int) -> None:
        self.size = size
        self.useful: list[Read] = []
        self.service = Arithmetic(size, content=blank, distance=FAR_AWAY)
        self.operator = Operator(self.service, block_bytes=block)
        self._rng = random.Random(5)

    async def read(self, how: ReadAt, reader: RangeReader, start: int, length: int) -> None:
        """A read that counts as useful, and some work on what it brought."""
        self.useful.append((start, min(self.size, start + length)))
        await how(reader, start, length)
        await asyncio.sleep(THINK_SECONDS)

    async def read_at_random(self, how: ReadAt, reader: RangeReader) -> None:
        """4 KiB anywhere."""
        await self.read(how, reader, self._rng.randrange(self.size - SMALL), SMALL)

    def windows_of_runs(self, reader: RangeReader) -> list[int]:
        """How many blocks either run may look ahead; 0 for one that is not known any more."""
        windows = reads_of(reader).ahead.windows
        blocks = {session.start: session.blocks for session in windows.runs if session.established}
        return [blocks.get(0, 0), blocks.get(self.size // 2, 0)]

    def demanded(self, since: int) -> list[Read]:
        """What was asked for too late, by a read that waits, of more than a random read's size."""
        late = [one for one in self.service.log[since:] if one.lane == "demand"]
        return [(one.start, one.end) for one in late if one.end - one.start > SMALL]

    @property
    def wasted(self) -> float:
        """Bytes that came and were not read, or came again, for each that was read."""
        useful = covered_bytes(self.useful)
        return (self.service.sent_bytes - useful) / useful


@pytest.mark.virtual
@pytest.mark.parametrize("how", [by_position, by_cursor])
@pytest.mark.parametrize(("size", "block", "length", "every"), few_rows(MIXTURES[::-1], 2))
async def test_two_runs_and_random_reads_in_turns(size: int, block: int, length: int, every: int, how: ReadAt) -> None:
    """Each run keeps its window, and from a quarter of its way on hardly anything of it comes late."""
    mixture = Mixture(size, block)
    widths: list[list[int]] = []
    quarter = 0
    async with mixture.operator as operator, operator.reader("k") as reader:
        for number, start in enumerate(range(0, size // 2, length)):
            await mixture.read(how, reader, start, min(length, size // 2 - start))
            await mixture.read(how, reader, size // 2 + start, length)
            if number % every == 0:
                await mixture.read_at_random(how, reader)
            if size // 8 <= start < size // 2 - 8 * block:
                quarter = quarter or len(mixture.service.log)
                widths.append(mixture.windows_of_runs(reader))
    assert min(map(min, widths)) >= 1
    # One random read in seventeen blocks may bring a block, to find out whether reads have become local.
    assert covered_bytes(mixture.demanded(quarter)) <= size / 17
    assert mixture.wasted <= WASTE_MAX


@pytest.mark.virtual
@pytest.mark.parametrize(("size", "block", "length", "every"), few_rows(MIXTURES[::-1], 2))
async def test_two_runs_and_random_reads_in_three_tasks(size: int, block: int, length: int, every: int) -> None:
    """The same at once. The runs take as long as they do alone; the reads at random go on until both have ended."""
    mixture, alone = Mixture(size, block), Mixture(size, block)

    async def runs(mixture: Mixture, reader: RangeReader) -> float:
        async def in_order(begin: int) -> None:
            for start in range(begin, begin + size // 2, length):
                await mixture.read(by_position, reader, start, min(length, begin + size // 2 - start))

        loop = asyncio.get_running_loop()
        begun = loop.time()
        await asyncio.gather(in_order(0), in_order(size // 2))
        return loop.time() - begun

    async def at_random(reader: RangeReader) -> None:
        while True:
            await mixture.read_at_random(by_position, reader)
            await asyncio.sleep(THINK_SECONDS * every)

    async with alone.operator as operator, operator.reader("k") as reader:
        alone_seconds = await runs(alone, reader)
    async with mixture.operator as operator, operator.reader("k") as reader:
        third = asyncio.create_task(at_random(reader))
        seconds = await runs(mixture, reader)
        third.cancel()
        await asyncio.wait([third])
    assert seconds <= 1.25 * alone_seconds
    assert mixture.wasted <= WASTE_MAX


# --- after a burst --------------------------------------------------------------------------------------------------


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("how", "length", "block"),
    few_rows(combinations([by_position, by_cursor], [64 * KIB, MIB], [256 * KIB, MIB, 8 * MIB]), 2),
)
async def test_a_run_after_a_burst_of_random_reads_is_fast_again(block: int, length: int, how: ReadAt) -> None:
    """It costs a first byte for each doubling from a read to a block at most, and two more, however long the burst."""

    async def seconds(burst: int) -> float:
        service = Arithmetic(512 * MIB, content=blank, distance=FAR_AWAY)
        rng = random.Random(3)
        async with Operator(service, block_bytes=block) as operator, operator.reader("k") as reader:
            for _ in range(burst):
                await how(reader, rng.randrange(256 * MIB, 511 * MIB), SMALL)
            now = operator.runtime().now
            begun = now()
            for start in range(0, 8 * block, length):
                await how(reader, start, length)
            return now() - begun

    doublings = max(0, (block // length).bit_length() - 1)
    after = await seconds(4)
    assert after <= await seconds(0) + (doublings + 2) * FAR_AWAY.first_byte_seconds
    assert await seconds(200) == pytest.approx(after)


@pytest.mark.virtual
@pytest.mark.parametrize("how", [by_position, by_cursor])
async def test_a_run_goes_on_after_a_burst_of_random_reads(how: ReadAt) -> None:
    """The same run, interrupted: it has its whole window again within one block more."""
    service = Arithmetic(512 * MIB, content=blank, distance=FAR_AWAY)
    rng = random.Random(3)
    async with Operator(service) as operator, operator.reader("k") as reader:
        for start in range(0, 64 * MIB, MIB):
            await how(reader, start, MIB)
        for _ in range(100):
            await how(reader, rng.randrange(256 * MIB, 511 * MIB), SMALL)
        for start in range(64 * MIB, 160 * MIB, MIB):
            await how(reader, start, MIB)
        assert max(session.blocks for session in reads_of(reader).ahead.windows.runs) == 8
    late = [one for one in service.log if one.lane == "demand" and one.start >= 64 * MIB and one.start < 256 * MIB]
    assert sum(one.end - one.start for one in late) <= 16 * MIB

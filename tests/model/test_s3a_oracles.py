"""The worked examples of Hadoop's page "S3A Prefetching" and the counts its own tests pin, with its stepping.

``prefetch_growth="step"`` looks one block ahead after a jump and ``prefetch_blocks`` once the next block is read in
order. Requests are counted at the store. What differs on purpose: blocks that S3A writes to disk at a jump stay in
memory here while there is room, so no count is higher than S3A's, and jumps back cost no file.
"""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import product

import pytest

from aioprefetch import RangeReader
from aioprefetch.blocks.block import Segment, SegmentState
from aioprefetch.blocks.file import BlockFile
from aioprefetch.blocks.store import BlockStore
from aioprefetch.errors import ConfigInvalid, Error, PermissionDenied, Unexpected
from aioprefetch.operator.operator import Operator
from aioprefetch.ranges import BlockGrid
from aioprefetch.runtime.budget import MemoryBudget
from aioprefetch.runtime.buffers import new_buffer
from aioprefetch.runtime.events import Event
from aioprefetch.testing.oracle import assert_same_bytes, pattern
from tests.profile import each_of
from tests.stores.computed_store import KIB, MIB, Arithmetic, Asked, Read, repeated
from tests.stores.gated_reader import settle

BLOCK = 8 * MIB
COUNT = 8


def s3a(operator: Operator, **options: object) -> RangeReader:
    """A reader that steps as S3A does."""
    return operator.reader("k", prefetch_growth="step", **options)  # type: ignore[arg-type]


def blocks(asked: list[Asked]) -> list[tuple[int, str]]:
    """Which block each request was for, and in which lane. Each was for a whole one, or for the short last one."""
    for one in asked:
        assert one.start % BLOCK == 0
        assert one.end - one.start <= BLOCK
    return [(one.start // BLOCK, one.lane) for one in asked]


async def read_and_check(reader: RangeReader, size: int) -> None:
    """Read on, compare the bytes, and let all requests come to their end."""
    start = reader.tell()
    data = await reader.read(size)
    assert_same_bytes(data, pattern(start, start + size), offset=start)
    await settle(200)


def memory_in_use(operator: Operator) -> int:
    """The gauge: bytes of memory in use or reserved."""
    return operator.runtime().budget.used_bytes


# --- the page's examples --------------------------------------------------------------------------------------------


async def test_an_object_smaller_than_a_block() -> None:
    """5 MB, blocks of 8 MB: reads of 3 MB and 2 MB are one request for ``(0, size)`` and nothing ahead."""
    service = Arithmetic(5 * MIB)
    async with Operator(service) as operator, s3a(operator) as reader:
        await read_and_check(reader, 3 * MIB)
        assert service.reads == [(0, 5 * MIB)]
        await read_and_check(reader, 2 * MIB)
        assert await reader.read(1) == b""
        assert service.reads == [(0, 5 * MIB)]
        assert operator.statistics["stream_read_prefetch_operations"] == 0


async def test_an_object_as_large_as_a_block() -> None:
    """The page says that a file smaller than a block comes whole; S3A's code, and we, say not larger."""
    service = Arithmetic(BLOCK)
    async with Operator(service) as operator, s3a(operator) as reader:
        await read_and_check(reader, BLOCK)
    assert service.reads == [(0, BLOCK)]


async def test_sequential_reads() -> None:
    """40 MB: 5 MB bring block 0 and ask for block 1; 8 MB more come from both and ask for all that follow."""
    service = Arithmetic(40 * MIB)
    async with Operator(service) as operator, s3a(operator) as reader:
        await read_and_check(reader, 5 * MIB)
        assert blocks(service.log) == [(0, "demand"), (1, "prefetch")]
        await read_and_check(reader, 8 * MIB)
        assert blocks(service.log)[2:] == [(2, "prefetch"), (3, "prefetch"), (4, "prefetch")]
        assert operator.statistics["stream_read_prefetch_operations"] == 4


async def test_the_window_holds_as_many_blocks_as_are_configured() -> None:
    """The same in a larger object: as many blocks as ``fs.s3a.prefetch.block.count`` lie ahead, here three."""
    service = Arithmetic(400 * MIB)
    async with Operator(service, prefetch_blocks=3) as operator, s3a(operator) as reader:
        await read_and_check(reader, 5 * MIB)
        await read_and_check(reader, 8 * MIB)
        assert blocks(service.log) == [(0, "demand"), *((number, "prefetch") for number in range(1, 5))]
        await read_and_check(reader, 8 * MIB)
        assert blocks(service.log)[5:] == [(5, "prefetch")]


@pytest.mark.parametrize("pieces", [1, 4, 64])
async def test_random_reads(pieces: int) -> None:
    """40 MB: 5 MB, seek to 10, 4 MB, seek to 2, 4 MB are three requests, however small the pieces.

    S3A writes block 0 to disk at the first jump and reads it back after the second. Here it has stayed in memory, and
    so has block 1, which S3A would spill although it is the one that is read.
    """
    service = Arithmetic(40 * MIB)
    async with Operator(service) as operator, s3a(operator) as reader:
        for position, size in ((0, 5 * MIB), (10 * MIB, 4 * MIB), (2 * MIB, 4 * MIB)):
            reader.seek(position)
            for _ in range(pieces):
                await read_and_check(reader, size // pieces)
        assert blocks(service.log) == [(0, "demand"), (1, "prefetch"), (2, "prefetch")]
        assert operator.statistics["stream_read_prefetch_operations"] == 2


async def test_a_seek_asks_for_nothing() -> None:
    """Lazy seek: it moves a number; the read after the last of many seeks is the one that counts."""
    service = Arithmetic(400 * MIB)
    async with Operator(service) as operator, s3a(operator) as reader:
        await read_and_check(reader, 5 * MIB)
        asked = len(service.log)
        for position in (200 * MIB, 0, 399 * MIB, 24 * MIB, 5 * MIB):
            reader.seek(position)
            await settle()
        assert len(service.log) == asked
        await read_and_check(reader, MIB)
        assert len(service.log) == asked


# --- the counts of S3A's tests --------------------------------------------------------------------------------------


async def _by_cursor(reader: RangeReader, start: int, size: int) -> bytes:
    return await reader.read(size)


async def _into_a_buffer(reader: RangeReader, start: int, size: int) -> bytes:
    buffer = bytearray(size)
    return bytes(buffer[: await reader.readinto(buffer)])


async def _by_position(reader: RangeReader, start: int, size: int) -> bytes:
    return await reader.read_at(start, size)


async def _fully_by_position(reader: RangeReader, start: int, size: int) -> bytes:
    return await reader.read_exactly_at(start, min(size, (reader.size or size) - start))


@each_of("how", [_by_cursor, _into_a_buffer, _by_position, _fully_by_position])
@each_of("size", [2 * BLOCK, 5 * BLOCK + 1, 21 * BLOCK - 1])
async def test_an_object_of_n_blocks_is_n_requests_and_all_but_the_first_are_prefetches(
    size: int, how: Callable[[RangeReader, int, int], Awaitable[bytes]]
) -> None:
    """In reads of 10 MiB, by cursor and by contiguous positions: the counts are the same, nothing goes to the disk."""
    service, count = Arithmetic(size), -(-size // BLOCK)
    async with Operator(service) as operator:
        async with s3a(operator) as reader:
            for start in range(0, size, 10 * MIB):
                data = await how(reader, start, 10 * MIB)
                assert_same_bytes(data, pattern(start, min(size, start + 10 * MIB)), offset=start)
        # The lanes are those of the counters: a prefetch that is waited for before it was sent goes out as demand.
        assert [number for number, _ in blocks(service.log)] == list(range(count))
        statistics = operator.statistics
        assert statistics["stream_read_block_fetches"] == count
        assert statistics["stream_read_prefetch_operations"] == count - 1
        assert statistics["stream_file_cache_blocks_written"] == 0
        budget = operator.runtime().budget
    assert budget.used_bytes == 0


async def test_jumps_over_five_blocks() -> None:
    """Part of block 0, all of block 2, a seek into block 4 that nothing is read at, one byte of block 0.

    Four requests, two of them prefetches, as S3A. It has blocks 0, 1 and 3 on disk then; here 0 to 3 are in memory.
    """
    service = Arithmetic(5 * BLOCK)
    async with Operator(service) as operator:
        async with s3a(operator) as reader:
            await read_and_check(reader, BLOCK // 2)
            reader.seek(2 * BLOCK)
            await read_and_check(reader, BLOCK)
            reader.seek(4 * BLOCK)
            reader.seek(100)
            await read_and_check(reader, 1)
            assert blocks(service.log) == [(0, "demand"), (1, "prefetch"), (2, "demand"), (3, "prefetch")]
            assert operator.statistics["stream_read_prefetch_operations"] == 2
            assert memory_in_use(operator) == 4 * BLOCK
            await reader.unbuffer()
            assert memory_in_use(operator) == 0
        budget = operator.runtime().budget
    assert budget.used_bytes == 0


async def test_a_small_object_is_one_request_whatever_the_seeks() -> None:
    service = Arithmetic(BLOCK // 2)
    async with Operator(service) as operator:
        async with s3a(operator) as reader:
            for position in (0, BLOCK // 4, 1000, BLOCK // 2 - 1, 0):
                reader.seek(position)
                await read_and_check(reader, 1)
        assert operator.statistics["stream_read_prefetch_operations"] == 0
        budget = operator.runtime().budget
    assert service.reads == [(0, BLOCK // 2)]
    assert budget.used_bytes == 0


@pytest.mark.parametrize("count", [1, 2, 7, 8])
async def test_of_prefetches_of_which_every_odd_one_fails_the_others_are_kept(count: int) -> None:
    """Kept are as many as succeeded, errors are as many as failed, and no read learns of either.

    S3A has those kept on disk after its cancelPrefetches; here they stay in memory, where the reads find them.
    """
    size = 64 * KIB
    failing = {number for number in range(1, count + 1) if number % 2}
    service = Arithmetic((count + 1) * size)

    def refuse(start: int, end: int) -> Error | None:
        return PermissionDenied("not this one", operation="read") if start // size in failing else None

    ended: list[Event] = []
    async with Operator(service, block_bytes=size) as operator:
        operator.runtime().events.subscribe(ended.append)
        async with s3a(operator, prefetch_blocks=0) as reader:
            await reader.read_at(0, 1)
            service.refuse = refuse
            reader.will_need([(size * number, size * (number + 1)) for number in range(1, count + 1)])
            await settle(200)
            ahead = [one for one in ended if one.name == "block.fetched" and one.facts["lane"] == "prefetch"]
            assert len([one for one in ahead if one.facts["error"] is not None]) == len(failing)
            assert memory_in_use(operator) == (1 + count - len(failing)) * size
            service.refuse = None
            data = await reader.read_at(size, count * size)
            assert_same_bytes(data, pattern(size, size + len(data)), offset=size)
        again = [one.start // size for one in service.log[1 + count :]]
        assert again == sorted(failing)


async def test_what_a_failed_read_had_reserved_is_given_back() -> None:
    """And the next read works: S3A's pool has all its buffers again."""
    service = Arithmetic(5 * BLOCK)
    async with Operator(service) as operator, s3a(operator) as reader:
        service.refuse = lambda start, end: PermissionDenied("no", operation="read")
        for _ in range(3):
            with pytest.raises(PermissionDenied):
                await reader.read_at(0, 1)
            await settle()
            assert memory_in_use(operator) == 0
        service.refuse = None
        await read_and_check(reader, 10)


@each_of(("count", "memory_blocks"), [(3, 8), (8, 8), (20, 8), (20, 4), (5, 1)])
async def test_no_more_blocks_are_kept_than_there_is_memory_for(count: int, memory_blocks: int) -> None:
    """S3A keeps ``min(blocks of the file, max.blocks.count)``; here the bound is in bytes and all readers share it."""
    size = 64 * KIB
    service = Arithmetic(count * size)
    async with Operator(service, block_bytes=size, memory_bytes=memory_blocks * size) as operator:
        async with s3a(operator, keep_behind=True) as reader:
            await read_and_check(reader, count * size)
        assert memory_in_use(operator) == min(count, memory_blocks) * size


# --- block data -----------------------------------------------------------------------------------------------------

GRIDS = [
    # size, size of a block, sizes of the blocks
    (0, BLOCK, []),
    (1, 1, [1]),
    (5, 1, [1] * 5),
    (BLOCK - 1, BLOCK, [BLOCK - 1]),
    (BLOCK, BLOCK, [BLOCK]),
    (BLOCK + 1, BLOCK, [BLOCK, 1]),
    (40 * MIB, BLOCK, [BLOCK] * 5),
    (41 * MIB, BLOCK, [BLOCK] * 5 + [MIB]),
]


@each_of(("size", "block_bytes", "sizes"), GRIDS)
def test_the_blocks_of_an_object(size: int, block_bytes: int, sizes: list[int]) -> None:
    """Their number, and that all but the last have the same size; an empty object has none."""
    grid = BlockGrid(size, block_bytes)
    bounds: list[Read] = [grid.bounds(number) for number in range(grid.count)]
    assert [end - start for start, end in bounds] == sizes
    assert [edge for one in bounds for edge in one] == sorted(edge for one in bounds for edge in one)
    assert list(grid.indices(0, size)) == list(range(len(sizes)))
    for number, (start, end) in enumerate(bounds):
        assert {grid.index(start), grid.index(end - 1)} == {number}


@pytest.mark.parametrize("block_bytes", [0, -1])
async def test_a_block_has_at_least_one_byte(block_bytes: int) -> None:
    async with Operator(Arithmetic(10)) as operator:
        with pytest.raises(ConfigInvalid, match=f"block_bytes must be an integer of at least 1, not {block_bytes}"):
            s3a(operator, block_bytes=block_bytes)


async def test_blocks_of_one_byte_work() -> None:
    service = Arithmetic(30)
    async with Operator(service, block_bytes=1) as operator, s3a(operator) as reader:
        assert await reader.read() == pattern(0, 30)
    assert repeated(service.reads) == []


async def test_the_state_of_a_block_is_what_is_there_of_it() -> None:
    """S3A's NOT_READY, QUEUED and READY, read off the block file; kept nowhere beside it."""
    service = Arithmetic(2 * BLOCK)
    async with Operator(service) as operator, s3a(operator, prefetch_blocks=0) as reader:
        await reader.read_at(0, 1)
        (file,) = BlockStore.of(operator.runtime()).files.values()
        await settle(200)
        assert _state(file, 1) == "not ready"
        reader.will_need([(BLOCK, 2 * BLOCK)])
        assert _state(file, 1) == "queued"
        await settle(200)
        assert _state(file, 1) == "ready"
        await reader.unbuffer()
        assert _state(file, 1) == "not ready"


def _state(file: BlockFile, number: int) -> str:
    start, end = file.grid.bounds(number)
    return "ready" if file.holds(start, end) else "not ready" if file.missing(start, end) else "queued"


# --- buffer data ----------------------------------------------------------------------------------------------------

FILLING, READY, SPILLING, EVICTED = SegmentState
LEGAL = {
    (FILLING, READY),
    (FILLING, EVICTED),
    (READY, SPILLING),
    (READY, EVICTED),
    (SPILLING, READY),
    (SPILLING, EVICTED),
}


@each_of(("before", "after"), list(product(SegmentState, repeat=2)))
async def test_the_transitions_of_a_segment(before: SegmentState, after: SegmentState) -> None:
    """The legal ones; any other is refused, with the states that may follow, and changes nothing."""
    budget = MemoryBudget(100, asyncio.get_running_loop())
    budget.charge(10)
    segment = Segment(0, 10, new_buffer(10, budget), prefetched=False)
    assert segment.state is FILLING
    segment.state = before
    if (before, after) in LEGAL:
        segment.become(after)
        assert segment.state is after
        return
    with pytest.raises(Unexpected, match=f"{before.value} cannot become {after.value}; allowed are: ") as caught:
        segment.become(after)
    follow = sorted(one.value for legal, one in LEGAL if legal is before)
    assert f"allowed are: {', '.join(follow) or 'nothing'} [" in str(caught.value)
    assert segment.state is before

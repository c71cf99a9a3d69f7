"""How many requests the access patterns of Parquet readers cost: counted at the store, no block twice."""

import random
from collections.abc import Callable

import pytest

from aioprefetch.operator.operator import Operator
from aioprefetch.reader.policy import PolicyName
from aioprefetch.services.memory import Memory
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.testing.oracle import assert_same_bytes, content, pattern
from aioprefetch.values import WriteRequest
from tests.profile import each_of
from tests.stores.computed_store import KIB, MIB, Arithmetic, Distance, Read, repeated

CHUNK = 1365
ROW_GROUPS, COLUMNS = 50, 12
CHUNKS = ROW_GROUPS * COLUMNS
SIZE = CHUNKS * CHUNK


def chunk(number: int) -> Read:
    """Offset and size of a column chunk; they lie row group by row group."""
    return number * CHUNK, CHUNK


# The access patterns of a measured baseline, in which a reader without blocks needs up to 600 requests.
PATTERNS: dict[str, Callable[[], list[Read]]] = {
    "contiguous": lambda: [chunk(number) for number in range(CHUNKS)],
    "3 of 12 columns": lambda: [chunk(group * COLUMNS + column) for group in range(ROW_GROUPS) for column in (1, 5, 9)],
    "column by column": lambda: [
        chunk(group * COLUMNS + column) for column in range(COLUMNS) for group in range(ROW_GROUPS)
    ],
    "first chunk 50 times": lambda: [chunk(0)] * 50,
    "ping-pong": lambda: [chunk(number) for i in range(50) for number in (i * 10, i * 5)],
    "footer, then all": lambda: [(SIZE - 8, 8), (SIZE - 4096, 4096), *(chunk(number) for number in range(CHUNKS))],
    "256 KiB to the end": lambda: [(start, 256 * KIB) for start in range(0, SIZE, 256 * KIB)],
}


async def read_by_cursor(operator: Operator, reads: list[Read], size: int) -> None:
    """Seek and read, as a file is used."""
    async with operator.reader("k") as reader:
        for offset, length in reads:
            reader.seek(offset)
            data = await reader.read(length)
            assert_same_bytes(data, pattern(offset, min(offset + length, size)), offset=offset)


async def read_by_position(operator: Operator, reads: list[Read], size: int, policy: PolicyName = "adaptive") -> None:
    """Positioned reads."""
    async with operator.reader("k", policy=policy) as reader:
        for offset, length in reads:
            data = await reader.read_at(offset, length)
            assert_same_bytes(data, pattern(offset, min(offset + length, size)), offset=offset)


@checks("opendal:R27")
@each_of("how", [read_by_cursor, read_by_position])
@each_of("name", PATTERNS)
async def test_patterns_with_default_options(name: str, how: Callable[..., object]) -> None:
    """An object smaller than a block is one GET, whatever the order."""
    service = Arithmetic(SIZE)
    async with Operator(service) as operator:
        await how(operator, PATTERNS[name](), SIZE)  # type: ignore[misc]
    assert service.reads == [(0, SIZE)]
    assert service.stats == 0


@checks("opendal:R27")
@each_of("how", [read_by_cursor, read_by_position])
@each_of("name", PATTERNS)
async def test_patterns_with_small_blocks(name: str, how: Callable[..., object]) -> None:
    """With blocks of 256 KiB in 1 MiB of memory at most one GET for each block, none twice."""
    service = Arithmetic(SIZE)
    async with Operator(service, memory_bytes=MIB, block_bytes=256 * KIB) as operator:
        await how(operator, PATTERNS[name](), SIZE)  # type: ignore[misc]
    assert len(service.reads) <= -(-SIZE // (256 * KIB))
    assert repeated(service.reads) == []
    assert service.stats == 0


@checks("opendal:R27")
@pytest.mark.parametrize("order", ["as stored", "column by column", "shuffled"])
async def test_a_small_parquet_file_is_one_get(order: str) -> None:
    """600 column chunks of unknown size in any order: 1 GET, 0 HEAD, hardly more bytes than the file has."""
    service = Memory()
    service.store.put(WriteRequest(path="k"), content(SIZE))
    async with Operator(service) as operator:
        await read_by_position(operator, _ordered(order, [chunk(number) for number in range(CHUNKS)]), SIZE)
        counts = operator.statistics
    assert (counts["action_http_get_request"], counts["action_http_head_request"]) == (1, 0)
    assert counts["stream_read_total_bytes"] <= 1.05 * SIZE


@checks("opendal:R27")
@pytest.mark.virtual
@pytest.mark.parametrize("distance", [None, Distance(first_byte_seconds=0.030, bytes_per_second=90e6)])
@pytest.mark.parametrize(
    ("order", "policy"),
    [("as stored", "adaptive"), ("column by column", "adaptive"), ("shuffled", "sequential")],
)
async def test_chunks_spread_over_a_large_object(order: str, policy: PolicyName, distance: Distance | None) -> None:
    """The same 600 reads over 64 MiB: at most one GET for each block, none twice, no HEAD.

    From far away a run that has to wait may halve the blocks ahead of it: at most two GETs for each block but the
    first. Shuffled, they are random reads of 1365 bytes: only who says so gets whole blocks for them.
    """
    size = 64 * MIB
    service = Arithmetic(size, distance=distance)
    spread = [(number * (size // CHUNKS), CHUNK) for number in range(CHUNKS)]
    async with Operator(service) as operator:
        await read_by_position(operator, _ordered(order, spread), size, policy)
        blocks = size // operator.options.block_bytes
    assert len(service.reads) <= (blocks if distance is None else 2 * blocks - 1)
    assert repeated(service.reads) == []
    assert service.stats == 0


@checks("s3a:V22")
async def test_statistics_of_a_vectored_read() -> None:
    """Five ranges become three requests; the counters say how many bytes were read only to merge them."""
    starts = [(2 * KIB - 101, 100), (8 * KIB, 100), (10 * KIB, 100), (14 * KIB, 100), (40 * KIB, 1024)]
    service = Arithmetic(SIZE)
    async with Operator(service) as operator:
        async with operator.reader("k", policy="random", size=SIZE) as reader:
            await reader.read_at(SIZE - 1, 1)  # brings the version, so that the ranges alone are counted below
            before = len(service.reads)
            parts = await reader.read_ranges(
                [(start, start + length) for start, length in starts], gap_bytes=4 * KIB, request_bytes_max=MIB
            )
        assert sum(map(len, parts)) == 1424
        assert len(service.reads) - before == 3
        counts = reader.statistics
    assert counts["stream_read_vectored_incoming_ranges"] == 5
    assert counts["stream_read_vectored_combined_ranges"] == 3
    assert counts["stream_read_vectored_read_bytes_discarded"] == 5944


def _ordered(order: str, reads: list[Read]) -> list[Read]:
    if order == "shuffled":
        return random.Random(600).sample(reads, len(reads))
    if order == "column by column":
        return [reads[group * COLUMNS + column] for column in range(COLUMNS) for group in range(ROW_GROUPS)]
    return reads

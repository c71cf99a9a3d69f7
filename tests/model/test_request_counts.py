"""How many requests the access patterns of Parquet readers cost: counted at the store, no block twice."""

import itertools
import random
from collections.abc import Callable, Iterable

import pytest

from aioprefetch.accessor import Accessor
from aioprefetch.bodies import ReadBody
from aioprefetch.operator import Operator
from aioprefetch.runtime import Runtime
from aioprefetch.services.memory import CAPABILITY, Memory
from aioprefetch.services.service_accessor import ServiceAccessor
from aioprefetch.testing.conformance.ids import checks
from aioprefetch.testing.oracle import assert_same_bytes, content, pattern
from aioprefetch.values import Capability, Metadata, ReadHead, ReadRequest, ServiceInfo, StatRequest, WriteRequest

CHUNK = 1365
ROW_GROUPS, COLUMNS = 50, 12
CHUNKS = ROW_GROUPS * COLUMNS
SIZE = CHUNKS * CHUNK
KIB, MIB = 1 << 10, 1 << 20

Read = tuple[int, int]


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


class Arithmetic:
    """A service whose objects are computed from their offsets: `size` bytes each, and a log of what was asked."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.reads: list[Read] = []
        self.stats = 0

    @property
    def info(self) -> ServiceInfo:
        return ServiceInfo(scheme="arithmetic", name="test")

    @property
    def capability(self) -> Capability:
        return CAPABILITY

    def build(self, runtime: Runtime) -> Accessor:
        return _ArithmeticAccessor(self, runtime)


class _ArithmeticAccessor(ServiceAccessor):
    def __init__(self, service: Arithmetic, runtime: Runtime) -> None:
        super().__init__(service.info, service.capability, runtime)
        self._service = service

    async def stat(self, request: StatRequest) -> Metadata:
        self._service.stats += 1
        self._unsupported(request)

    async def open_read(self, request: ReadRequest) -> ReadBody:
        total = self._service.size
        start = max(0, total - request.suffix) if request.suffix is not None else request.offset
        end = total if request.size is None else min(total, start + request.size)
        self._service.reads.append((start, end))
        return _ArithmeticBody(ReadHead(start=start, size=end - start, total=total, etag="fixed"))


class _ArithmeticBody:
    def __init__(self, head: ReadHead) -> None:
        self.head = head
        self._position = head.start

    async def read_chunk(self) -> bytes:
        start, self._position = self._position, min(self.head.end, self._position + MIB)
        return pattern(start, self._position)

    async def aclose(self) -> None:
        """Nothing is held open."""


def assert_no_byte_twice(reads: Iterable[Read]) -> None:
    """Fail when two requests asked for one byte."""
    ordered = sorted(reads)
    assert [(one, two) for one, two in itertools.pairwise(ordered) if two[0] < one[1]] == []


async def read_by_cursor(operator: Operator, reads: list[Read], size: int) -> None:
    """Seek and read, as a file is used."""
    async with operator.reader("k") as reader:
        for offset, length in reads:
            reader.seek(offset)
            data = await reader.read(length)
            assert_same_bytes(data, pattern(offset, min(offset + length, size)), offset=offset)


async def read_by_position(operator: Operator, reads: list[Read], size: int) -> None:
    """Positioned reads."""
    async with operator.reader("k") as reader:
        for offset, length in reads:
            data = await reader.read_at(offset, length)
            assert_same_bytes(data, pattern(offset, min(offset + length, size)), offset=offset)


@checks("opendal:R27")
@pytest.mark.parametrize("how", [read_by_cursor, read_by_position])
@pytest.mark.parametrize("name", PATTERNS)
async def test_patterns_with_default_options(name: str, how: Callable[..., object]) -> None:
    """An object smaller than a block is one GET, whatever the order."""
    service = Arithmetic(SIZE)
    async with Operator(service) as operator:
        await how(operator, PATTERNS[name](), SIZE)  # type: ignore[misc]
    assert service.reads == [(0, SIZE)]
    assert service.stats == 0


@checks("opendal:R27")
@pytest.mark.parametrize("how", [read_by_cursor, read_by_position])
@pytest.mark.parametrize("name", PATTERNS)
async def test_patterns_with_small_blocks(name: str, how: Callable[..., object]) -> None:
    """With blocks of 256 KiB in 1 MiB of memory at most one GET for each block, none twice."""
    service = Arithmetic(SIZE)
    async with Operator(service, memory_bytes=MIB, block_bytes=256 * KIB) as operator:
        await how(operator, PATTERNS[name](), SIZE)  # type: ignore[misc]
    assert len(service.reads) <= -(-SIZE // (256 * KIB))
    assert_no_byte_twice(service.reads)
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
@pytest.mark.parametrize("order", ["as stored", "column by column", "shuffled"])
async def test_chunks_spread_over_a_large_object(order: str) -> None:
    """The same 600 reads over 64 MiB: at most one GET for each block, none twice, no HEAD."""
    size = 64 * MIB
    service = Arithmetic(size)
    spread = [(number * (size // CHUNKS), CHUNK) for number in range(CHUNKS)]
    async with Operator(service) as operator:
        await read_by_position(operator, _ordered(order, spread), size)
        block_bytes = operator.options.block_bytes
    assert len(service.reads) <= -(-size // block_bytes)
    assert_no_byte_twice(service.reads)
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

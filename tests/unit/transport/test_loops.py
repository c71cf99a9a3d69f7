"""A whole Operator on either loop: reads, readers and streams over s3, all by the transport."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from aioprefetch.operator.operator import Operator
from aioprefetch.services.s3 import S3
from aioprefetch.testing import CountingS3Server
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.testing.oracle import content

SIZE = 3_000_000
DATA = content(SIZE)


@pytest.fixture
async def operator(s3_server: CountingS3Server, random_name: Callable[[], str]) -> AsyncIterator[Operator]:
    """An Operator over a bucket of moto's that holds `k`."""
    bucket = random_name()
    s3_server.create_bucket(bucket)
    service = S3(
        bucket=bucket,
        endpoint_url=s3_server.endpoint_url,
        region="us-east-1",
        access_key_id="testing",
        secret_access_key="testing",
        proxies={},
    )
    async with Operator(service, block_bytes=256 << 10) as made:
        await made.write("k", DATA)
        yield made


@checks("reliability:C37")
async def test_an_operator_reads_on_either_loop(operator: Operator) -> None:
    assert await operator.read("k") == DATA
    assert await operator.read("k", offset=1234, size=100_000) == DATA[1234:101_234]
    starts = range(0, SIZE - 5000, 100_000)
    parts = await asyncio.gather(*(operator.read("k", offset=start, size=5000) for start in starts))
    assert parts == [DATA[start : start + 5000] for start in starts]

    async with operator.reader("k") as reader:
        assert await reader.read_at(2_000_000, 500_000) == DATA[2_000_000:2_500_000]
        assert await reader.read(700_000) == DATA[:700_000]
        streamed = b"".join([bytes(piece) async for piece in reader.stream(100_000)])
        assert streamed == DATA[700_000:]

    counts = operator.statistics
    assert counts["transport_requests"] > len(starts)
    assert counts["transport_stale_connections"] == 0


@checks("reliability:C37")
async def test_cancelled_reads_leave_an_operator_in_order(operator: Operator) -> None:
    for turns in range(0, 40, 4):
        reads = [asyncio.ensure_future(operator.read("k", offset=number, size=400_000)) for number in range(8)]
        for _ in range(turns):
            await asyncio.sleep(0)
        for read in reads[::2]:
            read.cancel()
        await asyncio.wait(reads)
        assert [read.result() for read in reads[1::2]] == [DATA[number : number + 400_000] for number in (1, 3, 5, 7)]
    assert await operator.read("k", offset=5, size=10) == DATA[5:15]

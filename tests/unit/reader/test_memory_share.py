"""More readers than memory has blocks: their requests shrink, and what one has fetched stays until it was read."""

import asyncio

import pytest

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.sink import Sink
from aioprefetch.operator.operator import Operator
from aioprefetch.reader.policy import PolicyName
from aioprefetch.testing.oracle import assert_same_bytes, content
from aioprefetch.values import ReadReply, ReadRequest
from tests.profile import chosen
from tests.stores.gated_reader import KIB, MIB
from tests.stores.verb_layer import VerbLayer

BLOCK = 512 * KIB


class SentBytes(VerbLayer):
    """What the store was asked for and sent, counted below everything else."""

    def __init__(self) -> None:
        self.requests: list[ReadRequest] = []
        self.sent_bytes = 0

    async def read(self, inner: Accessor, request: ReadRequest, sink: Sink) -> ReadReply:
        self.requests.append(request)
        before = sink.received
        await asyncio.sleep(0)
        try:
            return await inner.read(request, sink)
        finally:
            self.sent_bytes += sink.received - before


async def read_in_turns(
    *,
    readers: int,
    size: int,
    memory_bytes: int,
    block_bytes: int,
    step_bytes: int,
    policy: PolicyName,
    by_offset: bool,
) -> tuple[float, SentBytes]:
    """That many readers at once, each of an object of its own, from front to back; bytes sent for each byte read."""
    sent, data = SentBytes(), content(size)
    made = Operator.from_uri("memory://", memory_bytes=memory_bytes, block_bytes=block_bytes)
    async with made.layer(sent) as operator:
        for number in range(readers):
            await operator.write(f"m/{number}", data)

        async def read_one(number: int) -> None:
            async with operator.reader(f"m/{number}", policy=policy) as reader:
                for start in range(0, size, step_bytes):
                    if by_offset:
                        found = await reader.read_at(start, step_bytes)
                    else:
                        found = await reader.read(step_bytes)
                    assert_same_bytes(found, data[start : start + step_bytes], offset=start, what=f"reader {number}")
                    await asyncio.sleep(0)

        await asyncio.gather(*map(read_one, range(readers)))
        assert operator.runtime().budget.peak_bytes <= memory_bytes + block_bytes
    return sent.sent_bytes / (readers * size), sent


@pytest.mark.parametrize(
    ("readers", "policy", "by_offset", "most"),
    [
        (4, "adaptive", False, 1.0),
        (33, "sequential", False, 1.2),
        (33, "adaptive", True, 1.15),
        (80, "adaptive", False, 1.3),
    ],
)
async def test_many_readers_in_order_send_hardly_more_than_they_read(
    readers: int, policy: PolicyName, by_offset: bool, most: float
) -> None:
    """In memory for 32 blocks of 512 KiB."""
    factor, sent = await read_in_turns(
        readers=readers,
        size=3 * BLOCK,
        memory_bytes=32 * BLOCK,
        block_bytes=BLOCK,
        step_bytes=32 * KIB,
        policy=policy,
        by_offset=by_offset,
    )
    assert 1.0 <= factor <= most
    assert len(sent.requests) <= readers * 3 * BLOCK // (128 * KIB) * most


async def test_a_hundred_readers_of_24_mib_in_the_default_memory() -> None:
    """The defaults hold 32 blocks of 8 MiB; the hundred read 2.4 GB in turns of 256 KiB. Quick: an eighth of it all."""
    scale = chosen(quick=8, full=1)
    factor, _ = await read_in_turns(
        readers=100,
        size=24 * MIB // scale,
        memory_bytes=256 * MIB // scale,
        block_bytes=8 * MIB // scale,
        step_bytes=256 * KIB // scale,
        policy="adaptive",
        by_offset=False,
    )
    assert 1.0 <= factor <= 1.25


async def test_a_thousand_readers_get_on_together_in_little_memory() -> None:
    """A thousand readers in memory for a fair share of 256 KiB each. Quick: a sixteenth of both."""
    scale = chosen(quick=16, full=1)
    readers, step, size = 1000 // scale, 256 * KIB, 8 * MIB
    sent, data = SentBytes(), content(size)
    made = Operator.from_uri("memory://", memory_bytes=256 * MIB // scale)
    async with made.layer(sent) as operator:
        for number in range(readers):
            await operator.write(f"m/{number}", data)
        progress = [0] * readers
        apart = 0

        async def read_one(number: int) -> None:
            nonlocal apart
            async with operator.reader(f"m/{number}") as reader:
                while chunk := await reader.read(step):
                    start = progress[number]
                    assert_same_bytes(chunk, data[start : start + len(chunk)], offset=start, what=f"reader {number}")
                    progress[number] += len(chunk)
                    if progress[number] == size // 2:
                        apart = max(apart, sorted(progress)[readers // 2] - min(progress))
                    await asyncio.sleep(0)

        await asyncio.gather(*map(read_one, range(readers)))
    assert sent.sent_bytes <= 1.08 * readers * size
    assert max(request.size or 0 for request in sent.requests[readers:]) < 8 * MIB
    assert apart <= size // 2  # The slowest is never far behind the median.

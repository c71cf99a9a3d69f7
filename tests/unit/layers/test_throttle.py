"""Throttle on virtual time: the rate of any number of reads and writes, and what a pause leaves behind."""

import asyncio
import pickle
from collections.abc import AsyncIterator
from typing import Any

import pytest

import aioprefetch as ap
from aioprefetch.errors import ConfigInvalid, TimedOut
from aioprefetch.layers import RetryLayer, ThrottleLayer, TimeoutLayer
from aioprefetch.layers.throttle import RequestRateLayer
from aioprefetch.values import StatRequest
from tests.stores.layer_stack import KIB, MIB, Stack, open_stack, pattern

DATA = pattern(MIB)
RATE = 128 * KIB
BURST_SECONDS = 0.1
SECOND = 1.0
pytestmark = pytest.mark.virtual


@pytest.fixture
async def stack() -> AsyncIterator[Stack]:
    """128 KiB a second, around time-outs of 20 seconds and retries."""
    async with open_stack(TimeoutLayer(), RetryLayer(), ThrottleLayer(RATE), data=DATA) as stack:
        yield stack


def seconds_of(count: int) -> float:
    """What that many bytes take."""
    return count / RATE - BURST_SECONDS


async def write_in_pieces(stack: Stack) -> None:
    body = await stack.accessor.open_write(ap.values.WriteRequest(path="new"))
    for start in range(0, MIB, 100 * KIB):
        await body.write(DATA[start : start + 100 * KIB])
    await body.close()


CALLS: dict[str, Any] = {
    "one read": lambda stack: stack.fetch(),
    "four reads": lambda stack: asyncio.gather(*[stack.fetch(offset=n * MIB // 4, size=MIB // 4) for n in range(4)]),
    "many small reads": lambda stack: asyncio.gather(*[stack.fetch(offset=n * KIB, size=KIB) for n in range(1024)]),
    "one write": lambda stack: stack.accessor.write(ap.values.WriteRequest(path="new"), DATA),
    "pieces": write_in_pieces,
    "a read and a write": lambda stack: asyncio.gather(
        stack.fetch(size=MIB // 2), stack.accessor.write(ap.values.WriteRequest(path="new"), DATA[: MIB // 2])
    ),
}


@pytest.mark.parametrize("name", CALLS)
async def test_all_calls_share_the_rate(stack: Stack, name: str) -> None:
    """No time-out ends a pause, and nothing is asked for twice."""
    began = stack.runtime.loop.time()
    await CALLS[name](stack)
    assert stack.runtime.loop.time() - began == pytest.approx(seconds_of(MIB), rel=0.02)
    assert stack.events == []


async def test_a_slow_rate_is_no_stall() -> None:
    """A piece takes longer than the limit of a read without progress, and no attempt follows."""
    bare = ap.Operator.bare(ap.services.Memory("slow-rate"))
    await bare.write("k", DATA[: 64 * KIB])
    async with bare.layer(TimeoutLayer(stall_seconds=SECOND)).layer(ThrottleLayer(KIB)) as op:
        assert await op.read("k") == DATA[: 64 * KIB]
        assert asyncio.get_running_loop().time() == pytest.approx(64 - BURST_SECONDS)


async def test_the_rate_is_kept_in_each_second() -> None:
    """By the bytes that a reader has received so far."""
    async with ap.Operator.from_uri("memory://paced", block_bytes=256 * KIB) as store:
        await store.write("k", DATA)
        op, received = store.layer(ThrottleLayer(RATE)), list[int]()
        async with op.reader("k", policy="whole-file") as reader:
            reading = asyncio.ensure_future(reader.read())
            loop, began = asyncio.get_running_loop(), asyncio.get_running_loop().time()
            for second in range(1, 8):
                await asyncio.sleep(began + second - loop.time())
                received.append(op.statistics["stream_read_total_bytes"])
            assert await reading == DATA
            assert await reader.read_at(5, 10) == DATA[5:15]
            assert loop.time() - began == pytest.approx(seconds_of(MIB), abs=0.2)
    # A response is counted when it has ended: blocks come one after the other, or side by side.
    assert all(count <= RATE * (second + 1 + BURST_SECONDS) + 32 * KIB for second, count in enumerate(received))


async def test_what_is_saved_up_is_a_tenth_of_a_second(stack: Stack) -> None:
    await asyncio.sleep(3600 * SECOND)
    began = stack.runtime.loop.time()
    await stack.fetch(size=RATE)
    assert stack.runtime.loop.time() - began == pytest.approx(1 - BURST_SECONDS)


async def test_a_write_that_is_cancelled_gives_its_share_back(stack: Stack) -> None:
    writing = asyncio.ensure_future(stack.accessor.write(ap.values.WriteRequest(path="new"), DATA))
    await asyncio.sleep(SECOND)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    began = stack.runtime.loop.time()
    await stack.fetch(size=RATE)
    assert stack.runtime.loop.time() - began == pytest.approx(1 - BURST_SECONDS)
    assert "new" not in stack.store.objects


async def test_no_call_waits_beyond_its_deadline(stack: Stack) -> None:
    now = stack.runtime.loop.time()
    with pytest.raises(TimedOut, match="deadline") as caught:
        await stack.accessor.write(ap.values.WriteRequest(path="new", deadline=now + 5), DATA)
    assert (caught.value.status, stack.runtime.loop.time()) == ("permanent", now + 5)
    assert "new" not in stack.store.objects


async def test_operators_with_one_layer_object_have_one_rate() -> None:
    layer = ThrottleLayer("128 KiB")  # type: ignore[arg-type]  # Texts are read.
    async with ap.Operator.from_uri("memory://shared-rate") as store:
        await store.write("k", DATA)
        first, second = store.layer(layer), store.layer(layer)
        began = asyncio.get_running_loop().time()
        await asyncio.gather(first.read("k"), second.read("k"))
        assert asyncio.get_running_loop().time() - began == pytest.approx(seconds_of(2 * MIB), rel=0.02)
        copied = await store.layer(pickle.loads(pickle.dumps(layer))).copy("k", "c")
        assert copied.size == MIB
        assert asyncio.get_running_loop().time() - began == pytest.approx(seconds_of(2 * MIB), rel=0.02)


@pytest.mark.parametrize("rate", [0, -1, None, "fast", 1.5, True])
def test_a_rate_is_a_number_of_bytes(rate: Any) -> None:
    with pytest.raises(ConfigInvalid, match="bytes_per_second of ThrottleLayer"):
        ThrottleLayer(rate)


@pytest.mark.parametrize(("rate", "seconds"), [(0.5, 39), (10, 1.9), (1000, 0)])
async def test_requests_of_all_kinds_share_a_rate(rate: float, seconds: float) -> None:
    """Operators with an equal layer too, as the files of one task have it."""
    for _ in range(2):
        async with open_stack(RequestRateLayer(rate), data=DATA) as stack:
            began = stack.runtime.loop.time()
            stat = StatRequest(path="k")
            reads, stats = [stack.fetch(size=1) for _ in range(10)], [stack.accessor.stat(stat) for _ in range(10)]
            await asyncio.gather(*reads, *stats)
            assert stack.runtime.loop.time() - began == pytest.approx(seconds, rel=0.06)

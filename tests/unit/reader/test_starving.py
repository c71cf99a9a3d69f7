"""Reads whose bytes are evicted before they are used get on nevertheless, and end with their bytes."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import aioprefetch as ap
from aioprefetch import Operator, RangeReader
from aioprefetch.accessor.protocols import Accessor, Layer, WrappedAccessor
from aioprefetch.accessor.sink import Sink
from aioprefetch.layers import LruCacheLayer, RetryLayer
from aioprefetch.reader.policy import PolicyName
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.testing import run_virtual
from aioprefetch.testing.oracle import content
from aioprefetch.values import ReadReply, ReadRequest
from tests.profile import chosen, in_turns

BLOCK = 4096
SIZE = 5 * BLOCK + 7
MADE = {key: content(SIZE, version=number) for number, key in enumerate("abc")}


class TakingLayer(Layer):
    """Takes all memory that can be taken after each response, as other readers do that need it."""

    def wrap(self, inner: Accessor, runtime: Runtime) -> Accessor:
        return Taking(inner, runtime)


class Taking(WrappedAccessor):
    """Its live part."""

    def __init__(self, inner: Accessor, runtime: Runtime) -> None:
        super().__init__(inner)
        self._runtime = runtime

    async def read(self, request: ReadRequest, sink: Sink) -> ReadReply:
        reply = await self.inner.read(request, sink)
        if self._runtime.budget.reclaim is not None:
            self._runtime.budget.reclaim(1 << 40, "demand")
        return reply


async def _way(reader: RangeReader, way: str, start: int, end: int) -> bytes:
    """``[start, end)``, read in one way."""
    if way == "read_at":
        return await reader.read_at(start, end - start)
    if way == "view_at":
        return bytes(await reader.view_at(start, end - start))
    if way == "read_ranges":
        middle = (start + end) // 2
        return b"".join(await reader.read_ranges([(start, middle), (middle, end)], gap_bytes=0))
    reader.seek(start)
    if way == "readinto":
        target = bytearray(end - start)
        return bytes(target[: await reader.readinto(target)])
    async with reader.stream(max(2000, (end - start) // 3)) as chunks:
        return b"".join([chunk async for chunk in chunks])[: end - start]


POLICIES: tuple[PolicyName, ...] = ("adaptive", "sequential", "random", "parquet")
WAYS = ("read_at", "view_at", "read_ranges", "readinto", "stream")


@pytest.mark.parametrize(
    ("way", "bounds"), in_turns(WAYS, [(5, 15), (BLOCK - 5, 2 * BLOCK), (0, SIZE), (2 * BLOCK, SIZE)])
)
@pytest.mark.parametrize("policy", ["adaptive", "random", "parquet", "whole-file"])
async def test_bytes_that_are_taken_at_once_are_read_past_the_blocks(
    policy: PolicyName, way: str, bounds: tuple[int, int]
) -> None:
    made = Operator.from_uri("memory://taken", block_bytes=BLOCK, memory_bytes=6 * BLOCK)
    async with made.layer(TakingLayer(), inside=RetryLayer) as op:
        await op.write("a", MADE["a"])
        async with op.reader("a", policy=policy) as reader:
            assert await _way(reader, way, *bounds) == MADE["a"][slice(*bounds)]
            assert reader.statistics["stream_read_exceptions"] == 0


async def _many_readers(
    seed: int,
    *,
    blocks: int,
    readers: int,
    times: int = 2,
    ways: Sequence[str] = WAYS,
    cached: bool = False,
    **more: Any,
) -> None:
    """Reads of a few objects by many readers with little memory: each is right, and none fails."""
    op = Operator.from_uri(f"memory://starving-{seed}", block_bytes=BLOCK, memory_bytes=blocks * BLOCK, **more)
    if cached:
        op = op.layer(LruCacheLayer(cache=Operator.from_uri(f"memory://starving-cache-{seed}")))

    async def work(number: int) -> None:
        chance, chosen_way = random.Random(seed * 50 + number), random.Random(number)
        for _ in range(times):
            key = chance.choice("abc")
            policy: PolicyName = chance.choice(POLICIES)
            async with op.reader(key, policy=policy) as reader:
                for _ in range(6):
                    start = chance.randrange(SIZE)
                    end = min(SIZE, start + chance.choice([1, 500, BLOCK, 2 * BLOCK]))
                    assert await _way(reader, chosen_way.choice(ways), start, end) == MADE[key][start:end]
                    await asyncio.sleep(0)

    async with op:
        for key, data in MADE.items():
            await op.write(key, data)
        async with asyncio.TaskGroup() as group:
            for number in range(readers):
                group.create_task(work(number))


@pytest.mark.parametrize("seed", chosen(quick=[13, 24], full=range(40)))
def test_readers_that_evict_one_another_all_get_on(seed: int) -> None:
    run_virtual(lambda: _many_readers(seed, blocks=6, readers=16, times=10, ways=("read_at",)))


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize(("blocks", "readers"), [(1, 6), (2, 24), (3, 12)])
def test_however_many_they_are(blocks: int, readers: int, cached: bool) -> None:
    times = chosen(quick=2, full=20)
    run_virtual(lambda: _many_readers(blocks, blocks=blocks, readers=readers, times=times, cached=cached))


@pytest.mark.parametrize("seed", range(chosen(quick=1, full=40)))
def test_with_a_cache_on_disk(seed: int, tmp_path: Path) -> None:
    run_virtual(lambda: _many_readers(seed, blocks=4, readers=12, disk_cache=str(tmp_path)))


@pytest.mark.parametrize("seed", range(chosen(quick=1, full=40)))
def test_beside_scans(seed: int) -> None:
    """A scan takes memory of the same budget."""
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    table = pa.table({"n": pa.array(range(4000)), "s": pa.array([str(n) for n in range(4000)])})
    out = pa.BufferOutputStream()
    pq.write_table(table, out, row_group_size=500)
    data = out.getvalue().to_pybytes()

    async def main() -> None:
        async with Operator.from_uri("memory://beside", block_bytes=BLOCK, memory_bytes=1 << 16) as op:
            await op.write("p", data)

            async def scan() -> None:
                rows = 0
                async for batch in ap.parquet.scan(op, "p", batch_rows=250):
                    rows += batch.num_rows
                    await asyncio.sleep(0)
                assert rows == 4000

            async def read(number: int) -> None:
                chance = random.Random(seed * 50 + number)
                async with op.reader("p", policy=chance.choice(["adaptive", "random"])) as reader:
                    for _ in range(5):
                        start = chance.randrange(len(data))
                        end = min(len(data), start + chance.choice([1, BLOCK, 5 * BLOCK]))
                        assert await _way(reader, chance.choice(WAYS), start, end) == data[start:end]

            async with asyncio.TaskGroup() as group:
                for number in range(20):
                    group.create_task(scan() if number < 2 else read(number))

    run_virtual(main)

# /// script
# requires-python = ">=3.11"
# dependencies = ["aioprefetch"]
# ///
"""How a reader follows its caller: a window for a run, exact ranges for random access, hints by Hadoop's keys.

A layer slows the store down, so that there is something to hide: 20 ms before the first byte.
"""

import asyncio
import random
import time
from dataclasses import dataclass

import aioprefetch as ap
from aioprefetch.accessor.sink import Sink
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import ReadReply, ReadRequest

MIB = 1 << 20
SIZE = 64 * MIB


@dataclass(frozen=True)
class Distance(ap.Layer):
    """A store that is 20 ms away."""

    def wrap(self, inner: ap.Accessor, runtime: Runtime) -> ap.Accessor:
        return DistantAccessor(inner)


class DistantAccessor(ap.WrappedAccessor):
    async def read(self, request: ReadRequest, sink: Sink) -> ReadReply:
        await asyncio.sleep(0.02)
        return await self.inner.read(request, sink)


async def in_order(op: ap.Operator, **options: object) -> None:
    started = time.perf_counter()
    async with op.reader("data", **options) as reader:
        while await reader.read(MIB):
            pass
    counts = reader.statistics
    took_ms = 1000 * (time.perf_counter() - started)
    fetches, ahead = counts["stream_read_block_fetches"], counts["prefetch_bytes_used"] // MIB
    print(f"in order, {options or 'adaptive'}: {ahead} of 64 MiB ahead, {fetches} requests, {took_ms:.0f} ms")


async def random_access(op: ap.Operator, **options: object) -> None:
    chance = random.Random(1)
    async with op.reader("data", **options) as reader:
        for _ in range(50):
            await reader.read_at(chance.randrange(SIZE - 100), 100)
        print(f"random access, {options or 'adaptive'}: {reader.statistics['stream_read_block_fetches']} requests")


async def by_keys(op: ap.Operator) -> None:
    builder = op.open_file("data")
    builder.opt("fs.option.openfile.read.policy", "columnar, random")  # the first name that is known
    builder.opt_long("fs.option.openfile.length", SIZE)
    builder.must("fs.s3a.prefetch.block.size", "4M")
    async with await builder.build() as reader:
        print(f"by keys: {reader.size // MIB} MiB, nothing asked yet;", len(await reader.read_at(SIZE - 8, 8)), "bytes")


async def main() -> None:
    async with ap.Operator(ap.services.Memory()).layer(Distance()) as op:
        await op.write("data", bytes(SIZE))
        await in_order(op, prefetch_blocks=0)
        await op.aclose()  # drops what is resident
        await in_order(op)
        await op.aclose()
        await random_access(op)
        await op.aclose()
        await random_access(op, policy="random")
        await by_keys(op)


asyncio.run(main())

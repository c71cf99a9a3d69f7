"""The job ``long-stream``: 4 GiB in reads of 1 MiB, at a distance, and the memory that a process takes meanwhile.

The object is a file with holes, which takes no memory either.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from tests.benchmarks.bars import Bar
from tests.benchmarks.content import MIB, PAGE_BYTES, expected
from tests.benchmarks.job import CPU, GETS, IN_FLIGHT, MEMORY, RATE, SENT, WALL, Chunks, Contestant, Job, Sample, Target
from tests.benchmarks.misses import OBJECT_BYTES, STRIDE_BYTES, write_pages
from tests.benchmarks.process_usage import Meter
from tests.benchmarks.simulator import AT_A_DISTANCE
from tests.benchmarks.streaming import OURS
from tests.benchmarks.streams import PEERS, aioprefetch_reader, aioprefetch_stream

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def check_pages(chunk: ReadableBuffer, offset: int) -> int:
    """The length of a chunk, after a look at the pages in it that have bytes.

    Raises:
        AssertionError: the beginning of such a page is another one.
    """
    with memoryview(chunk).cast("B") as view:
        length = len(view)
        for start in range(-offset % STRIDE_BYTES, length, STRIDE_BYTES):
            found = bytes(view[start : start + PAGE_BYTES])
            at = offset + start
            assert found == expected(at, at + len(found)), f"wrong bytes at {at}"
    return length


def timed_long(chunks: Chunks) -> Contestant:
    """Read it all, measured from the opening to the last byte."""

    async def run(target: Target) -> Sample:
        offset = 0
        async with contextlib.aclosing(chunks(target)) as stream:
            await anext(stream)
            meter = Meter(target.server_pid)
            async for chunk in stream:
                offset += check_pages(chunk, offset)
                del chunk
                if offset >= target.size_bytes:
                    break
            usage = meter.stop()
        assert offset == target.size_bytes, f"read {offset} bytes of {target.size_bytes}"
        return {**usage, "bytes_per_second": offset / usage["wall_seconds"]}

    return run


LONG_STREAM = Job(
    name="long-stream",
    title="4 GiB in reads of 1 MiB, from opening to the last byte",
    conditions=AT_A_DISTANCE,
    size_bytes=OBJECT_BYTES,
    quick_size_bytes=OBJECT_BYTES // 8,
    write=write_pages,
    contestants={
        OURS: timed_long(aioprefetch_reader()),
        "aioprefetch stream": timed_long(aioprefetch_stream),
        "s3torchconnectorclient": timed_long(PEERS["s3torchconnectorclient"]),
        "obstore stream": timed_long(PEERS["obstore stream"]),
    },
    quick_contestants=(OURS, "s3torchconnectorclient"),
    columns=(RATE, WALL, CPU, MEMORY, GETS, SENT, IN_FLIGHT),
    compare_all=True,
    bars=(
        Bar(
            shape="stream of 4 GiB in 1 MiB reads, RSS above start, MiB",
            ours=OURS,
            number="memory_growth_bytes",
            bar=128 * MIB,
            aim=96 * MIB,
            unit=MIB,
            digits=0,
        ),
    ),
)

"""The jobs ``misses-*``: 4 KiB all over an object of 4 GiB, through one reader; no read is near another.

The object is a file with holes: only the pages that are read have bytes, so that it takes no memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aioprefetch.reader.policy import PolicyName
from tests.benchmarks import range_clients as clients
from tests.benchmarks.bars import Bar
from tests.benchmarks.clients import aioprefetch_operator
from tests.benchmarks.content import PAGE_BYTES, expected
from tests.benchmarks.job import GETS, SENT, SHARE, Contestant, Job, Target, costs_of
from tests.benchmarks.range_clients import Client, Get
from tests.benchmarks.range_passes import Shape, per_range, timed_blocking_ranges, timed_ranges
from tests.benchmarks.simulator import AT_A_DISTANCE, LOOPBACK, Conditions

if TYPE_CHECKING:
    import aioprefetch as ap

OBJECT_BYTES = 4 << 30
# No request that is made larger than what is read, up to this size, reaches the place of another read.
STRIDE_BYTES = 512 << 10
POLICIES: tuple[PolicyName, ...] = ("random", "adaptive")
IN_FLIGHT = (16, 64)
READS = 8000
# At a distance a sample takes about three seconds.
FAR_READS_EACH = 100

OBSTORE = "obstore get_range"


def write_pages(path: Path, size_bytes: int) -> None:
    """A file of this size whose first page of each stride is that of every object; the rest are holes."""
    with path.open("wb") as file:
        for start in range(0, size_bytes, STRIDE_BYTES):
            file.seek(start)
            file.write(expected(start, start + PAGE_BYTES))
        file.truncate(size_bytes)


def reading_at(policy: PolicyName) -> Client:
    """``read_at`` of one reader for each object."""

    @contextlib.asynccontextmanager
    async def client(target: Target, in_flight: int, range_bytes: int) -> AsyncIterator[Get]:
        async with aioprefetch_operator(target) as operator, contextlib.AsyncExitStack() as stack:
            readers: dict[str, ap.RangeReader] = {}

            async def get(key: str, start: int, end: int) -> bytes:
                reader = readers.get(key)
                if reader is None:
                    readers[key] = reader = operator.reader(key, policy=policy)
                    await stack.enter_async_context(reader)
                return await reader.read_at(start, end - start)

            yield get

    return client


def contestants(shape: Shape) -> dict[str, Contestant]:
    """Our reader by policy, and each peer that reads a range by itself; obstore is the base, in both of its ways."""
    found = {
        OBSTORE: timed_ranges(clients.obstore, shape),
        obstore_threads(shape.in_flight): timed_blocking_ranges(clients.obstore_blocking, shape, slow=False),
    }
    found |= {ours(policy): timed_ranges(reading_at(policy), shape) for policy in POLICIES}
    return {
        **found,
        "aioprefetch read": timed_ranges(clients.aioprefetch_read, shape),
        "opendal": timed_ranges(clients.opendal, shape),
        f"s3torchconnectorclient, {shape.in_flight} threads": timed_blocking_ranges(clients.mountpoint, shape),
        "aiobotocore": timed_ranges(clients.aiobotocore, shape, slow=True),
        "s3fs": timed_ranges(clients.s3fs, shape, slow=True),
        f"pyarrow, {shape.in_flight} threads": timed_blocking_ranges(clients.pyarrow, shape),
    }


def ours(policy: PolicyName) -> str:
    """The name of our reader with a policy."""
    return f"aioprefetch reader, {policy}"


def obstore_threads(in_flight: int) -> str:
    """The name of obstore's blocking way."""
    return f"{OBSTORE}, {in_flight} threads"


def bars(conditions: Conditions, in_flight: int) -> Sequence[Bar]:
    """What is wanted of both policies."""
    away = f"{conditions.first_byte_seconds * 1e3:g} ms away"
    return tuple(
        Bar(
            shape=f"4 KiB miss of read_at, {policy}, {in_flight} in flight, {away}, CPU",
            ours=ours(policy),
            bases=(OBSTORE, obstore_threads(in_flight)),
            number="cpu_per_request",
            bar=0.8,
            aim=0.5,
        )
        for policy in POLICIES
    )


def miss_job(in_flight: int, conditions: Conditions) -> Job:
    """A job."""
    is_far = conditions.first_byte_seconds > 0
    reads = FAR_READS_EACH * in_flight if is_far else READS
    shape = Shape(range_bytes=PAGE_BYTES, in_flight=in_flight, requests=reads, stride_bytes=STRIDE_BYTES)
    return Job(
        name=f"misses-{in_flight}{'-far' if is_far else ''}",
        title=f"4 KiB at {reads} places of 4 GiB through one reader, {in_flight} in flight",
        conditions=conditions,
        size_bytes=OBJECT_BYTES,
        quick_size_bytes=OBJECT_BYTES // 4,
        write=write_pages,
        contestants=contestants(shape),
        quick_contestants=(OBSTORE, obstore_threads(in_flight), *map(ours, POLICIES)) if not is_far else (),
        columns=(
            *costs_of("read"),
            GETS,
            SENT,
            SHARE,
        ),
        bars=bars(conditions, in_flight),
        compare_all=True,
        derive=per_range,
    )


MISS_JOBS = tuple(miss_job(in_flight, where) for where in (LOOPBACK, AT_A_DISTANCE) for in_flight in IN_FLIGHT)

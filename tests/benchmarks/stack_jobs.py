"""The jobs ``stack-*``: what each part of us adds to a request, from the bare protocol to ``Operator.read``.

All of them send the same 4 KiB ranges, 16 at once, or 8 MiB, 8 at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping

from tests.benchmarks import range_clients as clients
from tests.benchmarks.clients import aioprefetch_options, over_our_transport
from tests.benchmarks.content import MIB
from tests.benchmarks.job import CPU_PER_GIB, GETS, PEAK, RATE, SHARE, Column, Comparison, Job, Numbers, Target
from tests.benchmarks.range_clients import Get
from tests.benchmarks.range_jobs import FLOOR, INTO, LARGE, READ, SMALL, VIEW
from tests.benchmarks.range_passes import Shape, per_range, timed_ranges
from tests.benchmarks.simulator import LOOPBACK
from tests.benchmarks.transport_client import transport

TRANSPORT = "transport by hand"
BARE = "aioprefetch read_into, no layers"

MOST_OVER_FLOOR = 2
MOST_BEYOND_TRANSPORT_US = 15

OVER_FLOOR = Comparison(number="cpu_per_request", base=FLOOR)
BEYOND_TRANSPORT = Comparison(number="cpu_per_request", base=TRANSPORT, is_difference=True)


@contextlib.asynccontextmanager
async def bare_read_into(target: Target, in_flight: int, range_bytes: int) -> AsyncIterator[Get]:
    """``read_into`` of ``Operator.bare``: the service with none of the layers that can be left out."""
    import aioprefetch as ap

    service = ap.services.S3(bucket=target.bucket, **aioprefetch_options(target))
    async with over_our_transport(ap.Operator.bare(service)) as operator:
        yield clients.reading_into(operator, in_flight, range_bytes)


def what_it_adds(medians: Mapping[str, Numbers]) -> str:
    """The two bounds, of the transport over the floor and of the stack over the transport, and what is there."""
    said = []
    ratio = medians.get(TRANSPORT, {}).get(OVER_FLOOR.name)
    if ratio is not None:
        said.append(f"The transport takes {ratio:.2f} times the CPU of the bare protocol")
    for call in (VIEW, READ, INTO):
        beyond = medians.get(call, {}).get(BEYOND_TRANSPORT.name)
        if beyond is not None:
            said.append(f"{call} adds {beyond * 1e6:.1f} µs to the transport")
    if not said:
        return ""
    return f"{'; '.join(said)}. At most {MOST_OVER_FLOOR} times and {MOST_BEYOND_TRANSPORT_US} µs are wanted."


def stack_job(shape: Shape) -> Job:
    """A job for a shape. The bare protocol is the base."""
    return Job(
        name=f"stack-{shape.slug}",
        title=f"{shape} in flight, by what is between caller and socket",
        conditions=LOOPBACK,
        size_bytes=256 * MIB,
        quick_size_bytes=64 * MIB,
        contestants={
            FLOOR: timed_ranges(clients.floor, shape),
            TRANSPORT: timed_ranges(transport, shape),
            BARE: timed_ranges(bare_read_into, shape),
            INTO: timed_ranges(clients.aioprefetch_read_into, shape),
            VIEW: timed_ranges(clients.aioprefetch_view, shape),
            READ: timed_ranges(clients.aioprefetch_read, shape),
        },
        quick_contestants=(FLOOR, TRANSPORT, INTO, VIEW, READ),
        columns=(
            Column(name="cpu_per_request", heading="CPU µs/req", unit=1e-6, digits=1, ratio=True),
            BEYOND_TRANSPORT.column("beyond transport µs", unit=1e-6, digits=1),
            CPU_PER_GIB,
            Column(name="requests_per_second", heading="req/s", digits=0, ratio=True),
            RATE,
            GETS,
            SHARE,
            PEAK,
        ),
        comparisons=(OVER_FLOOR, BEYOND_TRANSPORT),
        compare_all=True,
        derive=per_range,
        remark=what_it_adds,
    )


STACK_JOBS = (stack_job(SMALL), stack_job(LARGE))

"""The jobs ``ranges-*``: a number of ranges of one size at once, without delay and limit, by us and by every peer.

``tls-*`` are the same over TLS. What is left on loopback is the time of the client, and of the server on the other
core: ``nginx busy`` says what share of the time it took.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from tests.benchmarks import range_clients as clients
from tests.benchmarks.bars import Bar
from tests.benchmarks.content import MIB
from tests.benchmarks.job import (
    CPU_PER_GIB,
    GETS,
    PEAK_RATIO,
    RATE,
    SENT,
    SHARE,
    Column,
    Comparison,
    Contestant,
    Job,
    Numbers,
)
from tests.benchmarks.range_passes import Shape, per_range, timed_blocking_ranges, timed_download, timed_ranges
from tests.benchmarks.simulator import LOOPBACK, LOOPBACK_TLS, Conditions

VIEW = "aioprefetch view"
RECORDED = "aioprefetch view, recorded"
READ = "aioprefetch read"
INTO = "aioprefetch read_into"
FLOOR = "bare protocol"
OBSTORE = "obstore"

LARGE_ALONE = Shape(range_bytes=8 * MIB, in_flight=1, requests=128)
LARGE = Shape(range_bytes=8 * MIB, in_flight=8, requests=256)
MEDIUM = Shape(range_bytes=64 << 10, in_flight=16, requests=8_000)
SMALL = Shape(range_bytes=4 << 10, in_flight=16, requests=16_000)
SMALL_MANY = Shape(range_bytes=4 << 10, in_flight=256, requests=16_000)
SHAPES = (LARGE_ALONE, LARGE, MEDIUM, SMALL, SMALL_MANY)
# Who goes in a quick run: everyone in one shape, in the others those that a claim is about.
QUICK: dict[Shape, Sequence[str] | None] = {
    LARGE_ALONE: (OBSTORE, VIEW),
    LARGE: (OBSTORE, VIEW, FLOOR),
    MEDIUM: (OBSTORE, VIEW),
    SMALL: None,
    SMALL_MANY: (OBSTORE, VIEW),
}
# Over TLS other sizes and other numbers in flight go the same ways: the extremes are enough.
QUICK_TLS: dict[Shape, Sequence[str]] = {**dict.fromkeys(SHAPES, ()), LARGE: (OBSTORE, VIEW), SMALL_MANY: (VIEW,)}

RATE_TO_US = Comparison(number="requests_per_second", base=VIEW)
CPU_TO_US = Comparison(number="cpu_per_request", base=VIEW)
# In each shape all ranges are as long: these are the ratios of the throughput and of the CPU for a GiB as well.
RATE_TO_OBSTORE = Comparison(number="requests_per_second", base=OBSTORE)
CPU_TO_OBSTORE = Comparison(number="cpu_per_request", base=OBSTORE)
COLUMNS = (
    Column(name="requests_per_second", heading="req/s", digits=0, ratio=True),
    RATE_TO_US.column("× ours"),
    RATE,
    Column(name="cpu_per_request", heading="CPU µs/req", unit=1e-6, digits=1, ratio=True),
    CPU_TO_US.column("× ours"),
    CPU_PER_GIB,
    Column(name="wall_seconds", heading="wall s"),
    Column(name="ranges", heading="ranges", digits=0),
    GETS,
    SENT,
    SHARE,
    PEAK_RATIO,
)


def contestants(shape: Shape) -> dict[str, Contestant]:
    """Everyone; obstore is the base."""
    found = {
        OBSTORE: timed_ranges(clients.obstore, shape),
        VIEW: timed_ranges(clients.aioprefetch_view, shape),
        READ: timed_ranges(clients.aioprefetch_read, shape),
        INTO: timed_ranges(clients.aioprefetch_read_into, shape),
        FLOOR: timed_ranges(clients.floor, shape),
        "opendal": timed_ranges(clients.opendal, shape),
        "aiohttp": timed_ranges(clients.aiohttp, shape),
        "aiobotocore": timed_ranges(clients.aiobotocore, shape, slow=True),
        "s3fs": timed_ranges(clients.s3fs, shape, slow=True),
        f"boto3, {shape.in_flight} threads": timed_blocking_ranges(clients.boto3, shape),
        f"pyarrow, {shape.in_flight} threads": timed_blocking_ranges(clients.pyarrow, shape),
        f"smart_open, {shape.in_flight} threads": timed_blocking_ranges(clients.smart_open, shape),
    }
    if shape == SMALL:
        found[RECORDED] = timed_ranges(clients.aioprefetch_recorded, shape)
    if shape == LARGE:
        found[f"s3transfer, {shape.in_flight} threads"] = timed_download(shape)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What is wanted of us beside obstore: the ratio of ranges a second at least, that of CPU time at most."""

    least_rate: float
    most_cpu: float


BOUNDS = {SMALL: Bound(least_rate=2, most_cpu=0.4), LARGE: Bound(least_rate=1.15, most_cpu=0.6)}


def beside_obstore(bound: Bound | None, medians: Mapping[str, Numbers]) -> str:
    """What there is of what is wanted; nothing where nothing is."""
    ours = medians.get(VIEW, {})
    rate, cpu = ours.get(RATE_TO_OBSTORE.name), ours.get(CPU_TO_OBSTORE.name)
    if bound is None or rate is None or cpu is None:
        return ""
    return (
        f"{VIEW} has {rate:.2f} times the throughput of obstore (at least {bound.least_rate:g} is wanted) "
        f"and {cpu:.2f} times its CPU (at most {bound.most_cpu:g})."
    )


def bars(shape: Shape, conditions: Conditions) -> tuple[Bar, ...]:
    """What is wanted over TLS of large ranges, and of small ones while a trace is recorded."""
    if shape == SMALL and not conditions.tls:
        what = f"{shape}, view while a trace is recorded, wall"
        return (Bar(shape=what, ours=RECORDED, bases=(VIEW,), number="wall_seconds", bar=1.15, aim=1.1),)
    if shape != LARGE or not conditions.tls:
        return ()
    what = f"{shape} over TLS, view"
    return (
        Bar(shape=f"{what}, wall", ours=VIEW, bases=(OBSTORE,), number="wall_seconds", bar=1.0, aim=0.95),
        Bar(shape=f"{what}, CPU", ours=VIEW, bases=(OBSTORE,), number="cpu_per_request", bar=1.0, aim=0.9),
    )


def range_job(name: str, shape: Shape, conditions: Conditions, chosen: Mapping[str, Contestant]) -> Job:
    """A job for a shape."""
    return Job(
        name=f"{name}-{shape.slug}",
        title=f"{shape} in flight",
        conditions=conditions,
        size_bytes=256 * MIB,
        quick_size_bytes=64 * MIB,
        contestants=chosen,
        quick_contestants=QUICK_TLS[shape] if conditions.tls else QUICK[shape],
        columns=COLUMNS,
        comparisons=(RATE_TO_US, CPU_TO_US, RATE_TO_OBSTORE, CPU_TO_OBSTORE),
        compare_all=True,
        bars=bars(shape, conditions),
        derive=per_range,
        remark=partial(beside_obstore, None if conditions.tls else BOUNDS.get(shape)),
    )


def tls_contestants(shape: Shape) -> dict[str, Contestant]:
    """The contestants that can be given a certificate to trust without a setting of the whole process."""
    everyone = contestants(shape)
    return {name: everyone[name] for name in (OBSTORE, VIEW, READ, INTO, FLOOR, "aiohttp", "aiobotocore")}


RANGE_JOBS = tuple(range_job("ranges", shape, LOOPBACK, contestants(shape)) for shape in SHAPES)
TLS_JOBS = tuple(range_job("tls", shape, LOOPBACK_TLS, tls_contestants(shape)) for shape in SHAPES)

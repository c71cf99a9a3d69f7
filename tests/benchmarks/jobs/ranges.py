"""Jobs of ranges: many at once, over TLS, with faults, far from each other, and how right the simulator is."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tests.benchmarks import works
from tests.benchmarks.content import MIB
from tests.benchmarks.job import (
    CHECK_OBJECT,
    CPU,
    CPU_PER_GIB,
    CUT,
    GETS,
    IN_FLIGHT,
    OBJECT,
    PEAK,
    PEAK_RATIO,
    RATE,
    RATE_RATIO,
    SENT,
    SENT_OVER_READ,
    SERVER_CPU,
    SHARE,
    WALL,
    Bar,
    Column,
    Job,
    costs_of,
)
from tests.benchmarks.jobs.words import (
    BY_HAND,
    CPU_EACH,
    FLOOR,
    MOUNTPOINT,
    OBSTORE,
    RATE_EACH,
    READ,
    READER,
    VIEW,
    WALL_SECONDS,
    in_threads,
)
from tests.benchmarks.simulator import AT_A_DISTANCE, LOOPBACK, Conditions
from tests.benchmarks.works import Shape

LARGE = Shape(8 * MIB, 8, 256)
MEDIUM = Shape(64 << 10, 16, 8_000)
SMALL = Shape(4 << 10, 16, 16_000)
SHAPES = (Shape(8 * MIB, 1, 128), LARGE, MEDIUM, SMALL, Shape(4 << 10, 256, 16_000))
# Those of the second row can be given a certificate to trust without a setting of the whole process.
RANGE_NAMES = (
    *(OBSTORE, VIEW, READ, "aioprefetch read_into", FLOOR, "aiohttp", "aiobotocore"),
    *("opendal", "s3fs", "boto3", "pyarrow", "smart_open"),
)
TLS_NAMES = RANGE_NAMES[:7]
STACK_NAMES = (FLOOR, BY_HAND, "aioprefetch read_into, no layers", "aioprefetch read_into", VIEW, READ)
RANGE_COLUMNS = (
    *(
        costs_of("req")[1],
        RATE,
        replace(costs_of("req")[0], digits=1),
        CPU_PER_GIB,
        WALL,
        Column(name="items", heading="ranges", digits=0),
    ),
    *(GETS, SENT, SHARE, PEAK_RATIO),
)


def range_bars(kind: str, shape: Shape) -> Sequence[Bar]:
    """What is wanted of ranges."""
    what = f"{shape}, view"
    match kind, shape:
        case "ranges", Shape(range_bytes=4096, in_flight=16):
            recorded = f"{VIEW}, recorded"
            return (
                Bar(f"{what}, ranges a second", VIEW, RATE_EACH, 2.0, 2.0, (OBSTORE,), at_least=True),
                Bar(f"{what}, CPU", VIEW, CPU_EACH, 0.4, 0.4, (OBSTORE,)),
                Bar(f"{what} while a trace is recorded, wall", recorded, WALL_SECONDS, 1.15, 1.1, (VIEW,)),
            )
        case "ranges", Shape(in_flight=8):
            return (
                Bar(f"{what}, ranges a second", VIEW, RATE_EACH, 1.15, 1.15, (OBSTORE,), at_least=True),
                Bar(f"{what}, CPU", VIEW, CPU_EACH, 0.6, 0.6, (OBSTORE,)),
            )
        case "tls", Shape(in_flight=8):
            return (
                Bar(f"{what} over TLS, wall", VIEW, WALL_SECONDS, 1.0, 0.95, (OBSTORE,)),
                Bar(f"{what} over TLS, CPU", VIEW, CPU_EACH, 1.0, 0.9, (OBSTORE,)),
            )
        case "stack", _:
            beyond = partial(Bar, number=CPU_EACH, bar=15e-6, aim=15e-6, bases=(BY_HAND,), unit=1e-6, is_beyond=True)
            return (
                Bar(f"{shape}, the transport over the bare protocol, CPU", BY_HAND, CPU_EACH, 2.0, 2.0, (FLOOR,)),
                *(beyond(f"{shape}, {name} beyond the transport, CPU µs", name) for name in STACK_NAMES[3:]),
            )
    return ()


def range_job(kind: str, shape: Shape, names: Sequence[str], conditions: Conditions) -> Job:
    """Ranges of one size, a number of them at once."""
    more = [f"{VIEW}, recorded"] if kind == "ranges" and shape == SMALL else []
    contestants = in_threads([*names, *more], lambda name: works.ranges(name, shape), shape.in_flight)
    if kind == "ranges" and shape == LARGE:
        size: dict[str, Any] = {
            "max_concurrency": 8,
            "multipart_threshold": shape.range_bytes,
            "multipart_chunksize": shape.range_bytes,
        }
        contestants["s3transfer, 8 threads"] = works.whole("s3transfer", in_flight=8, **size)
    return Job(
        name=f"{kind}-{shape.slug}",
        title=f"{shape} in flight",
        conditions=conditions,
        size_bytes=256 * MIB,
        quick_size_bytes=64 * MIB,
        contestants=contestants,
        columns=RANGE_COLUMNS,
        bars=range_bars(kind, shape),
        quick="all" if kind == "ranges" and shape == SMALL else "few",
    )


def reset_job(shape: Shape) -> Job:
    """Bodies that break off in the middle: by turns a reset and a plain close."""
    cut = partial(works.ranges, VIEW, shape, verify=works.every_page)
    clean = f"{VIEW}, clean"
    least = {1: 0.95, 5: 0.80}
    return Job(
        name=f"resets-{shape.slug}",
        title=f"{shape} in flight, 1 % and 5 % of the bodies cut in the middle",
        conditions=LOOPBACK,
        size_bytes=256 * MIB,
        quick_size_bytes=64 * MIB,
        links=[f"cut-{percent}/{key}" for percent in (0, *least) for key in (OBJECT, CHECK_OBJECT)],
        contestants={
            clean: cut(prefix="cut-0/"),
            **{f"{VIEW}, {percent} % cut": cut(prefix=f"cut-{percent}/") for percent in least},
        },
        columns=(
            *(RATE_RATIO, *costs_of("range", digits=1), CPU_PER_GIB, GETS, CUT),
            *(Column(name="requests_per_item", heading="GETs/range", digits=3), SENT_OVER_READ, SHARE, PEAK),
        ),
        bars=[
            Bar(
                f"{shape}, {percent} % cut, throughput",
                f"{VIEW}, {percent} % cut",
                "bytes_per_second",
                limit,
                limit,
                (clean,),
                at_least=True,
            )
            for percent, limit in least.items()
        ],
    )


LATE = Job(
    name="late-responses",
    title="4,000 reads of 64 KiB, 16 at once, of which one in a hundred is answered ten times as late",
    conditions=Conditions(first_byte_seconds=0.020),
    size_bytes=64 * MIB,
    quick_size_bytes=16 * MIB,
    links=[f"late-1/{OBJECT}", f"late-1/{CHECK_OBJECT}"],
    contestants={
        name: works.late_ranges(name, replace(MEDIUM, requests=4_000), "late-1/")
        for name in (OBSTORE, VIEW, f"{VIEW}, HedgeLayer", "opendal")
    },
    quick="all",
    columns=(
        *(WALL, CPU),
        *(
            Column(name=name, heading=heading, unit=1e-3, digits=0, ratio=True)
            for name, heading in (("p50", "half ms"), ("p99", "99 % ms"), ("p999", "99.9 % ms"))
        ),
        *(GETS, Column(name="requests_per_item", heading="GETs/read", digits=3), SENT),
    ),
)


def miss_job(at_once: int, conditions: Conditions) -> Job:
    """4 KiB all over an object of 4 GiB, through one reader; no read is near another."""
    away = f"{conditions.first_byte_seconds * 1e3:g} ms away"
    shape = Shape(4096, at_once, 100 * at_once if conditions.first_byte_seconds else 8000, works.STRIDE_BYTES)
    names = (
        *("obstore get_range", "obstore get_range, threads", f"{READER}, random", f"{READER}, adaptive", READ),
        *("opendal", MOUNTPOINT, "aiobotocore", "s3fs", "pyarrow"),
    )
    bases = ("obstore get_range", f"obstore get_range, {at_once} threads")
    return Job(
        name=f"misses-{at_once}{'-far' if conditions.first_byte_seconds else ''}",
        title=f"4 KiB at {shape.requests} places of 4 GiB through one reader, {at_once} in flight",
        conditions=conditions,
        size_bytes=4 << 30,
        quick_size_bytes=1 << 30,
        write=works.write_pages,
        contestants=in_threads(names, lambda name: works.ranges(name, shape), at_once),
        columns=(*costs_of("read"), GETS, SENT, SHARE),
        bars=[
            Bar(f"4 KiB miss of read_at, {policy}, {at_once} in flight, {away}, CPU", ours, CPU_EACH, 0.8, 0.5, bases)
            for policy, ours in (("random", f"{READER}, random"), ("adaptive", f"{READER}, adaptive"))
        ],
        quick="none" if conditions.first_byte_seconds else "few",
    )


SIMULATOR = Job(
    name="simulator",
    title="requests of the bare protocol against delay + size / bandwidth",
    conditions=AT_A_DISTANCE,
    size_bytes=128 * MIB,
    contestants={
        f"{FLOOR}, {shape}": works.ranges(FLOOR, shape)
        for shape in (
            *(Shape(4 << 10, 1, 200), Shape(MIB, 1, 200), Shape(8 * MIB, 1, 80), Shape(8 * MIB, 9, 720)),
            Shape(8 * MIB, 16, 1280),
        )
    },
    columns=(
        Column(name="nominal_seconds", heading="nominal ms", unit=1e-3, digits=1),
        Column(name="request_seconds", heading="measured ms", unit=1e-3, digits=1),
        *(RATE, IN_FLIGHT, GETS, SERVER_CPU),
    ),
)

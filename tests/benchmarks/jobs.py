"""The table of jobs, in the order they run: contestants, columns, and what is wanted of us."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tests.benchmarks import cold_process, tables, works
from tests.benchmarks.clients import in_threads
from tests.benchmarks.content import MIB
from tests.benchmarks.job import (
    CHECK_OBJECT,
    CPU,
    CPU_EACH,
    CPU_PER_GIB,
    GETS,
    IN_FLIGHT,
    MEMORY,
    OBJECT,
    OTHERS,
    PEAK,
    PEAK_RATIO,
    RATE,
    RATE_EACH,
    RATE_RATIO,
    REQUESTS_EACH,
    SENT,
    SENT_OVER_READ,
    SHARE,
    WALL,
    WALL_SECONDS,
    Bar,
    Column,
    Contestant,
    Job,
    costs_of,
)
from tests.benchmarks.moto_store import moto_store
from tests.benchmarks.near_tables import near_jobs
from tests.benchmarks.processes import FILES, cold, rclone_store, sharing, sync
from tests.benchmarks.simulator import AT_A_DISTANCE, LOOPBACK, LOOPBACK_TLS, Conditions
from tests.benchmarks.spark import SPARK_JOBS
from tests.benchmarks.spark_memory import SPARK_MEMORY
from tests.benchmarks.works import Shape

VIEW, READ, READER = "aioprefetch view", "aioprefetch read", "aioprefetch reader"
OBSTORE, MOUNTPOINT = "obstore", "s3torchconnectorclient"

# --- ranges -----------------------------------------------------------------------------------------------------------

LARGE, MEDIUM, SMALL = Shape(8 * MIB, 8, 256), Shape(64 << 10, 16, 8_000), Shape(4 << 10, 16, 16_000)


def range_bars(kind: str, shape: Shape) -> Sequence[Bar]:
    """What is wanted of ranges."""
    what = f"{shape}, view"
    match kind, shape:
        case "ranges", Shape(range_bytes=4096):
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
    return ()


def range_job(kind: str, shape: Shape, *more: str, conditions: Conditions = LOOPBACK, loop: str = "asyncio") -> Job:
    """Ranges of one size, a number of them at once."""
    return Job(
        name=f"{kind}-{shape.slug}",
        title=f"{shape} in flight{'' if loop == 'asyncio' else f', on {loop}'}",
        conditions=conditions,
        loop=loop,
        size_bytes=256 * MIB,
        quick_size_bytes=64 * MIB,
        contestants=in_threads((OBSTORE, VIEW, *more), lambda name: works.ranges(name, shape), shape.in_flight),
        columns=(*costs_of("range", digits=1), RATE, CPU_PER_GIB, WALL, GETS, SENT, SHARE, PEAK_RATIO),
        bars=range_bars(kind, shape),
        quick="all" if kind == "ranges" and shape == SMALL else "few",
    )


# The first of them can be given a certificate to trust without a setting of the whole process.
RANGE_PEERS = ("aiohttp", "aiobotocore", "opendal", "s3fs", "boto3", "pyarrow")
OURS = (READ, "aioprefetch read_into")
RANGES = (
    range_job("ranges", LARGE, *OURS, *RANGE_PEERS),
    range_job("ranges", MEDIUM, *OURS, *RANGE_PEERS),
    range_job("ranges", SMALL, *OURS, *RANGE_PEERS, f"{VIEW}, recorded"),
    range_job("tls", LARGE, *RANGE_PEERS[:2], conditions=LOOPBACK_TLS),
    range_job("tls", SMALL, *RANGE_PEERS[:2], conditions=LOOPBACK_TLS),
    range_job("uvloop", LARGE, *RANGE_PEERS[:2], loop="uvloop"),
    range_job("uvloop", SMALL, *RANGE_PEERS[:2], loop="uvloop"),
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
    columns=(
        *(WALL, CPU),
        *(
            Column(name=name, heading=heading, unit=1e-3, digits=0, ratio=True)
            for name, heading in (("p50", "half ms"), ("p99", "99 % ms"), ("p999", "99.9 % ms"))
        ),
        *(GETS, REQUESTS_EACH, SENT),
    ),
    quick="all",
)


def miss_job(suffix: str, conditions: Conditions, count: int) -> Job:
    """4 KiB all over an object of 4 GiB, through one reader; no read is near another."""
    at_once = 16
    names = (
        *("obstore get_range", "obstore get_range, threads", f"{READER}, random", f"{READER}, adaptive", READ),
        *("opendal", MOUNTPOINT, "aiobotocore", "s3fs", "pyarrow"),
    )
    shape = Shape(4096, at_once, count, works.STRIDE_BYTES)
    bases = ("obstore get_range", f"obstore get_range, {at_once} threads")
    return Job(
        name=f"misses-{at_once}{suffix}",
        title=f"4 KiB at {count} places of 4 GiB through one reader, {at_once} in flight",
        conditions=conditions,
        size_bytes=4 << 30,
        quick_size_bytes=1 << 30,
        write=works.write_pages,
        contestants=in_threads(names, lambda name: works.ranges(name, shape), at_once),
        columns=(*costs_of("read"), GETS, SENT, SHARE),
        bars=[
            Bar(f"4 KiB miss of read_at{suffix}, {policy}, CPU", f"{READER}, {policy}", CPU_EACH, 0.8, 0.5, bases)
            for policy in ("random", "adaptive")
        ],
        quick="none" if suffix else "few",
    )


# --- objects ----------------------------------------------------------------------------------------------------------


def new_objects(suffix: str, conditions: Conditions, *more: str) -> Job:
    """Objects of 2 KiB, each read for the first time. Peers whose fastest way is a range are given the size."""
    by_range = ("obstore get_range", "obstore get_range, threads", MOUNTPOINT)
    names = ("obstore get_range", READ, READER, "obstore get_range, threads", "obstore get", "aiobotocore", *more)
    obstore = ("obstore get_range", "obstore get_range, 32 threads")  # The faster one depends on the machine.
    what = f"new 2 KiB object{suffix}"
    bars = [
        Bar(f"{what}, op.read, CPU", READ, CPU_EACH, 0.45, 0.3, obstore),
        Bar(f"{what}, op.reader, CPU", READER, CPU_EACH, 1.0, 0.7, obstore),
    ]
    if MOUNTPOINT in more:
        bars.append(Bar(f"{what}, op.read, CPU", READ, CPU_EACH, 0.9, 0.6, (f"{MOUNTPOINT}, 32 threads",)))
    return Job(
        name=f"new-objects{suffix}",
        title="new objects of 2 KiB, 32 at once",
        conditions=conditions,
        size_bytes=works.SMALL_BYTES,
        copies=4064,
        contestants=in_threads(names, lambda name: works.objects(name, 4000, 32, by_range=name in by_range), 32),
        columns=(*costs_of("object"), REQUESTS_EACH, SHARE),
        bars=bars,
        quick="few" if suffix else "all",
    )


FAR = partial(Job, conditions=AT_A_DISTANCE)
OBJECTS = (
    FAR(
        name="whole-object",
        title="all of an object of 256 MiB",
        size_bytes=256 * MIB,
        quick_size_bytes=48 * MIB,
        checked_apart=True,
        contestants={
            **{name: works.whole(name) for name in ("obstore get", READ, VIEW, MOUNTPOINT, "opendal", "aiobotocore")},
            **{name: works.whole(name) for name in ("s3fs", "pyarrow")},
            READER: works.whole(READER, "read_all"),
        },
        columns=(WALL, CPU, PEAK_RATIO, GETS, OTHERS, SENT, IN_FLIGHT),
        bars=(
            Bar("whole 256 MiB, op.read, wall", READ, WALL_SECONDS, 0.25, 0.18, ("obstore get",)),
            Bar("whole 256 MiB, op.read, wall", READ, WALL_SECONDS, 1.15, 1.0, (MOUNTPOINT,)),
            Bar("whole 256 MiB, op.read, peak RSS", READ, "memory_peak_bytes", 1.2, 1.05, ("obstore get",)),
        ),
        quick="all",
    ),
    FAR(
        name="sequential",
        title="sequential reads of 1 MiB, from opening to the last byte",
        size_bytes=256 * MIB,
        quick_size_bytes=24 * MIB,
        checked_apart=True,
        contestants={
            name: works.stream(name)
            for name in (
                *(READER, "aioprefetch stream", "obstore reader", "obstore stream", MOUNTPOINT),
                *("s3fs readahead", "pyarrow input file", "boto3 body"),
            )
        },
        columns=(RATE, WALL, CPU, GETS, OTHERS, SENT, IN_FLIGHT, MEMORY),
        bars=[
            Bar("stream of 256 MiB in 1 MiB reads, speed", READER, "bytes_per_second", bar, aim, (base,), at_least=True)
            # The stream of obstore is several times as fast as its reader.
            for base, bar, aim in (("obstore stream", 5.0, 6.0), (MOUNTPOINT, 0.95, 1.05))
        ],
        quick="all",
    ),
    FAR(
        name="long-stream",
        title="4 GiB in reads of 1 MiB, from opening to the last byte",
        size_bytes=4 << 30,
        quick_size_bytes=128 * MIB,
        write=works.write_pages,
        contestants={name: works.stream(name, has_holes=True) for name in (READER, MOUNTPOINT, "obstore stream")},
        columns=(RATE, WALL, CPU, MEMORY, GETS, SENT, IN_FLIGHT),
        bars=(
            Bar(
                *("stream of 4 GiB in 1 MiB reads, RSS above start, MiB", READER, "memory_growth_bytes"),
                *(128 * MIB, 96 * MIB),
                unit=MIB,
                digits=0,
            ),
        ),
    ),
)
PRESSED = (10, 100, 1000)


def pressure_bars() -> Iterator[Bar]:
    """What is wanted for each number of readers, and of many beside ten."""
    for count in PRESSED:
        what, ours = f"{count} readers × 24 MiB in 256 MiB", f"aioprefetch, {count} readers"
        yield Bar(f"{what}, sent ÷ read", ours, "sent_over_read", 1.15, 1.02)
        yield Bar(f"{what}, slowest ÷ median", ours, "slowest_over_median", 3.0, 1.5)
        if count > PRESSED[0]:
            base = (f"aioprefetch, {PRESSED[0]} readers",)
            yield Bar(f"{what}, speed beside 10", ours, "bytes_per_second", 0.6, 0.9, base, at_least=True)


PRESSURE = Job(
    name="pressure",
    title="readers of 24 MiB each in reads of 256 KiB, under a budget of 256 MiB; without one for obstore",
    conditions=LOOPBACK,
    size_bytes=24 * MIB,
    quick_size_bytes=MIB,
    copies=PRESSED[-1],
    contestants={
        **{
            f"aioprefetch, {count} readers": works.readers(READER, count, 256 << 10, memory_bytes=256 * MIB)
            for count in PRESSED
        },
        **{f"obstore, {count} readers": works.readers("obstore reader", count, 256 << 10) for count in PRESSED},
    },
    columns=(
        *(RATE_RATIO, SENT_OVER_READ, Column(name="slowest_over_median", heading="slowest ÷ median"), CPU_PER_GIB),
        *(WALL, GETS, SENT, IN_FLIGHT, PEAK_RATIO),
    ),
    bars=tuple(pressure_bars()),
)

# --- tables -----------------------------------------------------------------------------------------------------------

READ_TABLE, FILESYSTEM, LAKE = "aioprefetch parquet.read_table", "aioprefetch arrow.filesystem", "pyarrow S3FileSystem"
POLARS = "polars scan_parquet"


def parquet_job(
    name: str,
    title: str,
    names: Sequence[str],
    *bars: Bar,
    columns: tables.Columns = tables.THREE,
    check: tables.Check = tables.check_doubles,
    **more: Any,
) -> Job:
    """A Parquet file of 12 columns of doubles, all of it or some columns."""
    given: dict[str, Any] = {"size_bytes": 244_000_000, "quick_size_bytes": 48_000_000, "write": tables.write_doubles}
    return FAR(
        name=f"parquet-{name}",
        title=title,
        contestants={one: tables.table(tables.PARQUET_READERS[one], columns, check=check) for one in names},
        columns=(WALL, CPU, GETS, OTHERS, SENT, SENT_OVER_READ, IN_FLIGHT, PEAK_RATIO, MEMORY),
        bars=bars,
        **(given | more),
    )


def beside(what: str, limit: float, *bases: str) -> Bar:
    """What is wanted of ``read_table``: such a share of the time of others."""
    return Bar(f"{what}, read_table, wall", READ_TABLE, WALL_SECONDS, limit, limit, bases)


SCANS = (READ_TABLE, "aioprefetch parquet.scan", "aioprefetch scan.to_reader", POLARS, LAKE)
COLUMNS = parquet_job(
    *("columns", "3 of the 12 columns of a Parquet file of 244 MB", SCANS),
    *(beside("3 of 12 columns of 244 MB", 1.0, POLARS), beside("3 of 12 columns of 244 MB", 0.2, LAKE)),
    quick="all",
)
PARQUET = (
    parquet_job(
        *("demo", "the demo's Parquet file, 50 row groups × 12 columns in 800 KiB", SCANS),
        *(beside("the demo's file", 0.6, POLARS), beside("the demo's file", 0.35, LAKE)),
        columns=None,
        check=tables.check_demo,
        write=tables.write_demo,
        size_bytes=800_000,
        quick_size_bytes=80_000,
        quick="all",
    ),
    parquet_job(
        *("whole", "a Parquet file of 244 MB, whole", SCANS),
        beside("all of 244 MB", 1.0, POLARS),
        columns=None,
    ),
    COLUMNS,
    *near_jobs(COLUMNS, READ_TABLE, LAKE),
    parquet_job(
        *("groups", "3 of the 12 columns, side by side, of a Parquet file of 60 MB in 50 row groups", SCANS),
        beside("3 columns side by side, 50 row groups", 1.0, POLARS),
        Bar("3 columns side by side, 50 row groups, sent ÷ values", READ_TABLE, "sent_over_read", 1.05, 1.05),
        columns=tables.NAMES[:3],
        size_bytes=60_000_000,
        quick_size_bytes=24_000_000,
        write=partial(tables.write_doubles, row_groups=50),
    ),
    parquet_job(
        *("open", "3 of the 12 columns of 244 MB, of a file"),
        ("pyarrow.fs", "aioprefetch sync.open", "s3fs"),
        Bar("read_table of a file, wall", "aioprefetch sync.open", WALL_SECONDS, 1.2, 0.5, ("pyarrow.fs",)),
        Bar("read_table of a file, sent ÷ values", "aioprefetch sync.open", "sent_over_read", 1.1, 1.02),
    ),
    # Arrow reads a file of Python under one lock; its own file system needs none, and our scan knows the columns.
    parquet_job(
        *("arrow", "3 of the 12 columns of 244 MB, by a path", (READ_TABLE, FILESYSTEM, "pyarrow.fs", "s3fs")),
        Bar("read_table by path, wall", FILESYSTEM, WALL_SECONDS, 1.3, 1, (READ_TABLE,)),
    ),
)


def lance_job(question: str, version: str, conditions: Conditions = AT_A_DISTANCE, *, bar: float | None = None) -> Job:
    """A question to a Lance file of a version."""
    title = f"{tables.QUESTIONS[question].title} of a Lance file of version {version}, 131,072 rows of 4 columns"
    near = "-loopback" if conditions is LOOPBACK else ""
    what = f"Lance {version}, {question}{near}, read_table"
    number = "cpu_seconds" if near else WALL_SECONDS
    return Job(
        name=f"lance-{question}-{version}{near}",
        title=title,
        conditions=conditions,
        size_bytes=72_800_000,
        quick_size_bytes=9_100_000,
        write=partial(tables.write_lance, version=version),
        contestants={name: tables.lance(name, question, version) for name in tables.LANCE_READERS},
        columns=(WALL, CPU, GETS, OTHERS, SENT, IN_FLIGHT, PEAK_RATIO, MEMORY),
        bars=[Bar(what, tables.LANCE_TABLE, number, bar, bar, tables.PYLANCE)] if bar else (),
        quick="none" if near else "all",
    )


LANCE = (
    lance_job("scan", "2.0", bar=0.8),
    lance_job("range", "2.0", bar=0.8),
    lance_job("scan", "2.2"),
    lance_job("scan", "2.2", LOOPBACK),
)

# --- one machine ------------------------------------------------------------------------------------------------------


SHARERS = {"the next process": 1, "eight at once": 8}
LOCAL_STORES = ("obstore LocalStore, blocking", "obstore LocalStore")
LOCAL = (
    Job(
        name="local-pages",
        title="4 KiB all over a file of 256 MiB in the page cache, 16 at once",
        store=works.local_store,
        size_bytes=256 * MIB,
        contestants={
            name: works.ranges(name, SMALL)
            for name in (*LOCAL_STORES, READ, f"{READER}, random", f"{READER}, adaptive")
        },
        columns=costs_of("read", digits=1),
        bars=(
            Bar("local 4 KiB, op.read, CPU", READ, CPU_EACH, 0.6, 0.6, LOCAL_STORES[:1]),
            Bar("local 4 KiB, read_at miss, CPU", f"{READER}, random", CPU_EACH, 0.6, 0.2, LOCAL_STORES),
            Bar("local 4 KiB, read_at miss, CPU", f"{READER}, adaptive", CPU_EACH, 0.8, 0.8, LOCAL_STORES[:1]),
        ),
    ),
    Job(
        name="local-whole",
        title="a file of 256 MiB in the page cache, at once and in reads of 1 MiB",
        store=works.local_store,
        size_bytes=256 * MIB,
        contestants={
            "open().read()": works.whole("open().read()"),
            "aioprefetch read, whole": works.whole(READ),
            "aioprefetch reader, 1 MiB reads": works.stream(READER),
            "obstore LocalStore get": works.whole("obstore LocalStore"),
        },
        columns=(WALL, CPU, PEAK_RATIO),
        bars=[
            Bar(f"local 256 MiB, {name}, wall", f"aioprefetch {name}", WALL_SECONDS, bar, aim, ("open().read()",))
            for name, bar, aim in (("read, whole", 1.6, 1.2), ("reader, 1 MiB reads", 2.5, 1.5))
        ],
    ),
    Job(
        name="cache-hit",
        title="objects of 2 KiB that a cache in files holds, 32 at once, beside the store",
        conditions=LOOPBACK,
        size_bytes=works.SMALL_BYTES,
        copies=1064,
        contestants={
            **in_threads(
                ("obstore get_range", "obstore get_range, threads"),
                lambda name: works.objects(name, 1000, 32, by_range=True),
                32,
            ),
            "aioprefetch, LruCacheLayer": works.cache_hits,
        },
        columns=(*costs_of("object"), GETS),
        bars=(
            Bar(
                *("hit of 2 KiB in LruCacheLayer over file://, CPU", "aioprefetch, LruCacheLayer", CPU_EACH, 0.6, 0.3),
                ("obstore get_range", "obstore get_range, 32 threads"),
            ),
        ),
    ),
    Job(
        name="tiers",
        title="sequential reads of 1 MiB by where the bytes are",
        conditions=LOOPBACK,
        size_bytes=256 * MIB,
        quick_size_bytes=128 * MIB,
        checked_apart=True,
        contestants={
            "obstore stream": works.stream("obstore stream"),
            "aioprefetch, disk": works.from_disk,
            "aioprefetch, network": works.stream(READER),
        },
        columns=(RATE, WALL, CPU, GETS),
        bars=(Bar("disk tier, CPU", "aioprefetch, disk", "cpu_seconds", 0.7, 0.7, ("obstore stream",)),),
    ),
    Job(
        name="shared-cache",
        title="one object through one cache on disk: the next process, and eight at once over an empty one",
        conditions=LOOPBACK,
        size_bytes=256 * MIB,
        quick_size_bytes=32 * MIB,
        contestants={
            f"aioprefetch, {what}, {scheme}": sharing(count, scheme, is_filled=count == 1)
            for scheme in ("s3", "http")
            for what, count in SHARERS.items()
        },
        columns=(SENT_OVER_READ, WALL, GETS, SENT),
        bars=[
            Bar(f"256 MiB, {what}, {scheme}, sent ÷ size", f"aioprefetch, {what}, {scheme}", "sent_over_read", bar, bar)
            for scheme in ("s3", "http")
            for what, bar in (("the next process", 0.02), ("eight at once", 1.1))
        ],
    ),
    Job(
        name="hits",
        title="4 KiB reads of bytes in memory, one after another",
        store=lambda: contextlib.nullcontext("memory://bench"),
        contestants={
            name: works.hits(name)
            for name in (READER, "aioprefetch sync file", READ, "fsspec readahead cache", OBSTORE, "opendal")
        },
        columns=costs_of("read", digits=2),
        quick="all",
    ),
)


def moto_job(name: str, title: str, contestants: dict[str, Contestant], bar: Bar, one: str = "request") -> Job:
    """Requests that carry little, on moto's server: what counts is the CPU of the client."""
    return Job(
        name=name,
        title=f"{title}, on moto's server",
        store=partial(moto_store, works.KEYS),
        contestants=contestants,
        columns=costs_of(one, digits=1)[:1],
        bars=(bar,),
    )


PUT, SIZE = (lambda name, verb=verb: works.requests(name, verb, 400, 16) for verb in ("put", "size"))
SMALL_REQUESTS = (
    moto_job(
        *("stat", "size and ETag of an object, 16 at once"),
        in_threads((OBSTORE, "aioprefetch", "opendal", MOUNTPOINT), SIZE, 16),
        Bar("stat on moto's server, CPU", "aioprefetch", CPU_EACH, 0.8, 0.5, (OBSTORE,)),
    ),
    moto_job(
        *("put", "objects of 2 KiB written, 16 at once"),
        in_threads((OBSTORE, "aioprefetch", "opendal"), PUT, 16),
        Bar("PUT of 2 KiB on moto's server, CPU", "aioprefetch", CPU_EACH, 0.8, 0.5, (OBSTORE,)),
    ),
    moto_job(
        *("list", "8,000 keys listed"),
        {name: works.listings(name) for name in (OBSTORE, "aioprefetch", MOUNTPOINT)},
        Bar("LIST of 8,000 keys, CPU a key", "aioprefetch", CPU_EACH, 1.25, 1, (OBSTORE,)),
        "key",
    ),
)
IN_ENVIRONMENT = "aioprefetch read, keys in the environment"


def cold_job(name: str, conditions: Conditions, *ours: str) -> Job:
    """What a cold process spends until it has the first bytes of an object; ``ours`` are those that have a bar."""
    everyone = {one: cold(one) for one in cold_process.CONTESTANTS}
    everyone[IN_ENVIRONMENT] = cold(READ, keys_in_environment=True)
    # Those that can be given a certificate to trust without a setting of the whole process.
    names = (READ, "aioprefetch file", IN_ENVIRONMENT, OBSTORE) if conditions.tls else tuple(everyone)
    return Job(
        name=name,
        title="a cold process: from its start to the first 4 KiB of an object",
        conditions=conditions,
        size_bytes=MIB,
        contestants={one: everyone[one] for one in names},
        columns=(
            Column(name="wall_seconds", heading="to first byte ms", unit=1e-3, digits=0, ratio=True),
            Column(name="import_seconds", heading="import ms", unit=1e-3, digits=0),
            Column(name="first_byte_seconds", heading="after import ms", unit=1e-3, digits=0),
            *(CPU, GETS, OTHERS),
            Column(name="imported_bytes", heading="RSS after import MiB", unit=MIB, digits=0),
            Column(name="peak_bytes", heading="peak RSS MiB", unit=MIB, digits=0),
        ),
        bars=[Bar(f"{name}, wall", one, WALL_SECONDS, 2.5, 1.8, (OBSTORE,)) for one in ours],
        quick="few" if ours else "all",
    )


def sync_job(way: str, of_rclone: float) -> Job:
    """2,000 files of 4 kB to a store or from it, by the command lines of ours, rclone and s5cmd."""
    what, ours = f"sync of {FILES} small files, {way}", "aioprefetch sync"
    return Job(
        name=f"sync-{way}",
        title=f"sync of {FILES:,} files of 4 kB, {way}",
        store=rclone_store,
        contestants={name: sync(name, is_up=way == "up") for name in ("rclone sync", ours, "s5cmd sync")},
        columns=(WALL, CPU),
        rounds_max=3,
        bars=(
            Bar(what, ours, WALL_SECONDS, of_rclone, of_rclone / 2, ("rclone sync",)),
            Bar(what, ours, WALL_SECONDS, 0.8, 0.5, ("s5cmd sync",)),
        ),
    )


# Not one of the table: an object of the user's, by `make bench URL=s3://bucket/key`.
YOURS = Job(
    name="yours",
    title="the first 64 MiB of your object, and 64 ranges of 64 KiB, 8 at once",
    contestants=in_threads(
        (OBSTORE, READ, "s3fs", "pyarrow", "boto3"),
        lambda name: works.of_the_user(name, Shape(64 << 10, 8, 64), 64 * MIB),
        8,
    ),
    columns=(
        Column(name="in_order_per_second", heading="in order MiB/s", unit=MIB, digits=1, ratio=True),
        *(*costs_of("range"), PEAK),
    ),
)
ROWS = (
    *(*RANGES, LATE),
    *(new_objects("", LOOPBACK, MOUNTPOINT, "opendal", "s3fs", "boto3"), new_objects("-tls", LOOPBACK_TLS)),
    *(miss_job("", LOOPBACK, 8000), miss_job("-far", AT_A_DISTANCE, 1600)),
    *(*OBJECTS, PRESSURE, *PARQUET, *LANCE, *LOCAL, *SMALL_REQUESTS),
    cold_job("import-first-byte", AT_A_DISTANCE),
    cold_job("first-byte", LOOPBACK, READ, IN_ENVIRONMENT, "aioprefetch file"),
    cold_job("first-byte-tls", LOOPBACK_TLS, READ, IN_ENVIRONMENT),
    *(sync_job("up", 1.0), sync_job("down", 1.2)),
    *(*SPARK_JOBS, SPARK_MEMORY),
)
JOBS: dict[str, Job] = {job.name: job for job in ROWS}

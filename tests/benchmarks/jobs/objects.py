"""Jobs of objects: new ones, whole ones, streams, many readers, and readers that open and close."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.benchmarks import works
from tests.benchmarks.clients import BLOCK_BYTES, CACHES
from tests.benchmarks.content import MIB
from tests.benchmarks.job import (
    CONNECTION_COUNT,
    CPU,
    CPU_PER_GIB,
    CUT,
    GETS,
    IN_FLIGHT,
    KIB_SENT,
    MEMORY,
    OTHERS,
    PEAK_RATIO,
    RATE,
    RATE_RATIO,
    SENT,
    SENT_OVER_READ,
    SHARE,
    WALL,
    Bar,
    Column,
    Job,
    costs_of,
)
from tests.benchmarks.jobs.words import (
    CPU_EACH,
    FLOOR,
    MOUNTPOINT,
    READ,
    READER,
    VIEW,
    WALL_SECONDS,
    in_threads,
)
from tests.benchmarks.simulator import AT_A_DISTANCE, LOOPBACK, Conditions


def new_objects(suffix: str, conditions: Conditions) -> Job:
    """Objects of 2 KiB, each read for the first time. Peers whose fastest way is a range are given the size."""
    by_range = ("obstore get_range", "obstore get_range, threads", MOUNTPOINT)
    names: tuple[str, ...] = (
        "obstore get_range",
        READ,
        READER,
        "obstore get_range, threads",
        "obstore get",
        "aiobotocore",
    )
    names = names if suffix else (*names, MOUNTPOINT, "opendal", "s3fs", "boto3")
    obstore = ("obstore get_range", "obstore get_range, 32 threads")  # The faster one depends on the machine.
    what = f"new 2 KiB object{' over TLS' if suffix else ''}"
    bars = [
        Bar(f"{what}, op.read, CPU", READ, CPU_EACH, 0.45, 0.3, obstore),
        Bar(f"{what}, op.reader, CPU", READER, CPU_EACH, 1.0, 0.7, obstore),
    ]
    if not suffix:
        bars.append(Bar(f"{what}, op.read, CPU", READ, CPU_EACH, 0.9, 0.6, (f"{MOUNTPOINT}, 32 threads",)))
    return Job(
        name=f"new-objects{suffix}",
        title="new objects of 2 KiB, 32 at once",
        conditions=conditions,
        size_bytes=works.SMALL_BYTES,
        copies=4064,
        contestants=in_threads(names, lambda name: works.objects(name, 4000, 32, by_range=name in by_range), 32),
        columns=(
            *(*costs_of("object"), Column(name="requests_per_item", heading="requests/object")),
            *(CONNECTION_COUNT, SHARE),
        ),
        bars=bars,
        quick="few" if suffix else "all",
    )


WHOLE_NAMES = ("obstore get", READ, VIEW, READER, MOUNTPOINT, f"{MOUNTPOINT}, in parts", "opendal", "aiobotocore")
WHOLE_CALLS = {READER: "read_all", f"{MOUNTPOINT}, in parts": "parts"}
WHOLE = Job(
    name="whole-object",
    title="all of an object of 256 MiB",
    conditions=AT_A_DISTANCE,
    size_bytes=256 * MIB,
    quick_size_bytes=48 * MIB,
    checked_apart=True,
    contestants={
        name: works.whole(name, WHOLE_CALLS.get(name, "read"))
        for name in (*WHOLE_NAMES, "s3fs", "s3transfer", "pyarrow")
    },
    columns=(WALL, CPU, PEAK_RATIO, GETS, OTHERS, SENT, IN_FLIGHT),
    bars=(
        Bar("whole 256 MiB, op.read, wall", READ, WALL_SECONDS, 0.25, 0.18, ("obstore get",)),
        Bar("whole 256 MiB, op.read, wall", READ, WALL_SECONDS, 1.15, 1.0, (MOUNTPOINT, f"{MOUNTPOINT}, in parts")),
        Bar("whole 256 MiB, op.read, peak RSS", READ, "memory_peak_bytes", 1.2, 1.05, ("obstore get",)),
    ),
    quick="all",
)
STREAM_PEERS = (
    *("obstore reader", "obstore stream", MOUNTPOINT, "opendal", *(f"s3fs {cache}" for cache in CACHES), "smart_open"),
    *("pyarrow input stream", "pyarrow input file", "boto3 body", "aiobotocore body", "aiohttp body"),
)
SEQUENTIAL = Job(
    name="sequential",
    title="sequential reads of 1 MiB, from opening to the last byte",
    conditions=AT_A_DISTANCE,
    size_bytes=256 * MIB,
    quick_size_bytes=24 * MIB,
    checked_apart=True,
    contestants={
        name: works.stream(name)
        for name in (
            *(READER, "aioprefetch stream", *STREAM_PEERS),
            *("opendal 8 × 8 MiB (tuned)", "s3fs adaptive 8 (tuned)"),
        )
    },
    columns=(RATE, WALL, CPU, GETS, OTHERS, SENT, IN_FLIGHT, MEMORY),
    bars=[
        Bar("stream of 256 MiB in 1 MiB reads, speed", READER, "bytes_per_second", bar, aim, (base,), at_least=True)
        # The stream of obstore is several times as fast as its reader.
        for base, bar, aim in (("obstore stream", 5.0, 6.0), (MOUNTPOINT, 0.95, 1.05))
    ],
    quick="all",
)
STREAM = Job(
    name="stream",
    title="sequential reads of 1 MiB without delay",
    conditions=LOOPBACK,
    size_bytes=512 * MIB,
    quick_size_bytes=64 * MIB,
    checked_apart=True,
    contestants={
        name: works.stream(name, range_bytes=BLOCK_BYTES if name.startswith(FLOOR) else MIB)
        for name in (
            *("obstore stream", "aioprefetch stream", READER, f"{FLOOR}, GETs of 8 MiB", "obstore reader", "opendal"),
            *("s3fs none", "s3fs readahead", "pyarrow input stream", "boto3 body", "aiohttp body"),
        )
    },
    columns=(RATE_RATIO, replace(CPU_PER_GIB, ratio=True), WALL, GETS, OTHERS, SENT, SHARE, PEAK_RATIO),
)
LONG_STREAM = Job(
    name="long-stream",
    title="4 GiB in reads of 1 MiB, from opening to the last byte",
    conditions=AT_A_DISTANCE,
    size_bytes=4 << 30,
    quick_size_bytes=128 * MIB,
    write=works.write_pages,
    contestants={
        name: works.stream(name, has_holes=True)
        for name in (READER, "aioprefetch stream", MOUNTPOINT, "obstore stream")
    },
    columns=(RATE, WALL, CPU, MEMORY, GETS, SENT, IN_FLIGHT),
    bars=(
        Bar(
            *("stream of 4 GiB in 1 MiB reads, RSS above start, MiB", READER, "memory_growth_bytes"),
            *(128 * MIB, 96 * MIB),
            unit=MIB,
            digits=0,
        ),
    ),
)
BUDGET_BYTES = 256 * MIB


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
            f"aioprefetch, {count} readers": works.readers(READER, count, 256 << 10, memory_bytes=BUDGET_BYTES)
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
# How a reader is opened. Without options its first request is a block, or what there is.
OPENINGS: Mapping[str, Mapping[str, Any]] = {
    "adaptive": {},
    "random": {"policy": "random"},
    "split": {"split": (0, 500)},
}


def connection_job(suffix: str, what: str, size_bytes: int, conditions: Conditions, ways: Sequence[str]) -> Job:
    """200 readers that open, read a little and close. ``ways`` are those of which a connection a task is wanted.

    Of a large object only a part of the first answer of an adaptive reader is wanted: it is broken off where the rest
    would take longer than a new connection.
    """
    names = {
        (way, tasks): f"aioprefetch {way}, {'in turn' if tasks == 1 else f'{tasks} tasks'}"
        for way in OPENINGS
        for tasks in (1, 16)
    }
    return Job(
        name=f"connections-{suffix}",
        title=f"200 readers that open, read 500 bytes of {what} and close",
        conditions=conditions,
        size_bytes=size_bytes,
        copies=200,
        rounds_max=1,  # what counts is the same in each
        contestants={name: works.openings(200, tasks, 500, OPENINGS[way]) for (way, tasks), name in names.items()},
        columns=(CONNECTION_COUNT, GETS, replace(CUT, heading="broken off"), KIB_SENT, WALL, CPU),
        bars=[
            Bar(
                f"200 readers of {what}, {way}, {tasks} at once, connections",
                name,
                "connections",
                tasks,
                tasks,
                digits=0,
            )
            for (way, tasks), name in names.items()
            if way in ways
        ],
    )

"""Jobs of tables: Parquet, polars, Lance, and how many rows a batch has."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.benchmarks.job import (
    BATCHES,
    CPU,
    GETS,
    IN_FLIGHT,
    MEMORY,
    OTHERS,
    PEAK_RATIO,
    SENT,
    SENT_OVER_READ,
    WALL,
    Bar,
    Column,
    Job,
)
from tests.benchmarks.jobs.words import (
    WALL_SECONDS,
)
from tests.benchmarks.simulator import AT_A_DISTANCE, LOOPBACK
from tests.benchmarks.tables import (
    ARROW,
    LANCE_READERS,
    LANCE_TABLE,
    NAMES,
    PARQUET_READERS,
    POLARS,
    PYARROW,
    PYLANCE,
    QUESTIONS,
    READ_TABLE,
    THREE,
    VERSIONS,
    Columns,
    Polars,
    check_demo,
    check_head,
    lance,
    our_frame,
    polars_head,
    summed,
    table,
    write_demo,
    write_doubles,
    write_lance,
)

LARGE_FILE, QUICK_FILE = 244_000_000, 48_000_000
SCANS = (READ_TABLE, "aioprefetch parquet.scan", "aioprefetch scan.to_reader")
TABLE_COLUMNS = (WALL, CPU, GETS, OTHERS, SENT, SENT_OVER_READ, IN_FLIGHT, PEAK_RATIO, MEMORY)
FILE_PEERS = (
    *(PYARROW, *POLARS, "s3fs fsspec.parquet", "s3fs readahead", "s3fs background", "s3fs adaptive", "obstore fsspec"),
    *("opendal", "smart_open"),
)
DEMO_NAMES = (
    *("aioprefetch, row groups", f"{PYARROW}, row groups", "s3fs readahead, row groups", "s3fs adaptive, row groups"),
    *("obstore fsspec, row groups", "opendal, row groups", "smart_open, row groups", "aioprefetch", PYARROW, *POLARS),
)


def parquet_job(
    name: str, title: str, names: Sequence[str], columns: Columns = None, *, bars: Sequence[Bar] = (), **more: Any
) -> Job:
    """A Parquet file of 12 columns of doubles, all of it or some columns."""
    return Job(
        name=name,
        title=title,
        conditions=AT_A_DISTANCE,
        size_bytes=more.pop("size_bytes", LARGE_FILE),
        quick_size_bytes=more.pop("quick_size_bytes", QUICK_FILE),
        write=more.pop("write", write_doubles),
        contestants={one: table(PARQUET_READERS[one], columns, **more) for one in names},
        columns=TABLE_COLUMNS,
        bars=bars,
    )


def beside(what: str, *, of_polars: float, of_pyarrow: float | None = None) -> list[Bar]:
    """What is wanted of ``read_table``: such a share of the time of polars, and of pyarrow."""
    limits = {"polars": (of_polars, POLARS), "pyarrow": (of_pyarrow, (PYARROW,))}
    return [
        Bar(f"{what}, read_table beside {peer}, wall", READ_TABLE, WALL_SECONDS, limit, limit, bases)
        for peer, (limit, bases) in limits.items()
        if limit is not None
    ]


def near(job: Job) -> Job:
    """The same at a store without delay and limit: what is left is the CPU of the client."""
    bars = [replace(bar, shape=f"{bar.shape}, without delay", bar=1.2, aim=1.2) for bar in job.bars]
    return replace(job, name=f"{job.name}-loopback", conditions=LOOPBACK, rounds_max=None, quick="none", bars=bars)


PARQUET = (
    replace(
        parquet_job(
            "parquet-demo",
            "the demo's Parquet file, 50 row groups × 12 columns in 800 KiB",
            (*SCANS, *DEMO_NAMES),
            bars=beside("the demo's file", of_polars=0.6, of_pyarrow=0.35),
            size_bytes=800_000,
            quick_size_bytes=80_000,
            write=write_demo,
            check=check_demo,
        ),
        rounds_max=3,  # six times 600 requests of 30 ms in each
        quick="all",
    ),
    parquet_job(
        "parquet-whole",
        "a Parquet file of 244 MB, whole",
        (*SCANS, "aioprefetch sync.open, policy parquet", "aioprefetch", *FILE_PEERS),
        bars=beside("all of 244 MB", of_polars=1.0),
    ),
    replace(
        parquet_job(
            "parquet-columns",
            "3 of the 12 columns of a Parquet file of 244 MB",
            (*SCANS, "aioprefetch", *FILE_PEERS),
            THREE,
            bars=beside("3 of 12 columns of 244 MB", of_polars=1.0, of_pyarrow=0.2),
        ),
        quick="all",
    ),
)
GROUPS_NAMES = (*SCANS, *POLARS, PYARROW, "s3fs fsspec.parquet")
ROW_GROUPS = [
    parquet_job(
        f"parquet-groups{suffix}",
        f"3 of the 12 columns, {where}, of a Parquet file of 60 MB in 50 row groups",
        GROUPS_NAMES,
        columns,
        bars=(
            *beside(f"3 columns {where}, 50 row groups", of_polars=1.0),
            Bar(f"3 columns {where}, 50 row groups, sent ÷ values", READ_TABLE, "sent_over_read", 1.05, 1.05),
        ),
        size_bytes=60_000_000,
        quick_size_bytes=24_000_000,
        write=partial(write_doubles, row_groups=50),
    )
    for suffix, where, columns in (
        ("", "side by side", NAMES[:3]),
        ("-apart", "apart", (NAMES[0], NAMES[4], NAMES[8])),
    )
]
OPEN = "aioprefetch sync.open"
OPEN_JOBS = [
    parquet_job(
        f"parquet-open{suffix}",
        title,
        ("pyarrow.fs", OPEN, f"{OPEN}, policy parquet", "s3fs", "s3fs fsspec.parquet", "obstore fsspec"),
        columns,
        bars=(
            Bar(f"read_table, {title}, wall", OPEN, WALL_SECONDS, 1.2, 0.5, ("pyarrow.fs",)),
            Bar(f"read_table, {title}, sent ÷ values", OPEN, "sent_over_read", 1.1, 1.02),
        ),
    )
    for suffix, title, columns in (
        ("", "3 of the 12 columns of 244 MB", THREE),
        ("-whole", "all of 244 MB", None),
    )
]
# Arrow reads a file of Python under one lock. Its own file system needs none, and our scan knows the columns before.
ARROW_JOBS = [
    replace(
        parquet_job(
            f"parquet-arrow{suffix}",
            title,
            (READ_TABLE, ARROW, f"{ARROW}, dataset", "pyarrow.fs", "s3fs"),
            columns,
            bars=(
                Bar(f"read_table by path, {title}, wall", ARROW, WALL_SECONDS, 1.3, 1, (READ_TABLE,)),
                Bar(f"dataset, {title}, wall", f"{ARROW}, dataset", WALL_SECONDS, 1.3, 1, (READ_TABLE,)),
                Bar(f"read_table by path, {title}, requests", ARROW, "runs", 1, 0.9, ("pyarrow.fs",)),
            ),
        ),
        columns=(*TABLE_COLUMNS, Column(name="runs", heading="runs", digits=0)),
    )
    for suffix, title, columns in (("", "3 of the 12 columns of 244 MB", THREE), ("-whole", "all of 244 MB", None))
]
FRAME = "aioprefetch polars.scan_parquet"


def frame_bars(what: str, **limits: tuple[float, float]) -> list[Bar]:
    """What is wanted of our frame, as a share of what polars takes."""
    return [
        Bar(f"{what}, {number}, beside polars", FRAME, number, *limit, (POLARS[0],)) for number, limit in limits.items()
    ]


POLARS_JOBS = (
    replace(
        parquet_job(
            "polars-head",
            "the first 10 rows of 3 of the 12 columns, of a Parquet file of 244 MB, by a lazy frame",
            (),
            bars=frame_bars("first rows", wall_seconds=(1.0, 0.8), gets=(1.0, 1.0)),
        ),
        contestants={
            FRAME: table((PARQUET_READERS[FRAME][0], our_frame), THREE, check=check_head, rows=10),
            POLARS[0]: table((Polars, polars_head), THREE, check=check_head, rows=10),
        },
    ),
    parquet_job(
        "polars-columns",
        "3 of the 12 columns, by a lazy frame",
        (FRAME, POLARS[0]),
        THREE,
        bars=frame_bars("columns", wall_seconds=(1.2, 1.0), gets=(1.0, 1.0)),
    ),
    parquet_job(
        "polars-whole",
        "all of it, by a lazy frame",
        (FRAME, POLARS[0], "polars read_parquet, file of aioprefetch"),
        bars=frame_bars("whole", wall_seconds=(1.2, 1.0)),
    ),
)


def lance_job(question: str, version: str) -> Job:
    """A question to a Lance file of a version, at a distance."""
    title = QUESTIONS[question].title
    wanted = version == "2.0" and question in ("scan", "range")
    bar = Bar(
        f"Lance {version}, {title}, read_table beside pylance, wall", LANCE_TABLE, WALL_SECONDS, 0.8, 0.8, PYLANCE
    )
    return Job(
        name=f"lance-{question}-{version}",
        title=f"{title} of a Lance file of version {version}, 131,072 rows of 4 columns",
        conditions=AT_A_DISTANCE,
        size_bytes=72_800_000,
        quick_size_bytes=9_100_000,
        write=partial(write_lance, version=version),
        contestants={name: lance(name, QUESTIONS[question], version) for name in LANCE_READERS},
        columns=(WALL, CPU, GETS, OTHERS, SENT, IN_FLIGHT, PEAK_RATIO, MEMORY),
        bars=(bar,) if wanted else (),
        quick="all",
    )


LANCE = [job for question in QUESTIONS for version in VERSIONS for job in (lance_job(question, version),)]


def batch_job(format_name: str, title: str, size_bytes: int, write: Callable[[Path, int], None]) -> Job:
    """How many rows of a batch are best, for a consumer that touches every value once."""
    return Job(
        name=f"batch-rows-{format_name}",
        title=f"a scan whose consumer sums every column, {title}",
        conditions=LOOPBACK,
        size_bytes=size_bytes,
        quick_size_bytes=12_000_000,
        write=write,
        contestants={
            f"aioprefetch, {rows:,} rows a batch": summed(format_name, rows)
            for rows in (1024 << power for power in range(0, 11, 2))
        },
        columns=(WALL, CPU, GETS, SENT, PEAK_RATIO, BATCHES),
    )

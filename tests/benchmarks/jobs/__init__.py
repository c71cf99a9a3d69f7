"""The table of jobs, in the order they run, in the groups in which they are shown."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tests.benchmarks.content import MIB
from tests.benchmarks.job import (
    Job,
)
from tests.benchmarks.jobs.machine import (
    DISK,
    HITS,
    IN_ENVIRONMENT,
    LOCAL_JOBS,
    SMALL_REQUESTS,
    ZIP,
    cold_job,
    sync_job,
)
from tests.benchmarks.jobs.objects import (
    LONG_STREAM,
    OPENINGS,
    PRESSURE,
    SEQUENTIAL,
    STREAM,
    WHOLE,
    connection_job,
    new_objects,
)
from tests.benchmarks.jobs.ranges import (
    LARGE,
    LATE,
    MEDIUM,
    RANGE_NAMES,
    SHAPES,
    SIMULATOR,
    SMALL,
    STACK_NAMES,
    TLS_NAMES,
    miss_job,
    range_job,
    reset_job,
)
from tests.benchmarks.jobs.scans import (
    ARROW_JOBS,
    LANCE,
    LARGE_FILE,
    OPEN_JOBS,
    PARQUET,
    POLARS_JOBS,
    ROW_GROUPS,
    batch_job,
    near,
)
from tests.benchmarks.jobs.words import (
    READ,
)
from tests.benchmarks.simulator import AT_A_DISTANCE, LOOPBACK, LOOPBACK_TLS
from tests.benchmarks.spark import SPARK_JOBS
from tests.benchmarks.spark_memory import SPARK_MEMORY
from tests.benchmarks.tables import (
    NARROW_ROW_BYTES,
    write_doubles,
    write_lance,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Jobs that are shown together: a heading of the page, a plot."""

    name: str
    title: str
    jobs: Sequence[Job]


ROWS: Sequence[tuple[Any, ...]] = (
    (
        *("ranges", "Ranges without delay"),
        *(range_job("ranges", shape, RANGE_NAMES, LOOPBACK) for shape in SHAPES),
        STREAM,
    ),
    (
        *("stack", "What each part of us adds"),
        *(range_job("stack", shape, STACK_NAMES, LOOPBACK) for shape in (SMALL, LARGE)),
    ),
    ("tls", "The same over TLS", *(range_job("tls", shape, TLS_NAMES, LOOPBACK_TLS) for shape in (LARGE, SMALL))),
    # A number of requests that 1 % of is a whole number, and so long that pauses between attempts matter little.
    ("resets", "Bodies that break off", *map(reset_job, (replace(LARGE, requests=400), MEDIUM))),
    ("late", "Responses that are late", LATE),
    (
        *("new-objects", "Objects read for the first time"),
        *(new_objects("", LOOPBACK), new_objects("-tls", LOOPBACK_TLS)),
    ),
    (
        *("misses", "Misses through one reader"),
        *(miss_job(at_once, where) for where in (LOOPBACK, AT_A_DISTANCE) for at_once in (16, 64)),
    ),
    ("whole", "Whole objects", WHOLE),
    ("streams", "Streams from a store at a distance", SEQUENTIAL, LONG_STREAM),
    (
        *("parquet", "Parquet files"),
        *(job for far in PARQUET for job in (far, near(far))),
        *(*ROW_GROUPS, *OPEN_JOBS, *ARROW_JOBS),
    ),
    ("polars", "Queries of polars", *POLARS_JOBS),
    ("archives", "Archives", ZIP),
    ("lance", "Lance files", *(job for far in LANCE for job in (far, near(far)))),
    ("hits", "Bytes that are in memory", HITS),
    ("pressure", "Many readers under one budget", PRESSURE),
    (
        *("connections", "Readers that open and close"),
        connection_job("small", "2 MiB", 2 * MIB, LOOPBACK, tuple(OPENINGS)),
        connection_job("small-tls", "2 MiB over TLS", 2 * MIB, LOOPBACK_TLS, tuple(OPENINGS)),
        connection_job("large", "64 MiB", 64 * MIB, LOOPBACK, ("random", "split")),
    ),
    (
        *("batch-rows", "How many rows a batch has"),
        batch_job("parquet", "of a Parquet file of 244 MB, 96 bytes a row", LARGE_FILE, write_doubles),
        batch_job(
            *("lance", f"of a Lance file of 160 MB, about {NARROW_ROW_BYTES} bytes a row", 160_000_000),
            partial(write_lance, is_narrow=True),
        ),
    ),
    ("small-requests", "Requests that carry little", *SMALL_REQUESTS),
    (
        *("cold", "A cold process"),
        cold_job("import-first-byte", AT_A_DISTANCE, "at a distance"),
        cold_job("first-byte", LOOPBACK, "plain", READ, IN_ENVIRONMENT, "aioprefetch file"),
        cold_job("first-byte-tls", LOOPBACK_TLS, "TLS", READ, IN_ENVIRONMENT),
    ),
    ("disk", "The disk tier", *DISK),
    ("local", "Files of the machine", *LOCAL_JOBS),
    ("sync", "Many small files", sync_job("up", 1.0), sync_job("down", 1.2)),
    ("spark", "Batches and streams on Spark", *SPARK_JOBS, SPARK_MEMORY),
    ("simulator", "How right the simulator is", SIMULATOR),
)
GROUPS = tuple(Group(name=name, title=title, jobs=jobs) for name, title, *jobs in ROWS)
JOBS: dict[str, Job] = {job.name: job for group in GROUPS for job in group.jobs}


class UnknownJob(Exception):
    """There is no such job; the text says which there are."""


def chosen(names: Sequence[str]) -> list[Job]:
    """The jobs of these names, all without any, in their order. Each may be a list with commas.

    A name is that of a group, of a job, or the beginning of some jobs' names; the first that there is. UnknownJob: no
    job has such a name.
    """
    wanted = [name for listed in names for name in listed.split(",") if name]
    groups = {group.name: [job.name for job in group.jobs] for group in GROUPS}
    found: set[str] = set()
    for name in wanted:
        matching = groups.get(name) or [job for job in JOBS if job == name]
        matching = matching or [job for job in JOBS if job.startswith(name)]
        if not matching:
            raise UnknownJob(f"there is no job {name!r}; there are: {', '.join(JOBS)}; groups: {', '.join(groups)}")
        found.update(matching)
    return [job for name, job in JOBS.items() if name in found or not wanted]

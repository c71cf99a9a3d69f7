"""All jobs, in the order they run, in the groups in which they are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.benchmarks.batch_rows import BATCH_ROWS_JOBS
from tests.benchmarks.checksums import CHECKSUMS
from tests.benchmarks.connections import CONNECTION_JOBS
from tests.benchmarks.disk_tier import TIERS
from tests.benchmarks.first_byte import COLD_JOBS
from tests.benchmarks.growth import GROWTH
from tests.benchmarks.hit_latency import HITS
from tests.benchmarks.job import Job
from tests.benchmarks.lance_jobs import LANCE_JOBS
from tests.benchmarks.late_responses import LATE_RESPONSES
from tests.benchmarks.local_files import LOCAL_JOBS
from tests.benchmarks.long_streams import LONG_STREAM
from tests.benchmarks.many_readers import MEMORY_JOBS, PRESSURE
from tests.benchmarks.misses import MISS_JOBS
from tests.benchmarks.new_objects import NEW_OBJECT_JOBS
from tests.benchmarks.parquet_arrow import ARROW_JOBS
from tests.benchmarks.parquet_groups import ROW_GROUP_JOBS
from tests.benchmarks.parquet_jobs import PARQUET
from tests.benchmarks.parquet_open import OPEN_JOBS
from tests.benchmarks.polars_jobs import POLARS_JOBS
from tests.benchmarks.random_reads import RANDOM
from tests.benchmarks.range_jobs import RANGE_JOBS, TLS_JOBS
from tests.benchmarks.ranges import RANGES
from tests.benchmarks.reset_jobs import RESET_JOBS
from tests.benchmarks.scan_memory import SCAN_MEMORY_JOBS
from tests.benchmarks.simulator_check import SIMULATOR, SIMULATOR_SPEED
from tests.benchmarks.small_files import SMALL_FILE_JOBS
from tests.benchmarks.small_requests import SMALL_REQUEST_JOBS
from tests.benchmarks.spark_batches import SPARK_BATCHES
from tests.benchmarks.spark_memory import SPARK_MEMORY
from tests.benchmarks.spark_objects import SPARK_OBJECTS
from tests.benchmarks.spark_tables import TABLE_JOBS
from tests.benchmarks.stack_jobs import STACK_JOBS
from tests.benchmarks.streaming import RAMP, SEQUENTIAL, STREAM
from tests.benchmarks.whole_objects import WHOLE_OBJECT
from tests.benchmarks.zip_members import ZIP_MEMBERS


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Jobs that are shown together: a heading of the page, a plot."""

    name: str
    title: str
    jobs: Sequence[Job]


GROUPS = (
    Group(name="ranges", title="Ranges without delay", jobs=(*RANGE_JOBS, STREAM, RANGES)),
    Group(name="stack", title="What each part of us adds", jobs=STACK_JOBS),
    Group(name="tls", title="The same over TLS", jobs=TLS_JOBS),
    Group(name="resets", title="Bodies that break off", jobs=RESET_JOBS),
    Group(name="late", title="Responses that are late", jobs=(LATE_RESPONSES,)),
    Group(name="new-objects", title="Objects read for the first time", jobs=NEW_OBJECT_JOBS),
    Group(name="misses", title="Misses through one reader", jobs=MISS_JOBS),
    Group(name="whole", title="Whole objects", jobs=(WHOLE_OBJECT,)),
    Group(name="streams", title="Streams from a store at a distance", jobs=(SEQUENTIAL, RAMP, LONG_STREAM)),
    Group(name="random", title="Random reads", jobs=(RANDOM,)),
    Group(name="parquet", title="Parquet files", jobs=(*PARQUET, *ROW_GROUP_JOBS, *OPEN_JOBS, *ARROW_JOBS)),
    Group(name="polars", title="Queries of polars", jobs=POLARS_JOBS),
    Group(name="archives", title="Archives", jobs=(ZIP_MEMBERS,)),
    Group(name="lance", title="Lance files", jobs=LANCE_JOBS),
    Group(name="hits", title="Bytes that are in memory", jobs=(HITS,)),
    Group(name="memory", title="Memory under many readers", jobs=MEMORY_JOBS),
    Group(name="pressure", title="Many readers under one budget", jobs=(PRESSURE,)),
    Group(name="connections", title="Readers that open and close", jobs=CONNECTION_JOBS),
    Group(name="scan-memory", title="Memory of scans with a slow consumer", jobs=SCAN_MEMORY_JOBS),
    Group(name="batch-rows", title="How many rows a batch has", jobs=BATCH_ROWS_JOBS),
    Group(name="small-requests", title="Requests that carry little", jobs=SMALL_REQUEST_JOBS),
    Group(name="cold", title="A cold process", jobs=COLD_JOBS),
    Group(name="growth", title="How windows grow", jobs=GROWTH),
    Group(name="disk", title="The disk tier", jobs=(TIERS, CHECKSUMS)),
    Group(name="local", title="Files of the machine", jobs=LOCAL_JOBS),
    Group(name="sync", title="Many small files", jobs=SMALL_FILE_JOBS),
    Group(
        name="spark",
        title="Batches and streams on Spark",
        jobs=(*TABLE_JOBS, SPARK_MEMORY, SPARK_OBJECTS, SPARK_BATCHES),
    ),
    Group(name="simulator", title="How right the simulator is", jobs=(SIMULATOR, SIMULATOR_SPEED)),
)
JOBS: dict[str, Job] = {job.name: job for group in GROUPS for job in group.jobs}


class UnknownJob(Exception):
    """There is no such job; the text says which there are."""


def chosen(names: Sequence[str]) -> list[Job]:
    """The jobs of these names, all without any, in their order. Each may be a list with commas.

    A name is that of a group, of a job, or the beginning of some jobs' names; the first that there is.

    Raises:
        UnknownJob: no job has such a name.
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

"""All jobs, in the order they run."""

from __future__ import annotations

from tests.benchmarks.checksums import CHECKSUMS
from tests.benchmarks.disk_tier import TIERS
from tests.benchmarks.growth import GROWTH
from tests.benchmarks.hit_latency import HITS
from tests.benchmarks.job import Job
from tests.benchmarks.many_readers import READERS_JOB
from tests.benchmarks.random_reads import RANDOM
from tests.benchmarks.ranges import RANGES
from tests.benchmarks.simulator_check import SIMULATOR, SIMULATOR_SPEED
from tests.benchmarks.streaming import RAMP, SEQUENTIAL

ALL = (
    HITS,
    SIMULATOR,
    SIMULATOR_SPEED,
    SEQUENTIAL,
    RAMP,
    RANGES,
    RANDOM,
    *GROWTH,
    READERS_JOB,
    TIERS,
    CHECKSUMS,
)
JOBS: dict[str, Job] = {job.name: job for job in ALL}

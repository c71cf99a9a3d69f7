"""A benchmark: contestants doing the same work, each in a process of its own, one after another, round after round."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.benchmarks.access_log import Request, Traffic
from tests.benchmarks.simulator import BUCKET, Conditions, Pacing, Simulator

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

ROOT = Path(__file__).parents[2]
OBJECT = "object"
# Small enough to cost nothing: a contestant reads it before its clock starts, so that connections, credentials and
# imports are not what is measured.
WARM_OBJECT = "warm"
WARM_BYTES = 64 << 10
SAMPLE_SECONDS_MAX = 600

# What a sample says: numbers to compare, and lists (a time line, marks) that ``Job.derive`` makes numbers of.
Sample = dict[str, Any]
Numbers = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a contestant is told: where the object is, how long, and whether each byte shall be compared.

    ``scratch`` is an empty directory for this sample alone. It goes away when the contestant's process has ended, so
    that a thread which still writes there disturbs nobody.
    """

    endpoint_url: str = ""
    key: str = OBJECT
    size_bytes: int = 0
    every_byte: bool = False
    bucket: str = BUCKET
    scratch: str = ""


Contestant = Callable[[Target], Coroutine[Any, Any, Sample]]
# First ``b""`` when all is set up and warm, then the object in order.
Chunks = Callable[[Target], "AsyncGenerator[ReadableBuffer]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of the table: ``name`` in the numbers, divided by ``unit``; ``ratio`` adds one against the base."""

    name: str
    heading: str
    unit: float = 1.0
    digits: int = 2
    ratio: bool = False


WALL = Column(name="wall_seconds", heading="wall s", ratio=True)
CPU = Column(name="cpu_seconds", heading="CPU s", ratio=True)
GETS = Column(name="gets", heading="GETs", digits=0)
OTHERS = Column(name="others", heading="HEADs", digits=0)
SENT = Column(name="sent_bytes", heading="MiB sent", unit=1 << 20, digits=1)
IN_FLIGHT = Column(name="in_flight", heading="in flight", digits=0)
MEMORY = Column(name="memory_growth_bytes", heading="RSS + MiB", unit=1 << 20, digits=0)


def nothing_derived(sample: Sample, requests: Sequence[Request], conditions: Conditions) -> Numbers:
    """What a job without further numbers derives."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is measured. Without ``conditions`` there is no store.

    ``derive`` makes numbers of a sample and of the requests that the server saw meanwhile; ``remark`` says in a
    sentence or two what the medians mean. The first contestant is the base of the ratios.
    """

    name: str
    title: str
    contestants: Mapping[str, Contestant]
    columns: Sequence[Column]
    conditions: Conditions | None = None
    size_bytes: int = 0
    quick_size_bytes: int = 0
    copies: int = 0
    derive: Callable[[Sample, Sequence[Request], Conditions], Numbers] = nothing_derived
    remark: Callable[[Mapping[str, Numbers]], str] = lambda medians: ""


@dataclass(slots=True, kw_only=True)
class Result:
    """The samples of a job, by contestant and round, and what went wrong."""

    job: Job
    quick: bool
    samples: dict[str, list[Numbers]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def median(self, name: str, number: str) -> float:
        """The median over the rounds."""
        return statistics.median(one[number] for one in self.samples[name])

    def medians(self) -> dict[str, Numbers]:
        """Every number of every contestant."""
        return {name: {key: self.median(name, key) for key in rounds[0]} for name, rounds in self.samples.items()}

    def ratio(self, name: str, number: str) -> float | None:
        """The median over the rounds of what this contestant needed against the base; None without a base."""
        base = self.samples.get(next(iter(self.job.contestants)), [])
        pairs = zip(self.samples[name], base, strict=False)
        ratios = [one[number] / other[number] for one, other in pairs if other[number]]
        return statistics.median(ratios) if ratios else None


class ContestantFailed(Exception):
    """A contestant's process ended badly; the text is the last line it wrote."""


def run_job(job: Job, *, rounds: int, quick: bool, pacing: Pacing, only: Sequence[str] = ()) -> Result:
    """Run every contestant in each round. One that fails is left out from then on, and named in the result.

    Every byte is compared in an unmeasured round before the others, where it costs nothing; with ``quick``, which is
    about whether all works, in the measured ones.
    """
    result = Result(job=job, quick=quick)
    names = [name for name in job.contestants if not only or any(part in name for part in only)]
    if job.conditions is None:
        _run_rounds(result, names, rounds, lambda name: sample(job.name, name, Target()))
        return result
    size_bytes = job.quick_size_bytes if quick else job.size_bytes
    with Simulator(job.conditions, pacing=pacing) as simulator:
        simulator.put(OBJECT, size_bytes)
        simulator.put(WARM_OBJECT, WARM_BYTES)
        for number in range(job.copies):
            simulator.link(f"{OBJECT}-{number}", OBJECT)
        target = Target(endpoint_url=simulator.endpoint_url, size_bytes=size_bytes, every_byte=quick)
        if not quick:
            _check_bytes(result, names, simulator, replace(target, every_byte=True))
        _run_rounds(result, names, rounds, lambda name: _sample_with_traffic(job, name, simulator, target))
    return result


def _check_bytes(result: Result, names: Sequence[str], simulator: Simulator, target: Target) -> None:
    """Let every contestant go once, unmeasured, with every byte compared. It warms the machine's caches as well."""
    for name in names:
        try:
            _sample_with_traffic(result.job, name, simulator, target)
        except ContestantFailed as failure:
            result.failures[name] = str(failure)


def _run_rounds(result: Result, names: Sequence[str], rounds: int, one_sample: Callable[[str], Numbers]) -> None:
    for _ in range(rounds):
        for name in names:
            if name in result.failures:
                continue
            try:
                result.samples.setdefault(name, []).append(one_sample(name))
            except ContestantFailed as failure:
                result.failures[name] = str(failure)
                result.samples.pop(name, None)


def _sample_with_traffic(job: Job, name: str, simulator: Simulator, target: Target) -> Numbers:
    assert job.conditions is not None
    simulator.take_requests()
    server_seconds = simulator.cpu_seconds()
    found = sample(job.name, name, target)
    server_seconds = simulator.cpu_seconds() - server_seconds
    requests = [one for one in simulator.take_requests() if not one.uri.endswith(f"/{WARM_OBJECT}")]
    traffic = asdict(Traffic.of(requests))
    derived = job.derive(found, requests, job.conditions)
    numbers = {key: value for key, value in found.items() if isinstance(value, (int, float))}
    return {**numbers, **traffic, "server_cpu_seconds": server_seconds, **derived}


def sample(job: str, name: str, target: Target) -> Sample:
    """Run a contestant once, in a process of its own."""
    # Settings of whoever runs this must not reach the contestants.
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "AIOPREFETCH_"))}
    with tempfile.TemporaryDirectory(prefix="aioprefetch-bench-") as scratch:
        told = json.dumps(asdict(replace(target, scratch=scratch)))
        command = [sys.executable, "-m", "tests.benchmarks.sample", job, name, told]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SAMPLE_SECONDS_MAX, check=False, cwd=ROOT, env=environment
        )
    if done.returncode != 0:
        raise ContestantFailed((done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1])
    found: Sample = json.loads(done.stdout.splitlines()[-1])
    return found

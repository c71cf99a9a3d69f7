"""A benchmark: contestants doing the same work, each in a process of its own, one after another, round after round."""

from __future__ import annotations

import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.benchmarks.access_log import Request, Traffic
from tests.benchmarks.bars import Bar
from tests.benchmarks.content import write_object
from tests.benchmarks.simulator import BUCKET, Conditions, Pacing, Simulator

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

ROOT = Path(__file__).parents[2]
OBJECT = "object"
# Small enough to cost nothing: a contestant reads it before its clock starts, so that connections, credentials and
# imports are not what is measured.
WARM_OBJECT = "warm"
WARM_BYTES = 64 << 10
# The object again under another key: what is read of it to compare every byte is not counted as traffic.
CHECK_OBJECT = "check"
UNCOUNTED = (f"/{WARM_OBJECT}", f"/{CHECK_OBJECT}")
SAMPLE_SECONDS_MAX = 600

# What a sample says: numbers to compare, and lists (a time line, marks) that ``Job.derive`` makes numbers of.
Sample = dict[str, Any]
Numbers = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a contestant is given: where the object is, how long, and whether each byte shall be compared.

    ``scratch`` is an empty directory for this sample alone. It goes away when the contestant's process has ended, so
    that a thread which still writes there disturbs no other. ``ca_bundle`` is the certificate to trust, empty without
    TLS; ``server_pid`` the process that serves; ``prefix`` is before every key.
    """

    endpoint_url: str = ""
    key: str = OBJECT
    size_bytes: int = 0
    every_byte: bool = False
    bucket: str = BUCKET
    scratch: str = ""
    ca_bundle: str = ""
    server_pid: int = 0
    prefix: str = ""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A further ratio: ``number`` of each contestant over that of ``base``, round by round; or the difference."""

    number: str
    base: str
    is_difference: bool = False

    @property
    def name(self) -> str:
        """What it is called in the numbers."""
        return f"{self.number} {'beyond' if self.is_difference else 'over'} {self.base}"

    def column(self, heading: str, *, unit: float = 1.0, digits: int = 2) -> Column:
        """Its column."""
        return Column(name=self.name, heading=heading, unit=unit, digits=digits)

    def of(self, one: Numbers, base: Numbers) -> float | None:
        """The figure for a sample; None where there is none, or where it would be divided by nothing."""
        number = self.number
        if number not in one or number not in base:
            return None
        if self.is_difference:
            return one[number] - base[number]
        return one[number] / base[number] if base[number] else None


# The columns that several jobs have.
WALL = Column(name="wall_seconds", heading="wall s", ratio=True)
CPU = Column(name="cpu_seconds", heading="CPU s", ratio=True)
GETS = Column(name="gets", heading="GETs", digits=0)
OTHERS = Column(name="others", heading="HEADs", digits=0)
SENT = Column(name="sent_bytes", heading="MiB sent", unit=1 << 20, digits=1)
KIB_SENT = Column(name="sent_bytes", heading="KiB sent", unit=1 << 10, digits=0)
CONNECTION_COUNT = Column(name="connections", heading="connections", digits=0)
IN_FLIGHT = Column(name="in_flight", heading="in flight", digits=0)
RATE = Column(name="bytes_per_second", heading="MiB/s", unit=1 << 20, digits=0)
RATE_RATIO = replace(RATE, ratio=True)
CPU_PER_GIB = Column(name="cpu_per_gib", heading="CPU s/GiB")
SHARE = Column(name="server_share", heading="nginx busy")
SERVER_CPU = Column(name="server_cpu_seconds", heading="nginx CPU s")
PEAK = Column(name="memory_peak_bytes", heading="peak MiB", unit=1 << 20, digits=0)
PEAK_RATIO = replace(PEAK, ratio=True)
MEMORY = Column(name="memory_growth_bytes", heading="RSS + MiB", unit=1 << 20, digits=0)


def costs_of(one: str, *, digits: int = 0) -> tuple[Column, Column]:
    """The columns of a job of many equal requests: the CPU of each, and how many there are in a second."""
    return (
        Column(name="cpu_per_request", heading=f"CPU µs/{one}", unit=1e-6, digits=digits, ratio=True),
        Column(name="requests_per_second", heading=f"{one}s/s", digits=0, ratio=True),
    )


def nothing_derived(sample: Sample, requests: Sequence[Request], conditions: Conditions) -> Numbers:
    """What a job without further numbers derives."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is measured. Without ``conditions`` there is no simulator; ``store`` then gives the endpoint of another one.

    ``write`` makes the object in a file, of about the size passed. ``derive`` makes numbers of a sample and of the
    requests that the server saw meanwhile; ``remark`` says in a sentence or two what the medians mean. The first
    contestant is the base of the ratios, and ``comparisons`` are ratios against others. ``quick_contestants`` are those
    that go in quick mode, None for all; without any the job is left out there. ``links`` are further keys of the
    object. ``rounds_max`` bounds the rounds of a job that takes long. A job whose contestants ``compare_all`` in each
    sample needs no unmeasured round for that. ``bars`` say what is wanted of us. ``elsewhere`` has contestants that are
    those of another tree: its root, and their name there.
    """

    name: str
    title: str
    contestants: Mapping[str, Contestant]
    columns: Sequence[Column]
    conditions: Conditions | None = None
    store: Callable[[], AbstractContextManager[str]] | None = None
    size_bytes: int = 0
    quick_size_bytes: int = 0
    copies: int = 0
    write: Callable[[Path, int], None] = write_object
    rounds_max: int | None = None
    compare_all: bool = False
    links: Sequence[str] = ()
    comparisons: Sequence[Comparison] = ()
    bars: Sequence[Bar] = ()
    elsewhere: Mapping[str, tuple[Path, str]] = field(default_factory=dict)
    quick_contestants: Sequence[str] | None = None
    derive: Callable[[Sample, Sequence[Request], Conditions], Numbers] = nothing_derived
    remark: Callable[[Mapping[str, Numbers]], str] = lambda medians: ""


def with_bars_only(job: Job) -> Job:
    """The job with the contestants that its bars name, and no others."""
    named = {name for bar in job.bars for name in (bar.ours, *bar.bases)}
    return replace(job, contestants={name: run for name, run in job.contestants.items() if name in named})


@dataclass(slots=True, kw_only=True)
class Result:
    """The samples of a job, by contestant and round, and what went wrong."""

    job: Job
    quick: bool
    samples: dict[str, list[Numbers]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def median(self, name: str, number: str) -> float:
        """The median over the rounds; not a number where none has it, as a ratio whose base did not run."""
        found = [one[number] for one in self.samples[name] if number in one]
        return statistics.median(found) if found else math.nan

    def medians(self) -> dict[str, Numbers]:
        """Every number of every contestant."""
        return {name: {key: self.median(name, key) for key in rounds[0]} for name, rounds in self.samples.items()}

    def compare(self) -> None:
        """Add the comparisons of the job to the samples, round by round."""
        for comparison in self.job.comparisons:
            base = self.samples.get(comparison.base, [])
            for rounds in self.samples.values():
                for one, other in zip(rounds, base, strict=False):
                    found = comparison.of(one, other)
                    if found is not None:
                        one[comparison.name] = found

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
    rounds = min(rounds, job.rounds_max or rounds)
    names = [name for name in job.contestants if not only or any(part in name for part in only)]
    if quick and job.quick_contestants is not None and not only:
        names = [name for name in names if name in job.quick_contestants]
    if job.conditions is None:
        with job.store() if job.store else contextlib.nullcontext("") as endpoint_url:
            target = Target(endpoint_url=endpoint_url, every_byte=quick)
            _run_rounds(result, names, rounds, lambda name: sample_of(job, name, target))
        result.compare()
        return result
    size_bytes = job.quick_size_bytes if quick else job.size_bytes
    with Simulator(job.conditions, pacing=pacing) as simulator:
        size_bytes = simulator.put(OBJECT, size_bytes, write=job.write)
        simulator.put(WARM_OBJECT, WARM_BYTES)
        for number in range(job.copies):
            simulator.link(f"{OBJECT}-{number}", OBJECT)
        simulator.list_objects([f"{OBJECT}-{number}" for number in range(job.copies)])
        for key in (CHECK_OBJECT, *job.links):
            simulator.link(key, OBJECT)
        target = Target(
            endpoint_url=simulator.endpoint_url,
            size_bytes=size_bytes,
            every_byte=quick,
            ca_bundle=simulator.authority,
            server_pid=simulator.worker_pid,
        )
        if not quick and not job.compare_all:
            _check_bytes(result, names, simulator, replace(target, every_byte=True))
        _run_rounds(result, names, rounds, lambda name: _sample_with_traffic(job, name, simulator, target))
    result.compare()
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
        # Each contestant is sometimes the first after a pause of the machine, or after a heavy neighbour.
        names = names[::-1]


def _sample_with_traffic(job: Job, name: str, simulator: Simulator, target: Target) -> Numbers:
    assert job.conditions is not None
    simulator.take_requests()
    server_seconds = simulator.cpu_seconds()
    found = sample_of(job, name, target)
    server_seconds = simulator.cpu_seconds() - server_seconds
    requests = [one for one in simulator.take_requests() if not one.uri.endswith(UNCOUNTED)]
    traffic = asdict(Traffic.of(requests))
    derived = job.derive(found, requests, job.conditions)
    numbers = {key: value for key, value in found.items() if isinstance(value, (int, float))}
    return {**numbers, **traffic, "server_cpu_seconds": server_seconds, **derived}


def environment_of(runner: Mapping[str, str]) -> dict[str, str]:
    """The environment of a contestant: that of the user, without settings of stores and proxies."""
    kept = {
        key: value
        for key, value in runner.items()
        if not key.startswith(("AWS_", "AIOPREFETCH_")) and not key.lower().endswith("_proxy")
    }
    return {**kept, "AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}


def sample_of(job: Job, name: str, target: Target) -> Sample:
    """Run a contestant of a job once, of this tree or of another."""
    root, known_as = job.elsewhere.get(name, (ROOT, name))
    return sample(job.name, known_as, target, root=root)


def sample(job: str, name: str, target: Target, *, root: Path = ROOT) -> Sample:
    """Run a contestant once, in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="aioprefetch-bench-") as scratch:
        passed = json.dumps(asdict(replace(target, scratch=scratch)))
        command = [sys.executable, "-m", "tests.benchmarks.sample", job, name, passed]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=SAMPLE_SECONDS_MAX,
                check=False,
                cwd=root,
                env={**environment_of(os.environ), "PYTHONPATH": str(root)},
            )
        except subprocess.TimeoutExpired:
            raise ContestantFailed(f"no end within {SAMPLE_SECONDS_MAX} s") from None
    if done.returncode != 0:
        raise ContestantFailed((done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1])
    found: Sample = json.loads(done.stdout.splitlines()[-1])
    return found

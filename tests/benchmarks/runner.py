"""Runs the contestants of a job: each in a process of its own, one after another, round after round."""

import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.benchmarks.access_log import Request, summed
from tests.benchmarks.job import (
    CHECK_OBJECT,
    OBJECT,
    ROOT,
    UNCOUNTED,
    WARM_BYTES,
    WARM_OBJECT,
    Bar,
    Job,
    Numbers,
    Sample,
    Target,
)
from tests.benchmarks.simulator import Simulator

SAMPLE_SECONDS_MAX = 600
# The server writes its times in milliseconds.
CLOCKS_DIFFER_SECONDS = 0.002


@dataclass(slots=True, kw_only=True)
class Result:
    """The samples of a job, by contestant and round, and what went wrong."""

    job: Job
    quick: bool
    samples: dict[str, list[Numbers]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def rounds(self) -> int:
        """How often the contestants went."""
        return max((len(rounds) for rounds in self.samples.values()), default=0)

    def medians(self) -> dict[str, Numbers]:
        """Every number of every contestant: the median over the rounds, not a number where none has it."""
        return {
            name: {
                key: statistics.median(found) if (found := [one[key] for one in rounds if key in one]) else math.nan
                for key in rounds[0]
            }
            for name, rounds in self.samples.items()
        }

    def ratio(self, name: str, number: str) -> float | None:
        """The median over the rounds of what this contestant needed against the base; None without a base."""
        base = next(iter(self.job.contestants))
        return Bar("", name, number, 0.0, 0.0, (base,)).value(self.samples)


class ContestantFailed(Exception):
    """A contestant's process ended badly; the text is the last line it wrote."""


def run_job(job: Job, *, rounds: int, quick: bool, only: Sequence[str] = (), target: Target | None = None) -> Result:
    """Run every contestant in each round. One that fails is left out from then on, and named in the result.

    With ``quick``, which is about whether all works, every byte is compared in the measured rounds. A ``target`` is a
    store of the user.
    """
    result = Result(job=job, quick=quick)
    rounds = min(rounds, job.rounds_max or rounds)
    names = [name for name in job.contestants if any(part in name for part in only)] if only else list(job.contestants)
    if quick and not only:
        names = job.quick_names
    if job.conditions is None:
        with job.store() if job.store else contextlib.nullcontext("") as endpoint_url:
            given = target or Target(endpoint_url=endpoint_url, every_byte=quick, size_bytes=job.size_bytes)
            _run_rounds(result, names, rounds, lambda name: _numbers_of(sample_of(job, name, given)))
        return result
    with Simulator(job.conditions) as simulator:
        size_bytes = (quick and job.quick_size_bytes) or job.size_bytes
        size_bytes = simulator.put(OBJECT, size_bytes, write=job.write)
        simulator.put(WARM_OBJECT, WARM_BYTES)
        copies = [f"{OBJECT}-{number}" for number in range(job.copies)]
        for key in (*copies, CHECK_OBJECT, *job.links):
            simulator.link(key, OBJECT)
        simulator.list_objects(copies)
        given = Target(
            endpoint_url=simulator.endpoint_url,
            size_bytes=size_bytes,
            every_byte=quick,
            ca_bundle=simulator.authority,
            server_pid=simulator.worker_pid,
        )
        if job.checked_apart and not quick:
            # It warms the machine's caches as well.
            checked = replace(given, every_byte=True)
            _run_rounds(result, names, 1, lambda name: _sample_with_traffic(job, name, simulator, checked))
            result.samples.clear()
        _run_rounds(result, names, rounds, lambda name: _sample_with_traffic(job, name, simulator, given))
    return result


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
    simulator.take_requests()
    sample = sample_of(job, name, target)
    since = sample.get("began", 0.0) - CLOCKS_DIFFER_SECONDS
    requests = [one for one in simulator.take_requests() if not one.uri.endswith(UNCOUNTED) and one.start >= since]
    return _numbers_of(sample, requests)


def _numbers_of(sample: Sample, requests: Sequence[Request] | None = None) -> Numbers:
    """The numbers of a sample, and what follows from the requests that a simulator saw since its clock started."""
    numbers: Numbers = {key: value for key, value in sample.items() if isinstance(value, (int, float))}
    wall, received, items = (numbers.get(name, 0.0) for name in ("wall_seconds", "received_bytes", "items"))
    if items and wall:
        numbers["requests_per_second"] = items / wall
        numbers["cpu_per_request"] = numbers["cpu_seconds"] / items
    if received and wall:
        numbers["bytes_per_second"] = received / wall
        numbers["cpu_per_gib"] = numbers["cpu_seconds"] * (1 << 30) / received
    if requests is None:
        return numbers
    traffic = summed(requests)
    numbers |= traffic
    if items:
        numbers["requests_per_item"] = len(requests) / items
    if received:
        numbers["sent_over_read"] = traffic["sent_bytes"] / received
    return numbers


def environment_of(runner: Mapping[str, str]) -> dict[str, str]:
    """The environment of a contestant: that of the user, without settings of stores and proxies."""
    kept = {
        key: value
        for key, value in runner.items()
        if not key.startswith(("AWS_", "AIOPREFETCH_")) and not key.lower().endswith("_proxy")
    }
    return {**kept, "AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}


def sample_of(job: Job, name: str, target: Target) -> Sample:
    """Run a contestant of a job once, of this tree or of another, in a process of its own."""
    root, known_as = job.elsewhere.get(name, (ROOT, name))
    environment = environment_of(os.environ) if target.access_key_id else dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="aioprefetch-bench-") as scratch:
        passed = json.dumps(replace(target, scratch=scratch).to_json())
        command = [sys.executable, "-m", "tests.benchmarks.sample", job.name, known_as, passed]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=SAMPLE_SECONDS_MAX,
                check=False,
                cwd=root,
                env={**environment, "PYTHONPATH": str(root)},
            )
        except subprocess.TimeoutExpired:
            raise ContestantFailed(f"no end within {SAMPLE_SECONDS_MAX} s") from None
    if done.returncode != 0:
        raise ContestantFailed((done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1])
    sample: Sample = json.loads(done.stdout.splitlines()[-1])
    return sample


def commit_of(root: Path) -> str:
    """The commit that is checked out there, empty where there is no repository or no git."""
    with contextlib.suppress(OSError):
        command = ["git", "-C", str(root), "rev-parse", "--short", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return ""

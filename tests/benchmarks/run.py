"""Runs benchmarks for us and the peers in turn, each in a process of its own, and prints medians and ratios.

The machines are noisy: quote the ratios. ``make bench ARGS="--quick"``, ``make bench ONLY=hits ARGS="--rounds 9"``.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from aioprefetch import sync
from tests.benchmarks import page, plots, records, report
from tests.benchmarks.job import ROOT, Job, Target, beside_before, is_ours
from tests.benchmarks.jobs import JOBS, YOURS
from tests.benchmarks.nginx import Unavailable, install_nginx
from tests.benchmarks.our_clients import recipe_of
from tests.benchmarks.records import Record
from tests.benchmarks.runner import run_job
from tests.benchmarks.simulator import end_with_sigterm

# Of a job that is for the page.
ROUNDS = 5
# Where results lie that are not for the page: of a quick run, of fewer rounds, or of a part of the contestants.
SCRATCH = ROOT / "build" / "benchmarks"


class UnknownJob(Exception):
    """There is no such job; the text says which there are."""


def chosen(names: Sequence[str]) -> list[Job]:
    """The jobs of these names, all without any, in their order. Each may be a list with commas.

    A name is that of a job, or the beginning of some. UnknownJob: no job has such a name.
    """
    wanted = [name for listed in names for name in listed.split(",") if name]
    found: set[str] = set()
    for name in wanted:
        matching = [name] if name in JOBS else [job for job in JOBS if job.startswith(name)]
        if not matching:
            raise UnknownJob(f"there is no job {name!r}; there are: {', '.join(JOBS)}")
        found.update(matching)
    return [job for name, job in JOBS.items() if name in found or not wanted]


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="make bench", description=__doc__, epilog=f"Jobs: {', '.join(JOBS)}.")
    made.add_argument("jobs", nargs="*", metavar="JOB", help="jobs, or the beginning of their names; default all")
    made.add_argument(
        "--rounds",
        type=int,
        help="how often each contestant goes (default 5, with --quick 1)",
    )
    made.add_argument("--quick", action="store_true", help="smaller objects, one round: does everything still work?")
    made.add_argument("--only", action="append", default=[], metavar="PART", help="contestants with this in the name")
    made.add_argument(
        "--bars", action="store_true", help="jobs of which something is wanted, with those it is wanted of, and beside"
    )
    made.add_argument(
        "--before", type=Path, metavar="DIR", help="ours alone, beside the same of another tree: what got slower?"
    )
    made.add_argument("--url", help="measure an object of yours instead, s3://bucket/key, by keys of the environment")
    made.add_argument("--json", type=Path, metavar="FILE", help="write every number of this run there as well")
    made.add_argument("--output", type=Path, metavar="DIR", help="where results.json and the plots go")
    made.add_argument("--page", action="store_true", help="measure nothing: fill the documentation in again")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen jobs; 1 when a contestant failed, 2 when nothing could be measured."""
    options = parser().parse_args(arguments)
    try:
        jobs = chosen(options.jobs)
        if options.bars:
            jobs = [job.with_only(job.barred) for job in jobs if job.bars]
        if options.before:
            jobs = [beside_before(job, options.before) for job in jobs if any(map(is_ours, job.contestants))]
        if options.page:
            write_results(page.PLOTS, records.load(page.RESULTS))
            return 0
        if options.url:
            return measure_yours(options)
        if any(job.conditions for job in jobs):
            install_nginx()
        end_with_sigterm()
        return measure(options, jobs)
    except (UnknownJob, Unavailable) as problem:
        print(problem, file=sys.stderr)
        return 2


def measure(options: argparse.Namespace, jobs: Sequence[Job]) -> int:
    """Run jobs, print each as it ends, and keep the results; 1 when a contestant failed."""
    rounds = options.rounds or (1 if options.quick else ROUNDS)
    is_part = options.quick or options.only or options.bars or options.before or rounds < ROUNDS
    directory = options.output or (SCRATCH if is_part else page.PLOTS)
    left_out = [job for job in jobs if options.quick and not options.only and not job.quick_names]
    measured = records.circumstances()
    began = time.monotonic()
    found = []
    for job in [job for job in jobs if job not in left_out]:
        result = run_job(job, rounds=rounds, quick=options.quick, only=options.only)
        found.append(result)
        print(f"\n{report.text(result)}", flush=True)
        if options.json:
            records.save(options.json, [records.record_of(one, measured) for one in found])
        # After each job: a run that is ended has not been in vain.
        write_results(
            directory, [*records.load(directory / "results.json"), records.record_of(result, measured, whole=False)]
        )
    print(f"\n{report.bars_text(found)}", flush=True)
    if left_out:
        print(f"\nnot in quick runs: {', '.join(job.name for job in left_out)}")
    print(f"\n{time.monotonic() - began:.0f} s; results and plots: {directory}", flush=True)
    return 1 if any(result.failures for result in found) else 0


def measure_yours(options: argparse.Namespace) -> int:
    """Compare the libraries on an object of the user's, and keep nothing; 1 when one failed."""
    bucket, _, key = options.url.removeprefix("s3://").partition("/")
    place: Any = {"region": os.environ.get("AWS_REGION", ""), "access_key_id": "", "secret_access_key": ""}
    target = Target(endpoint_url=os.environ.get("AWS_ENDPOINT_URL", ""), bucket=bucket, key=key, **place)
    size_bytes = sync.run(recipe_of(target).stat(key)).size
    target = replace(target, size_bytes=size_bytes or 0)
    result = run_job(YOURS, rounds=options.rounds or 3, quick=False, only=options.only, target=target)
    print(report.text(result))
    return 1 if result.failures else 0


def write_results(directory: Path, found: Sequence[Record]) -> None:
    """Keep records, the last of each job, and their plots in a directory; the pages show those that are their own."""
    kept = records.latest(found, order=list(JOBS))
    records.save(directory / "results.json", kept)
    plots.write_plots(directory, kept)
    if directory == page.PLOTS:
        page.write_pages(kept)


if __name__ == "__main__":
    sys.exit(main())

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
from tests.benchmarks import page, records, report
from tests.benchmarks.job import ROOT, Job, Target, beside_before, is_ours
from tests.benchmarks.jobs import GROUPS, JOBS, UnknownJob, chosen
from tests.benchmarks.jobs.machine import YOURS
from tests.benchmarks.nginx import Unavailable, install_nginx
from tests.benchmarks.our_clients import recipe_of
from tests.benchmarks.records import Record
from tests.benchmarks.runner import run_job
from tests.benchmarks.simulator import end_with_sigterm

# Of a job that is for the page.
ROUNDS = 5
# Where results lie that are not for the page: of a quick run, of fewer rounds, or of a part of the contestants.
SCRATCH = ROOT / "build" / "benchmarks"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    groups = "; ".join(f"{group.name}: {', '.join(job.name for job in group.jobs)}" for group in GROUPS)
    made = argparse.ArgumentParser(prog="make bench", description=__doc__, epilog=f"Jobs by group: {groups}.")
    made.add_argument("jobs", nargs="*", metavar="JOB", help="jobs or groups, or the beginning of a name; default all")
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
    made.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    made.add_argument("--from", dest="source", type=Path, metavar="FILE", help="measure nothing: show these records")
    made.add_argument(
        "--page", action="store_true", help="measure nothing: fill docs/reference/performance.md in again"
    )
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
        if options.source or options.page:
            return show(options, jobs)
        if options.url:
            return measure_yours(options)
        if any(job.conditions for job in jobs):
            install_nginx()
        end_with_sigterm()
        return measure(options, jobs)
    except (UnknownJob, Unavailable) as problem:
        print(problem, file=sys.stderr)
        return 2


def show(options: argparse.Namespace, jobs: Sequence[Job]) -> int:
    """Show what was measured before: print the tables, or fill the page in."""
    source = options.source or page.RESULTS
    names = list(JOBS) if options.page else [job.name for job in jobs]
    found = records.merged([], [record for record in records.load(source) if record["job"] in names], order=names)
    if not found:
        print(f"there are no results in {source}", file=sys.stderr)
        return 2
    if options.page:
        write_results(page.PLOTS, found)
    else:
        shown = [(report.markdown if options.markdown else report.text)(record) for record in found]
        print("\n\n".join([*([] if options.bars else shown), *bars_of(options, found)]))
    return 0


def measure(options: argparse.Namespace, jobs: Sequence[Job]) -> int:
    """Run jobs, print each as it ends, and keep the results; 1 when a contestant failed."""
    group_of = {job.name: group.name for group in GROUPS for job in group.jobs}
    rounds = options.rounds or (1 if options.quick else ROUNDS)
    is_part = options.quick or options.only or options.bars or options.before or rounds < ROUNDS
    directory = options.output or (SCRATCH if is_part else page.PLOTS)
    left_out = [job for job in jobs if options.quick and not options.only and not job.quick_names]
    measured = records.circumstances()
    began = time.monotonic()
    found: list[Record] = []
    print(report.circumstances_line(measured), flush=True)
    for job in [job for job in jobs if job not in left_out]:
        result = run_job(job, rounds=rounds, quick=options.quick, only=options.only)
        found.append(records.record_of(result, group=group_of[job.name], measured=measured))
        print("\n" + (report.markdown if options.markdown else report.text)(found[-1]), flush=True)
        if options.json:
            records.save(options.json, found)
        # After each job: a run that is ended has not been in vain.
        write_results(directory, records.merged(records.load(directory / "results.json"), found, order=list(JOBS)))
    print("".join(f"\n{table}" for table in bars_of(options, found)), flush=True)
    if left_out:
        print(f"\nnot in quick runs: {', '.join(job.name for job in left_out)}")
    print(f"\n{time.monotonic() - began:.0f} s; results and plots: {directory}", flush=True)
    return 1 if any(record["failures"] for record in found) else 0


def measure_yours(options: argparse.Namespace) -> int:
    """Compare the libraries on an object of the user's, and keep nothing; 1 when one failed."""
    bucket, _, key = options.url.removeprefix("s3://").partition("/")
    place: Any = {"region": os.environ.get("AWS_REGION", ""), "access_key_id": "", "secret_access_key": ""}
    target = Target(endpoint_url=os.environ.get("AWS_ENDPOINT_URL", ""), bucket=bucket, key=key, **place)
    size_bytes = sync.run(recipe_of(target).stat(key)).size
    target = replace(target, size_bytes=size_bytes or 0)
    result = run_job(YOURS, rounds=options.rounds or 3, quick=False, only=options.only, target=target)
    record = records.record_of(result, group="", measured=records.circumstances())
    print((report.markdown if options.markdown else report.text)(record))
    return 1 if record["failures"] else 0


def bars_of(options: argparse.Namespace, found: Sequence[Record]) -> list[str]:
    """The table of what is wanted; none where nothing is."""
    table = (report.bars_markdown if options.markdown else report.bars_text)(found)
    return [table] if table else []


def write_results(directory: Path, found: Sequence[Record]) -> None:
    """Keep what is shown of records, and their plots, in a directory; the page shows those that are its own."""
    records.save(directory / "results.json", [records.trimmed(record) for record in found])
    page.write_plots(directory, found)
    if directory == page.PLOTS:
        page.write_page(found)


if __name__ == "__main__":
    sys.exit(main())

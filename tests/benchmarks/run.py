"""Runs benchmarks for us and the peers in turn, each in a process of its own, and prints medians and ratios.

The machines are noisy: quote the ratios. ``make bench ARGS="--quick"``, ``make bench ARGS="sequential --rounds 9"``.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.benchmarks import report
from tests.benchmarks.job import Result, run_job
from tests.benchmarks.jobs import JOBS
from tests.benchmarks.simulator import Unavailable, end_with_sigterm


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument(
        "jobs", nargs="*", metavar="JOB", help=f"the beginning of a name; default all: {', '.join(JOBS)}"
    )
    parser.add_argument("--rounds", type=int, help="how often each contestant goes (default 5, with --quick 1)")
    parser.add_argument("--quick", action="store_true", help="smaller objects, one round: does everything still work?")
    parser.add_argument("--only", action="append", default=[], metavar="PART", help="contestants with this in the name")
    parser.add_argument("--pacing", choices=["kernel", "nginx"], default="kernel", help="who limits the bandwidth")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there")
    return parser.parse_args()


def main() -> int:
    """Run the chosen jobs; 1 when a contestant failed, 2 when nothing could be measured."""
    options = arguments()
    end_with_sigterm()
    rounds = options.rounds or (1 if options.quick else 5)
    chosen = [job for name, job in JOBS.items() if not options.jobs or name.startswith(tuple(options.jobs))]
    if not chosen:
        print(f"no job begins with {' or '.join(options.jobs)}; there are: {', '.join(JOBS)}", file=sys.stderr)
        return 2
    print(report.machine_line(), flush=True)
    results: list[Result] = []
    for job in chosen:
        try:
            result = run_job(job, rounds=rounds, quick=options.quick, pacing=options.pacing, only=options.only)
        except Unavailable as problem:
            print(problem, file=sys.stderr)
            return 2
        print("\n" + (report.markdown if options.markdown else report.text)(result), flush=True)
        results.append(result)
        if options.json:
            options.json.write_text(json.dumps(report.as_json(results), indent=1))
    return 1 if any(result.failures for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())

"""Us beside ourselves: the same contestants of this tree and of another one, in turns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.benchmarks.bars import Bar
from tests.benchmarks.job import Column, Job
from tests.benchmarks.report import is_ours, is_rate

# What was fast may be slower by this share, which two runs differ by.
TOLERATED = 0.05


def beside_before(job: Job, root: Path) -> Job:
    """The job with our contestants alone, each beside that of the tree at ``root``, which must know the job.

    All columns with ratios are compared.
    """
    ours = {name: run for name, run in job.contestants.items() if is_ours(name)}
    compared = [column for column in job.columns if column.ratio]
    if job.quick_contestants is not None:
        quick = [name for name in ours if name in job.quick_contestants]
        job = replace(job, quick_contestants=[one for name in quick for one in (name, before(name))])
    return replace(
        job,
        contestants={one: run for name, run in ours.items() for one in (name, before(name))},
        elsewhere={before(name): (root.resolve(), name) for name in ours},
        bars=tuple(bar_of(job.name, name, column) for name in ours for column in compared),
    )


def before(name: str) -> str:
    """The name of a contestant of the other tree."""
    return f"{name}, before"


def bar_of(job: str, name: str, column: Column) -> Bar:
    """Not worse than before, and better if may be."""
    rate = is_rate(column.name)
    return Bar(
        shape=f"{job}, {column.heading}",
        ours=name,
        bases=(before(name),),
        number=column.name,
        bar=1 - TOLERATED if rate else 1 + TOLERATED,
        aim=1.0,
        at_least=rate,
    )

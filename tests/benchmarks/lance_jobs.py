"""The jobs ``lance-*``: files of versions 2.0 and 2.2, whole, a range of rows, rows at random, one column.

Every value that comes out is compared in each sample, after the clock has stopped.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tests.benchmarks.job import CPU, GETS, IN_FLIGHT, MEMORY, OTHERS, PEAK_RATIO, SENT, WALL, Column, Job, Target
from tests.benchmarks.lance_clients import (
    PYLANCE,
    PYLANCE_BATCHES,
    PYLANCE_DEFAULT,
    READ_TABLE,
    SCAN,
    lance_contestants,
)
from tests.benchmarks.lance_files import VERSIONS, check_lance, lance_table, lance_writer, rows_of
from tests.benchmarks.simulator import AT_A_DISTANCE, LOOPBACK
from tests.benchmarks.wanted import Wanted, with_wanted

if TYPE_CHECKING:
    import pyarrow as pa

SIZE_BYTES = 72_800_000
QUICK_SIZE_BYTES = 9_100_000
RANGE_ROWS = 1000
TAKE_ROWS = 1000
# One of the columns, of which the others are eight ninths of the bytes.
COLUMN = "value"

COLUMNS = (
    *(WALL, CPU, GETS, OTHERS, SENT, IN_FLIGHT, PEAK_RATIO, MEMORY),
    Column(name="first_seconds", heading="first batch s"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of a file: the arguments of a scan, given its rows, and the part of the whole that they are."""

    name: str
    title: str
    what: Callable[[int], Mapping[str, Any]]
    response: Callable[[pa.Table], pa.Table]


def rows_in_the_middle(rows: int) -> tuple[int, int]:
    """A thousand rows, from the middle on."""
    return rows // 2, rows // 2 + RANGE_ROWS


def rows_at_random(rows: int) -> list[int]:
    """A thousand rows in order, none twice."""
    return sorted(random.Random("take").sample(range(rows), TAKE_ROWS))


def slice_in_the_middle(table: pa.Table) -> pa.Table:
    start, stop = rows_in_the_middle(table.num_rows)
    return table.slice(start, stop - start)


QUESTIONS = (
    Question(name="scan", title="the whole file", what=lambda rows: {}, response=lambda table: table),
    Question(
        name="range",
        title="1000 rows from the middle",
        what=lambda rows: {"rows": rows_in_the_middle(rows)},
        response=slice_in_the_middle,
    ),
    Question(
        name="take",
        title="1000 rows at random",
        what=lambda rows: {"take": rows_at_random(rows)},
        response=lambda table: table.take(rows_at_random(table.num_rows)),
    ),
    Question(
        name="columns",
        title="one of four columns",
        what=lambda rows: {"columns": [COLUMN]},
        response=lambda table: table.select([COLUMN]),
    ),
)
# Of pylance's wall time, where something is wanted: of version 2.0, whole and a range. Without delay of everything.
WANTED = {("scan", "2.0"): 0.8, ("range", "2.0"): 0.8}
WANTED_WITHOUT_DELAY = 1.2


def lance_job(question: Question, version: str) -> Job:
    """A question to a file of a version, at a distance."""

    def what(target: Target) -> Mapping[str, Any]:
        return question.what(rows_of(target.size_bytes, version))

    def check(table: pa.Table, target: Target) -> None:
        check_lance(table, question.response(lance_table(rows_of(target.size_bytes, version))))

    return Job(
        name=f"lance-{question.name}-{version}",
        title=f"{question.title} of a Lance file of version {version}, 131,072 rows of 4 columns",
        conditions=AT_A_DISTANCE,
        size_bytes=SIZE_BYTES,
        quick_size_bytes=QUICK_SIZE_BYTES,
        write=lance_writer(version),
        compare_all=True,
        quick_contestants=(READ_TABLE, SCAN, PYLANCE),
        contestants=lance_contestants(what, check),
        columns=COLUMNS,
    )


def beside_pylance(job: Job, at_most: float | None) -> Job:
    """The job with what is wanted of it."""
    peers = (PYLANCE, PYLANCE_DEFAULT, PYLANCE_BATCHES)
    return with_wanted(job, [Wanted(name="pylance", ours=READ_TABLE, peers=peers, at_most=at_most)])


def at_a_distance_and_without(question: Question, version: str) -> tuple[Job, Job]:
    """The job, and the same at a store without delay and limit: what is left is the CPU of the client."""
    far = lance_job(question, version)
    near = replace(far, name=f"{far.name}-loopback", conditions=LOOPBACK, quick_contestants=())
    return (
        beside_pylance(far, WANTED.get((question.name, version))),
        beside_pylance(near, WANTED_WITHOUT_DELAY if version == "2.0" else None),
    )


LANCE_JOBS = tuple(
    job for question in QUESTIONS for version in VERSIONS for job in at_a_distance_and_without(question, version)
)

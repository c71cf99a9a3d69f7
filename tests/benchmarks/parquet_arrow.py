"""The jobs ``parquet-arrow*``: ``read_table`` by path, through our file system of Arrow, our own scan, and Arrow's own.

Arrow reads a file of Python under one lock. Its own file system needs none, and our scan knows the columns beforehand.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.benchmarks.access_log import Request
from tests.benchmarks.bars import Bar
from tests.benchmarks.clients import aioprefetch_blocking
from tests.benchmarks.job import (
    CPU,
    GETS,
    IN_FLIGHT,
    OTHERS,
    PEAK_RATIO,
    SENT,
    WALL,
    WARM_OBJECT,
    Column,
    Contestant,
    Job,
    Numbers,
    Sample,
    Target,
)
from tests.benchmarks.parquet_clients import Client, Reading, pyarrow_table, s3fs_file, timed_table
from tests.benchmarks.parquet_files import NAMES, check_large, write_large
from tests.benchmarks.parquet_groups import start_of
from tests.benchmarks.parquet_jobs import LARGE_BYTES, QUICK_LARGE_BYTES, THREE_COLUMNS
from tests.benchmarks.parquet_scans import READ_TABLE, read_table
from tests.benchmarks.simulator import AT_A_DISTANCE, Conditions

if TYPE_CHECKING:
    import pyarrow as pa

OURS = "aioprefetch arrow.filesystem"
DATASET = f"{OURS}, dataset"
PYARROW = "pyarrow.fs"
BLOCK_BYTES = 8 << 20


def our_filesystem(*, as_dataset: bool = False) -> Client:
    """``ap.arrow.filesystem``, and a path in it: for ``read_table``, or for a dataset."""

    @contextlib.contextmanager
    def client(target: Target) -> Iterator[Reading]:
        import pyarrow.dataset as ds
        import pyarrow.parquet as pq

        import aioprefetch as ap

        with aioprefetch_blocking(target) as operator:
            filesystem = ap.arrow.filesystem(operator.operator)
            with filesystem.open_input_file(WARM_OBJECT) as file:
                file.read()

            def read(columns: list[str] | None) -> pa.Table:
                if as_dataset:
                    return ds.dataset(target.key, filesystem=filesystem).to_table(columns=columns)
                return pq.read_table(target.key, filesystem=filesystem, columns=columns)

            yield read

    return client


def runs(sample: Sample, requests: Sequence[Request], conditions: Conditions) -> Numbers:
    """The requests, where a run of adjacent ones above a block counts once: it was cut to be read side by side."""
    spans = sorted(
        (start_of(one, int(sample["size_bytes"])), one.sent_bytes) for one in requests if one.method == "GET"
    )
    count = sum(one.method != "GET" for one in requests)
    position, run_bytes, run_requests = -1, 0, 0
    for start, length in [*spans, (-1, 0)]:
        if start != position:
            count += 1 if run_bytes > BLOCK_BYTES else run_requests
            run_bytes = run_requests = 0
        position, run_bytes, run_requests = start + length, run_bytes + length, run_requests + 1
    return {"runs": count, "requests": len(requests)}


def arrow_job(name: str, title: str, columns: tuple[str, ...]) -> Job:
    """A job for some columns."""
    wanted = None if columns == NAMES else list(columns)

    def check(table: pa.Table, target: Target) -> None:
        check_large(table, target.size_bytes, columns)

    clients = {
        OURS: our_filesystem(),
        DATASET: our_filesystem(as_dataset=True),
        PYARROW: pyarrow_table,
        "s3fs": s3fs_file("readahead"),
    }
    contestants = {
        READ_TABLE: read_table(check, wanted),
        **{one: timed_table(client, check, wanted) for one, client in clients.items()},
    }
    return Job(
        name=name,
        title=title,
        conditions=AT_A_DISTANCE,
        size_bytes=LARGE_BYTES,
        quick_size_bytes=QUICK_LARGE_BYTES,
        write=write_large,
        compare_all=True,
        contestants={one: with_size(contestant) for one, contestant in contestants.items()},
        quick_contestants=(READ_TABLE, OURS, PYARROW),
        columns=(WALL, CPU, GETS, OTHERS, Column(name="runs", heading="runs", digits=0), SENT, IN_FLIGHT, PEAK_RATIO),
        bars=bars(title),
        derive=runs,
    )


def with_size(contestant: Contestant) -> Contestant:
    """The contestant, whose sample also says how large the object is."""

    async def run(target: Target) -> Sample:
        return {**await contestant(target), "size_bytes": target.size_bytes}

    return run


def bars(what: str) -> tuple[Bar, ...]:
    """What is wanted."""
    of_wall = Bar(
        shape=f"read_table by path, {what}, wall", ours=OURS, bases=(READ_TABLE,), number="wall_seconds", bar=1.3, aim=1
    )
    of_dataset = replace(of_wall, shape=f"dataset, {what}, wall", ours=DATASET)
    of_requests = Bar(
        shape=f"read_table by path, {what}, requests", ours=OURS, bases=(PYARROW,), number="runs", bar=1, aim=0.9
    )
    return of_wall, of_dataset, of_requests


ARROW_COLUMNS = arrow_job("parquet-arrow", "3 of the 12 columns of 244 MB", THREE_COLUMNS)
ARROW_WHOLE = replace(
    arrow_job("parquet-arrow-whole", "all of 244 MB", NAMES),
    quick_contestants=(),  # the same ways, more bytes
)
ARROW_JOBS = (ARROW_COLUMNS, ARROW_WHOLE)

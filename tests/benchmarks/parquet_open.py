"""The jobs ``parquet-open*``: ``pyarrow.parquet.read_table`` of a file that a library opened, by pyarrow's defaults.

pyarrow reads a Python file chunk by chunk. Its own file system is what it reads best.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.benchmarks.access_log import Request
from tests.benchmarks.bars import Bar
from tests.benchmarks.clients import aioprefetch_options
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
from tests.benchmarks.parquet_clients import (
    Client,
    Reading,
    fsspec_parquet,
    obstore_file,
    pyarrow_table,
    s3fs_file,
    warm_pyarrow,
    whole_table,
)
from tests.benchmarks.parquet_files import NAMES, VALUE_BYTES, check_large, write_large
from tests.benchmarks.parquet_jobs import LARGE_BYTES, QUICK_LARGE_BYTES, THREE_COLUMNS
from tests.benchmarks.process_usage import Meter
from tests.benchmarks.simulator import AT_A_DISTANCE, Conditions

if TYPE_CHECKING:
    import pyarrow as pa

OURS = "aioprefetch sync.open"
PYARROW = "pyarrow.fs"


def sync_open(**options: Any) -> Client:
    """``ap.sync.open`` of a URL; ``options`` are those of a reader."""

    @contextlib.contextmanager
    def client(target: Target) -> Iterator[Reading]:
        import aioprefetch as ap

        store = aioprefetch_options(target)
        with ap.sync.open(f"s3://{target.bucket}/{WARM_OBJECT}", **store) as file:
            file.read()

        def read(columns: list[str] | None) -> pa.Table:
            return whole_table(ap.sync.open(f"s3://{target.bucket}/{target.key}", **store, **options), columns)

        yield read

    return client


def timed_open(client: Client, columns: tuple[str, ...]) -> Contestant:
    """Read the table once, measured from the opening to the last value, then compare it."""

    async def run(target: Target) -> Sample:
        warm_pyarrow()
        with client(target) as read:
            meter = Meter()
            table = read(None if columns == NAMES else list(columns))
            usage = meter.stop()
            check_large(table, target.size_bytes, columns)
        return {**usage, "values_bytes": table.num_rows * len(columns) * VALUE_BYTES}

    return run


def sent_over_values(sample: Sample, requests: Sequence[Request], conditions: Conditions) -> Numbers:
    """The bytes that left the server for each byte of values."""
    return {"sent_over_values": sum(one.sent_bytes for one in requests) / sample["values_bytes"]}


def open_job(name: str, title: str, columns: tuple[str, ...]) -> Job:
    """A job for some columns."""
    clients = {
        PYARROW: pyarrow_table,
        OURS: sync_open(),
        f"{OURS}, policy parquet": sync_open(policy="parquet"),
        "s3fs": s3fs_file("readahead"),
        "s3fs fsspec.parquet": fsspec_parquet,
        "obstore fsspec": obstore_file(),
    }
    return Job(
        name=name,
        title=title,
        conditions=AT_A_DISTANCE,
        size_bytes=LARGE_BYTES,
        quick_size_bytes=QUICK_LARGE_BYTES,
        write=write_large,
        compare_all=True,
        contestants={one: timed_open(client, columns) for one, client in clients.items()},
        quick_contestants=(PYARROW, OURS),
        columns=(
            WALL,
            CPU,
            GETS,
            OTHERS,
            SENT,
            Column(name="sent_over_values", heading="sent ÷ values"),
            IN_FLIGHT,
            PEAK_RATIO,
        ),
        bars=bars(title),
        derive=sent_over_values,
    )


def bars(what: str) -> tuple[Bar, ...]:
    """What is wanted."""
    of_wall = Bar(
        shape=f"read_table, {what}, wall", ours=OURS, bases=(PYARROW,), number="wall_seconds", bar=1.2, aim=0.5
    )
    of_bytes = Bar(shape=f"read_table, {what}, sent ÷ values", ours=OURS, number="sent_over_values", bar=1.1, aim=1.02)
    return of_wall, of_bytes


OPEN_COLUMNS = open_job("parquet-open", "3 of the 12 columns of 244 MB", THREE_COLUMNS)
OPEN_WHOLE = replace(
    open_job("parquet-open-whole", "all of 244 MB", NAMES),
    quick_contestants=(),  # the same ways, more bytes
)
OPEN_JOBS = (OPEN_COLUMNS, OPEN_WHOLE)

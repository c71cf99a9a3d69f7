"""The jobs ``polars-*``: queries of polars on the large file, by our lazy frame and by polars' own.

The clock runs from the call that makes the frame to the collected result, so footers are in it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from tests.benchmarks.bars import Bar
from tests.benchmarks.clients import aioprefetch_blocking
from tests.benchmarks.job import WARM_OBJECT, Contestant, Job, Sample, Target
from tests.benchmarks.parquet_clients import polars_options, warm_pyarrow
from tests.benchmarks.parquet_files import NAMES, check_large, column_values, write_large
from tests.benchmarks.parquet_jobs import COLUMNS, LARGE_BYTES, QUICK_LARGE_BYTES, THREE_COLUMNS
from tests.benchmarks.process_usage import Meter
from tests.benchmarks.simulator import AT_A_DISTANCE

if TYPE_CHECKING:
    import polars as pl

OURS = "aioprefetch polars.scan_parquet"
POLARS = "polars scan_parquet"
FILE = "polars read_parquet, file of aioprefetch"
HEAD_ROWS = 10

Frame = Callable[[], "pl.LazyFrame"]
Client = Callable[[Target], AbstractContextManager[Frame]]
Query = Callable[["pl.LazyFrame"], "pl.LazyFrame"]
Check = Callable[["pl.DataFrame", Target], None]


@contextlib.contextmanager
def by_us(target: Target) -> Iterator[Frame]:
    """``ap.polars.scan_parquet`` of an operator that has read something."""
    with aioprefetch_blocking(target) as operator:
        from aioprefetch.polars import scan_parquet

        operator.read(WARM_OBJECT)
        yield lambda: scan_parquet(target.key, operator=operator.operator)


@contextlib.contextmanager
def by_polars(target: Target) -> Iterator[Frame]:
    """``polars.scan_parquet``, whose connection was opened for something that is no Parquet."""
    import polars as pl

    options = polars_options(target)
    with contextlib.suppress(pl.exceptions.ComputeError):
        pl.read_parquet(f"s3://{target.bucket}/{WARM_OBJECT}", storage_options=options)
    yield lambda: pl.scan_parquet(f"s3://{target.bucket}/{target.key}", storage_options=options)


@contextlib.contextmanager
def by_our_file(target: Target) -> Iterator[Frame]:
    """``polars.read_parquet`` of a file object of ours. polars reads all of it, also for three columns."""
    import polars as pl

    with aioprefetch_blocking(target) as operator:
        operator.read(WARM_OBJECT)

        def frame() -> pl.LazyFrame:
            with operator.open(target.key) as file:
                readable: Any = file
                return pl.read_parquet(readable).lazy()

        yield frame


def timed(client: Client, query: Query, check: Check) -> Contestant:
    """Run the query once, on a thread without a loop, and compare its values when the clock has stopped."""

    def blocking(target: Target) -> Sample:
        import polars as pl

        warm_pyarrow()
        pl.select(pl.lit(1)).lazy().collect()
        with client(target) as frame:
            meter = Meter()
            found = query(frame()).collect()
            usage = meter.stop()
            check(found, target)
        return dict(usage)

    async def run(target: Target) -> Sample:
        return await asyncio.to_thread(blocking, target)

    return run


def three_columns(frame: pl.LazyFrame) -> pl.LazyFrame:
    return frame.select(THREE_COLUMNS)


def first_rows(frame: pl.LazyFrame) -> pl.LazyFrame:
    return frame.select(THREE_COLUMNS).head(HEAD_ROWS)


def whole(frame: pl.LazyFrame) -> pl.LazyFrame:
    return frame


def same_columns(found: pl.DataFrame, target: Target) -> None:
    check_large(found.to_arrow(), target.size_bytes, THREE_COLUMNS)


def same_whole(found: pl.DataFrame, target: Target) -> None:
    check_large(found.to_arrow(), target.size_bytes, NAMES)


def same_first_rows(found: pl.DataFrame, target: Target) -> None:
    expected = {name: column_values(NAMES.index(name), HEAD_ROWS).tolist() for name in THREE_COLUMNS}
    assert found.to_dict(as_series=False) == expected, "other values than were written"


def polars_job(
    name: str, title: str, query: Query, check: Check, *, bars: tuple[Bar, ...], clients: dict[str, Client]
) -> Job:
    """A job with this query."""
    contestants: dict[str, Any] = {each: timed(client, query, check) for each, client in clients.items()}
    return Job(
        name=name,
        title=title,
        conditions=AT_A_DISTANCE,
        size_bytes=LARGE_BYTES,
        quick_size_bytes=QUICK_LARGE_BYTES,
        write=write_large,
        compare_all=True,
        contestants=contestants,
        columns=COLUMNS,
        bars=bars,
    )


def beside_polars(shape: str, number: str, *, bar: float, aim: float) -> Bar:
    """What is wanted of our frame, as a share of what polars takes."""
    return Bar(shape=f"{shape}, beside polars", ours=OURS, number=number, bases=(POLARS,), bar=bar, aim=aim)


LAZY: dict[str, Client] = {OURS: by_us, POLARS: by_polars}

POLARS_JOBS = (
    polars_job(
        "polars-head",
        "the first 10 rows of 3 of the 12 columns, of a Parquet file of 244 MB, by a lazy frame",
        first_rows,
        same_first_rows,
        bars=(
            beside_polars("first rows, time", "wall_seconds", bar=1.0, aim=0.8),
            beside_polars("first rows, requests", "gets", bar=1.0, aim=1.0),
        ),
        clients=LAZY,
    ),
    polars_job(
        "polars-columns",
        "3 of the 12 columns, by a lazy frame",
        three_columns,
        same_columns,
        bars=(
            beside_polars("columns, time", "wall_seconds", bar=1.2, aim=1.0),
            beside_polars("columns, requests", "gets", bar=1.0, aim=1.0),
        ),
        clients=LAZY,
    ),
    polars_job(
        "polars-whole",
        "all of it, by a lazy frame",
        whole,
        same_whole,
        bars=(beside_polars("whole, time", "wall_seconds", bar=1.2, aim=1.0),),
        clients={**LAZY, FILE: by_our_file},
    ),
)

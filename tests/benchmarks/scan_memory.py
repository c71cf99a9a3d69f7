"""The jobs ``scan-memory-*``: a consumer that takes 100 ms for each batch, of a file ten times our budget.

A library that reads as fast as the store gives holds the file; a library that waits for the consumer does not. The
consumer stops after batches of several times the budget: by then the peak has been flat for seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aioprefetch.scheduler.decode_loop import READAHEAD_BATCHES
from tests.benchmarks.clients import aioprefetch_operator, pyarrow_filesystem
from tests.benchmarks.content import MIB
from tests.benchmarks.job import (
    CHECK_OBJECT,
    CPU,
    GETS,
    MEMORY,
    OTHERS,
    PEAK,
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
from tests.benchmarks.lance_clients import pylance_reader, pylance_results
from tests.benchmarks.lance_files import lance_writer
from tests.benchmarks.parquet_clients import polars_options, warm_pyarrow
from tests.benchmarks.parquet_files import COLUMNS, NAMES, VALUE_BYTES, column_values, write_default_groups
from tests.benchmarks.process_usage import Meter
from tests.benchmarks.simulator import AT_A_DISTANCE

if TYPE_CHECKING:
    pass

BUDGET_BYTES = 64 * MIB
SIZE_BYTES = 10 * BUDGET_BYTES
QUICK_SIZE_BYTES = 2 * BUDGET_BYTES
BATCH_SECONDS = 0.1
BATCHES = 60
QUICK_BATCHES = 12
PARQUET_ROWS = 65_536  # 6 MiB
LANCE_ROWS = 8192  # 4.3 MiB
OURS = "aioprefetch scan, 64 MiB"
OURS_DEFAULT = "aioprefetch scan, default budget"


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """What a job knows of its file: rows of a batch, its bytes, a column and what that holds at some rows."""

    batch_rows: int
    batch_bytes: int
    column: str
    values: Callable[[int, list[int]], list[Any]]  # of the file's size, and rows


def doubles(size_bytes: int, rows: list[int]) -> list[Any]:
    """The first column of the Parquet file at some rows."""
    found: list[Any] = column_values(0, max(rows) + 1)[rows].tolist()
    return found


PARQUET = Format(
    batch_rows=PARQUET_ROWS, batch_bytes=PARQUET_ROWS * COLUMNS * VALUE_BYTES, column=NAMES[0], values=doubles
)
LANCE = Format(
    batch_rows=LANCE_ROWS, batch_bytes=LANCE_ROWS * 548, column="id", values=lambda size_bytes, rows: list(rows)
)


class SlowConsumer:
    """Takes its time with each batch, and notes what it began and ended with, to be compared later."""

    def __init__(self, of: Format, target: Target) -> None:
        self._of, self._target = of, target
        self._left = QUICK_BATCHES if target.size_bytes < SIZE_BYTES // 2 else BATCHES
        self._rows: list[int] = []
        self._values: list[Any] = []
        self._row = 0
        self.batches = 0

    def take(self, batch: Any) -> bool:
        """Note the ends of a batch (pyarrow or polars); whether another one is wanted."""
        column = batch[self._of.column]
        rows = len(column)
        for at in (0, rows - 1):
            value = column[at]
            self._rows.append(self._row + at)
            self._values.append(value.as_py() if hasattr(value, "as_py") else value)
        self._row += rows
        self.batches += 1
        # Rows are counted, in batches of ours: libraries differ in the size that they give a batch.
        return self._row < self._left * self._of.batch_rows

    def check(self) -> None:
        """Compare what was noted; AssertionError where it is not what was written."""
        assert self._rows, "no batches"
        assert self._values == self._of.values(self._target.size_bytes, self._rows), "other values than were written"

    def seconds(self, rows: int) -> float:
        """How long the consumer is at a batch: in proportion to its rows."""
        return BATCH_SECONDS * rows / self._of.batch_rows


def our_scan(of: Format, memory_bytes: int | None) -> Contestant:
    """``async for batch in scan(...)`` with a budget."""

    async def run(target: Target) -> Sample:
        import asyncio

        warm_pyarrow()
        options = {} if memory_bytes is None else {"memory_bytes": memory_bytes}
        async with aioprefetch_operator(target, **options) as operator:
            from aioprefetch import lance, parquet

            scan = parquet.scan if of is PARQUET else lance.scan
            await operator.read(WARM_OBJECT)
            await warm_scan(scan, operator)
            consumer = SlowConsumer(of, target)
            meter = Meter()
            async with scan(operator, target.key, batch_rows=of.batch_rows) as batches:
                async for batch in batches:
                    rows, more = batch.num_rows, consumer.take(batch)
                    await asyncio.sleep(consumer.seconds(rows))
                    del batch
                    if not more:
                        break
            usage = meter.stop()
            consumer.check()
            gauge = operator.runtime().budget.peak_bytes
        return {**usage, "batches": consumer.batches, "gauge_bytes": gauge, **bounds_of(of, memory_bytes)}

    return run


async def warm_scan(scan: Any, operator: Any) -> None:
    """Read a few rows of the object under its other key: code that runs first is no growth of a scan."""
    async with aclosing(scan(operator, CHECK_OBJECT, rows=(0, 8))) as batches:
        async for _ in batches:
            pass


def bounds_of(of: Format, memory_bytes: int | None) -> dict[str, int]:
    """What the growth shall stay under: the budget, and a batch for each that is decoded ahead."""
    return {"bound_bytes": memory_bytes + READAHEAD_BATCHES * of.batch_bytes} if memory_bytes else {}


# Opens the object: an iterator of batches, when the client is warm.
Open = Callable[[Target], Callable[[], Iterable[Any]]]


def blocking_scan(of: Format, open_batches: Open) -> Contestant:
    """A library that blocks: its own threads read while the consumer takes its time."""

    async def run(target: Target) -> Sample:
        warm_pyarrow()
        batches = open_batches(target)
        consumer = SlowConsumer(of, target)
        meter = Meter()
        for batch in batches():
            more = consumer.take(batch)
            time.sleep(consumer.seconds(len(batch[of.column])))  # noqa: ASYNC251 - nothing else runs on this loop
            del batch
            if not more:
                break
        usage = meter.stop()
        consumer.check()
        return {**usage, "batches": consumer.batches}

    return run


def pyarrow_batches(*, pre_buffer: bool) -> Open:
    """``ParquetFile.iter_batches`` over Arrow's own file system; it reads ahead with ``pre_buffer``, its default."""

    def opener(target: Target) -> Callable[[], Iterator[Any]]:
        import pyarrow.parquet as pq

        filesystem = pyarrow_filesystem(target)
        with filesystem.open_input_file(f"{target.bucket}/{WARM_OBJECT}") as file:
            file.read()

        def batches() -> Iterator[Any]:
            with filesystem.open_input_file(f"{target.bucket}/{target.key}") as file:
                yield from pq.ParquetFile(file, pre_buffer=pre_buffer).iter_batches(PARQUET_ROWS)

        return batches

    return opener


def pyarrow_dataset(target: Target) -> Callable[[], Iterator[Any]]:
    """``pyarrow.dataset``: its scanner reads 16 batches ahead."""
    import pyarrow.dataset as ds

    filesystem = pyarrow_filesystem(target)
    with filesystem.open_input_file(f"{target.bucket}/{WARM_OBJECT}") as file:
        file.read()
    path = f"{target.bucket}/{target.key}"
    return lambda: ds.dataset(path, filesystem=filesystem, format="parquet").to_batches(batch_size=PARQUET_ROWS)


def polars_batches(target: Target) -> Callable[[], Iterator[Any]]:
    """``scan_parquet(...).collect_batches``, its streaming engine."""
    import polars as pl

    options = polars_options(target)
    url = f"s3://{target.bucket}/{target.key}"
    pl.scan_parquet(f"s3://{target.bucket}/{CHECK_OBJECT}", storage_options=options).head(8).collect()
    return lambda: pl.scan_parquet(url, storage_options=options).collect_batches(chunk_size=PARQUET_ROWS)


def pylance_batches(target: Target) -> Callable[[], Iterator[Any]]:
    """``read_all(...).to_batches()``, 16 of which it decodes ahead."""
    warm = pylance_reader(target, CHECK_OBJECT)
    warm.read_range(0, 8).to_table()
    kept = [warm]  # its connections are those of the other file

    def batches() -> Iterator[Any]:
        assert kept
        yield from pylance_results(target, {}, LANCE_ROWS).to_batches()

    return batches


def within_bound(medians: Mapping[str, Numbers]) -> str:
    """How far our memory grew, beside what is wanted."""
    ours = medians.get(OURS)
    if not ours:
        return ""
    grown, bound = ours["memory_growth_bytes"] / MIB, ours["bound_bytes"] / MIB
    verdict = "" if grown <= bound else ": too much"
    return (
        f"{OURS} grew by {grown:.0f} MiB; at most {bound:.0f} are wanted, which are the budget and "
        f"{READAHEAD_BATCHES} batches{verdict}."
    )


def memory_job(name: str, title: str, of: Format, write: Callable[..., None], peers: Mapping[str, Open]) -> Job:
    """A job of a format."""
    return Job(
        name=f"scan-memory-{name}",
        title=f"a consumer that takes 100 ms a batch, {title}",
        conditions=AT_A_DISTANCE,
        size_bytes=SIZE_BYTES,
        quick_size_bytes=QUICK_SIZE_BYTES,
        write=write,
        compare_all=True,
        rounds_max=3,
        contestants={
            OURS: our_scan(of, BUDGET_BYTES),
            OURS_DEFAULT: our_scan(of, None),
            **{peer: blocking_scan(of, opener) for peer, opener in peers.items()},
        },
        columns=(
            *(Column(name=MEMORY.name, heading=MEMORY.heading, unit=MIB, digits=0, ratio=True), PEAK),
            Column(name="gauge_bytes", heading="gauge MiB", unit=MIB, digits=1),
            *(WALL, CPU, GETS, OTHERS, SENT, Column(name="batches", heading="batches", digits=0)),
        ),
        remark=within_bound,
    )


PARQUET_PEERS: dict[str, Open] = {
    "pyarrow iter_batches": pyarrow_batches(pre_buffer=True),
    "pyarrow iter_batches, no pre_buffer": pyarrow_batches(pre_buffer=False),
    "pyarrow dataset": pyarrow_dataset,
    "polars collect_batches": polars_batches,
}
SCAN_MEMORY_JOBS = (
    memory_job(
        "parquet",
        "of a Parquet file of 640 MiB in pyarrow's row groups, 96 MiB each",
        PARQUET,
        write_default_groups,
        PARQUET_PEERS,
    ),
    memory_job(
        "lance",
        "of a Lance file of 640 MiB, version 2.0",
        LANCE,
        lance_writer("2.0"),
        {"pylance": pylance_batches},
    ),
)

"""The jobs ``batch-rows-*``: how many rows of a batch are best, for a consumer that touches every value once.

Small batches pay for each of their calls; large ones leave the CPU's caches between decoding and use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tests.benchmarks.clients import aioprefetch_operator
from tests.benchmarks.job import CHECK_OBJECT, CPU, GETS, PEAK_RATIO, SENT, WALL, Column, Contestant, Job, Numbers
from tests.benchmarks.lance_files import NARROW_ROW_BYTES, narrow_writer
from tests.benchmarks.parquet_clients import warm_pyarrow
from tests.benchmarks.parquet_files import COLUMNS, write_large
from tests.benchmarks.process_usage import Meter
from tests.benchmarks.simulator import LOOPBACK

if TYPE_CHECKING:
    import pyarrow as pa

    from tests.benchmarks.job import Sample, Target

KIB = 1024
BATCH_ROWS = (KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, 1024 * KIB)
PARQUET_BYTES = 244_000_000
LANCE_BYTES = 160_000_000
QUICK_BYTES = 12_000_000


def touched(batch: pa.RecordBatch) -> float:
    """The sum of every column: of numbers themselves, of texts the sum of their lengths."""
    import pyarrow as pa
    import pyarrow.compute as pc

    total = 0.0
    for column in batch.columns:
        is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        total += pc.sum(pc.binary_length(column) if is_text else column).as_py()
    return total


def summed(format_name: str, batch_rows: int) -> Contestant:
    """Scan with batches of ``batch_rows`` rows, and touch each batch as it comes."""

    async def run(target: Target) -> Sample:
        warm_pyarrow()
        async with aioprefetch_operator(target) as operator:
            scan: Any = scan_of(format_name)
            async for batch in scan(operator, CHECK_OBJECT, rows=(0, 8)):
                touched(batch)
            total, rows, batches = 0.0, 0, 0
            meter = Meter()
            async for batch in scan(operator, target.key, batch_rows=batch_rows):
                total += touched(batch)
                rows += batch.num_rows
                batches += 1
            usage = meter.stop()
        check(format_name, rows, total)
        return {**usage, "batches": batches, "rows": rows, "rows_per_batch": rows / batches}

    return run


def scan_of(format_name: str) -> Any:
    """``ap.parquet.scan`` or ``ap.lance.scan``."""
    from aioprefetch import lance, parquet

    return {"parquet": parquet, "lance": lance}[format_name].scan


def check(format_name: str, rows: int, total: float) -> None:
    """Compare the sum with the one expected of ``rows`` rows; AssertionError where it is far off.

    Doubles are evenly spread between 0 and 1. In the Lance file ids are the most by far, and their sum is known.
    """
    expected = rows * COLUMNS / 2 if format_name == "parquet" else rows * (rows - 1) / 2
    assert rows, "no rows"
    assert abs(total - expected) < 0.01 * expected, f"the sum is {total}, about {expected} was expected"


def fastest(medians: Mapping[str, Numbers]) -> str:
    """Which number of rows took the least time, and which the least CPU."""
    if not medians:
        return ""
    wall = min(medians, key=lambda name: medians[name]["wall_seconds"])
    cpu = min(medians, key=lambda name: medians[name]["cpu_seconds"])
    return f"The least wall time: {wall}; the least CPU: {cpu}."


def name_of(batch_rows: int) -> str:
    """How a contestant is called."""
    return f"aioprefetch, {batch_rows:,} rows a batch"


def rows_job(format_name: str, title: str, size_bytes: int, write: Any) -> Job:
    """A job of a format; the smallest batches are the base of the ratios."""
    return Job(
        name=f"batch-rows-{format_name}",
        title=f"a scan whose consumer sums every column, {title}",
        conditions=LOOPBACK,
        size_bytes=size_bytes,
        quick_size_bytes=QUICK_BYTES,
        write=write,
        compare_all=True,
        quick_contestants=(name_of(BATCH_ROWS[0]), name_of(BATCH_ROWS[3])),
        contestants={name_of(rows): summed(format_name, rows) for rows in BATCH_ROWS},
        columns=(WALL, CPU, GETS, SENT, PEAK_RATIO, Column(name="batches", heading="batches", digits=0)),
        remark=fastest,
    )


BATCH_ROWS_JOBS = (
    rows_job("parquet", "of a Parquet file of 244 MB, 96 bytes a row", PARQUET_BYTES, write_large),
    rows_job(
        "lance", f"of a Lance file of 160 MB, about {NARROW_ROW_BYTES} bytes a row", LANCE_BYTES, narrow_writer("2.0")
    ),
)

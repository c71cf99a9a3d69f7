"""Who reads Lance files: ``ap.lance`` and pylance's ``LanceFileReader``. Imports are inside: one library a process.

Each has read a row of the object under another key before its clock starts, so that code, connections and threads are
warm; nothing of the object itself is known to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tests.benchmarks.clients import ACCESS_KEY_ID, REGION, SECRET_ACCESS_KEY, aioprefetch_operator
from tests.benchmarks.job import CHECK_OBJECT, Contestant, Sample, Target
from tests.benchmarks.process_usage import Meter

if TYPE_CHECKING:
    import pyarrow as pa

# What is read: the arguments of ``ap.lance.scan`` (rows, take, columns) for an object.
What = Callable[[Target], Mapping[str, Any]]
# Compares what was read, outside the clock.
Check = Callable[["pa.Table", Target], None]

READ_TABLE = "aioprefetch lance.read_table"
SCAN = "aioprefetch lance.scan"
# pylance's own default is 1024 rows a batch; with as many as ours it has less to do.
PYLANCE = "pylance"
PYLANCE_DEFAULT = "pylance, 1024 rows a batch"
PYLANCE_BATCHES = "pylance, batches"
BATCH_ROWS = 65_536
PYLANCE_DEFAULT_ROWS = 1024


def read_table(what: What, check: Check) -> Contestant:
    """``await ap.lance.read_table(...)``."""

    async def run(target: Target) -> Sample:
        async with aioprefetch_operator(target) as operator:
            from aioprefetch import lance

            asked = what(target)
            await lance.read_table(operator, CHECK_OBJECT, rows=(0, 1))
            meter = Meter()
            table = await lance.read_table(operator, target.key, **asked)
            usage = meter.stop()
            check(table, target)
        return dict(usage)

    return run


def scan(what: What, check: Check) -> Contestant:
    """``async for batch in ap.lance.scan(...)``: the batches are kept, so that they can be compared."""

    async def run(target: Target) -> Sample:
        import pyarrow as pa

        async with aioprefetch_operator(target) as operator:
            from aioprefetch import lance

            asked = what(target)
            await lance.read_table(operator, CHECK_OBJECT, rows=(0, 1))
            first, batches = 0.0, []
            meter, began = Meter(), time.perf_counter()
            async for batch in lance.scan(operator, target.key, **asked):
                first = first or time.perf_counter() - began
                batches.append(batch)
            usage = meter.stop()
            check(pa.Table.from_batches(batches), target)
        return {**usage, "first_seconds": first, "batches": len(batches)}

    return run


def pylance_options(target: Target) -> dict[str, str]:
    """The options of pylance's store."""
    return {
        "endpoint": target.endpoint_url,
        "region": REGION,
        "aws_access_key_id": ACCESS_KEY_ID,
        "aws_secret_access_key": SECRET_ACCESS_KEY,
        "allow_http": "true",
    }


def pylance_reader(target: Target, key: str, columns: Sequence[str] | None = None) -> Any:
    """A file that is opened: its metadata has been read."""
    from lance.file import LanceFileReader

    url = f"s3://{target.bucket}/{key}"
    return LanceFileReader(url, pylance_options(target), list(columns) if columns else None)


def pylance_results(target: Target, asked: Mapping[str, Any], batch_rows: int) -> Any:
    """Open the object and start to read what was asked for."""
    reader = pylance_reader(target, target.key, asked.get("columns"))
    if "take" in asked:
        return reader.take_rows(asked["take"], batch_size=batch_rows)
    if "rows" in asked:
        start, stop = asked["rows"]
        return reader.read_range(start, stop - start, batch_size=batch_rows)
    return reader.read_all(batch_size=batch_rows)


def pylance_table(what: What, check: Check, batch_rows: int = BATCH_ROWS) -> Contestant:
    """``LanceFileReader(...).read_all().to_table()``, or the same of a range or of rows."""

    async def run(target: Target) -> Sample:
        asked = what(target)
        warm = pylance_reader(target, CHECK_OBJECT)  # kept: its connections are those of the other file
        warm.read_range(0, 1).to_table()
        meter = Meter()
        table = pylance_results(target, asked, batch_rows).to_table()
        usage = meter.stop()
        check(table, target)
        return dict(usage)

    return run


def pylance_batches(what: What, check: Check, batch_rows: int = BATCH_ROWS) -> Contestant:
    """The same, batch by batch."""

    async def run(target: Target) -> Sample:
        import pyarrow as pa

        asked = what(target)
        warm = pylance_reader(target, CHECK_OBJECT)
        warm.read_range(0, 1).to_table()
        first, batches = 0.0, []
        meter, began = Meter(), time.perf_counter()
        results: Iterator[pa.RecordBatch] = pylance_results(target, asked, batch_rows).to_batches()
        for batch in results:
            first = first or time.perf_counter() - began
            batches.append(batch)
        usage = meter.stop()
        check(pa.Table.from_batches(batches), target)
        return {**usage, "first_seconds": first, "batches": len(batches)}

    return run


def lance_contestants(what: What, check: Check) -> dict[str, Contestant]:
    """All of them."""
    return {
        READ_TABLE: read_table(what, check),
        SCAN: scan(what, check),
        PYLANCE: pylance_table(what, check),
        PYLANCE_DEFAULT: pylance_table(what, check, PYLANCE_DEFAULT_ROWS),
        PYLANCE_BATCHES: pylance_batches(what, check),
    }

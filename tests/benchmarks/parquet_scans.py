"""``ap.parquet`` as a contestant: the whole table awaited, its batches, and the reader that code without a loop has."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.benchmarks.clients import aioprefetch_blocking, aioprefetch_operator
from tests.benchmarks.job import WARM_OBJECT, Contestant, Sample, Target
from tests.benchmarks.parquet_clients import Check, warm_pyarrow
from tests.benchmarks.process_usage import Meter

if TYPE_CHECKING:
    import pyarrow as pa

# The names of these contestants.
READ_TABLE = "aioprefetch parquet.read_table"
SCAN = "aioprefetch parquet.scan"
TO_READER = "aioprefetch scan.to_reader"


def read_table(check: Check, columns: list[str] | None = None) -> Contestant:
    """``await ap.parquet.read_table(...)``."""

    async def run(target: Target) -> Sample:
        warm_pyarrow()
        async with aioprefetch_operator(target) as operator:
            parquet = our_parquet()
            await operator.read(WARM_OBJECT)
            meter = Meter()
            table = await parquet.read_table(operator, target.key, columns=columns)
            usage = meter.stop()
            check(table, target)
        return dict(usage)

    return run


def scan(check: Check, columns: list[str] | None = None) -> Contestant:
    """``async for batch in ap.parquet.scan(...)``: the batches are kept, so that they can be compared."""

    async def run(target: Target) -> Sample:
        import pyarrow as pa

        warm_pyarrow()
        async with aioprefetch_operator(target) as operator:
            parquet = our_parquet()
            await operator.read(WARM_OBJECT)
            meter = Meter()
            batches = [batch async for batch in parquet.scan(operator, target.key, columns=columns)]
            usage = meter.stop()
            check(pa.Table.from_batches(batches), target)
        return {**usage, "batches": len(batches)}

    return run


def to_reader(check: Check, columns: list[str] | None = None) -> Contestant:
    """``scan(...).to_reader().read_all()`` on a thread without a loop: the requests go over the loop of ``ap.sync``."""

    def blocking(target: Target) -> Sample:
        with aioprefetch_blocking(target) as operator:
            parquet = our_parquet()
            operator.read(WARM_OBJECT)
            meter = Meter()
            table: pa.Table = parquet.scan(operator.operator, target.key, columns=columns).to_reader().read_all()
            usage = meter.stop()
            check(table, target)
        return dict(usage)

    async def run(target: Target) -> Sample:
        warm_pyarrow()
        return await asyncio.to_thread(blocking, target)

    return run


def our_parquet() -> Any:
    """The module, loaded: imports are no part of what is measured."""
    from aioprefetch import parquet

    return parquet


def our_contestants(check: Check, columns: list[str] | None = None) -> dict[str, Contestant]:
    """All three."""
    return {
        READ_TABLE: read_table(check, columns),
        SCAN: scan(check, columns),
        TO_READER: to_reader(check, columns),
    }

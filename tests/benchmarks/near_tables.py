"""Tables from a server at hand: without delay and limit what is left is the CPU of the client."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from tests.benchmarks import tables
from tests.benchmarks.clients import CLIENTS
from tests.benchmarks.job import Bar, Job
from tests.benchmarks.our_clients import Ours
from tests.benchmarks.simulator import LOOPBACK

SMALL_ROWS, WIDE_COLUMNS = 100, 10_000


async def our_small_batches(client: Any, key: str, columns: tables.Columns) -> Any:
    """``scan`` in small batches."""
    import pyarrow as pa

    from aioprefetch import parquet

    return pa.Table.from_batches([one async for one in parquet.scan(client.operator, key, batch_rows=SMALL_ROWS)])


def small_batches(client: Any, key: str, columns: tables.Columns) -> Any:
    """``iter_batches`` of pyarrow."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.ParquetFile(client.path(key), filesystem=client.filesystem)
    return pa.Table.from_batches(list(file.iter_batches(SMALL_ROWS)))


def wide(path: Any = None, target: Any = None, columns: tables.Columns = None) -> Any:
    """Write, or compare, many columns of two rows: their size is what it is."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({f"column_{number:05}": [number, number + 1] for number in range(WIDE_COLUMNS)})
    if not isinstance(path, pa.Table):
        return pq.write_table(table, path)
    assert path.equals(table), "other values than were written"
    return target.size_bytes


def near_jobs(far: Job, ours: str, lake: str) -> tuple[Job, ...]:
    """The job of some columns without delay; many columns of two rows, and small batches."""

    def near(name: str, what: str, bar: float, aim: float, **more: Any) -> Job:
        bars = [Bar(f"{what}, CPU", ours, "cpu_seconds", bar, aim, (lake,))]
        return replace(far, name=f"parquet-{name}-loopback", conditions=LOOPBACK, bars=bars, **{"title": what, **more})

    table, small = partial(tables.table, columns=None), "1 M rows in batches of 100"
    readers = {name: table(tables.PARQUET_READERS[name], check=wide) for name in (ours, lake)}
    ways = {ours: (Ours, our_small_batches), lake: (CLIENTS["pyarrow"], small_batches)}
    batches = {name: table(way, check=tables.check_doubles) for name, way in ways.items()}
    sizes = {"size_bytes": 96_000_000, "quick_size_bytes": 9_600_000}
    return (
        near("columns", "3 of 12 columns without delay", 1.2, 1.05, title=far.title, quick="none"),
        near("wide", "10,000 columns of 2 rows", 2.5, 1.8, contestants=readers, write=wide, **sizes),
        near("small-batches", small, 2, 1.2, contestants=batches, **sizes),
    )

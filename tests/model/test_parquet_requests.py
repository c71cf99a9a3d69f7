"""How many requests a Parquet scan costs: those of the pure planner, counted at the store."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import aioprefetch as ap
from aioprefetch.cli.sample_file import sample_parquet
from aioprefetch.operator import Operator
from aioprefetch.parquet.byte_plan import GAP_SHARE, Plan
from aioprefetch.parquet.footer import TAIL_BYTES, TAIL_BYTES_EVERYTHING
from tests.model.arithmetic import MIB, Arithmetic, Distance, Read, repeated

pytestmark = pytest.mark.virtual

# The store of the oracles: 30 ms to the first byte, 90 MB/s for each connection.
FAR = Distance(first_byte_seconds=0.03, bytes_per_second=90e6)


def numbers_file(columns: int, row_groups: int, rows: int, **options: Any) -> bytes:
    """Row groups of columns of random numbers, which compress to nothing less."""
    random = np.random.default_rng(3)
    table = pa.table({f"c{n:02}": random.random(row_groups * rows) for n in range(columns)})
    sink = pa.BufferOutputStream()
    options = {"row_group_size": rows, "use_dictionary": False, "compression": "none", **options}
    pq.write_table(table, sink, **options)
    return bytes(sink.getvalue())


FIFTY = numbers_file(12, 50, 5_000)  # 24 MB
INDEXED = numbers_file(4, 4, 100_000, write_page_index=True, data_page_size=64 << 10)  # 12.8 MB


@dataclass(slots=True)
class Store:
    """A file far away, and what was asked of it."""

    data: bytes
    service: Arithmetic
    operator: Operator

    async def read(self, **options: Any) -> tuple[pa.Table, list[Read]]:
        """The table that a scan gives, and its requests but the one for the footer."""
        before = len(self.service.reads)
        table = await ap.parquet.read_table(self.operator, "k", **options)
        return table, self.service.reads[before:]

    async def plan(self, **options: Any) -> Plan:
        """The plan, and what it costs taken out of the log."""
        found: Plan = await ap.parquet.plan(self.operator, "k", **options)
        self.service.log.clear()
        return found


@asynccontextmanager
async def store_of(data: bytes) -> AsyncIterator[Store]:
    view = memoryview(data)
    service = Arithmetic(len(data), content=lambda start, end: view[start:end], distance=FAR)
    async with Operator(service) as operator:
        yield Store(data, service, operator)
    # What begins before the tail and ends in it is asked for whole.
    assert len(repeated(service.reads)) <= 1
    assert repeated(service.reads[1:]) == []
    assert service.stats == 0


def same_columns(data: bytes, **options: Any) -> pa.Table:
    return pq.read_table(pa.BufferReader(data), **options)


async def test_the_demo_is_one_request() -> None:
    data = sample_parquet()
    assert len(data) < TAIL_BYTES_EVERYTHING
    async with store_of(data) as store:
        table, requests = await store.read()
    assert requests == [(0, len(data))]
    assert table.equals(same_columns(data))


async def test_the_demo_by_columns_is_one_request_for_each_row_group_at_most() -> None:
    """polars 2 sends 51 for the same: the same tail, and one for each row group."""
    data, columns = sample_parquet(), ["column_00", "column_01", "column_02"]
    async with store_of(data) as store:
        table, requests = await store.read(columns=columns)
    assert requests[0] == (len(data) - TAIL_BYTES, len(data))
    assert len(requests) < 51
    assert table.equals(same_columns(data, columns=columns))


@pytest.mark.parametrize("columns", [[0, 1, 2], [1, 5, 9], [3, 4, 11]], ids=str)
async def test_three_of_twelve_columns_of_fifty_row_groups(columns: list[int]) -> None:
    """Exactly what is planned, for hardly more bytes than the columns have."""
    names = [f"c{number:02}" for number in columns]
    async with store_of(FIFTY) as store:
        table, requests = await store.read(columns=names)
    async with store_of(FIFTY) as store:
        plan = await store.plan(columns=names)
    footer_request, *others = requests
    assert footer_request == (len(FIFTY) - TAIL_BYTES, len(FIFTY))
    assert sorted(others) == sorted(plan.requests)
    assert sum(end - start for start, end in others) <= (1 + GAP_SHARE) * plan.projected_bytes
    if columns == [0, 1, 2]:
        assert len(requests) <= 51  # What polars 2 sends.
    assert table.equals(same_columns(FIFTY, columns=names))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"row_groups": [3, 4, 20]},
        {"rows": (7_000, 31_000), "columns": ["c02", "c03"]},
        {"gap_bytes": 1 << 20, "columns": ["c00", "c08"]},
        {"request_bytes_max": MIB},
    ],
    ids=str,
)
async def test_a_scan_sends_what_is_planned(options: dict[str, Any]) -> None:
    async with store_of(FIFTY) as store:
        plan = await store.plan(**options)
    async with store_of(FIFTY) as store:
        _, requests = await store.read(**options)
    assert sorted(requests[1:]) == sorted(plan.requests)


@pytest.mark.parametrize(
    "options", [{"rows": (120_000, 121_000)}, {"filters": [("c00", "<", -1.0)]}, {"rows": (0, 400_000)}], ids=str
)
async def test_pages_are_planned_too(options: dict[str, Any]) -> None:
    async with store_of(INDEXED) as store:
        plan = await store.plan(**options)
    async with store_of(INDEXED) as store:
        table, requests = await store.read(**options)
    assert sorted(requests[1:]) == sorted(plan.requests)
    if "rows" in options:
        start, stop = options["rows"]
        assert table.equals(same_columns(INDEXED).slice(start, stop - start))
    if options.get("rows") == (120_000, 121_000):
        assert plan.requested_bytes < 0.2 * 4 * 100_000 * 8  # Of the row group that holds these rows.
    if "filters" in options:
        assert (table.num_rows, plan.requests) == (0, ())


async def test_a_file_that_is_known_is_asked_for_no_more_than_its_columns() -> None:
    async with store_of(FIFTY) as store:
        await store.plan(columns=["c00"])
        footer = await ap.parquet.footer(store.operator, "k")
        store.service.log.clear()
        _, requests = await store.read(columns=["c00"], footer=footer)
        plan = await store.plan(columns=["c00"])
    assert sorted(requests) == sorted(plan.requests)

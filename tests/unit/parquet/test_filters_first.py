"""Columns of filters that are read before the others: what is requested then, and what is read at once as before."""

import asyncio
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import aioprefetch as ap
from tests.unit.parquet.parquet_files import written

PLAIN: dict[str, Any] = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
ROWS, GROUP_ROWS = 240_000, 20_000
INDEXED = {"write_page_index": True, "data_page_size": 65_536, "row_group_size": 120_000}


def the_table() -> pa.Table:
    """Matching rows side by side, which statistics do not show; others all over the table."""
    rng = np.random.default_rng(0)
    one = np.arange(ROWS)
    # The bounds of every page are alike.
    clustered = np.where((one >= 100_000) & (one < 102_000), 5, (one % 2) * 9)
    scattered = np.where(one % 50 == 0, 5, (one % 2) * 9)
    numbers = {f"c{number}": rng.random(ROWS) for number in range(6)}
    nested = {"st": pa.array([{"q": row, "r": None if row % 3 else "x"} for row in range(ROWS)])}
    return pa.table({"clustered": pa.array(clustered, pa.int32()), **numbers, "scattered": scattered, **nested})


TABLE = the_table()


async def read(data: bytes, **arguments: Any) -> tuple[pa.Table, int]:
    """What a scan gives, and the bytes of its requests for data."""
    async with ap.Operator.from_uri("memory://filters-first") as op:
        await op.write("t", data)
        table = await ap.parquet.read_table(op, "t", **arguments)
        return table, op.statistics["scan_bytes_requested"]


@pytest.mark.parametrize(
    ("column", "options", "share_min", "share_max"),
    [
        ("clustered", INDEXED, 0.0, 0.14),  # Pages with matching rows alone.
        ("clustered", {}, 0.0, 0.2),  # One row group of twelve.
        ("scattered", INDEXED, 1.0, 1.25),  # Everything, and the column of the filter twice.
        ("clustered", {"row_group_size": ROWS}, 1.0, 1.0),  # Nothing can be left out.
    ],
)
async def test_other_columns_are_read_where_rows_match(
    column: str, options: dict[str, Any], share_min: float, share_max: float
) -> None:
    data = written(TABLE, **PLAIN, **{"row_group_size": GROUP_ROWS, **options})
    columns = [column, *(f"c{number}" for number in range(6)), "st"]
    _, whole = await read(data, columns=columns)
    filters: Any
    for filters in ([(column, "==", 5)], pc.field(column) * 2 == 10):
        found, requested = await read(data, columns=columns, filters=filters)
        assert found.equals(TABLE.select(columns).filter(pc.field(column) == 5))
        assert share_min * whole <= requested <= share_max * whole


async def test_a_scan_that_is_left_early_leaves_nothing() -> None:
    """While the column of the filter is read, and after a part was given."""
    data = written(TABLE, **PLAIN, row_group_size=GROUP_ROWS)
    for batches in (0, 1):
        async with ap.Operator.from_uri("memory://left-early") as op:
            await op.write("t", data)
            async with ap.parquet.scan(op, "t", filters=pc.field("scattered") * 2 == 10) as scan:
                taken = asyncio.ensure_future(anext(scan))
                await asyncio.sleep(0)
                if batches:
                    assert (await taken).num_rows
                taken.cancel()
            assert op.runtime().budget.used_bytes == 0


async def test_an_error_in_the_column_of_the_filter_is_the_scans() -> None:
    data = bytearray(written(TABLE, row_group_size=GROUP_ROWS, **PLAIN))
    data[5000] ^= 1
    with pytest.raises(ap.UntrustedMetadata, match="clustered"):
        await read(bytes(data), filters=pc.field("clustered") * 2 == 10)

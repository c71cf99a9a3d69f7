"""Other libraries take a scan as an Arrow stream, and columns come where they were asked for."""

import asyncio

import pandas as pd
import polars as pl
import pyarrow as pa

import aioprefetch as ap
from aioprefetch.parquet.columns import Projection
from tests.unit.parquet.parquet_files import footer_at_hand, nested_table, written
from tests.unit.parquet.test_scan import DATA, by_pyarrow


async def test_other_libraries_take_the_stream() -> None:
    operator = ap.Operator.from_uri("memory://parquet-scan-citizens")
    await operator.write("k", DATA)
    await operator.aclose()

    def taken() -> tuple[pa.Table, pl.DataFrame, pd.DataFrame]:
        scan = ap.parquet.scan(operator, "k", columns=["i", "s"])
        return pa.table(scan), pl.DataFrame(scan), scan.to_reader().read_pandas()

    table, frame, pandas = await asyncio.to_thread(taken)
    expected = by_pyarrow(columns=["i", "s"])
    assert table.equals(expected)
    assert frame.equals(pl.DataFrame(expected))
    pd.testing.assert_frame_equal(pandas, expected.to_pandas())


def test_places_of_leaves() -> None:
    footer = footer_at_hand(written(nested_table()))
    leaves = [0, 2, 3, 6]
    made = Projection(footer, leaves, None)
    assert made.is_identity
    assert made.read.names == ["i", "b", "x.y", "m"]
    assert made.places == [0, 1, 2, 3]
    assert str(made.read.field("b").type) == "struct<d: string>"
    chosen = Projection(footer, [0, 1, 2], ["b.d", "i"])
    assert chosen.schema.names == ["d", "i"]
    assert not chosen.is_identity

# /// script
# requires-python = ">=3.11"
# dependencies = ["aioprefetch[parquet]", "polars", "pyarrow"]
# ///
"""Three columns of twelve out of a Parquet object: planned, streamed in batches, and handed to polars.

python parquet_scan.py                                        # makes a file in memory
python parquet_scan.py s3://bucket/prefix key.parquet a b c    # scans yours
"""

import asyncio
import io
import sys

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

import aioprefetch as ap


async def main(url: str, path: str, columns: list[str]) -> None:
    """Plan, stream, and hand over."""
    async with ap.Operator.from_uri(url) as operator:
        if url.startswith("memory:"):
            await operator.write(path, sample())
        plan = await ap.parquet.plan(operator, path, columns=columns)
        print(f"planned: {len(plan.requests)} requests for {len(plan.chunks)} column chunks")

        rows = 0
        async for batch in ap.parquet.scan(operator, path, columns=columns, batch_rows=20_000):
            rows += batch.num_rows
        print(f"streamed: {rows} rows")

        # An Arrow stream for code that has no loop: here on a thread of its own.
        frame = await asyncio.to_thread(pl.DataFrame, ap.parquet.scan(operator, path, columns=columns))
        print(f"polars: {frame.shape}")


def sample() -> bytes:
    """A Parquet file of 12 columns in 50 row groups."""
    table = pa.table({f"c{n}": [float(row * n) for row in range(50_000)] for n in range(12)})
    stored = io.BytesIO()
    pq.write_table(table, stored, row_group_size=1000, use_dictionary=False, compression="none")
    return stored.getvalue()


if __name__ == "__main__":
    arguments = sys.argv[1:] or ["memory://parquet-scan", "k.parquet", "c1", "c5", "c9"]
    asyncio.run(main(arguments[0], arguments[1], arguments[2:]))

# /// script
# requires-python = ">=3.11"
# dependencies = ["aioprefetch[polars]", "polars"]
# ///
"""A lazy frame over a table of many files: columns, predicates and first rows decide what is read.

python polars_frames.py                               # makes a table in memory
python polars_frames.py 's3://bucket/table/*.parquet'  # the first rows of yours
"""

import io
import sys

import polars as pl

import aioprefetch as ap


def main(url: str) -> None:
    """Ask for a few rows, and for a sum of one month."""
    if url.startswith("memory:"):
        ap.sync.run(write_sample(ap.Operator.from_uri("memory://polars-frames")))
    table = ap.polars.scan_parquet(url)
    print(table.head(2).collect())
    if url.startswith("memory:"):
        of_may = table.filter(pl.col("month") == 5).select(pl.col("value").sum())
        print("sum of May:", of_may.collect(engine="streaming").item())


async def write_sample(operator: ap.Operator) -> None:
    """Twelve files, one a month."""
    for month in range(1, 13):
        stored = io.BytesIO()
        pl.DataFrame({"id": range(1000), "value": [month] * 1000}).write_parquet(stored)
        await operator.write(f"table/month={month}/part-0.parquet", stored.getvalue())


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "memory://polars-frames/table/")

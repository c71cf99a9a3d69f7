# /// script
# requires-python = ">=3.11"
# dependencies = ["aioprefetch[arrow]", "pyarrow"]
# ///
"""pyarrow writes and reads a partitioned dataset, and one table of it, through an operator.

The store is in memory, so that the example runs anywhere; with ``Operator.from_uri("s3://bucket/prefix")`` it is S3.
"""

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow.fs import FileSelector

import aioprefetch as ap


def main() -> None:
    """Write a dataset in partitions, read a part of it by a filter, and see that a failing write leaves nothing."""
    op = ap.Operator.from_uri("memory://lake")
    fs = ap.arrow.filesystem(op)
    table = pa.table({"id": range(100_000), "value": [n / 7 for n in range(100_000)], "day": ["mon", "tue"] * 50_000})
    partitioning = ds.partitioning(pa.schema([("day", pa.string())]), flavor="hive")
    ds.write_dataset(table, "events", filesystem=fs, format="parquet", partitioning=partitioning)

    events = ds.dataset("events", filesystem=fs, partitioning=partitioning)
    monday = events.to_table(columns=["id"], filter=ds.field("day") == "mon")
    print("dataset:", events.count_rows(), "rows, of them on Monday:", monday.num_rows)

    before = op.statistics["action_http_get_request"]
    ids = pq.read_table("events/day=tue/part-0.parquet", filesystem=fs, columns=["id"])
    print("table:", ids.num_rows, "rows, GET requests:", op.statistics["action_http_get_request"] - before)

    # The divisor of the last row is 0, and the rows before it are on their way by then.
    share = pc.scalar(100_000) / (pc.scalar(99_999) - ds.field("id"))
    try:
        scanner = ds.dataset(table).scanner(columns={"share": share}, batch_size=10_000)
        ds.write_dataset(scanner, "half", filesystem=fs, format="parquet")
    except pa.ArrowInvalid as error:
        files = fs.get_file_info(FileSelector("half", allow_not_found=True, recursive=True))
        print(f"{error}:", [info.path for info in files if info.is_file])
    fs.handler.close()


if __name__ == "__main__":
    main()

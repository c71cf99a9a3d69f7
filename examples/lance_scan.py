# /// script
# requires-python = ">=3.11"
# dependencies = ["aioprefetch[lance]", "pyarrow", "pylance"]
# ///
"""A Lance dataset without Lance: pylance writes it, aioprefetch reads it, asynchronously.

python lance_scan.py                            # writes a dataset into a temporary directory
python lance_scan.py s3://bucket/prefix table   # scans yours
"""

import asyncio
import sys
import tempfile

import aioprefetch as ap


async def main(url: str, path: str) -> None:
    """Scan the latest version, take some rows of it, and open the first version."""
    async with ap.Operator.from_uri(url) as operator:
        rows = 0
        async for batch in ap.lance.scan(operator, path, batch_rows=4096):
            rows += batch.num_rows
        print(f"latest version: {rows} rows")

        taken = await ap.lance.read_table(operator, path, take=[7, 3, 3])
        print(f"taken: {taken.to_pylist()}")

        first = await ap.lance.open_dataset(operator, path, version=1)
        print(f"version {first.version}: {first.count_rows()} rows")


def write_dataset(directory: str) -> None:
    """Ten thousand rows, of which the second version lacks every other one."""
    import lance
    import pyarrow as pa

    table = pa.table({"id": range(10_000), "name": [f"name {n}" for n in range(10_000)]})
    lance.write_dataset(table, f"{directory}/table").delete("id % 2 = 1")


if __name__ == "__main__":
    if sys.argv[1:]:
        asyncio.run(main(*sys.argv[1:]))
    else:
        with tempfile.TemporaryDirectory() as made:
            write_dataset(made)
            asyncio.run(main(f"file://{made}", "table"))

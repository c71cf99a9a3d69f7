# /// script
# requires-python = ">=3.11"
# dependencies = ["aioprefetch[parquet,progress]", "pyarrow"]
# ///
"""The cells of a notebook as a script: what the last line of each would show is written into a page to look at.

In a notebook `await` works at the top of a cell, and an object on the last line shows itself.
"""

import asyncio
import io
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import aioprefetch as ap


async def main() -> str:
    """Read, list and plan; returns what is shown as a page."""
    outputs = []
    async with ap.Operator.from_uri(f"file://{Path.cwd() / 'bucket'}", block_bytes="1 MiB", attempts_max=6) as op:
        outputs.append(op)

        table = pa.table({name: range(500_000) for name in "abcdefgh"})
        pq.write_table(table, written := io.BytesIO(), row_group_size=100_000)
        await op.write("tables/t.parquet", written.getvalue())
        outputs.append(await op.list("tables/").collect())

        async with op.reader("tables/t.parquet") as reader:
            before = op.statistics
            await reader.read(3 << 20)
            await reader.read_at(reader.size - 1000, 1000)
            outputs.append(reader)
            outputs.append(op.statistics - before)
            outputs.append(await ap.parquet.plan(op, "tables/t.parquet", columns=["c", "f"]))
            page = "<hr>".join(output._repr_html_() for output in outputs)

        bars = ap.progress.tqdm(file=sys.stdout)
        await op.download("tables/t.parquet", "t.parquet", on_progress=bars)
    print(len(outputs), "outputs in outputs.html")
    return f"<!doctype html><meta charset='utf-8'>{page}"


if __name__ == "__main__":
    Path("outputs.html").write_text(asyncio.run(main()), "utf-8")

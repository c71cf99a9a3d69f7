# /// script
# requires-python = ">=3.11"
# dependencies = ["aioprefetch[lance]", "pyarrow", "pylance"]
# ///
"""The two loops of a Lance scan, seen: one schedules reads ahead, one decodes, and a slow consumer holds both back.

The plan says what will be read. While the consumer works on a batch, reads go on, up to the memory of the operator, and
no further. The picture of it all is one page of HTML.
"""

import asyncio
import tempfile
from pathlib import Path

import lance
import pyarrow as pa

import aioprefetch as ap

KIB, MIB = 1 << 10, 1 << 20
ROWS = 100_000


def write_dataset(folder: str) -> None:
    """8 MiB in 16 fragments."""
    table = pa.table({"id": range(ROWS), "text": [f"{n:080}" for n in range(ROWS)]})
    lance.write_dataset(table, f"{folder}/table", max_rows_per_file=ROWS // 16)


async def main(folder: str) -> None:
    """Plan, scan slowly, and write the picture."""
    async with ap.Operator.from_uri(Path(folder), memory_bytes=2 * MIB, block_bytes=256 * KIB) as op:
        plan = await ap.lance.plan(op, "table", columns=["text"])
        print(f"planned: {plan.rows} rows in {sum(len(one.requests) for one in plan.files)} requests")
        budget, rows, most = op.runtime().budget, 0, 0
        with ap.trace.record(op) as trace:
            async for batch in ap.lance.scan(op, "table", columns=["text"], batch_rows=4096):
                rows += batch.num_rows
                await asyncio.sleep(0.005)  # The consumer is slower than the disk: the loops wait for it.
                most = max(most, budget.used_bytes)
        print(f"{rows} rows; at most {most / MIB:.1f} of 2 MiB were held:", most <= 2 * MIB)
        page = Path(tempfile.gettempdir()) / "lance-scan.html"
        trace.write_html(page)
        print(f"open {page} in a browser: the reads are ahead of the batches, and stop where memory ends")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        write_dataset(made)
        asyncio.run(main(made))

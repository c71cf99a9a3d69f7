"""A consumer that takes its time holds a bounded part of a file five times the budget in memory, in either format."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.files.lance_files import write_file
from tests.profile import few
from tests.repository.source_tree import ROOT

MIB = 1 << 20
BUDGET_BYTES = 32 * MIB
BATCH_ROWS = 16_384
READAHEAD = 4

# Reads some rows first, so that what every scan needs is there. Then each batch is taken when the budget
# has not moved for many turns.
PROGRAM = """
import asyncio, sys
import aioprefetch as ap

def resident():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon"))

async def main(directory, name, budget_bytes, batch_rows):
    scan = getattr(ap, name.rpartition(".")[2]).scan
    async with ap.Operator.from_uri(f"file://{directory}") as warm:
        async for batch in scan(warm, name, rows=(0, 100)):
            batch = None
    async with ap.Operator.from_uri(f"file://{directory}", memory_bytes=budget_bytes, block_bytes=1 << 20) as operator:
        base = most = resident()
        largest = rows = 0
        async for batch in scan(operator, name, batch_rows=batch_rows):
            largest, rows = max(largest, batch.nbytes), rows + batch.num_rows
            quiet, before = 0, None
            while quiet < 500:
                await asyncio.sleep(0)
                used = operator.runtime().budget.used_bytes
                quiet, before = (quiet + 1, used) if used == before else (0, used)
            most = max(most, resident())
        print(rows, largest, operator.runtime().budget.peak_bytes, most - base)

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
"""


def numbers(rows: int) -> pa.Table:
    """Ten columns of doubles."""
    random = np.random.default_rng(1)
    return pa.table({f"c{index}": random.random(rows) for index in range(10)})


def texts(rows: int) -> pa.Table:
    """A column of strings of 90 bytes or so, and its numbers."""
    return pa.table({"text": [f"{row:08}" * (8 + row % 8) for row in range(rows)], "row": np.arange(rows)})


def parquet(table: pa.Table, path: Path) -> None:
    """One row group."""
    pq.write_table(table, path, row_group_size=1 << 30, use_dictionary=False, compression="none")


# What allocators keep of memory that is free, and decoders need for a moment. Compressed strings of Lance 2.2 need
# most: codes become characters by numpy, and are joined and taken by Arrow; both allocators give memory back late.
SLACK_BYTES = {
    "numbers.parquet": 16 * MIB,
    "texts.parquet": 32 * MIB,
    "numbers.lance": 16 * MIB,
    "texts.lance": 136 * MIB,
}
FILES: dict[str, Callable[[Path], object]] = {
    "numbers.parquet": lambda path: parquet(numbers(2_000_000), path),
    "texts.parquet": lambda path: parquet(texts(1_600_000), path),
    "numbers.lance": lambda path: write_file(numbers(2_000_000), "2.0", 10 << 20, path, batch_rows=50_000),
    "texts.lance": lambda path: write_file(texts(1_600_000), "2.2", 2 << 20, path, batch_rows=50_000),
}


def wide(rows: int) -> pa.Table:
    """Strings of 10 kB."""
    noise = np.random.default_rng(1).bytes(1 << 20).hex()
    return pa.table({"row": np.arange(rows), "text": [noise[7 * row : 7 * row + 10_000] for row in range(rows)]})


def one_text(path: Path) -> None:
    """20,000 rows of one text of 40 kB, in a file of 150 kB, as Spark writes it: without Arrow's types."""
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int32()), pa.array(["x" * 40_000]))
    pq.write_table(pa.table({"row": np.arange(20_000), "text": text}), path, store_schema=False)


# Of rows that are wide a batch has few.
WIDE: dict[str, Callable[[Path], object]] = {
    "wide.parquet": lambda path: parquet(wide(20_000), path),
    "wide.2.0.lance": lambda path: write_file(wide(20_000), "2.0", 32 << 20, path, batch_rows=5_000),
    "wide.2.1.lance": lambda path: write_file(wide(20_000), "2.1", 128 << 20, path, batch_rows=10_000),
    "one_text.parquet": one_text,
}
WIDE_BYTES_MAX = 6 * BUDGET_BYTES


def scanned(directory: Path, name: str, batch_rows: int) -> tuple[int, ...]:
    """Rows, the bytes of the largest batch, of the budget's peak and of the growth of a process of its own."""
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(directory), name, str(BUDGET_BYTES), str(batch_rows)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr
    return tuple(map(int, run.stdout.split()))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("name", few(FILES, lambda _, name: name == "numbers.lance"))
def test_memory_is_bounded(name: str, tmp_path: Path) -> None:
    FILES[name](tmp_path / name)
    assert name == "texts.lance" or (tmp_path / name).stat().st_size > 4 * BUDGET_BYTES
    rows, largest, peak, growth = scanned(tmp_path, name, BATCH_ROWS)
    assert rows in (2_000_000, 1_600_000)
    assert peak <= BUDGET_BYTES + largest * READAHEAD
    assert growth <= BUDGET_BYTES + largest * READAHEAD + SLACK_BYTES[name]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("name", few(WIDE, lambda _, name: name == "one_text.parquet"))
def test_wide_rows_take_no_more_memory(name: str, tmp_path: Path) -> None:
    """In batches of the usual number of rows they would take hundreds of megabytes."""
    WIDE[name](tmp_path / name)
    rows, largest, _, growth = scanned(tmp_path, name, 65_536)
    assert rows == 20_000
    assert largest <= BUDGET_BYTES // 8
    assert growth <= WIDE_BYTES_MAX

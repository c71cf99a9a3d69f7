"""The Lance objects of the benchmarks: written by pylance, the same at every run, and compared with what was read.

Four columns: ids that ascend, random doubles, short texts, and vectors of 128 random floats, which are nine tenths of
the file. Pages are as large as pylance makes them by default.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

NAMES = ("id", "value", "text", "vector")
DIMENSION = 128
VERSIONS = ("2.0", "2.2")
# What a row takes in a file of each version; 2.2 packs ids and compresses texts.
ROW_BYTES = {"2.0": 555.3, "2.2": 530.8}
# Of a file without vectors.
NARROW_ROW_BYTES = 52
# pylance cuts pages by what it holds, and what it is given at once is never cut: this is what datasets give it.
WRITE_ROWS = 8192
WORDS = ("ridge", "harbour", "lantern", "meadow", "copper", "quarry", "willow", "thicket")


def lance_table(rows: int) -> pa.Table:
    """The first ``rows`` rows, in batches of ``WRITE_ROWS``."""
    import pyarrow as pa

    return pa.Table.from_batches(_batches(rows))


def narrow_table(rows: int) -> pa.Table:
    """The same without vectors, and with the doubles three times."""
    import pyarrow as pa

    table = pa.Table.from_batches(_batches(rows, vectors=False))
    return table.append_column("again", table["value"]).append_column("and again", table["value"])


def _batches(rows: int, *, vectors: bool = True) -> list[pa.RecordBatch]:
    return [_batch(at, min(at + WRITE_ROWS, rows), vectors=vectors) for at in range(0, rows, WRITE_ROWS)]


def _batch(start: int, end: int, *, vectors: bool) -> pa.RecordBatch:
    """Rows ``[start, end)``; a batch follows from where it starts alone."""
    import numpy as np
    import pyarrow as pa

    random = np.random.default_rng(start)
    rows = end - start
    columns: dict[str, pa.Array] = {
        "id": pa.array(np.arange(start, end)),
        "value": pa.array(random.random(WRITE_ROWS)[:rows]),
        "text": pa.array([f"{WORDS[row % 7]} {WORDS[row % 8]} {row * 7919 % 100_003}" for row in range(start, end)]),
    }
    if vectors:
        floats = random.random((WRITE_ROWS, DIMENSION), dtype=np.float32)[:rows]
        columns["vector"] = pa.FixedSizeListArray.from_arrays(pa.array(floats.reshape(-1)), DIMENSION)
    return pa.RecordBatch.from_pydict(columns)


def lance_writer(version: str) -> Callable[[Path, int], None]:
    """Writes a file of a version of the format, of as many rows as take about ``size_bytes`` in version 2.0."""

    def write(path: Path, size_bytes: int) -> None:
        _write(path, _batches(rows_of(size_bytes, VERSIONS[0])), version)

    return write


def narrow_writer(version: str) -> Callable[[Path, int], None]:
    """The same without vectors."""

    def write(path: Path, size_bytes: int) -> None:
        _write(path, narrow_table(size_bytes // NARROW_ROW_BYTES).to_batches(), version)

    return write


def _write(path: Path, batches: list[pa.RecordBatch], version: str) -> None:
    from lance.file import LanceFileWriter

    with LanceFileWriter(str(path), batches[0].schema, version=version) as writer:
        for batch in batches:
            writer.write_batch(batch)


def rows_of(size_bytes: int, version: str) -> int:
    """The rows of a file of about this size: the number of whole batches that is nearest."""
    return max(1, round(size_bytes / ROW_BYTES[version] / WRITE_ROWS)) * WRITE_ROWS


def check_lance(found: pa.Table, expected: pa.Table) -> None:
    """Compare every value, wherever batches end.

    Raises:
        AssertionError: these are not the columns, the number of rows or the values.
    """
    assert found.column_names == expected.column_names, f"columns {found.column_names}"
    assert found.num_rows == expected.num_rows, f"{found.num_rows} rows of {expected.num_rows}"
    for name in expected.column_names:
        assert found[name].equals(expected[name]), f"{name} has other values than were written"

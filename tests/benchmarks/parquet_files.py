"""The Parquet objects of the benchmarks: made the same at every run, and compared with what a contestant read.

Values are doubles from seeded generators, without dictionary and compression: nothing hides in them, their sizes are
known, and a column can be made again alone to compare it with.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = 12
NAMES = tuple(f"column_{index:02}" for index in range(COLUMNS))
ROW_GROUPS = 10
# Of the file whose chunks are small beside a round trip.
MANY_ROW_GROUPS = 50
VALUE_BYTES = 8
# The demo's file has 50 row groups of about 16 kB.
DEMO_GROUPS = 50
DEMO_GROUP_BYTES = 16_000


def column_values(index: int, rows: int) -> Any:
    """A column of the large file, as a numpy array of doubles."""
    import numpy as np

    return np.random.default_rng(index).random(rows)


def write_large(path: Path, size_bytes: int) -> None:
    """Write 12 columns of doubles in 10 row groups; a column chunk is about a 120th of the file."""
    _write_doubles(path, size_bytes, row_groups=ROW_GROUPS)


def write_many_groups(path: Path, size_bytes: int) -> None:
    """Write the same columns in 50 row groups."""
    _write_doubles(path, size_bytes, row_groups=MANY_ROW_GROUPS)


def write_default_groups(path: Path, size_bytes: int) -> None:
    """Write the same columns in row groups of as many rows as pyarrow gives them: 1,048,576, which are 100 MB."""
    _write_doubles(path, size_bytes, row_groups=None)


def _write_doubles(path: Path, size_bytes: int, *, row_groups: int | None) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = size_bytes // (COLUMNS * VALUE_BYTES)
    table = pa.table({name: column_values(index, rows) for index, name in enumerate(NAMES)})
    group_rows = -(-rows // row_groups) if row_groups else None
    pq.write_table(table, path, row_group_size=group_rows, use_dictionary=False, compression="none")


def check_large(table: pa.Table, size_bytes: int, columns: tuple[str, ...]) -> None:
    """Compare every value of the columns that were asked for.

    ``size_bytes`` is the size of the object, a little more than its values.

    Raises:
        AssertionError: these are not the columns, the number of rows or the values.
    """
    import numpy as np

    assert tuple(table.column_names) == columns, f"columns {table.column_names}"
    # Footer and page heads take less than a row for every hundred, and rows of different files differ by thousands.
    rows = table.num_rows
    values_bytes = rows * COLUMNS * VALUE_BYTES
    assert 0.99 * size_bytes < values_bytes < size_bytes, f"{rows} rows of an object of {size_bytes} bytes"
    for name in columns:
        same = np.array_equal(table.column(name).to_numpy(), column_values(NAMES.index(name), rows))
        assert same, f"{name} has other values than were written"


def write_demo(path: Path, size_bytes: int) -> None:
    """Write the demo's file, or its first row groups: one for each 16,000 bytes."""
    import pyarrow.parquet as pq

    from aioprefetch.cli.demo import ROWS_PER_GROUP, sample_parquet

    groups = size_bytes // DEMO_GROUP_BYTES
    if groups >= DEMO_GROUPS:
        path.write_bytes(sample_parquet())
        return
    pq.write_table(demo_table(groups), path, row_group_size=ROWS_PER_GROUP, use_dictionary=False, compression="none")


def demo_table(groups: int) -> pa.Table:
    """The first row groups of the demo's file, out of memory."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from aioprefetch.cli.demo import sample_parquet

    return pq.ParquetFile(pa.BufferReader(sample_parquet())).read_row_groups(range(min(groups, DEMO_GROUPS)))


def check_demo(table: pa.Table, size_bytes: int) -> None:
    """Compare with the demo's file; ``size_bytes`` is the size of the object.

    Raises:
        AssertionError: rows or values are others than were written.
    """
    found = demo_table(size_bytes // DEMO_GROUP_BYTES)
    assert table.num_rows == found.num_rows, f"{table.num_rows} rows of {found.num_rows}"
    assert table.equals(found), "other values than were written"

"""The Parquet file of the demo: 50 row groups of 12 columns in about 800 KiB, the same bytes at every run."""

from __future__ import annotations

import random

from aioprefetch.errors import MissingDependency

ROW_GROUPS = 50
COLUMNS = 12
ROWS_PER_GROUP = 148


def sample_parquet() -> bytes:
    """The file's bytes. Needs pyarrow."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingDependency(
            "the demo needs pyarrow: pip install 'aioprefetch[parquet]'", operation="demo"
        ) from error
    noise = random.Random(12)
    rows = ROW_GROUPS * ROWS_PER_GROUP
    # Doubles from noise compress to nothing less, so that each of the 600 column chunks has the same, known size.
    columns = {f"column_{index:02}": [noise.random() for _ in range(rows)] for index in range(COLUMNS)}
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink, row_group_size=ROWS_PER_GROUP, use_dictionary=False, compression="none")
    return bytes(sink.getvalue())

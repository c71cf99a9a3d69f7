"""Files whose footers are read, and how."""

import sys
from typing import Any

import numpy as np
import pyarrow as pa

from aioprefetch.parquet.footer import TAIL_BYTES, Footer, FooterCache, footer
from tests.stores.gated_reader import Bench
from tests.unit.parquet.parquet_files import written

# The package has a function of the same name.
footer_module = sys.modules[FooterCache.__module__]

PLAIN = written(pa.table({"a": np.arange(100), "s": [str(n) for n in range(100)]}), row_group_size=30)
FIRST = (-TAIL_BYTES, None)


def large_file(metadata_bytes: int = 2 * TAIL_BYTES) -> bytes:
    """A file whose footer is larger than a tail."""
    table = pa.table({"a": np.random.default_rng(1).random(1 << 17)})
    return written(table.replace_schema_metadata({"k": "v" * metadata_bytes}), compression="none")


async def read(b: Bench, data: bytes, path: str = "k", **options: Any) -> Footer:
    b.put(data, path)
    return await footer(b.operator, path, **options)

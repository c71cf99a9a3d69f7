"""Parquet files over any store: few requests, known beforehand, decoded by pyarrow while they arrive.

``scan`` streams record batches of a file or of many as one table, ``read_table`` collects them, ``count_rows`` counts
them, ``plan`` and ``plan_files`` list the reads, ``footer`` reads the metadata alone, once for all scans of a file.

These names load at their first use, and pyarrow with them: ``layout``, which a reader imports when the footer of a
Parquet file passes by, needs neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioprefetch.first_use import load_at_first_use

if TYPE_CHECKING:
    from aioprefetch.parquet.byte_plan import FilesPlan, Plan, PlannedChunk
    from aioprefetch.parquet.footer import Footer, footer
    from aioprefetch.parquet.scan import count_rows, plan, plan_files, read_table, scan
    from aioprefetch.parquet.tables import delta_files, iceberg_files

__all__ = [
    "FilesPlan",
    "Footer",
    "Plan",
    "PlannedChunk",
    "count_rows",
    "delta_files",
    "footer",
    "iceberg_files",
    "plan",
    "plan_files",
    "read_table",
    "scan",
]

load_at_first_use(
    __name__,
    {
        "scan": ("count_rows", "plan", "plan_files", "read_table", "scan"),
        "footer": ("Footer", "footer"),
        "byte_plan": ("FilesPlan", "Plan", "PlannedChunk"),
        "tables": ("delta_files", "iceberg_files"),
    },
    extra="parquet",
)

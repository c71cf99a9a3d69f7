"""Parquet files over any store: few requests, known beforehand, decoded by pyarrow while they arrive.

``scan`` streams record batches, ``read_table`` collects them, ``plan`` lists their reads, ``footer`` reads the
metadata alone, once for all scans of a file.
"""

from aioprefetch.parquet.byte_plan import Plan, PlannedChunk
from aioprefetch.parquet.footer import Footer, footer
from aioprefetch.parquet.footer_walk import chunk_pattern
from aioprefetch.parquet.plan import plan
from aioprefetch.parquet.scan import read_table, scan

# Takes some milliseconds, which the first footer would wait for.
chunk_pattern()

__all__ = ["Footer", "Plan", "PlannedChunk", "footer", "plan", "read_table", "scan"]

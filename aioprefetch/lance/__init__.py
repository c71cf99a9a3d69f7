"""Lance files and datasets, read without Lance: versions 2.0, 2.1 and 2.2.

``scan`` streams record batches, ``read_table`` collects them, ``count_rows`` counts, ``plan`` lists the reads of a
scan, ``open_dataset`` opens any version of a dataset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioprefetch.first_use import load_at_first_use

if TYPE_CHECKING:
    from aioprefetch.lance.dataset import LanceDataset, open_dataset
    from aioprefetch.lance.footer import LanceFile, open_file
    from aioprefetch.lance.scan import FilePlan, Plan, PlannedPage, count_rows, plan, read_table, scan
    from aioprefetch.lance.versions import DatasetVersion

__all__ = [
    "DatasetVersion",
    "FilePlan",
    "LanceDataset",
    "LanceFile",
    "Plan",
    "PlannedPage",
    "count_rows",
    "open_dataset",
    "open_file",
    "plan",
    "read_table",
    "scan",
]

load_at_first_use(
    __name__,
    {
        "versions": ("DatasetVersion",),
        "dataset": ("LanceDataset", "open_dataset"),
        "footer": ("LanceFile", "open_file"),
        "scan": ("FilePlan", "Plan", "PlannedPage", "count_rows", "plan", "read_table", "scan"),
    },
    extra="lance",
)

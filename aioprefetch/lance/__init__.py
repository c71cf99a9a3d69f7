"""Lance files and datasets, read without Lance: versions 2.0, 2.1 and 2.2.

``scan`` streams record batches, ``read_table`` collects them, ``plan`` lists the reads of a scan, ``open_dataset``
opens any version of a dataset.
"""

from aioprefetch.lance.dataset import DatasetVersion, LanceDataset, open_dataset
from aioprefetch.lance.footer import LanceFile, open_file
from aioprefetch.lance.plan import FilePlan, Plan, PlannedPage, plan
from aioprefetch.lance.scan import read_table, scan

__all__ = [
    "DatasetVersion",
    "FilePlan",
    "LanceDataset",
    "LanceFile",
    "Plan",
    "PlannedPage",
    "open_dataset",
    "open_file",
    "plan",
    "read_table",
    "scan",
]

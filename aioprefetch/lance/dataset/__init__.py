"""Lance datasets: versions, fragments and deleted rows over Lance files. Read-only."""

from aioprefetch.lance.dataset.dataset import LanceDataset, open_dataset
from aioprefetch.lance.dataset.versions import DatasetVersion

__all__ = ["DatasetVersion", "LanceDataset", "open_dataset"]

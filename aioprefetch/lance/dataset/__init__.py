"""Lance datasets: versions, fragments and deleted rows over Lance files. Read-only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioprefetch.first_use import load_at_first_use

if TYPE_CHECKING:
    from aioprefetch.lance.dataset.dataset import LanceDataset, open_dataset
    from aioprefetch.lance.dataset.versions import DatasetVersion

__all__ = ["DatasetVersion", "LanceDataset", "open_dataset"]

load_at_first_use(
    __name__,
    {
        "LanceDataset": "dataset",
        "open_dataset": "dataset",
        "DatasetVersion": "versions",
    },
)

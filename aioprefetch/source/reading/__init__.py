"""Planning, schema inference and reading of items: from files to record batches of one schema.

``plan_batch`` and ``infer_schema`` run where a job is planned, ``read_items`` in its tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import aioprefetch.lance.scan  # noqa: F401 - its import takes longer than a loop may be held, so not at the first file
from aioprefetch.first_use import load_at_first_use

if TYPE_CHECKING:
    from aioprefetch.source.reading.planning import InferredSchema, infer_schema, list_files, plan_batch, sample_texts
    from aioprefetch.source.reading.read_items import read_items
    from aioprefetch.source.reading.task import Quarantine, ReadTask, quarantine_to, reason_of

__all__ = [
    "InferredSchema",
    "Quarantine",
    "ReadTask",
    "infer_schema",
    "list_files",
    "plan_batch",
    "quarantine_to",
    "read_items",
    "reason_of",
    "sample_texts",
]

load_at_first_use(
    __name__,
    {
        "planning": ("list_files", "plan_batch", "InferredSchema", "infer_schema", "sample_texts"),
        "task": ("quarantine_to", "reason_of", "Quarantine", "ReadTask"),
        "read_items": ("read_items",),
    },
)

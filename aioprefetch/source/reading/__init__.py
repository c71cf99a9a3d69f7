"""Planning, schema inference and reading of items: from files to record batches of one schema.

``plan_batch`` and ``infer_schema`` run where a job is planned, ``read_items`` in its tasks.
"""

from __future__ import annotations

import aioprefetch.lance  # noqa: F401 - its import takes longer than a loop may be held, so not at the first file
from aioprefetch.source.columns.conform import Conformer, conform
from aioprefetch.source.columns.plain_types import plain_schema
from aioprefetch.source.reading.batch_plan import list_files, plan_batch
from aioprefetch.source.reading.failures import quarantine_to, reason_of
from aioprefetch.source.reading.infer import InferredSchema, infer_schema
from aioprefetch.source.reading.read_items import read_items
from aioprefetch.source.reading.task import Quarantine, ReadTask

__all__ = [
    "Conformer",
    "InferredSchema",
    "Quarantine",
    "ReadTask",
    "conform",
    "infer_schema",
    "list_files",
    "plain_schema",
    "plan_batch",
    "quarantine_to",
    "read_items",
    "reason_of",
]

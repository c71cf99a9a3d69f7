"""aioprefetch for code without an event loop: files and verbs that block, served by one loop thread per process.

``open`` gives a file object that pyarrow, pandas, zipfile and the like read through; ``BlockingOperator`` has the
verbs of an ``Operator``; ``run`` runs any coroutine of yours on the same loop, ``iterate`` any asynchronous iterable.
"""

from __future__ import annotations

from aioprefetch.sync.blocking_operator import BlockingOperator
from aioprefetch.sync.file import BlockingOpenFileBuilder, SyncFile
from aioprefetch.sync.iteration import BlockingIterator, iterate
from aioprefetch.sync.loop_thread import run
from aioprefetch.sync.opening import open, split_url  # noqa: A004 - what it stands in for

__all__ = [
    "BlockingIterator",
    "BlockingOpenFileBuilder",
    "BlockingOperator",
    "SyncFile",
    "iterate",
    "open",
    "run",
    "split_url",
]

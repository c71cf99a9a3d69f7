"""aioprefetch for code without an event loop: files and verbs that block, served by one loop thread per process.

``open`` returns a file object that pyarrow, pandas, zipfile and the like read or write through; ``BlockingOperator``
has the verbs of an ``Operator``; ``copy`` copies between any two places; ``run`` runs any coroutine of yours on the
same loop, ``iterate`` any asynchronous iterable.

Where an event loop runs in the caller's thread, as in a cell of a notebook, one rule holds. What waits for work of ours
alone (files, the verbs of ``BlockingOperator``, listings) may be called: it stops that loop for as long as it takes, as
any blocking call does. What waits for code of yours that could itself wait for that loop (``run``, ``iterate``, a write
from an asynchronous source) would never end, and is ``WrongLoop``: await it there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioprefetch.first_use import load_at_first_use

if TYPE_CHECKING:
    from aioprefetch.sync.blocking_operator import BlockingOpenFileBuilder, BlockingOperator
    from aioprefetch.sync.copying import copy
    from aioprefetch.sync.file import SyncFile
    from aioprefetch.sync.iteration import BlockingIterator, iterate
    from aioprefetch.sync.loop_thread import run
    from aioprefetch.sync.opening import open, split_url  # noqa: A004 - what it stands in for
    from aioprefetch.sync.path import Path
    from aioprefetch.sync.write_file import SyncWriteFile

__all__ = [
    "BlockingIterator",
    "BlockingOpenFileBuilder",
    "BlockingOperator",
    "Path",
    "SyncFile",
    "SyncWriteFile",
    "copy",
    "iterate",
    "open",
    "run",
    "split_url",
]

load_at_first_use(
    __name__,
    {
        "blocking_operator": ("BlockingOperator", "BlockingOpenFileBuilder"),
        "file": ("SyncFile",),
        "opening": ("open", "split_url"),
        "copying": ("copy",),
        "iteration": ("BlockingIterator", "iterate"),
        "loop_thread": ("run",),
        "path": ("Path",),
        "write_file": ("SyncWriteFile",),
    },
)

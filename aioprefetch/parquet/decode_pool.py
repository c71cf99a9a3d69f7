"""The allocator that pyarrow decodes Parquet with.

pyarrow's wheels come with mimalloc as the default, which asks the kernel for large pages. What is decoded is fresh
memory throughout, and where the host of a virtual machine has taken unused memory back it has to find 2 MiB again at
each first touch: reading 244 MB took 1.1 to 1.6 s of CPU so, and 0.55 s with jemalloc. It has small pages, of
which the kernel gives those that were used of late, and keeps freed ones for a second, so that the next batch finds
them. Where large pages are at hand they are better: 61 MB took 0.11 s of CPU with them, and 0.13 s with jemalloc.
"""

from __future__ import annotations

import os

import pyarrow as pa

# Whoever chooses an allocator by it gets that one.
_CHOICE = "ARROW_DEFAULT_MEMORY_POOL"


def decode_pool() -> pa.MemoryPool:
    """That of jemalloc where there is one and mimalloc was nobody's choice, else pyarrow's default."""
    default = pa.default_memory_pool()
    if default.backend_name != "mimalloc" or os.environ.get(_CHOICE):
        return default
    try:
        return pa.jemalloc_memory_pool()
    except NotImplementedError:
        return default

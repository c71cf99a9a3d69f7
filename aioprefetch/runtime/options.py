"""The options of a runtime. Pure, no I/O."""

from __future__ import annotations

import os
from dataclasses import KW_ONLY, field
from typing import Literal

from aioprefetch.lean_dataclass import dataclass
from aioprefetch.options import (
    COUNT,
    COUNT_OR_ZERO,
    OBJECT,
    SECONDS,
    SIZE,
    SIZE_OR_ZERO,
    Checked,
    Choice,
    Text,
    check,
    in_uri,
    invalid,
    option,
)
from aioprefetch.ranges import ByteCount


def checked_directory(value: object, name: str) -> str:
    """An absolute path of a directory, without double or trailing slashes."""
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else value
    if not isinstance(text, str) or not text or "\0" in text:
        problem = f"the path of a directory as text, not {value!r}"
    elif not text.startswith("/"):
        problem = f"an absolute path, not {text!r}: a relative one would mean another directory in each process"
    elif ".." in text.split("/"):
        problem = f"a path without '..' segments, not {text!r}"
    else:
        return "/" + "/".join(part for part in text.split("/") if part not in ("", "."))
    raise invalid(f"{name} must be {problem}")


@dataclass(frozen=True, slots=True)
class DiskCache:
    """The cache of blocks on a local disk: the option ``disk_cache`` of an Operator.

    Raises ``ConfigInvalid`` for invalid values. A directory that cannot be used is found out at its first use: the
    cache is then off, with a warning, and no read fails.

    Parameters
    ----------
    path
        An absolute path. The blocks lie in a directory of our own below it, which no other user may enter. Missing
        directories are created.
    capacity_bytes
        The maximum for the files of all processes that use the path; the least recently used ones are removed.
    read_timeout_seconds
        How long a read waits for the disk before it reads from the store.
    cool_down_seconds
        How long a disk that is full, broken or too slow is not used.
    tenant
        Blocks are shared only between operators with the same tenant, store and principal.
    write
        ``"fetched"``: each block is written behind its readers when all of it was fetched, and processes that use the
        path fetch a block once: others wait for it. ``"evicted"``: a block is written when memory needs its room.
    """

    path: str | os.PathLike[str] = field(metadata=in_uri(Checked(checked_directory)))
    _: KW_ONLY
    capacity_bytes: ByteCount = option(10 << 30, SIZE)
    read_timeout_seconds: float = option(2.0, SECONDS)
    cool_down_seconds: float = option(30.0, SECONDS)
    tenant: str = option("", Text(may_be_empty=True))
    write: Literal["fetched", "evicted"] = option("fetched", Choice("fetched", "evicted"))

    def __post_init__(self) -> None:
        check(self, "disk_cache: {}")

    @property
    def limit_bytes(self) -> int:
        """``capacity_bytes`` as a number."""
        return int(self.capacity_bytes)

    @property
    def directory(self) -> str:
        """The path as text, without double or trailing slashes."""
        return os.fspath(self.path)


def _disk_cache(value: object, name: str) -> DiskCache:
    return value if isinstance(value, DiskCache) else DiskCache(value)  # type: ignore[arg-type]  # It is checked.


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeOptions:
    """The limits of a runtime. Sizes in bytes, times in seconds; ``executor_threads`` serves files and hashing.

    ``drain_bytes``: a response whose rest no read needs is received to its end if at most this much is missing,
    so that its connection is kept, and cancelled otherwise. 0 cancels every such response.
    """

    memory_bytes: int = option(256 << 20, SIZE)
    block_bytes: int = option(8 << 20, SIZE, also="obstore:buffer_size other:default_block_size,block_size,blocksize")
    prefetch_blocks: int = option(8, COUNT_OR_ZERO)
    concurrency: int = option(64, COUNT, also="fsspec:max_concurrency boto3:max_pool_connections other:max_connections")
    disk_cache: DiskCache | None = option(
        None,
        Checked(_disk_cache, "an absolute path", annotation="DiskCache | str | os.PathLike[str] | None"),
        also="other:cache_dir,cache_storage,cache_directory",
    )
    budget_wait_seconds: float = option(60.0, SECONDS)
    drain_bytes: int = option(1 << 20, SIZE_OR_ZERO)
    executor_threads: int = option(8, COUNT, given="recipe")
    random_seed: int | None = option(None, OBJECT, given="recipe")

    def __post_init__(self) -> None:
        check(self)
        if self.memory_bytes < self.block_bytes:
            raise invalid(f"memory_bytes must be at least block_bytes={self.block_bytes}, not {self.memory_bytes}")
        if self.disk_cache is not None and self.disk_cache.limit_bytes <= self.block_bytes:
            raise invalid(
                f"disk_cache: capacity_bytes must be more than block_bytes={self.block_bytes}, for a block and its"
                f" tail, not {self.disk_cache.capacity_bytes}"
            )

"""The options of a runtime, and the checks that options everywhere share. Pure, no I/O."""

from __future__ import annotations

import math
import os
from dataclasses import KW_ONLY
from typing import Literal

from aioprefetch.errors import ConfigInvalid, InvalidArgument
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.ranges import ByteCount, byte_count


def check_count(layer: str, name: str, value: object, *, least: int) -> None:
    """``ConfigInvalid`` unless ``value`` is an integer (no bool) of at least ``least``."""
    if type(value) is not int or value < least:
        raise ConfigInvalid(
            f"{name} of {layer} must be an integer of at least {least}, not {value!r}", operation="configure"
        )


def checked_seconds(
    name: str,
    value: object,
    *,
    zero_allowed: bool = False,
    infinite_allowed: bool = False,
    error: type[InvalidArgument] = ConfigInvalid,
    operation: str = "configure",
    path: str = "",
) -> float:
    """A number of seconds above zero (or zero, or infinity, where allowed). ``error`` is raised for anything else."""
    number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    is_large_enough = number >= 0 if zero_allowed else number > 0
    if is_large_enough and (infinite_allowed or math.isfinite(number)):
        return number
    lowest = "of at least 0" if zero_allowed else "above 0"
    raise error(f"{name} must be a number of seconds {lowest}, not {value!r}", operation=operation, path=path)


def keep_byte_counts(options: object, *names: str) -> None:
    """Replace the fields of frozen options that are numbers of bytes in text, such as ``"64 MiB"``, by the numbers."""
    for name in names:
        value = getattr(options, name)
        if type(value) is not int:
            object.__setattr__(options, name, byte_count(value, name, operation="configure"))


def checked_file(name: str, value: object) -> str:
    """The path of a file, as text. ``ConfigInvalid`` for anything else."""
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else value
    if not isinstance(path, str) or not path:
        raise ConfigInvalid(f"{name} must be the path of a file, not {value!r}", operation="configure")
    return path


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

    path: str | os.PathLike[str]
    _: KW_ONLY
    capacity_bytes: ByteCount = 10 << 30
    read_timeout_seconds: float = 2.0
    cool_down_seconds: float = 30.0
    tenant: str = ""
    write: Literal["fetched", "evicted"] = "fetched"

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", _checked_cache_path(self.path))
        keep_byte_counts(self, "capacity_bytes")
        if type(self.capacity_bytes) is not int or self.capacity_bytes < 1:
            raise _cache_invalid(f"capacity_bytes must be a positive integer, not {self.capacity_bytes!r}")
        for name in ("read_timeout_seconds", "cool_down_seconds"):
            checked_seconds(f"disk_cache: {name}", getattr(self, name))
        if not isinstance(self.tenant, str):
            raise _cache_invalid(f"tenant must be text, not {self.tenant!r}")
        if self.write not in ("fetched", "evicted"):
            raise _cache_invalid(f"write must be 'fetched' or 'evicted', not {self.write!r}")

    @classmethod
    def of(cls, value: DiskCache | str | os.PathLike[str] | None) -> DiskCache | None:
        """``DiskCache(path)`` for a path; ``None`` and options unchanged."""
        return value if value is None or isinstance(value, DiskCache) else cls(value)

    @property
    def limit_bytes(self) -> int:
        """``capacity_bytes`` as a number."""
        return int(self.capacity_bytes)

    @property
    def directory(self) -> str:
        """The path as text, without double or trailing slashes."""
        return os.fspath(self.path)


def _checked_cache_path(path: str | os.PathLike[str]) -> str:
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    if not isinstance(text, str) or not text or "\0" in text:
        raise _cache_invalid(f"the path of a directory is needed, or DiskCache(path, ...), not {path!r}")
    if not text.startswith("/"):
        raise _cache_invalid(
            f"the path must be absolute, not {text!r}: a relative one would mean another directory in each process"
        )
    if ".." in text.split("/"):
        raise _cache_invalid(f"the path must not hold '..' segments: {text!r}")
    return "/" + "/".join(name for name in text.split("/") if name not in ("", "."))


def _cache_invalid(message: str) -> ConfigInvalid:
    return ConfigInvalid(f"disk_cache: {message}", operation="configure")


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeOptions:
    """The limits of a runtime. Sizes in bytes, times in seconds; ``executor_threads`` serves files and hashing.

    ``drain_bytes``: a response of which no read needs the rest is received to its end if at most this much is missing,
    so that its connection is kept, and cancelled otherwise. 0 cancels every such response.
    """

    memory_bytes: int = 256 << 20
    block_bytes: int = 8 << 20
    prefetch_blocks: int = 8
    drain_bytes: int = 1 << 20
    concurrency: int = 64
    executor_threads: int = 8
    budget_wait_seconds: float = 60.0
    random_seed: int | None = None
    disk_cache: DiskCache | None = None

    def __post_init__(self) -> None:
        keep_byte_counts(self, "memory_bytes", "block_bytes", "drain_bytes")
        for name in ("memory_bytes", "block_bytes", "concurrency", "executor_threads"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ConfigInvalid(f"{name} must be a positive integer, not {value!r}", operation="configure")
        if type(self.prefetch_blocks) is not int or self.prefetch_blocks < 0:
            raise ConfigInvalid(
                f"prefetch_blocks must be an integer of at least 0, not {self.prefetch_blocks!r}", operation="configure"
            )
        if type(self.drain_bytes) is not int or self.drain_bytes < 0:
            raise ConfigInvalid(
                f"drain_bytes must be an integer of at least 0, not {self.drain_bytes!r}", operation="configure"
            )
        checked_seconds("budget_wait_seconds", self.budget_wait_seconds)
        if self.memory_bytes < self.block_bytes:
            raise ConfigInvalid(
                f"memory_bytes must be at least block_bytes={self.block_bytes}, not {self.memory_bytes}",
                operation="configure",
            )
        if self.disk_cache is not None and self.disk_cache.limit_bytes <= self.block_bytes:
            raise ConfigInvalid(
                f"disk_cache: capacity_bytes must be more than block_bytes={self.block_bytes}, for a block and its"
                f" tail, not {self.disk_cache.capacity_bytes}",
                operation="configure",
            )

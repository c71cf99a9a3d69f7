"""What a read policy means: which bytes the first request asks for, and whether reads fill blocks or exact ranges.

The names are those of Hadoop's ``openFile()`` option ``fs.option.openfile.read.policy``. Pure, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from aioprefetch.errors import ConfigInvalid
from aioprefetch.ranges import BlockGrid, Range, at_least

# Reading through a gap of this size costs less than a request of its own: 1 MiB is 11 ms at 90 MB/s, and a first
# byte takes 20 to 50 ms. ORC measured +20 % for one read over a 1 MB gap against two reads.
GAP_BYTES = 1 << 20

# A merged request ends here: longer ones gain nothing over two in parallel, and one failure would cost more.
REQUEST_BYTES_MAX = 16 << 20


@dataclass(frozen=True, slots=True)
class Policy:
    """``fill``: a miss brings whole blocks or the exact range. ``first``: where the first request of a reader lies."""

    name: str
    fill: Literal["block", "exact"]
    first: Literal["block", "tail"]


_BLOCKS = ("adaptive", "default", "sequential", "whole-file", "avro", "csv", "json")
_RANGES = ("random", "vector", "hbase")
_FOOTERS = ("parquet", "orc", "columnar")

POLICIES = {
    **{name: Policy(name, "block", "block") for name in _BLOCKS},
    **{name: Policy(name, "exact", "block") for name in _RANGES},
    **{name: Policy(name, "block", "tail") for name in _FOOTERS},
}


def find_policy(names: str | Iterable[str], *, operation: str, path: str) -> Policy:
    """The first recognised policy of a list (``"parquet, random"``); ``ConfigInvalid`` when none is."""
    listed = names.split(",") if isinstance(names, str) else list(names) if isinstance(names, Iterable) else []
    for name in listed:
        policy = POLICIES.get(str(name).strip().lower())
        if policy is not None:
            return policy
    raise ConfigInvalid(f"policy={names!r} names none of {', '.join(sorted(POLICIES))}", operation=operation, path=path)


@dataclass(frozen=True, slots=True)
class FirstRequest:
    """The first request of a reader that knows no size: a range, or the last ``suffix`` bytes."""

    offset: int
    size: int
    suffix: bool


def first_request(
    policy: Policy, *, offset: int | None, size: int, block_bytes: int, tail_bytes: int | None
) -> FirstRequest:
    """Where to begin: at the block of ``offset``, exactly there for exact policies, or at the tail.

    ``offset`` is ``None`` when only the end is known to matter (a seek relative to it). ``tail_bytes`` is a footer
    size that the caller expects; else the tail is a block long, so that a small object comes whole.
    """
    if offset is None or (policy.first == "tail" and size > 0):
        return FirstRequest(0, tail_bytes or block_bytes, suffix=True)
    if policy.fill == "exact":
        return FirstRequest(offset, size or block_bytes, suffix=False)
    start = offset - offset % block_bytes
    return FirstRequest(start, block_bytes, suffix=False)


def steps(start: int, end: int, *, policy: Policy, step_bytes: int) -> Iterator[Range]:
    """``[start, end)`` in the steps of a long read: cut at the block grid, or every ``step_bytes`` from the start.

    One at a time: an object may claim any size.
    """
    while start < end:
        whole = start - start % step_bytes + step_bytes if policy.fill == "block" else start + step_bytes
        stop = min(end, whole)
        yield start, stop
        start = stop


def extent(start: int, end: int, *, policy: Policy, grid: BlockGrid) -> Iterator[Range]:
    """What a miss of ``[start, end)`` should bring: the whole blocks it touches, one by one, or itself."""
    if policy.fill == "exact":
        yield start, end
        return
    for index in grid.indices(start, end):
        yield grid.bounds(index)


def coalescing(gap_bytes: int | None, request_bytes_max: int | None, *, path: str) -> tuple[int, int]:
    """The two limits of merged reads, checked, with their defaults for ``None``."""
    gap = GAP_BYTES if gap_bytes is None else at_least(0, gap_bytes, "gap_bytes", operation="read_ranges", path=path)
    if request_bytes_max is None:
        return gap, REQUEST_BYTES_MAX
    return gap, at_least(1, request_bytes_max, "request_bytes_max", operation="read_ranges", path=path)

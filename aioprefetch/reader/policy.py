"""The read policies, as a table: the bytes that a miss fetches, the prefetch window, and the first request.

The names come from Hadoop's ``openFile()`` option ``fs.option.openfile.read.policy``. Pure, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from aioprefetch.errors import ConfigInvalid
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.ranges import BlockGrid, ByteCount, Range, bytes_at_least

KIB, MIB = 1 << 10, 1 << 20

# Reading through a gap of this size costs less than a request of its own: 1 MiB is 11 ms at 90 MB/s, and a first
# byte takes 20 to 50 ms. ORC measured +20 % for one read over a 1 MB gap against two reads.
GAP_BYTES = MIB

# The longest merged request: longer ones gain nothing over two in parallel, and a failure would cost more.
REQUEST_BYTES_MAX = 16 * MIB

# Policies with exact ranges save bytes: these are the figures of Hadoop's vectored reads, chosen for that.
NEAR_GAP_BYTES = 128 * KIB
NEAR_REQUEST_BYTES_MAX = 2 * MIB

# The end of a large object that the first request brings if it is read from the end. It holds the footers of most files
# and takes 11 ms at 90 MB/s; a block would take 93.
TAIL_BYTES = MIB

Fill = Literal["block", "exact"]
PolicyName = Literal[
    "adaptive",
    "sequential",
    "whole-file",
    "random",
    "vector",
    "hbase",
    "columnar",
    "parquet",
    "default",
    "avro",
    "csv",
    "json",
    "orc",
]
# One name, or a list, where the first known one counts; at run time also in one text, with commas.
PolicyNames = PolicyName | Sequence[PolicyName]


@dataclass(frozen=True, slots=True)
class Policy:
    """A row of the table.

    ``fill``: a miss brings whole blocks, the exact range, or (``adaptive``) blocks until access turns out to be
    random. ``window``: how far a sequential run looks ahead: not at all, up to what has ``grown``, or ``full``
    from its first read on. ``first``: where the first request of a reader lies. ``request_blocks``: how many blocks a
    request of the window spans. ``gap_bytes`` and ``request_bytes_max``: how several ranges are merged. ``widens``:
    whether a small exact request brings more than was read, where that takes no longer.
    """

    name: str
    fill: Literal["block", "exact", "adaptive"]
    window: Literal["none", "grown", "full"]
    first: Literal["block", "exact", "tail"]
    gap_bytes: int = GAP_BYTES
    request_bytes_max: int = REQUEST_BYTES_MAX
    request_blocks: int = 1
    starts_at_open: bool = False
    widens: bool = True

    @property
    def keeps_footer(self) -> bool:
        """Whether the tail of the object is brought first and evicted last."""
        return self.first == "tail"


_ROWS = (
    Policy("adaptive", "adaptive", "grown", "block"),
    Policy("sequential", "block", "full", "block"),
    Policy("whole-file", "block", "full", "block", request_blocks=2, starts_at_open=True),
    Policy("random", "exact", "none", "exact", NEAR_GAP_BYTES, NEAR_REQUEST_BYTES_MAX, widens=False),
    Policy("vector", "exact", "none", "exact"),
    Policy("hbase", "exact", "none", "tail", NEAR_GAP_BYTES, NEAR_REQUEST_BYTES_MAX),
    Policy("columnar", "exact", "grown", "exact"),
    Policy("parquet", "exact", "grown", "tail"),
)

# Formats with the requests of another policy.
ALIASES = {"default": "adaptive", "avro": "sequential", "csv": "sequential", "json": "sequential", "orc": "parquet"}

# fsspec's caches stand for the nearest policy.
CACHES = {
    **dict.fromkeys(("readahead", "adaptive", "bytes", "block", "blockcache", "background", "mmap"), "adaptive"),
    **dict.fromkeys(("none", "first", "parts"), "random"),
    "all": "whole-file",
}

_BY_NAME = {row.name: row for row in _ROWS}
POLICIES = {**_BY_NAME, **{name: replace(_BY_NAME[meant], name=name) for name, meant in ALIASES.items()}}

# Prefetching switched off: plain ranged reads with every policy.
PLAIN = Policy("plain", "exact", "none", "exact", widens=False)

_NUMBERS = {name: number for number, name in enumerate((*POLICIES, PLAIN.name), start=1)}


def policy_number(policy: Policy) -> int:
    """The place of a policy in the table, from 1."""
    return _NUMBERS[policy.name]


def listed_policy(names: str | Iterable[str]) -> Policy | None:
    """The first recognised policy of a list (``"parquet, random"``), ``None`` when none is."""
    listed = names.split(",") if isinstance(names, str) else list(names) if isinstance(names, Iterable) else []
    for name in listed:
        policy = POLICIES.get(str(name).strip().lower())
        if policy is not None:
            return policy
    return None


def find_policy(names: str | Iterable[str] | Policy, *, operation: str, path: str) -> Policy:
    """The first recognised policy of a list; ``ConfigInvalid`` when none is. A policy is itself."""
    policy = names if isinstance(names, Policy) else listed_policy(names)
    if policy is None:
        raise ConfigInvalid(
            f"policy must name one of {', '.join(sorted(POLICIES))}, not {names!r}{_meant(names)}",
            operation=operation,
            path=path,
        )
    return policy


def _meant(name: object) -> str:
    """The policy that may be meant by a name, as a question; ``""`` if none is like it."""
    from difflib import get_close_matches

    word = name.strip().lower() if isinstance(name, str) else ""
    near = CACHES.get(word) or next(iter(get_close_matches(word, POLICIES, n=1, cutoff=0.7)), "")
    return f"; did you mean {near!r}?" if near else ""


class FirstRequest(NamedTuple):
    """The first request of a reader: ``[start, end)``, or the last ``end`` bytes of an object of unknown size."""

    start: int
    end: int
    is_suffix: bool = False


def first_request(
    policy: Policy, *, offset: int | None, size: int, block_bytes: int, tail_bytes: int | None
) -> FirstRequest:
    """The start of the first request: the block of ``offset``, ``offset`` itself for exact policies, or the tail.

    ``offset`` is ``None`` when only the end is known to matter (a seek relative to it). ``tail_bytes`` is a footer
    size that the caller expects; otherwise the tail is ``TAIL_BYTES`` long, or a block if that is less.
    """
    if offset is None or (policy.first == "tail" and size > 0):
        return FirstRequest(0, tail_bytes or min(block_bytes, TAIL_BYTES), is_suffix=True)
    if policy.fill == "exact":
        return FirstRequest(offset, offset + (size or block_bytes))
    start = offset - offset % block_bytes
    return FirstRequest(start, start + block_bytes)


def footer_start(total: int, *, block_bytes: int, tail_bytes: int | None) -> int:
    """The start of the kept tail in an object of ``total`` bytes, as ``first_request`` brings it.

    An object of at most a block is all tail, unless ``tail_bytes`` says how long the tail is.
    """
    if tail_bytes is None and total <= block_bytes:
        return 0
    return max(0, total - (tail_bytes or min(block_bytes, TAIL_BYTES)))


def steps(start: int, end: int, *, fill: Fill, step_bytes: int) -> Iterator[Range]:
    """``[start, end)`` in the steps of a long read: cut at multiples of a step, or every ``step_bytes`` from the start.

    One at a time: an object may claim any size.
    """
    while start < end:
        stop = step_end(start, end, fill=fill, step_bytes=step_bytes)
        yield start, stop
        start = stop


def step_end(start: int, end: int, *, fill: Fill, step_bytes: int) -> int:
    """The end of the first step of ``[start, end)``; see ``steps``."""
    whole = start - start % step_bytes + step_bytes if fill == "block" else start + step_bytes
    return end if end < whole else whole


def extent(start: int, end: int, *, fill: Fill, grid: BlockGrid) -> Range:
    """The bytes to fetch for a miss of ``[start, end)``: the blocks that it touches, or the range itself."""
    if fill == "exact" or start >= end:
        return start, end
    return grid.bounds(grid.index(start))[0], grid.bounds(grid.index(end - 1))[1]


def coalescing(
    gap_bytes: ByteCount | None, request_bytes_max: ByteCount | None, *, policy: Policy, path: str
) -> tuple[int, int]:
    """The two limits of merged reads, checked; for ``None`` the policy's."""
    gap = (
        policy.gap_bytes
        if gap_bytes is None
        else bytes_at_least(0, gap_bytes, "gap_bytes", operation="read_ranges", path=path)
    )
    if request_bytes_max is None:
        return gap, policy.request_bytes_max
    return gap, bytes_at_least(1, request_bytes_max, "request_bytes_max", operation="read_ranges", path=path)

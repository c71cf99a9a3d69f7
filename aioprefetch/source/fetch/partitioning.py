"""How many files are in one batch, and how their work is divided among tasks. Pure functions of work and options."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from aioprefetch.errors import ConfigInvalid
from aioprefetch.source.options import AdmissionOptions, PartitionOptions
from aioprefetch.source.values import FetchItem, SourceFile

CanSplit = Callable[[SourceFile], bool]

# The assumed size of a row in the store, for a limit of rows: real sizes are unknown when a batch is planned.
ROW_BYTES_GUESS = 128

# A file is not cut for less than this at the end of a batch: each cut costs a request to find the next record.
CUT_BYTES_MIN = 64 << 10


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The maximum of items and bytes in one batch; a limit of rows counts as bytes."""

    items_max: int
    bytes_max: int | None


def limits_of(options: AdmissionOptions) -> BatchLimits:
    """The limits of these options. ``ConfigInvalid`` for a limit that admits nothing."""
    for name in ("files_max", "bytes_max", "rows_max", "plan_files_max"):
        value = getattr(options, name)
        if value is not None and not value > 0:
            raise ConfigInvalid(f"{name} must be above 0, not {value!r}", operation="plan_batch")
    sizes = [] if options.bytes_max is None else [options.bytes_max]
    if options.rows_max is not None:
        sizes.append(options.rows_max * ROW_BYTES_GUESS)
    files_max = options.plan_files_max if options.files_max is None else options.files_max
    return BatchLimits(min(files_max, options.plan_files_max), min(sizes, default=None))


def narrowed(own: AdmissionOptions, asked: AdmissionOptions | None) -> AdmissionOptions:
    """The limits of one trigger: the source's, narrowed by the request of the engine.

    An engine names one limit at a time; the other limits of the source still hold. A request without any limit is for
    everything: then only ``plan_files_max`` holds. ``None`` means that the engine passed no request.
    """
    if asked is None:
        return own
    plan_files_max = min(own.plan_files_max, asked.plan_files_max)
    if is_unbounded(asked):
        return replace(asked, plan_files_max=plan_files_max)
    return AdmissionOptions(
        files_max=_least(own.files_max, asked.files_max),
        bytes_max=_least(own.bytes_max, asked.bytes_max),
        rows_max=_least(own.rows_max, asked.rows_max),
        plan_files_max=plan_files_max,
    )


def is_unbounded(options: AdmissionOptions) -> bool:
    """Whether only ``plan_files_max`` bounds a batch."""
    return options.files_max is None and options.bytes_max is None and options.rows_max is None


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


class Admission:
    """One batch that is filled in order. It takes at least one item.

    ``items`` are in the batch; ``carry`` are items for the next batch, such as the rest of a file that was cut.
    """

    def __init__(self, limits: BatchLimits, can_split: CanSplit) -> None:
        self.items: list[FetchItem] = []
        self.carry: list[FetchItem] = []
        self.bytes = 0
        self.is_full = False
        self._limits = limits
        self._can_split = can_split

    def offer(self, item: FetchItem) -> bool:
        """Take an item, or the part of it that fits. ``False``: nothing was taken, and the batch is full."""
        if self.is_full:
            return False
        bytes_max = self._limits.bytes_max
        left = None if bytes_max is None else max(0, bytes_max - self.bytes)
        if left is None or item.bytes <= left:
            self._take(item)
        elif self._is_worth_cutting(item, left):
            first, rest = item.cut(item.start + left)
            self._take(first)
            self.carry.append(rest)
            self.is_full = True
        elif not self.items:
            self._take(item)
        else:
            self.is_full = True
            return False
        return True

    def wait(self, items: Iterable[FetchItem]) -> None:
        """Leave items to the next batch, after items left already."""
        self.carry.extend(items)

    def supersede(self, file: SourceFile) -> None:
        """Drop all items of other versions of a file, whose bytes no longer exist."""

        def stays(item: FetchItem) -> bool:
            return item.file.key != file.key or item.file.is_same_version(file)

        self.items = [item for item in self.items if stays(item)]
        self.carry = [item for item in self.carry if stays(item)]
        self.bytes = sum(item.bytes for item in self.items)

    def _is_worth_cutting(self, item: FetchItem, left: int) -> bool:
        bytes_max = self._limits.bytes_max
        least = 0 if bytes_max is None else min(CUT_BYTES_MIN, bytes_max // 4)
        if left < 1 or (self.items and left < least):
            return False
        return item.row_groups is None and self._can_split(item.file)

    def _take(self, item: FetchItem) -> None:
        self.items.append(item)
        self.bytes += item.bytes
        spent = self._limits.bytes_max is not None and self.bytes >= self._limits.bytes_max
        self.is_full = len(self.items) >= self._limits.items_max or spent


# --- partitions -------------------------------------------------------------------------------------------------------

# A task, or a piece of a file, costs about 50 ms: the time to decode this many bytes.
PARTITION_BYTES_MIN = 4 << 20
# The cost of a file besides its bytes, as bytes.
_FILE_BYTES = 64 << 10
# A task has at most this many times ``target_bytes``; beyond that there are more tasks than slots.
_TARGETS_MAX = 4
# The maximum of tasks for a ``target_bytes`` below ``PARTITION_BYTES_MIN``.
_SMALL_TARGETS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class _Parcel:
    """Items that stay together. ``slot`` modulo the number of tasks is their task, where they are hashed."""

    position: int
    slot: int
    items: tuple[FetchItem, ...]

    @property
    def bytes(self) -> int:
        return sum(item.bytes for item in self.items)


def divide(
    items: Sequence[FetchItem], options: PartitionOptions, can_split: CanSplit, *, count: int | None = None
) -> list[list[FetchItem]]:
    """The items of each task, in the order of ``items``. No task is empty; without work there are no tasks.

    There are at most ``count`` tasks, by default ``partition_count`` of them. ``ConfigInvalid`` for options that allow
    no task, or no bytes in a task.
    """
    check_partition_options(options)
    if not items:
        return []
    wanted = partition_count(items, options) if count is None else count
    parcels = _parcels(items, options, can_split, piece_bytes(items, wanted, options))
    count = min(wanted, len(parcels))
    parts = _balanced(parcels, count) if options.assign == "size" else _hashed(parcels, count)
    return [[item for parcel in part for item in parcel.items] for part in parts if part]


def check_partition_options(options: PartitionOptions) -> None:
    """``ConfigInvalid`` for options that allow no task, or no bytes in a task."""
    for name in ("target_bytes", "partitions_max", "slots"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ConfigInvalid(f"{name} must be at least 1, not {value!r}", operation="partitions")


def partition_count(items: Sequence[FetchItem], options: PartitionOptions) -> int:
    """The number of tasks for these items, in a batch and in a stream: one for each slot, or two for much work.

    A task of less than ``PARTITION_BYTES_MIN`` costs more than it saves, so fewer are made of little work, unless
    ``target_bytes`` is smaller.
    """
    size = sum(item.bytes for item in items)
    weight = size + len(items) * _FILE_BYTES
    if options.target_bytes < PARTITION_BYTES_MIN:
        wanted = min(-(-size // options.target_bytes), _SMALL_TARGETS_MAX)
        return max(1, min(wanted, options.partitions_max or wanted))
    # A second task for each slot evens out uneven first ones; for less work it costs more than it saves.
    tasks = options.slots * (1 if weight <= options.slots * options.target_bytes else 2)
    wanted = max(min(tasks, -(-weight // PARTITION_BYTES_MIN)), -(-size // (options.target_bytes * _TARGETS_MAX)))
    return max(1, min(wanted, options.partitions_max or wanted))


def piece_bytes(items: Sequence[FetchItem], count: int, options: PartitionOptions) -> int:
    """The maximum size of the pieces of a file, so that ``count`` tasks become equal."""
    size = sum(item.bytes for item in items)
    return max(min(PARTITION_BYTES_MIN, options.target_bytes), -(-size // max(count, 1)))


def stable_hash(key: str) -> int:
    """A hash of a key that is equal in every process."""
    return int.from_bytes(hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def _parcels(
    items: Sequence[FetchItem], options: PartitionOptions, can_split: CanSplit, piece_bytes_max: int
) -> list[_Parcel]:
    if not options.split_files:  # ``None``, the default of a stream, included.
        together: dict[str, list[FetchItem]] = {}
        for item in items:
            together.setdefault(item.file.key, []).append(item)
        return [_Parcel(number, stable_hash(key), tuple(its)) for number, (key, its) in enumerate(together.items())]
    parcels: list[_Parcel] = []
    pieces_of: dict[str, int] = {}
    for item in items:
        for piece in pieces_of_item(item, piece_bytes_max, can_split):
            # Neighbouring pieces of one file go to neighbouring tasks, so that one huge file keeps all of them busy.
            nth = pieces_of[item.file.key] = pieces_of.get(item.file.key, -1) + 1
            parcels.append(_Parcel(len(parcels), stable_hash(item.file.key) + nth, (piece,)))
    return parcels


def pieces_of_item(item: FetchItem, bytes_max: int, can_split: CanSplit) -> list[FetchItem]:
    """An item cut into equal pieces of at most ``bytes_max``, if it can be split."""
    count = -(-item.bytes // bytes_max)
    if count < 2 or item.row_groups is not None or not can_split(item.file):
        return [item]
    pieces, rest, start, size = [], item, item.start, item.bytes
    for number in range(1, count):
        piece, rest = rest.cut(start + size * number // count)
        pieces.append(piece)
    return [*pieces, rest]


def _hashed(parcels: Sequence[_Parcel], count: int) -> list[list[_Parcel]]:
    parts: list[list[_Parcel]] = [[] for _ in range(count)]
    for parcel in parcels:
        parts[parcel.slot % count].append(parcel)
    return parts


def _balanced(parcels: Sequence[_Parcel], count: int) -> list[list[_Parcel]]:
    """Largest parcels first, each to the task with the fewest bytes."""
    parts: list[list[_Parcel]] = [[] for _ in range(count)]
    loads = [(0, 0, number) for number in range(count)]
    for parcel in sorted(parcels, key=lambda parcel: (-parcel.bytes, parcel.position)):
        size, taken, number = loads[0]
        parts[number].append(parcel)
        heapq.heapreplace(loads, (size + parcel.bytes, taken + 1, number))
    return [sorted(part, key=lambda parcel: parcel.position) for part in parts]

"""How the work of a batch is divided among tasks: a function of the work and the options, and of nothing else."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from aioprefetch.errors import ConfigInvalid
from aioprefetch.source.fetch.admission import CanSplit
from aioprefetch.source.files import FetchItem
from aioprefetch.source.options import PartitionOptions

# A task costs about 50 ms, which this many bytes take to be decoded; and so does a piece of a file.
PARTITION_BYTES_MIN = 4 << 20
# What a file costs besides its bytes, as bytes.
_FILE_BYTES = 64 << 10
# Tasks hold at most so many times ``target_bytes``: then there are more of them than run at once.
_TARGETS_MAX = 4
# Of smaller targets, which a user gave, so many are kept to.
_SMALL_TARGETS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class _Parcel:
    """Items that stay together. ``slot`` is where a hash puts them, before it is taken modulo their number."""

    position: int
    slot: int
    items: tuple[FetchItem, ...]

    @property
    def bytes(self) -> int:
        return sum(item.bytes for item in self.items)


def divide(
    items: Sequence[FetchItem], options: PartitionOptions, can_split: CanSplit, *, count: int | None = None
) -> list[list[FetchItem]]:
    """The items of each task, none of them empty, each in the order of ``items``; no work gives no task.

    At most ``count`` tasks, by default what ``partition_count`` says. ``ConfigInvalid`` for options that leave no task
    or no bytes to one.
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
    """``ConfigInvalid`` for options that leave no task, or no bytes to one."""
    for name in ("target_bytes", "partitions_max", "slots"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ConfigInvalid(f"{name} must be at least 1, not {value!r}", operation="partitions")


def partition_count(items: Sequence[FetchItem], options: PartitionOptions) -> int:
    """How many tasks the items are worth, of a batch as of a stream: one for each slot, or two where there is much.

    A task of less than ``PARTITION_BYTES_MIN`` costs more than it saves, unless a smaller target was asked for.
    """
    size = sum(item.bytes for item in items)
    weight = size + len(items) * _FILE_BYTES
    if options.target_bytes < PARTITION_BYTES_MIN:
        wanted = min(-(-size // options.target_bytes), _SMALL_TARGETS_MAX)
        return max(1, min(wanted, options.partitions_max or wanted))
    # A second task for each slot evens out what the first ones leave uneven; below this it costs more than that.
    tasks = options.slots * (1 if weight <= options.slots * options.target_bytes else 2)
    wanted = max(min(tasks, -(-weight // PARTITION_BYTES_MIN)), -(-size // (options.target_bytes * _TARGETS_MAX)))
    return max(1, min(wanted, options.partitions_max or wanted))


def piece_bytes(items: Sequence[FetchItem], count: int, options: PartitionOptions) -> int:
    """The largest piece of a file that may be split, where ``count`` tasks are to be alike."""
    size = sum(item.bytes for item in items)
    return max(min(PARTITION_BYTES_MIN, options.target_bytes), -(-size // max(count, 1)))


def stable_hash(key: str) -> int:
    """A number for a key that is the same in every process."""
    return int.from_bytes(hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def _parcels(
    items: Sequence[FetchItem], options: PartitionOptions, can_split: CanSplit, piece_bytes_max: int
) -> list[_Parcel]:
    if not options.split_files:  # Nor where nothing is said: this is a stream's default.
        together: dict[str, list[FetchItem]] = {}
        for item in items:
            together.setdefault(item.file.key, []).append(item)
        return [_Parcel(number, stable_hash(key), tuple(its)) for number, (key, its) in enumerate(together.items())]
    parcels: list[_Parcel] = []
    pieces_of: dict[str, int] = {}
    for item in items:
        for piece in _pieces(item, piece_bytes_max, can_split):
            # Neighbouring pieces of one file go to neighbouring tasks, so that one huge file keeps all of them busy.
            nth = pieces_of[item.file.key] = pieces_of.get(item.file.key, -1) + 1
            parcels.append(_Parcel(len(parcels), stable_hash(item.file.key) + nth, (piece,)))
    return parcels


def _pieces(item: FetchItem, bytes_max: int, can_split: CanSplit) -> list[FetchItem]:
    """An item cut into equal pieces of at most ``bytes_max``, if it can be."""
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
    """The largest first, each to the task that has least."""
    parts: list[list[_Parcel]] = [[] for _ in range(count)]
    loads = [(0, 0, number) for number in range(count)]
    for parcel in sorted(parcels, key=lambda one: (-one.bytes, one.position)):
        size, taken, number = loads[0]
        parts[number].append(parcel)
        heapq.heapreplace(loads, (size + parcel.bytes, taken + 1, number))
    return [sorted(part, key=lambda one: one.position) for part in parts]

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


@dataclass(frozen=True, slots=True)
class _Parcel:
    """Items that stay together. ``slot`` is where a hash puts them, before it is taken modulo their number."""

    position: int
    slot: int
    items: tuple[FetchItem, ...]

    @property
    def bytes(self) -> int:
        return sum(item.bytes for item in self.items)


def divide(items: Sequence[FetchItem], options: PartitionOptions, can_split: CanSplit) -> list[list[FetchItem]]:
    """The items of each task, none of them empty, each in the order of ``items``; no work gives no task.

    ``ConfigInvalid`` for options that leave no task or no bytes to one.
    """
    check_partition_options(options)
    parcels = _parcels(items, options, can_split)
    if not parcels:
        return []
    count = min(partition_count(sum(parcel.bytes for parcel in parcels), options), len(parcels))
    parts = _balanced(parcels, count) if options.assign == "size" else _hashed(parcels, count)
    return [[item for parcel in part for item in parcel.items] for part in parts if part]


def check_partition_options(options: PartitionOptions) -> None:
    """``ConfigInvalid`` for options that leave no task, or no bytes to one."""
    for name in ("target_bytes", "partitions_max", "slots"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ConfigInvalid(f"{name} must be at least 1, not {value!r}", operation="partitions")


def partition_count(size_bytes: int, options: PartitionOptions) -> int:
    """How many tasks so many bytes are worth: a task costs more than many files do."""
    most = options.partitions_max or 2 * options.slots
    return max(1, min(most, -(-size_bytes // options.target_bytes)))


def stable_hash(key: str) -> int:
    """A number for a key that is the same in every process."""
    return int.from_bytes(hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def _parcels(items: Sequence[FetchItem], options: PartitionOptions, can_split: CanSplit) -> list[_Parcel]:
    if not options.split_files:  # Nor where nothing is said: this is a stream's default.
        together: dict[str, list[FetchItem]] = {}
        for item in items:
            together.setdefault(item.file.key, []).append(item)
        return [_Parcel(number, stable_hash(key), tuple(its)) for number, (key, its) in enumerate(together.items())]
    parcels: list[_Parcel] = []
    pieces_of: dict[str, int] = {}
    for item in items:
        for piece in _pieces(item, options.target_bytes, can_split):
            # Neighbouring pieces of one file go to neighbouring tasks, so that one huge file keeps all of them busy.
            nth = pieces_of[item.file.key] = pieces_of.get(item.file.key, -1) + 1
            parcels.append(_Parcel(len(parcels), stable_hash(item.file.key) + nth, (piece,)))
    return parcels


def _pieces(item: FetchItem, target_bytes: int, can_split: CanSplit) -> list[FetchItem]:
    """An item cut into equal pieces of at most ``target_bytes``, if it can be."""
    count = -(-item.bytes // target_bytes)
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

"""The number of files in one batch, and the place to cut a file that does not fit. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from aioprefetch.errors import ConfigInvalid
from aioprefetch.source.files import FetchItem, SourceFile
from aioprefetch.source.options import AdmissionOptions

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

    @property
    def cut_bytes_min(self) -> int:
        """The least remaining bytes for which a file is cut."""
        return 0 if self.bytes_max is None else min(CUT_BYTES_MIN, self.bytes_max // 4)


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
    """The limits of one trigger: those of the source, narrowed by the request of the engine.

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
        left = self._room_bytes()
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
        """Leave items to the next batch, after those that are left already."""
        self.carry.extend(items)

    def supersede(self, file: SourceFile) -> None:
        """Drop all items of other versions of a file, whose bytes no longer exist."""

        def stays(item: FetchItem) -> bool:
            return item.file.key != file.key or item.file.is_same_version(file)

        self.items = [item for item in self.items if stays(item)]
        self.carry = [item for item in self.carry if stays(item)]
        self.bytes = sum(item.bytes for item in self.items)

    def _room_bytes(self) -> int | None:
        return None if self._limits.bytes_max is None else max(0, self._limits.bytes_max - self.bytes)

    def _is_worth_cutting(self, item: FetchItem, left: int) -> bool:
        if left < 1 or (self.items and left < self._limits.cut_bytes_min):
            return False
        return item.row_groups is None and self._can_split(item.file)

    def _take(self, item: FetchItem) -> None:
        self.items.append(item)
        self.bytes += item.bytes
        spent = self._limits.bytes_max is not None and self.bytes >= self._limits.bytes_max
        self.is_full = len(self.items) >= self._limits.items_max or spent

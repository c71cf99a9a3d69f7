"""The changes of known files by records, in memory until they are compacted into runs. Pure.

A record changes each file of its items, its carry and its ``known`` list, except the files carried over from the record
before, which changed them already. ``gone`` is applied first, so that a file that is both gone and listed in one record
exists.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from aioprefetch.source.file_index import KnownFile
from aioprefetch.source.files import FetchItem, SourceFile
from aioprefetch.source.record import Record

# The change of a key: its new file, or the time when it disappeared, if its file is in a run.
KeyChange = KnownFile | int
Changes = dict[str, KeyChange]


def carried_files(carry: Iterable[FetchItem]) -> frozenset[SourceFile]:
    """The files of a carry."""
    return frozenset(item.file for item in carry)


def changes_of(record: Record, carried: frozenset[SourceFile]) -> Changes:
    """The changes by a record; ``carried`` are the files in the carry of the record before it."""
    changes: Changes = {}
    changes.update(record.gone)
    seq = record.seq
    for item in (*record.items, *record.carry):
        file = item.file
        if file not in carried:
            changes[file.key] = KnownFile(file, seq, since=seq)
    for file in record.known:
        changes[file.key] = KnownFile(file, seq, since=seq)
    return changes


def fold(entries: Changes, changes: Mapping[str, KeyChange]) -> None:
    """Add later changes to earlier ones. A file that is gone already keeps its first time."""
    for key, change in changes.items():
        before = entries.get(key)
        if isinstance(change, KnownFile):
            entries[key] = change if before is None else _in_place_of(before, change)
        elif before is None:
            entries[key] = change
        elif isinstance(before, KnownFile):
            entries[key] = with_gone(before, change)


def _in_place_of(before: KeyChange, change: KnownFile) -> KnownFile:
    if isinstance(before, int) or before.gone_ms is not None:
        return replace(change, continues=False)
    return replace(change, since=before.since, continues=before.continues)


def with_gone(file: KnownFile, gone_ms: int) -> KnownFile:
    """The file with the time when it disappeared; an earlier time is kept."""
    return file if file.gone_ms is not None else replace(file, gone_ms=gone_ms)


class Delta:
    """The changes by the records after a snapshot, for each record and merged.

    ``records`` and ``changes`` count them; ``gone_ms_min`` is the earliest time at which one of the files disappeared.
    """

    def __init__(self) -> None:
        self.entries: Changes = {}
        self.records = 0
        self.changes = 0
        self.gone_ms_min: int | None = None
        self._steps: list[tuple[int, Changes]] = []
        self._sorted: list[str] = []
        self._unsorted: list[str] = []

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, seq: int, changes: Changes) -> None:
        """Add the changes by the next record."""
        self._steps.append((seq, changes))
        self.records += 1
        self.changes += len(changes)
        times = [change for change in changes.values() if isinstance(change, int)]
        if times:
            self.gone_ms_min = min(times) if self.gone_ms_min is None else min(*times, self.gone_ms_min)
        self._unsorted += [key for key in changes if key not in self.entries]
        fold(self.entries, changes)

    def up_to(self, through: int) -> Changes:
        """The merged changes by the records up to ``through``."""
        entries: Changes = {}
        for seq, changes in self._steps:
            if seq <= through:
                fold(entries, changes)
        return entries

    def after(self, through: int) -> Delta:
        """The changes by the records after ``through``."""
        rest = Delta()
        for seq, changes in self._steps:
            if seq > through:
                rest.add(seq, changes)
        return rest

    def keys(self, after: str, through: str | None) -> Sequence[str]:
        """The sorted changed keys above ``after`` and up to ``through`` (``None``: all above)."""
        if self._unsorted:
            # Merges two sorted lists, which Python does in linear time.
            self._sorted = sorted(self._sorted + sorted(self._unsorted))
            self._unsorted = []
        end = len(self._sorted) if through is None else bisect_right(self._sorted, through)
        return self._sorted[bisect_right(self._sorted, after) : end]

    def merge(self, rows: Sequence[KnownFile], after: str, through: str | None) -> list[KnownFile]:
        """The files of a range of keys: the sorted ``rows`` of runs, with the changes applied."""
        keys = self.keys(after, through)
        if not keys:
            return list(rows)
        files = {row.file.key: row for row in rows}
        for key in keys:
            file = self.apply(key, files.get(key))
            if file is not None:
                files[key] = file
        return [files[key] for key in sorted(files)]

    def apply(self, key: str, row: KnownFile | None) -> KnownFile | None:
        """The known file of a key, which is in the runs as ``row``."""
        change = self.entries.get(key)
        if change is None:
            return row
        if isinstance(change, KnownFile):
            is_new = row is None or row.gone_ms is not None or not change.continues
            return change if is_new or row is None else replace(change, since=row.since)
        return None if row is None else with_gone(row, change)


def slice_of(keys: Sequence[str], first: str | None, before: str | None) -> Sequence[str]:
    """The sorted keys from ``first`` on and below ``before``; ``None``: no bound."""
    start = 0 if first is None else bisect_left(keys, first)
    return keys[start : len(keys) if before is None else bisect_left(keys, before)]

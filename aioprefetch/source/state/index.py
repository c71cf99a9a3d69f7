"""The index of known files: the runs, read on demand, and the changes since the snapshot, in memory.

A record changes each file of its items, its carry and its ``known`` list, except the files carried over from the record
before, which changed them already. ``gone`` is applied first, so that a file that is both gone and listed in one record
exists.

Runs are kept on the local disk while they are in use: in files without a name, limited in bytes, which disappear with
the process. A sweep goes through the keys in order, so the row groups that were read last stay in memory.
"""

from __future__ import annotations

import asyncio
import tempfile
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO, TypeVar

import pyarrow as pa

from aioprefetch.errors import Closed
from aioprefetch.local_files.threads import settled
from aioprefetch.source.options import StateOptions
from aioprefetch.source.state.snapshot import SCHEMA, RunInfo, RunReader, files_of, position_after, row_of
from aioprefetch.source.state.store import SNAPSHOT, StateStore
from aioprefetch.source.stored_json import checksum, damaged
from aioprefetch.source.values import FetchItem, KnownFile, Record, SourceFile

T = TypeVar("T")

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


# --- runs and lookups -------------------------------------------------------------------------------------------------

# Row groups in memory, runs on the local disk, and known files of one step of a lookup.
GROUPS_IN_MEMORY = 8
FILES_MAX = 256
STEP_FILES = 1000


class RunMissing(Exception):
    """A run of the snapshot is not in the store. Internal: a reader then looks for a newer snapshot."""

    def __init__(self, run: RunInfo) -> None:
        super().__init__(run.name)
        self.run = run


@dataclass(slots=True)
class _LocalRun:
    file: IO[bytes]
    reader: RunReader
    bytes: int


class RunFiles:
    """The local copies of one state's runs. One is read at a time, so that none is closed during a read."""

    def __init__(self, store: StateStore, options: StateOptions) -> None:
        self._store = store
        self._options = options
        self._lock = asyncio.Lock()
        self._local: OrderedDict[str, _LocalRun] = OrderedDict()
        self._groups: OrderedDict[tuple[str, int], pa.Table] = OrderedDict()
        self._bytes = 0
        self._is_closed = False

    @property
    def local_bytes(self) -> int:
        """The size of the local files."""
        return self._bytes

    @property
    def cached_groups(self) -> int:
        """Row groups in memory."""
        return len(self._groups)

    async def following(self, run: RunInfo, after: str) -> pa.Table:
        """The next rows of a run with keys above ``after`` of one row group; none at the end of the run."""
        async with self._lock:
            reader = await self._reader(run)
            for group in range(reader.group_of(after), reader.count):
                table = await self._group(reader, group)
                if start_after := position_after(table, after):
                    table = table.slice(start_after)
                if table.num_rows:
                    return table
        return SCHEMA.empty_table()

    async def find(self, run: RunInfo, keys: Iterable[str]) -> list[pa.Table]:
        """The rows of a run with these keys, which must be sorted."""
        tables = []
        async with self._lock:
            reader = await self._reader(run)
            for key in keys:
                table = await self._group(reader, reader.group_of(key))
                row = row_of(table, key)
                if row is not None:
                    tables.append(table.slice(row, 1))
        return tables

    async def table(self, run: RunInfo) -> pa.Table:
        """All rows of a run."""
        async with self._lock:
            reader = await self._reader(run)
            return await self._blocking(reader.read)

    async def put(self, run: RunInfo, data: bytes) -> None:
        """Keep a copy of a run that was just written."""
        async with self._lock:
            await self._open(run, data)

    async def keep_only(self, names: Iterable[str]) -> None:
        """Drop the copies of all other runs."""
        kept = set(names)
        async with self._lock:
            for name in [name for name in self._local if name not in kept]:
                self._drop(name)

    async def aclose(self) -> None:
        """Close the files, which removes them. Waits for a read in progress."""
        self._is_closed = True
        async with self._lock:
            for name in list(self._local):
                self._drop(name)

    async def _group(self, reader: RunReader, group: int) -> pa.Table:
        place = reader.info.name, group
        table = self._groups.pop(place, None)
        if table is None:
            table = await self._blocking(reader.read_group, group)
        self._groups[place] = table
        if len(self._groups) > GROUPS_IN_MEMORY:
            self._groups.popitem(last=False)
        return table

    async def _reader(self, run: RunInfo) -> RunReader:
        local = self._local.get(run.name)
        if local is not None:
            self._local.move_to_end(run.name)
            return local.reader
        data = await self._store.read(run.name)
        if data is None:
            raise RunMissing(run)
        if len(data) != run.bytes or checksum(data) != run.crc32:
            raise damaged("the run differs from what the snapshot says", self._store.path(run.name))
        return await self._open(run, data)

    async def _open(self, run: RunInfo, data: bytes) -> RunReader:
        if self._is_closed:
            raise Closed("the state was closed", operation="read_state", path=self._store.path(run.name))
        job = self._store.operator.runtime().run_blocking(self._write, run, data)
        local = await settled(job, lambda local: local.file.close())
        self._local[run.name] = local
        self._bytes += local.bytes
        while len(self._local) > 1 and (self._bytes > self._options.cache_bytes or len(self._local) > FILES_MAX):
            self._drop(next(iter(self._local)))
        return local.reader

    def _write(self, run: RunInfo, data: bytes) -> _LocalRun:
        # A file without a name: a killed process leaves nothing behind.
        file = tempfile.TemporaryFile(  # noqa: SIM115 - ``_drop`` closes it
            prefix="aioprefetch-", dir=self._options.cache_directory
        )
        try:
            file.write(data)
            file.flush()
            return _LocalRun(file, RunReader(file, run, path=self._store.path(run.name)), len(data))
        except BaseException:
            file.close()
            raise

    async def _blocking(self, call: Callable[..., pa.Table], *arguments: object) -> pa.Table:
        # To its end even after a cancellation: the file must not be closed under the thread that reads it.
        return await settled(self._store.operator.runtime().run_blocking(call, *arguments))

    def _drop(self, name: str) -> None:
        local = self._local.pop(name)
        self._bytes -= local.bytes
        for place in [place for place in self._groups if place[0] == name]:
            del self._groups[place]
        local.file.close()


@dataclass(frozen=True, slots=True)
class IndexView:
    """The runs in the order of their keys, and the changes after them. A compaction makes another view."""

    runs: tuple[RunInfo, ...]
    delta: Delta


class StateIndex:
    """Implements ``FileIndex``. Each lookup sees all records up to its start, and perhaps some later ones.

    Beside its result, a lookup holds some row groups. ``refresh`` is for a state that another process writes: it loads
    the newest snapshot when runs of the snapshot in use were removed.
    """

    def __init__(self, files: RunFiles) -> None:
        self.view = IndexView((), Delta())
        self.refresh: Callable[[], Awaitable[None]] | None = None
        self._files = files

    async def find(self, keys: Sequence[str]) -> dict[str, KnownFile]:
        """The known files of these keys, which may come in any order."""

        async def look(view: IndexView) -> dict[str, KnownFile]:
            entries = view.delta.entries
            wanted = sorted({key for key in keys if not isinstance(entries.get(key), KnownFile)})
            rows: dict[str, KnownFile] = {}
            for run in view.runs:
                inside = wanted[bisect_left(wanted, run.first) : bisect_right(wanted, run.last)]
                if inside:
                    for table in await self._files.find(run, inside):
                        rows |= {row.file.key: row for row in files_of(table)}
            files = {key: view.delta.apply(key, rows.get(key)) for key in keys}
            return {key: file for key, file in files.items() if file is not None}

        return await self._retried(look)

    async def page(self, after: str, *, count: int) -> Sequence[KnownFile]:
        """The next ``count`` known files above a key, sorted by key."""
        # Large steps, so that a page with many forgotten files does not need a step for each of them.
        limit = max(count, STEP_FILES)

        async def look(view: IndexView) -> list[KnownFile]:
            files: list[KnownFile] = []
            position: str | None = after
            for run in view.runs[bisect_right(view.runs, after, key=lambda run: run.last) :]:
                while position is not None and position < run.last and len(files) < count:
                    rows, through = await self._stretch(run, position, limit)
                    merged, position = _step(view.delta, rows, position, through, limit)
                    files += merged
            while position is not None and len(files) < count:
                merged, position = _step(view.delta, [], position, None, limit)
                files += merged
            return files[:count]

        return await self._retried(look)

    async def _stretch(self, run: RunInfo, position: str, limit: int) -> tuple[list[KnownFile], str]:
        """The next rows of a run above a key, and the last of their keys."""
        rows = files_of((await self._files.following(run, position)).slice(0, limit))
        return rows, rows[-1].file.key

    async def _retried(self, look: Callable[[IndexView], Awaitable[T]]) -> T:
        try:
            return await look(self.view)
        except RunMissing as missing:
            if self.refresh is None:
                raise missing_run(missing.run) from missing
        await self.refresh()
        try:
            return await look(self.view)
        except RunMissing as missing:
            raise missing_run(missing.run) from missing


def _step(
    delta: Delta, rows: list[KnownFile], position: str, through: str | None, limit: int
) -> tuple[list[KnownFile], str | None]:
    """The files above a key up to ``through``, or up to an earlier key after many changes; and that key."""
    keys = delta.keys(position, through)
    if len(keys) > limit:
        through = keys[limit - 1]
        rows = [row for row in rows if row.file.key <= through]
    return delta.merge(rows, position, through), through


def missing_run(run: RunInfo) -> Exception:
    """The error for a run of the snapshot that is not in the store."""
    return damaged(f"{SNAPSHOT} names a run that is missing, with {run.rows} files", run.name)

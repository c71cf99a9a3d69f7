"""The index of known files: the runs, read on demand, and the changes since the snapshot, in memory.

Runs are kept on the local disk while they are in use: in files without a name, limited in bytes, which disappear with
the process. A sweep goes through the keys in order, so the row groups that were read last stay in memory.
"""

from __future__ import annotations

import asyncio
import tempfile
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import IO, TypeVar

import pyarrow as pa

from aioprefetch.errors import Closed
from aioprefetch.services.fs.threads import settled
from aioprefetch.source.file_index import KnownFile
from aioprefetch.source.options import StateOptions
from aioprefetch.source.state.checksummed_json import checksum, damaged
from aioprefetch.source.state.delta import Delta
from aioprefetch.source.state.runs import SCHEMA, RunInfo, RunReader, files_of, position_after, row_of, rows_between
from aioprefetch.source.state.store import SNAPSHOT, StateStore

T = TypeVar("T")

GROUPS_IN_MEMORY = 8
FILES_MAX = 256
STEP_FILES = 1000


class RunMissing(Exception):
    """A run that a snapshot names is not in the store. Internal: whoever reads may look at the snapshot again."""

    def __init__(self, run: RunInfo) -> None:
        super().__init__(run.name)
        self.run = run


@dataclass(slots=True)
class _LocalRun:
    file: IO[bytes]
    reader: RunReader
    bytes: int


class RunFiles:
    """The local files of one state's runs. One is read at a time, so that none is closed under a reader."""

    def __init__(self, store: StateStore, options: StateOptions) -> None:
        self._store = store
        self._options = options
        self._turn = asyncio.Lock()
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

    async def between(self, run: RunInfo, after: str, through: str) -> list[pa.Table]:
        """The rows of a run with keys above ``after`` and at most ``through``."""
        async with self._turn:
            reader = await self._reader(run)
            tables = [await self._group(reader, group) for group in reader.groups(after, through)]
        return [rows_between(table, after, through) for table in tables]

    async def following(self, run: RunInfo, after: str) -> pa.Table:
        """Some rows of a run: the next ones with keys above ``after``; none if there are no more."""
        async with self._turn:
            reader = await self._reader(run)
            for group in range(reader.group_of(after), reader.count):
                table = await self._group(reader, group)
                if start_after := position_after(table, after):
                    table = table.slice(start_after)
                if table.num_rows:
                    return table
        return SCHEMA.empty_table()

    async def find(self, run: RunInfo, keys: Iterable[str]) -> list[pa.Table]:
        """The rows of a run that have these keys, which are in order."""
        found = []
        async with self._turn:
            reader = await self._reader(run)
            for key in keys:
                table = await self._group(reader, reader.group_of(key))
                row = row_of(table, key)
                if row is not None:
                    found.append(table.slice(row, 1))
        return found

    async def table(self, run: RunInfo) -> pa.Table:
        """All rows of a run."""
        async with self._turn:
            reader = await self._reader(run)
            return await self._blocking(reader.read)

    async def put(self, run: RunInfo, data: bytes) -> None:
        """Keep a run that was just written, to save reading it again."""
        async with self._turn:
            await self._open(run, data)

    async def keep_only(self, names: Iterable[str]) -> None:
        """Forget the runs that are no longer in use."""
        kept = set(names)
        async with self._turn:
            for name in [name for name in self._local if name not in kept]:
                self._forget(name)

    async def aclose(self) -> None:
        """Close the files, which removes them. Waits for a read that is under way."""
        self._is_closed = True
        async with self._turn:
            for name in list(self._local):
                self._forget(name)

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
            raise damaged("the run is not the one that the snapshot names", self._store.path(run.name))
        return await self._open(run, data)

    async def _open(self, run: RunInfo, data: bytes) -> RunReader:
        if self._is_closed:
            raise Closed("the state was closed", operation="read_state", path=self._store.path(run.name))
        job = self._store.operator.runtime().run_blocking(self._write, run, data)
        local = await settled(job, lambda made: made.file.close())
        self._local[run.name] = local
        self._bytes += local.bytes
        while len(self._local) > 1 and (self._bytes > self._options.cache_bytes or len(self._local) > FILES_MAX):
            self._forget(next(iter(self._local)))
        return local.reader

    def _write(self, run: RunInfo, data: bytes) -> _LocalRun:
        # Without a name from the beginning: a process that is killed leaves nothing behind.
        file = tempfile.TemporaryFile(  # noqa: SIM115 - it is closed when it is forgotten
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
        # To its end even if nobody waits any more: the file must not be closed under the thread that reads it.
        return await settled(self._store.operator.runtime().run_blocking(call, *arguments))

    def _forget(self, name: str) -> None:
        local = self._local.pop(name)
        self._bytes -= local.bytes
        for place in [place for place in self._groups if place[0] == name]:
            del self._groups[place]
        local.file.close()


@dataclass(frozen=True, slots=True)
class IndexView:
    """Runs, in the order of their keys, and the changes that are not in them yet. A compaction makes another one."""

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

    async def between(self, after: str, through: str) -> Sequence[KnownFile]:
        """Those whose key is above ``after`` and at most ``through``, in the order of their keys."""
        if after >= through:
            return []

        async def look(view: IndexView) -> list[KnownFile]:
            rows: list[KnownFile] = []
            for run in _overlapping(view.runs, after, through):
                for table in await self._files.between(run, after, through):
                    rows += files_of(table)
            return view.delta.merge(rows, after, through)

        return await self._looked(look)

    async def find(self, keys: Sequence[str]) -> dict[str, KnownFile]:
        """Those of ``keys``, in any order, that are known."""

        async def look(view: IndexView) -> dict[str, KnownFile]:
            entries = view.delta.entries
            wanted = sorted({key for key in keys if not isinstance(entries.get(key), KnownFile)})
            rows: dict[str, KnownFile] = {}
            for run in view.runs:
                inside = wanted[bisect_left(wanted, run.first) : bisect_right(wanted, run.last)]
                if inside:
                    for table in await self._files.find(run, inside):
                        rows |= {row.file.key: row for row in files_of(table)}
            found = {key: view.delta.apply(key, rows.get(key)) for key in keys}
            return {key: known for key, known in found.items() if known is not None}

        return await self._looked(look)

    async def page(self, after: str, *, count: int) -> Sequence[KnownFile]:
        """The next ``count`` known files above a key, in the order of their keys."""
        # Steps of at least so many, so that a page in which many were forgotten does not take a step for each.
        limit = max(count, STEP_FILES)

        async def look(view: IndexView) -> list[KnownFile]:
            found: list[KnownFile] = []
            position: str | None = after
            for run in view.runs[_first_beyond(view.runs, after) :]:
                while position is not None and position < run.last and len(found) < count:
                    rows, through = await self._stretch(run, position, limit)
                    merged, position = _step(view.delta, rows, position, through, limit)
                    found += merged
            while position is not None and len(found) < count:
                merged, position = _step(view.delta, [], position, None, limit)
                found += merged
            return found[:count]

        return await self._looked(look)

    async def _stretch(self, run: RunInfo, position: str, limit: int) -> tuple[list[KnownFile], str]:
        """The next rows of a run above a key, and the key up to which they are all."""
        rows = files_of((await self._files.following(run, position)).slice(0, limit))
        return rows, rows[-1].file.key

    async def _looked(self, look: Callable[[IndexView], Awaitable[T]]) -> T:
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
    """The files above a key up to another one, or up to an earlier one where many changed; with where that is."""
    keys = delta.keys(position, through)
    if len(keys) > limit:
        through = keys[limit - 1]
        rows = [row for row in rows if row.file.key <= through]
    return delta.merge(rows, position, through), through


def missing_run(run: RunInfo) -> Exception:
    """The error for a run that the snapshot names and the store has not."""
    return damaged(f"{SNAPSHOT} names a run that is missing, with {run.rows} files", run.name)


def _first_beyond(runs: Sequence[RunInfo], key: str) -> int:
    """The number of the first run that has keys above ``key``."""
    return bisect_right(runs, key, key=lambda run: run.last)


def _overlapping(runs: Sequence[RunInfo], after: str, through: str) -> Sequence[RunInfo]:
    return runs[_first_beyond(runs, after) : bisect_right(runs, through, key=lambda run: run.first)]

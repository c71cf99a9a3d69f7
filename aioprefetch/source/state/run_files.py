"""Runs on the local disk while they are looked into: files without a name, bounded in bytes, gone with the process.

What is read once is mostly read again soon, because a sweep goes through the keys in order: the row groups read last
stay in memory, a few of them.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import IO

import pyarrow as pa

from aioprefetch.errors import Closed
from aioprefetch.services.fs.threads import settled
from aioprefetch.source.state.options import StateOptions
from aioprefetch.source.state.runs import SCHEMA, RunInfo, RunReader, position_after, row_of, rows_between
from aioprefetch.source.state.sealed import checksum, damaged
from aioprefetch.source.state.store import StateStore

GROUPS_IN_MEMORY = 8
FILES_MAX = 256


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
    def total_bytes(self) -> int:
        """What the local files take."""
        return self._bytes

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

"""The disk tier of a block store: the blocks on the disk, and their use in fetches.

A read gets its bytes even if the disk fails: bytes that no file returns in time and undamaged come from the
store.
"""

from __future__ import annotations

import errno
import weakref
from collections.abc import Iterable
from functools import partial
from typing import Protocol

from aioprefetch.blocks.spill.block_cache import BlockCache, OpenBlock
from aioprefetch.blocks.spill.block_key import BlockKey, FileIdentity
from aioprefetch.blocks.spill.directory import SystemCalls
from aioprefetch.blocks.spill.entry import PIECE_BYTES, BadEntry, aligned
from aioprefetch.blocks.spill.guard import DiskCalls, SpillFailed
from aioprefetch.blocks.spill.write_behind import Evict, Evictable, SpillFile, WriteBehind
from aioprefetch.ranges import Range
from aioprefetch.runtime.options import DiskCache
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import ReadHead

# After this time a read lists the directory again, to find the files of other processes.
LOOK_SECONDS = 10.0
# Bytes that are read, verified and delivered by one job of a thread: fewer cost more turns of the loop, more need more
# memory beside the block's own.
READ_BYTES = 4 * PIECE_BYTES


class SpillFetch(Protocol):
    """A fetch as the disk tier sees it: a range, and a sink for its bytes."""

    start: int
    end: int
    label: str

    @property
    def head(self) -> ReadHead | None:
        """The head of the response, ``None`` before ``begin``."""

    def begin(self, head: ReadHead, *, path: str = "") -> None:
        """Begin the response."""

    def feed(self, chunk: memoryview) -> int:
        """Copy in the next bytes of the response."""
        ...


class DiskTier:
    """The block files of one runtime. Everything here runs on its loop.

    A read lists the directory for the files of other processes when ``look_seconds`` have passed since the last time.
    """

    def __init__(
        self,
        runtime: Runtime,
        options: DiskCache,
        calls: SystemCalls | None = None,
        *,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self.calls = DiskCalls(runtime, options)
        self.cache = BlockCache(
            options.directory, capacity_bytes=options.capacity_bytes, calls=SystemCalls() if calls is None else calls
        )
        self.writer = WriteBehind(self.cache, self.calls, self.key, runtime, options)
        self._runtime = runtime
        self._tenant = options.tenant
        self._identities: weakref.WeakKeyDictionary[SpillFile, FileIdentity] = weakref.WeakKeyDictionary()
        self._memory: list[bytearray] = []
        self._look_seconds = look_seconds
        self._look_at = float("-inf")
        self._look_when_due()

    @classmethod
    def of(cls, runtime: Runtime, *, evictable: Evictable, evict: Evict) -> DiskTier | None:
        """The disk tier of a runtime, ``None`` if none is configured.

        ``evictable`` lists the blocks in memory that could be evicted, and ``evict`` evicts one of them.
        """
        options = runtime.options.disk_cache
        if options is None:
            return None
        tier = runtime.shared("disk_tier", lambda: cls(runtime, options))
        tier.writer.serve(evictable, evict)
        return tier

    def close(self) -> None:
        """Close the directory. Does not wait."""
        self.writer.close()
        self.cache.close()
        self._memory.clear()

    # --- which blocks are on the disk ---------------------------------------------------------------------------

    def key(self, file: SpillFile, index: int) -> BlockKey | None:
        """The key of a block on the disk, ``None`` for a block that does not belong there."""
        identity = self._identity(file)
        return None if identity is None else identity.key(index)

    def _identity(self, file: SpillFile) -> FileIdentity | None:
        """The identity of a file's blocks on the disk, ``None`` for a file without a strong version."""
        identity = self._identities.get(file)
        if identity is not None and identity.size == file.size:
            return identity
        if len(file.version) != 2 or not isinstance(file.name, tuple):
            return None
        namespace, path = file.name
        version, etag = file.version
        identity = self._identities[file] = FileIdentity(
            tenant=self._tenant,
            namespace=namespace,
            path=path,
            version=version,
            etag=etag,
            size=file.size,
            block_bytes=file.grid.block_bytes,
        )
        return identity

    def divide(self, file: SpillFile, gaps: list[Range]) -> list[Range]:
        """Cut ``gaps`` where blocks on the disk and other blocks meet: each part is fetched on its own."""
        identity = self._identity(file)
        if identity is None or self.calls.is_off:
            return gaps
        self._look_when_due()
        return gaps if len(self.cache) == 0 else [piece for gap in gaps for piece in self._cut(file, identity, *gap)]

    def _cut(self, file: SpillFile, identity: FileIdentity, start: int, end: int) -> Iterable[Range]:
        before: bool | None = None
        begin = start
        for index in file.grid.indices(start, end):
            is_on_disk = identity.name(index) in self.cache
            low = max(start, file.grid.bounds(index)[0])
            if before is not None and is_on_disk is not before:
                yield begin, low
                begin = low
            before = is_on_disk
        yield begin, end

    def _look_when_due(self) -> None:
        now = self._runtime.now()
        if now >= self._look_at and not self.calls.is_off:
            self._look_at = now + self._look_seconds
            self._runtime.supervisor.spawn(self._look(), name="list the block files")

    async def _look(self) -> None:
        try:
            await self.calls.look(self.cache.look)
        except SpillFailed:
            self._look_at = float("-inf")  # Again as soon as the disk may be called.

    # --- reading ------------------------------------------------------------------------------------------------

    async def serve(self, fetch: SpillFetch, file: SpillFile) -> bool:
        """Deliver to a fetch of ``file`` its blocks on the disk, from its start on. Returns whether there were any.

        When a file turns out to be damaged in the middle, the fetch ends before the damage: its waiters then ask for
        the missing rest.
        """
        identity = None if self.calls.is_off else self._identity(file)
        if identity is None:
            return False
        position = fetch.start
        while position < fetch.end:
            index = file.grid.index(position)
            low, high = file.grid.bounds(index)
            stop = min(high, fetch.end)
            key = identity.key(index)
            if key is None or (key.name not in self.cache and self.cache.looked):
                break
            if not await self._deliver(fetch, file, key, position - low, stop - low):
                break
            self._runtime.counters["stream_read_block_disk_hits"] += 1
            self.writer.filter.hit()
            position = stop
        return fetch.head is not None

    async def _deliver(self, fetch: SpillFetch, file: SpillFile, key: BlockKey, start: int, end: int) -> bool:
        """Deliver the bytes ``[start, end)`` of a block to a fetch. Returns whether all were delivered."""
        block: OpenBlock | None = None
        try:
            while start < end:
                low, high = aligned(start, end, key.data_bytes)
                high = min(high, low + READ_BYTES)
                result = await self.calls.read(partial(self._read, key, block, low, high))
                if result is None:
                    return False
                block, memory, data = result
                if fetch.head is None:
                    version, etag = file.version[:2]
                    head = ReadHead(
                        start=fetch.start, size=fetch.end - fetch.start, total=None, etag=etag, version=version
                    )
                    fetch.begin(head, path=fetch.label)
                fetch.feed(data[start - low : min(end, high) - low])
                self._memory.append(memory)
                start = high
        except SpillFailed:
            return False
        return True

    def _read(
        self, key: BlockKey, block: OpenBlock | None, start: int, end: int
    ) -> tuple[OpenBlock, bytearray, memoryview] | None:
        """Whole pieces of a block, opened for the first of them, and the memory they lie in. Runs in a thread."""
        try:
            opened = block if block is not None else self.cache.find(key)
            if opened is None:
                return None
            memory = self._new_memory()
            return opened, memory, opened.read(start, end, memory)
        except (BadEntry, OSError) as error:
            if isinstance(error, BadEntry) or error.errno == errno.EIO:
                self.cache.drop(key.name)
            raise

    def _new_memory(self) -> bytearray:
        """Memory for one job, used before where possible: new memory costs more than reading into it.

        Memory whose job was abandoned is not used again, because its thread may be late.
        """
        try:
            return self._memory.pop()
        except IndexError:
            return bytearray(READ_BYTES)

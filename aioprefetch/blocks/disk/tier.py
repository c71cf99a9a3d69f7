"""The disk tier of a block store: which blocks lie on the disk, and how they come to a fetch.

Whatever the disk does, a read gets its bytes: what a file does not give, in time and unharmed, the store gives.
"""

from __future__ import annotations

import errno
import weakref
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from aioprefetch.blocks.disk.block_cache import BlockCache, OpenBlock
from aioprefetch.blocks.disk.format import PIECE_BYTES, BadBlockFile, BlockKey, FileIdentity
from aioprefetch.blocks.disk.guard import DiskFailed, DiskGuard
from aioprefetch.blocks.disk.system_calls import SystemCalls
from aioprefetch.blocks.disk.write_behind import WriteBehind
from aioprefetch.ranges import Range
from aioprefetch.runtime.options import DiskCache
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import ReadHead

if TYPE_CHECKING:
    from aioprefetch.blocks.block_file import BlockFile
    from aioprefetch.blocks.fetch import Fetch

# How often it is looked for what other processes wrote, when something was not found.
LOOK_SECONDS = 10.0


class DiskTier:
    """The block files of one runtime. Everything here runs on its loop."""

    def __init__(self, runtime: Runtime, options: DiskCache, calls: SystemCalls | None = None) -> None:
        self.guard = DiskGuard(runtime, options)
        self.cache = BlockCache(
            options.directory, capacity_bytes=options.capacity_bytes, calls=SystemCalls() if calls is None else calls
        )
        self.writer = WriteBehind(self, runtime, options)
        self._runtime = runtime
        self._tenant = options.tenant
        self._identities: weakref.WeakKeyDictionary[BlockFile, FileIdentity] = weakref.WeakKeyDictionary()
        self._memory: list[bytearray] = []
        self._look_at = float("-inf")
        self._look_when_due()

    @classmethod
    def of(cls, runtime: Runtime) -> DiskTier | None:
        """The disk tier of a runtime, ``None`` where none is configured."""
        options = runtime.options.disk_cache
        return None if options is None else runtime.shared("disk_tier", lambda: cls(runtime, options))

    def close(self) -> None:
        """Let go of the directory; waits for nothing."""
        self.writer.close()
        self.cache.close()
        self._memory.clear()

    # --- what is there ------------------------------------------------------------------------------------------

    def key(self, file: BlockFile, index: int) -> BlockKey | None:
        """What a block is on the disk, ``None`` for one that does not belong there."""
        identity = self._identity(file)
        return None if identity is None else identity.key(index)

    def _identity(self, file: BlockFile) -> FileIdentity | None:
        """What tells the blocks of a file from all others, ``None`` when nothing says which version they are of."""
        known = self._identities.get(file)
        if known is not None and known.size == file.size:
            return known
        if len(file.version) != 2 or not isinstance(file.name, tuple):
            return None
        namespace, path = file.name
        version, etag = file.version
        known = self._identities[file] = FileIdentity(
            tenant=self._tenant,
            namespace=namespace,
            path=path,
            version=version,
            etag=etag,
            size=file.size,
            block_bytes=file.grid.block_bytes,
        )
        return known

    def divide(self, file: BlockFile, gaps: list[Range]) -> list[Range]:
        """``gaps`` cut where blocks that are on the disk and blocks that are not meet: each is asked for on its own."""
        identity = self._identity(file)
        if identity is None or self.guard.is_off:
            return gaps
        self._look_when_due()
        return gaps if len(self.cache) == 0 else [piece for gap in gaps for piece in self._cut(file, identity, *gap)]

    def _cut(self, file: BlockFile, identity: FileIdentity, start: int, end: int) -> Iterable[Range]:
        before: bool | None = None
        begin = start
        for index in file.grid.indices(start, end):
            known = identity.name(index) in self.cache
            low = max(start, file.grid.bounds(index)[0])
            if before is not None and known is not before:
                yield begin, low
                begin = low
            before = known
        yield begin, end

    def _look_when_due(self) -> None:
        now = self._runtime.now()
        if now >= self._look_at and not self.guard.is_off:
            self._look_at = now + LOOK_SECONDS
            self._runtime.supervisor.spawn(self._look(), name="look at the block files")

    async def _look(self) -> None:
        try:
            await self.guard.look(self.cache.look)
        except DiskFailed:
            self._look_at = float("-inf")  # Again as soon as the guard allows it.

    # --- reading ------------------------------------------------------------------------------------------------

    async def serve(self, fetch: Fetch) -> bool:
        """Give a fetch what the disk has from its start on; whether that was anything.

        When a file turns out to be harmed in the middle, the fetch ends with what came before: its waiters ask again,
        for what is missing then.
        """
        file = fetch.file
        identity = None if file is None or self.guard.is_off else self._identity(file)
        if file is None or identity is None:
            return False
        position = fetch.start
        while position < fetch.end:
            index = file.grid.index(position)
            low, high = file.grid.bounds(index)
            stop = min(high, fetch.end)
            key = identity.key(index)
            if key is None or (key.name not in self.cache and self.cache.looked):
                break
            if not await self._give(fetch, file, key, position - low, stop - low):
                break
            self._runtime.counters["stream_read_block_disk_hits"] += 1
            self.writer.filter.hit()
            position = stop
        return fetch.head is not None

    async def _give(self, fetch: Fetch, file: BlockFile, key: BlockKey, start: int, end: int) -> bool:
        """Give a fetch the bytes ``[start, end)`` of a block, piece by piece; whether all of it came."""
        block: OpenBlock | None = None
        try:
            while start < end:
                number = start // PIECE_BYTES
                found = await self.guard.read(partial(self._piece, key, block, number))
                if found is None:
                    return False
                block, memory, piece = found
                low, high = key.piece(number)
                if fetch.head is None:
                    version, etag = file.version[:2]
                    head = ReadHead(
                        start=fetch.start, size=fetch.end - fetch.start, total=None, etag=etag, version=version
                    )
                    fetch.begin(head, path=fetch.label)
                fetch.feed(piece[start - low : min(end, high) - low])
                self._memory.append(memory)
                start = high
        except DiskFailed:
            return False
        return True

    def _piece(
        self, key: BlockKey, block: OpenBlock | None, number: int
    ) -> tuple[OpenBlock, bytearray, memoryview] | None:
        """A piece of a block, which is opened for its first, and the memory it lies in. Runs in a thread."""
        try:
            found = block if block is not None else self.cache.find(key)
            if found is None:
                return None
            memory = self._new_memory()
            return found, memory, found.piece(number, memory)
        except (BadBlockFile, OSError) as error:
            if isinstance(error, BadBlockFile) or error.errno == errno.EIO:
                self.cache.drop(key.name)
            raise

    def _new_memory(self) -> bytearray:
        """Memory for a piece: such as was used before, because new memory costs more than reading into it.

        What nobody came to fetch is not used again, since its thread may be late.
        """
        try:
            return self._memory.pop()
        except IndexError:
            return bytearray(PIECE_BYTES)

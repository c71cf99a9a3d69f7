"""The disk tier of a block store: the blocks on the disk, and their use in fetches.

A read gets its bytes even if the disk fails: bytes that no file returns in time and undamaged come from the
store.

What is small, and what the kernel has in memory, is read on the loop; a thread reads the rest straight into the memory
of the block. A thread that is given up holds that memory until it comes back, and the store's bytes go into other
memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from aioprefetch.blocks.fetch import Fetch
from aioprefetch.blocks.file import BlockFile
from aioprefetch.blocks.host_claims import HostClaims
from aioprefetch.blocks.write_behind import Evictable, WriteBehind
from aioprefetch.cache.directory import SystemCalls
from aioprefetch.cache.entry import PIECE_BYTES, BadEntry, EntryKey, Naming, aligned, encoded
from aioprefetch.cache.files import SCRATCH_BYTES, EntryFiles, OpenEntry
from aioprefetch.cache.guard import CacheFailed, DiskCalls
from aioprefetch.ranges import BlockGrid, Range
from aioprefetch.runtime.options import DiskCache
from aioprefetch.runtime.runtime import TURN_BYTES, Runtime
from aioprefetch.runtime.statistics import Tier
from aioprefetch.values import ReadHead

# After this time a read lists the directory again, to find the files of other processes.
LOOK_SECONDS = 10.0
# One job of a thread reads no longer than this, so that progress is seen.
JOB_SECONDS = 0.02
# Other processes see in the times of the files what was read on the loop, after this time at the latest.
TOUCH_SECONDS = 1.0
# Closing waits no longer than this for it.
TOUCH_SECONDS_AT_CLOSE = 0.2


# The namespace and the path of an object.
FileName = tuple[Sequence[str], str]


class BlockIdentity:
    """The common identity of the blocks of one version of an object on one grid. ``key`` adds the number of a block.

    Of ``name`` the namespace is the store and the principal; ``tenant`` is a separation that the user configures.
    ``size`` is that of the object.
    """

    __slots__ = ("_encoded", "_grid", "_naming", "size")

    def __init__(
        self, tenant: str, name: FileName, version: str | None, etag: str | None, size: int, block_bytes: int
    ) -> None:
        namespace, path = name
        self._encoded = encoded(tenant, len(namespace), *namespace, path, version, etag, size, block_bytes)
        self._grid = BlockGrid(size, block_bytes)
        self._naming = Naming(self._encoded)
        self.size = size

    def name(self, index: int) -> str:
        """The name of the file of block ``index``."""
        return self._naming.name(index.to_bytes(8, "big"))

    def key(self, index: int) -> EntryKey | None:
        """The key of block ``index``, ``None`` when its tail would be too long for a file."""
        start, end = self._grid.bounds(index)
        return EntryKey.of(self.name(index), self._encoded + index.to_bytes(8, "big"), end - start)


class DiskTier:
    """The block files of one runtime. Everything here runs on its loop.

    A read lists the directory for the files of other processes when ``look_seconds`` have passed since the last time.
    They see what was read on the loop after ``touch_seconds``.
    """

    def __init__(
        self,
        runtime: Runtime,
        options: DiskCache,
        calls: SystemCalls | None = None,
        *,
        look_seconds: float = LOOK_SECONDS,
        touch_seconds: float = TOUCH_SECONDS,
    ) -> None:
        self.calls = DiskCalls(runtime, options)
        self.cache = EntryFiles(
            options.directory, capacity_bytes=options.limit_bytes, calls=SystemCalls() if calls is None else calls
        )
        self.claims = HostClaims(self.cache, self.calls, self.key, runtime, options)
        self.writer = WriteBehind(self.cache, self.calls, self.key, self.claims.release, runtime, options)
        self.claims.written = self.writer.names
        self._runtime = runtime
        self._tenant = options.tenant
        self._loop_scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._scratch: list[memoryview] = []
        self._touch_seconds = touch_seconds
        self._is_touching = False
        runtime.before_close(self._finish)
        self._look_seconds = look_seconds
        self._look_at = float("-inf")
        self._look_when_due()

    @classmethod
    def of(cls, runtime: Runtime, *, evictable: Evictable) -> DiskTier | None:
        """The disk tier of a runtime, ``None`` if none is configured.

        ``evictable`` lists the blocks in memory that could be evicted.
        """
        options = runtime.options.disk_cache
        if options is None:
            return None
        tier = runtime.shared("disk_tier", lambda: cls(runtime, options))
        tier.writer.evictable = evictable
        return tier

    def close(self) -> None:
        """Close the directory. Does not wait."""
        self.writer.close()
        self.cache.close()
        self._scratch.clear()

    # --- which blocks are on the disk ---------------------------------------------------------------------------

    def key(self, file: BlockFile, index: int) -> EntryKey | None:
        """The key of a block on the disk, ``None`` for a block that does not belong there."""
        identity = self._identity(file)
        key = None if identity is None else identity.key(index)
        return None if key is None or key.file_bytes > self.cache.capacity_bytes else key

    def _identity(self, file: BlockFile) -> BlockIdentity | None:
        """The identity of a file's blocks on the disk, ``None`` for a file without a strong version."""
        identity = file.on_disk
        if isinstance(identity, BlockIdentity) and identity.size == file.size:
            return identity
        if len(file.version) != 2 or not isinstance(file.name, tuple):
            return None
        version, etag = file.version
        identity = BlockIdentity(self._tenant, file.name, version, etag, file.size, file.grid.block_bytes)
        file.on_disk = identity
        return identity

    def held(self, file: BlockFile, *, looks_max: int) -> list[Range]:
        """The ranges of a file that are on the disk, by the index in memory. Any thread.

        Of more than ``looks_max`` blocks every n-th is looked at, and stands for those up to the next one.
        """
        identity = self._identity(file)
        if identity is None or len(self.cache) == 0:
            return []
        block_bytes = file.grid.block_bytes
        step = -(-file.size // (block_bytes * looks_max)) or 1
        starts = range(0, file.size, step * block_bytes)
        return [
            (start, min(start + step * block_bytes, file.size))
            for start in starts
            if identity.name(start // block_bytes) in self.cache
        ]

    def divide(self, file: BlockFile, gaps: list[Range]) -> list[Range]:
        """Cut ``gaps`` where blocks on the disk and other blocks meet: each part is fetched on its own."""
        identity = self._identity(file)
        if identity is None or self.calls.is_off:
            return gaps
        self._look_when_due()
        index, (start, end) = file.grid.index, gaps[0]
        if len(self.cache) == 0 or (len(gaps) == 1 and index(start) == index(end - 1)):
            return gaps
        return [piece for gap in gaps for piece in self._cut(file, identity, *gap)]

    def _cut(self, file: BlockFile, identity: BlockIdentity, start: int, end: int) -> Iterable[Range]:
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
            await self.calls.call("list", self.cache.look)
        except CacheFailed:
            self._look_at = float("-inf")  # Again as soon as the disk may be called.

    # --- reading ------------------------------------------------------------------------------------------------

    async def bring(self, fetch: Fetch, file: BlockFile) -> bool:
        """Deliver to a fetch what the disk has of it, or will have: ``False`` when its request is to be sent.

        It may have been shortened to what this process has to fetch; another fetch has begun for the rest then.
        """
        fetch.tier = Tier.DISK
        while True:
            if await self.serve(fetch, file):
                return True
            if self.writer.is_off or not await self.claims.must_wait(fetch, file):
                break
        fetch.tier = Tier.NETWORK
        return False

    async def recall(
        self,
        fetch: Fetch,
        name: FileName,
        block_bytes: int,
        start_of: Callable[[int], int],
        *,
        claims: bool,
    ) -> ReadHead | None:
        """Size and version of an object, for a first request that begins at ``start_of`` its size.

        ``None`` if no process has left them and the block there, or is about to. With ``claims`` this one is, if it is
        the first.
        """
        namespace, path = name

        def block_of(facts: ReadHead) -> str:
            identity = BlockIdentity(self._tenant, name, facts.version, facts.etag, facts.size, block_bytes)
            return identity.name(start_of(facts.size) // block_bytes)

        return await self.claims.recall(fetch, namespace, path, block_of, claims=claims)

    def opened(self, fetch: Fetch, file: BlockFile) -> None:
        """The response of a first request has named its file: tell other processes."""
        self.claims.opened(fetch, file)

    def ended(self, fetch: Fetch) -> None:
        """A fetch has ended."""
        self.writer.filled(fetch.received)
        self.claims.ended(fetch)

    async def serve(self, fetch: Fetch, file: BlockFile) -> bool:
        """Deliver to a fetch of ``file`` its blocks on the disk, from its start on. Returns whether there were any.

        When a file turns out to be damaged in the middle, the fetch ends before the damage: its waiters then ask for
        the missing rest.
        """
        identity = None if self.calls.is_off else self._identity(file)
        if identity is None:
            return False
        cache, turn = self.cache, self._runtime.turn
        position = fetch.start
        while position < fetch.end:
            index = file.grid.index(position)
            low, high = file.grid.bounds(index)
            stop = min(high, fetch.end)
            key = identity.key(index)
            if key is None or (key.name not in cache and cache.looked):
                break
            if turn.left_bytes <= 0:
                await turn.end()
            if not await self._deliver(fetch, file, key, position - low, stop - low):
                break
            self._runtime.counters["stream_read_block_disk_hits"] += 1
            self.writer.filter.hit()
            position = stop
        return fetch.head is not None

    async def _deliver(self, fetch: Fetch, file: BlockFile, key: EntryKey, start: int, end: int) -> bool:
        """Deliver the bytes ``[start, end)`` of a block. Returns whether all were delivered."""
        block: OpenEntry | None = None
        if fetch.head is None:
            version, etag = file.version[:2]
            size = fetch.end - fetch.start
            head = ReadHead(start=fetch.start, size=size, total=None, etag=etag, version=version)
            fetch.begin(head, path=fetch.label)
        with contextlib.suppress(CacheFailed):
            while start < end:
                memory = fetch.writable()[: end - start]
                if block is None and self._read_now(key, start, memory):
                    fetch.advance(len(memory))
                    start += len(memory)
                    continue
                result = await self.calls.call("read", partial(self._read, key, block, start, memory))
                if result is None:
                    break
                block, count = result
                fetch.advance(count)
                start += count
        if not fetch.received:
            fetch.take_back()
        return start == end

    def _read_now(self, key: EntryKey, start: int, memory: memoryview) -> bool:
        """Read a small part of a block on the loop, if the kernel has in memory what has to be verified."""
        low, high = aligned(start, start + len(memory), key.data_bytes)
        if len(memory) > TURN_BYTES or high - low > PIECE_BYTES:
            return False
        if not self.cache.read_cached(key, start, memory, self._loop_scratch):
            return False
        self._runtime.turn.spend(high - low)
        self.calls.succeeded()
        if not self._is_touching:
            self._is_touching = True
            self._runtime.supervisor.spawn(self._touch_later(), name="note the use of block files")
        return True

    def _read(
        self, key: EntryKey, block: OpenEntry | None, start: int, memory: memoryview
    ) -> tuple[OpenEntry, int] | None:
        """Read the data of a block from ``start`` on into ``memory``; returns the block and the number of bytes.

        ``None`` if there is no such block. Runs in a thread.
        """
        try:
            opened = block if block is not None else self.cache.find(key)
            if opened is None:
                return None
            try:  # Memory that was used before where possible: new memory costs more than reading into it.
                scratch = self._scratch.pop()
            except IndexError:
                scratch = memoryview(bytearray(SCRATCH_BYTES))
            try:
                return opened, opened.read(start, memory, scratch, seconds_max=JOB_SECONDS)
            finally:
                self._scratch.append(scratch)
        except (BadEntry, OSError) as error:
            if isinstance(error, BadEntry) or error.errno == errno.EIO:
                self.cache.drop(key.name)
            raise

    # --- the order of use, for other processes ------------------------------------------------------------------

    async def _touch_later(self) -> None:
        await asyncio.sleep(self._touch_seconds)
        self._is_touching = False
        await self._touch()

    async def _touch(self) -> None:
        """Set the times of the files that were read on the loop."""
        if self.cache.uses and not self.calls.is_off:
            with contextlib.suppress(CacheFailed):
                await self.calls.call("write", self.cache.touch)

    async def _finish(self) -> None:
        """Write what was fetched, and ``_touch``, unless the disk takes long."""
        await self.writer.finish()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TOUCH_SECONDS_AT_CLOSE):
                await self._touch()

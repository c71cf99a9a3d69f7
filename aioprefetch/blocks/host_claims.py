"""The claims of processes on blocks that go to the disk they share, so that each is fetched once for a host.

Before a request for whole blocks is sent they are claimed on the disk. For a block that another process has claimed a
fetch waits until it is written, at most as long as a transfer may stall; then it fetches the block itself. The claim of
a process that dies ends with it, and the next look takes it over.

Before the first response of a reader no version is known, and so no block. Then the **facts** of the object are
claimed: an entry with its size and version. Where they are there, the first request asks whether they still hold, and
brings no bytes if they do.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from aioprefetch.blocks.fetch import Fetch
from aioprefetch.blocks.file import BlockFile
from aioprefetch.cache.entry import BadEntry, EntryKey, Naming, encoded
from aioprefetch.cache.files import SCRATCH_BYTES, EntryFiles
from aioprefetch.cache.guard import CacheFailed, DiskCalls
from aioprefetch.cache.object_entry import decode_facts, encode_facts
from aioprefetch.ranges import BlockGrid
from aioprefetch.runtime.options import DiskCache
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import ReadHead

# How often a fetch that waits for another process looks for its block: at first, and later.
POLL_SECONDS_MIN, POLL_SECONDS_MAX = 0.004, 0.064
# How long it waits, unless the service says after what time a transfer has stalled.
CLAIM_SECONDS_MAX = 20.0
# The data of the entry with an object's facts: text, filled up with spaces.
FACTS_BYTES = 1024


def encode_object(head: ReadHead) -> bytes | None:
    """Size and facts of an object in ``FACTS_BYTES``, ``None`` if that is too little."""
    data = head.size.to_bytes(8, "big") + encode_facts(head)
    return data.ljust(FACTS_BYTES) if len(data) <= FACTS_BYTES else None


def decode_object(data: bytes | bytearray) -> ReadHead:
    """The head of a response with all of the object. Raises ``BadEntry``."""
    return decode_facts(bytes(data[8:]), int.from_bytes(data[:8], "big"))


T = TypeVar("T")
# The key of a block of a file, ``None`` if it does not belong on the disk.
KeyOf = Callable[[BlockFile, int], EntryKey | None]


def claimable(grid: BlockGrid, start: int, end: int) -> range:
    """The blocks that a request for ``[start, end)`` claims: all that it brings whole, if it begins with one. Pure."""
    end = min(end, grid.size)
    if start % grid.block_bytes or start >= end:
        return range(0)
    stop = -(-end // grid.block_bytes) if end == grid.size else end // grid.block_bytes
    return range(start // grid.block_bytes, stop)


def ours(names: Sequence[str], found: Mapping[str, bool]) -> int:
    """How many of ``names``, in order, this process has claimed and has to fetch. Pure."""
    count = 0
    while count < len(names) and found.get(names[count]) is False:
        count += 1
    return count


class HostClaims:
    """The claims of one runtime. Everything here runs on its loop, except for the jobs of threads.

    ``is_on``: what is fetched is kept on the disk. ``seconds_max``: how long a fetch waits for another process, unless
    its service says after what time a transfer has stalled. ``written``: the names of the entries that will be written.
    """

    def __init__(
        self, files: EntryFiles, calls: DiskCalls, key_of: KeyOf, runtime: Runtime, options: DiskCache
    ) -> None:
        self.is_on = options.write == "fetched"
        self.seconds_max = CLAIM_SECONDS_MAX
        self.written: Collection[str] = ()
        self._files = files
        self._calls = calls
        self._key_of = key_of
        self._runtime = runtime
        self._tenant = options.tenant
        # The names that are claimed for a fetch, until they are written or given up.
        self._claimed: dict[Fetch, list[str]] = {}
        self._facts: dict[Fetch, EntryKey] = {}
        self._waiting: dict[asyncio.Future[Mapping[str, bool]], str] = {}
        self._is_polling = False

    # --- blocks -------------------------------------------------------------------------------------------------

    async def must_wait(self, fetch: Fetch, file: BlockFile) -> bool:
        """Claim the blocks of a request. ``True``: its first block is on the disk now, because another process made it.

        Otherwise the request is to be sent, for as many blocks as could be claimed.
        """
        indices = claimable(file.grid, fetch.start, fetch.end) if self.is_on else range(0)
        names = self._names(file, indices)
        if not names or len(names) < len(indices):
            return False
        found = await self._claim(names, fetch)
        count = ours(names, found)
        if count:
            self._claimed[fetch] = names[:count]
            if count < len(names):
                file.divide_fetch(fetch, file.grid.bounds(indices[count])[0])
        return found.get(names[0], False)

    def _names(self, file: BlockFile, indices: range) -> list[str]:
        return [key.name for index in indices if (key := self._key_of(file, index)) is not None]

    async def _claim(self, names: Sequence[str], fetch: Fetch) -> Mapping[str, bool]:
        """``EntryFiles.claim``, once the first of the names is there or can be claimed; empty after a while."""
        claim: Callable[[], Mapping[str, bool]] = partial(self._files.claim, names)
        found = await self._claimed_by(names, claim)
        if found is None:
            return {}
        return found or await self._wait(names[0], fetch)

    async def _claimed_by(self, names: Sequence[str], job: Callable[[], T]) -> T | None:
        """The result of a job that may claim these names, unless it fails. What it claims too late is given up."""
        try:
            return await self._calls.call("claim", job)
        except CacheFailed as failure:
            if not failure.is_lasting:
                self.release(names)
            return None
        except asyncio.CancelledError:
            self.release(names)
            raise

    async def _wait(self, name: str, fetch: Fetch) -> Mapping[str, bool]:
        """Wait until another process has made an entry or given up its claim, which is taken over then."""
        future: asyncio.Future[Mapping[str, bool]] = self._runtime.loop.create_future()
        self._waiting[future] = name
        if not self._is_polling:
            self._is_polling = True
            self._runtime.supervisor.spawn(self._poll(), name="wait for block files", on_end=self._end_poll)
        found: Mapping[str, bool] = {}
        with contextlib.suppress(TimeoutError):
            try:
                async with asyncio.timeout(fetch.source.stall_seconds or self.seconds_max):
                    found = await future
            finally:
                self._waiting.pop(future, None)
                if not found and future.done() and not future.cancelled():  # It came too late.
                    self.release([name for name, is_there in future.result().items() if not is_there])
        return found

    async def _poll(self) -> None:
        """Look for all that is waited for, in one job at a time. A claim is for one fetch."""
        pause = POLL_SECONDS_MIN
        while self._waiting:
            await asyncio.sleep(pause)
            names = list(dict.fromkeys(self._waiting.values()))
            found = await self._claimed_by(names, partial(self._claim_each, names))
            if found is None:
                return
            pause = POLL_SECONDS_MIN if found else min(2 * pause, POLL_SECONDS_MAX)
            for future, name in tuple(self._waiting.items()):
                if name in found and not future.done():
                    future.set_result({name: found.pop(name)})
                    del self._waiting[future]
            self.release([name for name, is_there in found.items() if not is_there])

    def _claim_each(self, names: Sequence[str]) -> dict[str, bool]:
        return {name: is_there for one in names for name, is_there in self._files.claim([one]).items()}

    def _end_poll(self) -> None:
        self._is_polling = False
        for future in self._waiting:
            if not future.done():
                future.set_result({})
        self._waiting.clear()

    def ended(self, fetch: Fetch) -> None:
        """A fetch has ended: give up its claims, except on entries that will be written."""
        names = self._claimed.pop(fetch, [])
        if (facts := self._facts.pop(fetch, None)) is not None:
            names.append(facts.name)
        if names:
            self.release(set(names).difference(self.written))

    def release(self, names: Iterable[str]) -> None:
        """Give up claims, in the background."""
        released = [*names]
        if released and self.is_on and not self._runtime.closed:
            self._runtime.supervisor.spawn(self._give_up(released), name="give up claims")

    async def _give_up(self, names: Sequence[str]) -> None:
        try:
            await self._calls.call("claim", partial(self._files.release, names))
        except CacheFailed:  # The disk does not respond: let the kernel take the locks back with the descriptors.
            return

    # --- facts --------------------------------------------------------------------------------------------------

    async def recall(
        self,
        fetch: Fetch,
        namespace: Sequence[str],
        path: str,
        block_of: Callable[[ReadHead], str | None],
        *,
        claims: bool,
    ) -> ReadHead | None:
        """The facts of an object whose version is not known yet, for its first request.

        ``block_of`` names the file of the block that the request wants. ``None`` if no process has left facts and that
        block, or is about to: the first request brings bytes then. With ``claims`` it brings a whole block: others wait
        for it.
        """
        identity = encoded(self._tenant, len(namespace), *namespace, path, "facts")
        key = EntryKey.of(Naming(identity).name(), identity, FACTS_BYTES)
        if key is None or not self.is_on or self._calls.is_writing_off:
            return None
        recall: Callable[[], ReadHead | bool] = partial(self._recall, key, block_of, claims)
        found = await self._claimed_by([key.name], recall)
        if found is True and (await self._wait(key.name, fetch)).get(key.name):
            found = await self._claimed_by([key.name], recall)
        if found is None:
            return None
        if claims:
            self._facts[fetch] = key
        return found if isinstance(found, ReadHead) else None

    def _recall(self, key: EntryKey, block_of: Callable[[ReadHead], str | None], claims: bool) -> ReadHead | bool:
        """The facts in an entry; without them, whether another process is about to write them. In a thread."""
        try:
            entry = self._files.find(key)
            if entry is not None:
                data = bytearray(FACTS_BYTES)
                entry.read(0, memoryview(data), memoryview(bytearray(SCRATCH_BYTES)), seconds_max=1.0)
                facts = decode_object(data)
                name = block_of(facts)
                if name is not None and self._files.is_coming(name):
                    return facts
                return False
        except BadEntry:
            self._files.drop(key.name)
        return claims and self._files.claim([key.name]).get(key.name) is not False

    def opened(self, fetch: Fetch, file: BlockFile) -> None:
        """The response of a first request has begun: leave facts for other processes, and claim its blocks."""
        key = self._facts.pop(fetch, None)
        if key is None:
            return
        version, etag = file.version[:2]
        size, facts = file.size, None
        if isinstance(etag, str):
            facts = encode_object(ReadHead(start=0, size=size, total=size, etag=etag, version=version))
        names = self._names(file, claimable(file.grid, fetch.start, fetch.end))
        if facts is None or not names:
            self.release([key.name])
            return
        self._runtime.supervisor.spawn(self._leave_facts(fetch, key, memoryview(facts), names), name="leave facts")

    async def _leave_facts(self, fetch: Fetch, key: EntryKey, facts: memoryview, names: Sequence[str]) -> None:
        def job() -> list[str]:
            claimed = [name for name, is_there in self._files.claim(names).items() if not is_there]
            self._files.put(key, [facts], replaces=True)
            return claimed

        try:
            claimed = await self._calls.call("write", job)
        except CacheFailed:
            self.release([key.name, *names])
            return
        self._claimed.setdefault(fetch, []).extend(claimed)
        if fetch.finished:
            self.ended(fetch)

"""The block store of a runtime: the resident blocks of all object versions, and their requests.

Each missing byte is requested once. The block store is independent of services: a reader passes the call that sends a
request. Its fetches measure how long the first byte of a request takes and how fast its body arrives; from these
follows how many bytes a request can bring beside the wanted ones at no noticeable cost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from functools import partial
from typing import TYPE_CHECKING
from weakref import ref

from aioprefetch.blocks.block import Segment
from aioprefetch.blocks.eviction import Eviction
from aioprefetch.blocks.fetch import Fetch, count_begin, count_end, count_ready
from aioprefetch.blocks.file import BlockFile, ReaderPosition, Residency, Version
from aioprefetch.errors import BudgetExhausted, Closed, ConditionNotMatch, NotFound, RangeNotSatisfied
from aioprefetch.ranges import Range
from aioprefetch.runtime.budget import Ticket
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.statistics import Tier, count_for

if TYPE_CHECKING:
    from aioprefetch.blocks.disk_tier import DiskTier

# Blocks that ``on_disk`` looks up, which is about a millisecond.
DISK_LOOKS_MAX = 1000


class BlockStore:
    """All files with resident blocks, and the budget they share.

    ``fetches`` counts the requests so far, ``in_flight`` the unfinished ones.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.files: dict[Hashable, BlockFile] = {}  # Readers of one version, in blocks of one size, share a file.
        self._newest: dict[Hashable, BlockFile] = {}  # For readers that name no version.
        # Weakly, so that a reader that was dropped without closing does not count for ever.
        self.readers: set[ref[ReaderPosition]] = set()
        self.tick = 0  # Counts uses, so that blocks can be ordered by their last one without a clock.
        self.fetches = self.in_flight = 0
        self.line = LineRate()  # As measured: it decides how much a small read may bring along.
        self.spent_bytes = 0  # Bytes that were read to their end: memory that a miss may count on.
        self.eviction = eviction = Eviction(self)
        self.arrived = eviction.arrived
        self.disk = None if runtime.options.disk_cache is None else self._open_disk()
        eviction.writer = None if self.disk is None else self.disk.writer
        self.keeps_fetched = self.disk is not None and self.disk.claims.is_on
        runtime.budget.reclaim = eviction.reclaim
        runtime.gauges.append(self.gauges)

    @classmethod
    def of(cls, runtime: Runtime) -> BlockStore:
        """The block store of a runtime."""
        store = runtime.peek("block_store")
        if not isinstance(store, cls):
            store = runtime.shared("block_store", lambda: cls(runtime))
            runtime.supervisor.on_close(store.aclose)
        return store

    def _open_disk(self) -> DiskTier | None:
        from aioprefetch.blocks.disk_tier import DiskTier  # few runtimes have a cache on disk

        return DiskTier.of(self.runtime, evictable=self.eviction.evictable)

    async def aclose(self) -> None:
        """Release all memory except viewed blocks, even if closed readers still exist."""
        for file in tuple(self.files.values()):
            file.clear()
        self.files.clear()
        self._newest.clear()
        if self.disk is not None:
            self.disk.close()

    def file(
        self,
        name: Hashable,
        version: Version,
        *,
        size: int,
        block_bytes: int,
        label: str = "",
        is_current: bool = True,
    ) -> BlockFile:
        """The file of one version of the object ``name`` (namespace and path), made at its first use.

        ``label`` is its name in events. ``is_current``: size and version come from a response and make it ``newest``;
        values that a caller merely declared do not.
        """
        key = (name, version, size, block_bytes)
        file = self.files.get(key)
        if file is None:
            file = self.files[key] = BlockFile(
                self,
                name,
                version,
                size=size,
                block_bytes=block_bytes,
                divide=None if self.disk is None else self.disk.divide,
            )
            file.label = label
        if is_current:
            self._newest[name, block_bytes] = file
        return file

    def residency(self, path: str) -> list[Residency]:
        """The resident bytes of each version of the object at ``path``, the oldest first."""
        return [file.residency() for file in self.files.values() if file.label == path]

    def on_disk(self, file: BlockFile) -> list[Range]:
        """The ranges of a file that are in block files, roughly where it has a great many. Any thread."""
        return [] if self.disk is None else self.disk.held(file, looks_max=DISK_LOOKS_MAX)

    def gauges(self) -> dict[str, int]:
        """The blocks and prefetches of all files now. From any thread."""
        files = list(self.files.values())
        fetches = [fetch for file in files for fetch in tuple(file.fetches)]
        return {
            "stream_read_active_prefetch_operations": sum(fetch.prefetched for fetch in fetches),
            "stream_read_blocks_in_cache": sum(len(file.blocks) for file in files),
            "stream_read_bytes_in_cache": sum(file.bytes_in_cache for file in files),
        }

    def find(self, name: Hashable, version: Version, *, size: int, block_bytes: int) -> BlockFile | None:
        """The file of one version, if it is held."""
        return self.files.get((name, version, size, block_bytes))

    def newest(self, name: Hashable, block_bytes: int) -> BlockFile | None:
        """The last opened file of ``name`` on this grid, of any version, if it is still held."""
        return self._newest.get((name, block_bytes))

    def forget(self, file: BlockFile) -> None:
        """An empty file leaves the store, if it has not left before: another one may have its place."""
        block_bytes = file.grid.block_bytes
        if self.files.get(file.key) is file:
            del self.files[file.key]
        if self._newest.get((file.name, block_bytes)) is file:
            del self._newest[file.name, block_bytes]

    def start(self, fetch: Fetch) -> None:
        """Start a request.

        Memory is reserved first; then the source of the fetch sends the request, with the fetch as its sink. A demand
        request is sent by this call if there is memory for it, and its response may have arrived when the call returns.
        Prefetches begin in the next turn of the loop, in the task group of the runtime.
        """
        runtime, lane = self.runtime, fetch.lane
        size = fetch.end - fetch.start
        if self.line.samples(self.fetches):
            fetch.headed, fetch.started = -1.0, runtime.clock()
        self.fetches += 1
        self.in_flight += 1
        count_begin(runtime, fetch)
        if runtime.budget.promise(size):
            fetch.reserved_bytes = size
        else:
            fetch.ticket = runtime.budget.request(size, lane, is_promise=True)
        supervisor = runtime.supervisor
        if lane == "prefetch":
            fetch.work = supervisor.spawn(self._run(fetch), name="prefetch", on_end=partial(self.abandon, fetch))
            return
        fetch.work = work = supervisor.start(self._run(fetch), runtime.loop, name="fetch")
        work.start()
        if supervisor.closed:
            self.abandon(fetch)

    async def _run(self, fetch: Fetch) -> None:
        account, runtime = fetch.account, self.runtime
        count_for(account)
        try:
            if fetch.ticket is not None:
                await self._reserve(fetch, fetch.ticket)
            disk, file = self.disk, fetch.file
            if disk is not None and isinstance(file, BlockFile) and await disk.bring(fetch, file):
                self._end(fetch, None)
                return
            counters = runtime.ledger.of(account)
            counters["stream_read_block_read"] += 1
            started = runtime.clock()
            fetch.was_sent = True
            source = fetch.source
            try:
                try:
                    await source.send(fetch)
                except (ConditionNotMatch, NotFound, RangeNotSatisfied) as error:
                    refused = await source.refused(error)
                    try:
                        if refused is error:
                            raise
                        if refused is not None:
                            raise refused from error
                    finally:
                        del refused  # Its traceback holds this frame.
            except Exception as error:
                if not isinstance(error, Closed):
                    counters.failed("stream_read_block_read")
                raise
            counters.succeeded("stream_read_block_read", runtime.clock() - started)
        except Exception as error:
            self._end(fetch, without_frames(error))
        except asyncio.CancelledError:
            self._end(fetch, _was_closed())
            raise
        else:
            self._end(fetch, None)

    def filled(self, segment: Segment) -> None:
        """The last byte of a segment has arrived."""
        count_ready(self.runtime, segment)

    def keep(self, fetch: Fetch, segment: Segment) -> None:
        """A segment is complete: write its block to the disk if all of that is there."""
        file = fetch.file
        if self.disk is not None and isinstance(file, BlockFile) and fetch.tier is Tier.NETWORK:
            block = file.blocks.get(file.grid.index(segment.start))
            if block is not None:
                self.disk.writer.offer(file, block)

    def opened(self, fetch: Fetch) -> None:
        """The response of a fetch has named the file that it fills."""
        if self.disk is not None and isinstance(fetch.file, BlockFile):
            self.disk.opened(fetch, fetch.file)

    def abandon(self, fetch: Fetch) -> None:
        """End a fetch that was cancelled. Does nothing if it has ended by itself."""
        if not fetch.finished:
            self._end(fetch, _was_closed())

    def _end(self, fetch: Fetch, error: Exception | None) -> None:
        if fetch.finished:
            return
        self.in_flight -= 1
        if error is not None or fetch.prefetched or fetch.is_drained:
            count_end(self.runtime, fetch, error)
        headed = fetch.headed
        if headed is not None and headed >= 0 and error is None and fetch.tier is Tier.NETWORK:
            self.line.note(
                first_byte_seconds=headed - fetch.started,
                size_bytes=fetch.received,
                body_seconds=self.runtime.clock() - headed,
            )
        if fetch.ticket is not None:  # The fetch was cancelled while it was queued for memory.
            self.runtime.budget.cancel(fetch.ticket)
            fetch.ticket = None
        file = fetch.file
        if file is not None:
            file.settle(fetch)
        fetch.finish(error)
        events = self.runtime.events
        if events.listeners:
            events.publish(
                "block.fetched",
                fetch.label,
                start=fetch.start,
                end=fetch.end,
                received=fetch.received,
                lane=fetch.lane,
                error=None if error is None else type(error).__name__,
            )
        if self.disk is not None:
            self.disk.ended(fetch)
        if fetch.on_end is not None:
            fetch.on_end()
        if file is not None:
            file.forget_if_empty()

    async def _reserve(self, fetch: Fetch, ticket: Ticket) -> None:
        if not ticket.granted:
            limit_seconds = self.runtime.options.budget_wait_seconds
            began = self.runtime.clock()
            with self.runtime.timer("memory_waits"):
                try:
                    async with asyncio.timeout(limit_seconds):
                        await ticket.wait()
                except TimeoutError as late:
                    late.__traceback__ = None  # Its frames hold the task, whose error it becomes the context of.
                    if not ticket.granted:  # It may have been in the turn of the loop in which the time was over.
                        raise self._exhausted(ticket, limit_seconds) from None
            if self.runtime.events.listeners:
                facts = {"seconds": self.runtime.clock() - began, "lane": ticket.lane, "bytes": ticket.size_bytes}
                budget_id = self.runtime.budget.budget_id
                self.runtime.events.publish("budget.waited", fetch.label, **facts, budget_id=budget_id)
        fetch.ticket, fetch.reserved_bytes = None, ticket.size_bytes

    def _exhausted(self, ticket: Ticket, limit_seconds: float) -> BudgetExhausted:
        budget = self.runtime.budget
        return BudgetExhausted(
            f"{ticket.size_bytes} bytes of memory were not free within budget_wait_seconds={limit_seconds:g}:"
            f" {budget.used_bytes} of memory_bytes={budget.limit_bytes} are in use: {self._holders()};"
            " release views, close readers or raise memory_bytes",
            operation="read",
        )

    def _holders(self) -> str:
        """The holders of the memory, for the error of a read that gets none."""
        budget = self.runtime.budget
        held = {file: sum(block.resident_bytes for block in file.blocks.values()) for file in self.files.values()}
        blocks = sum(held.values())
        in_flight = sum(fetch.reserved_bytes for file in held for fetch in file.fetches)
        largest = max(held, key=lambda file: held[file], default=None)
        most = "" if largest is None or not held[largest] else f" (most of {largest.label!r}: {held[largest]})"
        return (
            f"views hold {budget.exports.size_bytes}, blocks of {len(self.readers)} open readers and of closed ones"
            f" {blocks}{most}, requests in flight {in_flight},"
            f" scans and views of blocks that are gone {max(0, budget.used_bytes - blocks - in_flight)}"
        )


def without_frames(error: Exception) -> Exception:
    """An error and its causes without tracebacks, which would keep frames and their buffers alive."""
    cause: BaseException | None = error
    while cause is not None and cause.__traceback__ is not None:
        cause.__traceback__ = None
        cause = cause.__cause__ or cause.__context__
    return error


def _was_closed() -> Closed:
    return Closed("the reader or its operator was closed while the read was under way", operation="read")


# --- the speed of a store ---------------------------------------------------------------------------------------------

# Before anything was measured: an object store in the same region, one connection.
FIRST_BYTE_SECONDS = 0.025
BYTES_PER_SECOND = 90e6

# Bytes are free as long as they lengthen a request by at most this share of the wait for its first byte.
FREE_SHARE = 0.1
FREE_BYTES_MIN = 64 << 10
FREE_BYTES_MAX = 256 << 10

# A store that responds faster than this is memory, a local file or on this machine: bytes cost as much as requests.
_NEAR_SECONDS = 0.001
# Within this time a store in the same rack responds: one connection brings what the network gives.
_FAR_SECONDS = 0.005

# Bodies below this say nothing about the bandwidth: they arrive together with their head.
_BODY_BYTES_MIN = 64 << 10
# The first requests are measured, and later one in _SAMPLING.
_FIRST = 4
_SAMPLING = 8
# A slower sample moves a figure by this share: it may have waited for a connection, or for the loop.
_SLOW_SHARE = 0.125


class LineRate:
    """The measured figures of one store. Better samples count at once, worse ones slowly."""

    __slots__ = ("bytes_per_second", "first_byte_seconds", "is_measured")

    def __init__(self) -> None:
        self.first_byte_seconds = FIRST_BYTE_SECONDS
        self.bytes_per_second = BYTES_PER_SECOND
        self.is_measured = False

    @property
    def is_near(self) -> bool:
        """Whether requests cost so little that additional bytes are never free."""
        return self.first_byte_seconds < _NEAR_SECONDS

    @property
    def is_far(self) -> bool:
        """Whether several connections bring more than one."""
        return self.first_byte_seconds >= _FAR_SECONDS

    @staticmethod
    def samples(number: int) -> bool:
        """Whether the request with this number, counted from 0, is measured."""
        return number < _FIRST or number % _SAMPLING == 0

    def note(self, *, first_byte_seconds: float, size_bytes: int, body_seconds: float) -> None:
        """A request has brought ``size_bytes``: its head came after ``first_byte_seconds``, its body took the rest."""
        slower = first_byte_seconds > self.first_byte_seconds
        share = _SLOW_SHARE if slower and self.is_measured else 1.0
        self.first_byte_seconds += share * (first_byte_seconds - self.first_byte_seconds)
        self.is_measured = True
        if size_bytes < _BODY_BYTES_MIN or body_seconds <= 0:
            return
        rate = size_bytes / body_seconds
        self.bytes_per_second += (_SLOW_SHARE if rate < self.bytes_per_second else 1.0) * (rate - self.bytes_per_second)

    def free_bytes(self, in_flight: int) -> int:
        """The size that a small request may have at no noticeable cost, beside ``in_flight`` others.

        Between ``FREE_BYTES_MIN`` and ``FREE_BYTES_MAX`` for a request alone. Requests in flight share the bandwidth:
        0 if too little of it is left.
        """
        alone = FREE_SHARE * self.first_byte_seconds * self.bytes_per_second
        free = int(max(FREE_BYTES_MIN, min(FREE_BYTES_MAX, alone))) // (1 + in_flight)
        return free if free >= FREE_BYTES_MIN else 0

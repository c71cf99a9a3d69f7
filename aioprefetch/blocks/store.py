"""The block store of a runtime: the resident blocks of all object versions, their requests, and eviction.

Each missing byte is requested once. The block store is independent of services: a reader passes the call that sends a
request.

When memory is short, prefetched blocks that readers passed without reading them go first. Then come blocks that were
read to their end: the furthest from a cursor first, and at equal distance the one used longest ago. A block just ahead
of a cursor counts as distance 0, because it is about to be read. Blocks with bytes still to be read go last.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from aioprefetch.blocks.accounting import count_begin, count_end, count_eviction, count_ready
from aioprefetch.blocks.block import Block, Segment
from aioprefetch.blocks.fetch import Fetch, FetchCall, FetchedFile
from aioprefetch.blocks.file import BlockFile, Residency, Version
from aioprefetch.errors import BudgetExhausted, Closed
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.statistics import Account, Tier, count_for
from aioprefetch.values import Lane, ReadHead

if TYPE_CHECKING:
    from aioprefetch.blocks.spill.tier import DiskTier
    from aioprefetch.blocks.spill.write_behind import WriteBehind

# While less than one part in _SPARE_SHARE of the budget is spare, a miss brings less than a block. It never brings less
# than _CELL_BYTES_MIN: below that a request costs more than its bytes.
_SPARE_SHARE = 2
_CELL_BYTES_MIN = 128 << 10

# Bytes that stayed unread during _ROUNDS requests for each file in memory may be evicted like bytes that were read.
_ROUNDS = 4

# Spare memory is counted again after requests for one part in _COUNT_SHARE of the budget.
_COUNT_SHARE = 256

# Eviction frees at least one part in _RECLAIM_SHARE of the budget, because it has to put the blocks in order first.
_RECLAIM_SHARE = 16


class BlockStore:
    """All files with resident blocks, and the budget they share."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.files: dict[Hashable, BlockFile] = {}
        self._newest: dict[Hashable, BlockFile] = {}
        self.tick = 0
        self.fetches = 0
        self._spare_bytes = 0
        self._asked_bytes: int | None = None  # Requested since spare memory was counted; None before.
        self._on_ready = partial(count_ready, runtime)
        self.disk = None if runtime.options.disk_cache is None else self._open_disk()
        runtime.budget.reclaim = self.reclaim
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
        from aioprefetch.blocks.spill.tier import DiskTier  # few runtimes have a cache on disk

        return DiskTier.of(self.runtime, evictable=self.evictable, evict=self.evict)

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
        """The file of one version of the object ``name`` (namespace and path); a new one if there is none.

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
                forget=self._forget,
                divide=None if self.disk is None else self.disk.divide,
            )
            file.label = label
        if is_current:
            self._newest[name, block_bytes] = file
        return file

    def residency(self, path: str) -> list[Residency]:
        """The resident bytes of each version of the object at ``path``, the oldest first."""
        return [file.residency() for file in self.files.values() if file.label == path]

    def gauges(self) -> dict[str, int]:
        """The memory, blocks and prefetches of all files now. From any thread."""
        files = list(self.files.values())
        fetches = [fetch for file in files for fetch in tuple(file.fetches)]
        return {
            "stream_read_active_prefetch_operations": sum(fetch.prefetched for fetch in fetches),
            "stream_read_blocks_in_cache": sum(len(file.blocks) for file in files),
            "stream_read_active_memory_in_use": self.runtime.budget.used_bytes,
        }

    def find(self, name: Hashable, version: Version, *, size: int, block_bytes: int) -> BlockFile | None:
        """The file of one version, if it is held."""
        return self.files.get((name, version, size, block_bytes))

    def newest(self, name: Hashable, block_bytes: int) -> BlockFile | None:
        """The last opened file of ``name`` on this grid, of any version, if it is still held."""
        return self._newest.get((name, block_bytes))

    def _forget(self, file: BlockFile) -> None:
        block_bytes = file.grid.block_bytes
        self.files.pop(file.key, None)
        if self._newest.get((file.name, block_bytes)) is file:
            del self._newest[file.name, block_bytes]

    def cell_bytes(self, block_bytes: int, *, opening: int = 0) -> int:
        """The bytes that a miss brings: a block, or while memory is short a half of it, a quarter, and so on.

        The fetched bytes of many readers must fit into memory until they are read. Each reader takes a share of the
        memory that is neither in flight nor still to be read, and so their requests become equally long. A reader
        alone is not limited. ``opening`` is the number of objects being opened besides those that are open.
        """
        budget = self.runtime.budget
        limit = budget.limit_bytes
        spare_enough = limit // _SPARE_SHARE
        if limit - budget.used_bytes - budget.queued_bytes >= spare_enough:
            return block_bytes
        if opening + sum(len(file.readers) for file in self.files.values()) <= 1:
            return block_bytes
        if self._asked_bytes is None or self._asked_bytes >= limit // _COUNT_SHARE:
            fresh_from = self._fresh_from()
            spent = sum(file.spent_bytes(fresh_from) for file in self.files.values() if file.blocks)
            self._spare_bytes, self._asked_bytes = limit - budget.used_bytes - budget.queued_bytes + spent, 0
        share = (self._spare_bytes - self._asked_bytes) // max(1, spare_enough // block_bytes)
        cell = block_bytes
        while cell > share and cell // 2 >= _CELL_BYTES_MIN:
            cell //= 2
        return cell

    def is_short(self, block_bytes: int) -> bool:
        """Whether memory is too short to fetch ahead, because reads of other readers need it now."""
        return self.cell_bytes(block_bytes) < block_bytes // 2

    def start_fetch(
        self,
        start: int,
        end: int,
        call: FetchCall,
        file_of: Callable[[ReadHead], FetchedFile],
        *,
        file: FetchedFile | None = None,
        lane: Lane,
        label: str = "",
        account: Account | None = None,
    ) -> Fetch:
        """Start a request. Its file may be unknown until the head of its response has arrived.

        Memory is reserved first; then ``call(fetch)`` sends the request with the fetch as its sink.
        """

        def place(fetch: Fetch, head: ReadHead) -> None:
            fetched = file_of(head)
            if fetch.file is None:
                fetch.file = fetched
                fetched.fetches.append(fetch)
            fetch.start, fetch.end = head.start, head.end
            fetched.place(fetch, head)

        fetch = Fetch(start, end, lane=lane, budget=self.runtime.budget, place=place, on_ready=self._on_ready)
        fetch.file, fetch.label, fetch.account = file, label, account
        if self._asked_bytes is not None:
            self._asked_bytes += end - start
        self.fetches += 1
        count_begin(self.runtime, fetch)
        fetch.abandon = partial(self._abandon, fetch)
        fetch.ticket = self.runtime.budget.request(end - start, lane, is_promise=True)
        fetch.work = self.runtime.supervisor.spawn(
            self._run(fetch, call), name=f"fetch {start}-{end}", on_end=fetch.abandon
        )
        return fetch

    async def _run(self, fetch: Fetch, call: FetchCall) -> None:
        count_for(fetch.account)
        try:
            await self._reserve(fetch)
            fetch.tier = Tier.NETWORK if self.disk is None else Tier.DISK
            file = fetch.file
            if self.disk is None or not isinstance(file, BlockFile) or not await self.disk.serve(fetch, file):
                fetch.tier = Tier.NETWORK
                with self.runtime.timer("stream_read_block_read"):
                    await call(fetch)
        except Exception as error:
            self._end(fetch, _without_frames(error))
        except asyncio.CancelledError:
            self._end(fetch, _was_closed())
            raise
        else:
            self._end(fetch, None)

    def _abandon(self, fetch: Fetch) -> None:
        """End a fetch that was cancelled. Does nothing if it has ended by itself."""
        if not fetch.finished:
            self._end(fetch, _was_closed())

    def _end(self, fetch: Fetch, error: Exception | None) -> None:
        if fetch.finished:
            return
        count_end(self.runtime, fetch, error)
        if fetch.ticket is not None:  # The fetch was cancelled while it was queued for memory.
            self.runtime.budget.cancel(fetch.ticket)
            fetch.ticket = None
        file = fetch.file
        if file is not None:
            file.settle(fetch)
        fetch.finish(error)
        self.runtime.events.publish(
            "block.fetched",
            fetch.label,
            start=fetch.start,
            end=fetch.end,
            received=fetch.received,
            lane=fetch.lane,
            error=None if error is None else type(error).__name__,
        )
        if self.disk is not None:
            self.disk.writer.filled(fetch.received)
        if file is not None:
            file.forget_if_empty()

    async def _reserve(self, fetch: Fetch) -> None:
        ticket, budget = fetch.ticket, self.runtime.budget
        assert ticket is not None
        if not ticket.granted:
            limit_seconds = self.runtime.options.budget_wait_seconds
            try:
                with self.runtime.timer("memory_waits"):
                    async with asyncio.timeout(limit_seconds):
                        await ticket.wait()
            except TimeoutError:
                raise BudgetExhausted(
                    f"{ticket.size_bytes} bytes of memory were not free within budget_wait_seconds={limit_seconds:g}:"
                    f" {budget.used_bytes} of memory_bytes={budget.limit_bytes} are in use, of which views hold"
                    f" {budget.exports.size_bytes}; release views, close readers or raise memory_bytes",
                    operation="read",
                ) from None
        fetch.ticket, fetch.reserved_bytes = None, ticket.size_bytes

    def reclaim(self, need_bytes: int, lane: Lane) -> None:
        """Evict blocks until ``need_bytes`` are free or no block can go; beyond that only blocks that were read.

        Prefetch does not evict other prefetched blocks that are about to be read.
        """
        more_bytes = max(need_bytes, self.runtime.budget.limit_bytes // _RECLAIM_SHARE)
        order = list(self.evictable(lane))
        heapq.heapify(order)
        freed, trimmed = 0, False
        writer = self._sparing_writer(lane)
        while order and freed < (need_bytes if order[0][0].is_unread else more_bytes):
            if order[0][0].is_unread and not trimmed:
                trimmed = True
                freed += self._trim(more_bytes - freed)
                continue
            _, _, file, block = heapq.heappop(order)
            if file.blocks.get(block.index) is block and (writer is None or not writer.spare(file, block)):
                freed += block.resident_bytes
                self.evict(file, block)
        if freed < need_bytes and not trimmed:
            freed += self._trim(more_bytes - freed)
        if freed < need_bytes:
            freed += self._trim(need_bytes - freed, of_footer=True)
        if freed < need_bytes and writer is not None and not self._may_overdraw(lane):
            writer.wait()

    def _fresh_from(self) -> int:
        """The number of the request after which a block must have been read to count as still being read."""
        return self.fetches - _ROUNDS * max(_ROUNDS, sum(bool(file.blocks) for file in self.files.values()))

    def _trim(self, need_bytes: int, *, of_footer: bool = False) -> int:
        """Free the spent segments of blocks that are still being read, as far as needed; returns the bytes freed.

        Either those before the kept footers, or those within them.
        """
        freed = 0
        # A hundred readers that wait for memory have files without blocks: those are passed over.
        for file in [file for file in self.files.values() if file.blocks]:
            for block, segment in file.spent_segments(of_footer=of_footer):
                if freed >= need_bytes:
                    return freed
                freed += len(segment.buffer)
                self._evict_segment(file, block, segment)
            file.forget_if_empty()
        return freed

    def _evict_segment(self, file: BlockFile, block: Block, segment: Segment) -> None:
        unused = segment.unused_prefetch
        count_eviction(self.runtime, segment)
        self.runtime.events.publish("block.evicted", file.label, start=segment.start, end=segment.end, unused=unused)
        if unused:
            file.evicted_unread_bytes += len(segment.buffer)
        file.drop_segment(block, segment)

    def _sparing_writer(self, lane: Lane) -> WriteBehind | None:
        """The writer that saves blocks before they are evicted, if the lane may wait for it or need not wait."""
        writer = None if self.disk is None else self.disk.writer
        return writer if writer is not None and (not writer.spill_wait_exhausted or self._may_overdraw(lane)) else None

    def _may_overdraw(self, lane: Lane) -> bool:
        """Whether a reservation in this lane is granted although no memory is free."""
        return lane == "demand" and self.runtime.budget.used_bytes <= self.runtime.budget.limit_bytes

    def evict(self, file: BlockFile, block: Block) -> None:
        """Drop a block because its memory is needed."""
        unused = block.is_unused_prefetch
        count_eviction(self.runtime, block.segments[0])
        start, end = file.grid.bounds(block.index)
        self.runtime.events.publish("block.evicted", file.label, start=start, end=end, unused=unused)
        if unused:
            file.evicted_unread_bytes += block.resident_bytes
        file.drop(block)
        file.forget_if_empty()

    def evictable(self, lane: Lane) -> Iterator[tuple[Rank, int, BlockFile, Block]]:
        """The blocks that may be dropped for a lane, each with its rank; the smallest in a heap of them goes first."""
        ahead_blocks = self.runtime.options.prefetch_blocks
        fresh_from = self._fresh_from()
        number = 0  # Keeps the heap from comparing blocks.
        for file in self.files.values():
            if not file.blocks:
                continue
            block_bytes = file.grid.block_bytes
            readers = [reader.positions for reader in file.readers]
            positions = [position // block_bytes for positions in readers for position in positions]
            floating = not all(readers)
            passed, end_of_file = file.passed, file.size
            for block in file.blocks.values():
                if not block.is_evictable or block.is_spilling:
                    continue
                away = 0 if floating else distance(block.index, positions, ahead_blocks=ahead_blocks)
                unused = block.is_unused_prefetch
                wasted = unused and away > 0
                behind = passed if block.touched_fetch >= fresh_from else end_of_file
                unread = not wasted and any(segment.is_unread(behind) for segment in block.segments)
                if unused and not wasted and lane == "prefetch":
                    continue
                number += 1
                yield (
                    rank(
                        viewed=block.is_viewed,
                        footer=file.grid.bounds(block.index)[1] > file.footer_start,
                        wasted=wasted,
                        unread=unread,
                        distance_blocks=away,
                        touched=block.touched,
                    ),
                    number,
                    file,
                    block,
                )


def _without_frames(error: Exception) -> Exception:
    """An error and its causes without tracebacks, which would keep frames and their buffers alive."""
    cause: BaseException | None = error
    while cause is not None and cause.__traceback__ is not None:
        cause.__traceback__ = None
        cause = cause.__cause__ or cause.__context__
    return error


def _was_closed() -> Closed:
    return Closed("the reader or its operator was closed while the read was under way", operation="read")


# The distance of blocks in a file that no reader has open: further than any within an open file.
FAR = 1 << 62


def distance(index: int, cursors: Sequence[int], *, ahead_blocks: int) -> int:
    """The number of blocks between ``index`` and the nearest cursor; 0 within ``ahead_blocks`` after a cursor."""
    nearest = FAR
    for cursor in cursors:
        gap = index - cursor
        nearest = min(nearest, 0 if 0 <= gap <= ahead_blocks else abs(gap))
    return nearest


class Rank(NamedTuple):
    """The sort key of a block: the smallest is evicted first."""

    is_viewed: bool
    is_footer: bool
    is_not_wasted: bool
    is_unread: bool
    nearness: int
    touched: int


def rank(
    *, viewed: bool, footer: bool = False, wasted: bool, unread: bool = False, distance_blocks: int, touched: int
) -> Rank:
    """The sort key of a block: the smallest is evicted first. ``touched`` grows with every use.

    A viewed block is evicted last: dropping it frees no memory before the last view is gone. A ``footer`` that a policy
    keeps is evicted just before those, since every later reader of the file begins with it.
    """
    return Rank(viewed, footer, not wasted, unread, -distance_blocks, touched)

"""The block store of a runtime: what is resident of every object version, one fetch for each missing byte, eviction.

It knows no store and no accessor: whoever wants bytes brings the call that fetches them. Everything runs on the
runtime's loop except ``BlockFile.find``, which only reads and may be called from any thread.
"""

from __future__ import annotations

import asyncio
import heapq
import weakref
from collections.abc import Callable, Hashable, Iterator

from aioprefetch.blocks.block import Block, Segment
from aioprefetch.blocks.eviction import distance, rank
from aioprefetch.blocks.fetch import Fetch, FetchCall, Wait
from aioprefetch.errors import BudgetExhausted, Closed
from aioprefetch.ranges import BlockGrid, Range, subtract
from aioprefetch.runtime import Runtime
from aioprefetch.values import Lane, ReadHead

# Version id, ETag; and where neither tells anything, something that equals nothing else.
Version = tuple[str | None, str | None] | tuple[None, None, object]

# Eviction frees at least this share of the budget at a time, so that ordering the blocks is paid for once in a while.
_RECLAIM_SHARE = 16


class Cursor:
    """Where a reader stands in a file, for eviction: ``position`` in bytes, ``None`` while it only reads at offsets."""

    __slots__ = ("__weakref__", "position")

    def __init__(self) -> None:
        self.position: int | None = None


class BlockFile:
    """What the store holds of one version of one object of ``size`` bytes."""

    def __init__(self, store: BlockStore, name: Hashable, version: Version, *, size: int, block_bytes: int) -> None:
        self.store = store
        self.name = name
        self.version = version
        self.label = ""
        self.size = size
        self.grid = BlockGrid(size, block_bytes)
        self.blocks: dict[int, Block] = {}
        self.fetches: list[Fetch] = []
        # Weakly, so that a reader that was dropped without closing does not keep the file open.
        self.cursors: weakref.WeakSet[Cursor] = weakref.WeakSet()

    def find(self, start: int, end: int) -> Segment | None:
        """The one segment that holds all of ``[start, end)`` now, or ``None``. Safe from any thread."""
        block = self.blocks.get(start // self.grid.block_bytes)
        if block is None:
            return None
        for segment in block.segments:
            if segment.start <= start and end <= segment.start + segment.filled:
                self.store.tick += 1
                block.touched = self.store.tick
                segment.unused_prefetch = False
                return segment
        return None

    def find_pieces(self, start: int, end: int) -> list[memoryview] | None:
        """Pieces of memory that together are ``[start, end)``, or ``None`` when a byte is missing. Any thread."""
        pieces = self.find_prefix(start, end)
        return pieces if sum(map(len, pieces)) == end - start else None

    def find_prefix(self, start: int, end: int) -> list[memoryview]:
        """Pieces of memory from ``start`` on, as far towards ``end`` as no byte is missing. From any thread."""
        pieces: list[memoryview] = []
        while start < end:
            segment = self._holding(start)
            if segment is None:
                break
            stop = min(end, segment.start + segment.filled)
            pieces.append(segment.view[start - segment.start : stop - segment.start])
            start = stop
        return pieces

    def _holding(self, position: int) -> Segment | None:
        block = self.blocks.get(position // self.grid.block_bytes)
        for segment in block.segments if block is not None else ():
            if segment.start <= position < segment.start + segment.filled:
                return self.find(position, position + 1)
        return None

    def missing(self, start: int, end: int) -> list[Range]:
        """What of ``[start, end)`` is neither resident nor on its way."""
        present: list[Range] = []
        for index in self.grid.indices(start, end):
            block = self.blocks.get(index)
            if block is not None:
                present += block.bounds()
        present += [(fetch.start, fetch.end) for fetch in self.fetches if fetch.head is None]
        return subtract((start, end), sorted(present))

    def start_fetch(
        self, start: int, end: int, call: FetchCall, *, lane: Lane, check: Callable[[ReadHead], None] | None = None
    ) -> Fetch:
        """Start a request for ``[start, end)``, none of which may be resident or on its way.

        ``check`` sees the head of the answer before anything is placed, and raises if it is of another object.
        """

        def file_of(head: ReadHead) -> BlockFile:
            if check is not None:
                check(head)
            return self

        fetch = self.store.start_fetch(start, end, call, file_of, lane=lane, label=self.label)
        fetch.file = self
        self.fetches.append(fetch)
        return fetch

    def join(self, start: int, end: int) -> list[Wait]:
        """Join every fetch that will bring a byte of ``[start, end)``, in order; the caller closes the waits."""
        joined = [fetch for fetch in self.fetches if fetch.start < end and start < fetch.end]
        joined.sort(key=lambda fetch: fetch.start)
        return [fetch.join(min(end, fetch.end)) for fetch in joined]

    def place(self, fetch: Fetch, head: ReadHead) -> None:
        """Make the segments that the answer fills: those parts of it that are not resident already."""
        for index in self.grid.indices(head.start, head.end):
            block = self.blocks.get(index)
            if block is None:
                block = self.blocks[index] = Block(index)
            low, high = self.grid.bounds(index)
            wanted = (max(low, head.start), min(high, head.end))
            for start, end in subtract(wanted, block.bounds()):
                block.add(fetch.new_segment(start, end))
            self.store.touch(block)

    def settle(self, fetch: Fetch) -> None:
        """A fetch ended: segments it did not finish keep their beginning or go."""
        if fetch in self.fetches:
            self.fetches.remove(fetch)
        for segment in fetch.segments:
            if segment.complete:
                continue
            if segment.filled:
                segment.keep_prefix()
                continue
            block = self.blocks.get(self.grid.index(segment.start))
            if block is not None:
                block.discard(segment)
                if not block.segments:
                    del self.blocks[block.index]

    def drop(self, block: Block) -> None:
        """Evict a block; its memory comes back as soon as nobody views it."""
        self.blocks.pop(block.index, None)

    def forget(self) -> None:
        """Drop every block: nobody will find this file again."""
        self.blocks.clear()
        self.store.forget_if_empty(self)

    def open(self, cursor: Cursor) -> None:
        """A reader opened this file."""
        self.cursors.add(cursor)

    def close(self, cursor: Cursor) -> None:
        """A reader closed it. With the last one, requests that nobody waits for are broken off; blocks stay."""
        self.cursors.discard(cursor)
        if not self.cursors:
            for fetch in tuple(self.fetches):
                if not fetch.has_waiters:
                    fetch.cancel()
            self.store.forget_if_empty(self)


class BlockStore:
    """All files with resident blocks, and the budget they share."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.files: dict[Hashable, BlockFile] = {}
        self._newest: dict[Hashable, BlockFile] = {}
        self.tick = 0
        runtime.budget.reclaim = self.reclaim

    @classmethod
    def of(cls, runtime: Runtime) -> BlockStore:
        """The block store of a runtime."""
        store = runtime.peek("block_store")
        if not isinstance(store, cls):
            store = runtime.shared("block_store", lambda: cls(runtime))
            runtime.supervisor.on_close(store.aclose)
        return store

    async def aclose(self) -> None:
        """Give back all memory but what is viewed, although closed readers may live on."""
        for file in tuple(self.files.values()):
            file.blocks.clear()
        self.files.clear()
        self._newest.clear()

    def file(self, name: Hashable, version: Version, *, size: int, block_bytes: int, label: str = "") -> BlockFile:
        """The file of one version of what ``name`` says (store and path), made where there is none.

        ``label`` is what events call it.
        """
        key = (name, version, size, block_bytes)
        found = self.files.get(key)
        if found is None:
            found = self.files[key] = BlockFile(self, name, version, size=size, block_bytes=block_bytes)
            found.label = label
        self._newest[name, block_bytes] = found
        return found

    def newest(self, name: Hashable, block_bytes: int) -> BlockFile | None:
        """The file of ``name`` on this grid that was opened last, whatever its version, if it is held still."""
        return self._newest.get((name, block_bytes))

    def forget_if_empty(self, file: BlockFile) -> None:
        """Forget a file that holds nothing and that nobody has open."""
        if file.blocks or file.cursors or file.fetches:
            return
        block_bytes = file.grid.block_bytes
        self.files.pop((file.name, file.version, file.size, block_bytes), None)
        if self._newest.get((file.name, block_bytes)) is file:
            del self._newest[file.name, block_bytes]

    def touch(self, block: Block) -> None:
        """The block was used now."""
        self.tick += 1
        block.touched = self.tick

    def start_fetch(
        self,
        start: int,
        end: int,
        call: FetchCall,
        file_of: Callable[[ReadHead], BlockFile],
        *,
        lane: Lane,
        label: str = "",
    ) -> Fetch:
        """Start a request whose file may be known only when the head of its answer has come.

        Memory is reserved before ``call`` is made; ``call(fetch)`` sends the request with the fetch as its sink.
        """

        def place(fetch: Fetch, head: ReadHead) -> None:
            file = file_of(head)
            if fetch.file is None:
                fetch.file = file
                file.fetches.append(fetch)
            fetch.start, fetch.end = head.start, head.end
            file.place(fetch, head)

        fetch = Fetch(start, end, lane=lane, budget=self.runtime.budget, place=place)
        fetch.label = label
        counters = self.runtime.counters
        counters["stream_read_block_fetches"] += 1
        if lane == "prefetch":
            counters["stream_read_prefetch_operations"] += 1
        fetch.abandon = lambda: self._end(fetch, _was_closed())
        fetch.ticket = self.runtime.budget.request(end - start, lane)
        fetch.work = self.runtime.supervisor.spawn(
            self._run(fetch, call), name=f"fetch {start}-{end}", on_end=fetch.abandon
        )
        return fetch

    async def _run(self, fetch: Fetch, call: FetchCall) -> None:
        try:
            await self._reserve(fetch)
            await call(fetch)
        except Exception as error:
            # Without its traceback, which would keep this frame and with it the buffers alive.
            self._end(fetch, error.with_traceback(None))
        except asyncio.CancelledError:
            self._end(fetch, _was_closed())
            raise
        else:
            self._end(fetch, None)

    def _end(self, fetch: Fetch, error: Exception | None) -> None:
        if fetch.finished:
            return
        if fetch.ticket is not None:  # Still queued: it was cancelled before it began.
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
        if file is not None:
            self.forget_if_empty(file)

    async def _reserve(self, fetch: Fetch) -> None:
        ticket, budget = fetch.ticket, self.runtime.budget
        assert ticket is not None
        if not ticket.granted:
            limit_seconds = self.runtime.options.budget_wait_seconds
            try:
                async with asyncio.timeout(limit_seconds):
                    await ticket.wait()
            except TimeoutError:
                raise BudgetExhausted(
                    f"{ticket.size_bytes} bytes of memory were not free within {limit_seconds} s:"
                    f" {budget.used_bytes} of {budget.limit_bytes} are in use; release views, close readers or raise"
                    " memory_bytes",
                    operation="read",
                ) from None
        fetch.ticket, fetch.reserved_bytes = None, ticket.size_bytes

    def reclaim(self, need_bytes: int) -> None:
        """Evict blocks until ``need_bytes`` are free, or nothing more can go."""
        need = max(need_bytes, self.runtime.budget.limit_bytes // _RECLAIM_SHARE)
        order = list(self._evictable())
        heapq.heapify(order)
        while need > 0 and order:
            _, _, file, block = heapq.heappop(order)
            need -= block.resident_bytes
            self.runtime.counters["stream_evict_blocks_from_cache"] += 1
            start, end = file.grid.bounds(block.index)
            self.runtime.events.publish(
                "block.evicted", file.label, start=start, end=end, unused=block.is_unused_prefetch
            )
            if block.is_unused_prefetch:
                self.runtime.counters["prefetch_bytes_wasted"] += block.resident_bytes
            file.drop(block)
            self.forget_if_empty(file)

    def _evictable(self) -> Iterator[tuple[tuple[bool, bool, int, int], int, BlockFile, Block]]:
        ahead_blocks = self.runtime.options.prefetch_blocks
        number = 0  # Keeps the heap from comparing blocks.
        for file in self.files.values():
            block_bytes = file.grid.block_bytes
            positions = [one.position for one in file.cursors]
            known = [position // block_bytes for position in positions if position is not None]
            floating = len(known) < len(positions)
            for block in file.blocks.values():
                if not block.is_evictable:
                    continue
                away = 0 if floating else distance(block.index, known, ahead_blocks=ahead_blocks)
                wasted = block.is_unused_prefetch and away > 0
                number += 1
                yield (
                    rank(viewed=block.is_viewed, wasted=wasted, distance_blocks=away, touched=block.touched),
                    number,
                    file,
                    block,
                )


def _was_closed() -> Closed:
    return Closed("the reader or its operator was closed while the read was under way", operation="read")

"""The bytes of the object that a reader has pinned: wanted, waited for, copied; kept in the block store."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.blocks.accounting import tier_of
from aioprefetch.blocks.fetch import Wait
from aioprefetch.errors import Closed, RangeNotSatisfied, Unexpected
from aioprefetch.ranges import Range
from aioprefetch.reader.options import ReaderOptions
from aioprefetch.reader.pinned_version import PinnedVersion
from aioprefetch.reader.policy import Fill, Policy, extent, policy_number, steps
from aioprefetch.reader.prefetcher import Prefetcher
from aioprefetch.reader.window import Look
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.statistics import Account, Tier
from aioprefetch.values import Lane

# Bytes that were evicted before they could be copied, or whose prefetch failed, are asked for again this often.
_TRIES = 4


class PinnedObject(PinnedVersion):
    """The object behind a RangeReader; each missing byte of it is requested once. Not for direct use."""

    def __init__(
        self,
        accessor: Accessor,
        runtime: Runtime,
        path: str,
        options: ReaderOptions,
        policy: Policy,
        account: Account,
    ) -> None:
        super().__init__(accessor, runtime, path, options, policy, account)
        self.prefetcher = Prefetcher(
            self,
            policy,
            options.growth,
            block_bytes=options.block_bytes,
            blocks_max=min(options.prefetch_blocks, runtime.options.memory_bytes // (2 * options.block_bytes)),
            split=options.split,
        )

    def want(self, start: int, end: int, *, lane: Lane, fill: Fill, request_bytes: int) -> None:
        """Start requests for what of ``[start, end)`` is neither resident nor on its way."""
        file = self._file()
        limit = self.end_of_reads()
        wanted = extent(start, min(end, limit), fill=fill, grid=file.grid)
        if fill == "block" and lane == "demand":
            wanted = self._within_share(start, end, wanted)
        if self.policy.keeps_footer and wanted[1] > file.footer_start:
            # All of it, as a first request without a size brings.
            wanted = min(wanted[0], file.footer_start), limit
        for low, high in file.missing(wanted[0], min(wanted[1], limit)):
            for begin, stop in steps(low, high, fill=fill, step_bytes=request_bytes):
                call = self._call(begin, stop)
                file.start_fetch(
                    begin,
                    stop,
                    call,
                    lane=lane,
                    check=partial(self._check_same, file),
                    owner=self,
                    account=self.account,
                )

    def ask(self, start: int, end: int, *, fill: Fill) -> list[Wait]:
        """Want ``[start, end)`` now, and wait for what is on its way until ``release``."""
        file = self._file()
        under_way = set(map(id, file.fetches))
        self.want(start, end, lane="demand", fill=fill, request_bytes=self._step_bytes(fill))
        waits = file.join(start, end)
        self._waits.update(waits)
        self.account.counters["stream_read_block_joins"] += sum(id(wait.fetch) in under_way for wait in waits)
        return waits

    def begin(self, start: int, end: int, *, at_cursor: bool) -> list[Wait]:
        """``ask``, as a read of its own: a run that goes on is fetched ahead of."""
        look = self.prefetcher.observe(self._file(), start, end, at_cursor=at_cursor)
        waits = self.ask(start, end, fill=look.fill)
        self.prefetcher.follow(look, start)
        return waits

    async def arrived(self, start: int, end: int, waits: list[Wait]) -> list[memoryview] | None:
        """``[start, end)`` in pieces of block memory once the waits are over. Copy them before the next ``await``.

        ``None`` when a byte is missing all the same: it was evicted, its prefetch failed, or the object turned out to
        be shorter than declared. ``copy`` brings what there is.
        """
        if len(waits) == 1:
            waits[0].pin()
        for wait in waits:
            try:
                await self._over(wait)
            except RangeNotSatisfied:
                if end <= self.end_of_reads():
                    raise
                return None
        return self._file().find_pieces(start, end)

    async def copy(self, start: int, end: int, put: Callable[[memoryview], object], *, at_cursor: bool = False) -> Tier:
        """Give ``[start, end)`` to ``put`` piece by piece, in order, with several requests ahead in flight.

        Returns where they came from. Less is given where the object turns out to be shorter than its declared size.
        If it fails or is cancelled, what has arrived stays resident, and ``put`` may have been called for a beginning.
        """
        if start >= end:
            return Tier.MEMORY
        if not self.prefetcher.by_block:
            return await self._copy(start, end, put, at_cursor)
        tier = Tier.MEMORY
        for low, high in steps(start, end, fill="block", step_bytes=self._block_bytes):
            if low >= self.end_of_reads():
                break
            tier = max(tier, await self._copy(low, high, put, at_cursor))
        return tier

    async def _copy(self, start: int, end: int, put: Callable[[memoryview], object], at_cursor: bool) -> Tier:
        look: Look | None = self.prefetcher.observe(self._file(), start, end, at_cursor=at_cursor)
        assert look is not None
        fill = look.fill
        cuts = steps(start, end, fill=fill, step_bytes=self._step_bytes(fill))
        cut = next(cuts, None)
        asked: deque[tuple[int, int, list[Wait]]] = deque()
        tier = Tier.MEMORY
        try:
            while cut is not None or asked:
                if cut is not None and cut[0] >= self.end_of_reads():
                    cut = None  # There is nothing any more, whatever size was declared.
                while cut is not None and self.has_room(len(asked), sum(one[1] - one[0] for one in asked), cut):
                    asked.append((*cut, self.ask(*cut, fill=fill)))
                    cut = next(cuts, None)
                if look is not None:  # After the read's own requests, so that they are first in every queue.
                    self.prefetcher.follow(look, start)
                    look = None
                if not asked:
                    break
                low, high, waits = asked[0]
                tier = max(tier, await self._hand_over(low, high, waits, put, fill))
                self.release(waits)
                asked.popleft()
        finally:
            for _, _, waits in asked:
                self.release(waits)
        return tier

    async def _hand_over(
        self, start: int, end: int, waits: list[Wait], put: Callable[[memoryview], object], fill: Fill
    ) -> Tier:
        """Give ``[start, end)`` to ``put`` as it arrives. Only what comes next is pinned, and used at once."""
        asked = list(waits)

        def take() -> None:
            nonlocal start
            for piece in self._file().find_prefix(start, end):
                put(piece)
                start += len(piece)

        take()
        tries = 0
        while start < min(end, self.end_of_reads()):
            while waits and (waits[0].position <= start or waits[0].fetch.succeeded):
                self.release((waits.pop(0),))  # What it brought was taken, or is evicted by now.
            if not waits or waits[0].fetch.start > start:
                # Evicted, or its prefetch failed: asked for again now, not when the fetches behind it have ended.
                tries += 1
                if tries > _TRIES:
                    raise self._evicted(start, end)
                again = self.ask(start, waits[0].fetch.start if waits else end, fill=fill)
                waits[:0] = again
                asked += again
            before = start
            waits[0].pin()
            try:
                await self._over(waits[0], is_last=tries == _TRIES)
            except RangeNotSatisfied:
                if start < self.end_of_reads():
                    raise
            take()
            self.release((waits.pop(0),))
            tries = tries if start == before else 0
        return tier_of(asked)

    def _evicted(self, start: int, end: int) -> Unexpected:
        return Unexpected(
            f"[{start}, {end}) was evicted {_TRIES + 1} times before it could be used: memory_bytes is too small",
            operation="read",
            path=self.path,
        )

    async def _over(self, wait: Wait, *, is_last: bool = False) -> None:
        """Wait until a wait is over. A prefetch that failed says nothing about the read: it is tried again.

        Unless it ``is_last``: where readers that share a file look ahead one may join a failing prefetch every time.
        """
        try:
            await self.result(wait)
        except Closed:
            raise
        except Exception:
            if is_last or not wait.fetch.prefetched:
                raise

    async def first_completed(self, waits: Iterable[Wait]) -> None:
        """Wait until one of the waits has ended, well or not."""
        with self.waiting():
            await asyncio.wait([wait.future for wait in waits], return_when=asyncio.FIRST_COMPLETED)

    def described(self) -> str:
        """For the reader's repr: blocks held and requests in flight, and how far each run looks ahead, in blocks."""
        file = self.file
        if file is None:
            return ""
        windows = ",".join(str(one.blocks) for one in self.prefetcher.windows.sessions if one.blocks) or "0"
        return f" blocks={len(file.blocks)} fetching={len(file.fetches)} window={windows}"

    def gauges(self) -> dict[str, int]:
        """What is held now for this reader, and what it holds. From any thread."""
        file = self.file
        if file is None:
            return {}
        fetches = tuple(file.fetches)
        resident = sum(block.resident_bytes for block in list(file.blocks.values()))
        return {
            "stream_read_active_prefetch_operations": sum(one.owner is self and one.prefetched for one in fetches),
            "stream_read_blocks_in_cache": len(file.blocks),
            "stream_read_active_memory_in_use": resident + sum(one.reserved_bytes for one in fetches),
            "stream_read_gauge_input_policy": policy_number(self.policy),
        }

    def has_room(self, count: int, total_bytes: int, following: Range) -> bool:
        """Whether one more may be in flight beside ``count`` steps of a long read: they take half of the memory."""
        options = self.runtime.options
        fits = total_bytes + following[1] - following[0] <= options.memory_bytes // 2
        return count == 0 or (count < options.concurrency and fits)

    def end_of_reads(self) -> int:
        """Where reads and requests end: at the declared size, or at the end of the object if that comes first."""
        size = self._file().size
        if self.size is None or self.size > size:  # Another reader that declared the same may have found out.
            self.size = size
        return self.size

    def _step_bytes(self, fill: Fill) -> int:
        return self.prefetcher.demand_bytes if fill == "block" else self.request_bytes_max

    def unbuffer(self) -> None:
        """Give back the memory of what is resident, unless another reader has the same version open."""
        file = self.file
        self.prefetcher.windows.forget()
        self.cursor.runs = ()
        if file is not None:
            file.cancel_prefetches(self, 0, file.size)
        if file is not None and len(file.cursors) == 1:
            for fetch in tuple(file.fetches):
                if not fetch.has_waiters:
                    fetch.cancel()
            for block in tuple(file.blocks.values()):
                if block.is_evictable:
                    file.drop(block)

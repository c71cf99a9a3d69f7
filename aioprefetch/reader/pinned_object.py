"""The bytes of the object that a reader has pinned: wanted, waited for, copied; kept in the block store."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from aioprefetch.blocks.fetch import Wait
from aioprefetch.errors import Closed, Unexpected
from aioprefetch.ranges import Range
from aioprefetch.reader.pinned_version import PinnedVersion
from aioprefetch.reader.policy import extent, steps
from aioprefetch.values import Lane

# Bytes that were evicted before they could be copied, or whose prefetch failed, are asked for again this often.
_TRIES = 4


class PinnedObject(PinnedVersion):
    """The object behind a RangeReader; each missing byte of it is requested once. Not for direct use."""

    def want(self, start: int, end: int, *, lane: Lane, exact: bool = False) -> None:
        """Start requests for what of ``[start, end)`` is neither resident nor on its way."""
        file = self._file()
        spans: Iterable[Range] = [(start, end)] if exact else extent(start, end, policy=self.policy, grid=file.grid)
        for low, high in spans:
            for gap_start, gap_end in file.missing(low, high):
                for position in range(gap_start, gap_end, self.request_bytes_max):
                    stop = min(gap_end, position + self.request_bytes_max)
                    call = self._call(position, stop)
                    file.start_fetch(position, stop, call, lane=lane, check=partial(self._check_same, file))

    def ask(self, start: int, end: int, *, exact: bool = False) -> list[Wait]:
        """Want ``[start, end)`` now, and wait for what is on its way until ``release``."""
        file = self._file()
        under_way = set(map(id, file.fetches))
        self.want(start, end, lane="demand", exact=exact)
        waits = file.join(start, end)
        self._waits.update(waits)
        self.runtime.counters["stream_read_block_joins"] += sum(id(wait.fetch) in under_way for wait in waits)
        return waits

    async def arrived(self, start: int, end: int, waits: list[Wait]) -> list[memoryview] | None:
        """``[start, end)`` in pieces of block memory once the waits are over. Copy them before the next ``await``.

        ``None`` when a byte is missing all the same: it was evicted, or its prefetch failed. ``copy`` brings it.
        """
        if len(waits) == 1:
            waits[0].pin()
        for wait in waits:
            await self._over(wait)
        return self._file().find_pieces(start, end)

    async def copy(self, start: int, end: int, put: Callable[[memoryview], object]) -> bool:
        """Give ``[start, end)`` to ``put`` piece by piece, in order, with several requests ahead in flight.

        Returns whether a fetch had to be waited for. If it fails or is cancelled, what has arrived stays resident, and
        ``put`` may have been called for a beginning.
        """
        cuts = steps(start, end, policy=self.policy, step_bytes=self._step_bytes)
        cut = next(cuts, None)
        asked: deque[tuple[int, int, list[Wait]]] = deque()
        ahead = self.steps_ahead
        waited = False
        try:
            while cut is not None or asked:
                while cut is not None and len(asked) < ahead:
                    asked.append((*cut, self.ask(*cut)))
                    cut = next(cuts, None)
                low, high, waits = asked[0]
                waited = waited or bool(waits)
                await self._hand_over(low, high, waits, put)
                self.release(waits)
                asked.popleft()
        finally:
            for _, _, waits in asked:
                self.release(waits)
        return waited

    async def _hand_over(self, start: int, end: int, waits: list[Wait], put: Callable[[memoryview], object]) -> None:
        """Give ``[start, end)`` to ``put`` as it arrives. Only what comes next is pinned, and used at once."""

        def take() -> None:
            nonlocal start
            for piece in self._file().find_prefix(start, end):
                put(piece)
                start += len(piece)

        take()
        tries = 0
        while start < end:
            before = start
            waits += () if waits else self.ask(start, end)
            while waits and start < end:
                waits[0].pin()
                await self._over(waits[0])
                take()
                self.release((waits.pop(0),))
            take()
            tries = 0 if start > before else tries + 1
            if tries == _TRIES:
                raise Unexpected(
                    f"[{start}, {end}) was evicted {_TRIES} times before it could be used: memory_bytes is too small",
                    operation="read",
                    path=self.path,
                )

    async def _over(self, wait: Wait) -> None:
        """Wait until a wait is over. A prefetch that failed says nothing about the read: it is tried again."""
        try:
            await self.result(wait)
        except Closed:
            raise
        except Exception:
            if not wait.fetch.prefetched:
                raise

    @property
    def steps_ahead(self) -> int:
        """How many steps of a long read may be in flight: never more than half of the memory."""
        options = self.runtime.options
        return max(1, min(options.concurrency, options.memory_bytes // (2 * self._step_bytes)))

    @property
    def _step_bytes(self) -> int:
        return self._block_bytes if self.policy.fill == "block" else self.request_bytes_max

    def unbuffer(self) -> None:
        """Give back the memory of what is resident, unless another reader has the same version open."""
        file = self.file
        if file is not None and len(file.cursors) == 1:
            for fetch in tuple(file.fetches):
                if not fetch.has_waiters:
                    fetch.cancel()
            for block in tuple(file.blocks.values()):
                if block.is_evictable:
                    file.drop(block)


async def first_completed(waits: Iterable[Wait]) -> None:
    """Wait until one of the waits has ended, well or not."""
    await asyncio.wait([wait.future for wait in waits], return_when=asyncio.FIRST_COMPLETED)

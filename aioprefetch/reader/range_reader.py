"""RangeReader: bytes of one object by position or by cursor, for any number of tasks at once.

A seek moves the cursor and nothing else: what is resident stays. (OpenDAL's RangeReader dropped its stream on every
seek, which made 600 requests out of a Parquet file of 50 row groups and 12 columns.)
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

from aioprefetch.accessor.sink import writable_bytes
from aioprefetch.blocks.accounting import tier_of
from aioprefetch.errors import InvalidRange, RangeNotSatisfied, SizeUnknown
from aioprefetch.ranges import at_least, checked_int, checked_ranges, coalesce
from aioprefetch.reader.iterators import ChunkIterator, RangeIterator, RangePlan
from aioprefetch.reader.policy import PLAIN, coalescing, find_policy
from aioprefetch.reader.reader_state import ReaderState
from aioprefetch.reader.window import Session
from aioprefetch.runtime.events import logger
from aioprefetch.runtime.statistics import Tier

_CAPABILITIES = frozenset(
    {"iostatistics", "in:unbuffer", "in:readvectored", "in:readbytebuffer", "in:preadbytebuffer", "in:readahead"}
)


class RangeReader(ReaderState):
    """One open object. Made by ``operator.reader(path)``; use it with ``async with``, or call ``aclose``.

    Opening does no I/O: the first read brings size, ETag and bytes in one request. The version is pinned from then
    on: bytes of two versions never mix, ``ObjectChanged`` tells of another one, and ``reopen`` goes on with it. A read
    that fails or is cancelled leaves the reader usable, the cursor where it was and what has arrived resident.

    All methods belong to the event loop of the first use (``WrongLoop``). ``read_at`` and the other positional methods
    may run in any number of tasks; ``read`` and ``readinto`` share the cursor and take turns.
    """

    def has_capability(self, name: str) -> bool:
        """Whether the reader can do what Hadoop calls ``name`` (``in:readvectored``, ``in:unbuffer``, ...)."""
        return name.lower() in _CAPABILITIES

    # --- by position --------------------------------------------------------------------------------------------

    async def read_at(self, offset: int, size: int | None) -> bytes:
        """``size`` bytes from ``offset`` on, short only at the end of the object, ``b""`` beyond it.

        ``None`` reads to the end. Never moves the cursor. Raises ``InvalidRange``, ``ObjectChanged`` and what the
        store raises.
        """
        hit = self._hit(offset, size)
        if hit is not None:
            return bytes(hit)
        return await self._read(offset, size, "read_at")

    async def view_at(self, offset: int, size: int | None) -> memoryview:
        """As ``read_at``, as a read-only view.

        It lies on the block itself, whose memory stays accounted while any slice of the view lives. It is a copy, which
        is not accounted, where it is less than an eighth of its block, while views hold more than half of
        ``memory_bytes``, and where the range lies in more than one piece of memory.
        """
        hit = self._hit_view(offset, size)
        if hit is not None:
            return hit
        first = self._live("view_at").file is None
        pinned, start, end = await self._span(offset, size, "view_at")
        if end - start > self._options.block_bytes or pinned.file is None:
            return memoryview(await self._read(offset, size, "view_at"))
        file, waits = pinned.file, pinned.begin(start, end, at_cursor=False)
        try:
            pieces = await self._guarded(pinned.arrived(start, end, waits))
            if pieces is not None:
                self._delivered(end - start, size, Tier.NETWORK if first else tier_of(waits))
                segment = file.at(start) if len(pieces) == 1 else None
                return memoryview(b"".join(pieces)) if segment is None else file.view(segment, start, end)
        finally:
            pinned.release(waits)
        return memoryview(await self._read(offset, size, "view_at"))

    async def read_exactly_at(self, offset: int, size: int) -> bytes:
        """As ``read_at``, but ``RangeNotSatisfied`` (an ``EOFError``) where that would be short."""
        wanted = checked_int(size, "size", operation="read_exactly_at", path=self.path)
        self._counters["stream_read_fully_operations"] += 1
        data = await self.read_at(offset, wanted)
        if len(data) < wanted:
            self._counters["stream_read_exceptions"] += 1
            self._count_given(-len(data))  # They are not given to the caller after all.
            raise RangeNotSatisfied(
                f"{wanted} bytes were demanded at {offset}, {len(data)} are there",
                total=self.size,
                operation="read_exactly_at",
                path=self.path,
            )
        return data

    async def read_ranges(
        self,
        ranges: Iterable[Sequence[int]],
        *,
        gap_bytes: int | None = None,
        request_bytes_max: int | None = None,
    ) -> list[bytes]:
        """The bytes of each ``(start, end)``, in the order given. Overlaps and duplicates are served.

        Ranges up to ``gap_bytes`` apart share a request of up to ``request_bytes_max``. A range that ends past the
        end of the object is ``RangeNotSatisfied`` before anything is read.
        """
        async with self.iter_ranges(ranges, gap_bytes=gap_bytes, request_bytes_max=request_bytes_max) as iterator:
            found = {index: part async for index, part in iterator}
        return [found[index] for index in range(len(found))]

    def iter_ranges(
        self,
        ranges: Iterable[Sequence[int]],
        *,
        gap_bytes: int | None = None,
        request_bytes_max: int | None = None,
    ) -> RangeIterator:
        """``async for index, data in ...``: the ranges as they complete. Options and errors as in ``read_ranges``."""
        listed = checked_ranges(ranges, operation="read_ranges", path=self.path)
        gap, most = coalescing(gap_bytes, request_bytes_max, policy=self._policy, path=self.path)
        known = self.size
        if known is not None:
            self._check_ends(listed, known)

        async def prepare() -> RangePlan:
            wanted = [one for one in listed if one[1] > one[0]]
            low, high = min(wanted) if wanted else (0, 0)
            pinned = self._live("read_ranges")
            tier = Tier.NETWORK if wanted and pinned.file is None else Tier.MEMORY
            if wanted:
                pinned = await self._opened(low, high - low)
            if pinned.size is not None:
                self._check_ends(listed, pinned.size)
            merged = coalesce(listed, gap_bytes=gap, request_bytes_max=min(most, pinned.request_bytes_max))
            useful = sum(end - begin for begin, end in listed)
            counters = self._counters
            counters["stream_read_vectored_operations"] += 1
            counters["stream_read_vectored_incoming_ranges"] += len(listed)
            counters["stream_read_vectored_incoming_bytes"] += useful
            counters["stream_read_vectored_combined_ranges"] += len(merged)
            counters["stream_read_vectored_read_bytes_discarded"] += max(0, sum(m.size for m in merged) - useful)
            counters["stream_read_operations"] += 1
            return RangePlan(pinned, listed, merged, tier)

        return RangeIterator(self, prepare)

    # --- by cursor ----------------------------------------------------------------------------------------------

    async def read(self, n: int | None = -1) -> bytes:
        """The next ``n`` bytes (all that are left for -1 or ``None``), short only at the end of the object."""
        self._live("read")  # A foreign loop must not even queue for the cursor.
        number = -1 if n is None else checked_int(n, "n", operation="read", path=self.path)
        async with self._turn:
            position = await self._resolve_position()
            wanted = None if number < 0 else number
            hit = self._hit(position, wanted, at_cursor=True)
            data = bytes(hit) if hit is not None else await self._read(position, wanted, "read", at_cursor=True)
            self._move(position + len(data))
            return data

    async def readinto(self, buffer: Any) -> int:
        """Fill ``buffer`` (anything writable with the buffer protocol) from the cursor on; returns how much.

        If it fails or is cancelled the cursor stays, and what is in the buffer is undefined.
        """
        self._live("readinto")
        target = writable_bytes(buffer, operation="readinto", path=self.path)
        async with self._turn:
            first = self._live("readinto").file is None
            position = await self._resolve_position()
            pinned, start, end = await self._span(position, len(target), "readinto")
            filled = 0

            def put(piece: memoryview) -> None:
                nonlocal filled
                target[filled : filled + len(piece)] = piece
                filled += len(piece)

            tier = await self._guarded(pinned.copy(start, end, put, at_cursor=True))
            self._delivered(filled, len(target), Tier.NETWORK if first else tier)
            self._move(position + filled)
            return filled

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int | None:
        """Move the cursor; nothing is read or dropped, and it may lie beyond the end.

        Returns the new position, or ``None`` for ``SEEK_END`` while the size is unknown: the next read resolves it,
        by a request for the tail that also brings its bytes.
        """
        self._check_open("seek")
        number = checked_int(offset, "offset", operation="seek", path=self.path)
        if whence == os.SEEK_END:
            if self.size is None:
                self._from_end = number
                return None
            target = self.size + number
        elif whence == os.SEEK_CUR:
            target = self.tell() + number
        elif whence == os.SEEK_SET:
            target = number
        else:
            raise InvalidRange(f"whence must be 0, 1 or 2, not {whence!r}", operation="seek", path=self.path)
        if target < 0:
            raise InvalidRange(f"the position {target} lies before the start", operation="seek", path=self.path)
        self._count_seek(target - self._position)
        self._from_end = None
        self._move(target)
        return target

    def tell(self) -> int:
        """The cursor. ``SizeUnknown`` after a seek relative to an end that is not known yet."""
        self._check_open("tell")
        if self._from_end is not None and self.size is None:
            raise SizeUnknown(
                "the position depends on the object's size: read, or await ensure_size()",
                operation="tell",
                path=self.path,
            )
        if self._from_end is not None:
            return self._settle_position(self.size or 0)
        return self._position

    def stream(self, chunk_bytes: int | None = None) -> ChunkIterator:
        """``async for chunk in ...`` from the cursor to the end, moving it; the next blocks are fetched meanwhile."""
        self._check_open("stream")
        size = (
            self._options.chunk_bytes
            if chunk_bytes is None
            else at_least(1, chunk_bytes, "chunk_bytes", operation="stream", path=self.path)
        )
        return ChunkIterator(self, size)

    def _expect_run(self) -> Session | None:
        """What follows the cursor is going to be read in order, to the end: look ahead from its first read on.

        Returns the run, for ``_leave_run``; ``None`` where there is none.
        """
        pinned = self._live("stream")
        if self._from_end is not None or self._policy.window == "none":
            return None
        return pinned.prefetcher.expect(self._position)

    def _leave_run(self, run: Session | None, position: int) -> None:
        """Nobody reads on from ``position`` in a run that was expected: break off what is fetched ahead for it.

        What has arrived stays, what other runs of this reader look forward to goes on. Once closed it does nothing.
        """
        pinned = self._object
        if pinned is not None and not self._closed and not pinned.runtime.closed:
            pinned.runtime.check_loop(operation="stream", path=self.path)
            pinned.prefetcher.leave(run, position)

    # --- hints and life -----------------------------------------------------------------------------------------

    def will_need(self, ranges: Iterable[Sequence[int]]) -> None:
        """These ranges will be read soon: fetch what is missing of them in the prefetch lane. A hint, without result.

        Before the first response, and with prefetching switched off, it does nothing.
        """
        self._check_open("will_need")
        listed = checked_ranges(ranges, operation="will_need", path=self.path)
        pinned = self._object
        if pinned is None or pinned.file is None or not self._options.prefetch_enabled:
            return
        pinned.runtime.check_loop(operation="will_need", path=self.path)
        left = pinned.runtime.options.memory_bytes  # What would not fit is not worth asking for.
        for start, end in listed:
            stop = min(end, pinned.size or 0, start + left)
            if start < stop:
                prefetcher = pinned.prefetcher
                fill = prefetcher.windows.fill
                pinned.want(start, stop, lane="prefetch", fill=fill, request_bytes=prefetcher.ahead_bytes)
                left -= stop - start

    def set_policy(self, policy: str) -> None:
        """Read under another policy from now on; what is resident stays."""
        self._check_open("set_policy")
        chosen = find_policy(policy, operation="set_policy", path=self.path)
        before, self._policy = self._policy, chosen if self._options.prefetch_enabled else PLAIN
        self._counters["stream_read_seek_policy_changed"] += self._policy.name != before.name
        if self._object is not None:
            self._object.policy = self._object.prefetcher.windows.policy = self._policy

    def clone(self) -> RangeReader:
        """Another reader of the same version with a cursor of its own at 0. Where there is an ETag it shares blocks."""
        self._check_open("clone")
        options = replace(self._options, policy=self._policy, size=self.size, etag=self.etag, version=self.version)
        return RangeReader(self.path, options, self._connect, url=self._url)

    async def reopen(self) -> None:
        """Let go of the pinned version and pin the one the store has now; the cursor stays.

        Reads of other tasks that wait for bytes of the version before fail with ``ObjectChanged``.
        """
        self._check_open("reopen")
        if self._object is not None:
            self._object.close(self._object.left_behind)
            self._object = None
        self._options = replace(self._options, size=None, etag=None, version=None)
        if await self.ensure_size() and self._live("reopen").file is None:
            # The cursor lies beyond the new end, where only the size could be learnt.
            await self._guarded(self._opened(0, 0))

    async def unbuffer(self) -> None:
        """Give back memory and break off what is in flight; cursor and version stay, the next read works.

        After closing it does nothing.
        """
        if not self._closed and self._object is not None:
            self._check_open("unbuffer")
            self._counters["stream_read_unbuffered"] += 1
            self._object.unbuffer()

    async def aclose(self) -> None:
        """Close: reads under way fail with ``Closed``, requests are broken off. Waits for nothing; twice is fine."""
        if self._closed:
            self._counters["stream_read_close_operations"] += 1
            return
        pinned = self._object
        if pinned is not None and not pinned.runtime.loop.is_closed():
            pinned.runtime.check_loop(operation="aclose", path=self.path)
        self._closed = True
        if self._account is not None:
            self._account.closed = True
            self._counters["stream_read_closed"] += 1
            self._counters["stream_read_close_operations"] += 1
        if pinned is not None:
            pinned.close()
            pinned.runtime.events.publish("reader.closed", self.path, size=pinned.size, etag=pinned.etag)
            if logger.isEnabledFor(logging.DEBUG):
                logger.debug("closed %r: %s", self, self.statistics.described())

    async def __aenter__(self) -> RangeReader:
        self._check_open("open")
        if self._policy.starts_at_open:
            split = self._options.split
            self._live("open").start(self._position if split is None else split[0])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _check_ends(self, ranges: Sequence[tuple[int, int]], total: int) -> None:
        for start, end in ranges:
            if end > total and end > start:
                raise RangeNotSatisfied(
                    f"({start}, {end}) ends past the end of the object of {total} bytes",
                    total=total,
                    operation="read_ranges",
                    path=self.path,
                )

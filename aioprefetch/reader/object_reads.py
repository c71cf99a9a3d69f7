"""The reads of one version of an object: hits out of resident memory, misses, long copies, and prefetch.

A read looks into the block store first (``hit``). A miss is reported to the windows of the reader's runs, which decide
what it brings and what is fetched ahead of it; then its missing bytes are requested, each one once, and it waits for
the requests that bring them. Requests of the read itself are queued before the windows'.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections import deque
from collections.abc import Awaitable, Callable
from operator import attrgetter

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.blocks.block import NO_MARK, Segment
from aioprefetch.blocks.fetch import Fetch, Wait, tier_of
from aioprefetch.blocks.file import BlockFile, Survey
from aioprefetch.credentials import hide_frames
from aioprefetch.errors import RangeNotSatisfied
from aioprefetch.ranges import OFFSET_MAX, Range, checked_range, overlaps
from aioprefetch.reader.direct_reads import LongRead, PastFetch, Write, stream_of
from aioprefetch.reader.look_ahead import LookAhead
from aioprefetch.reader.opening import OpenObject
from aioprefetch.reader.options import ReaderOptions
from aioprefetch.reader.policy import Fill, Policy, extent, step_end, steps
from aioprefetch.reader.window import NOTHING_AHEAD, WindowDecision
from aioprefetch.runtime.events import logger
from aioprefetch.runtime.forks import cached_property
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.statistics import Account, Tier
from aioprefetch.values import Lane

# The number of attempts for bytes that were evicted before their copy, or whose prefetch failed; then they are read
# past the blocks.
_TRIES = 4

GetUrl = Callable[[], str]

# A miss that was reported: the survey of its bytes, what is fetched ahead, and the end of a request that brings more.
Miss = tuple[Survey, WindowDecision, int]

_start_of = attrgetter("fetch.start")


class ObjectReads:
    """The reads of one ``RangeReader`` from the version that it has opened. Each missing byte is requested once.

    ``opened`` is the open object. Everything belongs to the runtime's loop, except ``resident`` and the ``count``
    methods, which may be called from any thread.
    """

    def __init__(
        self, accessor: Accessor, runtime: Runtime, path: str, options: ReaderOptions, account: Account, *, url: GetUrl
    ) -> None:
        self.path = path
        self.runtime = runtime
        self.opened = OpenObject(accessor, runtime, path, options, account)
        self._options = options
        self._counters = account.counters
        self._events = runtime.events
        self._on_progress = options.on_progress
        self._url = url
        self._block_bytes = options.block_bytes
        self._by_block = options.growth.by_block

    @cached_property
    def ahead(self) -> LookAhead:
        """The look-ahead of the reads. Readers of small objects mostly need none."""
        return LookAhead(self.opened, self.runtime, self._options, self._request_missing)

    @property
    def file(self) -> BlockFile | None:
        """The version's place in the block store, ``None`` before the first response and after closing."""
        return self.opened.file

    def set_policy(self, policy: Policy) -> None:
        """Read under another policy from now on."""
        self.opened.policy = self.ahead.windows.policy = policy

    # --- hits ---------------------------------------------------------------------------------------------------

    def hit(self, offset: int, size: int | None, at_cursor: bool = False) -> memoryview | bytes | None:
        """The bytes of a read if one segment holds them all, as a counted read; on the runtime's loop only."""
        view = self.resident(offset, size, at_cursor)
        if view is None or asyncio._get_running_loop() is not self.runtime.loop:
            return None
        # As ``count_hit``, whose call would cost a hit as much as the counting.
        count = len(view)
        counters = self._counters
        counters.hits += 1
        counters.hit_bytes += count
        if count != size and size is not None:
            counters["stream_read_operations_incomplete"] += 1
        if self._on_progress is not None:
            self._report_progress(count)
        if self._events.wants_reads:
            self.opened.publish_served(offset, count, Tier.MEMORY, 0.0)
        return view

    def resident(self, offset: int, size: int | None, at_cursor: bool = False) -> memoryview | bytes | None:
        """The bytes of a read if one segment holds them all; moves runs on. Copy the view before the next ``await``."""
        opened = self.opened
        file, total = opened.file, opened.size
        if file is None or total is None or type(offset) is not int or offset < 0 or self.runtime.supervisor.closed:
            return None
        if size is not None and (type(size) is not int or size < 0):
            return None
        end = total if size is None or offset + size > total else offset + size
        if offset >= end:
            return b"" if offset <= OFFSET_MAX else None
        segment = file.find(offset, end)
        if segment is None:
            return None
        if segment.run_bytes >= segment.mark_bytes:
            self._report_mark(segment, offset, end, at_cursor)
        return segment.view[offset - segment.start : end - segment.start]

    def exported(self, offset: int, size: int) -> memoryview | None:
        """A view for the caller of ``size`` bytes that ``resident`` has found, ``None`` if they are gone again."""
        file = self.opened.file
        segment = None if file is None or not size else file.at(offset)
        if file is None or segment is None:
            return None if size else memoryview(b"")
        if offset + size > segment.start + segment.filled:  # Evicted by the loop's thread, and in flight again.
            return None
        return file.view(segment, offset, offset + size)

    def count_hit(self, offset: int, count: int, size: int | None) -> None:
        """Count a read of ``size`` bytes at ``offset`` that got ``count`` out of memory. From any thread."""
        # Two threads that hit at the same moment may lose a count: an exact one would cost every hit a lock.
        counters = self._counters
        counters.hits += 1
        counters.hit_bytes += count
        if count != size and size is not None:
            counters["stream_read_operations_incomplete"] += 1
        if self._events.wants_reads:
            self.opened.publish_served(offset, count, Tier.MEMORY, 0.0)

    def _report_mark(self, segment: Segment, start: int, end: int, at_cursor: bool) -> None:
        """A run of hits has reached a mark: look further ahead, on the loop's thread."""
        loop = self.runtime.loop
        if asyncio._get_running_loop() is loop:
            self.ahead.pass_mark(segment, start, end, at_cursor)
            return
        segment.mark_bytes = NO_MARK  # Until the loop's thread has passed it.
        with contextlib.suppress(RuntimeError):  # The loop was closed in between.
            loop.call_soon_threadsafe(lambda: self.ahead.pass_mark(segment, start, end, at_cursor, is_late=True))

    # --- whole reads --------------------------------------------------------------------------------------------

    async def read(self, offset: int, size: int | None, operation: str, *, at_cursor: bool = False) -> bytes:
        """``size`` bytes from ``offset`` on, or all up to the end; short only at the end of the object."""
        start, length = checked_range(offset, size, operation=operation, path=self.path)
        opened = self.opened
        is_first = opened.file is None
        collected = io.BytesIO()
        tier = Tier.MEMORY
        began = self._events.clock() if self._events.wants_reads else None
        try:
            if is_first and opened.must_open(start, length):
                await opened.open(start, length or 0)
            end = opened.end_of(start, length)
            segment = self._arrived_with_first(start, end) if is_first else None
            if segment is not None:
                self.count_read(start, end - start, size, Tier.NETWORK, began)
                return bytes(segment.view[start - segment.start : end - segment.start])
            if start < end:
                past, miss = self._way(start, end, at_cursor)
                if past:
                    collected, tier = await LongRead.collect(self, start, end)
                    self.ahead.on_bypass(end)
                else:
                    if end - start > self._block_bytes:
                        collected = stream_of(end - start)
                    tier = await self.copy(start, end, collected.write, at_cursor=at_cursor, miss=miss)
        except Exception as error:
            self.count_failure(error)
            raise
        if start + collected.tell() < end:  # The object is shorter than its declared size.
            collected.truncate()
        data = collected.getvalue()
        self.count_read(start, len(data), size, Tier.NETWORK if is_first and start < end else tier, began)
        return data

    async def read_view(self, offset: int, size: int | None, operation: str) -> memoryview:
        """``read``, as a view on the block itself if the range lies in one segment."""
        opened = self.opened
        if opened.passes_blocks:
            return memoryview(await self.read(offset, size, operation))
        start, length = checked_range(offset, size, operation=operation, path=self.path)
        is_first = opened.file is None
        began = self._events.clock() if self._events.wants_reads else None
        try:
            if is_first and opened.must_open(start, length):
                await opened.open(start, length or 0)
            elif self.runtime.turn.left_bytes <= 0:
                await self.runtime.turn.end()
            end = opened.end_of(start, length)
        except Exception as error:
            self.count_failure(error)
            raise
        file = opened.file
        if end - start > self._block_bytes or file is None:
            return memoryview(await self.read(offset, size, operation))
        if is_first and (segment := self._arrived_with_first(start, end)) is not None:
            self.count_read(start, end - start, size, Tier.NETWORK, began)
            return file.view(segment, start, end)
        waits: list[Wait] = []
        try:
            survey, decision, wide_end = self._report_miss(file, start, end, at_cursor=False)
            waits = self.request_and_join(start, end, fill=decision.fill, survey=survey, wide_end=wide_end)
            self.ahead.apply(decision, start)
            pieces = await self.arrived(start, end, waits)
            if pieces is not None:
                self.count_read(start, end - start, size, Tier.NETWORK if is_first else tier_of(waits), began)
                segment = file.at(start) if len(pieces) == 1 else None
                return memoryview(b"".join(pieces)) if segment is None else file.view(segment, start, end)
        except Exception as error:
            self.count_failure(error)
            raise
        finally:
            opened.release(waits)
        return memoryview(await self.read(offset, size, operation))

    async def read_into(self, offset: int, target: memoryview, operation: str) -> int:
        """Fill ``target`` from ``offset`` on, as a read at the cursor. Returns the number of bytes."""
        start, length = checked_range(offset, len(target), operation=operation, path=self.path)
        opened = self.opened
        is_first = opened.file is None
        tier, filled = Tier.NETWORK, 0
        began = self._events.clock() if self._events.wants_reads else None

        def write(piece: memoryview) -> None:
            nonlocal filled
            target[filled : filled + len(piece)] = piece
            filled += len(piece)

        try:
            if is_first and opened.must_open(start, length):
                await opened.open(start, length or 0)
            end = opened.end_of(start, length)
            segment = self._arrived_with_first(start, end) if is_first else None
            if segment is not None:
                write(segment.view[start - segment.start : end - segment.start])
            elif start < end:
                past, miss = self._way(start, end, at_cursor=True)
                if past:
                    tier = await LongRead(self, start, target[: (filled := end - start)]).run()
                    self.ahead.on_bypass(end)
                else:
                    tier = await self.copy(start, end, write, at_cursor=True, miss=miss)
        except Exception as error:
            self.count_failure(error)
            raise
        self.count_read(start, filled, len(target), Tier.NETWORK if is_first else tier, began)
        return filled

    def _arrived_with_first(self, start: int, end: int) -> Segment | None:
        """The segment with ``[start, end)`` if the first response has brought it, and nothing is fetched ahead yet."""
        file = self.opened.file
        is_alone = self.opened.passes_blocks or self.opened.policy.window == "none"
        if file is None or start >= end or not (is_alone or file.is_whole):
            return None
        segment = file.find(start, end)
        if segment is not None and segment.filled == file.size:
            segment.mark_bytes = NO_MARK
        return segment

    def _way(self, start: int, end: int, at_cursor: bool) -> tuple[bool, Miss | None]:
        """Whether a read goes past the blocks, and the miss, if it was reported already."""
        ahead, opened = self.ahead, self.opened
        if not opened.passes_blocks or opened.total is None:
            return ahead.bypasses_blocks(start, end), None
        if ahead.is_off:
            return True, None
        if ahead.learns_from(opened.open_file(), end):
            return False, None
        miss = survey, decision, _ = self._report_miss(opened.open_file(), start, end, at_cursor)
        if not (survey.gaps and opened.open_file().missing(start, end)):
            return False, miss
        ahead.apply_beside(decision, start, end)
        return True, None

    def count_read(self, start: int, count: int, size: int | None, tier: Tier, began: float | None) -> None:
        """Count a read of ``size`` bytes that got ``count``; publish it, if there was a listener when it ``began``."""
        if began is not None and count:
            self.opened.publish_served(start, count, tier, self._events.clock() - began)
        counters = self._counters
        counters["stream_read_operations"] += 1
        if size is not None and count < size:
            counters["stream_read_operations_incomplete"] += 1
        self.count_delivered(count, tier)

    def count_delivered(self, count: int, tier: Tier) -> None:
        """Count bytes that were delivered to the caller. ``tier`` is their origin."""
        counters = self._counters
        counters["stream_read_bytes"] += count
        counters["stream_read_block_hits" if tier is Tier.MEMORY else "stream_read_block_misses"] += 1
        if tier is Tier.DISK:
            counters["hits_disk"] += 1
        if self._on_progress is not None:
            self._report_progress(count)

    def count_failure(self, error: Exception) -> None:
        """Count a read that failed."""
        self._counters["stream_read_exceptions"] += 1
        hide_frames(error)

    def _report_progress(self, count: int) -> None:
        try:
            if self._on_progress is not None and count:
                self._on_progress(count)
        except Exception:
            logger.exception("on_progress failed for %s", self._url())

    # --- misses -------------------------------------------------------------------------------------------------

    def copy(
        self, start: int, end: int, write: Write, *, at_cursor: bool = False, miss: Miss | None = None
    ) -> Awaitable[Tier]:
        """Pass ``[start, end)`` to ``write`` piece by piece, in order, with several requests in flight.

        Returns the origin of the bytes. ``write`` gets less if the object turns out to be shorter than its declared
        size. If the copy fails or is cancelled, received bytes stay resident, and ``write`` may have got a part.
        ``miss`` is the range's, if it was reported already.
        """
        if self._by_block and start < end:
            return self._copy_by_block(start, end, write, at_cursor)
        return self._copy(start, end, write, at_cursor, miss)

    async def collect(self, start: int, end: int) -> tuple[io.BytesIO, Tier]:
        """``copy`` into a stream, which stands at its end; without a report where the read goes past the blocks."""
        if self.opened.passes_blocks and self.opened.total is not None:
            return await LongRead.collect(self, start, end)
        collected = io.BytesIO()
        return collected, await self.copy(start, end, collected.write)

    async def _copy_by_block(self, start: int, end: int, write: Write, at_cursor: bool) -> Tier:
        tier = Tier.MEMORY
        for low, high in steps(start, end, fill="block", step_bytes=self._block_bytes):
            if low >= self.opened.end_of_reads():
                break
            tier = max(tier, await self._copy(low, high, write, at_cursor))
        return tier

    async def _copy(self, start: int, end: int, write: Write, at_cursor: bool, miss: Miss | None = None) -> Tier:
        if start >= end:
            return Tier.MEMORY
        opened, turn = self.opened, self.runtime.turn
        if turn.left_bytes <= 0 and miss is None:  # Which would not be true any more after the turn.
            await turn.end()
        file, ahead = opened.file or opened.open_file(), self.ahead
        survey, decision, wide_end = miss or self._report_miss(file, start, end, at_cursor)
        fill = decision.fill
        step = ahead.step_bytes(fill)
        first_end = step_end(start, end, fill=fill, step_bytes=step)
        waits: list[Wait] = []
        if survey.resident_end < first_end:
            waits = self.request_and_join(start, first_end, fill=fill, step=step, survey=survey, wide_end=wide_end)
        if first_end < end:
            return await self._copy_steps((start, first_end), end, waits, write, decision, wide_end)
        try:
            ahead.apply(decision, start)  # After the read's own requests, so that they are first in every queue.
            if len(waits) == 1 and survey.resident_end == start:  # One request brings it all, in one segment mostly.
                waits[0].pin()
                try:
                    if (future := waits[0].future) is None:
                        turn.spend(end - start)  # The bytes came with the call: nothing was waited for.
                    else:
                        await opened.wait_for(future)
                except Exception:
                    segment = None  # ``deliver`` decides what the error means.
                else:
                    segment = file.find(start, end)
                finally:
                    future = None  # See ``OpenObject.release``.
                if segment is not None:
                    write(segment.view[start - segment.start : end - segment.start])
                    return waits[0].fetch.tier
            return await self.deliver(start, end, waits, write, fill, has_prefix=survey.resident_end > start)
        finally:
            opened.release(waits)

    def _report_miss(self, file: BlockFile, start: int, end: int, at_cursor: bool) -> Miss:
        """Report a miss of ``[start, end)``. Returns the survey of its bytes, the decision, and its ``wide_end``."""
        ahead = self.ahead
        survey = ahead.survey(file, start, end)
        if ahead.is_off:
            decision = NOTHING_AHEAD[ahead.windows.fill]
        else:
            decision = ahead.on_miss(survey, start, end, at_cursor=at_cursor)
        return survey, decision, ahead.wide_end(survey, end, decision.fill)

    async def _copy_steps(
        self, first: Range, end: int, waits: list[Wait], write: Write, decision: WindowDecision, wide_end: int
    ) -> Tier:
        """Copy up to ``end`` with several steps in flight; the ``first`` one was requested already."""
        opened, fill = self.opened, decision.fill
        cuts = steps(first[1], end, fill=fill, step_bytes=self.ahead.step_bytes(fill))
        cut = next(cuts, None)
        steps_in_flight: deque[tuple[int, int, list[Wait]]] = deque([(*first, waits)])
        bytes_in_flight = first[1] - first[0]
        is_first = True
        tier = Tier.MEMORY
        try:
            while cut is not None or steps_in_flight:
                if cut is not None and cut[0] >= opened.end_of_reads():
                    cut = None  # The object ends here, even if the declared size is larger.
                while cut is not None and self.has_room(len(steps_in_flight), bytes_in_flight, cut):
                    waits = self.request_and_join(*cut, fill=fill, wide_end=wide_end)
                    steps_in_flight.append((*cut, waits))
                    bytes_in_flight += cut[1] - cut[0]
                    cut = next(cuts, None)
                if is_first:
                    self.ahead.apply(decision, first[0])
                    is_first = False
                if not steps_in_flight:
                    break
                low, high, waits = steps_in_flight[0]
                tier = max(tier, await self.deliver(low, high, waits, write, fill, has_prefix=True))
                opened.release(waits)
                steps_in_flight.popleft()
                bytes_in_flight -= high - low
        finally:
            for _, _, waits in steps_in_flight:
                opened.release(waits)
        return tier

    async def deliver(
        self, start: int, end: int, waits: list[Wait], write: Write, fill: Fill, has_prefix: bool
    ) -> Tier:
        """Pass ``[start, end)`` to ``write`` as it arrives. Only the next bytes are pinned, and used at once.

        ``has_prefix``: the first bytes may be resident already.
        """
        opened = self.opened
        tier = Tier.MEMORY
        tries = 0
        if has_prefix or any(wait.is_over for wait in waits):
            start = self._copy_available(start, end, write)
        while start < min(end, opened.end_of_reads()):
            while waits and (waits[0].position <= start or waits[0].fetch.succeeded):
                tier = max(tier, tier_of(waits[:1]))
                opened.release([waits.pop(0)])  # Its bytes were taken, or are evicted again.
            if not waits or waits[0].fetch.start > start:
                # Evicted, or its prefetch failed: request it again now, before the requests behind it have ended.
                tries += 1
                if tries > _TRIES:  # Past the blocks nothing can take the bytes away.
                    end = min(end, opened.end_of_reads())
                    rest, network = await LongRead.collect(self, start, end, [(start, end)])
                    write(rest.getbuffer())
                    return network
                waits[:0] = self.request_and_join(start, waits[0].fetch.start if waits else end, fill=fill)
            before = start
            waits[0].pin()
            try:
                await opened.result(waits[0], ignores_prefetch=True)
            except RangeNotSatisfied:
                if start < opened.end_of_reads():
                    raise
            start = self._copy_available(start, end, write)
            tier = max(tier, tier_of(waits[:1]))
            opened.release([waits.pop(0)])
            tries = tries if start == before else 0
        return max(tier, tier_of(waits))

    def _copy_available(self, start: int, end: int, write: Write) -> int:
        """Pass the resident beginning of ``[start, end)`` to ``write``, and return its end."""
        for piece in self.opened.open_file().find_prefix(start, end):
            write(piece)
            start += len(piece)
        return start

    async def arrived(self, start: int, end: int, waits: list[Wait]) -> list[memoryview] | None:
        """``[start, end)`` in pieces of block memory once the waits are over. Copy them before the next ``await``.

        ``None`` if a byte is missing anyway: it was evicted, its prefetch failed, or the object is shorter than
        declared. ``copy`` delivers the available bytes.
        """
        opened = self.opened
        past = waits[0].fetch if waits else None
        if len(waits) == 1:
            waits[0].pin()
        for number in range(len(waits)):  # A local name would keep a wait; see ``OpenObject.release``.
            try:
                await opened.result(waits[number], ignores_prefetch=True)
            except RangeNotSatisfied:
                if end <= opened.end_of_reads():
                    raise
                return None
        return [memoryview(past.data)] if isinstance(past, PastFetch) else opened.open_file().find_pieces(start, end)

    def request(self, start: int, end: int) -> list[Wait]:
        """``request_and_join`` for the exact range, past the blocks if the object is a local file."""
        opened = self.opened
        if not opened.passes_blocks or opened.total is None:
            return self.request_and_join(start, end, fill="exact")
        return [PastFetch.begun(self, start, end)]

    def request_and_join(
        self, start: int, end: int, *, fill: Fill, step: int = 0, survey: Survey | None = None, wide_end: int = 0
    ) -> list[Wait]:
        """Request the missing bytes of ``[start, end)`` in the demand lane, and join all requests that bring some.

        A request that would end with the range may bring missing bytes up to ``wide_end``. ``step``: the longest one.
        """
        opened = self.opened
        is_surveyed = survey is not None and survey.start <= start and end <= survey.end
        earlier = survey.fetches if survey is not None and is_surveyed else opened.open_file().in_flight(start, end)
        step = step or self.ahead.step_bytes(fill)
        started = self._request_missing(
            start, end, lane="demand", fill=fill, request_bytes=step, survey=survey, wide_end=wide_end
        )
        waits: list[Wait] = []
        for fetch in started:
            if fetch.start < end and start < fetch.end:
                wait = fetch.join(min(end, fetch.end))
                wait.was_late = True  # Also if the response came with the call.
                waits.append(wait)
        if earlier:
            joined = [
                fetch.join(min(end, fetch.end))
                for fetch in earlier
                if fetch.start < end and start < fetch.end and not (fetch.finished or fetch.is_past(end))
            ]
            self._counters["stream_read_block_joins"] += len(joined)
            waits += joined
            waits.sort(key=_start_of)
        opened.waits.update(waits)
        return waits

    def request_ahead(self, start: int, end: int) -> None:
        """Request the missing bytes of ``[start, end)`` in the prefetch lane, without waiting."""
        self._request_missing(
            start, end, lane="prefetch", fill=self.ahead.windows.fill, request_bytes=self.ahead.request_bytes
        )

    def _request_missing(
        self,
        start: int,
        end: int,
        *,
        lane: Lane,
        fill: Fill,
        request_bytes: int,
        survey: Survey | None = None,
        wide_end: int = 0,
    ) -> list[Fetch]:
        """Start requests for the bytes of ``[start, end)`` that are neither resident nor in flight."""
        opened = self.opened
        file = opened.file or opened.open_file()
        limit = opened.end_of_reads()
        low, high = start, end if end < limit else limit
        if fill == "block":
            low, high = extent(low, high, fill=fill, grid=file.grid)
            if lane == "demand":
                low, high = opened.within_share(start, end, (low, high))
        if opened.policy.first == "tail" and high > file.footer_start:
            # The whole footer, as a first request without a size brings it.
            low, high = min(low, file.footer_start), limit
        high = min(high, limit)
        gaps = None if survey is None else survey.missing_in(low, high)
        gaps = file.missing(low, high) if gaps is None else gaps
        started: list[Fetch] = []
        if not gaps or (lane == "demand" and not overlaps(gaps, start, end)):
            return started  # All that the read wants is there or in flight: the rest is not worth a request.
        if wide_end > high and gaps and gaps[-1][1] == high < limit:
            beyond = file.missing(high, min(wide_end, limit))
            if beyond and beyond[0][0] == high:
                gaps = [*gaps[:-1], (gaps[-1][0], beyond[0][1])]
        for begin, stop in gaps:
            while begin < stop:
                cut = step_end(begin, stop, fill=fill, step_bytes=request_bytes)
                started.append(file.start_fetch(begin, cut, opened, lane=lane, account=opened.account))
                begin = cut
        return started

    def has_room(self, count: int, total_bytes: int, following: Range) -> bool:
        """Whether ``following`` may be in flight beside ``count`` steps of ``total_bytes``: half of the memory."""
        options, size = self.runtime.options, following[1] - following[0]
        return count == 0 or (count < options.concurrency and total_bytes + size <= options.memory_bytes // 2)

    def unbuffer(self) -> None:
        """Release the memory of resident blocks, unless another reader has the same version open."""
        self.ahead.forget()
        if (file := self.file) is not None:
            file.cancel_prefetches(self.opened, 0, file.size)
            file.unbuffer_if_alone()

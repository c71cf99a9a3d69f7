"""The front door of a source: what an engine's stream reader calls, and nothing of the engine itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace

from aioprefetch.errors import Error, InvalidArgument
from aioprefetch.operator.operator import Operator
from aioprefetch.runtime.events import logger
from aioprefetch.source.fetch.admission import BatchLimits, CanSplit, is_unbounded, limits_of, narrowed
from aioprefetch.source.fetch.cleaning import MARKER_NAME, Cleaner, CleanOptions
from aioprefetch.source.fetch.feeds import (
    StateLocation,
    check_state_place,
    feed_for,
    first_cursor,
    lasting_options,
    open_followed,
)
from aioprefetch.source.fetch.partitioning import check_partition_options, divide
from aioprefetch.source.fetch.planner import Planner, PlanOptions
from aioprefetch.source.files import FetchItem, SourceFile
from aioprefetch.source.offset import Offset
from aioprefetch.source.options import AdmissionOptions, ListOptions, PartitionOptions
from aioprefetch.source.polling import OutageLimit, PollTimer, is_transient
from aioprefetch.source.record import Record
from aioprefetch.source.state import SourceIdentity, SourceState, StateOptions
from aioprefetch.source.state.store import log_name

# Stores tell whole seconds, and answers take their time: less than this is no difference.
SKEW_MS_MIN = 5000


def now_ms() -> int:
    """This machine's time, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


async def skew_ms(operator: Operator, written_by: Operator, path: str) -> int:
    """How far the store's clock is ahead of ours, told by an object there that was written a moment ago.

    0 if they agree, if the object lies in another store than ``operator`` reads, or if it cannot be looked at.
    """
    here, there = operator.info, written_by.info
    if (here.scheme, here.endpoint) != (there.scheme, there.endpoint):
        return 0
    try:
        found = await written_by.stat(path)
    except Error:
        return 0
    if found.last_modified is None:
        return 0
    skew = round(found.last_modified.timestamp() * 1000) - now_ms()
    return skew if abs(skew) >= SKEW_MS_MIN else 0


__all__ = ["FileSource", "StateLocation"]

# A store tells whole seconds, and its clock is not quite ours.
CLOCK_MARGIN_MS = 1000


class FileSource:
    """Files of a store as batches of work: ``latest_offset``, ``partitions``, ``commit``, as an engine calls them.

    Whatever it returns is durable before: a process may be killed between any two steps, and the next one, opened with
    the same state and given the engine's offset, hands out the same batches again with the same content. One source
    writes a state at a time; one that was overtaken gets ``StateConflict``. Calls of one source are taken one by one.
    """

    def __init__(
        self,
        state: SourceState,
        planner: Planner,
        cleaner: Cleaner,
        *,
        admission: AdmissionOptions,
        partitioning: PartitionOptions,
        can_split: CanSplit,
        store_ms: Callable[[], int],
        retry_seconds: float,
        resources: AsyncExitStack,
    ) -> None:
        self._state = state
        self._planner = planner
        self._cleaner = cleaner
        self._admission = admission
        self._partitioning = partitioning
        self._can_split = can_split
        self._store_ms = store_ms
        self._resources = resources
        self._lock = asyncio.Lock()
        self._checked: Offset | None = None
        self._timer = PollTimer(0.0)
        self._outage = OutageLimit(retry_seconds)

    @classmethod
    async def open(
        cls,
        *,
        operator: Operator,
        state_operator: Operator,
        state_directory: str,
        url: str,
        list_options: ListOptions | None = None,
        admission: AdmissionOptions | None = None,
        partitioning: PartitionOptions | None = None,
        attach_to: StateLocation | None = None,
        can_split: CanSplit | None = None,
        plan_options: PlanOptions | None = None,
        clean: CleanOptions | None = None,
        state_options: StateOptions | None = None,
        clock_ms: Callable[[], int] | None = None,
    ) -> FileSource:
        """Open the source over ``operator``, rooted at the directory that is listed, and take over its state.

        ``url`` tells people, and the state, which directory that is. ``attach_to`` follows the lister of another
        source instead of listing: first all files that it knows, then what it finds. ``can_split`` says of which files
        parts can be read (default: of none). ``clock_ms`` gives the time; by default it is this
        machine's, and that of the store where files are told to be older or younger than it.

        Raises ``ConfigInvalid`` for options that cannot be, and for a state within the source, ``StateConflict`` when
        the state is that of another source, or what is followed is over another directory. If it fails or is cancelled
        nothing stays open.
        """
        list_options = list_options or ListOptions()
        can_split = can_split or _never
        admission, partitioning = admission or AdmissionOptions(), partitioning or PartitionOptions()
        limits_of(admission)
        check_partition_options(partitioning)
        clean = clean or CleanOptions()
        check_state_place(operator, state_operator, state_directory, list_options)
        marker = (state_operator, f"{state_directory}{MARKER_NAME}")
        async with AsyncExitStack() as stack:
            followed = None if attach_to is None else await open_followed(attach_to, url, list_options, clean.mode)
            if followed is not None:
                stack.push_async_callback(followed.aclose)
            first = first_cursor(operator, followed)
            state = await SourceState.open(
                state_operator,
                state_directory,
                SourceIdentity(
                    url=url,
                    glob=list_options.glob,
                    options=lasting_options(first, hidden_files=list_options.hidden_files),
                ),
                first=first,
                clock_ms=clock_ms or now_ms,
                options=state_options
                or StateOptions(
                    forget_after_seconds=list_options.forget_after_seconds, retry_seconds=list_options.retry_seconds
                ),
            )
            stack.push_async_callback(state.aclose)
            feed = feed_for(operator, followed, list_options, state.index)
            stack.push_async_callback(feed.aclose)
            plan_options = replace(plan_options or PlanOptions(), overwrites=list_options.overwrites)
            cleaner = Cleaner(state, operator, marker, clean)
            stack.push_async_callback(cleaner.aclose)
            return cls(
                state,
                Planner(state, feed, can_split, plan_options, clock_ms=clock_ms or now_ms),
                cleaner,
                admission=admission,
                partitioning=partitioning,
                can_split=can_split,
                store_ms=clock_ms or await _store_clock(operator, state_operator, state_directory, state),
                retry_seconds=list_options.retry_seconds,
                resources=stack.pop_all(),
            )
        raise AssertionError  # The stack swallows nothing.

    @property
    def state(self) -> SourceState:
        """The durable state, for what else is kept there (a schema)."""
        return self._state

    @property
    def cleaner(self) -> Cleaner:
        """What deletes or moves files, for its counts."""
        return self._cleaner

    def initial_offset(self) -> Offset:
        """The offset before all records."""
        return Offset(self._state.uuid)

    async def latest_offset(self, start: Offset, limit: AdmissionOptions | None = None) -> Offset:
        """The offset after the next batch, which is durable then; ``start`` itself when there is none now.

        Batches that were planned after ``start`` already, by this process or one before it, come first, one at a time
        and unchanged, whatever ``limit`` says. Otherwise one is planned within ``limit`` and the limits of the source;
        a ``limit`` that bounds nothing asks for all there is, up to ``plan_files_max``. Listing is bounded by time and
        pages.

        A failure of a store that may pass gives ``start``, with a warning, and the next call waits for a pause that
        grows. In a run that is to end, and where all there is was asked for, ``start`` would say that there is no more:
        there this call tries again. Such failures are raised when they have lasted for ``ListOptions.retry_seconds``.

        Raises ``StateConflict`` when ``start`` is another state's, or another writer has taken over;
        ``UntrustedMetadata`` for a ``start`` beyond the log; ``NotFound`` when the records after it were compacted;
        ``ObjectChanged`` under ``overwrites=fail``. When it raises, or is cancelled, nothing is lost: call it again.
        """
        limits = limits_of(narrowed(self._admission, limit))
        everything = limit is not None and is_unbounded(limit)
        async with self._lock:
            while True:
                found = await self._next_offset(start, limits, everything=everything)
                if found is not None:
                    return found
                if not (everything or self._planner.is_finishing):
                    return start

    def prepare_available_now(self) -> None:
        """From now on deliver what is there now, and then no more: ``latest_offset`` ends by returning ``start``."""
        self._planner.finish_by(self._store_ms() + CLOCK_MARGIN_MS)

    async def partitions(self, start: Offset, end: Offset) -> list[list[FetchItem]]:
        """The work between two offsets, divided among tasks: a function of the records and the options alone.

        Raises as ``latest_offset`` does for offsets that do not go with the state.
        """
        while True:
            try:
                records = await self._records_between(start, end)
            except Error as error:  # There is nothing to give in their place.
                self._wait_out(error)
                continue
            items = [item for record in records for item in record.items]
            return divide(items, self._partitioning, self._can_split)

    async def commit(self, end: Offset) -> None:
        """The engine will not ask for anything up to ``end`` again. May come late, repeatedly, out of order, or never.

        What follows from it (compaction, cleaning of source files) goes on in the background. A failure that may pass
        leaves it to the next commit, with a warning.
        """
        try:
            await self._check(end)
        except Error as error:
            self._wait_out(error)
            return
        await self._state.committed(end.seq)
        self._cleaner.committed(end.seq)

    @property
    def is_waiting(self) -> bool:
        """Whether a store failed when it was asked last, and is asked again by the next call."""
        return self._outage.is_failing

    def report_latest(self) -> Offset | None:
        """What is known to be there, planned or not: its distance from the engine's offset is the backlog."""
        head = self._planner.head
        files, size = self._planner.waiting
        return Offset(self._state.uuid, head.seq, head.files + files, head.bytes + size)

    async def aclose(self) -> None:
        """End background work and close the state. Nothing durable depends on it."""
        await self._resources.aclose()

    async def _next_offset(self, start: Offset, limits: BatchLimits, *, everything: bool) -> Offset | None:
        """See ``latest_offset``; ``None`` after a failure that may pass."""
        try:
            await self._timer.wait()
            await self._check(start)
            await self._planner.settle()
        except Error as error:
            self._wait_out(error)
            return None
        # An engine asks what comes after ``start`` when the batch that ended there is committed. What has made
        # compactions fail for too long is raised.
        await self._state.committed(start.seq)
        try:
            record = await self._recorded_after(start.seq)
            if record is None:
                record = await self._planner.plan(limits, everything=everything)
        except Error as error:
            self._wait_out(error)
            return None
        self._answered()
        return start if record is None else Offset(self._state.uuid, record.seq, record.files, record.bytes)

    async def _records_between(self, start: Offset, end: Offset) -> list[Record]:
        await self._timer.wait()
        await self._check(start)
        await self._check(end)
        if end.seq < start.seq:
            raise InvalidArgument(f"offset {end.seq} lies before {start.seq}", operation="partitions")
        records = await self._state.work(start.seq, end.seq)
        self._answered()
        return records

    def _wait_out(self, error: Error) -> None:
        """Let the next attempt come after a pause, or raise: it does not help, or has not helped for too long."""
        if not self._outage.tolerates(error):
            if is_transient(error):
                error.add_context(failing_seconds=round(self._outage.failing_seconds))
            raise error
        self._timer.failed()
        logger.warning("a store failed, and is asked again for %.0f s more: %s", self._outage.remaining_seconds, error)

    def _answered(self) -> None:
        self._timer.succeeded()
        self._outage.end()

    async def _recorded_after(self, seq: int) -> Record | None:
        """The next record with work after ``seq``: batches that were planned before come as they were."""
        for number in self._state.work_seqs(seq):
            (record,) = await self._state.work(number - 1, number)
            return record
        return None

    async def _check(self, offset: Offset) -> None:
        """Refuse an offset that does not go with the state; see ``SourceState.check_offset``."""
        if offset.state == self._state.uuid and offset.seq > self._planner.head.seq:
            await self._state.newest()  # Beyond the end, as it was: who has gone on is another writer, and is named.
        self._state.check_offset(offset)
        # Each opening appends a claim, so that a log that lost its end grows past the offset again.
        if offset.seq >= 0 and offset != self._checked:
            await self._state.check_totals(offset)
            self._checked = offset


async def _store_clock(
    operator: Operator, state_operator: Operator, directory: str, state: SourceState
) -> Callable[[], int]:
    """The time of the store, as near as the claim tells that was written just now."""
    assert state.head is not None
    skew = await skew_ms(operator, state_operator, f"{directory}{log_name(state.head.seq)}")
    return lambda: now_ms() + skew


def _never(file: SourceFile) -> bool:
    return False

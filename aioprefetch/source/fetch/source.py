"""The front door of a source, for the stream reader of an engine. It is independent of engines.

It chooses the feed: a lister, a lister for stores without an order, or a follower of another source.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

from aioprefetch.errors import ConfigInvalid, Error, InvalidArgument, StateConflict
from aioprefetch.operator.operator import Operator
from aioprefetch.runtime.events import logger
from aioprefetch.source.fetch.cleaning import MARKER_NAME, Cleaner, CleanOptions
from aioprefetch.source.fetch.partitioning import (
    BatchLimits,
    CanSplit,
    check_partition_options,
    divide,
    is_unbounded,
    limits_of,
    narrowed,
)
from aioprefetch.source.fetch.planner import Planner, PlanOptions, passes
from aioprefetch.source.list.diff_lister import DiffLister
from aioprefetch.source.list.follower import Follower
from aioprefetch.source.list.pages import Selection
from aioprefetch.source.list.tail_sweep_lister import TailSweepLister
from aioprefetch.source.options import AdmissionOptions, CleanSource, ListOptions, PartitionOptions, StateOptions
from aioprefetch.source.polling import OutageLimit, PollTimer, now_ms, outlast, patient
from aioprefetch.source.state.source_state import SourceState
from aioprefetch.source.state.store import SourceIdentity, canonical_root, log_name, store_path_below, would_be_read
from aioprefetch.source.values import (
    Cursor,
    Diff,
    FetchItem,
    FileIndex,
    Follow,
    Offset,
    Record,
    TailAndSweep,
)

HIDDEN = "hidden_files"


@dataclass(frozen=True, slots=True)
class StateLocation:
    """The location of a state: a directory (``"a/b/"``, or ``""``) of a store."""

    operator: Operator
    directory: str = ""


async def open_state(
    location: StateLocation, identity: SourceIdentity | None, *, retry_seconds: float, **others: Any
) -> SourceState:
    """``SourceState.open``, repeated while its store throttles or does not respond."""
    store = patient(location.operator, retry_seconds)
    state = await outlast(lambda: SourceState.open(store, location.directory, identity, **others), retry_seconds)
    state.use(location.operator)  # From now on it is the source that waits, between its triggers.
    return state


async def open_followed(
    location: StateLocation, url: str, options: ListOptions, mode: CleanSource = "off"
) -> SourceState:
    """Open the state of the followed source for reading, for a follower over ``url``.

    ``NotFound`` without a state, ``StateConflict`` if it lists another directory, or leaves out files (by its glob, or
    hidden ones) that the follower's ``options`` include, ``ConfigInvalid`` if the follower shall clean files.
    """
    if mode != "off":
        raise ConfigInvalid(
            f"clean_source={mode} does not go with attach_to: the source that is followed, and others that follow it,"
            " may not have read the file",
            operation="clean_source",
        )
    state = await open_state(location, None, retry_seconds=options.retry_seconds, first=TailAndSweep(), writer=False)
    try:
        _check_followed(state.identity, url, options)
    except StateConflict:
        await state.aclose()
        raise
    return state


def _check_followed(other: SourceIdentity, url: str, options: ListOptions) -> None:
    if canonical_root(other.url) != canonical_root(url):
        raise StateConflict(
            f"the source over {url} cannot follow one over {other.url}: give both the same directory, and a glob to"
            " the source that should have only some of the files",
            operation="attach",
        )
    if options.hidden_files and other.options.get(HIDDEN) != _text(True):
        raise StateConflict(
            f"the source over {url} would never find hidden files: the source it follows leaves out keys with a part"
            " that begins with _ or '.'. Follow one with hidden_files, or do without them",
            operation="attach",
        )
    if other.glob is None or other.glob == options.glob:
        return
    if options.glob is None:
        raise StateConflict(
            f"the source over {url} would never find what the source it follows leaves out: that one lists"
            f" {other.glob!r} only. Give it the same glob, or a narrower one",
            operation="attach",
        )
    logger.warning(
        "the source over %s takes %r of what the source it follows finds, which is %r: it sees files that both match",
        url,
        options.glob,
        other.glob,
    )


def check_state_place(operator: Operator, state_operator: Operator, directory: str, options: ListOptions) -> None:
    """``ConfigInvalid`` for a state within the source, which would read the objects of the state."""
    below = store_path_below(operator.info, state_operator.info, directory)
    selection = Selection(options.glob, hidden_files=options.hidden_files)
    if would_be_read(below, selection.takes):
        raise ConfigInvalid(
            f"the state at {state_operator.info.url}/{directory} lies within the source {operator.info.url}: what is"
            " written there would be read. Choose a place outside, or one whose name begins with _",
            operation="open_source",
        )


def first_cursor(operator: Operator, followed: SourceState | None) -> Cursor:
    """The cursor of a new source; its class chooses the feed."""
    if followed is not None:
        return Follow(state=followed.uuid)
    return Diff() if is_unordered(operator) else TailAndSweep()


def is_unordered(operator: Operator) -> bool:
    """Whether listings have no order, as in S3's directory buckets."""
    return not operator.capability.list_ordered


def lasting_options(first: Cursor, *, hidden_files: bool = False) -> dict[str, str]:
    """The options, besides URL and glob, that must not change between runs: the way of listing, and hidden files.

    A follower reads here which files the followed source leaves out.
    """
    match first:
        case Follow(state=state):
            listing = f"follows {state}"
        case Diff():
            listing = "compares full listings"
        case TailAndSweep():
            listing = "tail and sweep"
    return {"listing": listing, HIDDEN: _text(hidden_files)}


def _text(flag: bool) -> str:
    return "true" if flag else "false"


def feed_for(
    operator: Operator, followed: SourceState | None, options: ListOptions, index: FileIndex
) -> TailSweepLister | DiffLister | Follower:
    """The feed of a source over ``operator``, whose root is the root of the source."""
    if followed is not None:
        return Follower(followed, options, index)
    return (DiffLister if is_unordered(operator) else TailSweepLister)(operator, options, index)


# --- clocks -----------------------------------------------------------------------------------------------------------

# Stores give whole seconds, and responses take time: a smaller difference is ignored.
SKEW_MS_MIN = 5000


async def skew_ms(operator: Operator, written_by: Operator, path: str) -> int:
    """How far the store's clock is ahead of ours, by the time of an object that was written a moment ago.

    0 if they agree, if the object lies in another store than ``operator`` reads, or if it has no time.
    """
    here, there = operator.info, written_by.info
    if (here.scheme, here.endpoint) != (there.scheme, there.endpoint):
        return 0
    try:
        metadata = await written_by.stat(path)
    except Error:
        return 0
    if metadata.last_modified is None:
        return 0
    skew = round(metadata.last_modified.timestamp() * 1000) - now_ms()
    return skew if abs(skew) >= SKEW_MS_MIN else 0


# --- the source -------------------------------------------------------------------------------------------------------

# Stores give whole seconds, and their clocks differ a little from ours.
CLOCK_MARGIN_MS = 1000


class FileSource:
    """Files of a store as batches of work: ``latest_offset``, ``partitions``, ``commit``, as an engine calls them.

    Every returned offset is durable. A process may be killed between any two steps; the next one, opened with the same
    state and the engine's offset, returns the same batches with the same content. One source writes a state at a time;
    an overtaken one raises ``StateConflict``. Concurrent calls of one source wait for each other.
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
        self._sweeps = passes(planner.head.cursor)
        self._swept_ms: int | None = None
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

        ``url`` names that directory in the state and in messages. ``attach_to`` follows the lister of another source
        instead of listing: first all files that it knows, then its further changes. ``can_split`` says whether parts of
        a file can be read (default: no). ``clock_ms`` gives the time; by default it is the clock of this machine, and
        the clock of the store where the ages of files count.

        Raises ``ConfigInvalid`` for invalid options, for a state within the source, and for a state in a store without
        conditional writes; ``StateConflict`` if the state belongs to another source, or the followed source has another
        directory. A store that throttles or does not respond is asked again for ``ListOptions.retry_seconds``, as by
        ``latest_offset``. After an error or a cancellation nothing stays open.
        """
        list_options = list_options or ListOptions()
        can_split = can_split or (lambda file: False)
        admission, partitioning = admission or AdmissionOptions(), partitioning or PartitionOptions()
        limits_of(admission)
        check_partition_options(partitioning)
        clean = clean or CleanOptions()
        check_state_place(operator, state_operator, state_directory, list_options)
        marker = (state_operator, f"{state_directory}{MARKER_NAME}")
        state_options = state_options or StateOptions(
            forget_after_seconds=list_options.forget_after_seconds, retry_seconds=list_options.retry_seconds
        )
        plan_options = replace(plan_options or PlanOptions(), overwrites=list_options.overwrites)
        clock = clock_ms or now_ms
        async with AsyncExitStack() as stack:
            followed = None
            if attach_to is not None:
                followed = await open_followed(attach_to, url, list_options, clean.mode)
                stack.push_async_callback(followed.aclose)
            first = first_cursor(operator, followed)
            lasting = lasting_options(first, hidden_files=list_options.hidden_files)
            identity = SourceIdentity(url=url, glob=list_options.glob, options=lasting)
            state = await open_state(
                StateLocation(state_operator, state_directory),
                identity,
                retry_seconds=list_options.retry_seconds,
                first=first,
                clock_ms=clock,
                options=state_options,
            )
            stack.push_async_callback(state.aclose)
            feed = feed_for(operator, followed, list_options, state.index)
            stack.push_async_callback(feed.aclose)
            cleaner = Cleaner(state, operator, marker, clean)
            stack.push_async_callback(cleaner.aclose)
            store_ms = clock_ms or await _store_clock(operator, state_operator, state_directory, state)
            source = cls(
                state,
                Planner(state, feed, can_split, plan_options, clock_ms=clock),
                cleaner,
                admission=admission,
                partitioning=partitioning,
                can_split=can_split,
                store_ms=store_ms,
                retry_seconds=list_options.retry_seconds,
                resources=stack,
            )
            if not list_options.include_existing:
                made_ms = state.created_ms + store_ms() - clock()
                await outlast(lambda: source._learn_existing(made_ms), list_options.retry_seconds)
            source._resources = stack.pop_all()
            return source
        raise AssertionError  # The stack swallows nothing.

    async def _learn_existing(self, made_ms: int) -> None:
        """Know the files that were there when the state was made. All of them are, once a batch was planned."""
        if not self._planner.head.files:
            await self._planner.learn(made_ms, limits_of(self._admission))

    @property
    def state(self) -> SourceState:
        """The durable state, which also keeps small files such as a schema."""
        return self._state

    @property
    def cleaner(self) -> Cleaner:
        """The cleaner of source files, for its counts."""
        return self._cleaner

    def initial_offset(self) -> Offset:
        """The offset before all records."""
        return Offset(self._state.uuid)

    async def latest_offset(self, start: Offset, limit: AdmissionOptions | None = None) -> Offset:
        """The offset after the next batch, which is then durable; ``start`` itself if there is no batch now.

        Batches that this or an earlier process has planned after ``start`` come first, one at a time and unchanged,
        for any ``limit``. Otherwise a batch is planned within ``limit`` and the limits of the source; a ``limit``
        that bounds nothing requests everything, up to ``plan_files_max``. Listing is bounded by time and pages.

        A transient failure of a store returns ``start``, with a warning, and the next call waits for a pause that grows
        each time. In a run that ends, and if everything was requested, ``start`` would mean the end, so
        this call tries again. Failures are raised once they have lasted for ``ListOptions.retry_seconds``.

        Raises ``StateConflict`` if ``start`` belongs to another state, or another writer has taken over;
        ``UntrustedMetadata`` for a ``start`` beyond the log; ``NotFound`` if the records after it were removed;
        ``ObjectChanged`` under ``overwrites=fail``. After an error or a cancellation nothing is lost: call it again.
        """
        limits = limits_of(narrowed(self._admission, limit))
        everything = limit is not None and is_unbounded(limit)
        async with self._lock:
            while True:
                offset = await self._next_offset(start, limits, everything=everything)
                if offset is not None:
                    return offset
                if not (everything or self._planner.is_finishing):
                    return start

    def prepare_available_now(self) -> None:
        """Deliver the files that exist now, and no later ones: ``latest_offset`` then ends by returning ``start``."""
        self._planner.finish_by(self._store_ms() + CLOCK_MARGIN_MS)

    async def partitions(self, start: Offset, end: Offset) -> list[list[FetchItem]]:
        """The work between two offsets, divided among tasks: it depends on the records and the options alone.

        Raises as ``latest_offset`` for offsets that do not belong to the state.
        """
        while True:
            try:
                records = await self._records_between(start, end)
            except Error as error:  # Nothing else can be returned.
                self._outage.wait_out(error, self._timer)
                continue
            items = [item for record in records for item in record.items]
            return divide(items, self._partitioning, self._can_split)

    async def commit(self, end: Offset) -> None:
        """The engine has committed ``end``. The call may be late, repeated, out of order, or missing.

        Compaction and the cleaning of source files then run in the background. After a transient failure they are left
        to the next commit, with a warning.
        """
        try:
            await self._check(end)
        except Error as error:
            self._outage.wait_out(error, self._timer)
            return
        await self._state.committed(end.seq)
        self._cleaner.committed(end.seq)

    @property
    def is_waiting(self) -> bool:
        """Whether the last request to a store failed, and the next call repeats it."""
        return self._outage.is_failing

    def progress(self, before: Offset, after: Offset) -> str:
        """One line for people: what was planned between two offsets, what waits, and when a whole sweep ended."""
        files, size, oldest_ms = self._planner.waiting
        if self._sweeps != passes(self._planner.head.cursor):
            self._sweeps, self._swept_ms = passes(self._planner.head.cursor), now_ms()
        lag = "" if oldest_ms is None else f", the oldest since {(self._store_ms() - oldest_ms) // 1000} s"
        age = "" if self._swept_ms is None else f"; the last sweep ended {(now_ms() - self._swept_ms) // 1000} s ago"
        return (
            f"record {after.seq} has {after.files - before.files} files and {after.bytes - before.bytes} bytes, "
            f"{before.files} files are committed; {files} files and {size} bytes wait{lag}{age}"
        )

    def report_latest(self) -> Offset | None:
        """All known files, planned or not, as an offset: its distance from the engine's offset is the backlog."""
        head = self._planner.head
        files, size, _ = self._planner.waiting
        return Offset(self._state.uuid, head.seq, head.files + files, head.bytes + size)

    async def aclose(self) -> None:
        """End background work and close the state. The durable state needs no closing."""
        await self._resources.aclose()

    async def _next_offset(self, start: Offset, limits: BatchLimits, *, everything: bool) -> Offset | None:
        """One attempt of ``latest_offset``; ``None`` after a transient failure."""
        try:
            await self._timer.wait()
            await self._check(start)
            await self._planner.settle()
        except Error as error:
            self._outage.wait_out(error, self._timer)
            return None
        # An engine asks for the batch after ``start`` once the batch before it is committed. This also raises the error
        # of compactions that have failed for too long.
        await self._state.committed(start.seq)
        try:
            record = await self._recorded_after(start.seq)
            if record is None:
                record = await self._planner.plan(limits, everything=everything)
        except Error as error:
            self._outage.wait_out(error, self._timer)
            return None
        self._responded()
        return start if record is None else Offset(self._state.uuid, record.seq, record.files, record.bytes)

    async def _records_between(self, start: Offset, end: Offset) -> list[Record]:
        await self._timer.wait()
        await self._check(start)
        await self._check(end)
        if end.seq < start.seq:
            raise InvalidArgument(f"offset {end.seq} lies before {start.seq}", operation="partitions")
        records = await self._state.work(start.seq, end.seq)
        self._responded()
        return records

    def _responded(self) -> None:
        self._timer.succeeded()
        self._outage.end()

    async def _recorded_after(self, seq: int) -> Record | None:
        """The next record with work after ``seq``: batches planned earlier come first, unchanged."""
        for number in self._state.work_seqs(seq):
            (record,) = await self._state.work(number - 1, number)
            return record
        return None

    async def _check(self, offset: Offset) -> None:
        """Refuse an offset that does not belong to the state, as ``SourceState.check_offset``."""
        if offset.state == self._state.uuid and offset.seq > self._planner.head.seq:
            await self._state.newest()  # If another writer has appended records, raise its name.
        self._state.check_offset(offset)
        # Each opening appends a claim, so a log that lost its end may have grown past the offset again.
        if offset.seq >= 0 and offset != self._checked:
            await self._state.check_totals(offset)
            self._checked = offset


async def _store_clock(
    operator: Operator, state_operator: Operator, directory: str, state: SourceState
) -> Callable[[], int]:
    """The clock of the store, by the time of the claim that was written just now."""
    assert state.head is not None
    skew = await skew_ms(operator, state_operator, f"{directory}{log_name(state.head.seq)}")
    return lambda: now_ms() + skew

"""Plans batches: the carry of the last batch, then changes page by page while there is room, become a record.

The draft of the next record is small and in memory; after a crash the planner finds its contents again.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from aioprefetch.accessor.response_check import VersionPin
from aioprefetch.errors import Error, ObjectChanged
from aioprefetch.source.fetch.partitioning import Admission, BatchLimits, CanSplit
from aioprefetch.source.options import Overwrites
from aioprefetch.source.values import (
    EMPTIED_BYTES,
    REST_SECONDS_MAX,
    Change,
    Cursor,
    Diff,
    Feed,
    FetchItem,
    Follow,
    FoundPage,
    KnownFile,
    Record,
    SourceFile,
    TailAndSweep,
)

if TYPE_CHECKING:
    from aioprefetch.source.state.source_state import SourceState

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """How changes become work, and how much is listed for one trigger.

    ``list_seconds_max`` and ``list_pages_max`` bound a trigger; a page in progress is awaited. Notes without work are
    written with the next batch; after ``learned_max`` keys, ``learned_pages_max`` pages, or the end of a sweep they get
    a record of their own.
    """

    overwrites: Overwrites = "ignore"
    list_seconds_max: float = 10.0
    list_pages_max: int = 100
    learned_max: int = 10_000
    learned_pages_max: int = 1000


@dataclass(slots=True)
class Trigger:
    """The progress of one call.

    Its bounds do not hold for ``everything``, nor for ``to_the_end`` while there is no work. ``one_page`` ends it after
    a page with work.
    """

    deadline_seconds: float
    everything: bool
    to_the_end: bool
    one_page: bool
    pages: int = 0
    is_idle: bool = False

    def may_list(self, options: PlanOptions, now_seconds: float, *, has_work: bool) -> bool:
        """Whether one more page may be listed."""
        if self.is_idle or (self.one_page and has_work):
            return False
        if self.pages == 0 or self.everything or (self.to_the_end and not has_work):
            return True
        return self.pages < options.list_pages_max and now_seconds < self.deadline_seconds


class Planner:
    """Plans the batches of one source, one call at a time. After a crash its memory is found again by listing."""

    def __init__(
        self,
        state: SourceState,
        feed: Feed,
        can_split: CanSplit,
        options: PlanOptions,
        *,
        clock_ms: Callable[[], int],
        now_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = state
        self._feed = feed
        self._can_split = can_split
        self._options = options
        self._clock_ms = clock_ms
        self._now = now_seconds
        self._draft = Draft()
        self._unsettled: Record | None = None
        self._finish_ms: int | None = None
        self._only_learns = False

    @property
    def head(self) -> Record:
        """The newest record of the state; a state opened for writing has at least its claim."""
        head = self._state.head
        assert head is not None
        return head

    @property
    def waiting(self) -> tuple[int, int, int | None]:
        """The number of files and bytes that wait for a batch, a lower bound, and the time of the oldest of them."""
        items = [FetchItem(change.file) for change, _ in self._draft.rest if change.kind in ("new", "overwritten")]
        items += self.head.carry
        oldest_ms = min((item.file.modified_ms for item in items if item.file.modified_ms is not None), default=None)
        return sum(item.start == 0 for item in items), sum(item.bytes for item in items), oldest_ms

    @property
    def is_finishing(self) -> bool:
        """Whether the run ends when there is no work left."""
        return self._finish_ms is not None

    async def learn(self, modified_ms: int, limits: BatchLimits) -> None:
        """Know all files that are not younger, without work. If it fails or is cancelled, it may be repeated."""
        self.finish_by(modified_ms)
        self._only_learns = True
        try:
            await self.plan(limits)
        finally:
            self._only_learns = False
            self.finish_by(None)

    def finish_by(self, modified_ms: int | None) -> None:
        """From now on leave younger files, and list until there is no work left, however long that takes.

        ``None``: list without an end.
        """
        self._finish_ms = modified_ms
        self._draft = Draft()
        self._feed.finish_by(modified_ms)

    async def settle(self) -> Record | None:
        """Write a record again whose fate is unknown, with the same content: it may be there already."""
        record = self._unsettled
        if record is not None:
            await self._state.append(record)
            self._unsettled = None
            self._draft.settled()
        return record

    async def plan(self, limits: BatchLimits, *, everything: bool = False) -> Record | None:
        """The record of the next batch, durable. ``None`` if there is no work now; notes may have been written.

        The first batch of a source comes after one page with work, unless ``everything`` is requested at once, however
        long that takes. After an error or a cancellation the state is unchanged or has the record; ``settle`` then
        returns it.
        """
        await self.settle()
        self._feed.begin_trigger()
        trigger = Trigger(
            deadline_seconds=self._now() + self._options.list_seconds_max,
            everything=everything,
            to_the_end=self._finish_ms is not None,
            one_page=not everything and self.head.files == 0,
        )
        admission = self._carried_over(limits)
        try:
            while await self._step(admission, trigger):
                pass
            if admission.items or self._is_worth_a_record(trigger):
                return await self._append(admission)
        except BaseException:
            if admission.items or self._unsettled is not None:  # The admitted changes are lost: list them again.
                self._draft = Draft()
                self._go_back()
            raise
        return None

    def _carried_over(self, limits: BatchLimits) -> Admission:
        admission = Admission(limits, self._can_split)
        carry = self.head.carry
        for number, item in enumerate(carry):
            if not admission.offer(item):
                admission.wait(carry[number:])
                break
        return admission

    async def _step(self, admission: Admission, trigger: Trigger) -> bool:
        """List a page if needed, and take the changes that fit. ``False`` at the end of the trigger."""
        draft = self._draft
        # A run that ends takes the files from its start: it does not list twice.
        if draft.rest and self._finish_ms is None and self._now() - draft.rest_seconds > REST_SECONDS_MAX:
            draft.drop_rest()
        if admission.is_full:
            return False
        if not draft.rest:
            if not trigger.may_list(self._options, self._now(), has_work=bool(admission.items)):
                return False
            await self._list(admission, trigger)
        if self._take(admission, trigger):
            return True
        if admission.items:
            return False
        await self._append(admission)
        return True

    async def _list(self, admission: Admission, trigger: Trigger) -> None:
        draft = self._draft
        draft.recorded.clear()
        try:
            page = await self._feed.page(draft.cursor or self.head.cursor)
            before = await self._versions_before(page)
        except Error as error:
            if not admission.items:
                raise
            logger.warning("listing failed; the batch is delivered with what was found before: %s", error)
            trigger.is_idle = True
            return
        trigger.pages += 1
        trigger.is_idle = page.is_idle
        draft.take_page(page, before, self._now())

    async def _versions_before(self, page: FoundPage) -> dict[str, KnownFile]:
        """The known versions of overwritten keys, if the policy needs them or the new version is empty."""
        rereads = self._options.overwrites == "reread"
        keys = [
            change.file.key
            for change, _ in page.changes
            if change.kind == "overwritten" and not (rereads and change.file.size > 0)
        ]
        if not keys:
            return {}
        try:
            return await self._state.index.find(keys)
        except BaseException:
            self._go_back()  # The page is not taken.
            raise

    def _go_back(self) -> None:
        """Tell the feed that the planner goes back to an earlier cursor."""
        if self._finish_ms is not None:
            self._feed.finish_by(self._finish_ms)

    def _take(self, admission: Admission, trigger: Trigger) -> bool:
        """Take changes until the page or the room is used up. ``False``: a record must be written first."""
        draft = self._draft
        while draft.rest:
            change = draft.rest[0][0]
            seen = draft.seen(change.file.key)
            if seen is None:
                if not self._decide(change, admission):
                    return True
            elif not is_repeated(change, seen):
                draft.drop_rest()
                self._go_back()
                trigger.is_idle = False
                return not draft.unrecorded
            draft.advance()
            if draft.learned >= self._options.learned_max:
                return False
        return True

    def _decide(self, change: Change, admission: Admission) -> bool:
        """Plan or note one change; ``False`` if there is no room for it."""
        draft, file = self._draft, change.file
        before = draft.before.get(file.key)
        version = None if before is None else before.file
        verdict = judge(change, self._options.overwrites, version)
        if self._only_learns and verdict == "work":
            verdict = "known"
        if verdict == "gone":
            draft.note_gone(change, self._clock_ms())
        elif verdict == "known":
            draft.note_known(to_remember(change, version))
        elif admission.offer(FetchItem(file)):
            if any(item.file.key == file.key for item in self.head.carry):
                admission.supersede(file)
            draft.unrecorded[file.key] = change
        else:
            return False
        return True

    def _is_worth_a_record(self, trigger: Trigger) -> bool:
        """Whether notes without work shall become a record although there is no batch."""
        draft, head = self._draft, self.head
        cursor = draft.cursor or head.cursor
        if draft.pages >= self._options.learned_pages_max:
            return cursor != head.cursor or draft.learned > 0
        return draft.learned > 0 and (passes(cursor) != passes(head.cursor) or (trigger.to_the_end and trigger.is_idle))

    async def _append(self, admission: Admission) -> Record | None:
        """Write the record; returns it if it has work."""
        draft, head = self._draft, self.head
        record = self._unsettled = Record(
            seq=head.seq + 1,
            writer=self._state.writer,
            cursor=draft.cursor or head.cursor,
            items=tuple(admission.items),
            carry=tuple(admission.carry),
            known=tuple(draft.known.values()),
            gone=tuple(draft.gone.items()),
            files=head.files + sum(item.start == 0 for item in admission.items),
            bytes=head.bytes + admission.bytes,
        )
        await self.settle()
        return record if record.items else None


# --- verdicts on changes ----------------------------------------------------------------------------------------------

# ``work``: read it. ``known``: remember the version, read nothing. ``gone``: remember that it is no longer there.
Verdict = Literal["work", "known", "gone"]


def judge(change: Change, overwrites: Overwrites, before: SourceFile | None) -> Verdict:
    """The verdict on a change; ``before`` is the known version, if there is one.

    Empty objects and directory markers have no records. If an empty object is filled later, its bytes are new under
    every ``overwrites``, unless an earlier version had records. A file whose key was gone is a new one (``kind_of``).
    Raises ``ObjectChanged`` under ``fail``.
    """
    if change.kind == "gone":
        return "gone"
    if change.kind == "returned":
        return "known"
    if change.kind == "overwritten" and (before is None or had_records(before)):
        if overwrites == "fail":
            raise _overwritten(change.file, before)
        if overwrites == "ignore":
            return "known"
    return "work" if has_records(change.file) else "known"


def has_records(file: SourceFile) -> bool:
    """Whether a file may have records. Spark returns no row for an empty file either, not even in ``binaryFile``."""
    return not file.key.endswith("/") and file.size > 0


def had_records(before: SourceFile) -> bool:
    """Whether a known file had records, in the known version or in an earlier one."""
    return before.size == EMPTIED_BYTES or has_records(before)


def to_remember(change: Change, before: SourceFile | None) -> Change:
    """A change without work, in the form to remember: an empty version keeps whether an earlier one had records."""
    if change.file.size > 0:
        return change
    is_emptied = change.kind == "overwritten" and before is not None and had_records(before)
    return replace(change, file=replace(change.file, size=EMPTIED_BYTES if is_emptied else 0))


def _overwritten(file: SourceFile, before: SourceFile | None) -> ObjectChanged:
    was = None if before is None else before.etag
    return VersionPin(was, path=file.key, operation="plan_batch").changed(
        file.etag,
        f"the object was overwritten after it had been planned (ETag {was!r}, now {file.etag!r}), and overwrites=fail."
        " Put the old one back, or choose overwrites=reread (its records come again) or ignore",
    )


# --- the draft --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Draft:
    """The notes of the next record besides its work, and the rest of the page that was listed last.

    ``cursor`` is the position after the last taken change; ``None``: the cursor of the state's head. ``rest`` are the
    changes of the page that still wait, ``rest_end`` is the cursor after all of them.

    A page is compared with the known files of the state, which does not contain the changes taken since its head.
    ``unrecorded`` are these changes by key; ``recorded`` are changes that became a record after the page was listed.
    """

    cursor: Cursor | None = None
    known: dict[str, SourceFile] = field(default_factory=dict)
    gone: dict[str, int] = field(default_factory=dict)
    pages: int = 0
    rest: deque[tuple[Change, Cursor]] = field(default_factory=deque)
    rest_end: Cursor | None = None
    rest_seconds: float = 0.0
    before: Mapping[str, KnownFile] = field(default_factory=dict)
    unrecorded: dict[str, Change] = field(default_factory=dict)
    recorded: dict[str, Change] = field(default_factory=dict)

    @property
    def learned(self) -> int:
        """The number of keys decided on without work."""
        return len(self.known) + len(self.gone)

    def take_page(self, page: FoundPage, before: Mapping[str, KnownFile], now_seconds: float) -> None:
        """Start a page that was listed just now."""
        self.rest, self.rest_end, self.rest_seconds = deque(page.changes), page.after, now_seconds
        self.before = before
        self.pages += 1
        if not self.rest:
            self.cursor = page.after

    def drop_rest(self) -> None:
        """Drop the rest of the page; it is listed again."""
        self.rest.clear()

    def advance(self) -> None:
        """Move past the first change of the rest."""
        _, after = self.rest.popleft()
        self.cursor = after if self.rest else self.rest_end

    def seen(self, key: str) -> Change | None:
        """A taken change of a key that the page was not compared with."""
        return self.unrecorded.get(key) or self.recorded.get(key)

    def note_known(self, change: Change) -> None:
        """Note a version that needs no work."""
        self.gone.pop(change.file.key, None)
        self.known[change.file.key] = change.file
        self.unrecorded[change.file.key] = change

    def note_gone(self, change: Change, now_ms: int) -> None:
        """Note a key that is no longer listed."""
        self.known.pop(change.file.key, None)
        self.gone[change.file.key] = now_ms
        self.unrecorded[change.file.key] = change

    def settled(self) -> None:
        """Start the next draft: this one has become a record."""
        self.recorded.update(self.unrecorded)
        self.unrecorded.clear()
        self.known.clear()
        self.gone.clear()
        self.pages = 0


def is_repeated(change: Change, seen: Change) -> bool:
    """Whether a change repeats a taken one: the page was compared before that one was taken."""
    if change.kind == "gone" or seen.kind == "gone":
        return change.kind == seen.kind
    return change.file.is_same_version(seen.file)


def passes(cursor: Cursor) -> int:
    """The number of times that a cursor has passed all keys; for a follower, its record."""
    match cursor:
        case TailAndSweep():
            return cursor.sweeps
        case Diff():
            return cursor.listings
        case Follow():
            return cursor.seq

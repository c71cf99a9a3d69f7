"""The draft of the next record, and the judgement of a change: work, or a note. Pure.

A draft is small and in memory; after a crash the planner finds its contents again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from aioprefetch.accessor.version_pin import VersionPin
from aioprefetch.errors import ObjectChanged
from aioprefetch.source.cursor import Cursor, Diff, Follow, TailAndSweep
from aioprefetch.source.feed import FoundPage
from aioprefetch.source.file_index import EMPTIED_BYTES, KnownFile
from aioprefetch.source.files import Change, SourceFile
from aioprefetch.source.options import Overwrites

# ``work``: read it. ``known``: remember the version, read nothing. ``gone``: remember that it is no longer there.
Verdict = Literal["work", "known", "gone"]


def judge(change: Change, overwrites: Overwrites, before: SourceFile | None) -> Verdict:
    """The verdict on a change; ``before`` is the known version, if there is one.

    Empty objects and directory markers have no records. If an empty object is filled later, its bytes are new under
    every ``overwrites``, unless an earlier version had records. A file whose key was gone is a new one
    (``comparison.kind_of``). Raises ``ObjectChanged`` under ``fail``.
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

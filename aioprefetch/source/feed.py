"""Where a source gets its changes from: a page at a time, from a cursor on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from aioprefetch.source.cursor import Cursor
from aioprefetch.source.files import Change

# Changes that wait longer than this are listed again: an old page plans versions that are there no more.
REST_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True)
class FoundPage:
    """Changes in the order in which they are to be taken, each with the cursor after it.

    Whoever takes only some of them goes on from the cursor of the last one taken; whoever takes all, from ``after``.
    ``requests`` is how many listing requests it cost. ``is_idle`` says that nothing more is to be found now: the tail
    is at its end and no sweep is under way, or its share of this trigger is used up.
    """

    changes: tuple[tuple[Change, Cursor], ...]
    after: Cursor
    requests: int
    is_idle: bool


class Feed(Protocol):
    """A lister, a follower of one, or a test's own. It keeps nothing that must survive: cursors do."""

    def first(self) -> Cursor:
        """The cursor of a source that has found nothing yet."""
        ...

    async def page(self, cursor: Cursor) -> FoundPage:
        """The next changes after ``cursor``; at most a page of the store, and one look-up of what is known.

        Failing requests are repeated with growing pauses; what is raised in the end leaves the cursor as it was.
        """
        ...

    def begin_trigger(self) -> None:
        """A new trigger: the sweep has its pages again."""
        ...

    def finish_by(self, modified_ms: int | None) -> None:
        """For a run that is to end: leave files that are younger, and be idle for good after one tail and one sweep.

        ``None`` goes back to listing for ever.
        """
        ...

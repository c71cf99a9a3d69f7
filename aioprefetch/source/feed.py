"""The protocol of a feed: it returns the changes of a source, one page at a time, from a cursor on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from aioprefetch.source.cursor import Cursor
from aioprefetch.source.files import Change

# Changes that wait longer than this are listed again: an old page names versions that no longer exist.
REST_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True)
class FoundPage:
    """Changes in the order in which they must be taken, each with the cursor after it.

    A caller that takes only some of them continues from the cursor of the last one taken; after taking all, from
    ``after``. ``requests`` counts the listing requests. ``is_idle`` means that there is no more to find now: the tail
    is at its end, and no sweep is in progress or its share of this trigger is used up.
    """

    changes: tuple[tuple[Change, Cursor], ...]
    after: Cursor
    requests: int
    is_idle: bool


class Feed(Protocol):
    """A lister, or a follower of another source. Only its cursors must survive a restart; it keeps no other state."""

    def first(self) -> Cursor:
        """The cursor of a new source."""
        ...

    async def page(self, cursor: Cursor) -> FoundPage:
        """The next changes after ``cursor``, from at most one page of the store and one lookup of known files.

        After an error the same cursor is still valid, and the next call waits for a pause that grows each time.
        """
        ...

    def begin_trigger(self) -> None:
        """Start a new trigger, with a new share of pages for the sweep."""
        ...

    def finish_by(self, modified_ms: int | None) -> None:
        """For a run that ends: leave younger files to a later one, and stay idle after one tail and one sweep.

        ``None`` returns to endless listing.
        """
        ...

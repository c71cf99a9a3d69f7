"""The choice of the feed: a lister, a lister for stores without an order, or a follower of another source."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from aioprefetch.errors import ConfigInvalid, StateConflict
from aioprefetch.operator.operator import Operator
from aioprefetch.source.cursor import Cursor, Diff, Follow, TailAndSweep
from aioprefetch.source.file_index import FileIndex
from aioprefetch.source.list import DiffLister, Follower, Selection, TailSweepLister
from aioprefetch.source.options import CleanSource, ListOptions
from aioprefetch.source.roots import canonical_root, store_path_below, would_be_read
from aioprefetch.source.state import SourceIdentity, SourceState

logger = logging.getLogger(__name__)

HIDDEN = "hidden_files"


@dataclass(frozen=True, slots=True)
class StateLocation:
    """The location of a state: a directory (``"a/b/"``, or ``""``) of a store."""

    operator: Operator
    directory: str = ""


async def open_followed(
    location: StateLocation, url: str, options: ListOptions, mode: CleanSource = "off"
) -> SourceState:
    """Open the state of the followed source for reading, for a follower over ``url``.

    ``NotFound`` if there is none, ``StateConflict`` if it lists another directory, or leaves out files (by its glob, or
    hidden ones) that the follower's ``options`` include, ``ConfigInvalid`` if the follower shall clean files.
    """
    if mode != "off":
        raise ConfigInvalid(
            f"clean_source={mode} does not go with attach_to: the source that is followed, and others that follow it,"
            " may not have read the file",
            operation="clean_source",
        )
    state = await SourceState.open(location.operator, location.directory, None, first=TailAndSweep(), writer=False)
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
            " the one that is to have only some of its files",
            operation="attach",
        )
    if options.hidden_files and other.options.get(HIDDEN) != _text(True):
        raise StateConflict(
            f"the source over {url} would never find hidden files: the one that it follows leaves out keys with a part"
            " that begins with _ or '.'. Follow one with hidden_files, or do without them",
            operation="attach",
        )
    if other.glob is None or other.glob == options.glob:
        return
    if options.glob is None:
        raise StateConflict(
            f"the source over {url} would never find what the one that it follows leaves out: that one lists"
            f" {other.glob!r} only. Give it the same glob, or a narrower one",
            operation="attach",
        )
    logger.warning(
        "the source over %s takes %r of what the one that it follows finds, which is %r: it sees files that both match",
        url,
        options.glob,
        other.glob,
    )


def check_state_place(operator: Operator, state_operator: Operator, directory: str, options: ListOptions) -> None:
    """``ConfigInvalid`` for a state within the source, which would read the objects of the state."""
    below = store_path_below(operator.info, state_operator.info, directory)
    selection = Selection("", options.glob, hidden_files=options.hidden_files)
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
    return operator.info.name.endswith("--x-s3") or not operator.capability.list_start_after


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
    return (DiffLister if is_unordered(operator) else TailSweepLister)(operator, "", options, index)

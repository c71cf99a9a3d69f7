"""A listing as an object: pages fetched on demand, filtered by a glob, to be left at any time; and removals of many."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from aioprefetch.accessor.list_pages import Paging
from aioprefetch.accessor.path_hints import path_hint
from aioprefetch.accessor.protocols import Accessor
from aioprefetch.errors import (
    Error,
    InOperation,
    InvalidArgument,
    InvalidPath,
    InvalidType,
    IsADirectory,
    NotFound,
    ProtocolError,
    copy_of,
)
from aioprefetch.plan.patterns import has_wildcard
from aioprefetch.ranges import at_least
from aioprefetch.runtime.closing import WITHOUT_AWAIT, AsyncClosing, refused
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.task_group import gather_all
from aioprefetch.services.keys import no_object
from aioprefetch.values import (
    AbortUploadRequest,
    DeleteRequest,
    Entry,
    ListRequest,
    ListUploadsRequest,
    StatRequest,
    Upload,
)
from aioprefetch.verbs.arguments import Arguments, checked_path
from aioprefetch.verbs.requests import ObjectName

# Directories that are looked at side by side.
_LOOKS_AT_ONCE = 64
OnPassedOver = Callable[[str, str], object]
# A name that a store without listings is asked for: its answer says that the store is there.
_PROBE = "aioprefetch-check"


class Pages:
    """The pages of one listing, each fetched on demand. After a failure the next call fetches the same page again.

    An entry that comes again is dropped and counted (``list_duplicates``); a listing that does not go on is a
    ``ProtocolError``: see ``Paging``. So is an entry outside of the prefix; these are counted too (``list_strangers``).
    ``has_marker`` is as in ``ListPage``, over all pages so far, and ``passed_over`` the last page's.
    """

    def __init__(self, accessor: Callable[[], Accessor], runtime: Callable[[], Runtime], request: ListRequest) -> None:
        self._accessor = accessor
        self._runtime = runtime
        self._paging = Paging(request)
        self.has_marker: bool | None = None
        self.passed_over: tuple[tuple[str, str], ...] = ()

    @property
    def finished(self) -> bool:
        """Whether the last page was fetched."""
        return self._paging.request is None

    async def next(self, entries_max: int | None = None) -> list[Entry]:
        """The entries of the next page, which may be empty. A store may send more than ``entries_max``."""
        request = self._paging.request
        assert request is not None
        if entries_max is not None:
            request = replace(request, page_entries_max=entries_max)
        try:
            page = await self._accessor().list_page(request)
        except ProtocolError as error:
            # The service alone knows which keys it asked for: below a root they are others than the caller's.
            strangers = error.context.get("strangers")
            if isinstance(strangers, int):
                self._runtime().counters["list_strangers"] += strangers
            raise
        fresh = self._paging.turn(page.entries, page.next_token, page.left_out)
        if len(fresh) < len(page.entries):
            self._runtime().counters["list_duplicates"] += len(page.entries) - len(fresh)
        self.has_marker = self.has_marker or page.has_marker
        self.passed_over = page.passed_over
        return fresh


class EntryList(list[Entry]):
    """A list of entries, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        from aioprefetch.display.tables import entries_html

        return entries_html("Entries", self)


def listing_html(entries: Iterable[Entry], *, is_over: bool) -> str:
    """A listing in progress as HTML: the entries that have arrived and were not taken yet."""
    from aioprefetch.display.tables import entries_html

    ready = list(entries)
    state = "the listing is over" if is_over else "collect() has all entries that are left, as a table"
    return entries_html("Listing: entries that are ready", ready, f"{len(ready):,} ready; {state}")


class Lister(AsyncClosing):
    """``async for entry in operator.list(...)``. One page is held at a time; nothing is sent before the first entry.

    ``Pages`` says what a faulty store leads to. Leaving early needs no closing; ``aclose`` and ``async with`` make it
    explicit.

    A prefix with ``*`` or ``://`` in it is taken as it stands, since keys may hold these. If no entry begins with it,
    it was meant as a pattern or as a URL, and the listing ends with ``InvalidArgument``, unless ``is_literal``.

    It is over after ``limit`` entries, and asks the store for no more of them where every entry counts.

    ``on_passed_over`` gets the path and the reason of what is there and is not listed: symbolic links and other files
    that are not regular. With a glob the matching ones, and with ``recursive`` all: matches may lie below them.
    """

    def __init__(
        self,
        accessor: Callable[[], Accessor],
        runtime: Callable[[], Runtime],
        request: ListRequest,
        glob: re.Pattern[str] | None = None,
        *,
        limit: int | None = None,
        is_literal: bool = False,
    ) -> None:
        self._accessor = accessor
        self._left = math.inf if limit is None else at_least(0, limit, "limit", operation="list", path=request.path)
        self._pages = Pages(accessor, runtime, request)
        self._glob = glob
        scheme, separator, _ = request.path.partition("://")
        is_doubtful = has_wildcard(request.path) or (bool(separator) and scheme.isalnum())
        self._doubtful_prefix = request.path if is_doubtful and not is_literal else ""
        self._entries: deque[Entry] = deque()
        self._closed = False
        self._is_recursive = request.recursive
        self.on_passed_over: OnPassedOver = lambda path, why: None

    @property
    def has_marker(self) -> bool | None:
        """As in ``ListPage``, over all pages so far."""
        return self._pages.has_marker

    def __aiter__(self) -> Lister:
        return self

    if not TYPE_CHECKING:
        _WAYS = f"write 'async for entry in op.list(...)' or 'await op.list(...).collect()'; {WITHOUT_AWAIT}"
        __iter__, __await__ = refused("for", _WAYS), refused("await", _WAYS)

    async def __anext__(self) -> Entry:
        while True:
            while self._entries and self._left:
                self._doubtful_prefix = ""
                entry = self._entries.popleft()
                if self._glob is None or self._glob.fullmatch(entry.path):
                    self._left -= 1
                    return entry
            if self._pages.finished and self._doubtful_prefix:
                prefix, self._doubtful_prefix = self._doubtful_prefix, ""
                raise self._nothing_found(prefix)
            if self._closed or self._pages.finished or not self._left:
                raise StopAsyncIteration
            entries_max = None if self._left == math.inf or self._glob is not None else int(self._left)
            self._entries.extend(await self._pages.next(entries_max))
            for path, why in self._pages.passed_over:
                if self._glob is None or self._is_recursive or self._glob.fullmatch(path):
                    self.on_passed_over(path, why)

    def _nothing_found(self, prefix: str) -> InvalidArgument:
        if has_wildcard(prefix):
            message = (
                "nothing begins with this prefix, in which *, ? and [ stand for themselves; a pattern is given as "
                f"glob={prefix!r}, with the prefix that it begins with"
            )
        else:
            message = f"nothing begins with this prefix: {path_hint(prefix, self._accessor().info)}"
        return InvalidArgument(message, operation="list", path=prefix)

    def _repr_html_(self) -> str:
        return listing_html(self._entries, is_over=self._closed or (self._pages.finished and not self._entries))

    async def collect(self) -> list[Entry]:
        """All entries that are left, in one list, which has to fit into memory. The listing is over then.

        If it fails or is cancelled no entry is returned, and the listing is over too.
        """
        async with self:
            return EntryList([entry async for entry in self])

    async def aclose(self) -> None:
        """End the listing."""
        self._closed = True
        self._doubtful_prefix = ""
        self._entries.clear()


class Listed(Protocol):
    """The part of an operator that a listing needs."""

    def accessor(self) -> Accessor:
        """The live stack on the running loop."""

    def runtime(self) -> Runtime:
        """The runtime of the running loop."""


def list_literally(operator: Listed, prefix: str, *, recursive: bool = False, start_after: str | None = None) -> Lister:
    """List like ``Operator.list``, but a prefix without entries is never an error, even if it looks like a pattern."""
    path = checked_path(prefix, "list", dots_allowed=True)
    request = ListRequest(path=path, recursive=recursive, start_after=start_after)
    return Lister(operator.accessor, operator.runtime, request, is_literal=True)


async def check_store(accessor: Accessor) -> None:
    """Ask a store for one entry, or for an object that need not be there if it cannot list; raises what is wrong."""
    with InOperation("check"):
        if accessor.capability.list:
            await accessor.list_page(ListRequest(path="", page_entries_max=1))
        else:
            with suppress(NotFound):
                await accessor.stat(StatRequest(path=_PROBE))


# --- removals ---------------------------------------------------------------------------------------------------------

# Paths are sent in batches of this many; the layers cut them to the maximum of the service.
DELETE_PATHS = 1000


async def delete_object(accessor: Accessor, path: str, version: object = None, if_match: object = None) -> None:
    """Delete one object. With ``if_match`` it is looked at first: not every store has the condition for a deletion."""
    arguments = Arguments("delete", path)
    etag = arguments.etag("if_match", if_match)
    chosen = arguments.version(version)
    if etag is not None:
        with InOperation("delete"):
            await accessor.stat(StatRequest(path=path, if_match=etag, version=chosen))
    native = {path: etag} if etag is not None and chosen is None and accessor.capability.delete_if_match else None
    await accessor.delete(DeleteRequest(path=path, paths=(path,), versions=(chosen,), if_match=native))


class Removal:
    """Deletes paths batch by batch, all that can be deleted; ``check`` names the ones left.

    A path that is refused leaves the others of its batch. A request that fails as a whole does not end it, for another
    one may reach the store, or be allowed. It ``is_over`` after two in a row that the store did not answer: the rest is
    left, and named with the error of the second. ``failures`` are the kinds of errors by path.
    """

    def __init__(self, accessor: Accessor, if_match: Mapping[str, str] | None = None) -> None:
        self._accessor = accessor
        self._conditions = if_match if if_match and accessor.capability.delete_if_match else None
        self.is_over = False
        self._first: Error | None = None
        self.failures: dict[ObjectName, str] = {}
        self._count = 0
        self._unanswered = ""  # The kind of the error of the last request, if the store did not answer it.

    async def remove(self, names: Sequence[ObjectName]) -> None:
        """Delete a batch."""
        self._count += len(names)
        while names and not self.is_over:
            pairs = [(name, None) if isinstance(name, str) else name for name in names]
            paths, versions = zip(*pairs, strict=True)
            try:
                for path in paths:
                    if not checked_path(path, "delete", dots_allowed=True):
                        raise no_object(path, "delete")
                request = DeleteRequest(path=paths[0], paths=paths, versions=versions, if_match=self._conditions)
                await self._accessor.delete(request)
            except Error as error:
                named = error.context.get("failures")
                is_refused = isinstance(error, InvalidPath | IsADirectory) and error.path in paths
                refused = [name for name, pair in zip(names, pairs, strict=True) if pair[0] == error.path]
                left = refused if is_refused and not named else names
                self._first = self._first or copy_of(error)
                self.failures |= named if isinstance(named, Mapping) else dict.fromkeys(left, error.kind)
                is_unanswered = named is None and error.status != "permanent"
                self.is_over = bool(is_unanswered and self._unanswered)
                self._unanswered = error.kind if is_unanswered else ""
                names = [name for name in names if name not in left]
            else:
                self._unanswered, names = "", ()
        self.failures |= dict.fromkeys(names, self._unanswered)

    def check(self) -> None:
        """Raise the first error, whose context has ``failures``: each path that is left, and why."""
        first = self._first
        if first is None:
            return
        first.context |= {"failed": len(self.failures), "of": self._count, "failures": self.failures}
        try:
            raise first
        finally:
            del first  # Its traceback holds this frame.


async def delete_paths(
    accessor: Accessor, paths: Iterable[ObjectName], if_match: Mapping[str, str] | None = None
) -> None:
    """Delete objects, all that can be deleted; see ``Removal``. ``InvalidType`` for another value: none is.

    ``if_match`` has ETags by path, for a store that takes such conditions.
    """
    if not isinstance(paths, Iterable) or isinstance(paths, bytes | bytearray | Mapping):
        raise InvalidType(f"a path or an iterable of paths is needed, not {type(paths).__name__}", operation="delete")
    removal, named = Removal(accessor, if_match), [_checked_name(each) for each in paths]
    for start in range(0, len(named), DELETE_PATHS):
        await removal.remove(named[start : start + DELETE_PATHS])
    removal.check()


def _checked_name(name: Any) -> ObjectName:
    """A path, or a path with a version of it. Paths themselves are checked later, each for itself."""
    path, version = name if isinstance(name, tuple) and len(name) == 2 else (name, None)
    with suppress(InvalidPath):
        checked_path(path, "delete")
    version = Arguments("delete", path).version(version)
    return path if version is None else (path, version)


async def delete_below(operator: Listed, prefix: str, *, keeps_directory: bool = False) -> None:
    """Delete every object below a directory, and the directory: all that can be deleted, as by ``delete_paths``.

    The root stays, and with ``keeps_directory`` every directory; then the directories in it are deleted. Nothing is
    sent for a directory that the listing tells to be missing.
    """
    removal, inner = Removal(operator.accessor()), set[str]()
    count, before = 0, math.inf
    # Where objects are deleted while the listing goes on, it may leave some out, as where its tokens are offsets. So
    # there is another look, as long as each of them finds less.
    while count < before:
        paths, before, count = list[str](), count or before, 0
        listing = list_literally(operator, prefix, recursive=True)
        async for entry in listing:
            if entry.path in removal.failures:
                continue
            paths.append(entry.path)
            inner.add(entry.path[: entry.path.find("/", len(prefix)) + 1])
            if len(paths) == DELETE_PATHS:
                await removal.remove(paths)
                paths, count = [], count + DELETE_PATHS
                if removal.is_over:
                    break
        await removal.remove(paths)
        if not count or removal.is_over:
            break
        count += len(paths)
    # By themselves and last: some stores refuse to delete a directory together with its contents.
    if keeps_directory or not prefix:
        await removal.remove(sorted(inner - {""}))
    elif listing.has_marker is not False:
        await removal.remove([prefix])
    removal.check()


async def has_bytes(accessor: Accessor, path: str) -> bool:
    """Whether an object with bytes has a path that ends with ``/``. It is asked for itself, not for a listing of it."""
    try:
        return bool((await accessor.stat(StatRequest(path=path, if_match="*"))).size)
    except (NotFound, InvalidPath):
        return False


async def delete_empty(accessor: Accessor, directories: Iterable[str]) -> None:
    """Delete directories, the deepest first. What holds something stays, and so do objects with such a name.

    A listing may be too old to tell an object with bytes from an empty one, which stands for a directory: it is asked.
    """
    paths = sorted(directories, reverse=True)
    found = await gather_all((partial(has_bytes, accessor, path) for path in paths), at_once=_LOOKS_AT_ONCE)
    try:
        await delete_paths(accessor, [path for path, is_object in zip(paths, found, strict=True) if not is_object])
    except IsADirectory as error:
        if kinds_of(error) != {error.kind}:
            raise


def kinds_of(error: Error) -> set[str]:
    """The kinds of the failures of a deletion."""
    failures = error.context.get("failures")
    return {*failures.values()} if isinstance(failures, Mapping) else {error.kind}


async def abort_uploads(accessor: Accessor, runtime: Runtime, prefix: str, older_than_seconds: float | None) -> int:
    """Abort the uploads below a prefix that began so long ago; returns their number."""
    before = None if older_than_seconds is None else runtime.wall_now() - older_than_seconds
    aborted = 0
    with InOperation("abort_uploads"):
        async for upload in pending_uploads(accessor, prefix):
            if before is not None and (upload.started is None or upload.started.timestamp() > before):
                continue
            await accessor.abort_upload(AbortUploadRequest(path=upload.path, upload_id=upload.upload_id))
            aborted += 1
    return aborted


async def pending_uploads(accessor: Accessor, prefix: str) -> AsyncIterator[Upload]:
    """The uploads below a prefix that were neither completed nor aborted."""
    paging = Paging(ListUploadsRequest(path=prefix))
    while paging.request is not None:
        page = await accessor.list_uploads(paging.request)
        for upload in paging.turn(page.uploads, page.next_token):
            yield upload

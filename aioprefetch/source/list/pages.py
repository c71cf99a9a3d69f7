"""Pages of a listing: read ahead, narrowed to the keys of a source, and compared with the known files.

The tail lists keys above the frontier, where no file is known: each is new. The sweep merges a page with the known
files of the same range, both sorted by key. Keys are compared as Python compares text, by code points: this is the
order of their bytes in UTF-8, and therefore the order of S3.
"""

from __future__ import annotations

import asyncio
import os
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter, lt

from aioprefetch.errors import Error, ProtocolError
from aioprefetch.operator.operator import Operator
from aioprefetch.plan.merge import Merge
from aioprefetch.plan.patterns import alternatives, compile_glob, is_literal, literal_prefix
from aioprefetch.runtime.events import logger
from aioprefetch.runtime.supervisor import Work
from aioprefetch.source.values import Change, ChangeKind, Cursor, KnownFile, SourceFile, TailAndSweep, is_hidden
from aioprefetch.values import Entry, ListRequest
from aioprefetch.verbs.listing import Pages

_path = attrgetter("path")

# The path of a file below a directory that a glob matches.
_IN_DIRECTORY = r"(?:(?:/[^/=]+=[^/]+)*/[^/]+)?"


def file_of(entry: Entry) -> SourceFile:
    """The file of an entry in a listing. Its time is cut to milliseconds, as Java does it."""
    modified = entry.last_modified
    return SourceFile(
        entry.path,
        entry.size or 0,
        entry.etag,
        entry.version,
        None if modified is None else int(modified.timestamp() // 1) * 1000 + modified.microsecond // 1000,
    )


def _pattern(glob: str) -> re.Pattern[str]:
    files = compile_glob(glob)
    if is_literal(glob):
        return files
    return re.compile(f"(?:{files.pattern}){_IN_DIRECTORY}", re.DOTALL)


class Selection:
    """Selects the files of a source. Its ``prefix`` is the longest that covers all of them.

    ``glob`` is of whole paths below the root of the operator, with ``{a,b}`` for alternatives. As in Spark, a glob that
    matches a directory selects the files in it and in its ``name=value`` directories, but in no other directories.
    Hidden files (``is_hidden``) are selected only with ``hidden_files``.
    """

    def __init__(self, glob: str | None = None, *, hidden_files: bool = False) -> None:
        self._hidden_files = hidden_files
        globs = [] if glob is None else alternatives(glob)
        pattern = "|".join(f"(?:{_pattern(one).pattern})" for one in globs)
        self._pattern = None if glob is None else re.compile(pattern, re.DOTALL)
        self.prefix = os.path.commonprefix([*map(literal_prefix, globs)])  # noqa: RUF071 - of characters

    def takes(self, path: str) -> bool:
        """Whether a path is a file of the source: it matches, and is not a directory or a directory marker."""
        if path.endswith("/") or (is_hidden(path) and not self._hidden_files):
            return False
        return self._pattern is None or self._pattern.fullmatch(path) is not None


# --- comparison -------------------------------------------------------------------------------------------------------

ChangeSteps = list[tuple[Change, Cursor]]


@dataclass(slots=True)
class Compared:
    """Changes with the cursor after each, and the cursor after all of them.

    ``old`` and ``young`` count the listed files. ``left`` are the young files that were skipped, in the order of keys.
    """

    changes: ChangeSteps
    after: TailAndSweep
    old: int = 0
    young: int = 0
    left: Sequence[SourceFile] = ()


def compare_tail(
    cursor: TailAndSweep,
    entries: Sequence[Entry],
    selection: Selection,
    until_ms: int | None = None,
    *,
    stops: bool = False,
) -> Compared:
    """Compare a page of keys above the frontier, none of them known. Files younger than ``until_ms`` are skipped.

    Only a later sweep finds skipped files. Without sweeps (``stops``) the page ends before the first of them.
    """
    changes: ChangeSteps = []
    high, sweep_key, sweeps, sweep_end = cursor.high_modified_ms, cursor.sweep_key, cursor.sweeps, cursor.sweep_end
    frontier = cursor.frontier
    left: list[SourceFile] = []
    for entry in entries:
        key = entry.path
        if not selection.takes(key):
            frontier = key
            continue
        file = file_of(entry)
        modified = file.modified_ms
        if modified is not None:
            if high is None or modified > high:
                high = modified
            if until_ms is not None and modified > until_ms:
                left.append(file)
                if stops:
                    break
                frontier = key
                continue
        frontier = key
        changes.append((Change("new", file), TailAndSweep(key, sweep_key, sweeps, high, sweep_end)))
    after = replace(cursor, frontier=frontier, high_modified_ms=high)
    return Compared(changes, after, len(changes), len(left), left)


def compare_sweep(
    cursor: TailAndSweep,
    entries: Sequence[Entry],
    known_files: Sequence[KnownFile],
    through: str,
    selection: Selection,
    until_ms: int | None = None,
) -> Compared:
    """Compare all entries and all known files with keys above ``cursor.sweep_key`` and up to ``through``.

    The sweep ends if ``through`` reaches its end.
    """
    entries, known_files, same = _without_same(entries, known_files)
    files = [file_of(entry) for entry in entries if selection.takes(entry.path)]
    listed = files if until_ms is None else [file for file in files if not is_young(file, until_ms)]
    times = [file.modified_ms for file in files if file.modified_ms is not None]
    high = cursor.high_modified_ms
    if times:
        high = max(times) if high is None else max(high, *times)
    cursor = replace(cursor, high_modified_ms=high)
    changes: ChangeSteps = []
    left: list[SourceFile] = []
    for change in compare(files, known_files):
        if until_ms is None or change.kind == "gone" or not is_young(change.file, until_ms):
            changes.append((change, replace(cursor, sweep_key=change.file.key)))
        else:
            left.append(change.file)
    if through >= cursor.sweep_end:
        after = replace(cursor, sweep_key=None, sweep_end="", sweeps=cursor.sweeps + 1)
    else:
        after = replace(cursor, sweep_key=through)
    return Compared(changes, after, same + len(listed), len(files) - len(listed), left)


def _without_same(
    entries: Sequence[Entry], known_files: Sequence[KnownFile]
) -> tuple[Sequence[Entry], Sequence[KnownFile], int]:
    """Both lists without the files whose ETag is unchanged, and the number of these files.

    They are nearly all of a sweep, so no further objects are made of them.
    """
    present = {
        before.file.key: before for before in known_files if before.gone_ms is None and before.file.etag is not None
    }
    rest = []
    for entry in entries:
        before = present.get(entry.path)
        if before is not None and entry.etag == before.file.etag and entry.version in (None, before.file.version):
            del present[entry.path]
        else:
            rest.append(entry)
    same = len(entries) - len(rest)
    if not same:
        return entries, known_files, 0
    left = [
        before
        for before in known_files
        if before.gone_ms is not None or before.file.etag is None or before.file.key in present
    ]
    return rest, left, same


def compare(files: Iterable[SourceFile], known_files: Sequence[KnownFile]) -> Iterator[Change]:
    """The changes from known files to listed files, both sorted, over the same range of keys."""
    unlisted: list[KnownFile] = []
    known, rest = Merge(attrgetter("file.key"), unlisted.append), iter(known_files)
    for file in files:
        while known.is_before(file.key):
            known.put(next(rest, None))
        yield from _gone(unlisted)
        kind = kind_of(file, known.find(file.key))
        if kind is not None:
            yield Change(kind, file)
    while not known.is_at_end:
        known.put(next(rest, None))
    yield from _gone(unlisted)


def _gone(unlisted: list[KnownFile]) -> list[Change]:
    changes = [Change("gone", before.file) for before in unlisted if before.gone_ms is None]
    unlisted.clear()
    return changes


def kind_of(file: SourceFile, before: KnownFile | None) -> ChangeKind | None:
    """The kind of change of a listed file; ``None`` if it is unchanged.

    A key that was gone and has another version now is ``new``: another file of the same name.
    """
    if before is None:
        return "new"
    if file.is_same_version(before.file):
        return None if before.gone_ms is None else "returned"
    return "overwritten" if before.gone_ms is None else "new"


def is_young(file: SourceFile, until_ms: int) -> bool:
    """Whether a file is younger than that time, in the store's clock. A file without a time is not."""
    return file.modified_ms is not None and file.modified_ms > until_ms


# --- pages read ahead -------------------------------------------------------------------------------------------------


class ReadAhead:
    """The pages of one listing. A background task keeps up to ``ahead_pages`` of them in memory.

    If a request of the background task fails, ``next`` repeats it and raises its error. ``cancel`` or ``aclose`` ends
    the task.
    """

    def __init__(self, operator: Operator, request: ListRequest, ahead_pages: int) -> None:
        self._operator = operator
        self._pages = Pages(operator.accessor, operator.runtime, request)
        self._ahead_pages = ahead_pages
        self._wanted = ahead_pages
        self._ready: deque[list[Entry]] = deque()
        self._lock = asyncio.Lock()
        self._work: Work | None = None
        self._ended = asyncio.Event()

    @property
    def finished(self) -> bool:
        """Whether ``next`` has returned the last page."""
        return self._pages.finished and not self._ready

    @property
    def is_running(self) -> bool:
        """Whether the background task is running."""
        return self._work is not None

    async def next(self) -> list[Entry]:
        """The next page, possibly without entries. Must not be called when ``finished``."""
        async with self._lock:  # A request in progress brings this page.
            return self._ready.popleft() if self._ready else await self._pages.next()

    def start(self, pages: int | None = None) -> None:
        """Read ahead in the background up to the limit, or up to ``pages`` if fewer will be used."""
        self._wanted = self._ahead_pages if pages is None else min(pages, self._ahead_pages)
        if self._work is None and not self._pages.finished and len(self._ready) < self._wanted:
            self._ended.clear()
            self._work = self._operator.runtime().supervisor.spawn(
                self._fill(), name="listing ahead", on_end=self._on_end
            )

    def cancel(self) -> None:
        """Cancel the background task, without waiting for its end."""
        if self._work is not None:
            self._work.cancel()

    async def aclose(self) -> None:
        """Cancel the background task and wait for its end."""
        if self._work is not None:
            self._work.cancel()
            await self._ended.wait()

    async def _fill(self) -> None:
        try:
            while True:
                async with self._lock:
                    if self._pages.finished or len(self._ready) >= self._wanted:
                        return
                    self._ready.append(await self._pages.next())
        except Error as error:
            logger.debug("listing ahead failed, and is tried again when the page is needed: %s", error)

    def _on_end(self) -> None:
        self._work = None
        self._ended.set()


# --- pages at a key ---------------------------------------------------------------------------------------------------

# Pages unused for this long are listed again, as they may be outdated.
UNUSED_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True)
class KeyPage:
    """All entries with keys above ``after`` and up to ``through``; in the last page, all above ``after``."""

    after: str
    entries: Sequence[Entry]
    through: str
    is_last: bool


class KeyPages:
    """One position in the keys below a prefix. It can be moved anywhere; continuing costs at most a request a page.

    The last page is kept, so that its untaken rest can be returned again, and further pages are read ahead. Raises
    ``ProtocolError`` for a store that does not list in the order of keys.
    """

    def __init__(self, operator: Operator, prefix: str, ahead_pages: int) -> None:
        self._operator = operator
        self._prefix = prefix
        self._ahead_pages = ahead_pages
        self._listing: ReadAhead | None = None
        self._position = ""
        self._held: KeyPage | None = None
        self._dropped: list[ReadAhead] = []
        self._used_at = 0.0

    def has_after(self, key: str) -> bool:
        """Whether the kept page has entries above ``key``."""
        page = self._held
        return page is not None and page.after <= key < page.through

    def is_at_end(self, key: str) -> bool:
        """Whether ``key`` lies in the last page of the listing, or above it."""
        page = self._held
        return page is not None and page.is_last and page.after <= key

    async def after(self, key: str, *, pages: int | None = None, end: str | None = None) -> KeyPage:
        """The page above ``key``, or the rest of the kept page.

        Further pages are read in the background if they will be used: at most ``pages``, and none if this page
        reaches the key ``end``.

        An error changes nothing; the next call starts a new listing after the same key, without the page token.
        """
        now = asyncio.get_running_loop().time()
        if now - self._used_at > UNUSED_SECONDS_MAX:
            self.drop()
        self._used_at = now
        if self.has_after(key) or self.is_at_end(key):
            return self._rest(key)
        listing = self._listing
        if listing is None or key != self._position or listing.finished:
            listing = self._begin(key)
        try:
            entries = await listing.next()
            self._check_order(key, entries)
        except Error:
            self.drop()
            raise
        page = KeyPage(key, entries, entries[-1].path if entries else key, listing.finished)
        self._position = page.through
        self._held = page if entries or page.is_last else None
        if not page.is_last and (end is None or page.through < end):
            listing.start(pages)
        return page

    def drop(self) -> None:
        """Drop the kept page and the pages read ahead."""
        self._held = None
        if self._listing is not None:
            self._listing.cancel()
            self._dropped.append(self._listing)
            self._listing = None

    async def aclose(self) -> None:
        """Drop all pages and wait for the end of the background task. The object may be used again."""
        self.drop()
        while self._dropped:
            await self._dropped[-1].aclose()
            self._dropped.pop()

    def _begin(self, key: str) -> ReadAhead:
        self.drop()
        self._dropped = [listing for listing in self._dropped if listing.is_running]
        self._position = key
        request = ListRequest(path=self._prefix, recursive=True, start_after=key or None)
        self._listing = ReadAhead(self._operator, request, self._ahead_pages)
        return self._listing

    def _rest(self, key: str) -> KeyPage:
        page = self._held
        assert page is not None
        position = bisect_right(page.entries, key, key=_path)
        return KeyPage(key, page.entries[position:], max(key, page.through), page.is_last)

    def _check_order(self, after: str, entries: Sequence[Entry]) -> None:
        """``ProtocolError`` if the order of a page is such that continuing after a key would miss files."""
        paths = list(map(_path, entries))
        if not paths or (paths[0] > after and all(map(lt, paths, paths[1:]))):
            return
        before, wrong = next((a, b) for a, b in zip([after, *paths], paths, strict=False) if b <= a)
        raise ProtocolError(
            f"the store does not list in the order of keys: {wrong!r} came after {before!r}. Where a service or a layer"
            " says so (list_ordered=False), it is listed in full each time, by DiffLister",
            operation="list",
            path=self._prefix,
            status="permanent",
        )

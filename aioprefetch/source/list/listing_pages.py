"""Pages of a listing: read ahead in the background, and addressed by the key that they follow."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter, lt

from aioprefetch.errors import Error, ProtocolError
from aioprefetch.operator.listing import Pages
from aioprefetch.operator.operator import Operator
from aioprefetch.runtime.events import logger
from aioprefetch.runtime.supervisor import Work
from aioprefetch.values import Entry, ListRequest


class ReadAhead:
    """The pages of one listing. A background task keeps up to ``ahead_pages`` of them in memory.

    ``on_request`` is called for each request. If a request of the background task fails, ``next`` repeats it and raises
    its error. ``cancel`` or ``aclose`` ends the task.
    """

    def __init__(
        self, operator: Operator, request: ListRequest, ahead_pages: int, on_request: Callable[[], None]
    ) -> None:
        self._operator = operator
        self._pages = Pages(operator.accessor, operator.runtime, request)
        self._ahead_pages = ahead_pages
        self._on_request = on_request
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
            return self._ready.popleft() if self._ready else await self._fetch()

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
                    self._ready.append(await self._fetch())
        except Error as error:
            logger.debug("listing ahead failed, and is tried again when the page is needed: %s", error)

    async def _fetch(self) -> list[Entry]:
        self._on_request()
        return await self._pages.next()

    def _on_end(self) -> None:
        self._work = None
        self._ended.set()


_path = attrgetter("path")

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

    def __init__(self, operator: Operator, prefix: str, ahead_pages: int, on_request: Callable[[], None]) -> None:
        self._operator = operator
        self._prefix = prefix
        self._ahead_pages = ahead_pages
        self._on_request = on_request
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

        Further pages are read in the background as far as they will be used: at most ``pages``, and none if this page
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
        self._listing = ReadAhead(self._operator, request, self._ahead_pages, self._on_request)
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
            f"the store does not list in the order of keys: {wrong!r} came after {before!r}. Such a store is listed in"
            " full each time, by DiffLister",
            operation="list",
            path=self._prefix,
            status="permanent",
        )

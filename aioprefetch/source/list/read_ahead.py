"""The pages of one listing, some of them fetched before they are asked for."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from aioprefetch.errors import Error
from aioprefetch.operator.listing import Pages
from aioprefetch.operator.operator import Operator
from aioprefetch.runtime.events import logger
from aioprefetch.runtime.supervisor import Work
from aioprefetch.values import Entry, ListRequest


class ReadAhead:
    """Up to ``ahead_pages`` pages wait in memory, fetched by a background task that ends when there are enough.

    ``on_request`` is called for each request. One that failed in the background is sent again by ``next``, which
    raises what comes of it. ``cancel`` or ``aclose`` ends the task.
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
        """Whether the last page was given out."""
        return self._pages.finished and not self._ready

    @property
    def is_running(self) -> bool:
        """Whether the background task is there."""
        return self._work is not None

    async def next(self) -> list[Entry]:
        """The next page, perhaps without entries. Not to be called when ``finished``."""
        async with self._lock:  # A request that is under way brings this very page.
            return self._ready.popleft() if self._ready else await self._fetch()

    def start(self, pages: int | None = None) -> None:
        """Fetch ahead in the background, unless enough is there; no more than so many ``pages`` are of use."""
        self._wanted = self._ahead_pages if pages is None else min(pages, self._ahead_pages)
        if self._work is None and not self._pages.finished and len(self._ready) < self._wanted:
            self._ended.clear()
            self._work = self._operator.runtime().supervisor.spawn(
                self._fill(), name="listing ahead", on_end=self._on_end
            )

    def cancel(self) -> None:
        """End the background task as soon as it waits for something."""
        if self._work is not None:
            self._work.cancel()

    async def aclose(self) -> None:
        """End the background task and wait until it has ended."""
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

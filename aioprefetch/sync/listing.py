"""A listing for code without an event loop: its entries cross from the loop thread in batches."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable
from types import TracebackType
from typing import Protocol, Self

from aioprefetch.operator.listing import EntryList, listing_html
from aioprefetch.sync.loop_thread import loop_thread
from aioprefetch.values import Entry

CLOSE_SECONDS_MAX = 5.0

# A page of S3 has 1000 entries. A batch ends after this time with the entries that it has, so that a sparse listing (a
# glob that matches few names) still shows its entries.
BATCH_ENTRIES_MAX = 1000
BATCH_SECONDS_MAX = 0.2


class AsyncListing(Protocol):
    """The listing of ``Operator.list``."""

    def __anext__(self) -> Awaitable[Entry]:
        """The next entry."""

    async def aclose(self) -> None:
        """End the listing."""


class BlockingListing:
    """The entries of a listing, one after the other. Leave it early with ``close`` or ``with``."""

    def __init__(self, listing: AsyncListing) -> None:
        self._listing = listing
        self._thread = loop_thread()
        self._ready: deque[Entry] = deque()
        self._ended = False
        self._error: Exception | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Entry:
        if not self._ready and self._error is None and not self._ended:
            self._thread.run(self._fill())
        if self._ready:
            return self._ready.popleft()
        error, self._error = self._error, None
        raise error or StopIteration

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._ended:
            self._thread.finish(self._listing.aclose, timeout_seconds=0)

    def _repr_html_(self) -> str:
        return listing_html(self._ready, is_over=self._ended and not self._ready)

    def collect(self) -> list[Entry]:
        """All entries that are left, as one list."""
        return EntryList(self)

    def close(self) -> None:
        """End the iteration and drop the entries that are ready. May be called twice."""
        self._ready.clear()
        if not self._ended:
            self._ended = True
            self._thread.finish(self._listing.aclose, timeout_seconds=CLOSE_SECONDS_MAX)

    async def _fill(self) -> None:
        """The next batch. Entries before an error are delivered before the error is raised."""
        loop = asyncio.get_running_loop()
        enough = loop.time() + BATCH_SECONDS_MAX
        while len(self._ready) < BATCH_ENTRIES_MAX:
            try:
                self._ready.append(await self._listing.__anext__())
            except StopAsyncIteration:
                self._ended = True
                return
            except Exception as error:
                self._error = error
                return
            if loop.time() >= enough:
                return

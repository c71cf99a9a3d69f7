"""The result of a get: what describes the object, and its body, fetched as it is taken."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator
from datetime import UTC, datetime
from typing import TypeVar

from obspec import Attributes, ObjectMeta

from aioprefetch.accessor.http_headers import quote_etag, unquote_etag
from aioprefetch.errors import InvalidArgument
from aioprefetch.obspec.failures import translated
from aioprefetch.operator.operator import Operator
from aioprefetch.ranges import Range
from aioprefetch.runtime.buffers import Lease
from aioprefetch.scheduler.pinned_file import PinnedFile, read_ahead
from aioprefetch.sync.loop_thread import loop_thread
from aioprefetch.values import Entry, Metadata, ReadHead

T = TypeVar("T")

CLOSE_SECONDS_MAX = 5.0
# Larger chunks are reserved in the budget, and have this size where it has no room: nothing waits for memory here, for
# the results that hold it may be those of the same caller.
UNRESERVED_BYTES = 1 << 20
# The store may send no time, which obspec demands.
_NO_TIME = datetime(1970, 1, 1, tzinfo=UTC)


class ReadResult:
    """A part of one version of an object, as obspec's ``GetResult`` and ``GetResultAsync``.

    ``first`` are its first bytes, in memory that ``lease`` reserves until they are taken. The rest is fetched by
    ``buffer`` in parallel, or chunk by chunk when it is iterated; an object that changes meanwhile is
    ``ObjectChanged``. A body is taken once.
    """

    def __init__(
        self,
        operator: Operator,
        meta: ObjectMeta,
        attributes: Attributes,
        wanted: Range,
        first: memoryview,
        *,
        chunk_bytes: int,
        lease: Lease | None = None,
    ) -> None:
        self._operator = operator
        self._meta = meta
        self._attributes = attributes
        self._wanted = wanted
        self._first: memoryview | None = first
        self._chunk_bytes = chunk_bytes
        self._lease = lease

    @property
    def meta(self) -> ObjectMeta:
        """Path, size, time, ETag and version of the object."""
        return self._meta

    @property
    def attributes(self) -> Attributes:
        """The content type and encoding, as far as the store has sent them; of a ``head`` all."""
        return self._attributes

    @property
    def range(self) -> tuple[int, int]:
        """The range of the body: ``(start, end)``."""
        return self._wanted

    def __repr__(self) -> str:
        return f"<ReadResult {self._meta['path']!r} {self._wanted} of {self._meta['size']} bytes>"

    async def buffer_async(self) -> memoryview:
        """The whole body, read-only. Its memory is the caller's, and not reserved."""
        (first, lease), (start, end) = self._taken(), self._wanted
        if len(first) == end - start:
            return first
        whole = bytearray(end - start)
        target = memoryview(whole)
        target[: len(first)] = first
        position = start + len(first)
        del first, lease
        await translated(self._fill(position, target[position - start :]))
        return target.toreadonly()

    async def _fill(self, position: int, target: memoryview) -> None:
        """Fill ``target`` with the bytes from ``position`` on."""
        operator, file = self._operator, self._file()
        if not file.pin.is_strong:  # One response is one version.
            await file.read_into(position, target)
            return
        await operator.read_into(file.path, position, target, if_match=file.etag, version=file.version)

    def buffer(self) -> memoryview:
        """The whole body, read-only. Blocks."""
        return loop_thread().run(self.buffer_async())

    async def __aiter__(self) -> AsyncGenerator[memoryview, None]:
        (first, lease), (start, end) = self._taken(), self._wanted
        chunk_bytes, ahead = self._chunk_bytes, None
        if len(first) < end - start and chunk_bytes > UNRESERVED_BYTES:
            taken_bytes = 0 if lease is None else lease.charged_bytes
            ahead = self._operator.runtime().budget.lease(2 * chunk_bytes - taken_bytes)  # One is in use.
            if ahead is None:
                chunk_bytes = UNRESERVED_BYTES
        chunks = read_ahead(self._file(), first, start, end, chunk_bytes=chunk_bytes)
        del first
        async with contextlib.aclosing(chunks):
            async for chunk in chunks:
                yield chunk

    def __iter__(self) -> Iterator[memoryview]:
        return blocking(self.__aiter__())

    def _taken(self) -> tuple[memoryview, Lease | None]:
        first, self._first = self._first, None
        lease, self._lease = self._lease, None
        if first is None:
            raise InvalidArgument(
                "the body was taken already: get the object again", operation="read", path=self._meta["path"]
            )
        return first, lease

    def _file(self) -> PinnedFile:
        operator, meta = self._operator, self._meta
        return PinnedFile(
            operator.accessor(),
            operator.runtime(),
            meta["path"],
            size=meta["size"],
            etag=unquote_etag(meta["e_tag"]),
            version=meta["version"],
        )


def blocking(items: AsyncGenerator[T, None]) -> Iterator[T]:
    """The items of an asynchronous generator of ours for code without a loop, each fetched when it is taken."""
    thread = loop_thread()

    async def step() -> T | None:
        return await anext(items, None)

    try:
        while (item := thread.run(step())) is not None:
            yield item
    finally:
        thread.finish(items.aclose, timeout_seconds=CLOSE_SECONDS_MAX)


def meta_of(found: Metadata | Entry, path: str) -> ObjectMeta:
    """The metadata of an object in obspec's form."""
    return _meta(path, found.size or 0, found.last_modified, found.etag, found.version)


def meta_of_head(head: ReadHead, total: int, path: str) -> ObjectMeta:
    """The metadata in the head of a response."""
    return _meta(path, total, head.last_modified, head.etag, head.version)


def _meta(path: str, size: int, modified: datetime | None, etag: str | None, version: str | None) -> ObjectMeta:
    return ObjectMeta(
        path=path,
        last_modified=modified or _NO_TIME,
        size=size,
        e_tag=None if etag is None else quote_etag(etag),
        version=version,
    )

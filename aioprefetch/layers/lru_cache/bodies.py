"""What a read gets from the layer: a part of an object in memory, of a fill, or of a response that had begun."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.write_body import ReadBody
from aioprefetch.errors import ConditionNotMatch, ObjectChanged, TimedOut, Unavailable
from aioprefetch.layers.lru_cache.fill import Fill
from aioprefetch.layers.lru_cache.reservation import Reservation
from aioprefetch.values import ReadHead, ReadRequest

T = TypeVar("T")

CHUNK_BYTES = 1 << 20


class HeldBody:
    """A body out of memory that was reserved for it."""

    def __init__(self, head: ReadHead, data: bytes | bytearray, reservation: Reservation | None) -> None:
        self.head = head
        self._view = memoryview(data).toreadonly()
        self._reservation = reservation

    async def read_chunk(self) -> memoryview:
        chunk, self._view = self._view[:CHUNK_BYTES], self._view[CHUNK_BYTES:]
        return chunk

    async def aclose(self) -> None:
        self._view = memoryview(b"")
        if self._reservation is not None:
            self._reservation.release()


class FillBody:
    """A part of an object that is read as a stream while the fill runs. Its chunks are views of the fill's memory."""

    def __init__(self, fill: Fill, head: ReadHead, *, deadline: float | None) -> None:
        self.head = head
        self._fill = fill
        self._deadline = deadline
        self._position = head.start
        self._is_open = True

    async def read_chunk(self) -> memoryview | bytes:
        if self._position >= self.head.end or not self._is_open:
            return b""
        await self._fill.wait_until(self._position + 1, deadline=self._deadline)
        end = min(self._fill.received, self.head.end, self._position + CHUNK_BYTES)
        chunk = memoryview(self._fill.buffer)[self._position : end].toreadonly()
        self._position = end
        return chunk

    async def aclose(self) -> None:
        if self._is_open:
            self._is_open = False
            self._fill.leave(served=self._position >= self.head.end)


class BegunBody:
    """A part of an object that is not cached, out of the response with its beginning; one more request brings the rest.

    ``head`` is that of the part. What comes before it is read and thrown away.
    """

    def __init__(self, inner: Accessor, request: ReadRequest, begun: ReadBody, head: ReadHead) -> None:
        self.head = head
        self._inner = inner
        self._request = request
        self._body = begun
        self._body_end = begun.head.end
        self._at = begun.head.start
        self._is_open = True

    async def read_chunk(self) -> memoryview | bytes:
        while self._is_open and self._at < self.head.end:
            if self._at >= self._body_end:
                await self._within_deadline(self._open_rest())
            chunk = memoryview(await self._within_deadline(self._body.read_chunk()))
            if not chunk:
                raise Unavailable(
                    f"the body ended after {self._at} of {self._body_end} bytes",
                    operation="read",
                    path=self._request.path,
                )
            start, self._at = self._at, self._at + len(chunk)
            wanted = chunk[max(0, self.head.start - start) : self.head.end - start]
            if wanted:
                return wanted
        return b""

    async def aclose(self) -> None:
        self._is_open = False
        await self._body.aclose()

    async def _open_rest(self) -> None:
        await self._body.aclose()
        head = self.head
        rest = self._request.resume(head, self._at - head.start)
        try:
            self._body = await self._inner.open_read(rest)
        except ConditionNotMatch as error:
            raise self._changed(error.context.get("etag")) from error
        if (self._body.head.etag, self._body.head.start) != (head.etag, self._at):
            raise self._changed(self._body.head.etag)
        self._body_end = self._body.head.end

    def _changed(self, etag: object) -> ObjectChanged:
        return ObjectChanged(
            "the object was overwritten while it was read",
            expected_etag=self.head.etag,
            actual_etag=None if etag is None else str(etag),
            operation="read",
            path=self._request.path,
        )

    async def _within_deadline(self, response: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout_at(self._request.deadline):
                return await response
        except TimeoutError:
            raise TimedOut(
                "the object did not arrive before the deadline", operation="read", path=self._request.path
            ) from None

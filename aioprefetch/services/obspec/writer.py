"""Writing an object piece by piece: one put where it is small, an upload that draws its parts where it is not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from aioprefetch.errors import Closed, Error, ProtocolError, copy_of
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.supervisor import Work
from aioprefetch.values import Metadata, WriteRequest

PARTS_AT_ONCE = 4

PutWhole = Callable[[WriteRequest, bytes], Awaitable[Metadata]]
PutParts = Callable[[WriteRequest, "Parts"], Awaitable[Metadata]]


class Abandoned(Exception):
    """Raised in the upload in place of its next part when the write is given up."""


class Parts:
    """The parts of an upload, handed over one at a time: the writer waits until the store has taken the last one."""

    def __init__(self) -> None:
        self.sent_bytes = 0
        self._part: bytes | None = None
        self.ended = False
        self._abandoned = False
        self._changed = asyncio.Event()

    def __aiter__(self) -> Parts:
        return self

    async def __anext__(self) -> bytes:
        while self._part is None and not self.ended and not self._abandoned:
            await self._wait()
        if self._abandoned:
            raise Abandoned("the write was given up")
        part, self._part = self._part, None
        self._announce()
        if part is None:
            raise StopAsyncIteration
        self.sent_bytes += len(part)
        return part

    async def put(self, part: bytes) -> None:
        """Hand over a part; returns at once if the upload has ended."""
        while self._part is not None and not self._abandoned:
            await self._wait()
        self._part = part
        self._announce()

    def end(self) -> None:
        """There are no more parts."""
        self.ended = True
        self._announce()

    def abandon(self) -> None:
        """End the hand-over of parts, on both sides."""
        self._abandoned = True
        self._announce()

    async def _wait(self) -> None:
        changed = self._changed
        await changed.wait()

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class ObspecWriteBody:
    """Collects one part; from the second on a task of the runtime's uploads them as they come.

    An object of at most one part, and every object with a condition, is a single put at ``close``: obspec has no
    condition on uploads in parts, so such an object is held in memory. After a failed or cancelled call ``abort`` ends
    the upload; the store may keep its parts then.
    """

    def __init__(
        self, runtime: Runtime, request: WriteRequest, part_bytes: int, put_whole: PutWhole, put_parts: PutParts
    ) -> None:
        self._runtime = runtime
        self._request = request
        self._part_bytes = part_bytes
        self._put_whole = put_whole
        self._put_parts = put_parts
        self._whole = request.if_not_exists or request.if_match is not None
        self._buffer = bytearray()
        self._parts: Parts | None = None
        self._work: Work | None = None
        self._over = asyncio.Event()
        self._written: Metadata | None = None
        self._error: Error | None = None
        self._handed_bytes = 0
        self._ended = False

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        """Take the next bytes, and send full parts. If cancelled, call ``abort``."""
        self._check_open()
        data = memoryview(chunk).cast("B")
        while len(data):
            if len(self._buffer) >= self._part_bytes and not self._whole:
                await self._send_buffer()
            room = len(data) if self._whole else self._part_bytes - len(self._buffer)
            self._buffer += data[:room]
            data = data[room:]

    async def close(self) -> Metadata:
        """Let the object appear."""
        self._check_open()
        if self._parts is None:
            metadata = await self._put_whole(self._request, bytes(self._buffer))
        else:
            await self._send_buffer()
            self._parts.end()
            await self._over.wait()
            metadata = self._result()
        self._ended = True
        self._buffer = bytearray()
        return metadata

    async def abort(self) -> None:
        """End the upload without an object. A second cancellation does not stop it."""
        self._ended = True
        self._buffer = bytearray()
        if self._parts is not None:
            # A store that waits for a part gets an error, upon which it cleans up; a completing store is cut off.
            if self._parts.ended and self._work is not None:
                self._work.cancel()
            self._parts.abandon()
            await self._over.wait()

    async def _send_buffer(self) -> None:
        part, self._buffer = bytes(self._buffer), bytearray()
        if self._parts is None:
            self._parts = Parts()
            self._work = self._runtime.supervisor.spawn(
                self._upload(self._parts), name="obspec upload", on_end=self._upload_ended
            )
        self._handed_bytes += len(part)
        await self._parts.put(part)
        if self._over.is_set():
            self._result()

    async def _upload(self, parts: Parts) -> None:
        try:
            self._written = await self._put_parts(self._request, parts)
        except Error as error:
            self._error = copy_of(error)

    def _upload_ended(self) -> None:
        if self._parts is not None:
            self._parts.abandon()
        self._over.set()

    def _result(self) -> Metadata:
        """The result of the upload. Raises its error."""
        if self._error is not None:
            raise copy_of(self._error)
        if self._written is None:
            raise self._closed("the operator was closed while the object was written")
        if self._parts is None or self._parts.sent_bytes != self._handed_bytes:
            raise ProtocolError(
                "the store ended the write before its last part: the object is not whole",
                operation=self._request.operation,
                path=self._request.path,
                status="permanent",
            )
        return self._written

    def _check_open(self) -> None:
        if self._ended:
            raise self._closed("the object was closed or aborted")

    def _closed(self, why: str) -> Closed:
        return Closed(why, operation=self._request.operation, path=self._request.path)


def part_options(kind: str, part_bytes: int) -> dict[str, Any]:
    """How an upload in parts is asked for: other stores than obstore's choose for themselves."""
    return {"use_multipart": True, "chunk_size": part_bytes, "max_concurrency": PARTS_AT_ONCE} if kind else {}

"""The body of a response as it comes from aiohttp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aioprefetch.errors import Closed, Error, ProtocolError, Unavailable
from aioprefetch.services.s3.client import S3Client
from aioprefetch.values import ReadHead, ReadRequest


class S3Body:
    """Bytes as they arrive. Closing it before its end breaks the connection off and frees its slot at once."""

    __slots__ = ("__weakref__", "_client", "_closed", "_end", "_received", "_request", "_response", "head")

    def __init__(
        self, response: Any, head: ReadHead, client: S3Client, request: ReadRequest, end: Callable[[], None]
    ) -> None:
        self.head = head
        self._response = response
        self._client = client
        self._request = request
        self._end: Callable[[], None] | None = end
        self._received = 0
        self._closed = False
        client.runtime.streams.add(self)

    def abort(self) -> None:
        """Break off; a waiting ``read_chunk`` raises ``Closed``."""
        self._closed = True
        self._give_up()

    def _give_up(self) -> None:
        # After the last byte aiohttp has taken the connection back already, and this does nothing.
        self._response.close()
        if self._end is not None:
            end, self._end = self._end, None
            end()

    async def read_chunk(self) -> bytes:
        """What has arrived, at least one byte; ``b""`` after the last byte that the head promised."""
        if self._received >= self.head.size:
            return b""
        if self._closed:
            raise self._was_closed()
        chunk: bytes = await self._receive()
        self._received += len(chunk)
        self._client.runtime.counters["stream_read_total_bytes"] += len(chunk)
        if self._received > self.head.size:
            raise ProtocolError(
                f"the body has more than the {self.head.size} bytes that its head promised",
                operation="read",
                path=self._request.path,
            )
        return chunk

    async def _receive(self) -> bytes:
        try:
            chunk: bytes = await self._response.content.readany()
        except Exception as error:
            explained: Error = (
                self._was_closed() if self._closed else self._client.explainer.explain(error, self._request)
            )
        else:
            if chunk:
                return chunk
            explained = Unavailable(
                f"the body ended after {self._received} of {self.head.size} bytes",
                operation="read",
                path=self._request.path,
            )
        # Out here, where Python does not chain what was caught.
        raise explained from explained.__cause__

    def _was_closed(self) -> Closed:
        return Closed("the body or its operator is closed", operation="read", path=self._request.path)

    async def aclose(self) -> None:
        self.abort()

"""The body of a response, as it comes from a store."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Any

import anyio

from aioprefetch.errors import Closed, ProtocolError, Unavailable
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.obspec.errors import Explainer
from aioprefetch.values import ReadHead, ReadRequest

# Smaller pieces cost a switch between threads each. Of a larger one no reader would see that it comes, only slowly.
CHUNK_BYTES = 256 << 10
CLOSE_SECONDS_MAX = 5.0


class ObspecBody:
    """Bytes as they arrive, in pieces of about ``CHUNK_BYTES`` from obstore, and as they come from other stores.

    Closing it lets go of the stream, with which obstore closes the connection; an async generator is closed.
    """

    def __init__(
        self, result: Any, head: ReadHead, runtime: Runtime, explainer: Explainer, request: ReadRequest
    ) -> None:
        self.head = head
        self._stream: Any = _stream_of(result, head) if head.size else None
        self._runtime = runtime
        self._explainer = explainer
        self._request = request
        self._received = 0
        self._closed = False
        self._waiting: asyncio.Future[Any] | None = None
        runtime.streams.add(self)

    def abort(self) -> None:
        """Break off; a waiting ``read_chunk`` raises ``Closed``."""
        self._closed = True
        if self._waiting is not None:
            self._waiting.cancel()
        self._stream = None

    async def read_chunk(self) -> bytes | memoryview:
        """What has arrived, at least one byte; ``b""`` after the last byte that the head promised."""
        if self._received >= self.head.size:
            return b""
        if self._closed:
            raise self._was_closed()
        chunk = await self._receive()
        self._received += len(chunk)
        self._runtime.counters["stream_read_total_bytes"] += len(chunk)
        if self._received > self.head.size:
            raise ProtocolError(
                f"the body has more than the {self.head.size} bytes that its head promised",
                operation="read",
                path=self._request.path,
            )
        return chunk

    async def _receive(self) -> bytes | memoryview:
        while True:
            try:
                self._waiting = asyncio.ensure_future(_next_of(self._stream))
                chunk = await self._waiting
                view = chunk if isinstance(chunk, bytes) else memoryview(chunk).cast("B")
            except StopAsyncIteration:
                raise Unavailable(
                    f"the body ended after {self._received} of {self.head.size} bytes",
                    operation="read",
                    path=self._request.path,
                ) from None
            except asyncio.CancelledError:
                if self._closed and not is_cancelled():
                    raise self._was_closed() from None
                raise
            except Exception as error:
                explained = self._explainer.explain(error, self._request)
            else:
                if len(view):
                    return view
                continue
            finally:
                self._waiting = None
            # Raised here, so that what the store raised is not its context: that may tell a secret.
            raise explained from explained.__cause__

    def _was_closed(self) -> Closed:
        return Closed("the body or its operator is closed", operation="read", path=self._request.path)

    async def aclose(self) -> None:
        self._closed = True
        stream, self._stream = self._stream, None
        closing = getattr(stream, "aclose", None)
        if closing is not None:
            # What a generator does at its end is not the reader's business, and must not keep it.
            with anyio.move_on_after(CLOSE_SECONDS_MAX), contextlib.suppress(Exception):
                await closing()


class OnePiece:
    """The stream of a body that is short enough to come at once, which takes obstore less."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def __anext__(self) -> Awaitable[Any]:
        result, self._result = self._result, None
        if result is None:
            raise StopAsyncIteration
        piece: Awaitable[Any] = result.buffer_async()
        return piece


def _stream_of(result: Any, head: ReadHead) -> Any:
    if type(result).__name__ != "GetResult" or not hasattr(result, "buffer_async"):
        return aiter(result)
    # obstore's: by default its pieces are of 10 MiB.
    return OnePiece(result) if head.size <= CHUNK_BYTES else aiter(result.stream(CHUNK_BYTES))


def _next_of(stream: Any) -> Awaitable[Any]:
    following: Awaitable[Any] = anext(stream)
    return following


def is_cancelled() -> bool:
    """Whether somebody cancels the running task, and not only what it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0

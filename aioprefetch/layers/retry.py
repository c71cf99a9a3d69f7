"""Retry: what may succeed at another attempt is tried again, within bounds; a read goes on where it broke off.

Only errors whose status is ``temporary`` are tried again, after a pause with full jitter below an exponential bound
(``Throttled`` has a longer base), or as long as the store asked for. A response that breaks off in its body is gone on
with at once. Four things bound it: the attempts, the time, the request's ``deadline``, and a bucket of tokens that all
operations of a runtime share: when a store is down, retries end soon and do not multiply its load.

**Giving up.** The last error is raised, its kind unchanged, its status now ``persistent``, with ``attempts`` and
``elapsed_seconds`` in its context. With an empty bucket it is ``BudgetExhausted`` with the error as its cause: nothing
more was sent, and the first request of each operation is sent nevertheless, so that success fills the bucket again.

**Reads** go on at the byte after the last one received, pinned to the ETag or version that has begun to arrive, so no
delivered byte is fetched again and two versions never mix. If the object is no longer that one, it is
``ObjectChanged``. Where a server sends neither, its total and ``Last-Modified`` have to agree; where it does not send
these either, a read that broke off is not resumed. Each ``progress_bytes`` received start attempts and time anew, so a
long body survives many cuts, and no server causes more than ``attempts_max`` requests for each of them.

**Writes.** Writing a whole object, copying and deleting come to the same when repeated. A conditional write
(``if_match``, ``if_not_exists``) does not: its first attempt may have succeeded unseen, and the second would then
report a conflict with itself. It is repeated after ``Throttled`` alone, which says that nothing happened. Of a
streaming write only the opening is repeated, at which nothing appears yet; whether a piece or the closing that failed
has taken effect cannot be seen from here, so these errors go to the caller as they are.

Retry belongs outside of Timeout, so that each attempt has a limit of its own and a hanging one is tried again::

    op.layer(TimeoutLayer()).layer(RetryLayer())      # right: Retry is the outer one
    op.layer(RetryLayer()).layer(TimeoutLayer())      # wrong: the limit ends all attempts together
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from aioprefetch.accessor.protocols import Accessor, Layer
from aioprefetch.accessor.sink import Sink, drain
from aioprefetch.accessor.wrapped import WrappedAccessor
from aioprefetch.accessor.write_body import ReadBody
from aioprefetch.errors import (
    Closed,
    ConditionNotMatch,
    Error,
    NotFound,
    ObjectChanged,
    ProtocolError,
    RangeNotSatisfied,
    Throttled,
    Unavailable,
)
from aioprefetch.layers.retry_attempts import Attempts, TokenBucket
from aioprefetch.runtime.options import check_count, checked_seconds
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import Metadata, ReadHead, ReadReply, ReadRequest, Request, WriteRequest

R = TypeVar("R", bound=Request)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryLayer(Layer):
    """The recipe of Retry.

    The ``n``-th pause is drawn between 0 and ``base_seconds * 2 ** (n - 1)`` (``throttle_base_seconds`` after
    ``Throttled``), at most ``cap_seconds``; a longer ``retry_after_seconds`` of the error is kept. No attempt starts
    later than ``total_seconds`` after the first one or at the request's deadline: if the pause would last longer, it
    is not begun. For a stream the time counts within one ``read_chunk``, because between two it is the caller's.

    The bucket holds ``tokens``, one for each runtime and capacity. A retry takes ``cost`` (``throttle_cost`` after
    ``Throttled``) and brings it back when it succeeds; an operation that needed no retry brings one.
    """

    attempts_max: int = 4
    base_seconds: float = 0.05
    throttle_base_seconds: float = 1.0
    cap_seconds: float = 20.0
    total_seconds: float = 60.0
    tokens: int = 1000
    cost: int = 14
    throttle_cost: int = 10
    progress_bytes: int = 1 << 20

    def __post_init__(self) -> None:
        for name in ("attempts_max", "tokens", "progress_bytes"):
            check_count("RetryLayer", name, getattr(self, name), least=1)
        for name in ("cost", "throttle_cost"):
            check_count("RetryLayer", name, getattr(self, name), least=0)
        for name in ("base_seconds", "throttle_base_seconds", "cap_seconds", "total_seconds"):
            checked_seconds(f"{name} of RetryLayer", getattr(self, name), zero_allowed=True)

    def wrap(self, inner: Accessor, runtime: Runtime) -> Accessor:
        return RetryAccessor(self, inner, runtime)

    def bucket(self, runtime: Runtime) -> TokenBucket:
        """The tokens that this layer draws on in a runtime."""
        return runtime.shared(("retry.tokens", self.tokens), lambda: TokenBucket(self.tokens))


class RetryAccessor(WrappedAccessor):
    """The live layer. Cancelled in a pause, an operation ends at once."""

    def __init__(self, layer: RetryLayer, inner: Accessor, runtime: Runtime) -> None:
        super().__init__(inner)
        self.bucket = layer.bucket(runtime)
        self._layer = layer
        self._runtime = runtime
        self._now = runtime.loop.time

    def attempts(self, request: Request, started: float) -> Attempts:
        """The count of an operation whose first attempt started then."""
        return Attempts(self._layer, self._runtime, self.bucket, request, started)

    async def around(self, request: R, forward: Callable[[R], Awaitable[T]]) -> T:
        return await self._repeat(request, lambda: forward(request), conditional=False)

    async def write(self, request: WriteRequest, data: bytes | bytearray | memoryview) -> Metadata:
        conditional = request.if_not_exists or request.if_match is not None
        return await self._repeat(request, lambda: self.inner.write(request, data), conditional=conditional)

    async def _repeat(self, request: Request, call: Callable[[], Awaitable[T]], *, conditional: bool) -> T:
        attempts = self.attempts(request, self._now())
        while True:
            try:
                result = await call()
            except Error as error:
                if not error.is_temporary:
                    raise
                if conditional and not isinstance(error, Throttled):
                    raise attempts.give_up(error, "a conditional write that may have happened") from error.__cause__
                pause = attempts.failed(error)
            else:
                attempts.succeeded()
                return result
            await asyncio.sleep(pause)

    async def read(self, request: ReadRequest, sink: Sink) -> ReadReply:
        started = self._now()
        try:
            reply = await self.inner.read(request, sink)
        except Error as error:
            attempts = self.attempts(request, started)
            if _came_too_late(error, sink):
                return _whole_reply(sink)
            pause = self.judge(error, request, sink, attempts)
        else:
            bucket = self.bucket
            if bucket.tokens < bucket.capacity:
                bucket.put(1)
            return reply
        return await self._read_again(request, sink, attempts, pause)

    async def _read_again(self, request: ReadRequest, sink: Sink, attempts: Attempts, pause: float) -> ReadReply:
        while True:
            await asyncio.sleep(pause)
            resumed = sink.head is not None
            try:
                await self._read_rest(request, sink)
            except Error as error:
                if not _came_too_late(error, sink):
                    pause = self.judge(error, request, sink, attempts, resumed=resumed)
                    continue
            attempts.succeeded()
            return _whole_reply(sink)

    async def _read_rest(self, request: ReadRequest, sink: Sink) -> None:
        head = sink.head
        if head is None:
            await self.inner.read(request, sink)
        elif head.etag is not None or head.version is not None:
            await self.inner.read(request.resume(head, sink.received), sink)
        else:
            # The head must be compared before its bytes flow, and nothing further in knows what to compare it with.
            await drain(await self.reopen(request, sink), sink, path=request.path)

    async def open_read(self, request: ReadRequest) -> ReadBody:
        return RetryReadBody(self, await self.around(request, self.inner.open_read), request)

    async def reopen(self, request: ReadRequest, progress: Sink) -> ReadBody:
        """A body with the rest of a response, checked to go on where ``progress`` stands."""
        first = progress.head
        assert first is not None
        body = await self.inner.open_read(request.resume(first, progress.received))
        try:
            if first.etag is None and first.version is None:
                _check_unchanged(first, body.head, request)
            progress.begin(body.head, path=request.path)
        except BaseException:
            await body.aclose()
            raise
        return body

    def judge(
        self, error: Error, request: ReadRequest, progress: Sink, attempts: Attempts, *, resumed: bool = False
    ) -> float:
        """The pause before a read goes on after ``error``; raises what ends it. ``resumed``: it had gone on before."""
        head = progress.head
        if resumed and head is not None and isinstance(error, ConditionNotMatch | RangeNotSatisfied | NotFound):
            raise _changed(error, head, progress.received) from error
        if not error.is_temporary:
            raise error
        if head is not None and progress.received and not _is_verifiable(head):
            raise attempts.give_up(error, "nothing in the response tells one version of the object from another")
        if progress.complete:
            # Nothing is left to ask for: an empty range would bring the whole object.
            raise attempts.give_up(error, "all bytes were delivered")
        return attempts.failed(error, progress.received)


class RetryReadBody:
    """A body that goes on by itself: when the inner one breaks off, it is closed and the rest is asked for."""

    def __init__(self, layer: RetryAccessor, body: ReadBody, request: ReadRequest) -> None:
        self._layer = layer
        self._body: ReadBody | None = body
        self._request = request
        self._attempts: Attempts | None = None
        self._now = asyncio.get_running_loop().time
        self._head = body.head
        # Only the position and the first head: a stream hands its bytes on and keeps none.
        self._progress = Sink()
        self._progress.begin(body.head, path=request.path)

    @property
    def head(self) -> ReadHead:
        return self._head

    async def read_chunk(self) -> bytes | bytearray | memoryview:
        if self._progress.complete:
            return b""
        if self._body is None:
            raise Closed("the body was closed, or has failed for good", operation="read", path=self._request.path)
        started = self._now()
        try:
            return self._take(await self._body.read_chunk())
        except Error as error:
            attempts = self._attempts = self._attempts or self._layer.attempts(self._request, started)
            attempts.started = started
            pause = await self._break_off(error, attempts)
        while True:
            await asyncio.sleep(pause)
            try:
                self._body = await self._layer.reopen(self._request, self._progress)
                return self._take(await self._body.read_chunk())
            except Error as error:
                pause = await self._break_off(error, attempts)

    def _take(self, chunk: bytes | bytearray | memoryview) -> bytes | bytearray | memoryview:
        progress = self._progress
        if not chunk:
            raise Unavailable(
                f"the body ended after {progress.received} of {self._head.size} bytes",
                operation="read",
                path=self._request.path,
                head=self._head,
                received=progress.received,
            )
        progress.received += len(chunk)
        if self._attempts is not None and progress.complete:
            self._attempts.succeeded()
        return chunk

    async def _break_off(self, error: Error, attempts: Attempts) -> float:
        # Closed before the pause, so that neither a connection nor a slot is held meanwhile.
        await self.aclose()
        return self._layer.judge(error, self._request, self._progress, attempts, resumed=True)

    async def aclose(self) -> None:
        body, self._body = self._body, None
        if body is not None:
            await body.aclose()


def _came_too_late(error: Error, sink: Sink) -> bool:
    """Whether everything had been received when the connection broke: that is a success."""
    return sink.complete and error.is_temporary and not isinstance(error, ProtocolError)


def _whole_reply(sink: Sink) -> ReadReply:
    assert sink.head is not None
    return ReadReply(head=sink.head, received=sink.head.size)


def _is_verifiable(head: ReadHead) -> bool:
    """Whether a later answer can be proven to be of the same version."""
    return head.etag is not None or head.version is not None or None not in (head.total, head.last_modified)


def _check_unchanged(first: ReadHead, head: ReadHead, request: ReadRequest) -> None:
    if (first.total, first.last_modified) != (head.total, head.last_modified):
        raise ObjectChanged(
            f"the object changed between two attempts of one read: {first.total} bytes of {first.last_modified} "
            f"became {head.total} bytes of {head.last_modified}",
            expected_etag=first.etag,
            actual_etag=head.etag,
            operation="read",
            path=request.path,
        )


def _changed(error: Error, head: ReadHead, received: int) -> ObjectChanged:
    actual = error.context.get("etag")
    return ObjectChanged(
        f"the object is not the one any more whose first {received} bytes of {head.size} were read ({error.kind})",
        expected_etag=head.etag,
        actual_etag=actual if isinstance(actual, str) else None,
        operation="read",
        path=error.path,
        context=error.context,
        head=head,
        received=received,
    )

"""Retry: temporary failures are tried again, within bounds; a read continues where it was interrupted.

Only errors of status ``temporary`` are tried again, after a pause with full jitter below an exponential bound
(``Throttled`` has a longer base), or after the pause that the store asked for. A response that is cut off in its body
is continued at once. Retries are bounded by the number of attempts, the time, the ``deadline`` of the request, and a
bucket of tokens that all operations of a runtime share: when a store is down, retries end soon and do not multiply its
load.

**Giving up.** The last error is raised, its kind unchanged, its status now ``persistent``, with ``attempts`` and
``elapsed_seconds`` in its context. If the bucket is empty, ``BudgetExhausted`` is raised with the last error as its
cause. The first attempt of each operation needs no token, so successes fill the bucket again.

**Reads** continue at the byte after the last one received, pinned to the strong ETag or the version of the first
response, so no delivered byte is fetched again and two versions never mix. If the object has changed, the error is
``ObjectChanged``. A weak ETag and ``Last-Modified`` prove nothing about bytes (RFC 9110, 8.8.1 and 8.8.2.2): then the
read begins again, as often as there are attempts, if its sink can (``Sink.begin_again``), and fails otherwise.
Each ``progress_bytes`` received reset attempts and time, so a long body survives many cuts, and no server causes more
than ``attempts_max`` requests for each ``progress_bytes``. The rest of a response that is only drained
(``Sink.is_drained``) is not requested again: the connection for whose sake it was received is gone.

**Writes.** Writing a whole object, copying and deleting may be repeated. A conditional write (``if_match``,
``if_not_exists``) may not: its first attempt may have succeeded although its response was lost, and the second would
then report a conflict with the first. It is repeated after ``Throttled`` and conflicts with other changes
(``errors.has_changed_nothing``), which mean that nothing was written.
The parts of an upload are repeated one by one, each by its number. Of a streaming write (``open_write``) only the
opening is repeated; whether a failed piece or closing took effect is unknown here, so these errors go to the caller
unchanged.

Retry belongs outside of Timeout, so that each attempt has a limit of its own, and a hanging one is tried again::

    op.layer(TimeoutLayer()).layer(RetryLayer())      # right: Retry is the outer one
    op.layer(RetryLayer()).layer(TimeoutLayer())      # wrong: the limit ends all attempts together
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from aioprefetch.accessor.protocols import Accessor, Layer, WrappedAccessor
from aioprefetch.accessor.request_events import attempt_number
from aioprefetch.accessor.response_check import VersionPin, is_strong
from aioprefetch.accessor.sink import Sink
from aioprefetch.credentials import hide_frames
from aioprefetch.errors import (
    BudgetExhausted,
    ConditionNotMatch,
    CredentialsExpired,
    Error,
    NotFound,
    ObjectChanged,
    ProtocolError,
    RangeNotSatisfied,
    Throttled,
    TimedOut,
    Unavailable,
    has_changed_nothing,
)
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.options import COUNT, COUNT_OR_ZERO, SECONDS_OR_ZERO, SIZE, check, option
from aioprefetch.ranges import ByteCount
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import (
    CompleteUploadRequest,
    CopyRequest,
    Metadata,
    ReadHead,
    ReadReply,
    ReadRequest,
    RenameRequest,
    Request,
    WriteRequest,
)

if TYPE_CHECKING:
    from random import Random

R = TypeVar("R", bound=Request)
T = TypeVar("T")


PROTOCOL_ERRORS_MAX = 2
# A name that does not resolve is usually misspelt, and resolvers try several times by themselves.
NAME_FAILURES_MAX = 2
NAME_FAILURES_SECONDS_MAX = 5.0

UNPROVEN = "nothing proves that the rest is of the same version: there is neither a strong ETag nor a version id"

_CAUSES = {
    Throttled: "retries_throttled",
    TimedOut: "retries_timed_out",
    Unavailable: "retries_unavailable",
    ProtocolError: "retries_protocol",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryLayer(Layer):
    """The recipe of Retry.

    Parameters
    ----------
    attempts_max
        The maximum of attempts, the first one included.
    base_seconds
        The bound of the first pause, which is drawn below it; it doubles with each further one.
    throttle_base_seconds
        The same after ``Throttled``.
    cap_seconds
        The maximum of a pause, unless the store asks for a longer one.
    total_seconds
        No attempt starts later than this after the first one, nor at or after the deadline of the request. A longer
        pause is not begun.
    tokens
        The bucket that all operations of a runtime share; the first attempt of an operation needs none.
    cost
        The tokens of a retry, which returns them if it succeeds. An operation without a retry returns one.
    throttle_cost
        The same after ``Throttled``; it is 0 without file descriptors, and with keys that have expired.
    progress_bytes
        Attempts and time begin again after this many bytes, so that a long body survives many cuts.
    """

    attempts_max: int = option(
        4,
        COUNT,
        also="boto3:total_max_attempts,max_attempts obstore:max_retries other:retries",
        hint="it counts the first attempt too",
    )
    base_seconds: float = option(0.05, SECONDS_OR_ZERO, given="recipe")
    throttle_base_seconds: float = option(1.0, SECONDS_OR_ZERO, given="recipe")
    cap_seconds: float = option(20.0, SECONDS_OR_ZERO, given="recipe")
    total_seconds: float = option(60.0, SECONDS_OR_ZERO, name="retry_seconds", also="obstore:retry_timeout")
    tokens: int = option(1000, COUNT, given="recipe")
    cost: int = option(14, COUNT_OR_ZERO, given="recipe")
    throttle_cost: int = option(10, COUNT_OR_ZERO, given="recipe")
    progress_bytes: ByteCount = option(1 << 20, SIZE, given="recipe")

    def __post_init__(self) -> None:
        check(self, "{} of RetryLayer")

    def wrap(self, inner: Accessor, runtime: Runtime) -> Accessor:
        return RetryAccessor(self, inner, runtime)

    def bucket(self, runtime: Runtime) -> TokenBucket:
        """The tokens of this layer in a runtime."""
        return runtime.shared(("retry.tokens", self.tokens), lambda: TokenBucket(self.tokens))


class TokenBucket:
    """The bound of all retries of a runtime: each takes tokens, a success returns some (as in the AWS SDKs)."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.tokens = capacity

    def take(self, cost: int) -> bool:
        """Take ``cost`` tokens if there are enough; whether they were taken."""
        if cost > self.tokens:
            return False
        self.tokens -= cost
        return True

    def put(self, count: int) -> None:
        """Return tokens, up to the capacity."""
        self.tokens = min(self.capacity, self.tokens + count)


class RetryAccessor(WrappedAccessor):
    """The live layer. A cancellation ends a pause at once."""

    def __init__(self, layer: RetryLayer, inner: Accessor, runtime: Runtime) -> None:
        super().__init__(inner)
        self.bucket = layer.bucket(runtime)
        self._layer = layer
        self._runtime = runtime
        self._now = runtime.loop.time

    def attempts(self, request: Request, started: float) -> Attempts:
        """The attempts of an operation whose first one started at ``started``."""
        return Attempts(self._layer, self._runtime, self.bucket, request, started)

    async def around(self, request: R, forward: Callable[[R], Awaitable[T]]) -> T:
        started = self._now()
        try:
            result = await forward(request)
        except Error as error:
            if not error.is_temporary:
                hide_frames(error)
                raise
            attempts = self.attempts(request, started)
            pause = attempts.failed(error)
        else:
            self.bucket.put(1)
            return result
        await asyncio.sleep(pause)
        return await self._repeat(lambda: forward(request), attempts)

    def write(self, request: WriteRequest, data: bytes | bytearray | memoryview) -> Coroutine[Any, Any, Metadata]:
        return self._changing(request, lambda: self.inner.write(request, data))

    def complete_upload(self, request: CompleteUploadRequest) -> Coroutine[Any, Any, Metadata]:
        return self._changing(request, lambda: self.inner.complete_upload(request))

    def copy(self, request: CopyRequest) -> Coroutine[Any, Any, Metadata]:
        if not request.if_not_exists:  # The other conditions apply to the source, which a copy leaves as it is.
            return super().copy(request)
        return self._once(request, lambda: self.inner.copy(request))

    def rename(self, request: RenameRequest) -> Coroutine[Any, Any, Metadata]:
        return self._once(request, lambda: self.inner.rename(request))

    def _changing(self, request: WriteRequest, call: Callable[[], Awaitable[T]]) -> Coroutine[Any, Any, T]:
        """A call that lets an object appear, repeated unless it has a condition."""
        if not request.if_not_exists and request.if_match is request.if_none_match is None:
            return self.around(request, lambda _: call())
        return self._once(request, call)

    def _once(self, request: Request, call: Callable[[], Awaitable[T]]) -> Coroutine[Any, Any, T]:
        """A call that would fail after it has succeeded: repeated only if it has certainly not happened."""
        return self._repeat(call, self.attempts(request, self._now()), conditional=True)

    async def _repeat(self, call: Callable[[], Awaitable[T]], attempts: Attempts, *, conditional: bool = False) -> T:
        while True:
            token = attempt_number.set(attempts.total + 1)
            try:
                result = await call()
            except Error as error:
                if not error.is_temporary:
                    hide_frames(error)
                    raise
                if conditional and not has_changed_nothing(error):
                    raise attempts.give_up(error, "a conditional change that may have happened") from error.__cause__
                pause = attempts.failed(error)
            else:
                attempts.succeeded()
                return result
            finally:
                attempt_number.reset(token)
            await asyncio.sleep(pause)

    async def read(self, request: ReadRequest, sink: Sink) -> ReadReply:
        started = self._now()
        try:
            response = await self.inner.read(request, sink)
        except Error as error:
            if _came_too_late(error, sink):
                return _whole_reply(sink)
            if not error.is_temporary:
                hide_frames(error)
                raise
            attempts = self.attempts(request, started)
            pause = await self.judge(error, request, sink, attempts)
        else:
            bucket = self.bucket
            if bucket.tokens < bucket.capacity:
                bucket.put(1)
            return response
        return await self._read_again(request, sink, attempts, pause)

    async def _read_again(self, request: ReadRequest, sink: Sink, attempts: Attempts, pause: float) -> ReadReply:
        while True:
            await asyncio.sleep(pause)
            head = sink.head
            rest = request if head is None else request.resume(head, sink.received)
            token = attempt_number.set(attempts.total + 1)
            try:
                await self.inner.read(rest, sink)
            except Error as error:
                if not _came_too_late(error, sink):
                    pause = await self.judge(error, request, sink, attempts, resumed=head is not None)
                    continue
            finally:
                attempt_number.reset(token)
            attempts.succeeded()
            return _whole_reply(sink)

    async def judge(
        self, error: Error, request: ReadRequest, progress: Sink, attempts: Attempts, *, resumed: bool = False
    ) -> float:
        """The pause before a read continues after ``error``; raises the error that ends the read.

        ``resumed``: the failed attempt was to continue an earlier one.
        """
        head = progress.head
        try:
            if resumed and head is not None and isinstance(error, ConditionNotMatch | RangeNotSatisfied | NotFound):
                raise _changed(error, head, progress.received) from error
            if not error.is_temporary or progress.is_drained:
                raise error
            if progress.complete:
                # No byte is missing, and some servers send the whole object for an empty range.
                raise attempts.give_up(error, "all bytes were delivered")
            is_unproven = head is not None and progress.received > 0 and not is_strong(head.etag, head.version)
            if is_unproven and not await progress.begin_again():
                raise attempts.give_up(error, UNPROVEN)
            return attempts.failed(error, progress.received)
        finally:
            del error  # Its traceback holds this frame.


def backoff_seconds(random: Random, retry: int, base_seconds: float, cap_seconds: float) -> float:
    """The pause before the ``retry``-th retry, from 1: full jitter below an exponential bound."""
    # The exponent is bounded so that a large attempts_max does not overflow a float.
    return random.uniform(0.0, min(cap_seconds, base_seconds * 2.0 ** min(retry - 1, 60)))


class Attempts:
    """The attempts of one operation, from its first failure on.

    ``failed`` decides: it returns the pause before the next attempt, or raises the error that ends the operation.
    """

    def __init__(
        self, layer: RetryLayer, runtime: Runtime, bucket: TokenBucket, request: Request, started: float
    ) -> None:
        self._layer = layer
        self._runtime = runtime
        self._bucket = bucket
        self._request = request
        self._mark = 0
        self._received = 0
        self._protocol_errors = 0
        self._name_failures = 0
        self._next_start = started
        self._next_start_max = float("inf")
        self._cost = 0
        self.started = started
        self.count = 0
        self.total = 0

    def failed(self, error: Error, received: int = 0) -> float:
        """The pause in seconds before the next attempt, its tokens taken; raises when there must not be one.

        ``error`` is temporary. If the attempts or the time are used up, it raises ``error``, now ``persistent``; if the
        bucket is empty, ``BudgetExhausted`` with ``error`` as its cause.
        """
        layer, now = self._layer, self._runtime.now()
        self._count_attempt(error)
        if isinstance(error, Unavailable) and error.context.get("reason") == "dns":  # As transports say.
            self._count_name_failure(now)
        if received - self._mark >= int(layer.progress_bytes):
            # The last retries brought progress: this attempt counts as the first of a new series.
            self.succeeded()
            self.count, self._mark, self.started = 1, received, now
            self._name_failures, self._next_start_max = 0, float("inf")
        # True for a response that had begun at the first break, and at later ones if bytes arrived since.
        made_progress = received > self._received or (self.count == 1 and error.head is not None)
        self._received = received
        pause = self._pause_seconds(error, made_progress=made_progress)
        gave_up = self._why_give_up(now + pause)
        try:
            if gave_up:
                raise self._exhausted(error, now, gave_up)
            cost = layer.throttle_cost if isinstance(error, Throttled) else layer.cost
            if error.context.get("errno") in ("EMFILE", "ENFILE") or isinstance(error, CredentialsExpired):
                cost = 0  # The store was not asked, or only for a refusal: a retry adds nothing to its load.
            if not self._bucket.take(cost):
                raise self._out_of_tokens(error, now) from error
            self._announce(error, pause, resumed=received > 0)
        finally:
            del error  # Its traceback holds this frame.
        self._cost = cost
        self._next_start = now + pause
        return pause

    def give_up(self, error: Error, why: str) -> Error:
        """``error`` as the final error of the operation, although attempts are left."""
        self._count_attempt(error)
        return self._exhausted(error, self._runtime.now(), why)

    def succeeded(self) -> None:
        """The operation made progress: return the tokens of its last retry, or one token if it never failed."""
        self._bucket.put(self._cost if self.total else 1)
        self._cost = 0

    def _count_attempt(self, error: Error) -> None:
        self.count += 1
        self.total += 1
        if isinstance(error, Throttled):
            self._runtime.counters["throttled"] += 1
        if isinstance(error, ProtocolError):
            self._protocol_errors += 1

    def _count_name_failure(self, now: float) -> None:
        self._name_failures += 1
        began = self._next_start  # After the last pause.
        # A second attempt that takes as long as this one must end within the limit.
        self._next_start_max = began + NAME_FAILURES_SECONDS_MAX - (now - began)

    def _pause_seconds(self, error: Error, *, made_progress: bool) -> float:
        layer = self._layer
        if made_progress and isinstance(error, Unavailable) and error.retry_after_seconds is None:
            return 0.0  # The store responds and a connection broke: try another one at once.
        base = layer.throttle_base_seconds if isinstance(error, Throttled) else layer.base_seconds
        pause = backoff_seconds(self._runtime.random, self.count, base, layer.cap_seconds)
        return max(pause, error.retry_after_seconds or 0.0)

    def _why_give_up(self, next_start: float) -> str:
        layer, deadline = self._layer, self._request.deadline
        if self.count >= layer.attempts_max:
            return f"attempts_max={layer.attempts_max}"
        if self._protocol_errors >= PROTOCOL_ERRORS_MAX:
            return f"{PROTOCOL_ERRORS_MAX} responses against the protocol"
        if self._name_failures >= NAME_FAILURES_MAX:
            return f"{NAME_FAILURES_MAX} failures to resolve the name"
        if next_start > self._next_start_max:
            return f"{NAME_FAILURES_SECONDS_MAX:g} seconds to resolve the name"
        if next_start > self.started + layer.total_seconds:
            return f"total_seconds={layer.total_seconds:g}"
        if deadline is not None and next_start >= deadline:
            return "the caller's deadline"
        return ""

    def _exhausted(self, error: Error, now: float, why: str) -> Error:
        self._runtime.counters["retries_exhausted"] += 1
        error.status = "persistent"
        error.context |= self._facts(now) | {"gave_up": why}
        return error

    def _out_of_tokens(self, error: Error, now: float) -> BudgetExhausted:
        self._runtime.counters["retries_exhausted"] += 1
        return BudgetExhausted(
            f"no retry token is left after {error.kind}: too many requests have failed recently to send more",
            operation=error.operation or self._request.operation,
            path=error.path or self._request.path,
            status="persistent",
            context=error.context | self._facts(now) | {"last_error": error.kind},
            head=error.head,
            received=error.received,
        )

    def _facts(self, now: float) -> dict[str, object]:
        return {"attempts": self.total, "elapsed_seconds": round(now - self.started, 3)}

    def _announce(self, error: Error, pause: float, *, resumed: bool) -> None:
        counters = self._runtime.counters
        counters["retries"] += 1
        counters[next((name for kind, name in _CAUSES.items() if isinstance(error, kind)), "retries_other")] += 1
        counters["retries_resumed"] += resumed
        events = self._runtime.events
        if events.listeners:
            events.publish(
                "request.retried",
                self._request.path,
                operation=self._request.operation,
                attempt=self.total + 1,
                wait_seconds=pause,
                error=error.kind,
            )


def _came_too_late(error: Error, sink: Sink) -> bool:
    """Whether all bytes had arrived when the connection broke, which makes the read a success."""
    return sink.complete and error.is_temporary and not isinstance(error, ProtocolError)


def _whole_reply(sink: Sink) -> ReadReply:
    assert sink.head is not None
    return ReadReply(head=sink.head, received=sink.head.size)


def _changed(error: Error, head: ReadHead, received: int) -> ObjectChanged:
    return VersionPin(head.etag, path=error.path).explain(
        error,
        message=f"the object was overwritten after its first {received} of {head.size} bytes were read ({error.kind})",
        context=error.context,
        head=head,
        received=received,
    )

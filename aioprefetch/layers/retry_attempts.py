"""How often, and after which pause, an operation is tried again: the counting behind Retry, without any I/O."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from aioprefetch.errors import BudgetExhausted, Error, ProtocolError, Throttled, TimedOut, Unavailable
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import Request

if TYPE_CHECKING:
    from aioprefetch.layers.retry import RetryLayer

PROTOCOL_ERRORS_MAX = 2
# A name that does not resolve is mostly misspelt, and resolvers try several times by themselves.
NAME_FAILURES_MAX = 2
NAME_FAILURES_SECONDS_MAX = 5.0


_CAUSES = {
    Throttled: "retries_throttled",
    TimedOut: "retries_timed_out",
    Unavailable: "retries_unavailable",
    ProtocolError: "retries_protocol",
}


def _cause(error: Error) -> str:
    return next((name for kind, name in _CAUSES.items() if isinstance(error, kind)), "retries_other")


def _is_name_failure(error: Error) -> bool:
    """Whether the name of the host could not be resolved: transports say so in the context."""
    return isinstance(error, Unavailable) and error.context.get("reason") == "dns"


class TokenBucket:
    """What bounds the retries of a whole runtime: each takes tokens, success brings some back (as in the AWS SDKs)."""

    __slots__ = ("capacity", "tokens")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.tokens = capacity

    def take(self, cost: int) -> bool:
        """Take ``cost`` tokens if there are as many."""
        if cost > self.tokens:
            return False
        self.tokens -= cost
        return True

    def put(self, count: int) -> None:
        """Bring tokens back, up to the capacity."""
        self.tokens = min(self.capacity, self.tokens + count)


def backoff_seconds(random: Random, retry: int, base_seconds: float, cap_seconds: float) -> float:
    """The pause before the ``retry``-th retry, from 1: full jitter below an exponential bound."""
    # The exponent is bounded, because a large attempts_max must not overflow a float.
    return random.uniform(0.0, min(cap_seconds, base_seconds * 2.0 ** min(retry - 1, 60)))


class Attempts:
    """The attempts of one operation, from its first failure on.

    ``failed`` decides: it returns the pause before the next attempt, or raises the error that ends the operation.
    """

    __slots__ = (
        "_bucket",
        "_cost",
        "_layer",
        "_mark",
        "_name_failures",
        "_next_start",
        "_next_start_max",
        "_protocol_errors",
        "_received",
        "_request",
        "_runtime",
        "count",
        "started",
        "total",
    )

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

        ``error`` is temporary. What ends it: the attempts or the time are used up (``error`` itself, now
        ``persistent``), or the bucket is empty (``BudgetExhausted`` with ``error`` as its cause).
        """
        layer, now = self._layer, self._runtime.now()
        self._count_attempt(error)
        if _is_name_failure(error):
            self._count_name_failure(now)
        if received - self._mark >= layer.progress_bytes:
            # The last retries were worth it: the count begins anew with this attempt as its first.
            self.succeeded()
            self.count, self._mark, self.started = 1, received, now
            self._name_failures, self._next_start_max = 0, float("inf")
        # A response that had begun, at its first break; later ones only as far as they brought something.
        got_on = received > self._received or (self.count == 1 and error.head is not None)
        self._received = received
        pause = self._pause_seconds(error, got_on=got_on)
        gave_up = self._why_give_up(now + pause)
        if gave_up:
            raise self._exhausted(error, now, gave_up)
        cost = layer.throttle_cost if isinstance(error, Throttled) else layer.cost
        if not self._bucket.take(cost):
            raise self._out_of_tokens(error, now) from error
        self._cost = cost
        self._next_start = now + pause
        self._announce(error, pause, resumed=received > 0)
        return pause

    def give_up(self, error: Error, why: str) -> Error:
        """``error`` as the end of the operation, although attempts are left."""
        self._count_attempt(error)
        return self._exhausted(error, self._runtime.now(), why)

    def succeeded(self) -> None:
        """The operation got on: what its last retry cost comes back, or one token if it never failed."""
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
        # When this attempt began: after the last pause, or, where a stream went on since, when its user read on.
        began = max(self.started, self._next_start)
        # So that a second one that takes as long ends in time.
        self._next_start_max = began + NAME_FAILURES_SECONDS_MAX - (now - began)

    def _pause_seconds(self, error: Error, *, got_on: bool) -> float:
        layer = self._layer
        if got_on and isinstance(error, Unavailable) and error.retry_after_seconds is None:
            return 0.0  # A connection broke on which a response came: the store is there, another one will do.
        base = layer.throttle_base_seconds if isinstance(error, Throttled) else layer.base_seconds
        pause = backoff_seconds(self._runtime.random, self.count, base, layer.cap_seconds)
        return max(pause, error.retry_after_seconds or 0.0)

    def _why_give_up(self, next_start: float) -> str:
        layer, deadline = self._layer, self._request.deadline
        if self.count >= layer.attempts_max:
            return f"attempts_max={layer.attempts_max}"
        if self._protocol_errors >= PROTOCOL_ERRORS_MAX:
            return f"{PROTOCOL_ERRORS_MAX} answers against the protocol"
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
            f"no retry token is left after {error.kind}: too much failed lately to send more requests",
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
        counters[_cause(error)] += 1
        counters["retries_resumed"] += resumed
        self._runtime.events.publish(
            "retry", self._request.path, attempt=self.total + 1, delay_seconds=pause, error=error.kind
        )

"""The keys of a session with a directory bucket (S3 Express), which stand for the keys of a recipe for five minutes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime

from aioprefetch.errors import Error
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.s3.key_source import SingleFlight
from aioprefetch.services.s3.sigv4 import AccessKeys
from aioprefetch.values import Request

# The service in the scope of signatures for directory buckets.
EXPRESS = "s3express"
SESSION_TOKEN = "x-amz-s3session-token"
SESSION_SECONDS = 300.0
# New keys are fetched in the background from the first part of a session's life on, and waited for from the second.
RENEWED_AFTER, AWAITED_AFTER = 0.6, 0.8
# Where that fails it is tried again so often.
RENEW_SECONDS_MIN = 10.0


class SessionKeys:
    """The keys of one bucket within a runtime. ``generation`` counts the sessions; ``begin`` makes one."""

    def __init__(self, runtime: Runtime, begin: Callable[[], Awaitable[AccessKeys]]) -> None:
        self.generation = 0
        self._runtime = runtime
        self._begin = begin
        self._keys: AccessKeys | None = None
        self._renew_at = 0.0
        self._flight = SingleFlight(runtime, self._load, "s3 session")

    def ready(self) -> AccessKeys | None:
        """The keys, if they can be used at once."""
        keys, now = self._keys, self._runtime.now()
        if keys is None or now >= keys.until_seconds:
            return None
        if now >= self._renew_at and not self._runtime.closed:
            self._renew_at = now + RENEW_SECONDS_MIN
            self._flight.start()
        return keys

    async def get(self, request: Request) -> AccessKeys:
        """The keys, once they are there; ``request`` is named by an error. If cancelled, others go on waiting."""
        try:
            return self.ready() or await self._flight.get()
        except Error as error:
            error.add_context(operation=request.operation, path=request.path)
            raise

    def renew(self, generation: int) -> bool:
        """The store calls the keys of that generation expired: the next request has those of another session."""
        if generation == self.generation:
            self._keys = None
        return True

    async def _load(self) -> AccessKeys:
        self._keys = keys = await self._begin()
        self.generation += 1
        now = self._runtime.now()
        self._renew_at = now + (keys.until_seconds - now) * RENEWED_AFTER / AWAITED_AFTER
        return keys


def session_seconds(end: datetime | None, now: datetime | None) -> float:
    """The time for which the keys of a new session are used; both times are the store's."""
    life_seconds = SESSION_SECONDS if end is None or now is None else (end - now).total_seconds()
    return max(min(life_seconds, SESSION_SECONDS), 0.0) * AWAITED_AFTER

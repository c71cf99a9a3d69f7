"""How aiobotocore's requests travel: redirects are never followed, error bodies are bounded, nothing is left open.

aiobotocore lets aiohttp follow redirects; to another host it then sends the session token along, and takes the
foreign body for the object (botocore itself never does). And botocore's own handler for buckets in other regions
runs into a ``RecursionError`` where an answer names no region. Both end here: a session whose requests do not follow
redirects, and a guard that turns every answer from 300 on into an error before that handler sees it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from functools import cache
from typing import Any

from aioprefetch.services.read_answer import ERROR_BODY_BYTES_MAX

# aiohttp pauses a connection beyond twice this size; small buffers mean many wake-ups per megabyte.
READ_BUFFER_BYTES = 256 << 10
WRITE_CHUNK_BYTES = 256 << 10

_answers: ContextVar[list[Any] | None] = ContextVar("aioprefetch_s3_answers", default=None)


@contextlib.contextmanager
def answers_closed_on_failure() -> Iterator[None]:
    """Close each answer that arrives within, if what follows fails: botocore may fail to parse a head.

    Without this the connection would stay taken for as long as somebody keeps the exception.
    """
    answers: list[Any] = []
    token = _answers.set(answers)
    try:
        yield
    except BaseException:
        for answer in answers:
            answer.close()
        raise
    finally:
        _answers.reset(token)


@cache
def session_class() -> type[Any]:
    """The ``http_session_cls`` for ``AioConfig``. It overrides ``_get_session``, a private name that a test pins."""
    from aiobotocore.httpsession import AIOHTTPSession

    class DirectSession(AIOHTTPSession):  # type: ignore[misc]  # aiobotocore has no types
        async def _get_session(self, proxy_url: str | None) -> DirectRequests:
            return DirectRequests(await super()._get_session(proxy_url))

    return DirectSession


class DirectRequests:
    """The one method of ``aiohttp.ClientSession`` that aiobotocore calls, without redirects."""

    __slots__ = ("_session",)

    def __init__(self, session: Any) -> None:
        self._session = session

    async def request(self, method: str, *, headers: Any, data: Any = None, **options: Any) -> Any:
        """Send one request. Returns the answer of aiohttp, or a bounded one where it is an error."""
        # Botocore lets a put wait for "100 Continue", and aiohttp waits without end where a server never says it.
        headers.pop("Expect", None)
        body = _memory_payload()(data) if isinstance(data, (bytes, bytearray)) and data else data
        answer = await self._session.request(
            method, headers=headers, data=body, allow_redirects=False, read_bufsize=READ_BUFFER_BYTES, **options
        )
        answers = _answers.get()
        if answers is not None:
            answers.append(answer)
        return answer if answer.status < 300 else BoundedAnswer(answer)


class BoundedAnswer:
    """What aiobotocore uses of an answer that is an error, of which only the beginning is read."""

    __slots__ = ("_answer", "raw_headers", "status", "url")

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self.status: int = answer.status
        self.url = answer.url
        self.raw_headers = answer.raw_headers

    async def read(self) -> bytes:
        """The body if it is short; otherwise its beginning, and the connection is given up."""
        body = bytearray()
        try:
            while len(body) < ERROR_BODY_BYTES_MAX and (chunk := await self._answer.content.readany()):
                body += chunk
        finally:
            self._answer.close()
        return bytes(body[:ERROR_BODY_BYTES_MAX])


@cache
def _memory_payload() -> type[Any]:
    from aiohttp.payload import Payload

    class MemoryPayload(Payload):
        """A body in memory, sent piece by piece so that the loop breathes; it can be sent again."""

        _autoclose = True

        def __init__(self, data: bytes | bytearray) -> None:
            super().__init__(data)
            self._size = len(data)

        def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
            return bytes(self._value).decode(encoding, errors)

        async def as_bytes(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
            return bytes(self._value)

        async def write(self, writer: Any) -> None:
            with memoryview(self._value) as view:
                for start in range(0, len(view), WRITE_CHUNK_BYTES):
                    await writer.write(view[start : start + WRITE_CHUNK_BYTES])

    return MemoryPayload


def guard(response: tuple[Any, dict[str, Any]] | None, operation: Any, **_: Any) -> None:
    """The first handler of ``needs-retry.s3``: an answer that is no success is an error, at once and for good.

    Botocore's handlers behind it would ask another region, or try again; retries are the RetryLayer's.
    """
    from botocore.exceptions import ClientError

    if response is None:
        return
    answer, parsed = response
    told = parsed.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if max(answer.status_code, told) >= 300:
        raise ClientError(parsed, operation.name)

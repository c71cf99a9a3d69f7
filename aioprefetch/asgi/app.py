"""``RangeApp``: an ASGI application over an Operator.

A request that names at most one range is one GET of the store for the same bytes, whose head describes the object. Only
conditions that have to be checked before, several ranges, and ``HEAD`` ask for metadata first.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from http import HTTPStatus
from typing import Any, TypeAlias

from aioprefetch.accessor.http_headers import quote_etag
from aioprefetch.asgi.responses import (
    BodyMemory,
    ByteSpec,
    Described,
    Message,
    Parts,
    Response,
    Rest,
    Send,
    cache_headers,
    do_overlap,
    failed_condition,
    headers_about,
    keeps_range,
    needs_metadata,
    only_tag,
    parse_ranges,
    start_message,
)
from aioprefetch.errors import (
    BudgetExhausted,
    ClockSkew,
    ConditionNotMatch,
    ConfigInvalid,
    CredentialsExpired,
    Error,
    InvalidArgument,
    InvalidPath,
    InvalidType,
    IsADirectory,
    NotADirectory,
    NotFound,
    ObjectChanged,
    PermissionDenied,
    RangeNotSatisfied,
    is_bucket_missing,
)
from aioprefetch.operator.operator import Operator
from aioprefetch.operator.shared import checked_operator, clone_with_hold
from aioprefetch.options import Seconds
from aioprefetch.ranges import ByteCount, Range, bytes_at_least, total_length
from aioprefetch.runtime.events import logger
from aioprefetch.scheduler.pinned_file import PinnedFile
from aioprefetch.values import Metadata, ReadHead, ReadRequest
from aioprefetch.verbs.arguments import Arguments

Receive: TypeAlias = Callable[[], Awaitable[Message]]

CHUNK_BYTES = 1 << 20
# An object that is overwritten between its metadata and its bytes is begun again so often.
ATTEMPTS_MAX = 3

_NOTHING = memoryview(b"")
_OWN = "accept-ranges|cache-control|connection|content-(?:encoding|length|range|type)|etag|last-modified|t.*-encoding"
_HEADER_NAME = re.compile(rf"(?!(?:{_OWN})\Z)[!#$%&'*+.^_`|~0-9a-z-]+", re.IGNORECASE)
_ABSENT = (NotFound, IsADirectory, NotADirectory, InvalidPath)


class _Refused(Exception):
    """The response is an error, or has nothing to send."""

    def __init__(self, status: int, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status)
        self.status = status
        self.headers = dict(headers or {})


class _ClientLeft(Exception):
    """A message could not be sent, and no other one can be."""


class RangeApp:
    """Serves the objects of an Operator: ``app.mount("/objects", ap.asgi.RangeApp(op))``, or alone under a server.

    ``GET`` and ``HEAD``; ``Range`` with one or several ranges, ``If-Range``, ``If-None-Match``, ``If-Modified-Since``,
    ``If-Match`` and ``If-Unmodified-Since`` as in RFC 9110. The path below the mount is the key. Responses without an
    object say no more than their status: 404 for keys that are not there or cannot be, 403 where the store refuses,
    503 with ``Retry-After`` for what may pass, 502 for any other failure of the store, which is logged.

    A body is of one version and is sent at the pace of the client, from two chunks in memory; an object that changes
    meanwhile ends the connection, and a client that leaves ends the read. What a client has not taken yet is part of
    ``memory_bytes``, apart from bodies of up to 64 KiB; while there is no memory for another body it waits, and holds
    nothing. Browsers are asked to believe the type of a response (``X-Content-Type-Options: nosniff``).

    As an application of its own it gives up connections and memory at the end of its lifespan; where it is mounted they
    go with the Operator.

    Parameters
    ----------
    operator
        Where the objects are.
    prefix
        The directory that is served, ``""`` for all objects of the Operator.
    cache_control
        The value of ``Cache-Control`` in responses with an object, or that say that it has not changed.
    chunk_bytes
        The bytes of a long body that are read by one request; each client whose body is longer holds twice of them, and
        any other client its body.
        Several ranges that are longer together are served as the whole object.
    send_seconds
        A client that takes less than 64 KiB in this time is sent away.
    memory_share
        The part of ``memory_bytes`` that bodies hold at most, other applications with this share included.
    headers
        Fields of every response, such as ``{"Content-Security-Policy": "sandbox"}``; ``None`` leaves out ``nosniff``.
    """

    def __init__(
        self,
        operator: Operator,
        prefix: str = "",
        *,
        cache_control: str | None = None,
        chunk_bytes: ByteCount = CHUNK_BYTES,
        send_seconds: float = 30.0,
        memory_share: float = 0.5,
        headers: Mapping[str, str | None] | None = None,
    ) -> None:
        checked_operator(operator, "serve")
        if prefix.startswith("/"):
            raise InvalidArgument(
                f"prefix is the directory in the store, not a path of URLs: {prefix!r} must not begin with /",
                operation="serve",
            )
        self._operator = clone_with_hold(operator)
        self._prefix = prefix if not prefix or prefix.endswith("/") else f"{prefix}/"
        self._cache_control = _checked_header("cache_control", cache_control)
        self._chunk_bytes = bytes_at_least(1, chunk_bytes, "chunk_bytes", operation="serve", path="")
        self._send_seconds = Seconds(infinite=True).checked(send_seconds, "send_seconds", "serve")
        if not isinstance(memory_share, int | float) or not 0 < memory_share <= 1:
            raise ConfigInvalid(f"memory_share must be above 0 and at most 1, not {memory_share!r}", operation="serve")
        self._memory_share = memory_share
        self._headers = _checked_headers(headers)

    @property
    def operator(self) -> Operator:
        """The operator that it reads through; its statistics count the requests to the store."""
        return self._operator

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one connection of the ASGI protocol."""
        kind = scope["type"]
        if kind == "lifespan":
            await self._live(receive, send)
        elif kind == "http":
            await self._serve(scope, receive, send)
        elif kind == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            raise InvalidType(f"RangeApp serves http, not {kind!r}", operation="serve")

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self._operator.aclose()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _serve(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Respond, until that is done or the client has left."""
        work = asyncio.ensure_future(self._respond(scope, self._sending(send)))
        left = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait((work, left), return_when=asyncio.FIRST_COMPLETED)
            with contextlib.suppress(_ClientLeft):
                (work if work.done() else left).result()
        finally:
            work.cancel()
            left.cancel()
            await asyncio.gather(work, left, return_exceptions=True)
            del work, left  # The tracebacks of their errors hold this frame.

    def _sending(self, send: Send) -> Send:
        """``send`` with our fields, and ``_ClientLeft`` where servers of ASGI 2.4 say so by ``OSError``, or in time."""

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += self._headers
            try:
                async with asyncio.timeout(self._send_seconds) as limit:
                    await send(message)
            except OSError as error:
                if limit.expired():
                    logger.info("a client took nothing for send_seconds=%g, and was sent away", self._send_seconds)
                raise _ClientLeft from error

        return sent

    def _memory(self, path: str) -> BodyMemory:
        return BodyMemory(self._operator.runtime(), path, self._memory_share)

    async def _respond(self, scope: MutableMapping[str, Any], send: Send) -> None:
        method, headers = scope["method"], _headers_of(scope)
        try:
            if method not in ("GET", "HEAD"):
                raise _Refused(405, {"allow": "GET, HEAD"})
            path = self._key(scope)
            try:
                response = await self._prepared(path, headers, is_head=method == "HEAD")
            except Error as error:
                raise _refusal(error) from error
        except _Refused as refused:
            await _send_refusal(send, refused, is_head=method == "HEAD")
            return
        async with contextlib.aclosing(response):
            await response.send(send, cache_control=self._cache_control)

    def _key(self, scope: MutableMapping[str, Any]) -> str:
        """The key of a request. The path is decoded already, and may or may not begin with the mount's path."""
        path: str = scope["path"]
        root = str(scope.get("root_path", "")).rstrip("/")
        if root and (path == root or path.startswith(f"{root}/")):
            path = path[len(root) :]
        key = path.removeprefix("/")
        if not key or key.endswith("/"):
            raise _Refused(404)
        return self._prefix + key

    async def _prepared(self, path: str, headers: Mapping[str, str], *, is_head: bool) -> Response:
        """The response with the first bytes of its body, before anything of it is sent."""
        attempt = 0
        while True:
            attempt += 1
            try:
                if is_head:
                    found = await self._described(path, headers)
                    return Response(path, found, 200, (0, found.size), self._memory(path))
                return await self._prepared_body(path, headers)
            except (ObjectChanged, ConditionNotMatch):
                if attempt == ATTEMPTS_MAX:
                    raise

    async def _described(self, path: str, headers: Mapping[str, str]) -> Described:
        """The metadata of an object, all conditions of the request checked."""
        metadata = await self._operator.stat(path)
        if metadata.is_directory or metadata.size is None:
            raise _Refused(404)
        found = _described_by(metadata, metadata.size)
        self._check_conditions(headers, found)
        return found

    def _check_conditions(self, headers: Mapping[str, str], found: Described) -> None:
        status = failed_condition(headers, found)
        if status is not None:
            unchanged = headers_about(found, self._cache_control) if status == 304 else {}
            raise _Refused(status, unchanged)

    async def _prepared_body(self, path: str, headers: Mapping[str, str]) -> Response:
        specs = parse_ranges(headers.get("range"))
        capability = self._operator.capability
        is_simple = len(specs) <= 1 and not needs_metadata(headers, store_compares=capability.read_if_none_match)
        if is_simple and specs and specs[0].suffix is not None:
            is_simple = 0 < specs[0].suffix <= self._chunk_bytes and capability.read_suffix
        if is_simple and (response := await self._by_one_read(path, headers, specs)) is not None:
            return response
        found = await self._described(path, headers)
        return await self._by_metadata(path, found, specs if keeps_range(headers.get("if-range"), found) else [])

    async def _by_one_read(self, path: str, headers: Mapping[str, str], specs: Sequence[ByteSpec]) -> Response | None:
        """The response by a read of the range itself, or of the first chunk.

        ``None`` if that cannot describe it, or if nothing tells its length and there is no memory for a long one now.
        """
        spec = specs[0] if specs else ByteSpec()
        memory = self._memory(path)
        length, response = spec.length_max, None
        try:
            if length is not None and length <= self._chunk_bytes and "if-range" not in headers:
                await memory.take(length)
            elif not memory.take_now(2 * self._chunk_bytes):
                return None
            response = await self._first_read(path, headers, spec if specs else None, memory)
            return response
        finally:
            if response is None:
                memory.release()

    async def _first_read(
        self, path: str, headers: Mapping[str, str], spec: ByteSpec | None, memory: BodyMemory
    ) -> Response | None:
        tag, operator = only_tag(headers), self._operator
        request = self._first_request(path, spec, tag)
        try:
            head, first, file = await PinnedFile.begin(operator.accessor(), operator.runtime(), request)
        except ConditionNotMatch:
            etag = {} if tag is None else {"etag": quote_etag(tag)}
            raise _Refused(304, etag | cache_headers(self._cache_control)) from None
        except RangeNotSatisfied:
            return None  # The object is empty, or ends before: a condition or the whole may still be the response.
        if file is None:
            return None
        found = _described_by(head, file.size)
        whole = (0, found.size)
        if spec is None:
            return await self._response(file, found, 200, whole, memory, first)
        if not keeps_range(headers.get("if-range"), found):
            return await self._response(file, found, 200, whole, memory, _NOTHING if head.start else first)
        wanted = spec.within(found.size)
        return None if wanted is None else await self._response(file, found, 206, wanted, memory, first)

    def _first_request(self, path: str, spec: ByteSpec | None, tag: str | None) -> ReadRequest:
        if spec is not None and spec.suffix:
            return ReadRequest(path=path, suffix=spec.suffix, if_none_match=tag)
        start, last = (0, None) if spec is None else (spec.first, spec.last)
        size = self._chunk_bytes if last is None else min(self._chunk_bytes, last + 1 - start)
        return ReadRequest(path=path, offset=start, size=size, if_none_match=tag)

    async def _by_metadata(self, path: str, found: Described, specs: Sequence[ByteSpec]) -> Response:
        """The response for an object that is described already. Its conditions hold."""
        ranges = [wanted for spec in specs if (wanted := spec.within(found.size)) is not None]
        if specs and not ranges:
            raise _Refused(416, {"content-range": f"bytes */{found.size}", "accept-ranges": "bytes"})
        is_several = len(ranges) > 1 and not do_overlap(ranges) and total_length(ranges) <= self._chunk_bytes
        if is_several and found.coding is None:  # The parts of a multipart body have no field for it.
            return await self._several(path, found, ranges)
        status, wanted = (206, ranges[0]) if len(ranges) == 1 else (200, (0, found.size))
        memory = self._memory(path)
        file = PinnedFile(self._operator.accessor(), self._operator.runtime(), path, size=found.size, etag=found.etag)
        try:
            return await self._response(file, found, status, wanted, memory)
        except BaseException:
            memory.release()
            raise

    async def _several(self, path: str, found: Described, ranges: Sequence[Range]) -> Parts:
        memory = self._memory(path)
        try:
            await memory.take(total_length(ranges))
            views = await self._operator.view_ranges(path, ranges, if_match=found.etag)
            return Parts(path, found, ranges, views, memory)
        except BaseException:
            memory.release()
            raise

    async def _response(
        self,
        file: PinnedFile,
        found: Described,
        status: int,
        wanted: Range,
        memory: BodyMemory,
        first: memoryview = _NOTHING,
    ) -> Response:
        """A response whose first bytes are in memory. That is reserved before they are read, if there are more."""
        start, end = wanted
        first = first[: end - start]
        is_long = end - start > self._chunk_bytes
        await memory.take(2 * self._chunk_bytes if is_long else end - start)
        if not first and start < end:
            first = await file.read(start, min(end, start + self._chunk_bytes))
        rest = Rest(file, self._chunk_bytes) if len(first) < end - start else None
        return Response(file.path, found, status, wanted, memory, first, rest)


def _described_by(head: ReadHead | Metadata, size: int) -> Described:
    return Described(
        size=size,
        etag=head.etag,
        last_modified=head.last_modified,
        content_type=head.content_type,
        content_encoding=head.content_encoding,
    )


def _checked_header(name: str, value: object) -> str | None:
    """Text that a response can carry as it is, or ``None``."""
    text = Arguments("serve", "").header(name, value)
    try:
        (text or "").encode("latin-1")
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{name} must be in latin-1, as headers are, not {text!r}", operation="serve") from error
    return text


def _checked_headers(headers: Mapping[str, str | None] | None) -> list[tuple[bytes, bytes]]:
    """The fields of every response, as ASGI has them. Raises ``InvalidType`` and ``InvalidArgument``."""
    fields: dict[str, str | None] = {"x-content-type-options": "nosniff"}
    for name, value in (headers or {}).items():
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
            raise InvalidArgument(f"{name!r} is not a header for every response", operation="serve")
        fields[name.lower()] = _checked_header(f"headers[{name!r}]", value)
    return [(name.encode(), value.encode("latin-1")) for name, value in fields.items() if value is not None]


def _headers_of(scope: MutableMapping[str, Any]) -> dict[str, str]:
    """The fields of a request by their names in lower case; a repeated field is one list."""
    fields: dict[str, str] = {}
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        fields[key] = f"{fields[key]}, {text}" if key in fields else text
    return fields


def _refusal(error: Error) -> _Refused:
    """The status that an error of the store means to a client. Its text stays here."""
    if isinstance(error, _ABSENT) and not is_bucket_missing(error):
        return _Refused(404)
    if isinstance(error, PermissionDenied) and not isinstance(error, (CredentialsExpired, ClockSkew)):
        return _Refused(403)
    may_pass = error.status != "permanent" or isinstance(error, (BudgetExhausted, ObjectChanged, ConditionNotMatch))
    logger.warning("a request could not be served: %s", error)
    if not may_pass:
        return _Refused(502)
    return _Refused(503, {"retry-after": str(max(1, math.ceil(error.retry_after_seconds or 1)))})


async def _disconnected(receive: Receive) -> None:
    """Wait until the client has left. The body of a request, if it has one, is not used."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_refusal(send: Send, refused: _Refused, *, is_head: bool) -> None:
    body = b""
    fields = refused.headers
    if refused.status != 304:
        body = f"{HTTPStatus(refused.status).phrase}\n".encode()
        fields = {"content-type": "text/plain; charset=utf-8", "content-length": str(len(body)), **fields}
    await send(start_message(refused.status, fields))
    await send({"type": "http.response.body", "body": b"" if is_head else body, "more_body": False})


__all__ = ["RangeApp"]

"""``RangeApp``: an ASGI application over an Operator.

A request that names at most one range is one GET of the store for the same bytes, whose head describes the object. Only
conditions that have to be checked before, several ranges, and ``HEAD`` ask for metadata first.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import mimetypes
import secrets
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from http import HTTPStatus
from typing import Any, TypeAlias

from aioprefetch.accessor.http_headers import http_date, quote_etag
from aioprefetch.asgi.conditions import (
    ByteSpec,
    Described,
    do_overlap,
    failed_condition,
    keeps_range,
    needs_metadata,
    only_tag,
    parse_ranges,
)
from aioprefetch.errors import (
    BudgetExhausted,
    ClockSkew,
    ConditionNotMatch,
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
)
from aioprefetch.operator.arguments import Arguments
from aioprefetch.operator.operator import Operator
from aioprefetch.operator.shared import checked_operator, with_own_hold
from aioprefetch.ranges import ByteCount, Range, bytes_at_least, total_length
from aioprefetch.runtime.budget import Ticket
from aioprefetch.runtime.events import logger
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.scheduler.pinned_file import PinnedFile, read_ahead
from aioprefetch.values import ReadHead, ReadRequest

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

CHUNK_BYTES = 1 << 20
# An object that is overwritten between its metadata and its bytes is begun again so often.
ATTEMPTS_MAX = 3

_NOTHING = memoryview(b"")
_ABSENT = (NotFound, IsADirectory, NotADirectory, InvalidPath)


class _Refused(Exception):
    """The response is an error, or says that there is nothing to send."""

    def __init__(self, status: int, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status)
        self.status = status
        self.headers = dict(headers or {})


class RangeApp:
    """Serves the objects of an Operator: ``app.mount("/objects", ap.asgi.RangeApp(op))``, or alone under a server.

    ``GET`` and ``HEAD``; ``Range`` with one or several ranges, ``If-Range``, ``If-None-Match``, ``If-Modified-Since``,
    ``If-Match`` and ``If-Unmodified-Since`` as in RFC 9110. The path below the mount is the key. Responses without an
    object say no more than their status: 404 for keys that are not there or cannot be, 403 where the store refuses,
    503 with ``Retry-After`` for what may pass, 502 for any other failure of the store, which is logged.

    A body is of one version and is sent at the pace of the client, from two chunks in memory; an object that changes
    meanwhile ends the connection, and a client that leaves ends the read. While there is no memory for another long
    body, an object is asked for its metadata first: short responses need not wait, and long ones wait holding nothing.

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
        The bytes of a long body that are read by one request; each client whose body is longer holds twice of them.
        Several ranges that are longer together are served as the whole object.
    """

    def __init__(
        self,
        operator: Operator,
        prefix: str = "",
        *,
        cache_control: str | None = None,
        chunk_bytes: ByteCount = CHUNK_BYTES,
    ) -> None:
        checked_operator(operator, "serve")
        if not isinstance(prefix, str):
            raise InvalidType(f"prefix must be a string, not {prefix!r}", operation="serve")
        if prefix.startswith("/"):
            raise InvalidArgument(
                f"prefix is the directory in the store, not a path of URLs: {prefix!r} must not begin with /",
                operation="serve",
            )
        self._operator = with_own_hold(operator)
        self._prefix = prefix if not prefix or prefix.endswith("/") else f"{prefix}/"
        self._cache_control = _checked_header("cache_control", cache_control)
        self._chunk_bytes = bytes_at_least(1, chunk_bytes, "chunk_bytes", operation="serve", path="")

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
        work = asyncio.ensure_future(self._respond(scope, send))
        left = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait((work, left), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
            else:
                left.result()
        finally:
            work.cancel()
            left.cancel()
            await asyncio.gather(work, left, return_exceptions=True)

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
        """The key of a request. The path is decoded already, and may or may not begin with that of the mount."""
        path: str = scope["path"]
        root = str(scope.get("root_path", "")).rstrip("/")
        if root and (path == root or path.startswith(f"{root}/")):
            path = path[len(root) :]
        key = path.removeprefix("/")
        if not key or key.endswith("/"):
            raise _Refused(404)
        return self._prefix + key

    async def _prepared(self, path: str, headers: Mapping[str, str], *, is_head: bool) -> _Response:
        """The response with the first bytes of its body, before anything of it is sent."""
        attempt = 0
        while True:
            attempt += 1
            try:
                if is_head:
                    found = await self._described(path, headers)
                    return _Response(path, found, None, 200, (0, found.size))
                return await self._prepared_body(path, headers)
            except (ObjectChanged, ConditionNotMatch):
                if attempt == ATTEMPTS_MAX:
                    raise

    async def _described(self, path: str, headers: Mapping[str, str]) -> Described:
        """The metadata of an object, all conditions of the request checked."""
        metadata = await self._operator.stat(path)
        if metadata.is_directory or metadata.size is None:
            raise _Refused(404)
        found = Described(
            size=metadata.size,
            etag=metadata.etag,
            last_modified=metadata.last_modified,
            content_type=metadata.content_type,
            content_encoding=metadata.content_encoding,
        )
        self._check_conditions(headers, found)
        return found

    def _check_conditions(self, headers: Mapping[str, str], found: Described) -> None:
        status = failed_condition(headers, found)
        if status is not None:
            unchanged = _headers_about(found, self._cache_control) if status == 304 else {}
            raise _Refused(status, unchanged)

    async def _prepared_body(self, path: str, headers: Mapping[str, str]) -> _Response:
        specs = parse_ranges(headers.get("range"))
        capability = self._operator.capability
        is_simple = len(specs) <= 1 and not needs_metadata(headers, store_compares=capability.read_if_none_match)
        if is_simple and specs and specs[0].suffix is not None:
            is_simple = 0 < specs[0].suffix <= self._chunk_bytes and capability.read_suffix
        if is_simple and (response := await self._by_one_read(path, headers, specs)) is not None:
            return response
        found = await self._described(path, headers)
        return await self._by_metadata(path, found, specs if keeps_range(headers.get("if-range"), found) else [])

    async def _by_one_read(self, path: str, headers: Mapping[str, str], specs: Sequence[ByteSpec]) -> _Response | None:
        """The response by a read of the range itself, or of the first chunk.

        ``None`` if that cannot describe it, or if it may be a long one for which there is no memory now.
        """
        spec = specs[0] if specs else ByteSpec()
        memory = _BodyMemory(self._operator.runtime(), path, self._chunk_bytes)
        is_short = spec.suffix is not None or (spec.last is not None and spec.last - spec.first < self._chunk_bytes)
        if not (is_short and "if-range" not in headers) and not memory.take_now():
            return None
        try:
            response = await self._first_read(path, headers, spec if specs else None, memory)
        except BaseException:
            memory.release()
            raise
        if response is None:
            memory.release()
        return response

    async def _first_read(
        self, path: str, headers: Mapping[str, str], spec: ByteSpec | None, memory: _BodyMemory
    ) -> _Response | None:
        tag, operator = only_tag(headers), self._operator
        request = self._first_request(path, spec, tag)
        try:
            head, first, file = await PinnedFile.begin(operator.accessor(), operator.runtime(), request)
        except ConditionNotMatch:
            etag = {} if tag is None else {"etag": quote_etag(tag)}
            raise _Refused(304, etag | _cache_headers(self._cache_control)) from None
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

    async def _by_metadata(self, path: str, found: Described, specs: Sequence[ByteSpec]) -> _Response:
        """The response for an object that is described already. Its conditions hold."""
        ranges = [wanted for spec in specs if (wanted := spec.within(found.size)) is not None]
        if specs and not ranges:
            raise _Refused(416, {"content-range": f"bytes */{found.size}", "accept-ranges": "bytes"})
        is_several = len(ranges) > 1 and not do_overlap(ranges) and total_length(ranges) <= self._chunk_bytes
        if is_several and found.coding is None:  # The parts of a multipart body have no field for it.
            views = await self._operator.view_ranges(path, ranges, if_match=found.etag)
            return _Parts(path, found, ranges, views)
        status, wanted = (206, ranges[0]) if len(ranges) == 1 else (200, (0, found.size))
        runtime = self._operator.runtime()
        memory = _BodyMemory(runtime, path, self._chunk_bytes)
        file = PinnedFile(self._operator.accessor(), runtime, path, size=found.size, etag=found.etag)
        try:
            return await self._response(file, found, status, wanted, memory)
        except BaseException:
            memory.release()
            raise

    async def _response(
        self,
        file: PinnedFile,
        found: Described,
        status: int,
        wanted: Range,
        memory: _BodyMemory,
        first: memoryview = _NOTHING,
    ) -> _Response:
        """A response whose first bytes are in memory. That is reserved before they are read, if there are more."""
        start, end = wanted
        first = first[: end - start]
        if len(first) == end - start:
            memory.release()
            return _Response(file.path, found, None, status, wanted, first)
        if end - start > self._chunk_bytes:
            await memory.take()
        if not first:
            first = await file.read(start, min(end, start + self._chunk_bytes))
        return _Response(file.path, found, _Body(file, memory, self._chunk_bytes), status, wanted, first)


class _BodyMemory:
    """Two chunks out of the budget, for one body that is longer than one of them."""

    def __init__(self, runtime: Runtime, path: str, chunk_bytes: int) -> None:
        self._runtime = runtime
        self._path = path
        self._size_bytes = min(2 * chunk_bytes, runtime.budget.limit_bytes)
        self._ticket: Ticket | None = None

    def take_now(self) -> bool:
        """Take it if it is free, and return whether it was."""
        self._ticket = self._runtime.budget.request(self._size_bytes, "demand")
        if not self._ticket.granted:
            self.release()
        return self._ticket is not None

    async def take(self) -> None:
        """Wait for it, unless it is taken already. ``BudgetExhausted`` if it does not become free in time."""
        if self._ticket is not None:
            return
        options = self._runtime.options
        self._ticket = self._runtime.budget.request(self._size_bytes, "demand")
        try:
            async with asyncio.timeout(options.budget_wait_seconds):
                await self._ticket.wait()
        except TimeoutError:
            raise BudgetExhausted(
                f"no memory for a body within budget_wait_seconds={options.budget_wait_seconds}:"
                f" too many clients at once for memory_bytes={options.memory_bytes}",
                operation="serve",
                path=self._path,
            ) from None

    def release(self) -> None:
        """Return it, or stop waiting for it."""
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            self._runtime.budget.cancel(ticket)


class _Body:
    """The rest of a long body, and the memory that is reserved for it."""

    def __init__(self, file: PinnedFile, memory: _BodyMemory, chunk_bytes: int) -> None:
        self._file = file
        self._memory = memory
        self._chunk_bytes = chunk_bytes

    def release(self) -> None:
        """Return the memory."""
        self._memory.release()

    async def send(self, send: Send, first: memoryview, start: int, end: int) -> None:
        """Send ``[start, end)``, of which ``first`` is in memory."""
        chunks = read_ahead(self._file, first, start, end, chunk_bytes=self._chunk_bytes)
        del first
        async with contextlib.aclosing(chunks):
            async for chunk in chunks:
                start += len(chunk)
                await send(_body_message(chunk, more=start < end))


class _Response:
    """A head and a body, of which the first bytes are in memory."""

    def __init__(
        self,
        path: str,
        found: Described,
        body: _Body | None,
        status: int,
        wanted: Range,
        first: memoryview = _NOTHING,
    ) -> None:
        self.path = path
        self.found = found
        self.status = status
        self.wanted = wanted
        self._body = body
        self._first = first

    @property
    def content_type(self) -> str:
        """The type that was stored with the object, or that its name suggests."""
        stored = self.found.content_type or mimetypes.guess_type(self.path)[0] or "application/octet-stream"
        return _on_one_line(stored)

    def headers(self) -> dict[str, str]:
        """The fields that depend on the range."""
        start, end = self.wanted
        fields = {"content-type": self.content_type, "content-length": str(end - start)}
        if self.found.coding is not None:
            fields["content-encoding"] = self.found.coding
        if self.status == 206:
            fields["content-range"] = f"bytes {start}-{end - 1}/{self.found.size}"
        return fields

    async def send(self, send: Send, *, cache_control: str | None) -> None:
        """Send all of it. An error after the head ends the connection: the server sees fewer bytes than announced."""
        fields = {"accept-ranges": "bytes", **self.headers(), **_headers_about(self.found, cache_control)}
        await send(_start_message(self.status, fields))
        await self._send_body(send)

    async def _send_body(self, send: Send) -> None:
        start, end = self.wanted
        if self._body is None:
            await send(_body_message(self._first))
        else:
            first, self._first = self._first, _NOTHING
            await self._body.send(send, first, start, end)

    async def aclose(self) -> None:
        """Return its memory."""
        if self._body is not None:
            self._body.release()


class _Parts(_Response):
    """Several ranges as ``multipart/byteranges``, all of them in memory."""

    def __init__(self, path: str, found: Described, ranges: Sequence[Range], views: Sequence[memoryview]) -> None:
        super().__init__(path, found, None, 206, (0, 0))
        self._boundary = secrets.token_hex(16)
        self._pieces: list[bytes] = []
        for (start, end), view in zip(ranges, views, strict=True):
            head = (
                f"\r\n--{self._boundary}\r\nContent-Type: {self.content_type}\r\n"
                f"Content-Range: bytes {start}-{end - 1}/{found.size}\r\n\r\n"
            )
            self._pieces += [head.encode("latin-1", "replace"), bytes(view)]
        self._pieces.append(f"\r\n--{self._boundary}--\r\n".encode())

    def headers(self) -> dict[str, str]:
        return {
            "content-type": f"multipart/byteranges; boundary={self._boundary}",
            "content-length": str(sum(map(len, self._pieces))),
        }

    async def _send_body(self, send: Send) -> None:
        for piece in self._pieces[:-1]:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": self._pieces[-1], "more_body": False})


def _described_by(head: ReadHead, size: int) -> Described:
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


def _headers_of(scope: MutableMapping[str, Any]) -> dict[str, str]:
    """The fields of a request by their names in lower case; those that come several times are one list."""
    fields: dict[str, str] = {}
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        fields[key] = f"{fields[key]}, {text}" if key in fields else text
    return fields


def _headers_about(found: Described, cache_control: str | None) -> dict[str, str]:
    fields = _cache_headers(cache_control)
    if found.quoted_etag is not None:
        fields["etag"] = found.quoted_etag
    if found.last_modified is not None:
        fields["last-modified"] = http_date(found.last_modified)
    return fields


def _cache_headers(cache_control: str | None) -> dict[str, str]:
    return {} if cache_control is None else {"cache-control": cache_control}


def _refusal(error: Error) -> _Refused:
    """The status that an error of the store means to a client. Its text stays here."""
    if isinstance(error, _ABSENT):
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
    await send(_start_message(refused.status, fields))
    await send({"type": "http.response.body", "body": b"" if is_head else body, "more_body": False})


def _start_message(status: int, fields: Mapping[str, str]) -> Message:
    headers = [
        (name.encode("latin-1"), _on_one_line(value).encode("latin-1", "replace")) for name, value in fields.items()
    ]
    return {"type": "http.response.start", "status": status, "headers": headers}


def _on_one_line(text: str) -> str:
    """A value without characters that would end its header: the type of an object comes from its writer."""
    return "".join(char for char in text if char.isprintable())


def _body_message(chunk: memoryview, *, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": bytes(chunk), "more_body": more}


__all__ = ["RangeApp"]

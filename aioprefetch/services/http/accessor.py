"""The live http service: reads with a way around each thing that a plain HTTP server may lack."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aioprefetch.accessor import check_reply
from aioprefetch.bodies import ReadBody
from aioprefetch.errors import ConditionNotMatch, Error, ProtocolError, RangeNotSatisfied, Unsupported
from aioprefetch.headers import is_weak, parse_content_range, quote_etag, range_header
from aioprefetch.ranges import resolve_range
from aioprefetch.runtime import Runtime
from aioprefetch.services.http.answers import (
    answer_head,
    content_length,
    etag_of,
    failure_of,
    is_synthetic,
    metadata_of,
)
from aioprefetch.services.http.bodies import BufferedBody, WireBody
from aioprefetch.services.http.exchange import Exchange, Wire
from aioprefetch.services.http.wire_answer import Answer
from aioprefetch.services.service_accessor import ServiceAccessor
from aioprefetch.values import AnswerHead, Metadata, ReadHead, ReadRequest, StatRequest

if TYPE_CHECKING:
    from aioprefetch.services.http.recipe import Http

# An answer that does not tell its length is read into memory, up to this much.
UNSIZED_BYTES_MAX = 64 << 20
# 403 is on the list because a signed URL is often signed for GET alone.
HEAD_REFUSED = frozenset({403, 405, 501})
ONE_BYTE = {"Range": "bytes=0-0"}


class HttpAccessor(ServiceAccessor):
    """Reads and stats objects of one base URL."""

    def __init__(self, recipe: Http, runtime: Runtime, wire: Wire) -> None:
        super().__init__(recipe.info, recipe.capability, runtime)
        self._recipe = recipe
        self._exchange = Exchange(recipe, runtime, wire)
        self._traits = self._exchange.traits

    async def open_read(self, request: ReadRequest) -> ReadBody:
        if request.version is not None:
            self._unsupported(request, "versions")
        answer = await self._exchange.send(request, "GET", _request_headers(request))
        try:
            if answer.status == 206:
                return self._ranged(request, answer)
            if answer.status != 200:
                raise await failure_of(request, answer, self._recipe.identity)
            length = content_length(answer.headers)
            if length is None:
                return await self._unsized(request, answer)
            if request.is_whole:
                return self._body(request, answer, _checked(request, answer_head(answer)))
            return await self._unranged(request, answer, length)
        except BaseException as error:
            answer.close()
            if isinstance(error, Error):
                error.add_context(operation="read", path=request.path)
            raise

    def _ranged(self, request: ReadRequest, answer: Answer) -> WireBody:
        head = _checked(request, answer_head(answer))
        self._traits.obeys_range = True
        return self._body(request, answer, head)

    async def _unranged(self, request: ReadRequest, answer: Answer, total: int) -> ReadBody:
        """The whole object came although a range was asked for: take from it what is wanted, if that is near."""
        bounds = _bounds(request, total)
        head = _checked_part(request, answer_head(answer), bounds, total)
        start, end = bounds
        if start <= self._recipe.skip_bytes_max:
            self._note_ignored_range(request)
            return self._body(request, answer, head, skip_bytes=start)
        answer.close()
        if request.suffix is not None:
            # Many servers that know ranges do not know those from the end.
            return await self.open_read(replace(request, offset=start, size=end - start, suffix=None))
        if self._traits.obeys_range:
            raise ProtocolError(
                f"the server sent the whole object for {request.describe()}, although it has obeyed ranges before",
                operation="read",
                path=request.path,
            )
        self._note_ignored_range(request)
        raise Unsupported(
            f"the server ignores ranges, and offset {start} is beyond skip_bytes_max={self._recipe.skip_bytes_max}: "
            "read from the start, raise skip_bytes_max, or copy the object to a store that has ranges",
            operation="read",
            path=request.path,
        )

    def _note_ignored_range(self, request: ReadRequest) -> None:
        if self._traits.obeys_range is None:
            self._traits.obeys_range = False
            self.runtime.events.publish("http.range_ignored", request.path, service=self.info.url)

    async def _unsized(self, request: ReadRequest, answer: Answer) -> BufferedBody:
        """No length was told (a chunked body, or one that ends with the connection): read ahead to know it."""
        wanted_end = None
        if request.size is not None and request.suffix is None:
            wanted_end = request.offset + request.size
        data = bytearray()
        complete = False
        while wanted_end is None or len(data) < wanted_end:
            chunk = await answer.read_chunk()
            self.runtime.counters["stream_read_total_bytes"] += len(chunk)
            if not chunk:
                complete = True
                break
            data += chunk
            if len(data) > UNSIZED_BYTES_MAX:
                raise Unsupported(
                    f"the server tells no length, and such objects are read up to {UNSIZED_BYTES_MAX} bytes only: "
                    "copy the object to a store that tells lengths and has ranges",
                    operation="read",
                    path=request.path,
                )
        answer.close()
        total = len(data) if complete else None
        bounds = _bounds(request, len(data))
        # Without a total on every answer no ETag can be made up that is the same on each: only a real one counts.
        described = replace(answer_head(answer), etag=etag_of(answer.headers, None))
        head = _checked_part(request, described, bounds, total)
        return BufferedBody(head, memoryview(data)[bounds[0] : bounds[1]])

    def _body(self, request: ReadRequest, answer: Answer, head: ReadHead, *, skip_bytes: int = 0) -> WireBody:
        return WireBody(self.runtime, request, answer, head, skip_bytes=skip_bytes)

    async def stat(self, request: StatRequest) -> Metadata:
        if request.version is not None:
            self._unsupported(request, "versions")
        method = self._recipe.stat_method
        if method == "get" or (method == "auto" and self._traits.refuses_head):
            return await self._stat_by_get(request)
        answer = await self._exchange.send(request, "HEAD", {})
        answer.close()
        if answer.status == 200:
            size = content_length(answer.headers)
            return metadata_of(request.path, answer, size) if size is not None else await self._stat_by_get(request)
        if answer.status not in HEAD_REFUSED or method == "head":
            raise await failure_of(request, answer, self._recipe.identity)
        found = await self._stat_by_get(request)
        self._traits.refuses_head = True
        return found

    async def _stat_by_get(self, request: StatRequest) -> Metadata:
        answer = await self._exchange.send(request, "GET", ONE_BYTE)
        try:
            size: int | None
            if answer.status == 206:
                parsed = parse_content_range(answer.headers.get("Content-Range", ""))
                if parsed is None or parsed[0] != (0, 1):
                    raise ProtocolError(
                        "the answer to a range of one byte holds something else", operation="stat", path=request.path
                    )
                size = parsed[1]
            elif answer.status == 200:
                size = content_length(answer.headers)
            elif answer.status == 416:  # Only an empty object has no first byte.
                size = 0
            else:
                raise await failure_of(request, answer, self._recipe.identity)
            return metadata_of(request.path, answer, size)
        finally:
            answer.close()


def _request_headers(request: ReadRequest) -> dict[str, str]:
    headers: dict[str, str] = {}
    wanted = range_header(request)
    if wanted is not None:
        headers["Range"] = wanted
    # A weak ETag never matches in If-Match, and one of our own making matches nothing: those are only compared.
    if request.if_match is not None and not is_weak(request.if_match):
        headers["If-Match"] = quote_etag(request.if_match)
    if request.if_none_match is not None and not is_synthetic(request.if_none_match):
        headers["If-None-Match"] = quote_etag(request.if_none_match)
    return headers


def _checked(request: ReadRequest, answer: AnswerHead) -> ReadHead:
    """``check_reply``, and ``if_none_match`` for servers that do not know it."""
    head = check_reply(request, answer)
    if request.if_none_match is not None and request.if_none_match in ("*", head.etag):
        raise ConditionNotMatch(
            f"the object's ETag is still {head.etag!r}",
            operation="read",
            path=request.path,
            context={"etag": head.etag},
        )
    return head


def _checked_part(request: ReadRequest, answer: AnswerHead, bounds: tuple[int, int], total: int | None) -> ReadHead:
    """The checked head of a part that we cut out of a whole object ourselves."""
    start, end = bounds
    if start == end:
        head = _checked(
            replace(request, offset=0, size=None, suffix=None), replace(answer, status=200, content_length=0)
        )
        return replace(head, start=start, total=total)
    whole = "*" if total is None else total
    part = replace(answer, status=206, content_range=f"bytes {start}-{end - 1}/{whole}", content_length=end - start)
    return _checked(request, part)


def _bounds(request: ReadRequest, total: int) -> tuple[int, int]:
    bounds = resolve_range(request.offset, request.size, request.suffix, total)
    if bounds is None:
        raise RangeNotSatisfied(
            f"{request.describe()} starts at or beyond the end of the object's {total} bytes",
            total=total,
            operation="read",
            path=request.path,
        )
    return bounds

"""The live http service: reads with a way around each thing that a plain HTTP server may lack."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aioprefetch.accessor.http_headers import is_weak, parse_content_range, quote_etag, range_header
from aioprefetch.accessor.response_check import check_reply
from aioprefetch.accessor.service_base import ServiceAccessor
from aioprefetch.accessor.sink import Sink, drain
from aioprefetch.accessor.write_body import ReadBody
from aioprefetch.errors import Error, ProtocolError, RangeNotSatisfied, Unsupported
from aioprefetch.ranges import resolve_range
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.http.bodies import BufferedBody, UnsizedBytes
from aioprefetch.services.http.exchange import Exchange, Response, ServerTraits
from aioprefetch.services.http.fields import field_of
from aioprefetch.services.http.responses import (
    answer_head,
    content_length,
    etag_of,
    failure_of,
    is_synthetic,
    metadata_of,
)
from aioprefetch.services.streamed_body import StreamedBody
from aioprefetch.transport import HttpClient, ResponseHead, StreamedAnswer, encoded_fields
from aioprefetch.values import Metadata, ReadHead, ReadReply, ReadRequest, StatRequest, UncheckedHead

if TYPE_CHECKING:
    from aioprefetch.services.http.recipe import Http

# 403 is on the list because a signed URL is often signed for GET alone.
HEAD_REFUSED = frozenset({403, 405, 501})
ONE_BYTE = b"Range: bytes=0-0\r\n"


class HttpAccessor(ServiceAccessor):
    """Reads and stats objects of one base URL."""

    def __init__(self, recipe: Http, runtime: Runtime, client: HttpClient, stall_seconds: float) -> None:
        super().__init__(recipe.info, recipe.capability, runtime)
        # No wait of ours lasts longer: the client watches its connections.
        self.stall_seconds = stall_seconds
        self._recipe = recipe
        self._exchange = Exchange(recipe, runtime, client)
        self._traits = self._exchange.traits

    async def read(self, request: ReadRequest, sink: Sink) -> ReadReply:
        """As in ``Accessor``. What was asked for, and tells its length, is received straight into the sink."""
        counters = self.runtime.counters
        counters["transport_requests"] += 1
        direct = _DirectRead(request, sink, self._traits)
        try:
            response = await self._send(request, direct)
        except Error as error:
            if direct.head is not None:
                error.head, error.received = direct.head, direct.received
            raise
        finally:
            if direct.head is not None:
                counters["stream_read_total_bytes"] += direct.received
        if direct.head is not None:
            return ReadReply(head=direct.head, received=direct.head.size)
        body = await self._body_of(request, response)
        await drain(body, sink, path=request.path)
        return ReadReply(head=body.head, received=body.head.size)

    async def open_read(self, request: ReadRequest) -> ReadBody:
        self.runtime.counters["transport_requests"] += 1
        return await self._body_of(request, await self._send(request))

    async def _send(self, request: ReadRequest, direct: _DirectRead | None = None) -> Response:
        if request.version is not None:
            self._unsupported(request, "versions")
        take = None if direct is None else direct.take
        return await self._exchange.send(request, "GET", _request_fields(request), take)

    async def _body_of(self, request: ReadRequest, response: Response) -> ReadBody:
        """The body of a response that is read piece by piece. Closes the response if it is not what was asked for."""
        stream = response.stream
        assert stream is not None
        try:
            if response.status not in (200, 206):
                raise await failure_of(request, response, self._recipe.identity)
            if _is_ranged(response.head):
                head = check_reply(request, answer_head(response.head))
                self._traits.obeys_range = True
                return StreamedBody(self.runtime, request, stream, head)
            if response.head.length is None:
                return await self._unsized(request, response.head, stream)
            if request.is_whole:
                return StreamedBody(self.runtime, request, stream, check_reply(request, answer_head(response.head)))
            return await self._unranged(request, response.head, stream, response.head.length)
        except BaseException as error:
            response.close()
            if isinstance(error, Error):
                error.add_context(operation="read", path=request.path)
            raise

    async def _unranged(
        self, request: ReadRequest, response: ResponseHead, stream: StreamedAnswer, total: int
    ) -> ReadBody:
        """The whole object came although a range was asked for: take from it what is wanted, if that is near."""
        bounds = _bounds(request, total)
        head = _checked_part(request, answer_head(response), bounds, total)
        start, end = bounds
        if start <= self._recipe.skip_bytes_max:
            self._note_ignored_range(request)
            return StreamedBody(self.runtime, request, stream, head, skip_bytes=start)
        stream.close()
        if request.suffix is not None:
            # Many servers that know ranges do not know those from the end.
            request = replace(request, offset=start, size=end - start, suffix=None)
            return await self._body_of(request, await self._send(request))
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

    async def _unsized(self, request: ReadRequest, response: ResponseHead, stream: StreamedAnswer) -> BufferedBody:
        """No length was told (a chunked body, or one that ends with the connection): read ahead to know it."""
        collected = UnsizedBytes(self.runtime, request)
        complete = False
        try:
            while not complete and not collected.is_enough:
                chunk = await stream.read_chunk()
                self.runtime.counters["stream_read_total_bytes"] += len(chunk)
                await collected.add(chunk)
                complete = not chunk
            stream.close()
            bounds = _bounds(request, collected.received)
            # Without a total on every response no ETag can be made up that is the same on each: only a real one counts.
            described = replace(answer_head(response), etag=etag_of(response, None))
            head = _checked_part(request, described, bounds, collected.received if complete else None)
            return BufferedBody(head, collected)
        except BaseException:
            collected.release()
            raise

    async def stat(self, request: StatRequest) -> Metadata:
        if request.version is not None:
            self._unsupported(request, "versions")
        method = self._recipe.stat_method
        if method == "get" or (method == "auto" and self._traits.refuses_head):
            return await self._stat_by_get(request)
        response = await self._exchange.send(request, "HEAD", b"")
        response.close()
        if response.status == 200:
            size = content_length(response.head)
            return await self._stat_by_get(request) if size is None else metadata_of(request.path, response.head, size)
        if response.status not in HEAD_REFUSED or method == "head":
            raise await failure_of(request, response, self._recipe.identity)
        found = await self._stat_by_get(request)
        self._traits.refuses_head = True
        return found

    async def _stat_by_get(self, request: StatRequest) -> Metadata:
        response = await self._exchange.send(request, "GET", ONE_BYTE)
        try:
            size: int | None
            if response.status == 206:
                parsed = parse_content_range(field_of(response.head, b"content-range") or "")
                if parsed is None or parsed[0] != (0, 1):
                    raise ProtocolError(
                        "the response to a range of one byte holds something else", operation="stat", path=request.path
                    )
                size = parsed[1]
            elif response.status == 200:
                size = content_length(response.head)
            elif response.status == 416:  # Only an empty object has no first byte.
                size = 0
            else:
                raise await failure_of(request, response, self._recipe.identity)
            return metadata_of(request.path, response.head, size)
        finally:
            response.close()


class _DirectRead:
    """Takes a response straight into a sink, if it is the range that was asked for. ``head`` is set once it does."""

    __slots__ = ("_before", "_request", "_sink", "_traits", "head")

    def __init__(self, request: ReadRequest, sink: Sink, traits: ServerTraits) -> None:
        self.head: ReadHead | None = None
        self._request = request
        self._sink = sink
        self._traits = traits
        self._before = sink.received

    @property
    def received(self) -> int:
        """Bytes of this response."""
        return self._sink.received - self._before

    def take(self, response: ResponseHead) -> Sink | None:
        """The sink, begun with the checked head; ``None`` for what takes more than receiving it."""
        request = self._request
        if response.length is None or response.status not in (200, 206):
            return None
        is_ranged = _is_ranged(response)
        if not is_ranged and not request.is_whole:
            return None
        head = check_reply(request, answer_head(response))
        if is_ranged:
            self._traits.obeys_range = True
        self._sink.begin(head, path=request.path)
        self.head = head
        return self._sink


def _is_ranged(response: ResponseHead) -> bool:
    """Whether a 200 or 206 claims to hold a range. Some servers answer 200 with a correct Content-Range."""
    return response.status == 206 or b"content-range" in response.fields


def _request_fields(request: ReadRequest) -> bytes:
    """The headers of one read, encoded."""
    wanted = range_header(request)
    fields = b"" if wanted is None else f"Range: {wanted}\r\n".encode()
    # A weak ETag never matches in If-Match, and one of our own making matches nothing: those are only compared.
    if request.if_match is not None and not is_weak(request.if_match):
        fields += encoded_fields({"If-Match": quote_etag(request.if_match)})
    if request.if_none_match is not None and not is_synthetic(request.if_none_match):
        fields += encoded_fields({"If-None-Match": quote_etag(request.if_none_match)})
    return fields


def _checked_part(
    request: ReadRequest, response: UncheckedHead, bounds: tuple[int, int], total: int | None
) -> ReadHead:
    """The checked head of a part that we cut out of a whole object ourselves."""
    start, end = bounds
    if start == end:
        head = check_reply(
            replace(request, offset=0, size=None, suffix=None), replace(response, status=200, content_length=0)
        )
        return replace(head, start=start, total=total)
    whole = "*" if total is None else total
    part = replace(response, status=206, content_range=f"bytes {start}-{end - 1}/{whole}", content_length=end - start)
    return check_reply(request, part)


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

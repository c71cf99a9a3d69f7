"""The live http service: reads, also from servers without ranges, suffix ranges, lengths, ETags or HEAD."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from aioprefetch.accessor.http_headers import (
    is_weak,
    parse_content_range,
    quote_etag,
    range_header,
    time_conditions,
)
from aioprefetch.accessor.response_check import check_reply, due_range
from aioprefetch.accessor.service_base import ServiceAccessor
from aioprefetch.accessor.sink import Sink
from aioprefetch.errors import Error, ProtocolError, Unsupported
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.http.exchange import (
    SUCCESS_STATUSES,
    Exchange,
    ServerTraits,
    SkippingReceiver,
    UnsizedReceiver,
)
from aioprefetch.services.http.options import HttpOptions
from aioprefetch.services.http.responses import (
    content_length,
    etag_of,
    field_of,
    is_synthetic,
    metadata_of,
    unchecked_head,
)
from aioprefetch.services.response_bodies import ErrorBody, receiver_of
from aioprefetch.transport.connection import Connection, Destination
from aioprefetch.transport.origin import encoded_fields
from aioprefetch.transport.pool import HttpClient
from aioprefetch.transport.responses import ResponseHead
from aioprefetch.values import Metadata, ReadHead, ReadReply, ReadRequest, StatRequest, UncheckedHead

# 403 is on the list because a signed URL is often signed for GET alone.
HEAD_REFUSED = frozenset({403, 405, 501})
ONE_BYTE = b"Range: bytes=0-0\r\n"
_WHOLE: dict[str, Any] = {"offset": 0, "size": None, "suffix": None, "first_bytes": None}


class HttpAccessor(ServiceAccessor):
    """Reads and stats objects of one base URL; a part of what has to be decoded by a request for the whole."""

    reports_requests = frozenset(("read", "stat"))

    def __init__(self, options: HttpOptions, runtime: Runtime, client: HttpClient, stall_seconds: float) -> None:
        super().__init__(options.info, options.capability, runtime)
        # The client watches its connections, so that no wait of this service lasts longer.
        self.stall_seconds = stall_seconds
        self._options = options
        self._exchange = Exchange(options, runtime, client)
        self._traits = self._exchange.traits

    async def read(self, request: ReadRequest, sink: Sink, whole: ReadRequest | None = None) -> ReadReply:
        if request.version is not None:
            self._unsupported(request, "versions")
        self.runtime.counters["transport_requests"] += 1
        read = _SinkRead(request, sink, self._options, self._exchange, self.runtime)
        before = sink.received
        try:
            try:
                fields = _request_fields(whole or request)
                response = await self._exchange.send(request, "GET", fields, read.receive, sink)
            finally:
                self.runtime.counters["stream_read_total_bytes"] += sink.received - before
            if read.is_encoded_part or (response.status == 416 and self._options.decode):
                if whole is not None:
                    raise ProtocolError("the server sends a part of an encoded object where all of it is asked for")
                return await self.read(request, sink, replace(request, **_WHOLE))
            if response.status not in SUCCESS_STATUSES:
                raise self._exchange.failure_of(request, response)
            if read.too_far is not None:
                return await self._read_elsewhere(request, sink, *read.too_far)
            return read.end()
        except Error as error:
            if read.head is not None:
                error.head, error.received = read.head, sink.received - before
            error.add_context(operation="read", path=request.path)
            raise
        finally:
            read.close()

    async def _read_elsewhere(self, request: ReadRequest, sink: Sink, start: int, end: int) -> ReadReply:
        """Read otherwise: the whole object was sent instead of a range beyond ``skip_bytes_max``, and was cancelled."""
        if request.suffix is not None:
            # Many servers that support ranges do not support ranges from the end.
            return await self.read(replace(request, offset=start, size=end - start, suffix=None), sink)
        if self._traits.obeys_range:
            raise ProtocolError(
                f"the server sent the whole object for {request.describe()}, although it has obeyed ranges before",
                operation="read",
                path=request.path,
            )
        _note_ignored_range(self.runtime, self._traits, self._options, request)
        raise Unsupported(
            f"the server ignores ranges, and offset {start} is beyond skip_bytes_max={self._options.skip_bytes_max}: "
            "read from the start, raise skip_bytes_max, or copy the object to a store that has ranges",
            operation="read",
            path=request.path,
        )

    async def stat(self, request: StatRequest) -> Metadata:
        if request.version is not None:
            self._unsupported(request, "versions")
        method = self._options.stat_method
        if method == "get" or (method == "auto" and self._traits.refuses_head):
            return await self._stat_by_get(request)
        response = await self._exchange.send(request, "HEAD", b"", _receive_nothing)
        if response.status == 200:
            size = content_length(response.head)
            return await self._stat_by_get(request) if size is None else self._metadata(request, response.head, size)
        if response.status not in HEAD_REFUSED or method == "head":
            raise self._exchange.failure_of(request, response)
        metadata = await self._stat_by_get(request)
        self._traits.refuses_head = True
        return metadata

    async def _stat_by_get(self, request: StatRequest) -> Metadata:
        response = await self._exchange.send(request, "GET", ONE_BYTE, _receive_one_byte)
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
            raise self._exchange.failure_of(request, response)
        return self._metadata(request, response.head, size)

    def _metadata(self, request: StatRequest, head: ResponseHead, size: int | None) -> Metadata:
        is_decoded = self._exchange.taken_coding(request, head)
        return metadata_of(request.path, head, None if is_decoded else size)  # The size as sent.


class _SinkRead:
    """The destination of the body of one read.

    The requested range goes into the sink in place. A wanted part of a whole object is received behind a prefix that is
    dropped; a body without a length is collected, and copied at its end. ``head`` is set once the sink has begun.
    ``too_far`` are the bounds of a part that was not received because its prefix is too long.
    """

    is_encoded_part = False

    def __init__(
        self, request: ReadRequest, sink: Sink, options: HttpOptions, exchange: Exchange, runtime: Runtime
    ) -> None:
        self.head: ReadHead | None = None
        self.too_far: tuple[int, int] | None = None
        self._request = request
        self._sink = sink
        self._options = options
        self._exchange = exchange
        self._runtime = runtime
        self._unsized: UnsizedReceiver | None = None
        self._unsized_head: ResponseHead | None = None

    def receive(self, response: ResponseHead, connection: Connection) -> Destination | None:
        """Check the head of a 200 or 206, and begin the sink."""
        request = self._request
        # Some servers respond 200 with a correct Content-Range.
        is_ranged = response.status == 206 or b"content-range" in response.fields
        coding = self._exchange.taken_coding(request, response)
        self.is_encoded_part = bool(coding) and is_ranged
        if self.is_encoded_part:
            return None
        if is_ranged or (request.is_whole and response.length is not None and not coding):
            head = check_reply(request, unchecked_head(response))
            if is_ranged:
                self._exchange.traits.obeys_range = True
            self._begin(head)
            return receiver_of(self._runtime, self._sink, connection)
        if response.length is None or coding:
            self._unsized, self._unsized_head = UnsizedReceiver(self._runtime, request, connection, coding), response
            return self._unsized
        return self._receive_part(response, response.length, connection)

    def _receive_part(self, response: ResponseHead, total: int, connection: Connection) -> Destination | None:
        """Take the wanted part of a whole object that was sent instead of a range, if the part is near."""
        bounds = start, end = due_range(self._request, total)
        head = _checked_part(self._request, unchecked_head(response), bounds, total)
        if start > int(self._options.skip_bytes_max):
            self.too_far = bounds
            return None
        _note_ignored_range(self._runtime, self._exchange.traits, self._options, self._request)
        self._begin(head)
        if start == end:
            return None
        return SkippingReceiver(self._runtime, self._sink, connection, start)

    def _begin(self, head: ReadHead) -> None:
        self._sink.begin(head, path=self._request.path)
        self.head = head

    def end(self) -> ReadReply:
        """The result of the read, once the response has ended."""
        unsized, response = self._unsized, self._unsized_head
        if unsized is not None and response is not None:
            unsized.check_end()
            bounds = due_range(self._request, unsized.received)
            # Without a total in every response no ETag can be made that is the same in each: only a real one counts.
            described = replace(unchecked_head(response), etag=etag_of(response, None))
            self._begin(
                _checked_part(self._request, described, bounds, unsized.received if unsized.is_complete else None)
            )
            self._sink.feed(unsized.view(*bounds))
        assert self.head is not None
        return ReadReply(head=self.head, received=self.head.size)

    def close(self) -> None:
        """Release the memory of a body without a length."""
        if self._unsized is not None:
            self._unsized.release()


def _receive_nothing(response: ResponseHead, connection: Connection) -> None:
    """For a HEAD."""


def _receive_one_byte(response: ResponseHead, connection: Connection) -> Destination | None:
    """Receive a body that is short, so that its connection serves others; cancel a whole object."""
    return ErrorBody(connection) if response.length is not None and response.length <= 1 else None


def _note_ignored_range(runtime: Runtime, traits: ServerTraits, options: HttpOptions, request: ReadRequest) -> None:
    if traits.obeys_range is None:
        traits.obeys_range = False
        runtime.events.publish("http.range_ignored", request.path, service=options.info.url)


def _request_fields(request: ReadRequest) -> bytes:
    """The headers of one read, encoded."""
    wanted = range_header(request)
    fields = b"" if wanted is None else f"Range: {wanted}\r\n".encode()
    # A weak ETag never matches in If-Match, and an ETag that was made here matches nothing: both are only compared.
    if request.if_match is not None and not is_weak(request.if_match):
        fields += encoded_fields({"If-Match": quote_etag(request.if_match)})
    if request.if_none_match is not None and not is_synthetic(request.if_none_match):
        fields += encoded_fields({"If-None-Match": quote_etag(request.if_none_match)})
    if not (request.if_modified_since is request.if_unmodified_since is None):
        fields += encoded_fields(time_conditions(request))
    return fields


def _checked_part(
    request: ReadRequest, response: UncheckedHead, bounds: tuple[int, int], total: int | None
) -> ReadHead:
    """The checked head of a part that is cut out of a whole object here."""
    start, end = bounds
    if start == end:
        head = check_reply(
            replace(request, offset=0, size=None, suffix=None), replace(response, status=200, content_length=0)
        )
        return replace(head, start=start, total=total)
    whole = "*" if total is None else total
    part = replace(response, status=206, content_range=f"bytes {start}-{end - 1}/{whole}", content_length=end - start)
    return check_reply(replace(request, first_bytes=None), part)

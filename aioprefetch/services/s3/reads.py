"""Reads: over the transport into the sink's memory, on one signature for all ranges of an object, or via aiobotocore.

aiobotocore carries a read that a presigned URL cannot carry: customer keys, requester pays, proxies, header signing,
and stores that refuse presigned URLs. The counters ``transport_requests`` and ``transport_fallbacks`` count both ways.
"""

from __future__ import annotations

import time
from typing import Any

from aioprefetch.accessor.http_headers import is_weak, quote_etag, range_header
from aioprefetch.accessor.service_base import is_unmodified
from aioprefetch.accessor.sink import Sink
from aioprefetch.errors import Closed, Error, InvalidArgument, ProtocolError, RangeNotSatisfied, Unavailable
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.error_body import ERROR_BODY_BYTES_MAX, ErrorBody
from aioprefetch.services.s3.client import S3Client
from aioprefetch.services.s3.errors import ErrorResponse
from aioprefetch.services.s3.responses import checked, checked_head, unchecked_head
from aioprefetch.services.s3.signatures import EXPIRES_SECONDS, PresigningRefused, Signatures, Signed
from aioprefetch.transport import ClientOptions, Connection, Destination, HttpClient, ResponseHead
from aioprefetch.values import ReadHead, ReadReply, ReadRequest

# Codes for a signature, or credentials behind it, that have expired. A new signature may help, once.
EXPIRED_KEY_CODES = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"})
EXPIRED_CODES = EXPIRED_KEY_CODES | {"RequestExpired", "RequestTimeTooSkewed"}
# Codes of stores that do not support presigned URLs.
UNKNOWN_CODES = frozenset({"AuthorizationQueryParametersError", "NotImplemented", "UnsupportedSignature"})

_GET = "action_http_get_request"


class S3Reads:
    """The reads of one service within a runtime.

    ``presigned_enabled``: reads go over presigned URLs. It is set to false when the store refuses one, until the
    runtime is closed.
    """

    def __init__(self, client: S3Client, runtime: Runtime) -> None:
        options = client.options
        self.presigned_enabled = options.signing == "presigned" and not (
            options.sse_customer_key or options.request_payer
        )
        self._client = client
        self._options = options
        self._runtime = runtime
        self.signatures = Signatures(client, runtime)
        self._http: HttpClient | None = None

    async def read(self, request: ReadRequest, sink: Sink) -> ReadReply:
        """Read by either way. A suffix that the store refuses as too long is read as the whole object."""
        try:
            return await self._read_once(request, sink, range_header(request))
        except RangeNotSatisfied as error:
            if not _means_whole(request, error) or sink.head is not None:
                raise
        return await self._read_once(request, sink, None)

    async def _read_once(self, request: ReadRequest, sink: Sink, range_text: str | None) -> ReadReply:
        if self.presigned_enabled:
            return await self.read_presigned(request, sink, range_text)
        return await self._read_via_aiobotocore(request, sink, range_text)

    # --- presigned URLs -----------------------------------------------------------------------------------------

    async def read_presigned(
        self, request: ReadRequest, sink: Sink, range_text: str | None, *, is_renewed: bool = False
    ) -> ReadReply:
        """Read over the transport into the sink.

        ``is_renewed``: the store refused one signature as expired, and this read uses the next one.
        """
        # One coroutine, because each further one costs a small read one percent.
        try:
            signed = self.signatures.find(request) or await self._sign(request)
        except PresigningRefused:
            return await self._read_via_aiobotocore(request, sink, range_text)
        http = self._http or self._connected()
        counters = self._runtime.counters
        receiver = _ReadReceiver(request, sink)
        before = sink.received
        counters[_GET] += 1
        counters["transport_requests"] += 1
        try:
            seconds = await http.fetch(signed.target, _fields(request, range_text), receiver)
        except Error as error:
            counters.failed(_GET)
            error.add_context(operation="read", path=request.path)
            error.head, error.received = sink.head, sink.received
            # Frames of the transport hold the request line, and with it the signature.
            raise error.with_traceback(None) from None
        finally:
            counters["stream_read_total_bytes"] += sink.received - before
        checked_response = receiver.checked
        if checked_response is None:
            try:
                response = ErrorResponse.from_http(receiver.head.status, receiver.head.headers, receiver.error_body)
                await self._refused(response, signed, request, is_renewed=is_renewed)
            except PresigningRefused:
                return await self._read_via_aiobotocore(request, sink, range_text)
            return await self.read_presigned(request, sink, range_text, is_renewed=True)
        counters.succeeded(_GET, seconds)
        if not sink.complete:
            raise Unavailable(
                f"the body ended after {sink.received} of {checked_response.size} bytes",
                operation="read",
                path=request.path,
                head=sink.head,
                received=sink.received,
            )
        return ReadReply(head=checked_response, received=checked_response.size)

    async def _refused(
        self, response: ErrorResponse, signed: Signed, request: ReadRequest, *, is_renewed: bool
    ) -> None:
        """Make another signature if the store calls this one expired; otherwise raise the error of the response."""
        error = self._explained(response, request)
        if not is_unmodified(request, error):
            self._runtime.counters.failed(_GET)
        if is_renewed or not _is_expired(response, signed):
            raise error
        if response.code in EXPIRED_KEY_CODES:
            self._client.renew(signed.generation)
        self.signatures.forget(request, signed)
        await self._sign(request)

    async def _sign(self, request: ReadRequest) -> Signed:
        return await self.signatures.sign(request, self._options.key_of(request.path, operation="read"))

    def _connected(self) -> HttpClient:
        """The connections, made after the first signature, when botocore has found the authorities to trust."""
        options = self._options
        connections = options.connections(self._runtime.options.concurrency)
        client_options = ClientOptions(
            connect_timeout_seconds=options.connect_timeout_seconds,
            first_byte_timeout_seconds=options.read_timeout_seconds,
            stall_timeout_seconds=options.read_timeout_seconds,
            connections_max=connections,
            connections_per_host_max=connections,
            wait_timeout_seconds=max(options.connect_timeout_seconds, options.read_timeout_seconds),
            ca_bundle=self._client.ca_bundle,
        )
        self._http = self._runtime.shared(("s3 transport", options), lambda: HttpClient(self._runtime, client_options))
        return self._http

    def _explained(self, response: ErrorResponse, request: ReadRequest) -> Exception:
        if response.code in UNKNOWN_CODES:
            self._runtime.events.publish("s3.presigning_refused", request.path, code=response.code)
            return PresigningRefused()
        return self._client.explainer.from_response(response, request)

    # --- aiobotocore --------------------------------------------------------------------------------------------

    async def _read_via_aiobotocore(self, request: ReadRequest, sink: Sink, range_text: str | None) -> ReadReply:
        # A condition that cannot be sent is compared when the response is here: a weak ETag never matches, and some
        # stores respond 412 to "*" although the object exists.
        pinned = request.if_match not in (None, "*") and not is_weak(request.if_match or "")
        self._runtime.counters["transport_fallbacks"] += 1
        response, end = await self._client.open(
            request,
            "get_object",
            Key=self._options.key_of(request.path, operation="read"),
            Range=range_text,
            IfMatch=quote_etag(request.if_match or "") if pinned else None,
            IfNoneMatch=None if request.if_none_match is None else quote_etag(request.if_none_match),
            VersionId=request.version,
        )
        stream = response["Body"].raw_stream
        try:
            head = checked(request, unchecked_head(response))
            # A refusal of the presigned URL, and a response in this way, are the store's and not this object's.
            self.presigned_enabled = False
            sink.begin(head, path=request.path)
            await self._copy_body(stream, request, sink, head)
        finally:
            # Without effect after the last byte, when aiohttp has taken the connection back.
            stream.close()
            end()
        return ReadReply(head=head, received=head.size)

    async def _copy_body(self, stream: Any, request: ReadRequest, sink: Sink, head: ReadHead) -> None:
        """Copy the chunks of aiohttp into the sink, which has begun."""
        counters = self._runtime.counters
        received = 0
        while not sink.complete:
            chunk = await self._next_chunk(stream, request)
            if not chunk:
                raise Unavailable(
                    f"the body ended after {received} of {head.size} bytes", operation="read", path=request.path
                )
            received += len(chunk)
            counters["stream_read_total_bytes"] += len(chunk)
            if received > head.size:
                raise ProtocolError(
                    f"the body has more than the {head.size} bytes that its head promised",
                    operation="read",
                    path=request.path,
                )
            sink.feed(chunk)

    async def _next_chunk(self, stream: Any, request: ReadRequest) -> bytes:
        try:
            chunk: bytes = await stream.content.readany()
            return chunk
        except Exception as error:
            explained: Error = (
                Closed("the operator was closed", operation="read", path=request.path)
                if self._runtime.closed
                else self._client.explainer.explain(error, request)
            )
        # Outside of the handler, where Python does not chain the exception of aiohttp.
        raise explained from explained.__cause__


class _ReadReceiver:
    """The receiver of one read. ``checked`` is set for a success, whose body goes into the sink.

    ``head`` is the head of any response; ``error_body`` the beginning of a body without success.
    """

    __slots__ = ("_error", "_request", "_sink", "checked", "head")

    head: ResponseHead

    def __init__(self, request: ReadRequest, sink: Sink) -> None:
        self._request = request
        self._sink = sink
        self._error: ErrorBody | None = None
        self.checked: ReadHead | None = None

    def begin(self, head: ResponseHead, connection: Connection) -> Destination | None:
        """Check the head and begin the sink. Raises the errors of both."""
        self.head = head
        if head.status not in (200, 206):
            if head.length is not None and head.length > ERROR_BODY_BYTES_MAX:
                return None
            self._error = ErrorBody(connection)
            return self._error
        checked_response = checked_head(self._request, head)
        self._sink.begin(checked_response, path=self._request.path)
        self.checked = checked_response
        return self._sink

    @property
    def error_body(self) -> bytes:
        """The beginning of a body without success."""
        return b"" if self._error is None else bytes(self._error.body)


def _is_expired(response: ErrorResponse, signed: Signed) -> bool:
    if response.code in EXPIRED_CODES:
        return True
    # Some stores say no more than 403: the age of the signature, by our own clock, decides.
    return response.http_status == 403 and (
        "expired" in response.message.lower() or time.time() - signed.made_at >= EXPIRES_SECONDS
    )


def _means_whole(request: ReadRequest, error: RangeNotSatisfied) -> bool:
    """Whether a suffix was refused because it is longer than the object: HTTP and S3 mean the whole object then.

    The response is checked against the suffix anyway, so that a longer object is refused at its head.
    """
    return request.suffix is not None and error.total is None


def _fields(request: ReadRequest, range_text: str | None) -> bytes:
    """The headers of one read."""
    lines = "" if range_text is None else f"Range: {range_text}\r\n"
    # See ``_read_via_aiobotocore`` for the conditions that are not sent.
    if request.if_match is not None and request.if_match != "*" and not is_weak(request.if_match):
        lines += _condition("If-Match", request.if_match, request)
    if request.if_none_match is not None:
        lines += _condition("If-None-Match", request.if_none_match, request)
    return lines.encode("ascii")


def _condition(name: str, etag: str, request: ReadRequest) -> str:
    if not (etag.isprintable() and etag.isascii()):
        raise InvalidArgument(f"{etag!r} is not a valid ETag", operation="read", path=request.path)
    return f"{name}: {quote_etag(etag)}\r\n"

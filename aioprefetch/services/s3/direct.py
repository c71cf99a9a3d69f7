"""Reads over our own transport: straight into the reader's memory, on a signature that was made once per object.

The accessor falls back to aiobotocore where a presigned URL cannot do: customer keys, requester pays, proxies, header
signing, and stores that refuse it. The counters ``transport_requests`` and ``transport_fallbacks`` tell which way reads
went.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from aioprefetch.accessor.http_headers import is_weak, quote_etag
from aioprefetch.accessor.service_base import is_unmodified
from aioprefetch.accessor.sink import Sink, drain
from aioprefetch.accessor.write_body import ReadBody
from aioprefetch.errors import Error, InvalidArgument, Unavailable
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.read_receiver import ReadReceiver, error_body_of
from aioprefetch.services.s3.client import S3Client
from aioprefetch.services.s3.errors import Told
from aioprefetch.services.s3.responses import checked_head
from aioprefetch.services.s3.signatures import EXPIRES_SECONDS, PresigningRefused, Signatures, Signed
from aioprefetch.services.streamed_body import StreamedBody
from aioprefetch.transport import ClientOptions, HttpClient
from aioprefetch.values import ReadReply, ReadRequest

# How stores say that a signature, or the credentials behind it, are of yesterday. Another one may help, once.
EXPIRED_KEY_CODES = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"})
EXPIRED_CODES = EXPIRED_KEY_CODES | {"RequestExpired", "RequestTimeTooSkewed"}
# How they say that they do not know presigned URLs at all.
UNKNOWN_CODES = frozenset({"AuthorizationQueryParametersError", "NotImplemented", "UnsupportedSignature"})

_GET = "action_http_get_request"


class DirectReads:
    """The reads of one service within a runtime. ``is_possible`` turns ``False`` for good where a store refuses them.

    ``key_of`` gives the key of a request's path, checked; it is called only when a signature has to be made.
    ``open_otherwise`` is the way of the reads that are refused here.
    """

    def __init__(
        self,
        client: S3Client,
        runtime: Runtime,
        key_of: Callable[[ReadRequest], str],
        open_otherwise: Callable[[ReadRequest, str | None], Awaitable[ReadBody]],
    ) -> None:
        service = client.service
        self.is_possible = service.signing == "presigned" and not (service.sse_customer_key or service.request_payer)
        self._client = client
        self._runtime = runtime
        self._key_of = key_of
        self._open_otherwise = open_otherwise
        self._signatures = Signatures(client, runtime)
        self._http: HttpClient | None = None

    async def read(
        self, request: ReadRequest, sink: Sink, range_text: str | None, *, is_renewed: bool = False
    ) -> ReadReply:
        """Read into the sink.

        ``is_renewed``: the store has called one signature outdated, and this is the read with the next.
        """
        # One coroutine, because each more costs a small read a percent.
        try:
            signed = self._signatures.find(request) or await self._sign(request)
        except PresigningRefused:
            return await self._read_otherwise(request, sink, range_text)
        http = self._http or self._connected()
        counters = self._runtime.counters
        response = ReadReceiver(request, sink, checked_head)
        before = sink.received
        counters[_GET] += 1
        counters["transport_requests"] += 1
        try:
            seconds = await http.fetch(signed.target, _fields(request, range_text), response)
        except Error as error:
            counters.failed(_GET)
            error.add_context(operation="read", path=request.path)
            error.head, error.received = sink.head, sink.received
            # Frames of the transport hold the request line, and with it the signature.
            raise error.with_traceback(None) from None
        finally:
            counters["stream_read_total_bytes"] += sink.received - before
        checked = response.checked
        if checked is None:
            try:
                told = Told.answered(response.head.status, response.head.headers, response.error_body)
                await self._refused(told, signed, request, is_renewed=is_renewed)
            except PresigningRefused:
                return await self._read_otherwise(request, sink, range_text)
            return await self.read(request, sink, range_text, is_renewed=True)
        counters.succeeded(_GET, seconds)
        if not sink.complete:
            raise Unavailable(
                f"the body ended after {sink.received} of {checked.size} bytes",
                operation="read",
                path=request.path,
                head=sink.head,
                received=sink.received,
            )
        return ReadReply(head=checked, received=checked.size)

    async def _read_otherwise(self, request: ReadRequest, sink: Sink, range_text: str | None) -> ReadReply:
        body = await self._opened_otherwise(request, range_text)
        await drain(body, sink, path=request.path)
        return ReadReply(head=body.head, received=body.head.size)

    async def open_read(self, request: ReadRequest, range_text: str | None) -> ReadBody:
        """Read as a stream."""
        try:
            return await self._open_read(request, range_text)
        except PresigningRefused:
            return await self._opened_otherwise(request, range_text)

    async def _opened_otherwise(self, request: ReadRequest, range_text: str | None) -> ReadBody:
        body = await self._open_otherwise(request, range_text)
        # What was refused in one way was answered in the other: that is the store's, and not this object's matter.
        self.is_possible = False
        return body

    async def _open_read(
        self, request: ReadRequest, range_text: str | None, *, is_renewed: bool = False
    ) -> StreamedBody:
        signed = self._signatures.find(request) or await self._sign(request)
        http = self._http or self._connected()
        counters = self._runtime.counters
        counters[_GET] += 1
        counters["transport_requests"] += 1
        try:
            response = await http.open(signed.target, _fields(request, range_text))
        except Error as error:
            counters.failed(_GET)
            raise error.add_context(operation="read", path=request.path).with_traceback(None) from None
        try:
            if response.head.status in (200, 206):
                counters.succeeded(_GET, response.head_seconds)
                return StreamedBody(self._runtime, request, response, checked_head(request, response.head))
            told = Told.answered(response.head.status, response.head.headers, await error_body_of(response))
        except BaseException:
            response.close()
            raise
        response.close()
        await self._refused(told, signed, request, is_renewed=is_renewed)
        return await self._open_read(request, range_text, is_renewed=True)

    async def _refused(self, told: Told, signed: Signed, request: ReadRequest, *, is_renewed: bool) -> None:
        """Make another signature where the store calls this one outdated; otherwise raise what it says."""
        error = self._explained(told, request)
        if not is_unmodified(request, error):
            self._runtime.counters.failed(_GET)
        if is_renewed or not self._is_outdated(told, signed):
            raise error
        if told.code in EXPIRED_KEY_CODES:
            self._client.renew(signed.generation)
        self._signatures.forget(request, signed)
        await self._sign(request)

    async def _sign(self, request: ReadRequest) -> Signed:
        return await self._signatures.sign(request, self._key_of(request))

    def _connected(self) -> HttpClient:
        """The connections, made after the first signature: only then botocore has said which authorities to trust."""
        service = self._client.service
        connections = service.connections(self._runtime.options.concurrency)
        options = ClientOptions(
            connect_timeout_seconds=service.connect_timeout_seconds,
            first_byte_timeout_seconds=service.read_timeout_seconds,
            stall_timeout_seconds=service.read_timeout_seconds,
            connections_max=connections,
            connections_per_host_max=connections,
            wait_timeout_seconds=max(service.connect_timeout_seconds, service.read_timeout_seconds),
            ca_bundle=self._client.ca_bundle,
        )
        self._http = self._runtime.shared(("s3 transport", service), lambda: HttpClient(self._runtime, options))
        return self._http

    def _is_outdated(self, told: Told, signed: Signed) -> bool:
        if told.code in EXPIRED_CODES:
            return True
        # Others say no more than 403, and we can tell by our own clock.
        return told.http_status == 403 and (
            "expired" in told.message.lower() or time.time() - signed.made_at >= EXPIRES_SECONDS
        )

    def _explained(self, told: Told, request: ReadRequest) -> Exception:
        if told.code in UNKNOWN_CODES:
            self._runtime.events.publish("s3.presigning_refused", request.path, code=told.code)
            return PresigningRefused()
        return self._client.explainer.answered(told, request)


def _fields(request: ReadRequest, range_text: str | None) -> bytes:
    """The headers of one read."""
    lines = "" if range_text is None else f"Range: {range_text}\r\n"
    # What cannot be sent is compared when the response is here: a weak ETag never matches, and some stores answer
    # 412 to "*" although the object exists.
    if request.if_match is not None and request.if_match != "*" and not is_weak(request.if_match):
        lines += _condition("If-Match", request.if_match, request)
    if request.if_none_match is not None:
        lines += _condition("If-None-Match", request.if_none_match, request)
    return lines.encode("ascii")


def _condition(name: str, etag: str, request: ReadRequest) -> str:
    if not (etag.isprintable() and etag.isascii()):
        raise InvalidArgument(f"{etag!r} is no ETag", operation="read", path=request.path)
    return f"{name}: {quote_etag(etag)}\r\n"

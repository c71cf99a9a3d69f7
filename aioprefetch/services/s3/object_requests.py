"""The requests for one object or one page of a listing, signed and sent over our transport.

A read signs neither ``Range`` nor conditions, so one signature serves all ranges of an object for a few minutes. In
a header it does not appear in logs; as a presigned URL (``signing="presigned"``) it is a bearer token.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from typing import Any

from aioprefetch.accessor.http_headers import parse_http_date, quote_etag, time_conditions
from aioprefetch.accessor.request_events import ReportedRequest
from aioprefetch.accessor.response_check import ETags, bare_etag
from aioprefetch.accessor.service_base import is_unmodified
from aioprefetch.accessor.sink import Sink
from aioprefetch.errors import Error, InvalidArgument, Unavailable
from aioprefetch.runtime.events import DURATIONS
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.response_bodies import ERROR_BODY_BYTES_MAX, BodyCollector, ErrorBody, receiver_of
from aioprefetch.services.s3.errors import ErrorResponse, Explainer
from aioprefetch.services.s3.key_source import KeySource
from aioprefetch.services.s3.options import S3Options
from aioprefetch.services.s3.responses import (
    USER_METADATA,
    ListedPage,
    checked_head,
    metadata_of,
    no_success,
    parse_error,
    parse_list_page,
    version_of,
    written_etag,
)
from aioprefetch.services.s3.signed_targets import EXPIRES_SECONDS, Configuration, Signed, SignedTargets
from aioprefetch.services.s3.sigv4 import UNSIGNED_PAYLOAD, payload_hash
from aioprefetch.transport import ClientOptions, Connection, Destination, HttpClient, ResponseHead
from aioprefetch.transport.origin import Method
from aioprefetch.values import (
    Checksum,
    DeleteRequest,
    Metadata,
    PartRequest,
    ReadHead,
    ReadReply,
    ReadRequest,
    Request,
    StatRequest,
    UploadedPart,
    WriteRequest,
)

# Error codes that mean the keys have expired. A new signature may help, once.
EXPIRED_KEY_CODES = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"})
# A longer body is hashed in a thread.
LOOP_HASH_BYTES_MAX = 256 << 10
_DESCRIPTIONS = ("content_type", "content_encoding", "content_disposition", "cache_control")


def checksum_of(body: bytes | bytearray | memoryview, algorithm: Checksum) -> str:
    """The checksum of a body as S3 writes it, in base64."""
    if algorithm == "sha256":
        return base64.b64encode(hashlib.sha256(body).digest()).decode()
    return base64.b64encode(binascii.crc32(body).to_bytes(4, "big")).decode()


def uploaded_part(request: PartRequest, etag: object, size: int, checksum: str | None) -> UploadedPart:
    """The part that the store has. ``ProtocolError`` for a response without an ETag."""
    written_etag(etag, request)
    return UploadedPart(number=request.number, etag=str(etag), size=size, checksum=checksum)


def condition_of(request: WriteRequest | DeleteRequest) -> str | None:
    """The ETag that a write or a deletion has as its condition, in quotes, as the store knows it."""
    wanted = request.if_match
    etag = wanted.get(request.path) if isinstance(wanted, Mapping) else wanted
    return None if etag is None else quote_etag(bare_etag(etag))


def described(request: WriteRequest, etag: str | None, version: str | None, size: int | None) -> Metadata:
    """The metadata of an object that has just been written."""
    fields: dict[str, Any] = {name: getattr(request, name) for name in _DESCRIPTIONS}
    fields["user_metadata"] = dict(request.user_metadata)
    return Metadata(path=request.path, size=size, etag=etag, version=version, **fields)


def checked_metadata(request: WriteRequest) -> None:
    """Raise ``InvalidArgument`` for metadata of a user that no header can hold."""
    seen: dict[str, str] = {}
    for name, value in request.user_metadata.items():
        other, why = seen.setdefault(name.lower(), name), ""
        if other != name:
            why = (
                f"the user metadata has {other!r} and {name!r}: names travel as headers, in which case makes no "
                "difference; give one of them"
            )
        elif not (name.isascii() and value.isascii()):
            why = (
                f"Non ascii characters in the user metadata {name!r}: names and values travel as headers; encode them, "
                "for example in base64"
            )
        if why:
            raise InvalidArgument(why, operation=request.operation, path=request.path)


# --- signed requests --------------------------------------------------------------------------------------------------

# The codes of a refusal for the time of the signature: the response shows the clock of the store.
CLOCK_CODES = frozenset({"RequestExpired", "RequestTimeTooSkewed"})
# A longer page is parsed in a thread.
LOOP_PARSE_BYTES_MAX = 8 << 10

_GET, _HEAD = "action_http_get_request", "action_http_head_request"
_LIST, _PUT, _DELETE = "object_list_request", "object_put_request", "object_delete_request"


class SignedRequests:
    """The requests of one recipe within a runtime."""

    def __init__(
        self,
        options: S3Options,
        configuration: Configuration,
        keys: KeySource,
        explainer: Explainer,
        runtime: Runtime,
    ) -> None:
        self.etags = ETags()
        self.targets = SignedTargets(options, configuration, keys, runtime)
        self._options = options
        self._keys = keys
        self._explainer = explainer
        self._runtime = runtime
        self._ledger = runtime.ledger
        self._events = runtime.events
        connections = options.connections(runtime.options.concurrency)
        client_options = ClientOptions(
            connect_timeout_seconds=options.connect_timeout_seconds,
            first_byte_timeout_seconds=options.read_timeout_seconds,
            stall_timeout_seconds=options.read_timeout_seconds,
            connections_max=connections,
            connections_per_host_max=connections,
            wait_timeout_seconds=max(options.connect_timeout_seconds, options.read_timeout_seconds),
            ca_bundle=configuration.ca_bundle,
        )
        # Connections have no identity: recipes that differ in nothing else share them.
        self._http = runtime.shared(("s3 transport", client_options), lambda: HttpClient(runtime, client_options))

    # --- reads --------------------------------------------------------------------------------------------------

    async def read(
        self, request: ReadRequest, sink: Sink, range_text: str | None, *, is_renewed: bool = False
    ) -> ReadReply:
        """Read into a sink. ``is_renewed``: the store refused one signature as expired, and this is the next one."""
        # One coroutine, because each further one costs a small read one percent.
        targets = self.targets
        signed = targets.find(request)
        if signed is None:
            signed = targets.sign(request, self._keys.ready() or await self._keys.get(request))
        counters = self._ledger.current
        reported = None
        if self._events.wants_requests:
            reported = ReportedRequest(self._runtime, request, sink, "GET", signed.target.url)
        receiver = _ReadReceiver(request, sink, self.etags, self._runtime)
        before = sink.received
        counters[_GET] += 1
        counters["transport_requests"] += 1
        try:
            seconds = await self._http.fetch(
                signed.target, _fields(request, range_text, self.etags), receiver, reported=reported
            )
        except Error as error:
            counters.failed(_GET)
            error.add_context(operation="read", path=request.path)
            error.head, error.received = sink.head, sink.received
            # Frames of the transport hold the request, and with it the signature.
            raise error.with_traceback(None) from None
        finally:
            counters["stream_read_total_bytes"] += sink.received - before
        checked = receiver.checked
        if checked is None:
            response = ErrorResponse.from_http(receiver.head.status, receiver.head.headers, receiver.error_body)
            self._refused(response, signed, request, reported, is_renewed=is_renewed, counter=_GET)
            self.targets.forget(request, signed)
            return await self.read(request, sink, range_text, is_renewed=True)
        counters.succeeded(_GET, seconds)
        if sink.received - before < checked.size:
            cut = Unavailable(
                f"the body ended after {sink.received} of {checked.size} bytes",
                operation="read",
                path=request.path,
                head=sink.head,
                received=sink.received,
            )
            if reported is not None:
                reported.failed(cut)
            try:
                raise cut
            finally:
                del cut  # Its traceback holds this frame.
        if reported is not None:
            reported.finished()
        return ReadReply(head=checked, received=checked.size)

    def _refused(
        self,
        response: ErrorResponse,
        signed: Signed,
        request: Request,
        reported: ReportedRequest | None,
        *,
        is_renewed: bool,
        counter: str,
        has_body: bool = False,
    ) -> None:
        """Raise the error of a response, unless another signature may help, once."""
        error = self._explainer.from_response(response, request)
        if counter in DURATIONS and not is_unmodified(request, error):
            self._runtime.counters.failed(counter)
        if reported is not None:
            reported.failed(error)
        try:
            if is_renewed or not self._may_help(response, signed, has_body=has_body):
                raise error
        finally:
            del error  # Its traceback holds this frame.

    def _may_help(self, response: ErrorResponse, signed: Signed, *, has_body: bool) -> bool:
        """Whether another signature may help; learns the clock of the store, and renews keys that have ended.

        Of a request with a body it must be another one: the same would be refused after all of the body was sent.
        """
        code, status, targets = response.code, response.http_status, self.targets
        if code in EXPIRED_KEY_CODES:
            has_others = self._keys.renew(signed.generation) or self._keys.ready() is not signed.keys
            return has_others or not has_body
        if code in CLOCK_CODES:
            targets.learn_time(parse_http_date(response.headers.get("date")))
        # The response to a HEAD has no body, and so no code. Anything may be its reason, so it teaches nothing; but
        # what another request has learned since may help.
        is_untold = status == 403 and not code
        if (code in CLOCK_CODES or is_untold) and targets.clock_offset_seconds != signed.clock_offset_seconds:
            return True
        if status == 400 and not code and response.region is None:
            return self._keys.renew(signed.generation)
        # Some stores say no more than 403: the age of the signature decides, by the clock of this machine.
        if targets.age_seconds(signed) >= EXPIRES_SECONDS:
            return status == 403 or code in CLOCK_CODES
        is_named = code in CLOCK_CODES or (status == 403 and "expired" in response.message.lower())
        return is_named and not has_body

    # --- the other requests -------------------------------------------------------------------------------------

    async def stat(self, request: StatRequest, key: str) -> Metadata:
        """The metadata of an object."""
        query = {} if request.version is None else {"versionId": request.version}
        head, _ = await self._exchange(request, "HEAD", key, query, counter=_HEAD)
        return metadata_of(head.headers, request, self.etags)

    async def list_page(self, request: Request, root: str, path: str, parameters: Mapping[str, str]) -> ListedPage:
        """One page of the keys that begin with ``root`` and ``path``."""
        kind = {} if "versions" in parameters else {"list-type": "2"}
        query = {**kind, "encoding-type": "url", "prefix": root + path, **parameters}
        head, body = await self._exchange(request, "GET", None, query, counter=_LIST)
        try:
            if len(body) <= LOOP_PARSE_BYTES_MAX:
                page = parse_list_page(body, root, path)
            else:
                page = await self._runtime.run_blocking(parse_list_page, body, root, path)
        except Error as error:
            raise error.add_context(operation=request.operation, path=request.path) from None
        if page.is_error:
            raise self._error_within(head, body, request)
        return page

    async def put(self, request: WriteRequest, key: str, data: bytes | bytearray | memoryview) -> Metadata:
        """Write an object whole. Its bytes are hashed and the hash is signed, so that the store checks them."""
        checked_metadata(request)
        head, _ = await self._send(request, key, {}, _written(request), memoryview(data))
        etag, version = written_etag(head.text("etag"), request), version_of(head.text("x-amz-version-id"))
        return described(request, etag, version, len(data))

    async def put_part(self, request: PartRequest, key: str, data: bytes | bytearray | memoryview) -> UploadedPart:
        """Send a part of an upload, hashed and signed as an object is."""
        query = {"partNumber": str(request.number), "uploadId": request.upload_id}
        head, checksum = await self._send(request, key, query, {}, memoryview(data))
        return uploaded_part(request, head.text("etag"), len(data), checksum)

    async def _send(
        self,
        request: WriteRequest | PartRequest,
        key: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        view: memoryview,
    ) -> tuple[ResponseHead, str | None]:
        """Send a body: the head of the response, and the checksum that went with it."""
        algorithm, is_signed = request.checksum or self._options.checksum, not self.targets.is_anonymous
        if len(view) <= LOOP_HASH_BYTES_MAX or not (algorithm or is_signed):
            digest, checksum = _digests(view, algorithm, is_signed)
        else:
            digest, checksum = await self._runtime.run_blocking(_digests, view, algorithm, is_signed)
        if algorithm and checksum:
            headers = {
                **headers,
                "x-amz-sdk-checksum-algorithm": algorithm.upper(),  # Under Object Lock S3 looks at this one.
                f"x-amz-checksum-{algorithm}": checksum,
            }
        head, body = await self._exchange(
            request, "PUT", key, query, counter=_PUT, headers=headers, body=view, payload=digest
        )
        self._check_empty(head, body, request)
        self._runtime.counters["stream_write_bytes"] += len(view)
        return head, checksum

    async def delete(self, request: DeleteRequest, key: str) -> None:
        """Delete an object, which may be missing, or one version of it."""
        query = {} if request.version is None else {"versionId": request.version}
        etag = condition_of(request)
        condition = {} if etag is None else {"if-match": etag}
        head, body = await self._exchange(request, "DELETE", key, query, counter=_DELETE, headers=condition)
        self._check_empty(head, body, request)

    async def _exchange(
        self,
        request: Request,
        method: Method,
        key: str | None,
        query: Mapping[str, str],
        *,
        counter: str,
        headers: Mapping[str, str] | None = None,
        body: memoryview | None = None,
        payload: str = UNSIGNED_PAYLOAD,
    ) -> tuple[ResponseHead, bytearray]:
        """Send a request for a key, or for the bucket (``None``): the head and the body of the success."""
        counters = self._runtime.counters
        fields = b"" if body is None else f"Content-Length: {len(body)}\r\n".encode()
        resends = not (isinstance(request, WriteRequest) and (request.if_not_exists or request.if_match))
        for is_renewed in (False, True):
            signed = await self.targets.sign_now(request, method, key, query, payload, headers or {})
            reported = None
            if self._events.wants_requests:
                sent_bytes = 0 if body is None else len(body)
                reported = ReportedRequest(
                    self._runtime, request, method=method, url=signed.target.url, sent_bytes=sent_bytes
                )
            receiver = BodyCollector()
            counters[counter] += 1
            try:
                seconds = await self._http.fetch(
                    signed.target, fields, receiver, body=body, resends=resends, reported=reported
                )
            except Error as error:
                if counter in DURATIONS:
                    counters.failed(counter)
                error.add_context(operation=request.operation, path=request.path)
                raise error.with_traceback(None) from None
            head = receiver.head
            assert head is not None
            if 200 <= head.status < 300:
                if counter in DURATIONS:
                    counters.succeeded(counter, seconds)
                if reported is not None:
                    reported.finished()
                return head, receiver.body
            response = ErrorResponse.from_http(head.status, head.headers, bytes(receiver.body))
            self._refused(
                response, signed, request, reported, is_renewed=is_renewed, counter=counter, has_body=body is not None
            )
        raise AssertionError("the second refusal was raised")

    def _check_empty(self, head: ResponseHead, body: bytearray, request: Request) -> None:
        """Raise the error that stands in the body of a success, or ``ProtocolError``, where S3 sends none."""
        if head.status in (200, 204) and not body.strip():
            return
        if len(body) <= ERROR_BODY_BYTES_MAX and parse_error(bytes(body)):  # A longer one would be parsed on the loop.
            raise self._error_within(head, body, request)
        raise no_success(f"({head.status}) has a body of {len(body)} bytes", request)

    def _error_within(self, head: ResponseHead, body: bytearray, request: Request) -> Error:
        """The error in the body of a success, which S3 sends where it fails after the head."""
        response = ErrorResponse.from_http(500, head.headers, bytes(body[:ERROR_BODY_BYTES_MAX]))
        return self._explainer.from_response(response, request)


class _ReadReceiver:
    """The receiver of one read. ``checked`` is set for a success, whose body goes into the sink.

    ``head`` is the head of any response; ``error_body`` the beginning of a body without success.
    """

    __slots__ = ("_error", "_etags", "_request", "_runtime", "_sink", "checked", "head")

    head: ResponseHead

    def __init__(self, request: ReadRequest, sink: Sink, etags: ETags, runtime: Runtime) -> None:
        self._etags = etags
        self._request = request
        self._sink = sink
        self._runtime = runtime
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
        checked = checked_head(self._request, head, self._etags)
        sink = self._sink
        sink.begin(checked, path=self._request.path)
        self.checked = checked
        return receiver_of(self._runtime, sink, connection)

    @property
    def error_body(self) -> bytes:
        """The beginning of a body without success."""
        return b"" if self._error is None else bytes(self._error.body)


def _fields(request: ReadRequest, range_text: str | None, etags: ETags) -> bytes:
    """The headers of one read."""
    lines = "" if range_text is None else f"Range: {range_text}\r\n"
    if request.if_match is not None and etags.can_be_sent(request.if_match):
        lines += _condition("If-Match", request.if_match, request)
    if request.if_none_match is not None and not etags.prove_nothing(bare_etag(request.if_none_match)):
        lines += _condition("If-None-Match", request.if_none_match, request)
    if not (request.if_modified_since is request.if_unmodified_since is None):
        lines += "".join(f"{name}: {text}\r\n" for name, text in time_conditions(request).items())
    return lines.encode("ascii")


def _condition(name: str, etag: str, request: Request) -> str:
    if not (etag.isprintable() and etag.isascii()):
        raise InvalidArgument(f"{etag!r} is not a valid ETag", operation=request.operation, path=request.path)
    return f"{name}: {quote_etag(etag)}\r\n"


def _digests(view: memoryview, algorithm: Checksum | None, is_signed: bool) -> tuple[str, str | None]:
    """The hash of a body for its signature, and its checksum. SHA-256 is computed once for both."""
    digest = payload_hash(view) if is_signed else UNSIGNED_PAYLOAD
    if algorithm is None:
        return digest, None
    if algorithm == "sha256" and is_signed:
        return digest, base64.b64encode(bytes.fromhex(digest)).decode()
    return digest, checksum_of(view, algorithm)


def _written(request: WriteRequest) -> dict[str, str]:
    """The headers of a new object, by names in lower case."""
    if request.is_plain:
        return {}
    headers = {
        "content-type": request.content_type,
        "content-encoding": request.content_encoding,
        "content-disposition": request.content_disposition,
        "cache-control": request.cache_control,
        "x-amz-storage-class": request.storage_class,
        "x-amz-server-side-encryption": None if request.sse_kms_key_id is None else "aws:kms",
        "x-amz-server-side-encryption-aws-kms-key-id": request.sse_kms_key_id,
        "if-none-match": "*" if request.if_not_exists else None,
        "if-match": condition_of(request),
        **{f"{USER_METADATA}{name.lower()}": value for name, value in request.user_metadata.items()},
    }
    return {name: value for name, value in headers.items() if value is not None}

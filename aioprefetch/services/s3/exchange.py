"""Requests as they are exchanged for responses: signed, sent over our transport, counted, and signed again if need be.

A read signs neither ``Range`` nor conditions, so one signature serves all ranges of an object for a few minutes. In
a header it does not appear in logs; as a presigned URL (``signing="presigned"``) it is a bearer token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from aioprefetch.accessor.counted_requests import COUNTERS
from aioprefetch.accessor.http_headers import parse_http_date, quote_etag, time_conditions
from aioprefetch.accessor.request_events import ReportedRequest
from aioprefetch.accessor.response_check import ETags, bare_etag
from aioprefetch.accessor.service_base import is_unmodified
from aioprefetch.accessor.sink import Sink
from aioprefetch.errors import (
    ConditionNotMatch,
    CredentialsExpired,
    Error,
    InvalidArgument,
    ProtocolError,
    Unavailable,
    Unsupported,
)
from aioprefetch.runtime.events import DURATIONS
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.response_bodies import ERROR_BODY_BYTES_MAX, BodyCollector, ErrorBody, receiver_of
from aioprefetch.services.s3.errors import ErrorResponse, Explainer
from aioprefetch.services.s3.key_source import (
    EXPRESS,
    SESSION_SECONDS,
    SESSION_TOKEN,
    KeySource,
    SessionKeys,
    session_seconds,
)
from aioprefetch.services.s3.options import S3Options
from aioprefetch.services.s3.responses import checked_head, no_success, parse_error, parse_result, time_of
from aioprefetch.services.s3.signed_targets import EXPIRES_SECONDS, Configuration, Signed, SignedTargets
from aioprefetch.services.s3.sigv4 import UNSIGNED_PAYLOAD, AccessKeys, payload_hash
from aioprefetch.transport.connection import Connection, Destination
from aioprefetch.transport.options import ClientOptions
from aioprefetch.transport.origin import Method
from aioprefetch.transport.pool import HttpClient
from aioprefetch.transport.responses import ResponseHead
from aioprefetch.values import (
    ReadHead,
    ReadReply,
    ReadRequest,
    Request,
)

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

T = TypeVar("T")

# Error codes that mean the keys have expired. A new signature may help, once.
EXPIRED_KEY_CODES = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"})
# The codes of a refusal for the time of the signature: the response shows the clock of the store.
CLOCK_CODES = frozenset({"RequestExpired", "RequestTimeTooSkewed"})
# A longer page or result is parsed in a thread.
LOOP_PARSE_BYTES_MAX = 8 << 10

_GET = "action_http_get_request"


class Exchange:
    """The exchanges of one recipe within a runtime."""

    def __init__(
        self,
        options: S3Options,
        configuration: Configuration,
        keys: KeySource,
        explainer: Explainer,
        runtime: Runtime,
    ) -> None:
        self.etags = ETags()
        self._has_conditions: bool | None = None  # ``False``: it refuses ``If-Match``; reads are compared alone.
        self._ignores_ranges = False  # Of a version that is named: it is read by its ETag.
        self.is_express = configuration.endpoint.service == EXPRESS
        self._own_keys = keys
        self._keys: KeySource | SessionKeys = keys
        if self.is_express and not options.anonymous:
            self._keys = SessionKeys(runtime, self._begin_session)
        self.targets = SignedTargets(options, configuration, self._keys, runtime)
        self._options = options
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
        if self._ignores_ranges and request.version is not None and self.etags.can_be_sent(request.if_match or "*"):
            request = replace(request, version=None)
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
                signed.target, self._fields(request, range_text), receiver, reported=reported
            )
        except Error as error:
            counters.failed(_GET)
            error.add_context(operation="read", path=request.path)
            error.head, error.received = sink.head, sink.received
            if not self._learns_of_ranges(request, receiver, error):
                # Frames of the transport hold the request, and with it the signature.
                raise error.with_traceback(None) from None
        finally:
            counters["stream_read_total_bytes"] += sink.received - before
        checked = receiver.checked
        if checked is None and receiver.head.status in (200, 206):
            return await self.read(request, sink, range_text, is_renewed=is_renewed)
        if checked is None:
            response = ErrorResponse.from_http(receiver.head.status, receiver.head.headers, receiver.error_body)
            helps = response.http_status == 412 and not (before or is_renewed or self._has_conditions)
            helps = helps and self.etags.has_seen(request.if_match)
            self._refused(response, signed, request, reported, is_renewed=is_renewed, counter=_GET, helps=helps)
            if helps:
                return await self._compare(request, sink, range_text)
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
        helps: bool = False,
    ) -> None:
        """Raise the error of a response, unless another signature may help, once, or ``helps`` says that one does."""
        error = self._explainer.from_response(response, request)
        if isinstance(error, CredentialsExpired) and signed.source.is_renewable:
            error.status = "temporary"
        if counter in DURATIONS and not is_unmodified(request, error):
            self._runtime.counters.failed(counter)
        if reported is not None:
            reported.failed(error)
        try:
            if not helps and (is_renewed or not self._may_help(response, signed, has_body=has_body)):
                raise error
        finally:
            del error  # Its traceback holds this frame.

    def _fields(self, request: ReadRequest, range_text: str | None) -> bytes:
        """The headers of one read."""
        etags, pin, unwanted = self.etags, request.if_match, request.if_none_match
        lines = "" if range_text is None else f"Range: {range_text}\r\n"
        if pin is not None and self._has_conditions is not False and etags.can_be_sent(pin):
            lines += _condition("If-Match", pin, request)
        if unwanted is not None and not etags.prove_nothing(bare_etag(unwanted)):
            lines += _condition("If-None-Match", unwanted, request)
        if not (request.if_modified_since is request.if_unmodified_since is None):
            lines += "".join(f"{name}: {text}\r\n" for name, text in time_conditions(request).items())
        return lines.encode("ascii")

    def _learns_of_ranges(self, request: ReadRequest, receiver: _ReadReceiver, error: Error) -> bool:
        """Whether a read has failed because it names its version, and may go by its ETag, as all do from now on."""
        if request.version is None or receiver.checked is not None or not isinstance(error, ProtocolError):
            return False
        head = getattr(receiver, "head", None)
        is_whole = head is not None and head.status == 200 and b"content-range" not in head.fields
        is_ignored = is_whole and self.etags.can_be_sent(request.if_match or "*")
        self._ignores_ranges |= is_ignored
        return is_ignored

    async def _compare(self, request: ReadRequest, sink: Sink, range_text: str | None) -> ReadReply:
        """Read without ``If-Match`` what was refused for an ETag that the store has sent; then all, if it has it."""
        before, self._has_conditions = self._has_conditions, False
        try:
            return await self.read(request, sink, range_text, is_renewed=True)
        except Error as error:
            self._has_conditions = isinstance(error, ConditionNotMatch) or before
            raise

    def _may_help(self, response: ErrorResponse, signed: Signed, *, has_body: bool) -> bool:
        """Whether another signature may help; learns the clock of the store, and renews keys that have ended.

        Of a request with a body it must be another one: the same would be refused after all of the body was sent.
        """
        code, status, targets = response.code, response.http_status, self.targets
        if code in EXPIRED_KEY_CODES:
            has_others = signed.source.renew(signed.generation) or signed.source.ready() is not signed.keys
            return has_others or not has_body
        if code in CLOCK_CODES:
            targets.learn_time(parse_http_date(response.headers.get("date")))
        # The response to a HEAD has no body, and so no code. Anything may be its reason, so it teaches nothing; but
        # what another request has learned since may help.
        has_no_code = status == 403 and not code
        if (code in CLOCK_CODES or has_no_code) and targets.clock_offset_seconds != signed.clock_offset_seconds:
            return True
        if status == 400 and not code and response.region is None:
            return signed.source.renew(signed.generation)
        # Some stores say no more than 403: the age of the signature decides, by the clock of this machine.
        if targets.age_seconds(signed) >= EXPIRES_SECONDS:
            return status == 403 or code in CLOCK_CODES
        is_named = code in CLOCK_CODES or (status == 403 and "expired" in response.message.lower())
        return is_named and not has_body

    async def exchange(
        self,
        request: Request,
        method: Method,
        key: str | None,
        query: Mapping[str, str],
        *,
        counter: str | None = None,
        headers: Mapping[str, str] | None = None,
        body: memoryview | None = None,
        payload: str | None = None,
        resends: bool = True,
        operation: str = "",
        source: KeySource | None = None,
    ) -> tuple[ResponseHead, bytearray]:
        """Send a request for a key, or for the bucket (``None``): the head and the body of the success.

        It counts as the ``operation``, where the request's own says less, or by another ``counter``; with ``""`` it
        is neither counted nor reported. ``payload`` is the hash of a long body, computed before. ``resends`` as for
        ``HttpClient.fetch``, ``source`` the source of other keys.
        """
        if payload is None:
            payload = payload_hash(body) if body and not self.targets.is_anonymous else UNSIGNED_PAYLOAD
        counters = self._runtime.counters
        counter = COUNTERS.get(operation or request.operation, "") if counter is None else counter
        fields = b"" if body is None else f"Content-Length: {len(body)}\r\n".encode()
        for is_renewed in (False, True):
            signed = await self.targets.sign_now(request, method, key, query, payload, headers or {}, source)
            reported = None
            if counter and self._events.wants_requests:
                sent_bytes = 0 if body is None else len(body)
                url = signed.target.url
                reported = ReportedRequest(self._runtime, request, None, method, url, operation, sent_bytes)
            receiver = BodyCollector()
            if counter:
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
                response, signed, request, reported, is_renewed=is_renewed, counter=counter, has_body=bool(body)
            )
        raise AssertionError("the second refusal was raised")

    # --- results ------------------------------------------------------------------------------------------------

    async def _result(self, head: ResponseHead, body: bytearray, request: Request) -> Element:
        """The root of the document in a success. Raises the error that it may be, and ``ProtocolError``."""
        root = await self._parsed(parse_result, body, request)
        if root.tag == "Error":
            raise self._error_within(head, body, request)
        return root

    async def _parsed(self, parse: Callable[..., T], body: bytearray, request: Request, *facts: str) -> T:
        """The result of ``parse`` for a body, in a thread where that takes long."""
        try:
            if len(body) <= LOOP_PARSE_BYTES_MAX:
                return parse(body, *facts)
            return await self._runtime.run_blocking(parse, body, *facts)
        except Error as error:
            raise error.add_context(operation=request.operation, path=request.path) from None

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

    async def _begin_session(self) -> AccessKeys:
        """The keys of a new session with a directory bucket: one request, signed by ordinary keys.

        Those stand for them at a store of one's own that has such a bucket and no sessions.
        """
        request, now_seconds = Request(path=""), self._runtime.now()
        try:
            head, body = await self.exchange(request, "GET", None, {"session": ""}, source=self._own_keys)
            found = (await self._result(head, body, request)).find("Credentials")
            fields = {} if found is None else {element.tag: element.text or "" for element in found}
            key_id, secret, token = (fields.get(name) for name in ("AccessKeyId", "SecretAccessKey", "SessionToken"))
            if not (key_id and secret and token):
                raise no_success("names no keys of a session", request)
        except (ProtocolError, Unsupported):
            if not self._options.endpoint_url:
                raise
            return replace(await self._own_keys.get(request), until_seconds=now_seconds + SESSION_SECONDS)
        life_seconds = session_seconds(time_of(fields.get("Expiration")), parse_http_date(head.text("date")))
        keys = AccessKeys(key_id, secret, token, SESSION_TOKEN, now_seconds + life_seconds)
        self._explainer.keys["session"] = keys
        return keys


class _ReadReceiver:
    """The receiver of one read. ``checked`` is set for a success, whose body goes into the sink.

    ``head`` is the head of any response; ``error_body`` the beginning of a body without success.
    """

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


def _condition(name: str, etag: str, request: Request) -> str:
    if not (etag.isprintable() and etag.isascii()):
        raise InvalidArgument(f"{etag!r} is not a valid ETag", operation=request.operation, path=request.path)
    return f"{name}: {quote_etag(etag)}\r\n"

"""The making of a client of aiobotocore, on a thread and an event loop of its own; and how its requests travel.

aiobotocore lets aiohttp follow redirects; to another host it then sends the session token along, and takes the
foreign body for the object (botocore itself never does). It reads each response but that of a GET whole, however long,
and parses it with every entity in it. And botocore's own handler for buckets in other regions runs into a
``RecursionError`` if a response names no region. This module prevents all three: by a session whose requests do
not follow redirects and whose bodies are checked before they are parsed, and by a guard that turns every response
from 300 on into an error before that handler sees it.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from contextvars import ContextVar
from functools import cache
from typing import Any
from xml.etree import ElementTree as ET

from aioprefetch.credentials import RedactingFilter, Scrubber
from aioprefetch.errors import ConfigInvalid, MissingDependency, ProtocolError
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.response_bodies import BODY_BYTES_MAX, ERROR_BODY_BYTES_MAX
from aioprefetch.services.s3.errors import Explainer
from aioprefetch.services.s3.key_source import KeySource
from aioprefetch.services.s3.options import S3Options
from aioprefetch.services.s3.responses import BODY_TAGS_MAX, check_attributes, has_document_type
from aioprefetch.services.s3.signed_targets import customer_key, proxy_urls
from aioprefetch.services.s3.sigv4 import AccessKeys
from aioprefetch.values import Request

# aiohttp pauses a connection beyond twice this size; small buffers mean many wake-ups per megabyte.
READ_BUFFER_BYTES = 256 << 10
WRITE_CHUNK_BYTES = 256 << 10
# A longer body is parsed in a thread, piece by piece: the C code of a parser lets no other thread run.
LOOP_PARSE_BYTES_MAX = 8 << 10
_PARSED_PIECE_BYTES = 64 << 10


class ClientCall:
    """One call of the client: its responses, the size of a success, and whether the caller reads its body."""

    __slots__ = ("body_bytes", "responses", "streams")

    def __init__(self, *, streams: bool) -> None:
        self.body_bytes = 0
        self.responses: list[Any] = []
        self.streams = streams


_call: ContextVar[ClientCall | None] = ContextVar("aioprefetch_s3_call", default=None)


@contextlib.contextmanager
def calling(*, streams: bool) -> Iterator[ClientCall]:
    """The context of one call of the client.

    ``streams``: the caller reads the body of a success itself; all others are read here, within bounds. If the call
    fails its responses are closed: botocore may fail to parse a head, and the connection would stay taken for as long
    as the exception is kept.
    """
    call = ClientCall(streams=streams)
    token = _call.set(call)
    try:
        yield call
    except BaseException:
        for response in call.responses:
            response.close()
        raise
    finally:
        _call.reset(token)


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
        """Send one request. Returns a bounded response, or aiohttp's own if the caller streams its body."""
        # Botocore lets a put wait for "100 Continue", and aiohttp waits without end where a server never says it.
        headers.pop("Expect", None)
        # Aiohttp sends a request again by itself. One with a condition would be refused for its own object then.
        self._session._retry_connection = not ("If-Match" in headers or "If-None-Match" in headers)
        body = _memory_payload()(data) if isinstance(data, (bytes, bytearray)) and data else data
        response = await self._session.request(
            method, headers=headers, data=body, allow_redirects=False, read_bufsize=READ_BUFFER_BYTES, **options
        )
        call = _call.get()
        if call is None:
            return BoundedResponse(response)
        call.responses.append(response)
        return response if call.streams and response.status < 300 else BoundedResponse(response)


class BoundedResponse:
    """The part of a response that aiobotocore uses, with a body that is safe to parse."""

    __slots__ = ("_response", "raw_headers", "status", "url")

    def __init__(self, response: Any) -> None:
        self._response = response
        self.status: int = response.status
        self.url = response.url
        self.raw_headers = response.raw_headers

    async def read(self) -> bytes:
        """The body of a success, or ``ProtocolError``; of an error its beginning, or nothing if it is not S3's."""
        try:
            return await (self._success() if self.status < 300 else self._error_body())
        finally:
            self._response.close()  # Without effect after the last byte.

    async def _success(self) -> bytes:
        body = bytearray()
        while chunk := await self._response.content.readany():
            body += chunk
            if len(body) > BODY_BYTES_MAX:
                raise _refused(f"is longer than {BODY_BYTES_MAX} bytes: no response of S3 is")
        if body.count(b"<") > BODY_TAGS_MAX:
            raise _refused(f"holds more than {BODY_TAGS_MAX} tags: no response of S3 does")
        if has_document_type(body):
            raise ProtocolError("the response declares a document type, or may do so: no response of S3 does")
        if (call := _call.get()) is not None:
            call.body_bytes = len(body.strip())
        return bytes(body)

    async def _error_body(self) -> bytes:
        body = bytearray()
        while len(body) < ERROR_BODY_BYTES_MAX and (chunk := await self._response.content.readany()):
            body += chunk
        kept = bytes(body[:ERROR_BODY_BYTES_MAX])
        return b"" if has_document_type(kept) else kept


def _refused(what: str) -> ProtocolError:
    """A permanent error: another attempt would cost as much and bring the same response."""
    return ProtocolError(f"the response {what}", status="permanent")


def parser_factory(runtime: Runtime) -> Any:
    """The factory of aiobotocore's parsers; those for S3 parse a long body in a thread.

    A page of a thousand keys takes a tenth of a second, most of it for dates. The methods overridden are private names
    of botocore; a test pins their behaviour.
    """
    from aiobotocore.parsers import AioResponseParserFactory, AioRestXMLParser
    from botocore.parsers import ResponseParserError

    class Parser(AioRestXMLParser):  # type: ignore[misc]  # aiobotocore has no types
        _is_long_success = False

        def _do_parse(self, response: Any, shape: Any) -> Any:
            body = response["body"]
            self._is_long_success = isinstance(body, bytes) and len(body) > LOOP_PARSE_BYTES_MAX
            # Credentials are asked for on a loop of their own, in a thread already.
            if not self._is_long_success or not runtime.is_current():
                return super()._do_parse(response, shape)
            return runtime.run_blocking(super()._do_parse, response, shape)

        def _parse_xml_string_to_dom(self, xml_string: bytes) -> ET.Element:
            check_attributes(xml_string)
            parser = ET.XMLParser(encoding=self.DEFAULT_ENCODING)
            try:
                for start in range(0, len(xml_string), _PARSED_PIECE_BYTES):
                    parser.feed(xml_string[start : start + _PARSED_PIECE_BYTES])
                root = parser.close()
            except ET.ParseError as error:
                raise ResponseParserError(f"Unable to parse response ({error})") from error
            if self._is_long_success and root.tag.rpartition("}")[2] == "Error":
                raise ProtocolError("the response is a long error with the status of a success: no response of S3 is")
            return root

    class Factory(AioResponseParserFactory):  # type: ignore[misc]  # as above
        def create_parser(self, protocol_name: str) -> Any:
            return Parser(**self._defaults) if protocol_name == "rest-xml" else super().create_parser(protocol_name)

    return Factory()


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
    """The first handler of ``needs-retry.s3``: a response without success is a permanent error at once.

    Botocore's handlers behind it would ask another region, or try again; retries are the RetryLayer's.
    """
    from botocore.exceptions import ClientError

    if response is None:
        return
    http_response, parsed = response
    parsed_status = parsed.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if max(http_response.status_code, parsed_status) >= 300:
        raise ClientError(parsed, operation.name)


def replace_error_handler(client: Any) -> None:
    """Let botocore look for an error in the body of a success only where that is short: it parses it on the loop."""
    from botocore.handlers import _handle_200_error

    def handle(operation_model: Any, response_dict: dict[str, Any], **options: Any) -> None:
        body = response_dict["body"]
        if not isinstance(body, bytes) or len(body) <= LOOP_PARSE_BYTES_MAX:
            _handle_200_error(operation_model, response_dict, **options)

    client.meta.events.unregister("before-parse.s3.*", _handle_200_error)
    client.meta.events.register_first("before-parse.s3.*", handle)


# --- logs and clients -------------------------------------------------------------------------------------------------

# Loggers that show requests, responses and parameters at DEBUG, with the loggers below them. The other loggers of
# aiohttp belong to its server, and to the application that serves by it.
_LOGGERS = ("aiobotocore", "aiohttp.client", "botocore")

_redacting = RedactingFilter()


def redact_logs(scrubber: Scrubber) -> None:
    """Keep secrets out of the loggers of the libraries below us, as far as their modules are imported by now.

    A filter looks at the lines of its own logger and not at those of the loggers below, so each of these gets it.
    """
    _redacting.add(scrubber)
    below = tuple(f"{name}." for name in _LOGGERS)
    names = [name for name in list(logging.root.manager.loggerDict) if name.startswith(below)]
    for name in {*_LOGGERS, *names}:
        logging.getLogger(name).addFilter(_redacting)  # Without effect the second time.


class ClientMaker:
    """Makes a client in a thread: ``load`` imports and reads files, ``make`` does the rest."""

    _session: Any
    _region: str | None

    def __init__(self, options: S3Options, keys: KeySource, runtime: Runtime, explainer: Explainer) -> None:
        self.customer_key: bytes | None = None
        self._options = options
        self._keys = keys
        self._runtime = runtime
        self._connections = options.connections(runtime.options.concurrency)
        self._explainer = explainer

    def load(self) -> None:
        """Import and read files, which blocks."""
        self.customer_key = customer_key(self._options)
        self._session, self._region = _load_session(self._options)
        self._session.register_component("response_parser_factory", parser_factory(self._runtime))
        if not self._options.anonymous:
            self._session.register_component("credential_provider", _Provider(self._keys))
        redact_logs(self._explainer)

    async def make(self) -> Any:
        """A new client."""
        options = self._options
        client = await self._session.create_client(
            "s3",
            region_name=self._region,
            endpoint_url=options.endpoint_url,
            verify=options.ca_file,
            config=_config(options, self._connections),
        ).__aenter__()
        try:
            # Botocore may have found the endpoint in the environment or in a profile.
            options.check_endpoint(client.meta.endpoint_url)
        except BaseException:
            await client.close()
            raise
        client.meta.events.register_first("needs-retry.s3", guard)
        replace_error_handler(client)
        redact_logs(self._explainer)  # Also the loggers of modules that were imported meanwhile.
        return client


class _Provider:
    """The provider of keys for botocore: those that our own requests are signed with."""

    def __init__(self, keys: KeySource) -> None:
        self._keys = keys

    async def load_credentials(self) -> Any:
        return _credentials_class()(self._keys)


@cache
def _credentials_class() -> type[Any]:
    from aiobotocore.credentials import AioCredentials
    from botocore.credentials import ReadOnlyCredentials

    class SourcedCredentials(AioCredentials):  # type: ignore[misc]  # aiobotocore has no types
        """Credentials that are looked up for each signature."""

        def __init__(self, keys: KeySource) -> None:
            super().__init__("", "", method="aioprefetch")
            self._source = keys

        async def get_frozen_credentials(self) -> Any:
            keys: AccessKeys = await self._source.get(Request(path=""))
            return ReadOnlyCredentials(keys.key_id, keys.secret, keys.token)

    return SourcedCredentials


def _load_session(options: S3Options) -> tuple[Any, str | None]:
    """The session and the region. Runs in a thread: imports and files together take about half a second."""
    try:
        from aiobotocore.session import AioSession
    except ImportError as error:
        raise MissingDependency("this needs aiobotocore: pip install 'aioprefetch[s3]'") from error
    if options.ca_file is not None and not os.path.isfile(options.ca_file):
        raise ConfigInvalid(f"ca_bundle={options.ca_file!r} is not a file")
    ambient = options.ambient(files=True)
    # Keys of our own need no profile; the profile in AWS_PROFILE may not even exist here.
    unnamed = {"profile": (None, None, None, None)} if not ambient.profile else None
    session = AioSession(profile=options.profile, session_vars=unnamed)
    session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
    session.warm_up_loader_caches("s3")
    # Stores other than AWS hardly use the region, but a signature needs it.
    default = "us-east-1" if options.endpoint_url or ambient.endpoint else None
    return session, options.region or ambient.region or session.get_config_variable("region") or default


@cache
def _loader(data_path: str | None) -> Any:
    """Botocore's reader of its own data, one for the process: parsing megabytes of JSON takes 0.15 seconds."""
    from botocore.loaders import create_loader

    return create_loader(data_path)


def _config(options: S3Options, connections: int) -> Any:
    from aiobotocore.config import AioConfig
    from botocore import UNSIGNED

    urls = proxy_urls(options)
    style = options.addressing_style
    return AioConfig(
        http_session_cls=session_class(),
        max_pool_connections=connections,
        connect_timeout=options.connect_timeout_seconds,
        read_timeout=options.read_timeout_seconds,
        retries={"total_max_attempts": 1, "mode": "standard"},
        signature_version=UNSIGNED if options.anonymous else "s3v4",
        # Without a style of its own the recipe has that of the profile.
        s3=None if style == "auto" else {"addressing_style": style},
        proxies=None if urls is None else dict(urls),
        # A range carries no checksum that could be checked, and stores other than AWS send wrong ones with it.
        response_checksum_validation="when_required",
        request_checksum_calculation="when_required",
    )

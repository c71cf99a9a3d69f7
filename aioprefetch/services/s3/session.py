"""How aiobotocore's requests travel: redirects are never followed, bodies are bounded, nothing is left open.

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
from collections.abc import Iterator
from contextvars import ContextVar
from functools import cache
from typing import Any
from xml.etree import ElementTree as ET

from aioprefetch.credentials import RedactingFilter, Scrubber
from aioprefetch.errors import ProtocolError
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.error_body import ERROR_BODY_BYTES_MAX
from aioprefetch.services.s3.body_collector import BODY_BYTES_MAX
from aioprefetch.services.s3.list_page import BODY_TAGS_MAX, check_attributes
from aioprefetch.services.s3.xml_guard import has_document_type

# aiohttp pauses a connection beyond twice this size; small buffers mean many wake-ups per megabyte.
READ_BUFFER_BYTES = 256 << 10
WRITE_CHUNK_BYTES = 256 << 10
# A longer body is parsed in a thread, piece by piece: the C code of a parser lets no other thread run.
LOOP_PARSE_BYTES_MAX = 8 << 10
_PARSED_PIECE_BYTES = 64 << 10


class ClientCall:
    """One call of the client: its responses, and whether the caller reads the body of a success."""

    __slots__ = ("responses", "streams")

    def __init__(self, *, streams: bool) -> None:
        self.responses: list[Any] = []
        self.streams = streams


_call: ContextVar[ClientCall | None] = ContextVar("aioprefetch_s3_call", default=None)


@contextlib.contextmanager
def calling(*, streams: bool) -> Iterator[None]:
    """The context of one call of the client.

    ``streams``: the caller reads the body of a success itself; all others are read here, within bounds. If the call
    fails its responses are closed: botocore may fail to parse a head, and the connection would stay taken for as long
    as the exception is kept.
    """
    call = ClientCall(streams=streams)
    token = _call.set(call)
    try:
        yield
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
            raise _refused("declares a document type, or begins with too much to tell: no response of S3 does")
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

"""Responses as they arrive: the head, parsed strictly, and the framing of bodies without a length. Pure, no I/O.

A head that two parsers could read in two ways is refused. llhttp (through ``httptools``) parses the fields. It refuses
folded lines, bare line ends, a second length, and a length beside chunks, which are the means of response smuggling.
The rest is checked here, after RFC 9112. A body without a length is chunked (RFC 9112, 7.1), or goes up to the end of
the connection.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

from aioprefetch.errors import ConfigInvalid, ProtocolError
from aioprefetch.ranges import OFFSET_MAX

HEAD_BYTES_MAX = 64 << 10
FIELDS_MAX = 256
LENGTH_DIGITS_MAX = 20
_START = b"HTTP/1."
START_BYTES = len(_START)
# The first bytes of records of TLS.
_TLS_ALERT, _TLS_HANDSHAKE = b"\x15", b"\x16"
# The last digit of HTTP/1.0.
_OLD_MINOR = ord("0")


class ResponseHead:
    """Status, fields, and the framing of the body.

    ``fields`` are the headers, their names in lower case; repeated ones are joined by a comma. ``length`` is the number
    of bytes of the body, ``None`` if the body ends with its last chunk or with the connection.
    """

    def __init__(self) -> None:
        self.fields: dict[bytes, bytes] = {}
        self._repeated = 0
        self.status = 0
        self.length: int | None = None
        self.is_chunked = False
        self.keeps_alive = False

    def __repr__(self) -> str:
        return f"<ResponseHead {self.status} length={self.length}>"

    @property
    def headers(self) -> dict[str, str]:
        """The fields as text."""
        return {name.decode("latin-1"): _text_of(value) for name, value in self.fields.items()}

    def text(self, name: str) -> str | None:
        """A field as text, by its name in lower case."""
        value = self.fields.get(name.encode())
        return None if value is None else _text_of(value)

    # Called by llhttp.

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a field."""
        # The parser keeps white space after values.
        name, value, fields = name.lower(), value.rstrip(), self.fields
        if name in fields:
            self._repeated += 1
            if self._repeated > FIELDS_MAX:  # The head is refused; joining would take the square of their number.
                return
            value = fields[name] + b", " + value
        fields[name] = value

    def on_body(self, body: bytes) -> None:
        """Refuse the response: for the parser the head ends before its empty line."""
        raise ProtocolError("the response is not valid HTTP/1.1")

    @property
    def count(self) -> int:
        """The number of its header lines."""
        return len(self.fields) + self._repeated


def _text_of(value: bytes) -> str:
    """The text of a field: UTF-8 where it is that, as stores and browsers write names of files."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def check_start(start: bytes | bytearray) -> None:
    """Raise the error for the first bytes of a head, ``START_BYTES`` at most, that no response begins with.

    Another protocol may send no end of a head, for which the request would wait.
    """
    if _START.startswith(start):
        return
    if start[:1] in (_TLS_ALERT, _TLS_HANDSHAKE):
        raise ConfigInvalid("the server speaks TLS, and was asked without: its URL begins with https://")
    raise ProtocolError("the response is not HTTP: check the port")


@cache
def _httptools() -> Any:
    """The module of llhttp: of an extra, so loaded on first use."""
    import httptools

    return httptools


def parse_head(data: bytes | bytearray | memoryview, *, is_head: bool = False) -> ResponseHead:
    """The head in ``data``, which ends with the empty line. With ``is_head`` the request was a HEAD: no body follows.

    Raises ``ProtocolError``, whose message quotes nothing of the head.
    """
    httptools = _httptools()
    head = ResponseHead()
    parser = httptools.HttpResponseParser(head)
    if data[:START_BYTES] != _START:  # llhttp accepts other protocols, and leading empty lines.
        raise ProtocolError("the response is not valid HTTP/1.1")
    try:
        parser.feed_data(data)
    except httptools.HttpParserUpgrade:
        raise ProtocolError("the server changes to another protocol, which was not requested") from None
    except httptools.HttpParserError:
        raise ProtocolError("the response is not valid HTTP/1.1") from None
    head.status = status = parser.get_status_code()
    if not 100 <= status < 600 or head.count > FIELDS_MAX:
        raise ProtocolError(f"the response has status {status} and {head.count} headers, which is not valid")
    fields = head.fields
    connection = fields.get(b"connection")
    is_old = data[7] == _OLD_MINOR
    if connection is None:
        head.keeps_alive = not is_old
    else:  # The usual value needs no parsing.
        head.keeps_alive = connection == b"keep-alive" or _keeps_alive(connection, is_old=is_old)
    if is_head or status in (204, 304) or status < 200:
        head.length = 0
        return head
    length = fields.get(b"content-length")
    if length is not None:
        # The parser accepts any number of leading zeros.
        head.length = int(length) if len(length) <= LENGTH_DIGITS_MAX else OFFSET_MAX + 1
        if head.length > OFFSET_MAX:
            raise ProtocolError("the response has an invalid Content-Length")
    elif b"transfer-encoding" in fields:
        head.is_chunked = True
        if is_old or fields[b"transfer-encoding"].strip().lower() != b"chunked":
            raise ProtocolError("the response's Transfer-Encoding is not 'chunked' alone")
    else:
        head.keeps_alive = False
    return head


def _keeps_alive(connection: bytes, *, is_old: bool) -> bool:
    tokens = {token.strip().lower() for token in connection.split(b",")}
    return b"close" not in tokens and (not is_old or b"keep-alive" in tokens)


# --- bodies -----------------------------------------------------------------------------------------------------------

# A size line with its extensions, and all trailers together.
LINE_BYTES_MAX = 4096
TRAILER_BYTES_MAX = 16 << 10

_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[\t ]*;[\t\x20-\x7e\x80-\xff]*)?[\t ]*")
# These search the received bytes in place and copy only the match.
_LINE = re.compile(rb"[^\n]*\n?")
_NEXT_CHUNK = re.compile(rb"\r\n([0-9A-Fa-f]{1,15})\r\n")
_TRAILER = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*")


class ChunkedDecoder:
    """Decodes a chunked body as it arrives.

    ``ended`` after the last chunk and its trailers; ``rest`` are the bytes after them. Trailers are dropped. Raises
    ``ProtocolError`` for an invalid size, a missing line end, and an endless line.
    """

    def __init__(self) -> None:
        self._state = self._size_line
        self._line = bytearray()
        self._left_bytes = 0
        self._trailer_bytes = 0
        self.ended = False
        self.rest = b""

    def feed(self, data: memoryview) -> list[memoryview]:
        """The content of the chunks in ``data``, as views of it."""
        pieces: list[memoryview] = []
        position = 0
        while position < len(data) and not self.ended:
            if self._left_bytes:
                piece = data[position : position + self._left_bytes]
                pieces.append(piece)
                self._left_bytes -= len(piece)
                position += len(piece)
                continue
            position = self._take_line(data, position)
        self.rest = bytes(data[position:])
        return pieces

    def _take_line(self, data: memoryview, position: int) -> int:
        if not self._line and self._state == self._chunk_end:
            # The usual case: the end of a chunk and the size of the next one are in ``data``.
            match = _NEXT_CHUNK.match(data, position)
            if match is not None and (size_bytes := int(match[1], 16)):
                self._left_bytes = size_bytes
                return match.end()
        match = _LINE.match(data, position, position + LINE_BYTES_MAX + 2)
        assert match is not None
        self._line += match[0]
        if len(self._line) > LINE_BYTES_MAX + 2:
            raise ProtocolError(f"a chunk of the body has a line of more than {LINE_BYTES_MAX} bytes")
        if self._line.endswith(b"\n"):
            if not self._line.endswith(b"\r\n"):
                raise ProtocolError("a line of the chunked body does not end with CRLF")
            line, self._line = bytes(self._line[:-2]), bytearray()
            self._state(line)
        return match.end()

    def _size_line(self, line: bytes) -> None:
        match = _SIZE.fullmatch(line)
        if match is None:
            raise ProtocolError("a chunk of the body does not begin with a size")
        self._left_bytes = int(match[1], 16)
        self._state = self._chunk_end if self._left_bytes else self._trailer

    def _chunk_end(self, line: bytes) -> None:
        if line:
            raise ProtocolError("a chunk of the body is longer than its size")
        self._state = self._size_line

    def _trailer(self, line: bytes) -> None:
        self._trailer_bytes += len(line)
        if not line:
            self.ended = True
        elif self._trailer_bytes > TRAILER_BYTES_MAX or not _TRAILER.fullmatch(line):
            raise ProtocolError("the chunks of the body are followed by an invalid trailer")


class UnsizedBody:
    """The body of one response whose length only its chunks, or the end of its connection, tell.

    ``feed`` copies bytes to the destination and returns how many it took. ``ended``: the last byte of the body was
    passed on. ``is_clean``: nothing came after it.
    """

    def __init__(self, feed: Callable[[memoryview], int], *, is_chunked: bool) -> None:
        self._feed = feed
        self._decoder = ChunkedDecoder() if is_chunked else None
        self.ended = False
        self.is_clean = False
        self.received_bytes = 0

    @property
    def is_chunked(self) -> bool:
        """Whether its last chunk ends it, and not the connection."""
        return self._decoder is not None

    def receive(self, data: memoryview) -> None:
        """Pass on the content of ``data``. Raises ``ProtocolError`` for bad chunks, and for more than is taken."""
        decoder = self._decoder
        pieces = [data] if decoder is None else decoder.feed(data)
        for piece in pieces:
            if self._feed(piece) != len(piece):
                raise ProtocolError("the body has more bytes than were asked for")
            self.received_bytes += len(piece)
        if decoder is not None and decoder.ended:
            self.ended = True
            self.is_clean = not decoder.rest

    def end_with_connection(self) -> bool:
        """Whether the end of the connection is the end of the body."""
        self.ended = self.ended or self._decoder is None
        return self.ended

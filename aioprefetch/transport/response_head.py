"""The head of a response, strictly: what two parsers could read in two ways is refused. Pure, no I/O.

llhttp (by ``httptools``) parses the fields; it refuses folded lines, bare line ends, a second length, and a length
beside chunks, which is how answers are smuggled into others. What it leaves open is decided here, after RFC 9112.
"""

from __future__ import annotations

from aioprefetch.errors import ProtocolError
from aioprefetch.ranges import OFFSET_MAX

HEAD_BYTES_MAX = 64 << 10
FIELDS_MAX = 256
LENGTH_DIGITS_MAX = 20


class ResponseHead:
    """Status, fields, and how the body is framed.

    ``fields`` has the headers as they came, their names in lower case; one that came twice is joined by a comma.
    ``length`` is the number of bytes of the body, ``None`` where only chunks or the end of the connection tell it.
    """

    __slots__ = ("_lines", "fields", "is_chunked", "keeps_alive", "length", "status")

    def __init__(self) -> None:
        self._lines: list[tuple[bytes, bytes]] = []
        self.fields: dict[bytes, bytes] = {}
        self.status = 0
        self.length: int | None = None
        self.is_chunked = False
        self.keeps_alive = False

    def __repr__(self) -> str:
        return f"<ResponseHead {self.status} length={self.length}>"

    @property
    def headers(self) -> dict[str, str]:
        """The fields as text."""
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in self.fields.items()}

    # llhttp calls these.

    def on_header(self, name: bytes, value: bytes) -> None:
        """One field."""
        self._lines.append((name, value))

    def on_body(self, body: bytes) -> None:
        """The parser saw the end of the head sooner than we did."""
        raise ProtocolError("the response is no valid HTTP/1.1")

    def index(self) -> dict[bytes, bytes]:
        """Make ``fields`` of what was parsed."""
        lines = self._lines
        # The parser leaves the white space at the end, which belongs to no value.
        self.fields = fields = {name.lower(): value.rstrip() for name, value in lines}
        if len(fields) != len(lines):
            fields.clear()
            for name, untrimmed in lines:
                value = untrimmed.rstrip()
                known = fields.get(name.lower())
                fields[name.lower()] = value if known is None else known + b", " + value
        return fields


def parse_head(data: bytes | bytearray | memoryview, *, is_head: bool = False) -> ResponseHead:
    """The head in ``data``, which ends with its empty line; ``is_head``: it answers a HEAD, and no body follows.

    Raises ``ProtocolError``, whose message repeats nothing of the head.
    """
    import httptools  # Of an extra, so loaded on first use: a lookup from then on.

    head = ResponseHead()
    parser = httptools.HttpResponseParser(head)
    if data[:7] != b"HTTP/1.":  # llhttp would take other protocols, and empty lines before.
        raise ProtocolError("the response is no valid HTTP/1.1")
    try:
        parser.feed_data(data)
    except httptools.HttpParserUpgrade:
        raise ProtocolError("the server changes to another protocol, which nobody asked for") from None
    except httptools.HttpParserError:
        raise ProtocolError("the response is no valid HTTP/1.1") from None
    head.status = status = parser.get_status_code()
    if not 100 <= status < 600 or len(head._lines) > FIELDS_MAX:
        raise ProtocolError(f"the response has status {status} and {len(head._lines)} headers, which cannot be")
    fields = head.index()  # After the check: joining fields of one name takes the square of their number.
    connection = fields.get(b"connection")
    is_old = parser.get_http_version() == "1.0"
    if connection is None:
        head.keeps_alive = not is_old
    else:  # What most servers say is not taken apart each time.
        head.keeps_alive = connection == b"keep-alive" or _keeps_alive(connection, is_old=is_old)
    if is_head or status in (204, 304) or status < 200:
        head.length = 0
        return head
    length = fields.get(b"content-length")
    if length is not None:
        # The parser lets zeros in front pass, without end.
        head.length = int(length) if len(length) <= LENGTH_DIGITS_MAX else OFFSET_MAX + 1
        if head.length > OFFSET_MAX:
            raise ProtocolError("the response's Content-Length is no length")
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

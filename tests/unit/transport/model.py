"""What a response on the wire means: written from RFC 9112 with regular expressions, sharing nothing with the
transport.

The whole stream is at hand here, so no state and no splits: slow and plain.
"""

import re
from dataclasses import dataclass, field

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
# The reason phrase means nothing and may be anything within its line.
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: [^\r\n]*)?\r\n")
_FIELD = re.compile(rb"(" + _TOKEN + rb"):[ \t]*([\t\x20-\x7e\x80-\xff]*?)[ \t]*\r\n")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[^\r\n]*)?[ \t]*\r\n")
_TRAILER = re.compile(rb"(?:" + _TOKEN + rb":[\t\x20-\x7e\x80-\xff]*\r\n)*\r\n")

LENGTH_MAX = 2**63 - 1
HEAD_BYTES_MAX = 64 << 10
FIELDS_MAX = 256
INTERIM_MAX = 16


class Refused(Exception):
    """The response is not one."""


@dataclass
class Head:
    """A head by the letter. ``length``: of the body, where it is known by the head alone."""

    status: int
    minor: int
    fields: list[tuple[bytes, bytes]]
    length: int | None = None
    is_chunked: bool = False
    keeps_alive: bool = True


@dataclass
class Response:
    """What must come of a stream: ``body`` whole if ``is_whole``, otherwise the part that may have been delivered."""

    body: bytes = b""
    is_whole: bool = False
    is_reusable: bool = False
    rest: bytes = b""
    heads: list[Head] = field(default_factory=list)


def read_head(data: bytes, *, is_head: bool = False) -> Head:
    """The head that ``data`` is, all of it. ``Refused`` for anything else."""
    line = _STATUS_LINE.match(data)
    if line is None:
        raise Refused("status line")
    position, fields = line.end(), []
    while found := _FIELD.match(data, position):
        fields.append((found[1].lower(), found[2]))
        position = found.end()
    if data[position:] != b"\r\n":
        raise Refused("fields")
    if len(fields) > FIELDS_MAX:
        raise Refused("too many fields")
    head = Head(int(line[2]), int(line[1]), fields)
    _frame(head, is_head=is_head)
    return head


def _frame(head: Head, *, is_head: bool) -> None:
    def values(wanted: bytes) -> list[bytes]:
        return [value for name, value in head.fields if name == wanted]

    lengths, codings = values(b"content-length"), values(b"transfer-encoding")
    if len(lengths) > 1 or (lengths and codings):
        raise Refused("framed twice")
    if lengths and (not re.fullmatch(rb"[0-9]{1,20}", lengths[0]) or int(lengths[0]) > LENGTH_MAX):
        raise Refused("length")
    options = {option.strip().lower() for value in values(b"connection") for option in value.split(b",")}
    head.keeps_alive = b"close" not in options and (head.minor == 1 or b"keep-alive" in options)
    if is_head or head.status < 200 or head.status in (204, 304):
        head.length = 0
    elif codings:
        if [coding.lower() for coding in codings] != [b"chunked"] or head.minor == 0:
            raise Refused("coding")
        head.is_chunked = True
    elif lengths:
        head.length = int(lengths[0])
    else:
        head.keeps_alive = False


def read_receiver(stream: bytes, *, is_head: bool = False, has_fin: bool = True) -> Response:
    """What comes of a stream that ends: with FIN, or broken off."""
    response = Response()
    position = 0
    while True:
        end = stream.find(b"\r\n\r\n", position)
        if end < 0 or end + 4 - position > HEAD_BYTES_MAX:
            return response
        try:
            head = read_head(stream[position : end + 4], is_head=is_head)
        except Refused:
            return response
        position = end + 4
        response.heads.append(head)
        if head.status >= 200:
            break
        if head.status == 101 or len(response.heads) > INTERIM_MAX:
            return response
    rest = stream[position:]
    if head.length is not None:
        response.body, response.rest = rest[: head.length], rest[head.length :]
        response.is_whole = len(response.body) == head.length
    elif head.is_chunked:
        _read_chunks(response, rest)
    else:
        response.body, response.is_whole = rest, has_fin
    response.is_reusable = response.is_whole and head.keeps_alive and not response.rest
    return response


def _read_chunks(response: Response, data: bytes) -> None:
    position = 0
    while size := _CHUNK.match(data, position):
        position, count = size.end(), int(size[1], 16)
        if not count:
            trailer = _TRAILER.match(data, position)
            if trailer is not None:
                response.is_whole, response.rest = True, data[trailer.end() :]
            return
        response.body += data[position : position + count]
        position += count
        if data[position : position + 2] != b"\r\n":
            return
        position += 2

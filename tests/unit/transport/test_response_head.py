"""Heads of responses: how a body is framed (RFC 9112, 6.3), and what is refused because two parsers would differ."""

import pytest

from aioprefetch.errors import ProtocolError
from aioprefetch.transport.responses import FIELDS_MAX, ResponseHead, parse_head
from tests.profile import each_of

LENGTH = b"Content-Length: 5\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"


def head_of(*lines: bytes, status: bytes = b"200 OK", version: bytes = b"HTTP/1.1") -> bytes:
    return version + b" " + status + b"\r\n" + b"".join(lines) + b"\r\n"


def framing(data: bytes, *, is_head: bool = False) -> tuple[int | None, bool, bool]:
    """Length, whether there are chunks, whether the connection may be kept."""
    head = parse_head(data, is_head=is_head)
    return head.length, head.is_chunked, head.keeps_alive


# --- how a body is framed -------------------------------------------------------------------------------------------


@each_of("status", [b"204 No Content", b"304 Not Modified", b"100 Continue", b"103 Early Hints"])
@each_of("lines", [b"", LENGTH, CHUNKED, b"Transfer-Encoding: gzip\r\n"])
def test_rule_1_some_answers_have_no_body_whatever_they_say(status: bytes, lines: bytes) -> None:
    if lines.startswith(b"Transfer-Encoding: gzip"):
        lines += b"Connection: close\r\n"
        assert framing(head_of(lines, status=status)) == (0, False, False)
    else:
        assert framing(head_of(lines, status=status)) == (0, False, True)


@each_of("lines", [b"", LENGTH, CHUNKED])
def test_rule_1_a_response_to_head_has_no_body(lines: bytes) -> None:
    assert framing(head_of(lines), is_head=True) == (0, False, True)


def test_rule_1_the_length_that_head_tells_stays_among_the_fields() -> None:
    assert parse_head(head_of(LENGTH), is_head=True).fields[b"content-length"] == b"5"


@each_of("lines", [LENGTH + CHUNKED, CHUNKED + LENGTH, LENGTH + b"Transfer-Encoding: identity\r\n"])
@each_of("is_head", [False, True])
def test_rule_3_length_and_coding_together_are_smuggling(lines: bytes, is_head: bool) -> None:
    with pytest.raises(ProtocolError):
        parse_head(head_of(lines), is_head=is_head)


@each_of("value", [b"chunked", b"Chunked", b"CHUNKED", b"chunked  ", b"\tchunked\t"])
def test_rule_4_chunks(value: bytes) -> None:
    assert framing(head_of(b"Transfer-Encoding:" + value + b"\r\n")) == (None, True, True)


@each_of(
    "lines",
    [
        b"Transfer-Encoding: gzip, chunked\r\n",
        b"Transfer-Encoding: chunked, chunked\r\n",
        b"Transfer-Encoding: chunked, gzip\r\n",
        b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: gzip\r\n",
        b"Transfer-Encoding: identity\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding: chunked;q=1\r\n",
        b'Transfer-Encoding: "chunked"\r\n',
        b"Transfer-Encoding:\r\n",
        b"Transfer-Encoding: chun\x0bked\r\n",
    ],
)
def test_rule_4_any_other_coding_is_refused(lines: bytes) -> None:
    """It was not asked for, and who reads it in another way sees another end."""
    with pytest.raises(ProtocolError):
        parse_head(head_of(lines))


def test_rule_4_http_1_0_knows_no_chunks() -> None:
    with pytest.raises(ProtocolError):
        parse_head(head_of(CHUNKED, version=b"HTTP/1.0"))


@each_of(
    "lines",
    [
        LENGTH + LENGTH,
        LENGTH + b"Content-Length: 6\r\n",
        LENGTH + b"X: y\r\ncontent-length: 5\r\n",
        b"Content-Length: 5, 5\r\n",
        b"Content-Length: 5 5\r\n",
        b"Content-Length: -1\r\n",
        b"Content-Length: +5\r\n",
        b"Content-Length: 0x5\r\n",
        b"Content-Length: 1_0\r\n",
        b"Content-Length: 5.0\r\n",
        b"Content-Length: \xb2\r\n",
        b"Content-Length:\r\n",
        b"Content-Length: %d\r\n" % 2**63,
        b"Content-Length: %d\r\n" % 2**64,
        b"Content-Length: %d\r\n" % (2**64 + 5),
        b"Content-Length: %d\r\n" % 2**70,
        b"Content-Length: " + b"0" * 5000 + b"5\r\n",
    ],
)
@each_of("is_head", [False, True])
def test_rule_5_a_length_that_is_none(lines: bytes, is_head: bool) -> None:
    if is_head and lines.startswith((b"Content-Length: 00", b"Content-Length: 9223372036854775808")):
        assert parse_head(head_of(lines), is_head=True).length == 0  # A caller that wants the field checks it.
        return
    with pytest.raises(ProtocolError):
        parse_head(head_of(lines), is_head=is_head)


@each_of(
    ("value", "length"),
    [(b"0", 0), (b"5", 5), (b"005", 5), (b"  5\t ", 5), (b"%d" % (2**63 - 1), 2**63 - 1)],
)
def test_rule_6_a_length(value: bytes, length: int) -> None:
    assert framing(head_of(b"Content-Length:" + value + b"\r\n")) == (length, False, True)


def test_rule_8_otherwise_the_connection_ends_the_body() -> None:
    assert framing(head_of()) == (None, False, False)
    assert framing(head_of(b"Connection: keep-alive\r\n")) == (None, False, False)


# --- whether the connection is kept ---------------------------------------------------------------------------------


@each_of(
    ("version", "lines", "keeps"),
    [
        (b"HTTP/1.1", b"", True),
        (b"HTTP/1.1", b"Connection: close\r\n", False),
        (b"HTTP/1.1", b"Connection: CLOSE\r\n", False),
        (b"HTTP/1.1", b"Connection: keep-alive, Close \r\n", False),
        (b"HTTP/1.1", b"Connection: keep-alive\r\nConnection: close\r\n", False),
        (b"HTTP/1.1", b"Connection: close\r\nConnection: keep-alive\r\n", False),
        (b"HTTP/1.1", b"Connection: closed\r\n", True),
        (b"HTTP/1.1", b"Connection:\r\n", True),
        (b"HTTP/1.1", b"Proxy-Connection: close\r\n", True),
        (b"HTTP/1.0", b"", False),
        (b"HTTP/1.0", b"Connection: Keep-Alive\r\n", True),
        (b"HTTP/1.0", b"Connection: keep-alive, close\r\n", False),
    ],
)
def test_whether_the_connection_is_kept(version: bytes, lines: bytes, keeps: bool) -> None:
    assert parse_head(head_of(LENGTH, lines, version=version)).keeps_alive is keeps


# --- the fields -----------------------------------------------------------------------------------------------------


def test_fields_are_as_they_came_without_the_space_around_them() -> None:
    lines = b'ETag:\t"a  b" \t \r\nX-Empty:\r\nX-Space:  \r\nX-Twice: 1\r\nx-tWICE:  2 \r\nX-\xe9: 1\r\n'
    with pytest.raises(ProtocolError):
        parse_head(head_of(lines))
    head = parse_head(head_of(lines.replace(b"X-\xe9", b"X-Latin").replace(b": 1\r\n", b": \xe9\r\n", 2)))
    assert head.fields == {
        b"etag": b'"a  b"',
        b"x-empty": b"",
        b"x-space": b"",
        b"x-twice": b"\xe9, 2",
        b"x-latin": b"\xe9",
    }
    assert head.headers["x-twice"] == "é, 2"
    assert repr(head) == "<ResponseHead 200 length=None>"


def test_a_view_will_do() -> None:
    data = bytearray(b"rest" + head_of(LENGTH) + b"body!")
    assert parse_head(memoryview(data)[4:-5]).length == 5


@each_of("status", [b"200", b"200 ", b"200 Any \xff thing: at all", b"599 x"])
def test_the_reason_means_nothing(status: bytes) -> None:
    assert parse_head(head_of(LENGTH, status=status)).status == int(status[:3])


@each_of(
    "status", [b"", b"20", b"2000 OK", b"099 x", b"000 x", b"600 x", b"999 x", b" 200 OK", b"200OK", b"+20 x", b"0x1 x"]
)
def test_a_status_that_is_none(status: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_head(head_of(LENGTH, status=status))


@each_of(
    "version",
    [
        *(b"HTTP/2.0", b"HTTP/2", b"HTTP/1.2", b"HTTP/1.9", b"HTTP/0.9", b"HTTP/1.10", b"HTTP/11", b"HTTP/1.1 ", b""),
        *(b"http/1.1", b"HTTPS/1.1", b"ICY", b"RTSP/1.0", b"\r\nHTTP/1.1", b" HTTP/1.1", b"\xef\xbb\xbfHTTP/1.1"),
    ],
)
def test_another_protocol(version: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_head(head_of(LENGTH, version=version))


@each_of(
    "line",
    [
        b" folded: 1\r\n",
        b"X: a\r\n b\r\n",
        b"X: a\r\n\tb\r\n",
        b"X: a\r\n \r\n",
        b"X: a\nY: b\r\n",
        b"X: a\n\nHTTP/1.1 200 OK\r\n",
        b"X: a\rY: b\r\n",
        b"X: a\r\r\n",
        b"X: a\0b\r\n",
        b"X\0: a\r\n",
        b"X: a\x01b\r\n",
        b"X: a\x7fb\r\n",
        b"X : a\r\n",
        b"X\t: a\r\n",
        b"X y: a\r\n",
        b": a\r\n",
        b"X\r\n",
        b"X(: a\r\n",
        b'X": a\r\n',
        b"Content-Length : 5\r\n",
        b"Transfer-Encoding : chunked\r\n",
    ],
)
@each_of("is_first", [True, False])
def test_a_line_that_two_parsers_read_differently(line: bytes, is_first: bool) -> None:
    lines = [line, LENGTH] if is_first else [b"A: b\r\n", line]
    with pytest.raises(ProtocolError) as caught:
        parse_head(head_of(*lines))
    assert "X" not in str(caught.value)
    assert caught.value.status == "temporary"


@pytest.mark.parametrize("data", [head_of(LENGTH).replace(b"\r\n", b"\n"), head_of(LENGTH).replace(b"\r\n", b"\n", 1)])
def test_bare_line_ends(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_head(data + b"\r\n\r\n")


def test_no_head_at_all() -> None:
    for data in (b"\r\n\r\n", b"SSH-2.0-OpenSSH_9.9\r\n\r\n", b"\x16\x03\x01\x02\0\r\n\r\n", b"<html>\r\n\r\n"):
        with pytest.raises(ProtocolError):
            parse_head(data)


def test_what_follows_the_head_is_no_part_of_it() -> None:
    with pytest.raises(ProtocolError):
        parse_head(head_of(LENGTH) + b"hello")
    with pytest.raises(ProtocolError):
        parse_head(head_of() + b"hello")


@pytest.mark.parametrize("lines", [b"", b"Connection: upgrade\r\nUpgrade: h2c\r\n"])
def test_another_protocol_is_refused(lines: bytes) -> None:
    data = head_of(lines, status=b"101 Switching Protocols")
    if lines:
        with pytest.raises(ProtocolError, match="another protocol"):
            parse_head(data)
    else:  # A caller that awaits a response refuses it.
        assert refused_or_interim(data)


def refused_or_interim(data: bytes) -> bool:
    try:
        return parse_head(data).status == 101
    except ProtocolError:
        return True


def test_an_offer_to_upgrade_is_no_upgrade() -> None:
    head = parse_head(head_of(b"Connection: Upgrade\r\nUpgrade: h2,h2c\r\n", LENGTH))
    assert (head.status, head.length, head.keeps_alive) == (200, 5, True)


@pytest.mark.parametrize("name", [b"X-%d", b"X"])
def test_too_many_headers(name: bytes) -> None:
    """However often one of them comes."""

    def lines(count: int) -> list[bytes]:
        return [(name % number if b"%" in name else name) + b": 1\r\n" for number in range(count)]

    assert isinstance(parse_head(head_of(*lines(FIELDS_MAX))), ResponseHead)
    for count in (FIELDS_MAX + 1, 300, 3000):
        with pytest.raises(ProtocolError, match="headers"):
            parse_head(head_of(*lines(count)))

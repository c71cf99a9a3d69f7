"""What is sent: nothing gets into a request line or a header that would end it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioprefetch.errors import InvalidPath
from aioprefetch.transport.origin import Origin, Proxy, Route, Target, encoded_fields, is_link_local_or_metadata
from tests.profile import each_of

ORIGIN = Origin("http", "store.example", 8080)
SECRET = "Basic c2VjcmV0"


def test_a_request_as_it_is_sent() -> None:
    target = Target(ORIGIN, "/b/k%20y?a=b&c", method="HEAD", headers={"Authorization": SECRET})
    assert target.head == (
        b"HEAD /b/k%20y?a=b&c HTTP/1.1\r\nHost: store.example:8080\r\nUser-Agent: aioprefetch\r\n"
        b"Accept-Encoding: identity\r\nAuthorization: Basic c2VjcmV0\r\n"
    )
    assert (target.is_head, Target(ORIGIN, "/").is_head) == (True, False)


@each_of("path", ["", "k", "*", "http://x/", "/a b", "/a\tb", "/a\r\nX: y", "/a\n", "/\0", "/é", "/\x7f"])
def test_paths_that_would_break_the_line(path: str) -> None:
    with pytest.raises(InvalidPath) as caught:
        Target(ORIGIN, path)
    assert "X: y" not in str(caught.value)


@given(st.text(max_size=30))
def test_a_request_line_has_three_words(path: str) -> None:
    try:
        target = Target(ORIGIN, "/" + path)
    except InvalidPath:
        return
    line, _, _ = target.head.partition(b"\r\n")
    assert line.split(b" ") == [b"GET", b"/" + path.encode(), b"HTTP/1.1"]
    assert target.head.count(b"\r\n") == target.head.count(b"\r") == target.head.count(b"\n") == 4


@given(st.dictionaries(st.text(max_size=12), st.text(max_size=20), max_size=4))
def test_headers_are_lines_of_their_own(fields: dict[str, str]) -> None:
    try:
        sent = encoded_fields(fields)
    except InvalidPath:
        return
    lines = sent.split(b"\r\n")
    assert lines.pop() == b""
    assert len(lines) == len(fields)
    for line, (name, value) in zip(lines, fields.items(), strict=True):
        assert line == f"{name}: {value}".encode("latin-1")
        assert not {0, 10, 13} & set(line)
        assert b" " not in line.partition(b":")[0]


@each_of("name", ["", "X y", "X:", "X\r\nY", "X\n", "é", "X\0", " X", "X "])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(InvalidPath):
        encoded_fields({name: "v"})


@each_of("value", ["a\r\nX: y", "a\nb", "a\rb", "a\0b", "a\x01", "\x7f", "Ā", "a\x0b", "a\n", "\u2028"])
def test_values_that_are_none(value: str) -> None:
    with pytest.raises(InvalidPath) as caught:
        encoded_fields({"X": value})
    assert "X: y" not in str(caught.value)
    with pytest.raises(InvalidPath):
        Target(ORIGIN, "/", headers={"X": value})


@each_of("value", ["", "a b", "\tx", "é", "ÿ", 'a;b="c"'])
def test_values_that_are_fine(value: str) -> None:
    assert encoded_fields({"X": value}) == b"X: " + value.encode("latin-1") + b"\r\n"


@each_of(
    ("origin", "text"),
    [
        (Origin("http", "h", 80), "http://h"),
        (Origin("https", "h", 443), "https://h"),
        (Origin("https", "h", 80), "https://h:80"),
        (Origin("http", "::1", 80), "http://[::1]"),
        (Origin("http", "::1", 81), "http://[::1]:81"),
    ],
)
def test_origins_as_urls_have_them(origin: Origin, text: str) -> None:
    assert str(origin) == text
    assert b"\r\nHost: %b\r\n" % text.partition("//")[2].encode() in Target(origin, "/").head


def test_a_plain_proxy_gets_the_whole_url_and_its_secret() -> None:
    proxy = Proxy(Origin("http", "proxy.example", 3128), SECRET)
    plain = Target(ORIGIN, "/k", proxy=proxy)
    assert plain.head.startswith(b"GET http://store.example:8080/k HTTP/1.1\r\n")
    assert b"Proxy-Authorization: Basic c2VjcmV0\r\n" in plain.head
    tunnelled = Target(Origin("https", "store.example", 443), "/k", proxy=proxy)
    assert tunnelled.head.startswith(b"GET /k HTTP/1.1\r\n")
    assert b"Proxy-Authorization" not in tunnelled.head


def test_connections_serve_one_origin_through_one_proxy() -> None:
    one = Proxy(Origin("http", "proxy.example", 3128), SECRET)
    other = Proxy(Origin("http", "proxy.example", 3128), "Basic b3RoZXI=")
    routes = [Route(ORIGIN, None), Route(ORIGIN, one), Route(ORIGIN, other), Route(Origin("http", "x", 80), None)]
    assert len({route.key for route in routes}) == 4
    assert Route(Origin("http", "store.example", 8080), None).key == routes[0].key


def test_nothing_secret_is_shown() -> None:
    proxy = Proxy(Origin("http", "proxy.example", 3128), SECRET)
    target = Target(ORIGIN, "/k?X-Amz-Signature=abc", headers={"Authorization": SECRET}, proxy=proxy)
    for thing in (proxy, target, target.route):
        assert "c2VjcmV0" not in repr(thing)
        assert "Signature" not in repr(thing)
    assert repr(target) == "<Target GET http://store.example:8080/k>"


@each_of(
    ("host", "expected"),
    [
        ("169.254.169.254", True),
        ("fe80::1", True),
        ("fe80::1%eth0", True),
        ("::ffff:169.254.169.254", True),
        ("::ffff:a9fe:a9fe", True),
        ("::169.254.169.254", True),
        ("64:ff9b::a9fe:a9fe", True),
        ("64:ff9b::6464:64c8", True),
        ("64:ff9b:1::a9fe:a9fe", True),
        ("2002:a9fe:a9fe::1", True),
        ("fd00:ec2::254", True),
        ("FD00:0EC2:0:0::254", True),
        ("fd20:ce::254", True),
        ("100.100.100.200", True),
        ("::ffff:100.100.100.200", True),
        ("168.63.129.16", True),
        ("169.254.169.254.", True),
        ("2852039166", True),
        ("0xA9FEA9FE", True),
        ("0xa9.0xfe.0xa9.0xfe", True),
        ("0251.0376.0251.0376", True),
        ("169.254.43518", True),
        ("1684301000", True),
        ("64:ff9b::a00:1", False),
        ("fd00:ec2::253", False),
        ("100.100.100.201", False),
        ("2130706433", False),
        ("::", False),
        ("10", False),
        ("169.254.169.254.example", False),
        ("169.253.0.1", False),
        ("127.0.0.1", False),
        ("::1", False),
        ("store.example", False),
        ("", False),
    ],
)
def test_link_local_addresses(host: str, expected: bool) -> None:
    assert is_link_local_or_metadata(host) is expected

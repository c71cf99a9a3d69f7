"""URLs: what a base may be, how a key gets into one, and where a redirect may lead."""

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioprefetch import errors
from aioprefetch.credentials import Secret
from aioprefetch.services.http.options import encoded_key, parse_base_url, redirect_target
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.transport.origin import Origin, is_link_local_or_metadata
from tests.profile import each_of

BASE = Origin("https", "a.example", 443)


@each_of(
    ("text", "origin", "path", "query"),
    [
        ("https://host", "https://host", "", ""),
        ("https://HOST:443/", "https://host", "", ""),
        ("http://host:8080/a/b/", "http://host:8080", "/a/b", ""),
        ("http://host/a b/ü%20/?x=1&y=%2F", "http://host", "/a%20b/%C3%BC%20", "x=1&y=%2F"),
        ("http://[::1]:81/", "http://[::1]:81", "", ""),
        ("https://bücher.example/", "https://xn--bcher-kva.example", "", ""),
        ("http://169.254.1.1/", "http://169.254.1.1", "", ""),
    ],
)
def test_bases(text: str, origin: str, path: str, query: str) -> None:
    base = parse_base_url(text)
    assert (str(base.origin), base.path, base.query) == (origin, path, Secret.of(query))


@each_of(
    "text",
    [
        "",
        "host/path",
        "ftp://host/",
        "s3://bucket",
        "http://",
        "http:///path",
        "http://ho st/",
        "http://host:port/",
        "http://host:99999/",
        "http://[::1/",
        "http://host/a/../b",
        "http://host/%2e%2E/b",
        "http://host/#fragment",
        "http://ho\\st/",
        None,
        b"http://host/",
    ],
)
def test_invalid_bases(text: object) -> None:
    with pytest.raises(errors.ConfigInvalid, match="base_url"):
        parse_base_url(text)


def test_a_refused_base_shows_no_secret() -> None:
    for text in ("ftp://user:canary@host/?sig=canary", "http://user:canary@ho st/?sig=canary", "http://u:canary@/x"):
        with pytest.raises(errors.ConfigInvalid) as caught:
            parse_base_url(text)
        assert "canary" not in repr(caught.value)


def test_user_information_is_taken_out() -> None:
    base = parse_base_url("https://us%40er:p%3Ass@host/x")
    assert (base.user, base.password, str(base.origin)) == ("us@er", Secret("p:ss"), "https://host")


@checks("reliability:I06")
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=50))
def test_every_key_survives_its_encoding(key: str) -> None:
    """And what is sent holds no character that could end a path."""
    encoded = encoded_key(key)
    assert unquote(encoded) == key
    assert not set(encoded) & set(' ?#&+\\\r\n"<>')
    assert encoded.isascii()


@each_of(
    ("location", "url"),
    [
        ("https://b.example/x?sig=1", "https://b.example/x?sig=1"),
        ("//b.example:8443", "https://b.example:8443/"),
        ("/y z", "https://a.example/y%20z"),
        ("y", "https://a.example/base/y"),
        ("../y#part", "https://a.example/y"),
        ("?q", "https://a.example/base/k?q"),
        ("HTTPS://B.EXAMPLE:443/x", "https://b.example/x"),
        ("https://b.example/a%2Fb?c=%26", "https://b.example/a%2Fb?c=%26"),
    ],
)
def test_targets(location: str, url: str) -> None:
    origin, found = redirect_target("https://a.example/base/k", location, BASE)
    assert found == url
    assert found.startswith(str(origin))


@each_of(
    "location",
    [
        None,
        "",
        "http://a.example/k",
        "http://b.example/k",
        "file:///etc/passwd",
        "ftp://b.example/",
        "javascript:alert(1)",
        "https://user:pass@b.example/",
        "https://169.254.169.254/latest/meta-data",
        "https://[fe80::1]/",
        "https://[::ffff:169.254.169.254]/",
        "https://[fd00:ec2::254]/latest/meta-data/",
        "https://[64:ff9b::a9fe:a9fe]/",
        "https://100.100.100.200/",
        "https://2852039166/",
        "https://0xA9FEA9FE/",
        "https://0251.0376.0251.0376/",
        "https://b.example:x/",
    ],
)
def test_targets_that_are_refused(location: str | None) -> None:
    with pytest.raises(errors.RedirectRefused):
        redirect_target("https://a.example/base/k", location, BASE)


def test_a_link_local_base_may_redirect_to_itself() -> None:
    base = Origin("http", "169.254.1.1", 80)
    origin, _ = redirect_target("http://169.254.1.1/k", "/other", base)
    assert origin == base
    with pytest.raises(errors.RedirectRefused):
        redirect_target("http://169.254.1.1/k", "http://169.254.169.254/", base)


@each_of(
    ("host", "expected"),
    [("169.254.0.1", True), ("fe80::1", True), ("127.0.0.1", False), ("10.0.0.1", False), ("host", False)],
)
def test_link_local(host: str, expected: bool) -> None:
    assert is_link_local_or_metadata(host) is expected

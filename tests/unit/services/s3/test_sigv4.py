"""Signatures: the examples that AWS publishes, and botocore for everything else."""

import calendar
import time
from typing import Any
from unittest import mock
from urllib.parse import parse_qsl

import botocore.auth
import pytest
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import example, given
from hypothesis import strategies as st

from aioprefetch.errors import ConfigInvalid
from aioprefetch.services.s3.sigv4 import (
    EMPTY_PAYLOAD,
    UNSIGNED_PAYLOAD,
    AccessKeys,
    Signer,
    encoded_path,
    encoded_query,
    payload_hash,
    stamp_of,
)

EXAMPLE = AccessKeys("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
BUCKET = "examplebucket.s3.amazonaws.com"
DAY = "20130524T000000Z"
WELCOME = payload_hash(b"Welcome to Amazon S3.")

# "Examples: Signature Calculations" of the Amazon S3 API Reference: method, path, query, headers, payload, signature.
EXAMPLES: dict[str, tuple[str, str, dict[str, str], dict[str, str], str, str]] = {
    "get an object": (
        *("GET", "test.txt", {}, {"range": "bytes=0-9"}, EMPTY_PAYLOAD),
        "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
    ),
    "put an object": (
        *("PUT", "test$file.text", {}),
        {"date": "Fri, 24 May 2013 00:00:00 GMT", "x-amz-storage-class": "REDUCED_REDUNDANCY"},
        *(WELCOME, "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"),
    ),
    "get a lifecycle": (
        *("GET", "", {"lifecycle": ""}, {}, EMPTY_PAYLOAD),
        "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
    ),
    "list objects": (
        *("GET", "", {"prefix": "J", "max-keys": "2"}, {}, EMPTY_PAYLOAD),
        "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
    ),
}
# The "AWS Signature Version 4 Test Suite": method, query, further headers, token, signature.
SUITE_KEYS = ("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
SUITE_TOKEN = (
    "AQoDYXdzEPT//////////wEXAMPLEtc764bNrC9SAPBSM22wDOk4x4HIZ8j4FZTwdQWLWsKWHGBuFqwAeMicRXmxfpSPfIeoIYRqTflfKD8YUuwth"
    "Ax7mSEI/qkPpKPi/kMcGdQrmGdeehM4IC1NtBmUpp2wUE8phUZampKsburEDy0KPkyQDYwT7WZ0wq5VSXDvp75YU9HFvlRd8Tx6q6fE8YQcHNVXAk"
    "iY9q6d+xo0rKwT38xVqr7ZD0u0iPPkUL64lIZbqBAz+scqKmlzm8FDrypNC9Yjc8fPOLn9FX9KSYvKTr4rvx3iSIlTJabIQwj2ICCR/oLxBA=="
)
SUITE: dict[str, tuple[str, dict[str, str], dict[str, str], str | None, str]] = {
    "get-vanilla": ("GET", {}, {}, None, "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
    "post-vanilla": ("POST", {}, {}, None, "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),
    "get-vanilla-query-order-key-case": (
        *("GET", {"Param2": "value2", "Param1": "value1"}, {}, None),
        "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
    ),
    "post-header-value-case": (
        *("POST", {}, {"my-header1": "VALUE1"}, None),
        "cdbc9802e29d2942e5e10b5bccfdd67c5f22c7c4e8ae67b53629efa58b974b7d",
    ),
    "post-sts-header-before": (
        *("POST", {}, {}, SUITE_TOKEN),
        "85d96828115b5dc0cfc3bd16ad9e210dd772bbebba041836c64533a82be05ead",
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_of_the_manual(name: str) -> None:
    """To the byte, with headers that we would not sign."""
    method, key, query, more, payload, expected = EXAMPLES[name]
    signer = Signer(EXAMPLE, "us-east-1")
    headers = signer.headers(BUCKET, payload, more, seconds_of(DAY))
    path = f"/{encoded_path(key)}"
    assert signer.signature(method, path, encoded_query(query), headers, payload) == expected


def test_the_example_of_a_presigned_url() -> None:
    query = Signer(EXAMPLE, "us-east-1").presigned_query(
        "GET", "/test.txt", {}, {"host": BUCKET}, expires_seconds=86400, seconds=seconds_of(DAY)
    )
    assert query == (
        "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2F"
        "aws4_request&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host"
        "&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
    )


@pytest.mark.parametrize("name", SUITE)
def test_the_published_suite(name: str) -> None:
    """It signs no hash of the body in a header, and another service."""
    method, query, more, token, expected = SUITE[name]
    signer = Signer(AccessKeys(*SUITE_KEYS, token), "us-east-1", "service")
    stamp = "20150830T123600Z"
    signed = {"host": "example.amazonaws.com", "x-amz-date": stamp, **more}
    if token is not None:
        signed["x-amz-security-token"] = token
    headers = signer.headers_at(stamp, signed)
    assert signer.signature(method, "/", encoded_query(query), headers, EMPTY_PAYLOAD) == expected


def seconds_of(stamp: str) -> float:
    """The time that a signature names."""
    return float(calendar.timegm(time.strptime(stamp, "%Y%m%dT%H%M%SZ")))


ODD = st.sampled_from(
    [" ", "//", "+", "%", "%2F", "~", "=", "&", "?", "#", "é", "e\u0301", "日本", "\x7f", "\U0001f600", "a", "Z9"]
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=3)
KEY = st.lists(ODD | TEXT, min_size=1, max_size=8).map("".join)
TOKEN = st.none() | st.text("abcXYZ019+/=", min_size=1, max_size=40)
REGION = st.sampled_from(["us-east-1", "eu-west-3", "cn-north-1", "us-gov-west-1", "auto"])
HOST = st.sampled_from(["bucket.s3.eu-west-3.amazonaws.com", "s3.amazonaws.com", "127.0.0.1:9000", "[::1]:9000"])
MORE = st.dictionaries(
    st.sampled_from(["x-amz-request-payer", "x-amz-server-side-encryption-customer-algorithm", "if-none-match"]),
    st.sampled_from(["requester", "AES256", "*", "a  b", " a \t b ", ""]),
    max_size=3,
)
SECONDS = st.integers(0, 4_000_000_000)


class Moment:
    """A time that botocore takes for now."""

    def __init__(self, seconds: int) -> None:
        self._seconds = seconds

    def strftime(self, form: str) -> str:
        return time.strftime(form, time.gmtime(self._seconds))


def by_botocore(auth: type[Any], seconds: int, request: AWSRequest, keys: AccessKeys, region: str, **more: Any) -> None:
    """Let botocore sign a request at a time."""
    with mock.patch.object(botocore.auth, "get_current_datetime", return_value=Moment(seconds)):
        auth(Credentials(keys.key_id, keys.secret, keys.token), "s3", region, **more).add_auth(request)


@given(
    method=st.sampled_from(["GET", "HEAD", "PUT", "DELETE"]),
    key=KEY,
    query=st.dictionaries(KEY, KEY | st.just(""), max_size=4),
    token=TOKEN,
    region=REGION,
    host=HOST,
    more=MORE,
    body=st.none() | st.binary(max_size=20),
    seconds=SECONDS,
)
@example("GET", "a//b +%~é/", {"list-type": "2", "prefix": "a b/"}, "t", "us-east-1", "h:1", {}, None, 0)
def test_headers_are_those_of_botocore(
    method: str,
    key: str,
    query: dict[str, str],
    token: str | None,
    region: str,
    host: str,
    more: dict[str, str],
    body: bytes | None,
    seconds: int,
) -> None:
    """For any key, query, token, region, host and port; with a body that is signed, or that is not."""
    keys = AccessKeys("AKIA", "secret", token)
    path, text = f"/bucket/{encoded_path(key)}", encoded_query(query)
    payload = UNSIGNED_PAYLOAD if body is None else payload_hash(body)
    request = AWSRequest(method, f"http://{host}{path}?{text}", headers=more, data=body or b"")
    config = mock.Mock(s3={"payload_signing_enabled": body is not None})
    request.context["client_config"] = config
    by_botocore(botocore.auth.S3SigV4Auth, seconds, request, keys, region)

    signer = Signer(keys, region)
    headers = signer.headers(host, payload, more, seconds)
    signature = signer.signature(method, path, text, headers, payload)
    assert headers.authorization + signature == request.headers["Authorization"]
    for name in ("X-Amz-Date", "X-Amz-Content-SHA256", "X-Amz-Security-Token"):
        sent = request.headers.get(name)
        assert sent is None or f"{name.lower()}: {sent}\r\n" in headers.fields


@given(
    key=KEY,
    query=st.dictionaries(KEY, KEY | st.just(""), max_size=2),
    token=TOKEN,
    region=REGION,
    host=HOST,
    seconds=SECONDS,
)
def test_presigned_urls_are_those_of_botocore(
    key: str, query: dict[str, str], token: str | None, region: str, host: str, seconds: int
) -> None:
    """The same parameters with the same signature."""
    keys = AccessKeys("AKIA", "secret", token)
    path = f"/{encoded_path(key)}"
    request = AWSRequest("GET", f"http://{host}{path}?{encoded_query(query)}")
    by_botocore(botocore.auth.S3SigV4QueryAuth, seconds, request, keys, region, expires=900)
    ours = Signer(keys, region).presigned_query(
        "GET", path, query, {"host": host}, expires_seconds=900, seconds=seconds
    )
    theirs = request.url.partition("?")[2]
    assert dict(parse_qsl(ours, keep_blank_values=True)) == dict(parse_qsl(theirs, keep_blank_values=True))


def test_keys_of_two_unicode_forms_are_two_keys() -> None:
    """S3 compares bytes: nothing is normalised."""
    assert encoded_path("e\u0301") == "e%CC%81" != encoded_path("\u00e9") == "%C3%A9"


def test_the_key_of_another_day_is_another() -> None:
    """A signer that lives past midnight goes on with the key of the new day, and back, as new ones would."""

    def signed(seconds: float, signer: Signer) -> str:
        headers = signer.headers(BUCKET, UNSIGNED_PAYLOAD, {}, seconds)
        return signer.signature("GET", "/k", "", headers, UNSIGNED_PAYLOAD)

    midnight = seconds_of(DAY)
    times, signer = (midnight - 1, midnight, midnight - 1), Signer(EXAMPLE, "us-east-1")
    expected = [signed(seconds, Signer(EXAMPLE, "us-east-1")) for seconds in times]
    assert [signed(seconds, signer) for seconds in times] == expected
    assert stamp_of(midnight - 1) == "20130523T235959Z"


@pytest.mark.parametrize("more", [{}, {"x-amz-request-payer": "requester", "content-type": "text/plain"}])
def test_the_headers_of_a_read_become_those_of_a_body(more: dict[str, str]) -> None:
    """A put without options is signed by the headers of reads of the same second, with the hash of its body."""
    signer = Signer(EXAMPLE, "us-east-1")
    digest = payload_hash(b"body")
    made = signer.headers(BUCKET, digest, more, 1e9)
    derived = signer.headers(BUCKET, UNSIGNED_PAYLOAD, more, 1e9).of_payload(digest)
    assert (derived.fields, derived.canonical) == (made.fields, made.canonical)
    assert digest in derived.fields
    assert UNSIGNED_PAYLOAD not in derived.fields + derived.canonical
    signatures = {signer.signature("PUT", "/k", "", headers, digest) for headers in (made, derived)}
    assert len(signatures) == 1


def test_no_key_is_shown() -> None:
    """Neither by the keys nor by a signer."""
    keys = AccessKeys("id-canary", "canary", "token-canary")
    assert "canary" not in repr(keys) + repr(Signer(keys, "us-east-1"))


def test_only_plain_spaces_count_as_one() -> None:
    """A space without a break is part of the value."""
    headers = Signer(EXAMPLE, "us-east-1").headers("h", UNSIGNED_PAYLOAD, {"x-a": " a \t b\u00a0 c "}, 0.0)
    assert "x-a:a b\u00a0 c\n" in headers.canonical


@pytest.mark.parametrize(("host", "region"), [("h\r\nx: y", "us-east-1"), ("h", "us-east-1\r\nx: y")])
def test_no_line_is_broken(host: str, region: str) -> None:
    with pytest.raises(ConfigInvalid, match="control character"):
        Signer(EXAMPLE, region).headers(host, UNSIGNED_PAYLOAD, {}, 0.0)

"""The recipe: what it refuses, what it says of itself, and what it never says."""

import base64
import pickle
import re
import subprocess
import sys
from typing import Any, Literal

import pytest

from aioprefetch.credentials import digest
from aioprefetch.errors import ConfigInvalid, MissingDependency
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.s3 import S3
from aioprefetch.testing.conformance.suite import checks
from tests.profile import each_of

CANARY = "c4nary-with-@-and-/-in-it"
KEYS: dict[str, Any] = {"access_key_id": "AKIA", "secret_access_key": CANARY}


@checks("reliability:I11")
@each_of(
    ("options", "said"),
    [
        ({"bucket": ""}, "bucket must be the name"),
        ({"bucket": "Upper"}, "upper case"),
        ({"bucket": "10.0.0.1"}, "IP address"),
        ({"bucket": "arn:aws:s3:eu-west-1:1:accesspoint/x"}, "alias of the access point"),
        ({"bucket": "b/prefix"}, "is the prefix"),
        ({"bucket": "ab"}, "3 to 63"),
        ({"bucket": "a..b"}, "3 to 63"),
        ({"bucket": "b" * 64}, "3 to 63"),
        ({"bucket": None}, "not None"),
        ({"prefix": "a/../b"}, "'..' is not allowed"),
        ({"prefix": 7}, "prefix must be text"),
        ({"region": "evil.example/#"}, "region='evil.example/#'"),
        ({"addressing_style": "magic"}, "'auto', 'path', 'virtual'"),
        ({"signing": "v2"}, "'header', 'presigned'"),
        ({"part_bytes": 1 << 20}, "part_bytes must be an integer from 5242880 to 5368709120, not 1048576"),
        ({"part_bytes": "6 GiB"}, "part_bytes must be an integer from 5242880 to 5368709120, not 6442450944"),
        ({"part_bytes": 8.5}, "part_bytes must be an integer from 5242880 to 5368709120, not 8.5"),
        ({"connections_max": 0}, "connections_max must be an integer from 1 to 100000, not 0"),
        ({"connect_timeout_seconds": 0}, "connect_timeout_seconds must be a number of seconds above 0, not 0"),
        ({"read_timeout_seconds": float("nan")}, "read_timeout_seconds must be a number of seconds above 0, not nan"),
        ({"anonymous": "yes"}, "anonymous must be True or False, not 'yes'"),
        ({"allow_http": 1}, "allow_http must be True or False, not 1"),
        ({"profile": ""}, "profile must be"),
        ({"access_key_id": "AKIA"}, "access_key_id is given without secret_access_key"),
        ({"secret_access_key": "x"}, "secret_access_key is given without access_key_id"),
        ({"session_token": "x"}, "session_token is given without"),
        ({"anonymous": True, **KEYS}, "anonymous=True sends no credentials"),
        ({"anonymous": True, "profile": "p"}, "anonymous=True sends no credentials"),
        ({"proxies": "http://proxy"}, "proxies must map"),
        ({"proxies": {"http": "http://[::1"}}, "proxies['http'] must be a URL like"),
        ({"proxies": {"ftp": "http://proxy"}}, "proxies has the key 'ftp'"),
        ({"proxies": {"http": "proxy:80"}}, "proxies['http'] must be a URL like http://host:3128"),
        ({"sse_customer_key": b"short"}, "must have 32 bytes, not 5"),
        ({"sse_customer_key": "!!!"}, "not base64"),
        ({"sse_customer_key": base64.b64encode(b"k" * 24).decode()}, "not 24"),
        ({"sse_customer_key": 7}, "it is a int"),
    ],
)
def test_refuses_options_that_cannot_work(options: dict[str, Any], said: str) -> None:
    """The message names the option and the value, and says what is right."""
    with pytest.raises(ConfigInvalid) as caught:
        S3(**{"bucket": "bucket", **options})
    assert said in str(caught.value)
    assert caught.value.operation == "configure"
    assert CANARY not in str(caught.value)


@checks("reliability:I23", "reliability:K11")
@each_of(
    ("url", "said"),
    [
        ("", "must be a URL"),
        ("s3.example.com", "must begin with http"),
        ("ftp://host", "must begin with http"),
        ("file:///etc/passwd", "must begin with http"),
        (f"https://user:{CANARY}@host/x", "without user, query"),
        ("https://host/?token=" + CANARY, "without user, query"),
        ("https://host/#" + CANARY, "without user, query"),
        ("https://", "the host is missing"),
        ("https://host:port", "is not a URL"),
        ("https://[::1", "is not a URL"),
        ("http://169.254.169.254", "link-local"),
        ("http://2852039166", "link-local"),
        ("http://0xA9FEA9FE/latest", "link-local"),
        ("http://[fe80::1]", "link-local"),
        ("http://[::ffff:169.254.169.254]", "link-local"),
        ("http://[fd00:ec2::254]", "metadata"),
        ("http://[64:ff9b::a9fe:a9fe]", "metadata"),
        ("http://100.100.100.200", "metadata"),
    ],
)
def test_refuses_endpoints(url: str, said: str) -> None:
    """Other schemes, users, queries and hosts that hand out credentials are refused without repeating a secret."""
    with pytest.raises(ConfigInvalid) as caught:
        S3(bucket="bucket", endpoint_url=url, anonymous=True)
    assert said in str(caught.value)
    assert CANARY not in repr(caught.value)


@checks("reliability:K10")
@each_of(
    ("options", "allowed"),
    [
        ({"endpoint_url": "http://127.0.0.1:9000"}, True),
        ({"endpoint_url": "http://[::1]:9000"}, True),
        ({"endpoint_url": "http://localhost:9000"}, True),
        ({"endpoint_url": "http://minio.localhost"}, True),
        ({"endpoint_url": "http://store.example"}, False),
        ({"endpoint_url": "http://localhost.example"}, False),
        ({"endpoint_url": "http://127.0.0.1:9000", "allow_http": False}, False),
        ({"endpoint_url": "http://store.example", "allow_http": True}, True),
        ({"endpoint_url": "http://store.example", "anonymous": True}, True),
        ({"endpoint_url": "http://store.example", "anonymous": True, "sse_customer_key": b"k" * 32}, False),
        ({"endpoint_url": "https://store.example", "allow_http": False}, True),
    ],
)
def test_plain_http_with_secrets_stays_on_this_machine(options: dict[str, Any], allowed: bool) -> None:
    """Keys travel without encryption only to loopback, or where allow_http=True says so."""
    if allowed:
        assert S3(bucket="bucket", **options).info.endpoint == options["endpoint_url"]
    else:
        with pytest.raises(ConfigInvalid, match="without encryption; use https://, or allow_http=True"):
            S3(bucket="bucket", **options)


def test_prefix_and_endpoint_lose_the_slashes_at_their_ends() -> None:
    """What lies between them is kept."""
    service = S3(bucket="bucket", prefix="//a//b/", endpoint_url="https://store.example/")
    assert (service.prefix, service.endpoint_url) == ("a//b", "https://store.example")
    assert service.info.url == "s3://bucket/a//b"


@pytest.mark.parametrize(
    ("options", "environment", "principal"),
    [
        ({"anonymous": True}, {"AWS_ACCESS_KEY_ID": "X"}, "anonymous"),
        (KEYS, {}, f"key:{digest('AKIA')}"),
        ({"access_key_id": "env:MY_ID", "secret_access_key": "env:MY_KEY"}, {}, "key:env:MY_ID"),
        (
            {"access_key_id": "env:MY_ID", "secret_access_key": "env:MY_KEY"},
            {"MY_ID": "AKIA"},
            f"key:{digest('AKIA')}",
        ),
        ({}, {"AWS_ACCESS_KEY_ID": "X"}, f"environment:{digest('X')}"),
    ],
)
def test_principal_tells_identities_apart(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], environment: dict[str, str], principal: str
) -> None:
    """Each way to an identity has its own name, which reveals nothing."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert S3(bucket="bucket", **options).info.principal == principal


def test_an_endpoint_of_the_environment_belongs_to_the_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of two stores are never shared, also when a variable makes the difference."""
    elsewhere = S3(bucket="bucket").info.namespace
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://store.example")
    assert S3(bucket="bucket").info.namespace != elsewhere


def test_presign_is_offered_where_a_url_alone_opens_the_object() -> None:
    """Unsigned, SSE-C and requester-pays requests need more than a URL."""
    assert S3(bucket="bucket").capability.presign
    assert not S3(bucket="bucket", anonymous=True).capability.presign
    assert not S3(bucket="bucket", sse_customer_key=b"k" * 32).capability.presign
    assert not S3(bucket="bucket", request_payer=True).capability.presign


SECRETIVE: dict[str, Any] = {
    "access_key_id": "canary-id",
    "secret_access_key": "canary-secret",
    "session_token": "canary-token",
    "sse_customer_key": b"canary-sse-c-key-of-32-bytes!!!!",
    "proxies": {"https": "http://user:canary-proxy@proxy.example:3128"},
}


@checks("reliability:K01")
def test_no_secret_in_repr_or_pickle_and_still_there_in_this_process() -> None:
    """A pickle goes by reference; the same process finds the values again."""
    service = S3(bucket="bucket", **SECRETIVE)
    pickled = pickle.dumps(service)
    for sink in (repr(service), str(service), f"{service}", pickled.decode("latin-1")):
        assert "canary" not in sink
        assert base64.b64encode(SECRETIVE["sse_customer_key"]).decode() not in sink
    again = pickle.loads(pickled)
    assert again == service
    assert hash(again) == hash(service)
    assert again.info == service.info
    assert sorted(again.known_secrets()) == sorted(service.known_secrets())
    assert len(list(again.known_secrets())) == 5


@checks("reliability:K05")
@pytest.mark.parametrize(
    ("fallback", "principal"), [(None, "left behind"), ("ambient", "environment:[0-9a-f]{16}")], ids=["none", "ambient"]
)
def test_literal_keys_stay_in_the_process_that_pickled_them(
    fallback: Literal["ambient"] | None, principal: str
) -> None:
    """In another process the recipe has no literal, and names that environment's identity only where it may."""
    pickled = pickle.dumps(S3(bucket="bucket", fallback=fallback, **SECRETIVE))
    program = f"import pickle; s = pickle.loads({pickled!r}); print(list(s.known_secrets()), s.info.principal, repr(s))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env={})
    assert re.match(rf"\[\] {principal} S3\(bucket='bucket'", run.stdout)
    assert "canary" not in run.stdout


@pytest.mark.parametrize("name", ["aiohappyeyeballs", "httptools"])
async def test_a_missing_package_names_the_extra(runtime: Runtime, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Before a request, and without importing it."""
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependency, match=rf"{name}: .*aioprefetch\[s3\]"):
        S3(bucket="bucket", **KEYS).build(runtime)

"""Requests that we sign: one signature for all ranges of an object, renewed, in a header or in a URL."""

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from aioprefetch.accessor.sink import CollectSink
from aioprefetch.credentials import Secret
from aioprefetch.errors import (
    ClockSkew,
    ConditionNotMatch,
    CredentialsExpired,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ProtocolError,
    TimedOut,
    Unavailable,
    Unsupported,
)
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.s3 import S3, signed_targets
from aioprefetch.services.s3.accessor import S3Accessor
from aioprefetch.services.s3.signed_targets import configuration_of
from aioprefetch.testing import FaultServer
from aioprefetch.testing.faults import Fault, Rule
from aioprefetch.values import ReadRequest
from tests.profile import chosen
from tests.unit.services.s3.stores import Store, signed_by

DATA = bytes(range(256)) * 4096
OBJECTS = {"bucket/k": DATA}
RANGES = chosen(quick=150, full=1000)


def counted(store: Store) -> tuple[int, int]:
    """Reads over the transport, and signed targets."""
    counters = store.runtime.counters
    return counters["transport_requests"], counters["transport_signatures"]


def error_body(code: str, message: str = "said so") -> bytes:
    """As S3 writes it."""
    return f"<Error><Code>{code}</Code><Message>{message}</Message><RequestId>R1</RequestId></Error>".encode()


def refusal(status: int, code: str, message: str = "said so", **rule: Any) -> Rule:
    """A response that is an error of S3."""
    return Rule(fault=Fault(status=status, body=error_body(code, message)), **rule)


async def test_one_signature_serves_all_ranges(bucket: Store) -> None:
    """On servers that check signatures: moto and rclone."""
    await bucket.put("k", DATA)
    before = counted(bucket)
    starts = [number * 1009 % (len(DATA) - 900) for number in range(RANGES)]
    parts = await asyncio.gather(*(bucket.get("k", offset=start, size=1 + start % 900) for start in starts))
    assert all(part == DATA[start : start + 1 + start % 900] for start, part in zip(starts, parts, strict=True))
    assert [after - earlier for after, earlier in zip(counted(bucket), before, strict=True)] == [RANGES, 1]


async def test_a_condition_goes_with_the_same_signature(bucket: Store) -> None:
    """If-Match is no part of what is signed."""
    etag = (await bucket.put("k", DATA)).etag
    assert await bucket.get("k", offset=5, size=5, if_match=etag) == DATA[5:10]
    with pytest.raises(ConditionNotMatch):
        await bucket.get("k", offset=5, size=5, if_match="another")
    assert counted(bucket)[1] == 1


async def test_a_signature_is_renewed_in_time(store: Callable[..., Store]) -> None:
    """Long before the store would call it expired."""
    async with FaultServer(OBJECTS) as server:
        opened = store(server)
        await opened.get("k", size=10)
        signed = opened.signed("k")
        signed.until_seconds -= signed_targets.RENEWED_AFTER_SECONDS - 60
        await opened.get("k", size=10)
        assert counted(opened) == (2, 1)
        signed.until_seconds -= 61
        await opened.get("k", size=10)
        assert counted(opened) == (3, 2)
        assert signed_targets.RENEWED_AFTER_SECONDS < signed_targets.EXPIRES_SECONDS / 2


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [(400, "ExpiredToken", ""), (403, "AccessDenied", "Request has expired"), (403, "RequestTimeTooSkewed", "")],
)
async def test_what_has_expired_is_signed_again_once(
    store: Callable[..., Store], status: int, code: str, message: str
) -> None:
    """And then the store is believed."""
    async with FaultServer(OBJECTS, [refusal(status, code, message)]) as server:
        opened = store(server)
        assert await opened.get("k", size=10) == DATA[:10]
        assert (server.count(), counted(opened)) == (2, (2, 2))
        server.add(refusal(status, code, message, times=None))
        with pytest.raises((CredentialsExpired, PermissionDenied, ClockSkew)):
            await opened.get("k", size=10)
        assert server.count() == 4


async def test_a_403_after_expiry_is_signed_again(store: Callable[..., Store]) -> None:
    """Whatever the store calls it: by wall-clock time the signature was too old, as after a suspend of the machine."""
    async with FaultServer(OBJECTS) as server:
        opened = store(server)
        await opened.get("k", size=10)
        signed = opened.signed("k")
        signed.made_at -= signed_targets.EXPIRES_SECONDS + 1
        server.add(refusal(403, "AccessDenied"))
        assert await opened.get("k", size=10) == DATA[:10]
        assert (server.count(), counted(opened)[1]) == (3, 2)


@pytest.mark.parametrize("code", ["AuthorizationQueryParametersError", "UnsupportedSignature"])
async def test_a_store_without_presigned_urls_is_named(store: Callable[..., Store], code: str) -> None:
    """They are an option, and the message names the default."""
    async with FaultServer(OBJECTS, [refusal(400, code, times=None)]) as server:
        with pytest.raises(Unsupported, match="signing='header'"):
            await store(server, signing="presigned").get("k", size=10)
        assert server.count() == 1


async def test_keys_that_hang_are_given_up_by_all_at_once(
    store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many wait for them: each has its limit from the moment it came."""
    async with FaultServer(
        OBJECTS, [Rule(fault=Fault(hang_before_head=True), key="credentials", times=None)]
    ) as server:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{server.url}/credentials")
        limits = {"connect_timeout_seconds": 0.05, "read_timeout_seconds": 0.05}
        opened = store(server, access_key_id=None, secret_access_key=None, **limits)
        started = asyncio.get_running_loop().time()
        results = await asyncio.gather(*(opened.get("k") for _ in range(12)), return_exceptions=True)
        assert all(isinstance(error, TimedOut) for error in results)
        assert asyncio.get_running_loop().time() - started < 12 * 0.1
        assert server.count("GET") <= 1


async def test_what_a_store_repeats_of_a_signed_url_is_cut_out(store: Callable[..., Store]) -> None:
    """Signature, credential and token, as they stand in a query and encoded."""
    query = "X-Amz-Credential=AKIA%2F1&amp;X-Amz-Signature=abc123&X-Amz-Security-Token=to%2Fken"
    said = f"no: {query} x-amz-security-token: to/ken"
    for signing in ("header", "presigned"):
        async with FaultServer(OBJECTS, [refusal(403, "AccessDenied", said)]) as server:
            with pytest.raises(PermissionDenied) as caught:
                await store(server, session_token="to/ken", signing=signing).get("k")
        for secret in ("abc123", "AKIA", "to%2Fken", "to/ken"):
            assert secret not in str(caught.value)


async def test_a_plain_403_is_one_request(store: Callable[..., Store]) -> None:
    """The identity may not read it, and no other signature will change that."""
    async with FaultServer(OBJECTS, [refusal(403, "AccessDenied", times=None)]) as server:
        with pytest.raises(PermissionDenied) as caught:
            await store(server).get("k")
        assert server.count() == 1
        assert caught.value.context["request_id"]


SIGNINGS = ("header", "presigned")


@pytest.mark.parametrize("signing", SIGNINGS)
async def test_the_headers_of_options_are_signed(store: Callable[..., Store], signing: str) -> None:
    """The customer's key and the agreement to pay: S3 refuses those of its headers that are not signed."""
    options: dict[str, Any] = {"sse_customer_key": b"k" * 32, "request_payer": True, "session_token": "to/ken"}
    async with FaultServer(OBJECTS) as server:
        opened = store(server, signing=signing, **options)
        assert await opened.get("k", offset=7, size=9) == DATA[7:16]
        assert counted(opened) == (1, 1)
        request = server.requests[0]
    ours = sorted(name for name in request.headers if name.startswith("x-amz-"))
    assert {"x-amz-request-payer", "x-amz-server-side-encryption-customer-key-md5"} <= set(ours)
    if signing == "header":
        signed = request.headers["authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
        assert signed == sorted({"host", *ours})
        assert "X-Amz" not in request.target
    else:
        query = parse_qs(urlsplit(request.target).query)
        assert query["X-Amz-SignedHeaders"] == [";".join(sorted({"host", *ours}))]
        assert query["X-Amz-Security-Token"] == ["to/ken"]
        assert "authorization" not in request.headers


@pytest.mark.parametrize("way", ["option", "environment"])
async def test_a_proxy_is_used(store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """The server plays the proxy: it gets the request for a host that does not exist, with the user of its URL."""
    async with FaultServer(OBJECTS) as server:

        class Elsewhere:
            endpoint_url = "http://store.invalid:1"
            access_key_id = secret_access_key = "testing"

        options: dict[str, Any] = {"allow_http": True}
        url = server.url.replace("http://", "http://user:pass@")
        if way == "option":
            options["proxies"] = {"http": url}
        else:
            monkeypatch.setenv("HTTP_PROXY", url)
            monkeypatch.delenv("NO_PROXY", raising=False)
            monkeypatch.delenv("no_proxy", raising=False)
        opened = store(Elsewhere(), **options)
        with pytest.raises(NotFound):
            await opened.get("k", size=10)
        assert server.requests[0].target == "http://store.invalid:1/bucket/k"
        assert server.requests[0].headers["proxy-authorization"] == "Basic dXNlcjpwYXNz"
        assert server.requests[0].headers["host"] == "store.invalid:1"
        assert counted(opened)[0] == 1


async def test_anonymous_urls_are_not_signed(store: Callable[..., Store]) -> None:
    """They go over the transport all the same."""
    async with FaultServer(OBJECTS) as server:
        opened = store(server, anonymous=True)
        assert await opened.get("k", size=10) == DATA[:10]
        assert server.requests[0].target == "/bucket/k"
        assert counted(opened)[0] == 1


async def test_a_body_that_breaks_off_leaves_what_came(store: Callable[..., Store]) -> None:
    """The error has the progress, at which a retry goes on."""
    async with FaultServer(OBJECTS, [Rule(fault=Fault(reset_after_bytes=100_000))]) as server:
        opened = store(server)
        sink = CollectSink()
        with pytest.raises(Unavailable, match="in the middle of the body") as caught:
            await opened.accessor.read(ReadRequest(path="k"), sink)
        assert caught.value.head is not None
        assert caught.value.received == sink.received <= 100_000
        assert opened.runtime.counters["stream_read_total_bytes"] == sink.received
        assert sink.received > 0


@pytest.mark.parametrize("etag", ["a\r\nX-Injected: 1", "ä", "\0"])
async def test_an_etag_cannot_break_the_request(store: Callable[..., Store], etag: str) -> None:
    """Nothing is sent."""
    async with FaultServer(OBJECTS) as server:
        with pytest.raises(InvalidArgument, match="not a valid ETag"):
            await store(server).get("k", if_match=etag)
        assert server.count() == 0


@pytest.mark.parametrize(
    "body",
    [b"<html>no</html>", b"", b"<Error><Code>", b'<!DOCTYPE a [<!ENTITY b "c">]><Error><Code>&b;</Code></Error>'],
    ids=["html", "nothing", "cut", "entities"],
)
async def test_bodies_that_explain_nothing(store: Callable[..., Store], body: bytes) -> None:
    """The status speaks then."""
    async with FaultServer(OBJECTS, [Rule(fault=Fault(status=403, body=body))]) as server:
        with pytest.raises(PermissionDenied) as caught:
            await store(server).get("k")
        assert "code" not in caught.value.context


async def test_no_signature_is_shown(store: Callable[..., Store]) -> None:
    """Neither in an error nor in the repr of what holds it."""
    async with FaultServer(OBJECTS, [Rule(fault=Fault(reset_after_bytes=10))]) as server:
        opened = store(server)
        with pytest.raises(Unavailable) as caught:
            await opened.get("k")
        signed = opened.signed("k")
        assert signed_by(server.requests[0]).startswith("testing/")
        for shown in (repr(signed.target), repr(signed.target.route), str(caught.value), repr(caught.value)):
            assert "X-Amz" not in shown
            assert "Signature" not in shown


async def test_keys_that_were_renewed_sign_every_object(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those whose signatures are young enough: the store refuses the old keys, or will do so soon."""
    for name, value in (("ACCESS_KEY_ID", "AKID"), ("SECRET_ACCESS_KEY", "secret"), ("SESSION_TOKEN", "first")):
        monkeypatch.setenv(f"AWS_{name}", value)
    async with FaultServer({"bucket/j": DATA, "bucket/k": DATA}) as server:
        accessor = S3(bucket="bucket", endpoint_url=server.url, proxies={}).build(runtime)

        async def token_of_read(path: str) -> str:
            await accessor.read(ReadRequest(path=path, size=1), CollectSink())
            return server.requests[-1].headers["x-amz-security-token"]

        assert [await token_of_read(path) for path in ("j", "k")] == ["first", "first"]
        monkeypatch.setenv("AWS_SESSION_TOKEN", "second")
        server.add(refusal(400, "ExpiredToken"))
        assert [await token_of_read(path) for path in ("k", "j")] == ["second", "second"]


async def test_a_maximum_of_signatures_is_kept(runtime: Runtime, store: Callable[..., Store]) -> None:
    """The objects read last."""
    async with FaultServer({}) as server:
        opened = store(server)
        options = opened.live.options
        kept = signed_targets.SignedTargets(
            options, configuration_of(options), opened.live.keys, runtime, objects_max=2
        )
        for name in "abcb":
            request = ReadRequest(path=name)
            assert kept.find(request) or kept.sign(request, await opened.live.keys.get(request))
        assert runtime.counters["transport_signatures"] == 3
        assert kept.find(ReadRequest(path="a")) is None


async def test_a_long_body_of_a_success_is_not_parsed(store: Callable[..., Store]) -> None:
    """It would hold the loop."""
    body = b"<Error>" + b"<a/>" * 20_000 + b"</Error>"
    async with FaultServer(OBJECTS, [Rule(fault=Fault(status=200, body=body), times=None)]) as server:
        opened = store(server)
        for call in (opened.delete("k"), opened.put("k", b"x")):
            with pytest.raises(ProtocolError, match="body of 80015 bytes") as caught:
                await call
            assert caught.value.status == "temporary"  # It may be that of a portal.


@pytest.mark.parametrize("code", ["ExpiredToken", "RequestTimeTooSkewed", "RequestExpired"])
async def test_a_body_is_not_sent_again_for_the_same_keys(store: Callable[..., Store], code: str) -> None:
    async with FaultServer(OBJECTS, [refusal(403, code, times=None)]) as server:
        with pytest.raises((CredentialsExpired, ClockSkew)):
            await store(server).put("k", DATA)
        assert server.count() == 1


async def test_metadata_whose_names_differ_in_case_are_refused(store: Callable[..., Store]) -> None:
    """One of them would be lost."""
    async with FaultServer(OBJECTS) as server:
        with pytest.raises(InvalidArgument, match="'A' and 'a'"):
            await store(server).put("k", b"x", user_metadata={"A": "1", "a": "2"})
        assert server.count() == 0


async def test_keys_in_place_of_literals_left_behind_are_renewed(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The literals stayed in another process; the variables of this one stand in for them."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "FIRST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    left = [Secret(f"literal:{number:032x}") for number in range(2)]  # References, as a pickle of there holds them.
    async with FaultServer(OBJECTS, [refusal(400, "ExpiredToken")]) as server:
        service = S3(
            bucket="bucket",
            endpoint_url=server.url,
            proxies={},
            access_key_id=left[0],
            secret_access_key=left[1],
            fallback="ambient",
        )
        accessor = service.build(runtime)
        assert isinstance(accessor, S3Accessor)
        await accessor.read(ReadRequest(path="k", size=1), CollectSink())
        assert server.count() == 2
        assert accessor.live.requests is not None
        found = accessor.live.requests.targets.find(ReadRequest(path="k"))
        assert found is not None
        assert found.generation == 1

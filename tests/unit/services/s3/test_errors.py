"""The table: what the store and the network say, and what becomes of it. No secret gets through."""

import logging
import pickle
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from aioprefetch import errors
from aioprefetch.operator.operator import Operator
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.s3 import S3
from aioprefetch.services.s3.errors import BY_CLASS, BY_CODE, BY_STATUS, ErrorResponse, Explainer
from aioprefetch.testing import Fault, FaultServer, Rule
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import ReadRequest, StatRequest, WriteRequest
from tests.unit.services.s3.stores import CANARIES, KEY_BASE64, KEY_MD5, Store

OBJECTS = {"bucket/k": b"the object"}
KEYS: dict[str, Any] = {"access_key_id": "testing", "secret_access_key": "testing"}


def failing(status: int, code: str = "", more: str = "", **headers: str) -> FaultServer:
    """A server that answers everything with one error."""
    body = f"<Error><Code>{code}</Code><Message>said so</Message>{more}</Error>".encode() if code else b"<html>"
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return FaultServer(OBJECTS, [Rule(fault=Fault(status=status, body=body, headers=named), times=None)])


@pytest.mark.parametrize(
    ("status", "code", "kind", "temporary", "said"),
    [
        (404, "NoSuchKey", errors.NotFound, False, "no such object"),
        (404, "NoSuchVersion", errors.NotFound, False, "no such version"),
        (404, "NoSuchBucket", errors.NotFound, False, "no bucket 'bucket' here: create it"),
        (404, "", errors.NotFound, False, "no such object"),
        (403, "AccessDenied", errors.PermissionDenied, False, "s3:GetObject"),
        (403, "", errors.PermissionDenied, False, "set anonymous=True for a public bucket"),
        (401, "", errors.PermissionDenied, False, "check its permissions"),
        (403, "SignatureDoesNotMatch", errors.PermissionDenied, False, "check secret_access_key"),
        (403, "InvalidAccessKeyId", errors.PermissionDenied, False, "check access_key_id"),
        (400, "InvalidToken", errors.PermissionDenied, False, "session_token"),
        (
            403,
            "QuotaExceeded",
            errors.PermissionDenied,
            False,
            "a quota of the bucket or its owner is used up; it says",
        ),
        (400, "TooManyBuckets", errors.PermissionDenied, False, "a quota"),
        (400, "ExpiredToken", errors.CredentialsExpired, False, "have expired"),
        (400, "", errors.PermissionDenied, False, "expired credentials, a wrong region"),
        (403, "InvalidObjectState", errors.PermissionDenied, False, "restore it first"),
        (416, "InvalidRange", errors.RangeNotSatisfied, False, "beyond the end"),
        (412, "PreconditionFailed", errors.ConditionNotMatch, False, "ETag is not"),
        (409, "ConditionalRequestConflict", errors.Unavailable, True, "nothing was written"),
        (409, "OperationAborted", errors.Unavailable, True, "nothing was written"),
        (429, "", errors.Throttled, True, "fewer requests"),
        (503, "SlowDown", errors.Throttled, True, "fewer requests"),
        (503, "", errors.Throttled, True, "fewer requests"),
        (500, "InternalError", errors.Unavailable, True, "InternalError"),
        (500, "SomethingNew", errors.Unavailable, True, "SomethingNew"),
        (502, "", errors.Unavailable, True, "failed"),
        (504, "", errors.Unavailable, True, "failed"),
        (400, "RequestTimeout", errors.Unavailable, True, "RequestTimeout"),
        (400, "BadDigest", errors.Unavailable, True, "arrived damaged"),
        (400, "KeyTooLongError", errors.InvalidPath, False, "too long"),
        (400, "InvalidBucketName", errors.ConfigInvalid, False, "bucket='bucket'"),
        (400, "InvalidArgument", errors.InvalidArgument, False, "it says: said so"),
        (405, "MethodNotAllowed", errors.Unsupported, False, "does not support"),
        (501, "NotImplemented", errors.Unsupported, False, "does not support"),
        (418, "Teapot", errors.Unexpected, False, "responded Teapot; it says: said so"),
    ],
)
async def test_answers(
    store: Callable[..., Store],
    status: int,
    code: str,
    kind: type[errors.Error],
    temporary: bool,
    said: str,
) -> None:
    """Kind, whether to try again, what to do, and the facts; one request."""
    async with failing(status, code) as server:
        with pytest.raises(errors.Error) as caught:
            await store(server).get("k", offset=3)
        # An expired token may be another one by now.
        asked_twice = code in ("ExpiredToken", "RequestTimeTooSkewed")
        server.assert_requests(*["GET"] * (2 if asked_twice else 1))
    assert type(caught.value) is kind
    assert caught.value.is_temporary == temporary
    assert said in str(caught.value)
    assert (caught.value.operation, caught.value.path) == ("read", "k")
    assert caught.value.context["http_status"] == status
    assert caught.value.context["request_id"] == "FAULTSERVER"
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.errno, again.filename) == (str(caught.value), caught.value.errno, "k")


async def test_the_size_that_a_refused_range_tells(store: Callable[..., Store]) -> None:
    """From Content-Range, or from the body; nonsense counts as nothing."""
    for more, headers, total in (
        ("", {"Content_Range": "bytes */10"}, 10),
        ("<ActualObjectSize>10</ActualObjectSize>", {}, 10),
        ("<ActualObjectSize>-1</ActualObjectSize>", {}, None),
        ("", {"Content_Range": "bytes 1-2/10, x"}, None),
    ):
        async with failing(416, "InvalidRange", more, **headers) as server:
            with pytest.raises(errors.RangeNotSatisfied) as caught:
                await store(server).get("k", offset=30)
        assert caught.value.total == total


async def test_how_long_to_wait(store: Callable[..., Store]) -> None:
    """``Retry-After`` in seconds, AWS's own header in milliseconds."""
    for headers, seconds in (({"Retry_After": "7"}, 7), ({"x_amz_retry_after": "1500"}, 1.5), ({}, None)):
        async with failing(503, "SlowDown", **headers) as server:
            with pytest.raises(errors.Throttled) as caught:
                await store(server).get("k")
        assert caught.value.retry_after_seconds == seconds


@checks("reliability:W44")
async def test_a_wrong_clock_shows_both_times(store: Callable[..., Store]) -> None:
    """That of this machine, and that of the server."""
    own = datetime.now(UTC).strftime("%Y-%m-%d")
    async with failing(403, "RequestTimeTooSkewed", Date="Fri, 02 Jan 2026 03:04:05 GMT") as server:
        with pytest.raises(errors.ClockSkew, match=f"it says {own} .* 2026-01-02 03:04:05"):
            await store(server).get("k")


async def test_an_archived_object_names_its_class(store: Callable[..., Store]) -> None:
    """So that one knows how long a restore takes."""
    async with failing(403, "InvalidObjectState", "<StorageClass>DEEP_ARCHIVE</StorageClass>") as server:
        with pytest.raises(errors.PermissionDenied, match="DEEP_ARCHIVE"):
            await store(server).get("k")


async def test_a_refused_creation_is_already_exists(store: Callable[..., Store]) -> None:
    """Where the caller said that nothing must be there."""
    async with failing(412) as server:
        with pytest.raises(errors.AlreadyExists):
            await store(server).put("k", b"", if_not_exists=True)


@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        (Fault(drop=True), errors.Unavailable, "closed the connection"),
        (Fault(hang_before_head=True), errors.TimedOut, "within read_timeout_seconds=0.05"),
        (Fault(status=200, body=b"", headers={"Content-Length": "x"}), errors.ProtocolError, "not valid HTTP"),
    ],
)
async def test_responses_that_are_none(
    store: Callable[..., Store], fault: Fault, kind: type[errors.Error], said: str
) -> None:
    """Broken connections, silence and nonsense are temporary, and leave no connection behind."""
    async with FaultServer(OBJECTS, [Rule(fault=fault, times=None)]) as server:
        with pytest.raises(errors.Error) as caught:
            await store(server, read_timeout_seconds=0.05).get("k")
        assert type(caught.value) is kind
        assert said in str(caught.value)
        assert caught.value.is_temporary
        await server.wait_until_idle()


async def test_a_huge_error_body_is_not_read_to_its_end(store: Callable[..., Store]) -> None:
    """The first 64 KiB are enough to say that it is no response of S3."""
    body = b"<Error>" + b"x" * (64 << 20)
    async with FaultServer(OBJECTS, [Rule(fault=Fault(status=500, body=body))]) as server:
        with pytest.raises(errors.Unavailable):
            await store(server).get("k")
        await server.wait_until_idle()
        assert server.bytes_sent < 16 << 20


async def test_no_server_at_all(runtime: Runtime, store: Callable[..., Store]) -> None:
    """Refused connections and unknown names say where; TLS is never retried."""
    async with FaultServer({}) as server:
        gone = store(server)
    with pytest.raises(errors.Unavailable, match=r"no connection to http://127\.0\.0\.1"):
        await gone.get("k")


async def test_tls_is_a_matter_of_configuration(s3_server: Any, store: Callable[..., Store]) -> None:
    """A server without TLS, or with a certificate that is not trusted, will not get better."""

    class Encrypted:
        endpoint_url = s3_server.endpoint_url.replace("http:", "https:")
        access_key_id = secret_access_key = "testing"

    with pytest.raises(errors.ConfigInvalid, match="check scheme and port") as caught:
        await store(Encrypted()).get("k")
    assert not caught.value.is_temporary


def leaks(text: str) -> bool:
    """Whether a text holds a secret in any form in which it travels."""
    return any(secret in text for secret in ("canary", KEY_BASE64, KEY_MD5))


@pytest.mark.parametrize(
    "fault",
    [
        Fault(),
        Fault(status=403, code="SignatureDoesNotMatch"),
        Fault(status=301, location="http://127.0.0.1:9/?token=canary"),
        Fault(status=400, body=b""),
        Fault(drop=True),
        Fault(close_after_bytes=3),
        Fault(hang_before_head=True),
        Fault(content_range="bytes 1-2/3"),
        *(
            Fault(status=status, body=f"<Error><Code>{code}</Code><Message>{said}</Message></Error>".encode())
            for status, code in ((403, "AccessDenied"), (400, "InvalidArgument"), (418, "New"))
            for said in (CANARIES["secret_access_key"], CANARIES["session_token"], KEY_BASE64)
        ),
    ],
)
async def test_no_secret_gets_through(
    store: Callable[..., Store], caplog: pytest.LogCaptureFixture, fault: Fault
) -> None:
    """Not in a message, a repr, a pickle or our logs, even where the store repeats it."""
    caplog.set_level(logging.DEBUG, logger="aioprefetch")
    async with FaultServer(OBJECTS, [Rule(fault=fault, times=None)]) as server:
        opened = store(server, read_timeout_seconds=0.05, **CANARIES)
        caught: list[BaseException] = []
        for call in (opened.get("k"), opened.get("k", offset=2, size=3), opened.stat("k"), opened.put("k", b"x")):
            try:
                await call
            except errors.Error as error:
                caught.append(error)
        sent = server.requests[0].headers
        assert sent["x-amz-security-token"] == CANARIES["session_token"]  # it was there to be leaked
        assert sent["x-amz-server-side-encryption-customer-key"] == KEY_BASE64
    assert caught
    for one in caught:
        ours = "".join(traceback.format_exception_only(one))
        pickled = pickle.dumps(one).decode("latin-1")
        for sink in (str(one), repr(one), repr(one.__dict__), ours, pickled):
            assert not leaks(sink), sink
    logged = [record.getMessage() for record in caplog.records if record.name.startswith("aioprefetch")]
    assert not leaks("\n".join(logged))
    assert not leaks(repr(opened.service) + repr(opened.accessor.info))


async def test_if_match_on_a_write_that_finds_nothing(store: Callable[..., Store]) -> None:
    """S3 says 404 for a missing object; what the caller asked is a condition."""
    async with failing(404, "NoSuchKey") as server:
        with pytest.raises(errors.ConditionNotMatch):
            await store(server).accessor.write(WriteRequest(path="k", if_match="e"), b"")


async def test_every_error_says_where_the_store_is(runtime: Runtime) -> None:
    """A wrong address is the most frequent first mistake; it is part of the store's name in each message."""
    async with failing(403, "AccessDenied") as server:
        operator = Operator(S3(bucket="bucket", prefix="p", endpoint_url=server.url, **KEYS))
        where = f"s3://bucket/p at {server.url}"
        for call in (
            lambda: operator.read("k"),
            lambda: operator.stat("k"),
            lambda: anext(operator.list("d/")),
            lambda: operator.write("k", b"x"),
        ):
            with pytest.raises(errors.PermissionDenied) as caught:
                await call()
            assert caught.value.context["service"] == where
        with pytest.raises(errors.Unsupported) as lacking:
            await Operator.bare(S3(bucket="bucket", endpoint_url=server.url, anonymous=True)).presign("k")
        assert lacking.value.context["service"] == f"s3://bucket at {server.url}"
    with pytest.raises(errors.Unavailable) as gone:
        await operator.read("k", timeout_seconds=1)
    assert f"service: {where}" in str(gone.value)
    await operator.aclose()


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (403, "AccessDenied", errors.PermissionDenied),
        (401, "", errors.PermissionDenied),
        (404, "NoSuchBucket", errors.NotFound),
        (404, "", errors.NotFound),
        (301, "PermanentRedirect", errors.RedirectRefused),
    ],
)
async def test_a_refused_list_of_buckets_names_none(
    runtime: Runtime, status: int, code: str, kind: type[errors.Error]
) -> None:
    """The recipe has one, which has nothing to do with it."""
    async with failing(status, code) as server:
        buckets = S3(bucket="of-the-recipe", endpoint_url=server.url, **KEYS).buckets(runtime)
        with pytest.raises(kind) as caught:
            await buckets.names()
    assert "of-the-recipe" not in str(caught.value)
    if kind is errors.PermissionDenied:
        assert "s3:ListAllMyBuckets" in caught.value.message


async def test_no_user_of_an_endpoint_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable may hold one, which is refused when it is used."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://user:canary@127.0.0.1:1/?canary")
    operator = Operator(S3(bucket="bucket", **KEYS))
    with pytest.raises(errors.ConfigInvalid) as caught:
        await operator.read("k")
    assert "canary" not in str(caught.value)
    assert caught.value.context["service"] == "s3://bucket at http://127.0.0.1:1/"
    await operator.aclose()


LONG_WORDS = [
    word * (65_536 // len(word)) for word in ("a", "http://", "x-amz-signature=", "Signature: ", "\\", "&quot;")
]
REQUESTS = (ReadRequest(path="k"), WriteRequest(path="k", if_match="e"), StatRequest(path="k", version="v"))


@pytest.mark.cost
@pytest.mark.parametrize("said", LONG_WORDS, ids=lambda said: repr(said[:16]))
def test_every_row_with_a_long_word_in_each_field(said: str) -> None:
    """Whatever a store says costs milliseconds, and its message is short."""
    service = S3(bucket="bucket", **KEYS)
    explainer = Explainer(service, service.info.principal)
    fields = {"Message": said, "StorageClass": said, "Region": said, "ActualObjectSize": said, "RequestId": said}
    names = ("content-range", "date", "retry-after", "x-amz-retry-after", "x-amz-bucket-region", "x-amz-request-id")
    for code, status in [*((code, 400) for code in (*BY_CODE, said)), *(("", status) for status in (*BY_STATUS, 416))]:
        headers = dict.fromkeys(names, said)
        for request in REQUESTS if not code else REQUESTS[:1]:
            response = ErrorResponse.of_fields(status, headers, {"Code": code, **fields})
            check_cost(partial(explainer.from_response, response, request))
    for name in (*BY_CLASS, "SomethingNew", "ClientError"):
        raised = type(name, (Exception,), {"response": {}} if name == "ClientError" else {})(said)
        for asked in ("", "the metadata of the machine"):
            check_cost(partial(explainer.explained, raised, REQUESTS[0], asked=asked))


def check_cost(make: Callable[[], errors.Error]) -> None:
    """An error that costs less than 50 ms to make and to show, and has less than 2,000 characters."""
    costs: list[float] = []
    while not costs or (costs[-1] >= 0.2 and len(costs) < 3):  # A collection of garbage may come in between.
        before = time.thread_time()
        shown = str(make())
        costs.append(time.thread_time() - before)
    assert min(costs) < 0.2
    assert len(shown) < 2000


def test_a_number_of_many_digits_is_no_size() -> None:
    """Python refuses to read one of more than 4,300."""
    assert ErrorResponse.of_fields(416, {}, {"ActualObjectSize": "9" * 5000}).total is None

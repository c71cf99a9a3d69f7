"""Answers that say no: failures, throttling, refusals, and what is tried again."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from aioprefetch.errors import (
    ClockSkew,
    CredentialsExpired,
    Error,
    NotFound,
    ObjectChanged,
    PermissionDenied,
    ProtocolError,
    RangeNotSatisfied,
    Throttled,
    TimedOut,
    Unavailable,
)
from aioprefetch.layers import RetryLayer
from aioprefetch.testing import Fault, ReceivedRequest, Rule
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.testing.oracle import assert_same_bytes
from tests.reliability.scripted import ATTEMPTS, LENGTH, OFFSET, PAGE, Serve, always, once

HTML: dict[str, Any] = {"headers": {"Content-Type": "text/html"}, "body": PAGE}


def status_of(error: Error) -> object:
    """The status of the response that an error tells of."""
    return error.context.get("http_status", error.context.get("status"))


@checks("opendal:E3", "reliability:S01")
async def test_a_500_is_tried_again(serve: Serve) -> None:
    async with serve(once(Fault(status=500))) as scripted:
        await scripted.read()
        scripted.server.assert_requests("GET", "GET")
        assert scripted.operator.statistics["retries_unavailable"] == 1


@checks("opendal:E3", "reliability:S02")
async def test_a_500_for_ever_ends_with_the_last_status(serve: Serve) -> None:
    async with serve(always(Fault(status=500))) as scripted:
        error = await scripted.fail(Unavailable, requests=ATTEMPTS)
        assert (error.status, error.context["attempts"], status_of(error)) == ("persistent", ATTEMPTS, 500)


@checks("reliability:S02")
async def test_a_500_for_ever_ends_before_the_deadline(serve: Serve) -> None:
    """No pause is begun that the deadline would cut."""
    async with serve(layers=(RetryLayer(base_seconds=3600),)) as scripted:
        await scripted.operator.stat("k")  # What a service loads for its first request takes longer than the deadline.
        scripted.server.add(always(Fault(status=500)))
        error = await scripted.fail(Unavailable, timeout_seconds=0.5)
        assert error.context["gave_up"] == "the caller's deadline"


@pytest.mark.parametrize("status", [502, 504])
@checks("reliability:S03")
async def test_a_page_of_a_proxy_is_a_failure(serve: Serve, status: int) -> None:
    async with serve(once(Fault(status=status, **HTML))) as scripted:
        await scripted.read()
        scripted.server.assert_requests("GET", "GET")


@pytest.mark.parametrize("status", [502, 504])
@checks("reliability:S03")
async def test_a_page_of_a_proxy_for_ever(serve: Serve, status: int) -> None:
    async with serve(always(Fault(status=status, **HTML))) as scripted:
        error = await scripted.fail(Unavailable, requests=ATTEMPTS)
        assert status_of(error) == status


@pytest.mark.parametrize("header", ["Retry-After: 0.1", "x-amz-retry-after: 100"])
@checks("reliability:S05")
async def test_the_wait_that_the_store_asks_for_is_kept(serve: Serve, header: str) -> None:
    fault = Fault(status=503, code="SlowDown", header_lines=(header,))
    async with serve(once(fault)) as scripted:
        if scripted.service == "http" and header.startswith("x-amz"):
            header = ""  # a word of S3 alone
        delays: list[object] = []
        scripted.operator.runtime().events.subscribe(
            lambda event: delays.append(event.facts["wait_seconds"]) if event.name == "request.retried" else None
        )
        await scripted.read()
        assert delays == [0.1 if header else 0.0]
        scripted.server.assert_requests("GET", "GET")


@checks("reliability:S05")
async def test_a_wait_beyond_the_deadline_is_not_begun(serve: Serve) -> None:
    fault = Fault(status=503, code="SlowDown", headers={"Retry-After": "30"})
    async with serve(always(fault)) as scripted:
        error = await scripted.fail(Throttled, requests=1, timeout_seconds=5)
        assert (error.context["gave_up"], error.retry_after_seconds) == ("the caller's deadline", 30)


@pytest.mark.parametrize(("status", "code"), [(429, "TooManyRequests"), (503, "SlowDown")])
@checks("opendal:E3", "reliability:S04", "reliability:S06")
async def test_throttling_is_tried_again_and_counted(serve: Serve, status: int, code: str) -> None:
    """What happens in the thirty seconds of S04 is tested on the virtual clock."""
    async with serve(once(Fault(status=status, code=code))) as scripted:
        await scripted.read()
        scripted.server.assert_requests("GET", "GET")
        counts = scripted.operator.statistics
        assert (counts["retries_throttled"], counts["throttled"]) == (1, 1)


@pytest.mark.parametrize(("status", "code"), [(429, "TooManyRequests"), (503, "SlowDown")])
@checks("reliability:S04", "reliability:S06")
async def test_throttling_for_ever(serve: Serve, status: int, code: str) -> None:
    async with serve(always(Fault(status=status, code=code))) as scripted:
        error = await scripted.fail(Throttled, requests=ATTEMPTS)
        assert error.status == "persistent"


@checks("reliability:S07")
async def test_a_request_that_the_store_gave_up_on_is_sent_again(serve: Serve) -> None:
    async with serve() as scripted:
        status, kind = (400, Unavailable) if scripted.service == "s3" else (408, TimedOut)
        fault = Fault(status=status, code="RequestTimeout")
        scripted.server.add(once(fault))
        await scripted.read()
        scripted.server.assert_requests("GET", "GET")
        scripted.server.add(always(fault))
        await scripted.fail(kind, requests=ATTEMPTS)


@checks("reliability:S24")
async def test_a_416_for_a_range_inside_is_reported_unchanged(serve: Serve) -> None:
    """The range is not asked for again, and the size that the store tells is in the error."""
    fault = Fault(status=416, code="InvalidRange", headers={"Content-Range": f"bytes */{OFFSET}"})
    async with serve(always(fault)) as scripted:
        error = await scripted.fail(RangeNotSatisfied, requests=1)
        assert error.context["total"] == OFFSET


@checks("reliability:S24")
async def test_a_416_for_a_pinned_object_that_has_not_shrunk(serve: Serve) -> None:
    """A reader asks once what there is now; where nothing has changed the refusal stays one."""
    fault = Fault(status=416, code="InvalidRange")
    async with serve() as scripted, scripted.operator.reader("k", policy="random") as reader:
        await reader.read_at(0, 10)
        scripted.server.add(always(fault))
        with pytest.raises(RangeNotSatisfied) as caught:
            await reader.read_at(OFFSET, LENGTH)
        assert (caught.value.operation, caught.value.path) == ("read", "k")
        assert scripted.server.count("GET") == 2
        assert scripted.server.count("HEAD") <= 2


@checks("reliability:S24")
async def test_a_416_for_a_pinned_object_that_has_shrunk(serve: Serve) -> None:
    """Where the server ignores If-Match, and so answers 416 instead of 412."""
    async with (
        serve(always(Fault(ignore_if_match=True))) as scripted,
        scripted.operator.reader("k", policy="random") as reader,
    ):
        await reader.read_at(0, 10)
        scripted.server.objects["bucket/k"] = scripted.data[: OFFSET // 2]
        with pytest.raises(ObjectChanged):
            await reader.read_at(OFFSET, LENGTH)
        assert scripted.server.count("GET") == 2


@checks("reliability:S24")
async def test_every_range_is_refused_from_the_first_on(serve: Serve) -> None:
    """The size that HEAD tells does not make the reader ask again and again."""
    async with serve(always(Fault(status=416, code="InvalidRange"))) as scripted:
        async with scripted.operator.reader("k") as reader:
            with pytest.raises((ProtocolError, RangeNotSatisfied)) as caught:
                await reader.read_at(0, 10)
            assert (caught.value.operation, caught.value.path) == ("read", "k")
        assert scripted.server.count("GET") <= 2


@checks("opendal:E3", "reliability:S28")
async def test_a_404_is_a_response(serve: Serve) -> None:
    """A store that lags behind is not waited for."""
    async with serve(once(Fault(status=404, code="NoSuchKey"))) as scripted:
        error = await scripted.fail(NotFound, requests=1)
        assert error.status == "permanent"
        await scripted.read()


@checks("reliability:S49")
async def test_an_expired_signature_is_made_again(serve_s3: Serve) -> None:
    """It may have waited in a queue: one request more, with a signature of its own."""
    async with serve_s3(once(Fault(status=403, code="RequestTimeTooSkewed"))) as scripted:
        await scripted.read()
        scripted.server.assert_requests("GET", "GET")


@checks("reliability:S49")
async def test_a_wrong_clock_is_reported_with_the_right_time(serve_s3: Serve) -> None:
    date = {"Date": "Fri, 02 Jan 2026 03:04:05 GMT"}
    async with serve_s3(always(Fault(status=403, code="RequestTimeTooSkewed", headers=date))) as scripted:
        error = await scripted.fail(ClockSkew)
        assert "2026-01-02 03:04:05" in str(error)
        assert error.status == "permanent"
        assert scripted.server.count() <= 2


REFUSALS = ["AccessDenied", "SignatureDoesNotMatch", "InvalidAccessKeyId"]


@pytest.mark.parametrize("code", REFUSALS)
@checks("opendal:E3", "reliability:S50")
async def test_a_refusal_is_not_asked_for_again(serve: Serve, code: str) -> None:
    async with serve(always(Fault(status=403, code=code))) as scripted:
        error = await scripted.fail(PermissionDenied, requests=1)
        assert error.status == "permanent"


@checks("reliability:S51")
async def test_expired_keys_that_are_not_renewed(serve_s3: Serve) -> None:
    """Renewed ones are tested with the other credentials."""
    async with serve_s3(always(Fault(status=400, code="ExpiredToken"))) as scripted:
        error = await scripted.fail(CredentialsExpired)
        assert error.status == "permanent"
        assert scripted.server.count() <= 2


@checks("reliability:S54")
async def test_an_archived_object_is_named(serve_s3: Serve) -> None:
    body = b"<Error><Code>InvalidObjectState</Code><StorageClass>DEEP_ARCHIVE</StorageClass></Error>"
    async with serve_s3(always(Fault(status=403, body=body))) as scripted:
        error = await scripted.fail(PermissionDenied, requests=1)
        assert "DEEP_ARCHIVE" in str(error)
        assert error.status == "permanent"


BLOCK_BYTES = 4096
FIRST_ANSWERS = [
    Fault(status=500),
    Fault(drop=True),
    Fault(close_after_bytes=100),
    Fault(content_range_shift_bytes=1),
]


@pytest.mark.parametrize("at_once", [8, 64])
@checks("reliability:S70")
async def test_every_first_response_of_a_long_read_fails(serve: Serve, at_once: int) -> None:
    """64 blocks by the default policy, each asked for twice; the tokens last, and come back with every success."""
    failed: set[int] = set()

    def first_of(number: int) -> Callable[[ReceivedRequest], bool]:
        def applies(request: ReceivedRequest) -> bool:
            block = int((request.range or "").removeprefix("bytes=").split("-")[0]) // BLOCK_BYTES
            if block % len(FIRST_ANSWERS) != number or block in failed:
                return False
            failed.add(block)
            return True

        return applies

    options = {"concurrency": at_once, "block_bytes": BLOCK_BYTES}
    async with serve(size=64 * BLOCK_BYTES, layers=(), operator_options=options) as scripted:
        meta = await scripted.operator.stat("k")
        tokens, left = RetryLayer().bucket(scripted.operator.runtime()), []
        scripted.operator.runtime().events.subscribe(
            lambda event: left.append(tokens.tokens) if event.name == "request.retried" else None
        )
        for number, fault in enumerate(FIRST_ANSWERS):
            scripted.server.add(Rule(fault=fault, times=None, method="GET", matches=first_of(number)))
        async with scripted.operator.reader("k", size=meta.size, etag=meta.etag, policy="random") as reader:
            for first in range(0, 64, at_once):
                offsets = [number * BLOCK_BYTES for number in range(first, first + at_once)]
                parts = await asyncio.gather(*(reader.read_at(offset, BLOCK_BYTES) for offset in offsets))
                assert_same_bytes(b"".join(parts), scripted.data[offsets[0] : offsets[-1] + BLOCK_BYTES])
        assert len(failed) == 64
        assert scripted.server.count("GET") == 2 * 64
        assert len(left) <= 64  # A kept connection that drops is no failure: the transport sends its request again.
        assert min(left) >= tokens.capacity - at_once * RetryLayer().cost > 0
        assert tokens.tokens == tokens.capacity

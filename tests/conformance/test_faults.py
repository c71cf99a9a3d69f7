"""Lines that need a server which misbehaves: cut bodies, wrong ranges, refusals; over http and s3."""

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from aioprefetch.errors import Error, NotFound, ObjectChanged, PermissionDenied, ProtocolError, RangeNotSatisfied
from aioprefetch.layers.lru_cache import LruCacheLayer
from aioprefetch.layers.retry import RetryLayer
from aioprefetch.operator import Operator
from aioprefetch.services.memory import Memory
from aioprefetch.testing import Fault, FaultServer, Rule
from aioprefetch.testing.conformance.ids import checks
from aioprefetch.testing.oracle import assert_same_bytes, content

SIZE = 200_000
QUICK_RETRY = RetryLayer(attempts_max=3, base_seconds=0, throttle_base_seconds=0)

Serve = Callable[..., AbstractAsyncContextManager[tuple[FaultServer, Operator]]]


def uri_of(server: FaultServer, service: str) -> tuple[str, dict[str, str]]:
    """Where the objects below `bucket/` are, for one of the services."""
    if service == "http":
        return f"{server.url}/bucket/", {}
    return "s3://bucket", {
        "endpoint_url": server.url,
        "region": server.region,
        "access_key_id": server.access_key_id,
        "secret_access_key": server.secret_access_key,
    }


@pytest.fixture(params=["http", "s3"])
def serve(request: pytest.FixtureRequest) -> Serve:
    """A function that gives a server with one object `k` and an Operator that retries without a pause."""

    @asynccontextmanager
    async def serving(*script: Rule) -> AsyncIterator[tuple[FaultServer, Operator]]:
        async with FaultServer({"bucket/k": content(SIZE)}, script) as server:
            uri, options = uri_of(server, request.param)
            async with Operator.from_uri(uri, **options).layer(QUICK_RETRY) as operator:
                yield server, operator

    return serving


@checks("opendal:R29")
@pytest.mark.parametrize("cut", [Fault(close_after_bytes=70_000), Fault(reset_after_bytes=70_000)], ids=["FIN", "RST"])
async def test_a_cut_body_goes_on_at_the_exact_offset(serve: Serve, cut: Fault) -> None:
    """The second GET asks for what is missing alone, pinned to the version, and the bytes are right."""
    async with serve(Rule(fault=cut, index=0)) as (server, operator):
        assert_same_bytes(await operator.read("k", offset=1000, size=150_000), content(SIZE)[1000:151_000], offset=1000)
        first, second = server.requests
        assert first.range == "bytes=1000-150999"
        assert second.range is not None
        resumed = int(second.range.removeprefix("bytes=").split("-")[0])
        # A reset may throw away what the kernel had not delivered; never may a byte be asked for twice or skipped.
        assert 1000 <= resumed <= 71_000
        assert second.range.endswith("-150999")
        assert second.headers.get("if-match")
        if cut.close_after_bytes is not None:
            assert resumed == 71_000


@checks("opendal:R30")
async def test_a_server_that_ignores_the_range_is_noticed_before_its_body(serve: Serve) -> None:
    """200 with everything for a range in the middle is never taken for the range."""
    rule = Rule(fault=Fault(ignore_range=True), times=None, method="GET")
    async with serve(rule) as (server, operator):
        server.objects["bucket/big"] = content(8 << 20)
        with contextlib.suppress(ProtocolError):
            data = await operator.read("big", offset=1 << 20, size=100)
            assert_same_bytes(data, content((1 << 20) + 100)[1 << 20 :], offset=1 << 20)
        assert server.bytes_sent < 4 * (8 << 20), "whole bodies were drained"


@checks("opendal:R31")
@pytest.mark.parametrize("shift", [1, -1, 4096])
async def test_a_wrong_content_range_is_an_error(serve: Serve, shift: int) -> None:
    """Bytes that claim to be from elsewhere are not delivered."""
    rule = Rule(fault=Fault(content_range_shift_bytes=shift), times=None, method="GET")
    async with serve(rule) as (_, operator):
        with pytest.raises(ProtocolError):
            await operator.read("k", offset=10_000, size=100)


@checks("opendal:R31", "opendal:R29")
async def test_a_short_body_with_agreeing_headers_is_an_error(serve: Serve) -> None:
    """A proxy that cuts the body and corrects Content-Length is found out by Content-Range."""
    rule = Rule(fault=Fault(short_by_bytes=5), times=None, method="GET")
    async with serve(rule) as (_, operator):
        with pytest.raises(Error):
            await operator.read("k", offset=10_000, size=100)


@checks("opendal:R32")
async def test_a_resumed_read_never_mixes_two_versions(serve: Serve) -> None:
    """The object changes between the attempts: `ObjectChanged`, and no byte of the new one in the old one's place."""
    async with serve(Rule(fault=Fault(close_after_bytes=70_000), index=0)) as (server, operator):

        def replaced(request: object) -> bool:
            server.objects["bucket/k"] = content(SIZE, version=1)
            return False

        server.add(Rule(fault=Fault(), index=1, matches=replaced))
        with pytest.raises(ObjectChanged) as caught:
            await operator.read("k")
        assert caught.value.expected_etag != caught.value.actual_etag


@checks("opendal:E2")
async def test_a_failed_body_says_how_far_it_came(serve: Serve) -> None:
    """Range and bytes received stand in the error and in its text."""
    cut = Fault(close_after_bytes=100)
    rules = [Rule(fault=cut, times=None, method="GET")]
    async with serve(*rules) as (_, operator):
        with pytest.raises(Error) as caught:
            await operator.read("k", offset=1000, size=50_000)
        error = caught.value
        assert error.received >= 100
        assert "range" in error.context
        assert "received" in str(error)
        assert (error.operation, error.path) == ("read", "k")


@checks("opendal:E3")
@pytest.mark.parametrize(("status", "code"), [(503, "SlowDown"), (500, "InternalError"), (429, "TooManyRequests")])
async def test_a_temporary_failure_becomes_persistent(serve: Serve, status: int, code: str) -> None:
    """After the last attempt the status says that trying again was tried; success in between is success."""
    fault = Fault(status=status, code=code)
    async with serve(Rule(fault=fault, times=None)) as (server, operator):
        with pytest.raises(Error) as caught:
            await operator.read("k")
        assert caught.value.status == "persistent"
        assert caught.value.context["attempts"] == 3
        assert server.count("GET") == 3
    async with serve(Rule(fault=fault, times=2)) as (server, operator):
        assert_same_bytes(await operator.read("k"), content(SIZE))
        assert server.count("GET") == 3


@checks("opendal:E3")
async def test_a_permanent_failure_is_not_repeated(serve: Serve) -> None:
    """403 and 404 are answers, not accidents."""
    async with serve(Rule(fault=Fault(status=403, code="AccessDenied"), index=0)) as (server, operator):
        with pytest.raises(PermissionDenied) as refused:
            await operator.read("k")
        with pytest.raises(NotFound) as missing:
            await operator.read("other")
        assert (refused.value.status, missing.value.status) == ("permanent", "permanent")
        assert server.count("GET") == 2


@checks("opendal:E4")
async def test_no_layer_changes_the_kind_of_an_error(serve: Serve) -> None:
    """Bare, default and cached stacks raise the same class for the same answer."""
    faults: dict[type[Error], Fault] = {
        PermissionDenied: Fault(status=403, code="AccessDenied"),
        NotFound: Fault(status=404, code="NoSuchKey"),
        RangeNotSatisfied: Fault(status=416, code="InvalidRange", headers={"Content-Range": f"bytes */{SIZE}"}),
    }
    async with serve() as (server, operator), Operator(Memory()) as cache:
        cached = operator.layer(LruCacheLayer(cache=cache, capacity_bytes=1 << 20))
        for kind, fault in faults.items():
            server.add(Rule(fault=fault, times=4))
            for stack in (Operator.bare(operator._service), operator, cached):
                with pytest.raises(kind) as caught:
                    await stack.read("k", offset=5, size=5)
                assert type(caught.value) is kind
                if stack not in (operator, cached):
                    await stack.aclose()
            server._rules.clear()

"""Lines that need a server which misbehaves: cut bodies, wrong ranges, refusals; over http and s3."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from aioprefetch.errors import Error, NotFound, PermissionDenied, RangeNotSatisfied
from aioprefetch.layers.lru_cache import LruCacheLayer
from aioprefetch.layers.retry import RetryLayer
from aioprefetch.operator.operator import Operator
from aioprefetch.services.memory import Memory
from aioprefetch.testing import Fault, FaultServer, Rule
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.testing.oracle import content
from tests.stores.s3_options import options_of

SIZE = 200_000
QUICK_RETRY = RetryLayer(attempts_max=3, base_seconds=0, throttle_base_seconds=0)

Serve = Callable[..., AbstractAsyncContextManager[tuple[FaultServer, Operator]]]


def uri_of(server: FaultServer, service: str) -> tuple[str, dict[str, Any]]:
    """Where the objects below `bucket/` are, for one of the services."""
    if service == "http":
        return f"{server.url}/bucket/", {}
    return "s3://bucket", options_of(server)


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


@checks("opendal:E4")
async def test_no_layer_changes_the_kind_of_an_error(serve: Serve) -> None:
    """Bare, default and cached stacks raise the same class for the same response."""
    faults: dict[type[Error], Fault] = {
        PermissionDenied: Fault(status=403, code="AccessDenied"),
        NotFound: Fault(status=404, code="NoSuchKey"),
        RangeNotSatisfied: Fault(status=416, code="InvalidRange", headers={"Content-Range": f"bytes */{SIZE}"}),
    }
    async with serve() as (server, operator), Operator(Memory()) as cache:
        cached = operator.layer(LruCacheLayer(cache=cache, capacity_bytes=1 << 20))
        for kind, fault in faults.items():
            server.add(Rule(fault=fault, times=4))
            for stack in (Operator.bare(operator.service), operator, cached):
                with pytest.raises(kind) as caught:
                    await stack.read("k", offset=5, size=5)
                assert type(caught.value) is kind
                if stack not in (operator, cached):
                    await stack.aclose()
            server.behave()

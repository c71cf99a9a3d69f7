"""A redirect is never followed: one request, none to the other host, and no token for it."""

from collections.abc import Callable
from typing import Any

import pytest

from aioprefetch.errors import ConditionNotMatch, ConfigInvalid, RedirectRefused
from aioprefetch.testing import Fault, FaultServer, Rule
from tests.unit.services.s3.stores import Store

OBJECTS = {"bucket/k": b"the object", "k": b"foreign", "evil/k": b"foreign"}
REGION = {"x-amz-bucket-region": "eu-west-1"}


# What a caller does, and the request that it costs.
METHODS = {"get": "GET", "stat": "HEAD", "put": "PUT", "list": "GET", "delete": "DELETE"}


def calls_of(store: Store) -> dict[str, Callable[[], Any]]:
    """A call for each of these."""
    return {
        "get": lambda: store.get("k"),
        "stat": lambda: store.stat("k"),
        "put": lambda: store.put("k", b"data"),
        "list": lambda: store.names("k"),
        "delete": lambda: store.delete("k"),
    }


@pytest.mark.parametrize("call", METHODS)
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_no_redirect_is_followed(store: Callable[..., Store], status: int, call: str) -> None:
    """Whatever the status, with or without a place to go to, and with or without the name of a region."""
    async with FaultServer(OBJECTS) as foreign, FaultServer(OBJECTS) as server:
        opened = store(server, session_token="canary-token")
        for location in (f"{foreign.url}/evil/k", None):
            for headers in ({}, REGION):
                server.add(Rule(fault=Fault(status=status, location=location, headers=headers)))
                with pytest.raises(RedirectRefused) as caught:
                    await calls_of(opened)[call]()
                assert caught.value.status == "permanent"
                assert caught.value.context["http_status"] == status
                assert ("set region='eu-west-1'" in str(caught.value)) == bool(headers)
                assert "canary" not in repr(caught.value)
        server.assert_requests(*[METHODS[call]] * 4)
        assert foreign.connections == 0


@pytest.mark.parametrize("call", ["get", "put", "list", "delete"])
@pytest.mark.parametrize("code", ["AuthorizationHeaderMalformed", "IllegalLocationConstraintException"])
@pytest.mark.parametrize("place", ["header", "body"])
async def test_a_wrong_region_is_named(store: Callable[..., Store], code: str, place: str, call: str) -> None:
    """Botocore would ask again elsewhere; we say which region to set, after one request."""
    region = "<Region>eu-west-1</Region>" if place == "body" else ""
    body = f"<Error><Code>{code}</Code><Message>m</Message>{region}</Error>".encode()
    headers = REGION if place == "header" else {}
    async with FaultServer(OBJECTS, [Rule(fault=Fault(status=400, body=body, headers=headers), times=None)]) as server:
        with pytest.raises(ConfigInvalid, match="set region='eu-west-1'"):
            await calls_of(store(server))[call]()
        server.assert_requests(METHODS[call])


async def test_a_head_in_the_wrong_region_is_named(store: Callable[..., Store]) -> None:
    """The response has no body; its header is enough."""
    async with FaultServer(OBJECTS, [Rule(fault=Fault(status=400, headers=REGION), times=None)]) as server:
        with pytest.raises(ConfigInvalid, match="set region='eu-west-1'"):
            await store(server).stat("k")
        server.assert_requests("HEAD")


async def test_a_region_that_is_none_is_not_repeated(store: Callable[..., Store]) -> None:
    """What would be put into a configuration must look like a region."""
    headers = {"x-amz-bucket-region": "evil.example/x"}
    async with FaultServer(OBJECTS, [Rule(fault=Fault(status=301, headers=headers))]) as server:
        with pytest.raises(RedirectRefused, match="set region to the bucket's region, or check endpoint_url") as caught:
            await store(server).get("k")
    assert "evil" not in str(caught.value)


async def test_not_modified_is_no_redirect(store: Callable[..., Store]) -> None:
    """304 is the response to If-None-Match."""
    async with FaultServer(OBJECTS) as server:
        opened = store(server)
        etag = (await opened.stat("k")).etag
        with pytest.raises(ConditionNotMatch):
            await opened.get("k", if_none_match=etag)
        server.assert_requests("HEAD", "GET")

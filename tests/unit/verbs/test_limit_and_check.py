"""Listings that end at a limit of entries, and the check of a store: the requests of each are counted."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import aioprefetch as ap
from aioprefetch.errors import ConfigInvalid, InvalidType, NotFound, PermissionDenied, Unavailable
from aioprefetch.testing import CountingS3Server, Fault, FaultServer, Rule
from tests.stores.dict_store import DictStore

NAMES = [f"d/{number}" for number in range(5)] + ["d/e/f"]


@pytest.fixture
async def op(s3_server: CountingS3Server, random_name: Callable[[], str]) -> AsyncIterator[ap.Operator]:
    """A bucket with six objects, and a count that begins here."""
    bucket = random_name()
    s3_server.create_bucket(bucket)
    keys: dict[str, Any] = {"access_key_id": "AK", "secret_access_key": "SK"}
    async with ap.Operator.from_uri(
        f"s3://{bucket}", endpoint_url=s3_server.endpoint_url, region="us-east-1", **keys
    ) as op:
        for name in NAMES:
            await op.write(name, b"x")
        s3_server.reset()
        yield op


@pytest.mark.parametrize(
    ("options", "found", "asked"),
    [
        ({"limit": 0}, [], []),
        ({"limit": 1}, ["d/0"], ["1"]),
        ({"limit": 3, "start_after": "d/1"}, ["d/2", "d/3", "d/4"], ["3"]),
        ({"limit": 6, "recursive": True}, NAMES, ["6"]),
        ({"limit": 9}, [*NAMES[:5], "d/e/"], ["9"]),
        ({"limit": 5000}, [*NAMES[:5], "d/e/"], ["1000"]),
        ({"limit": 2, "glob": "d/[34]"}, ["d/3", "d/4"], ["1000"]),
        ({}, [*NAMES[:5], "d/e/"], ["1000"]),
    ],
)
async def test_no_more_is_asked_for_than_the_limit(
    op: ap.Operator, s3_server: CountingS3Server, options: dict[str, object], found: list[str], asked: list[str]
) -> None:
    entries = await op.list("d/", **options).collect()  # type: ignore[arg-type]
    assert [entry.path for entry in entries] == found
    queries = [dict(part.split("=", 1) for part in one.query.split("&") if "=" in part) for one in s3_server.requests]
    assert [query["max-keys"] for query in queries] == asked


async def test_pages_that_are_short_are_followed_to_the_limit() -> None:
    """A store with pages of three; what is walked directory by directory counts its objects."""
    names = [f"{top}/{number}" for top in "ab" for number in range(6)]
    store = DictStore(dict.fromkeys(names, b"x"))
    async with ap.Operator(store) as op:
        assert [entry.path async for entry in op.list("a/", limit=4)] == names[:4]
        assert store.requests == ["list a/", "list a/"]
        assert [entry.path async for entry in op.list(recursive=True, limit=8)] == names[:8]
        store.requests.clear()
        assert [entry.path async for entry in op.list(recursive=True, limit=1)] == names[:1]
        assert store.requests == ["list ", "list a/", "list a/"]  # A directory is read whole, in pages of three.
        listing = op.list("a/", limit=2)
        assert [(await anext(listing)).path, (await anext(listing)).path] == names[:2]
        with pytest.raises(StopAsyncIteration):
            await anext(listing)


def test_blocking_listings_have_it_too() -> None:
    with ap.sync.BlockingOperator(ap.Operator(DictStore({"a": b"", "b": b""}))) as op:
        assert [entry.path for entry in op.list(limit=1)] == ["a"]
        op.check()


@pytest.mark.parametrize(("limit", "error"), [(-1, ConfigInvalid), ("3", InvalidType), (True, InvalidType)])
async def test_a_limit_is_a_number(limit: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="limit"):
        ap.Operator.from_uri("memory://limits").list(limit=limit)  # type: ignore[arg-type]


async def test_a_check_is_one_request(op: ap.Operator, s3_server: CountingS3Server) -> None:
    await op.check()
    assert [(one.method, "max-keys=1" in one.query) for one in s3_server.requests] == [("GET", True)]


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [(403, "AccessDenied", PermissionDenied), (404, "NoSuchBucket", NotFound), (503, "InternalError", Unavailable)],
)
async def test_a_check_says_what_is_wrong(status: int, code: str, kind: type[ap.Error]) -> None:
    async with FaultServer({}) as server:
        server.add(Rule(fault=Fault(status=status, code=code)))
        keys: dict[str, Any] = {"access_key_id": "AK", "secret_access_key": "SK", "region": "r"}
        async with ap.Operator.from_uri("s3://bucket", endpoint_url=server.url, attempts_max=1, **keys) as op:
            with pytest.raises(kind) as caught:
                await op.check()
        assert caught.value.operation == "check"
        assert server.count() == 1


async def test_a_store_without_listings_is_there_if_it_answers() -> None:
    async with FaultServer({}) as server:
        server.add(Rule(fault=Fault(status=404)))
        async with ap.Operator.from_uri(server.url) as op:
            await op.check()
        server.assert_requests("HEAD")
        url = server.url
    async with ap.Operator.from_uri(url, attempts_max=1) as op:
        with pytest.raises(Unavailable, match="no connection") as caught:
            await op.check()
    assert caught.value.operation == "check"

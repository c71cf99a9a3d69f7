"""Reads by the time of the last change: what is sent and when, and what a store that ignores it leads to."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from aioprefetch.errors import ConditionNotMatch, InvalidArgument, InvalidType, Unsupported
from aioprefetch.layers.lru_cache import LruCacheLayer
from aioprefetch.operator.operator import Operator
from aioprefetch.services.http import Http
from aioprefetch.services.memory import Memory
from aioprefetch.services.s3 import S3
from aioprefetch.testing import Fault, FaultServer, Rule
from aioprefetch.testing.faults import ReceivedRequest
from tests.reliability.scripted import NO_PAUSES

DATA = bytes(range(256)) * 256
KEYS = {"access_key_id": "id", "secret_access_key": "secret"}
SERVICES: dict[str, Callable[[str], Any]] = {
    "s3": lambda url: S3(bucket="bucket", endpoint_url=url, proxies={}, **KEYS),  # type: ignore[arg-type]
    "http": lambda url: Http(f"{url}/bucket/", proxies={}),
}
OBJECTS = {"bucket/k": DATA}
NAMES = ("if-modified-since", "if-unmodified-since", "if-match")


def sent(request: ReceivedRequest) -> list[str | None]:
    """The conditions of a request."""
    return [request.headers.get(name) for name in NAMES]


@pytest.fixture(params=SERVICES)
def service_of(request: pytest.FixtureRequest) -> Callable[[str], Any]:
    """S3 and HTTP."""
    return SERVICES[request.param]


async def test_times_are_sent_in_whole_seconds_of_gmt(service_of: Callable[[str], Any]) -> None:
    """A time in another zone is converted."""
    since = datetime(2001, 2, 3, 4, 5, 6, 789, tzinfo=timezone(timedelta(hours=2)))
    async with FaultServer(OBJECTS) as server, Operator(service_of(server.url)) as op:
        read = await op.read(
            "k", size=5, if_modified_since=since, if_unmodified_since=datetime(2100, 1, 31, tzinfo=UTC)
        )
        assert read == DATA[:5]
        assert sent(server.requests[-1])[:2] == ["Sat, 03 Feb 2001 02:05:06 GMT", "Sun, 31 Jan 2100 00:00:00 GMT"]


async def test_a_store_that_ignores_the_times_is_found_out(service_of: Callable[[str], Any]) -> None:
    """By its Last-Modified, before a byte of its body counts; of a stat too, which sends no condition."""
    async with FaultServer(OBJECTS) as server, Operator(service_of(server.url)) as op:
        modified = (await op.stat("k")).last_modified
        assert modified is not None
        for condition in ({"if_modified_since": modified}, {"if_unmodified_since": modified - timedelta(seconds=1)}):
            with pytest.raises(ConditionNotMatch, match="modified at"):
                await op.read("k", **condition)  # type: ignore[arg-type]
            with pytest.raises(ConditionNotMatch, match="modified at"):
                await op.stat("k", **condition)  # type: ignore[arg-type]
            assert sent(server.requests[-1]) == [None, None, None]
        assert op.statistics["stream_read_total_bytes"] == 0


@pytest.mark.parametrize(("status", "name"), [(304, "if_modified_since"), (412, "if_unmodified_since")])
async def test_a_store_that_refuses_says_why(service_of: Callable[[str], Any], status: int, name: str) -> None:
    refusal = Rule(fault=Fault(status=status, code="PreconditionFailed"), times=None)
    async with FaultServer(OBJECTS, [refusal]) as server, Operator(service_of(server.url)) as op:
        with pytest.raises(ConditionNotMatch) as caught:
            await op.read("k", **{name: datetime.now(UTC)})  # type: ignore[arg-type]
        assert "None" not in caught.value.message
        assert server.count() == 1


async def test_a_store_without_times_is_unsupported(service_of: Callable[[str], Any]) -> None:
    """No time is no proof."""
    timeless = Rule(fault=Fault(headers={"Last-Modified": None}), times=None)
    async with FaultServer(OBJECTS, [timeless]) as server, Operator(service_of(server.url)) as op:
        for call in (op.read, op.stat):
            with pytest.raises(Unsupported, match="does not say when"):
                await call("k", if_unmodified_since=datetime.now(UTC))


async def test_the_later_requests_of_a_read_are_pinned_instead(service_of: Callable[[str], Any]) -> None:
    """Those that go on after a cut, and the parts of a long read: the ETag is exact."""
    now = datetime.now(UTC)
    async with FaultServer(OBJECTS, [Rule(fault=Fault(close_after_bytes=100), index=0)]) as server:
        async with Operator(service_of(server.url)).layer(NO_PAUSES) as op:
            assert await op.read("k", if_unmodified_since=now) == DATA
        assert [sent(request)[1] is not None for request in server.requests] == [True, False]
        assert sent(server.requests[1])[2] is not None
    async with FaultServer(OBJECTS) as server, Operator(service_of(server.url), block_bytes=4096) as op:
        assert await op.read("k", if_unmodified_since=now) == DATA
        first, *others = server.requests
        assert others
        assert sent(first)[1:] == [sent(first)[1], None]
        assert sent(first)[1] is not None
        assert all(sent(request)[1] is None and sent(request)[2] for request in others)


async def test_a_cache_leaves_them_to_the_store(service_of: Callable[[str], Any]) -> None:
    """It keeps what it has for other reads."""
    async with FaultServer(OBJECTS) as server, Operator(Memory()) as cache:
        layer = LruCacheLayer(cache=cache, capacity_bytes=1 << 20, revalidate_seconds=None)
        async with Operator(service_of(server.url)).layer(layer) as op:
            assert await op.read("k", size=10) == DATA[:10]
            count = server.count()
            assert await op.read("k", size=10, if_unmodified_since=datetime.now(UTC)) == DATA[:10]
            with pytest.raises(ConditionNotMatch):
                await op.read("k", size=10, if_modified_since=datetime.now(UTC))
            assert server.count() == count + 2
            assert await op.read("k", size=10) == DATA[:10]
            assert server.count() == count + 2


@pytest.mark.parametrize("name", ["if_modified_since", "if_unmodified_since"])
async def test_what_is_no_time_is_refused(name: str) -> None:
    async with Operator(Memory()) as op:
        for call in (op.read, op.view, op.stat):
            with pytest.raises(InvalidArgument, match="has no time zone"):
                await call("k", **{name: datetime(2026, 1, 1)})  # type: ignore[arg-type]
            for wrong in ("2026-01-01", 5, True):
                with pytest.raises(InvalidType, match=f"{name} must be a datetime"):
                    await call("k", **{name: wrong})  # type: ignore[arg-type]


async def test_all_conditions_have_to_hold(service_of: Callable[[str], Any]) -> None:
    """RFC 9110 lets an ETag overrule a time; here neither does."""
    async with FaultServer(OBJECTS) as server, Operator(service_of(server.url)) as op:
        found = await op.stat("k")
        assert found.last_modified is not None
        before = found.last_modified - timedelta(seconds=1)
        for call in (op.read, op.stat):
            await call("k", if_match=found.etag, if_unmodified_since=found.last_modified)
            with pytest.raises(ConditionNotMatch):
                await call("k", if_match=found.etag, if_unmodified_since=before)
            with pytest.raises(ConditionNotMatch):
                await call("k", if_none_match="another", if_modified_since=found.last_modified)

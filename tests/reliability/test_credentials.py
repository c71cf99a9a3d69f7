"""Credentials that end in the middle of reads and while no endpoint gives new ones; signatures made in time."""

import asyncio
import datetime as dt
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from aioprefetch.accessor.sink import CollectSink
from aioprefetch.errors import CredentialsExpired, TimedOut
from aioprefetch.operator.operator import Operator
from aioprefetch.services.s3 import S3
from aioprefetch.services.s3.accessor import S3Accessor
from aioprefetch.services.s3.client import RENEW_SECONDS_MIN
from aioprefetch.testing import Fault, FaultServer, ReceivedRequest, Rule
from aioprefetch.testing.conformance.ids import checks
from aioprefetch.testing.oracle import assert_same_bytes, content
from aioprefetch.values import ReadRequest
from tests.reliability.scripted import NO_PAUSES, SIZE, Serve, once

CUT = 20_000
EXPIRED = Fault(status=400, code="ExpiredToken")
# Botocore asks for new credentials a quarter of an hour before the old ones end, and insists from ten minutes on.
SOON_SECONDS = 12 * 60
BOUND_SECONDS = 0.3


def keys_of(number: int, *, seconds: int = 3600) -> bytes:
    """The response of a credential endpoint: the keys of a generation, which end after ``seconds``."""
    end = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=seconds)
    keys = {"AccessKeyId": f"key{number}", "SecretAccessKey": "secret", "Token": f"token{number}"}
    return json.dumps({**keys, "Expiration": end.strftime("%Y-%m-%dT%H:%M:%SZ")}).encode()


def signed_with(number: int) -> Callable[[ReceivedRequest], bool]:
    """Whether a request carries the session token of a generation, in its URL or in its headers."""
    return lambda request: f"token{number}" in request.target + request.headers.get("x-amz-security-token", "")


@dataclass(frozen=True, slots=True)
class Renewing:
    """A store, an Operator for it, and a credential endpoint on the same server."""

    server: FaultServer
    operator: Operator

    @property
    def renewals(self) -> int:
        """How often credentials were asked for."""
        return sum(request.key == "credentials" for request in self.server.requests)

    def gets(self) -> list[ReceivedRequest]:
        """The requests for objects."""
        return [request for request in self.server.requests if request.key != "credentials"]

    async def read(self, key: str = "k") -> None:
        """The whole of an object, to the byte."""
        assert_same_bytes(await self.operator.read(key), self.server.objects[f"bucket/{key}"])


@asynccontextmanager
async def renewing(
    monkeypatch: pytest.MonkeyPatch, *, seconds: int = 3600, concurrency: int = 8
) -> AsyncIterator[Renewing]:
    """Serve two objects, and the first generation of credentials as a container has them."""
    objects = {"bucket/k": content(SIZE), "bucket/other": content(SIZE, version=1)}
    async with FaultServer({**objects, "credentials": keys_of(1, seconds=seconds)}) as server:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{server.url}/credentials")
        service = S3(bucket="bucket", endpoint_url=server.url, region=server.region, proxies={})
        async with Operator(service, concurrency=concurrency).layer(NO_PAUSES) as operator:
            yield Renewing(server, operator)
            server.behave()
            server.release()
            async with asyncio.timeout(10):
                await operator.read("k", offset=0, size=10)
        await server.wait_until_idle()


@checks("reliability:S51")
async def test_keys_that_end_in_the_middle_of_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """New ones are asked for once, and the read goes on where it was."""
    async with renewing(monkeypatch) as store:

        def renewed(request: ReceivedRequest) -> bool:
            store.server.objects["credentials"] = keys_of(2)
            return True

        cut = Rule(fault=Fault(close_after_bytes=CUT), key="bucket/k", matches=renewed)
        store.server.add(cut, Rule(fault=EXPIRED, key="bucket/k", matches=signed_with(1), times=None))
        await store.read()
        first, refused, resumed = store.gets()
        assert signed_with(2)(resumed)
        assert first.range is None
        assert refused.range == resumed.range == f"bytes={CUT}-{SIZE - 1}"
        assert resumed.headers["if-match"]
        assert store.renewals == 2


@checks("reliability:S51")
async def test_many_reads_ask_for_new_keys_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with renewing(monkeypatch) as store:
        await store.read()
        store.server.add(Rule(fault=EXPIRED, matches=signed_with(1), times=None))
        store.server.objects["credentials"] = keys_of(2)
        await asyncio.gather(*(store.read(key) for key in ("k", "other") * 4))
        assert store.renewals == 2
        assert len(store.gets()) <= 1 + 2 * 8


@checks("reliability:S51")
async def test_new_keys_that_are_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are asked for once, and then the refusal is raised."""
    async with renewing(monkeypatch) as store:
        store.server.add(Rule(fault=EXPIRED, key="bucket/k", times=None))
        with pytest.raises(CredentialsExpired) as caught:
            await store.operator.read("k")
        assert caught.value.status == "permanent"
        assert len(store.gets()) <= 2
        assert store.renewals <= 2


@checks("reliability:S52")
async def test_an_endpoint_that_hangs_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that needs new credentials waits as long as its caller allows; bodies that arrive go on arriving."""
    async with renewing(monkeypatch, seconds=SOON_SECONDS) as store:
        store.server.objects["credentials"] = keys_of(1, seconds=SOON_SECONDS)
        store.server.add(Rule(fault=Fault(hang_after_bytes=CUT), key="bucket/k"))
        streaming = asyncio.create_task(store.read())
        await store.server.wait_for_requests(2)
        store.server.add(Rule(fault=Fault(hang_before_head=True), key="credentials", times=None))
        with pytest.raises(TimedOut):
            await store.operator.read("other", timeout_seconds=BOUND_SECONDS)
        assert not streaming.done()
        assert all(request.key != "bucket/other" for request in store.server.requests)
        store.server.objects["credentials"] = keys_of(2)
        store.server.release()
        await streaming
        await store.read("other")


@checks("reliability:S53")
async def test_a_request_is_signed_when_it_is_sent(serve_s3: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when it began to wait for a slot."""
    import botocore.auth

    now = dt.datetime.now(dt.UTC)
    async with serve_s3(once(Fault(hang_before_head=True))) as scripted:
        scripted.server.objects["bucket/other"] = b"other"
        holding = asyncio.create_task(scripted.operator.read("other"))
        await scripted.server.wait_for_requests(1)
        queued = asyncio.create_task(scripted.read())
        for _ in range(100):
            await asyncio.sleep(0)
        later = now + dt.timedelta(minutes=20)
        monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda *_, **__: later)
        scripted.server.release()
        assert await holding == b"other"
        await queued
        request = scripted.server.requests[1]
        sent = request.target + request.headers.get("x-amz-date", "")
        assert later.strftime("%Y%m%dT%H%M%SZ") in sent
        monkeypatch.undo()


@dataclass
class Clients:
    """The clients of aiobotocore that were made for s3, and which of them are closed."""

    made: list[Any] = field(default_factory=list)
    closed: int = 0
    one_closed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def live(self) -> int:
        """How many are open."""
        return len(self.made) - self.closed

    async def until_one_is_left(self) -> None:
        """Wait until all others are closed."""
        async with asyncio.timeout(10):
            while self.live > 1:
                self.one_closed.clear()
                await self.one_closed.wait()


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Clients:
    """Count them."""
    from aiobotocore.client import AioBaseClient, AioClientCreator

    seen = Clients()
    create, close = AioClientCreator.create_client, AioBaseClient.close

    async def created(self: Any, *arguments: Any, **options: Any) -> Any:
        client = await create(self, *arguments, **options)
        seen.made.append(client)
        return client

    async def closed(self: Any) -> None:
        seen.closed += self in seen.made
        await close(self)
        seen.one_closed.set()

    monkeypatch.setattr(AioClientCreator, "create_client", created)
    monkeypatch.setattr(AioBaseClient, "close", closed)
    return seen


KEYS = {"AWS_ACCESS_KEY_ID": "key1", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_SESSION_TOKEN": "token1"}


@asynccontextmanager
async def with_variables(monkeypatch: pytest.MonkeyPatch, **options: Any) -> AsyncIterator[Renewing]:
    """A store, and an Operator whose keys are those of the environment."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    async with FaultServer({"bucket/k": content(SIZE)}) as server:
        service = S3(bucket="bucket", endpoint_url=server.url, region=server.region, proxies={}, **options)
        async with Operator(service).layer(NO_PAUSES) as operator:
            yield Renewing(server, operator)
            server.release()
        await server.wait_until_idle()


async def refused(store: Renewing, reads: int) -> None:
    """Read so often, each time in vain."""
    for _ in range(reads):
        with pytest.raises(CredentialsExpired):
            await store.operator.read("k")


def minutes_later(monkeypatch: pytest.MonkeyPatch, store: Renewing) -> None:
    """Let the runtime's clock be past the pause between two renewals."""
    runtime = store.operator.runtime()
    now = runtime.now
    monkeypatch.setattr(runtime, "now", lambda: now() + RENEW_SECONDS_MIN)


@checks("reliability:S51")
async def test_keys_that_stay_expired_make_no_clients(monkeypatch: pytest.MonkeyPatch, clients: Clients) -> None:
    """Sixty reads on static keys that ended overnight: one client, however often a minute has passed."""
    async with with_variables(monkeypatch) as store:
        store.server.add(Rule(fault=EXPIRED, key="bucket/k", times=None))
        await refused(store, 30)
        assert (len(clients.made), clients.live) == (1, 1)
        minutes_later(monkeypatch, store)
        await refused(store, 30)
        assert (len(clients.made), clients.live) == (1, 1)
    assert clients.live == 0


@checks("reliability:S51")
async def test_new_keys_make_one_client_and_close_the_other(monkeypatch: pytest.MonkeyPatch, clients: Clients) -> None:
    """Whatever the store says of them, once a minute; none stays behind."""
    async with with_variables(monkeypatch) as store:
        store.server.add(Rule(fault=EXPIRED, key="bucket/k", times=None))
        await store.operator.exists("other")
        for number in range(2, 12):
            monkeypatch.setenv("AWS_SESSION_TOKEN", f"token{number}")
            await refused(store, 3)
        assert len(clients.made) == 2
        minutes_later(monkeypatch, store)
        await refused(store, 3)
        assert len(clients.made) == 3
        await clients.until_one_is_left()
    assert clients.live == 0


@checks("reliability:S51")
async def test_an_old_client_is_closed_when_its_last_read_has_ended(
    monkeypatch: pytest.MonkeyPatch, clients: Clients
) -> None:
    """A body that still arrives by it is read to its end."""
    async with with_variables(monkeypatch) as store:
        runtime = store.operator.runtime()
        accessor = S3(bucket="bucket", endpoint_url=store.server.url, signing="header", proxies={}).build(runtime)
        assert isinstance(accessor, S3Accessor)
        client = accessor.client
        store.server.add(Rule(fault=Fault(hang_after_bytes=CUT)))
        slow = CollectSink()
        reading = asyncio.create_task(accessor.read(ReadRequest(path="k"), slow))
        async with asyncio.timeout(10):
            while slow.head is None:  # noqa: ASYNC110 - a sink sets no event
                await asyncio.sleep(0)
        monkeypatch.setenv("AWS_SESSION_TOKEN", "token2")
        client.renew(client.generation)
        sink = CollectSink()
        await accessor.read(ReadRequest(path="k"), sink)
        assert signed_with(2)(store.gets()[-1])
        assert (len(clients.made), clients.live) == (2, 2)
        store.server.release()
        await reading
        assert_same_bytes(slow.to_bytes(), sink.to_bytes())
        await clients.until_one_is_left()

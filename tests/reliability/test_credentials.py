"""Credentials that end in the middle of reads and while no endpoint gives new ones; signatures made in time."""

import asyncio
import datetime as dt
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from aioprefetch.errors import CredentialsExpired, Error, PermissionDenied, TimedOut
from aioprefetch.operator.operator import Operator
from aioprefetch.services.s3 import S3
from aioprefetch.services.s3.key_source import LOOK_SECONDS, RENEW_SECONDS_MIN
from aioprefetch.testing import Fault, FaultServer, ReceivedRequest, Rule
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.testing.oracle import assert_same_bytes, content
from aioprefetch.values import CopyRequest, DeleteRequest, WriteRequest
from tests.profile import chosen
from tests.reliability.scripted import NO_PAUSES, SIZE, Serve, once
from tests.stores.gated_reader import in_case

CUT = 20_000
EXPIRED = Fault(status=400, code="ExpiredToken")
# New credentials are asked for a quarter of an hour before the old ones end, and waited for from ten minutes on.
SOON_SECONDS = 12 * 60
URGENT_SECONDS = 5 * 60
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
async def renewing(monkeypatch: pytest.MonkeyPatch, *, seconds: int = 3600, **options: Any) -> AsyncIterator[Renewing]:
    """Serve two objects, and the first generation of credentials as a container has them."""
    objects = {"bucket/k": content(SIZE), "bucket/other": content(SIZE, version=1)}
    async with FaultServer({**objects, "credentials": keys_of(1, seconds=seconds)}) as server:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{server.url}/credentials")
        service = S3(bucket="bucket", endpoint_url=server.url, region=server.region, proxies={})
        async with Operator(service, **{"concurrency": 8, **options}).layer(NO_PAUSES) as operator:
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
        assert first.range == "bytes=0-16777215"
        assert refused.range == resumed.range == f"bytes={CUT}-{SIZE - 1}"
        assert resumed.headers["if-match"]
        assert store.renewals == 2


@checks("reliability:S51")
async def test_keys_that_end_between_the_parallel_requests_of_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the n-th request on they are refused: new ones are asked for once, and every request is signed with them."""
    block_bytes = SIZE // 8
    for number in chosen(quick=(0, 1, 4), full=range(7)):
        async with renewing(monkeypatch, block_bytes=block_bytes) as store:
            await store.read("other")
            before = len(store.gets())
            store.server.objects["credentials"] = keys_of(2)
            ended = Rule(
                fault=EXPIRED,
                matches=lambda request, before=before, number=number, store=store: (  # type: ignore[misc]
                    len(store.gets()) > before + number and signed_with(1)(request)
                ),
                times=None,
            )
            store.server.add(ended)
            with in_case(number=number):
                await store.read()
                assert store.renewals == 2
                sent = store.gets()[before:]
                assert {request.range for request in sent if signed_with(2)(request)} >= {
                    request.range for request in sent[number:] if signed_with(1)(request)
                }


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
    """Keys are asked for once; the refusal is temporary, for the role may have others soon."""
    async with renewing(monkeypatch) as store:
        store.server.add(Rule(fault=EXPIRED, key="bucket/k", times=None))
        with pytest.raises(CredentialsExpired) as caught:
            await store.operator.read("k")
        assert caught.value.status == "persistent"
        assert len(store.gets()) <= 8
        assert store.renewals <= 2


@checks("reliability:S52")
@pytest.mark.parametrize("seconds", [SOON_SECONDS, URGENT_SECONDS])
async def test_an_endpoint_that_hangs_delays_no_other(monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    """Keys that end soon still sign, while new ones are asked for; with keys that are about to end a read waits.

    It waits as long as its caller allows. Bodies that arrive go on arriving.
    """
    async with renewing(monkeypatch, seconds=seconds) as store:
        store.server.add(Rule(fault=Fault(hang_after_bytes=CUT), key="bucket/k"))
        streaming = asyncio.create_task(store.read())
        async with asyncio.timeout(10):
            while not store.gets():  # noqa: ASYNC110 - the number of requests before it depends on the provider
                await asyncio.sleep(0)
        store.server.add(Rule(fault=Fault(hang_before_head=True), key="credentials", times=None))
        seconds_later(monkeypatch, LOOK_SECONDS)
        asked = store.renewals
        if seconds == SOON_SECONDS:
            await store.read("other")
            async with asyncio.timeout(10):
                while store.renewals == asked:  # noqa: ASYNC110 - as above
                    await asyncio.sleep(0)
            assert signed_with(1)(store.gets()[-1])
        else:
            with pytest.raises(TimedOut):
                await store.operator.read("other", timeout_seconds=BOUND_SECONDS)
            assert all(request.key != "bucket/other" for request in store.server.requests)
        assert not streaming.done()
        store.server.objects["credentials"] = keys_of(2)
        store.server.release()
        await streaming
        await store.read("other")


@checks("reliability:S53")
async def test_a_request_is_signed_when_it_is_sent(serve_s3: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when it began to wait for a slot."""
    now = dt.datetime.now(dt.UTC)
    async with serve_s3(once(Fault(hang_before_head=True))) as scripted:
        scripted.server.objects["bucket/other"] = b"other"
        holding = asyncio.create_task(scripted.operator.read("other"))
        await scripted.server.wait_for_requests(1)
        queued = asyncio.create_task(scripted.read())
        for _ in range(100):
            await asyncio.sleep(0)
        later = now + dt.timedelta(minutes=20)
        monkeypatch.setattr(time, "time", lambda: later.timestamp())
        scripted.server.release()
        assert await holding == b"other"
        await queued
        request = scripted.server.requests[1]
        sent = request.target + request.headers.get("x-amz-date", "")
        assert later.strftime("%Y%m%dT%H%M%SZ") in sent
        monkeypatch.undo()


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


def seconds_later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Set the loop's clock forward by ``seconds``."""
    loop = asyncio.get_running_loop()
    now = loop.time
    monkeypatch.setattr(loop, "time", lambda: now() + seconds)


@checks("reliability:S51")
async def test_keys_that_stay_expired_cost_two_requests_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Static keys that ended overnight: each read is signed again once, however often a minute has passed."""
    async with with_variables(monkeypatch) as store:
        store.server.add(Rule(fault=EXPIRED, key="bucket/k", times=None))
        await refused(store, 30)
        seconds_later(monkeypatch, RENEW_SECONDS_MIN)
        await refused(store, 30)
        assert len(store.gets()) == 120
        assert all(signed_with(1)(request) for request in store.gets())


@checks("reliability:S51")
async def test_new_keys_of_the_environment_are_taken_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store calls the old ones expired; its responses to the new ones vary."""
    async with with_variables(monkeypatch) as store:
        store.server.add(Rule(fault=EXPIRED, key="bucket/k", times=None))
        assert not await store.operator.exists("other")
        for number in range(2, 6):
            monkeypatch.setenv("AWS_SESSION_TOKEN", f"token{number}")
            await refused(store, 3)
        assert {number for number in range(1, 6) if any(map(signed_with(number), store.gets()))} == {1, 2}
        seconds_later(monkeypatch, RENEW_SECONDS_MIN)
        await refused(store, 3)
        assert any(map(signed_with(5), store.gets()))


@checks("reliability:S51")
async def test_a_stat_with_expired_keys_looks_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The response to a HEAD has no body that says why it was refused; what can be found again is looked for once."""
    async with with_variables(monkeypatch) as store:
        refusal = Fault(status=400, body=b"")
        store.server.add(Rule(fault=refusal, key="bucket/k", matches=signed_with(1), times=None))
        with pytest.raises(PermissionDenied):
            await store.operator.stat("k")
        seconds_later(monkeypatch, RENEW_SECONDS_MIN)
        monkeypatch.setenv("AWS_SESSION_TOKEN", "token2")
        assert (await store.operator.stat("k")).size == SIZE


@checks("reliability:S51")
async def test_every_verb_is_signed_with_the_renewed_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy and a part of an upload, which were refused for the old ones; asked for once."""
    async with renewing(monkeypatch) as store:
        accessor = store.operator.accessor()
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: accessor.copy(CopyRequest(path="k", target="copy")),
            lambda: accessor.begin_upload(WriteRequest(path="copy")),
            lambda: accessor.delete(DeleteRequest(path="copy", paths=("copy", "other"))),
        ]
        await store.read()
        store.server.add(Rule(fault=EXPIRED, matches=signed_with(1), times=None))
        store.server.objects["credentials"] = keys_of(2)
        for call in calls:
            with pytest.raises(Error):  # Of the server, which knows none of them.
                await call()
            assert signed_with(2)(store.gets()[-1])
        assert store.renewals == 2


def write_keys(number: int) -> None:
    """A sidecar replaces the keys in the file of credentials."""
    place = Path(os.environ["AWS_SHARED_CREDENTIALS_FILE"])
    fresh = place.with_suffix(".new")
    fresh.write_text(
        f"[default]\naws_access_key_id = k\naws_secret_access_key = s\naws_session_token = token{number}\n"
    )
    fresh.replace(place)


@checks("reliability:S51")
async def test_a_file_of_keys_is_read_again_as_soon_as_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys end a moment before it is rewritten: within the minute its time decides, and the error is temporary."""
    write_keys(1)
    async with FaultServer({"bucket/k": content(SIZE)}) as server:
        service = S3(bucket="bucket", endpoint_url=server.url, region=server.region, proxies={})
        server.add(Rule(fault=EXPIRED, matches=lambda request: not signed_with(2)(request), times=None))
        async with Operator(service).layer(NO_PAUSES) as operator:
            with pytest.raises(CredentialsExpired) as caught:
                await operator.read("k")
            assert caught.value.status == "persistent"
            assert caught.value.context["attempts"] == 4
            write_keys(2)
            assert_same_bytes(await operator.read("k"), server.objects["bucket/k"])


@checks("reliability:S51")
async def test_expired_keys_use_up_no_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many reads at once wait for other keys, each with all of its attempts."""
    async with renewing(monkeypatch) as store:
        store.server.add(Rule(fault=EXPIRED, key="bucket/k", times=None))
        reads = [store.operator.read("k") for _ in range(100)]
        refusals = await asyncio.gather(*reads, return_exceptions=True)
        assert {type(error) for error in refusals} == {CredentialsExpired}

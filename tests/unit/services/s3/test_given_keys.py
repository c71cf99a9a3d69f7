"""Keys from a session or a function that the caller gives: in each of their forms, renewed, hidden, left behind."""

import asyncio
import pickle
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import aiobotocore.session
import boto3
import botocore.session
import pytest
from botocore.credentials import Credentials, RefreshableCredentials
from obstore.auth.boto3 import Boto3CredentialProvider

import aioprefetch as ap
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.s3 import S3
from aioprefetch.services.s3.accessor import S3Accessor
from aioprefetch.services.s3.key_source import LOOK_SECONDS
from aioprefetch.testing import FaultServer
from aioprefetch.testing.faults import Fault, ReceivedRequest, Rule
from aioprefetch.values import ReadRequest
from tests.profile import chosen, each_of
from tests.reliability.scripted import NO_PAUSES
from tests.unit.services.s3.stores import signed_by

DATA = b"the object"
SECRET = "a-secret-never-shown"
OBJECTS = {"bucket/k": DATA}


def function_of_a_module() -> dict[str, str]:
    """Keys in obstore's words."""
    return {"access_key_id": "FUNCTION", "secret_access_key": SECRET, "token": "t"}


async def asynchronous_function() -> dict[str, Any]:
    """Keys as STS responds."""
    await asyncio.sleep(0)
    keys = {"AccessKeyId": "STS", "SecretAccessKey": SECRET, "SessionToken": "t", "Expiration": "2099-01-01T00:00:00Z"}
    return {"Credentials": keys}


class AsynchronousProvider:
    """A provider as obstore has them, with a region."""

    config: ClassVar[dict[str, str]] = {"region": "eu-west-3"}

    async def __call__(self) -> dict[str, Any]:
        """Keys that end."""
        return {**function_of_a_module(), "access_key_id": "PROVIDER", "expires_at": in_seconds(3600)}


def in_seconds(seconds: float) -> datetime:
    """A time from now."""
    return datetime.now(UTC) + timedelta(seconds=seconds)


def of_botocore() -> Any:
    """A session of botocore."""
    session = botocore.session.Session()
    session.set_credentials("BOTOCORE", SECRET, "t")
    session.set_config_variable("region", "eu-west-2")
    return session


def of_aiobotocore() -> Any:
    """A session of aiobotocore, whose calls are asynchronous."""
    session = aiobotocore.session.AioSession()
    session.set_credentials("AIOBOTOCORE", SECRET, "t")
    return session


GIVEN: dict[str, tuple[Callable[[], Any], str, str]] = {
    "boto3": (lambda: boto3.Session("BOTO3", SECRET, "t", region_name="eu-central-1"), "BOTO3", "eu-central-1"),
    "botocore": (of_botocore, "BOTOCORE", "eu-west-2"),
    "aiobotocore": (of_aiobotocore, "AIOBOTOCORE", "us-east-1"),
    "credentials": (lambda: Credentials("CREDENTIALS", SECRET, "t"), "CREDENTIALS", "us-east-1"),
    "a provider of obstore": (
        lambda: Boto3CredentialProvider(boto3.Session("OBSTORE", SECRET, "t", region_name="eu-west-1")),
        *("OBSTORE", "eu-west-1"),
    ),
    "a function": (lambda: function_of_a_module, "FUNCTION", "us-east-1"),
    "a coroutine function": (lambda: asynchronous_function, "STS", "us-east-1"),
    "an asynchronous object": (AsynchronousProvider, "PROVIDER", "eu-west-3"),
    "a function of credentials": (lambda: lambda: Credentials("BOTH", SECRET, "t"), "BOTH", "us-east-1"),
    "a function of a coroutine": (lambda: lambda: asynchronous_function(), "STS", "us-east-1"),
}


@each_of("name", GIVEN)
async def test_keys_of_every_form_sign(name: str) -> None:
    """With their token, in the region of the session."""
    make, key_id, region = GIVEN[name]
    async with FaultServer(OBJECTS) as server:
        op = ap.Operator.from_uri("s3://bucket", endpoint_url=server.url, proxies={}, credentials=make())
        async with op:
            assert await op.read("k") == DATA
            assert (await op.stat("k")).size == len(DATA)
        for request in server.requests:
            assert signed_by(request).split("/")[::2] == [key_id, region, "aws4_request"]
            assert request.headers["x-amz-security-token"] == "t"


async def test_a_region_of_its_own_comes_first() -> None:
    session = boto3.Session("BOTO3", SECRET, region_name="eu-central-1")
    assert ap.Operator.from_uri("s3://bucket", region="eu-north-1", credentials=session).info.region == "eu-north-1"


@each_of("given", ["AKIA-TEXT", b"bytes", 5, {"access_key_id": "a"}, ("a", "b"), dict, object()])
def test_anything_else_is_refused_and_not_shown(given: Any) -> None:
    with pytest.raises(ap.ConfigInvalid, match="must be a session") as caught:
        ap.Operator.from_uri("s3://bucket", credentials=given)
    assert str(given) not in str(caught.value)


@pytest.mark.parametrize(
    "beside", [{"access_key_id": "a", "secret_access_key": "b"}, {"anonymous": True}], ids=["keys", "anonymous"]
)
def test_one_identity_is_enough(beside: dict[str, Any]) -> None:
    with pytest.raises(ap.ConfigInvalid, match="give one of them"):
        ap.Operator.from_uri("s3://bucket", credentials=function_of_a_module, **beside)


async def test_variables_of_the_environment_do_not_mix_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AIOPREFETCH_ACCESS_KEY_ID", "AIOPREFETCH_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"):
        monkeypatch.setenv(name, "OTHER")
    async with FaultServer(OBJECTS) as server:
        op = ap.Operator.from_uri("s3://bucket", endpoint_url=server.url, proxies={}, credentials=function_of_a_module)
        async with op:
            assert await op.read("k") == DATA
        assert signed_by(server.requests[0]).startswith("FUNCTION/")


class Failing:
    """A function that fails or returns no keys."""

    def __init__(self, result: Any) -> None:
        self.result = result
        self.calls = 0

    def __call__(self) -> Any:
        """Raise an error, return anything else."""
        self.calls += 1
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


@pytest.mark.parametrize(
    ("result", "kind", "said"),
    [
        (None, ap.PermissionDenied, "has none"),
        (ValueError("no such role"), ap.PermissionDenied, "raised ValueError"),
        ({}, ap.ConfigInvalid, "without access_key_id"),
        ({"access_key_id": "A", "secret_key": 5}, ap.ConfigInvalid, "without secret_access_key"),
        ({**function_of_a_module(), "token": 5}, ap.ConfigInvalid, "a token that is a int"),
        ({**function_of_a_module(), "expires_at": "soon"}, ap.ConfigInvalid, "must be a datetime with a time zone"),
        ({**function_of_a_module(), "expires_at": datetime(2099, 1, 1)}, ap.ConfigInvalid, "time zone"),
        ({**function_of_a_module(), "access_key_id": "A\n"}, ap.ConfigInvalid, "no header can carry"),
        ("text", ap.ConfigInvalid, "a str without"),
    ],
    ids=str,
)
async def test_what_is_wrong_with_the_keys_is_said(result: Any, kind: type[ap.Error], said: str) -> None:
    """Once, and without showing them."""
    given = Failing(result)
    async with FaultServer(OBJECTS) as server:
        op = ap.Operator.from_uri("s3://bucket", endpoint_url=server.url, proxies={}, credentials=given)
        async with op:
            with pytest.raises(kind, match=said) as caught:
                await op.read("k")
        assert (server.count(), given.calls) == (0, 1)
    assert SECRET not in repr(caught.value)
    assert (caught.value.operation, caught.value.path) == ("read", "k")


async def test_a_provider_that_is_out_of_reach_is_asked_again() -> None:
    """By Retry, as a store is."""
    given = Failing(ConnectionResetError("the vault is away"))
    async with FaultServer(OBJECTS) as server:
        op = ap.Operator.from_uri("s3://bucket", endpoint_url=server.url, proxies={}, credentials=given)
        async with op.layer(NO_PAUSES) as quick:
            with pytest.raises(ap.PermissionDenied, match="raised ConnectionResetError") as caught:
                await quick.read("k")
            assert given.calls == NO_PAUSES.attempts_max
            assert "the vault is away" in str(caught.value.__cause__)
            given.result = function_of_a_module()
            assert await quick.read("k") == DATA


async def test_a_store_that_calls_keys_expired_gets_new_ones() -> None:
    """Of a read at once, in the same attempt; and a hundred reads ask the provider once."""
    calls: list[int] = []

    async def numbered() -> dict[str, str]:
        calls.append(1)
        return {**function_of_a_module(), "access_key_id": f"NUMBER{len(calls)}"}

    def is_first(request: ReceivedRequest) -> bool:
        return len(calls) == 1 and server.count() > 100

    expired = Fault(status=400, code="ExpiredToken")
    async with FaultServer(OBJECTS, [Rule(fault=expired, matches=is_first, times=None)]) as server:
        op = ap.Operator.from_uri("s3://bucket", endpoint_url=server.url, proxies={}, credentials=numbered)
        async with op:
            await asyncio.gather(*(op.read("k") for _ in range(100)))
            assert len(calls) == 1
            assert await op.read("k") == DATA
            assert len(calls) == 2
            assert [signed_by(request)[:8] for request in server.requests[-2:]] == ["NUMBER1/", "NUMBER2/"]


@pytest.mark.virtual
@pytest.mark.parametrize(("life_seconds", "asked"), [(3600.0, 1), (-1.0, 3), (300.0, 1), (None, 1)])
async def test_keys_that_end_are_asked_for_again(life_seconds: float | None, asked: int, runtime: Runtime) -> None:
    """When the runtime next looks, and not before half of their life is over."""
    calls: list[int] = []

    async def ending() -> dict[str, Any]:
        calls.append(1)
        return {**function_of_a_module(), "expires_at": life_seconds and in_seconds(life_seconds)}

    accessor = S3(bucket="bucket", credentials=ending).build(runtime)
    assert isinstance(accessor, S3Accessor)
    for _ in range(3):
        assert (await accessor.live.keys.get(ReadRequest(path="k"))).key_id == "FUNCTION"
        await asyncio.sleep(2 * LOOK_SECONDS)
    assert len(calls) == asked


async def test_credentials_that_refresh_themselves_do_so() -> None:
    """Botocore's own rules decide when."""
    made: list[int] = []

    def refreshed() -> dict[str, str]:
        made.append(1)
        end = in_seconds(1 if len(made) == 1 else 7200).isoformat()
        return {"access_key": f"REFRESHED{len(made)}", "secret_key": SECRET, "token": "t", "expiry_time": end}

    given = RefreshableCredentials.create_from_metadata(refreshed(), refreshed, "test")
    async with FaultServer(OBJECTS) as server:
        op = ap.Operator.from_uri("s3://bucket", endpoint_url=server.url, proxies={}, credentials=given)
        async with op:
            assert await op.read("k") == DATA
        assert signed_by(server.requests[0]).startswith("REFRESHED2/")


async def test_a_provider_that_hangs_is_given_up_in_time() -> None:
    """With the time-outs of a request; the next one asks again."""
    calls: list[int] = []

    async def hanging() -> dict[str, str]:
        calls.append(1)
        if len(calls) == 1:
            await asyncio.Event().wait()
        return function_of_a_module()

    async with FaultServer(OBJECTS) as server:
        times = {"connect_timeout_seconds": 0.05, "read_timeout_seconds": 0.05}
        service = S3(bucket="bucket", endpoint_url=server.url, proxies={}, credentials=hanging, **times)  # type: ignore[arg-type]
        async with ap.Operator.bare(service) as op:
            with pytest.raises(ap.TimedOut, match="credentials were not there"):
                await op.read("k")
        async with ap.Operator.bare(service) as op:
            assert await op.read("k") == DATA


async def test_a_caller_that_gives_up_leaves_the_others_their_keys() -> None:
    """At any step of the first read."""
    for steps in range(0, chosen(quick=24, full=60), chosen(quick=3, full=1)):
        async with FaultServer(OBJECTS) as server:
            service = S3(bucket="bucket", endpoint_url=server.url, proxies={}, credentials=asynchronous_function)
            async with ap.Operator.bare(service) as op:
                first, second = (asyncio.ensure_future(op.read("k")) for _ in range(2))
                for _ in range(steps):
                    await asyncio.sleep(0)
                first.cancel()
                assert await second == DATA


async def test_files_by_url_of_one_session_share_what_is_live() -> None:
    """A session is asked once for all of them, and that of another caller by itself."""
    first, second = Failing(function_of_a_module()), Failing(function_of_a_module())

    def read_all(url: str) -> None:
        for given in (first, first, second):
            with ap.sync.open("s3://bucket/k", endpoint_url=url, proxies={}, credentials=given) as file:
                assert file.read() == DATA

    async with FaultServer(OBJECTS) as server:
        await asyncio.to_thread(read_all, server.url)
    assert (first.calls, second.calls) == (1, 1)


def test_nothing_shows_what_was_given() -> None:
    session = boto3.Session("BOTO3", SECRET)
    op = ap.Operator.from_uri("s3://bucket", credentials=session)
    for text in (repr(op), repr(op.service), str(op.info), pickle.dumps(op).decode("latin-1")):
        assert SECRET not in text
        assert "BOTO3" not in text


def test_two_of_one_session_share_and_others_do_not() -> None:
    """The same object stands for one principal, and bytes of two are kept apart."""
    one, other = boto3.Session("A", SECRET), boto3.Session("A", SECRET)
    first, second, third = (ap.services.S3(bucket="bucket", credentials=given) for given in (one, one, other))
    assert (first, first.info) == (second, second.info)
    assert first != third
    assert first.info.principal != third.info.principal


async def test_a_pickle_finds_the_session_in_this_process() -> None:
    async with FaultServer(OBJECTS) as server:
        session = boto3.Session("BOTO3", SECRET)
        op = ap.Operator.from_uri("s3://bucket", endpoint_url=server.url, proxies={}, credentials=session)
        copy = pickle.loads(pickle.dumps(op))
        assert copy.info == op.info
        async with copy:
            assert await copy.read("k") == DATA
        assert signed_by(server.requests[0]).startswith("BOTO3/")


IN_ANOTHER_PROCESS = """
import asyncio, pickle, sys
async def main():
    op = pickle.loads(bytes.fromhex(sys.argv[1]))
    async with op:
        try:
            print(await op.read("k"))
        except Exception as error:
            print(error)
asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (function_of_a_module, "FUNCTION/"),
        (
            boto3.Session("BOTO3", SECRET),
            "read 'k': credentials= stayed in the process",
        ),
    ],
    ids=["function", "session"],
)
async def test_a_pickle_in_another_process(given: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function of a module is found by its name. Anything else is missed, and keys of that process are not used."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ANOTHER")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    async with FaultServer(OBJECTS) as server:
        op = ap.Operator.from_uri("s3://bucket", endpoint_url=server.url, proxies={}, credentials=given)
        command = [sys.executable, "-c", IN_ANOTHER_PROCESS, pickle.dumps(op).hex()]
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        output, _ = await process.communicate()
        signed = signed_by(server.requests[0]) if server.requests else ""
        assert said in output.decode() + signed

"""The live parts: made once, at the first call; their credentials; closed with their runtime."""

import asyncio
import gc
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

import pytest

from aioprefetch.accessor.sink import CollectSink
from aioprefetch.errors import Closed, ConfigInvalid, Error, NotFound, PermissionDenied
from aioprefetch.operator.operator import Operator
from aioprefetch.runtime.options import RuntimeOptions
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.s3 import S3
from aioprefetch.testing import Fault, FaultServer, Rule
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import ReadRequest, StatRequest
from tests.unit.services.s3.stores import Store, open_store, signed_by

OBJECTS = {"bucket/k": b"the object"}
KEYS: dict[str, Any] = {"access_key_id": "testing", "secret_access_key": "testing"}


async def test_building_does_nothing(runtime: Runtime) -> None:
    """No import, no file, no connection before the first request."""
    S3(bucket="bucket", profile="does-not-exist").build(runtime)
    assert runtime.supervisor._main is None


async def test_one_configuration_for_all(runtime: Runtime) -> None:
    """Concurrent first callers share one; so do accessors of equal recipes in one runtime."""
    async with FaultServer(OBJECTS) as server:
        first, second = (open_store(server, "bucket", runtime) for _ in range(2))
        assert first.live is second.live
        opened = await asyncio.gather(*(first.live.opened(StatRequest(path="k")) for _ in range(10)))
        assert len({id(requests) for requests in opened}) == 1


@pytest.mark.parametrize("signing", ["presigned", "header"])
async def test_the_first_request_blocks_nothing(
    no_blocking_calls: Callable[[], AbstractContextManager[object]], signing: Literal["presigned", "header"]
) -> None:
    """Models, certificates and configuration files are read in a thread."""
    async with FaultServer(OBJECTS) as server:
        with no_blocking_calls():
            service = S3(bucket="bucket", endpoint_url=server.url, signing=signing, **KEYS)
            async with Operator(service) as operator:
                assert await operator.read("k") == b"the object"
                assert await operator.exists("k")


async def test_closing_ends_a_provider_that_hangs(store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that waits for credentials ends with the operator."""
    async with FaultServer({}, [Rule(fault=Fault(hang_before_head=True), times=None)]) as server:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{server.url}/credentials")
        opened = store(server, access_key_id=None, secret_access_key=None)
        read = asyncio.create_task(opened.stat("k"))
        await server.wait_for_requests(1)
        await opened.runtime.aclose()
        with pytest.raises(Closed):
            await read
        await server.wait_until_idle()


async def test_a_cancelled_first_caller_leaves_the_keys_to_the_others(store: Callable[..., Store]) -> None:
    """The other waiters still get them."""
    async with FaultServer(OBJECTS) as server:
        opened = store(server)
        first, second = (asyncio.create_task(opened.get("k")) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert await second == b"the object"


async def test_a_failure_is_not_kept(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every waiter hears of it with its own path, and the next caller tries again."""
    async with FaultServer(OBJECTS) as server:
        keys = {"access_key_id": "env:TEST_KEY_ID", "secret_access_key": "env:TEST_KEY"}
        opened = open_store(server, "bucket", runtime, **keys)
        results = await asyncio.gather(opened.get("a"), opened.get("b"), return_exceptions=True)
        for path, error in zip("ab", results, strict=True):
            assert isinstance(error, ConfigInvalid)
            assert (error.operation, error.path) == ("read", path)
            assert "'env:TEST_KEY_ID', but that environment variable is not set" in str(error)
        monkeypatch.setenv("TEST_KEY_ID", "id")
        monkeypatch.setenv("TEST_KEY", "key")
        with pytest.raises(PermissionDenied, match="make a new Operator"):
            await opened.get("k")  # It has no identity, under which caches could keep its bytes.
        again = open_store(server, "bucket", runtime, **keys)
        assert await again.get("k") == b"the object"
        assert signed_by(server.requests[0]).startswith("id/")


async def test_closing_while_it_is_made(runtime: Runtime) -> None:
    """Every wait ends, and a later call is refused."""
    async with FaultServer(OBJECTS) as server:
        opened = open_store(server, "bucket", runtime)
        read = asyncio.create_task(opened.get("k"))
        await asyncio.sleep(0)
        await runtime.aclose()
        with pytest.raises(Closed):
            await read
        with pytest.raises(Closed, match="the operator is closed"):
            await opened.get("k")
        assert server.requests == []


async def test_closing_closes_the_connections() -> None:
    """The server sees it; a second closing does nothing."""
    async with FaultServer(OBJECTS) as server:
        runtime = Runtime(RuntimeOptions())
        opened = open_store(server, "bucket", runtime)
        await opened.get("k")
        assert server.connections_open == 1
        await opened.accessor.aclose()  # the connections belong to the runtime
        assert await opened.get("k") == b"the object"
        await runtime.aclose()
        await runtime.aclose()
        await server.wait_until_idle()


@checks("reliability:C20")
@pytest.mark.parametrize("close", [True, False])
def test_two_loops_one_after_the_other(s3_server: Any, random_name: Callable[[], str], close: bool) -> None:
    """One recipe in two runs of asyncio; also without closing, nothing is left open and nothing warns."""
    service = S3(bucket=random_name(), endpoint_url=s3_server.endpoint_url, **KEYS)

    async def run() -> None:
        runtime = Runtime(RuntimeOptions())
        with pytest.raises(NotFound):
            await service.build(runtime).stat(StatRequest(path="k"))
        if close:
            await runtime.aclose()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            asyncio.run(run())
            gc.collect()


def write_profile(tmp_path: Path) -> None:
    """A configuration with one profile; the environment of the tests points there."""
    (tmp_path / "config").write_text("[profile work]\nregion = eu-west-3\n")
    (tmp_path / "credentials").write_text("[work]\naws_access_key_id = FROMPROFILE\naws_secret_access_key = x\n")


async def test_identities_that_botocore_finds(
    store: Callable[..., Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A profile with its region, whose keys yield to those of the options.

    Then variables of the environment, with the usual region for a store of one's own.
    """
    write_profile(tmp_path)
    no_keys = {"access_key_id": None, "secret_access_key": None}
    async with FaultServer(OBJECTS) as server:
        await store(server, profile="work").get("k")
        assert signed_by(server.requests[-1]).startswith("FROMPROFILE/")
        assert "/eu-west-3/s3/" in signed_by(server.requests[-1])
        await store(server, profile="work", access_key_id="OWN", secret_access_key="x").get("k")
        assert signed_by(server.requests[-1]).startswith("OWN/")
        assert "/eu-west-3/s3/" in signed_by(server.requests[-1])
        with pytest.raises(ConfigInvalid, match=r"profile= and AWS_PROFILE.*\(play\)"):
            await store(server, profile="play").get("k")
        with pytest.raises(PermissionDenied, match="no credentials were found"):
            await store(server, **no_keys).get("k")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "FROMENV")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
        (tmp_path / "config").unlink()
        await store(server, **no_keys).get("k")
        assert signed_by(server.requests[-1]).startswith("FROMENV/")
        assert "/us-east-1/s3/" in signed_by(server.requests[-1])


async def test_an_endpoint_of_the_environment_is_checked_too(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain http to another machine is refused wherever it was configured."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://store.example")
    accessor = S3(bucket="bucket", **KEYS).build(runtime)
    with pytest.raises(ConfigInvalid, match="without encryption"):
        await accessor.stat(StatRequest(path="k"))


async def test_options_that_show_only_when_they_are_used(store: Callable[..., Store]) -> None:
    """A file of certificates that is not there, a variable that is not set."""
    async with FaultServer(OBJECTS) as server:
        for options, said in (
            ({"ca_bundle": "/does/not/exist"}, "ca_bundle='/does/not/exist' is not a file"),
            ({"proxies": {"http": "env:NO_SUCH_PROXY"}}, "proxies.'http'. is 'env:NO_SUCH_PROXY'"),
            ({"sse_customer_key": "env:NO_SUCH_KEY"}, "sse_customer_key is 'env:NO_SUCH_KEY'"),
        ):
            with pytest.raises(ConfigInvalid, match=said):
                await store(server, **options).get("k")
        assert server.requests == []


async def test_a_proxy_is_used(store: Callable[..., Store]) -> None:
    """The request goes to it, with the store's address."""

    class Elsewhere:
        endpoint_url = "http://127.0.0.1:1"
        access_key_id = secret_access_key = "testing"

    async with FaultServer({}) as proxy:
        with pytest.raises(Error):
            await store(Elsewhere(), proxies={"http": proxy.url}).get("k")
        assert proxy.requests[0].target == "http://127.0.0.1:1/bucket/k"


PROGRAM = """
import asyncio, pickle
from aioprefetch.accessor.sink import CollectSink
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.options import RuntimeOptions
from aioprefetch.values import ReadRequest

async def main():
    runtime = Runtime(RuntimeOptions())
    try:
        await pickle.loads({pickled!r}).build(runtime).read(ReadRequest(path="k"), CollectSink())
    except Exception as error:
        print(error)
    await runtime.aclose()

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {},
            "access_key_id was given as text, and stayed in the process that pickled this operator: give it as 'env:",
        ),
        ({"access_key_id": "env:NAMED"}, "secret_access_key was given as text"),
        (
            {"access_key_id": "env:NAMED", "secret_access_key": "env:NAMED", "session_token": "canary"},
            "session_token was",
        ),
        (
            {"access_key_id": "env:NOT_SET", "secret_access_key": "env:NAMED"},
            "access_key_id is 'env:NOT_SET', but that",
        ),
        ({"fallback": "ambient"}, "no connection to"),  # Signed with the keys of the variables; there is no server.
        ({"sse_customer_key": b"canary-sse-c-key-of-32-bytes!!!!"}, "sse_customer_key was given as text"),
        ({"proxies": {"http": "http://u:canary@127.0.0.1:1"}}, "proxies['http'] was given as text"),
    ],
)
def test_in_another_process(options: dict[str, Any], said: str) -> None:
    """What stayed behind is named, with what to do; nothing is sent under another identity by mistake."""
    service = S3(bucket="bucket", endpoint_url="http://127.0.0.1:1", **KEYS | options)
    environment = {"AWS_ACCESS_KEY_ID": "OTHER", "AWS_SECRET_ACCESS_KEY": "s", "HOME": "/nowhere", "NAMED": "canary"}
    program = PROGRAM.format(pickled=pickle.dumps(service))
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert said in run.stdout
    assert "canary" not in run.stdout


async def test_literal_keys_survive_a_pickle_in_this_process(store: Callable[..., Store]) -> None:
    """The copy signs with them."""
    async with FaultServer(OBJECTS) as server:
        opened = store(server)
        again = pickle.loads(pickle.dumps(opened.service)).build(opened.runtime)
        await again.read(ReadRequest(path="k"), sink := CollectSink())
        assert sink.to_bytes() == b"the object"
        assert signed_by(server.requests[0]).startswith(f"{server.access_key_id}/")

"""The first request of a process: what is loaded for it, and what that costs the event loop."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

PROGRAM = """
import asyncio, os, sys, threading
import aioprefetch as ap
from aioprefetch.testing import Fault, FaultServer, Rule
from tests.probes.loop_lag import LoopLag

ENTRY = b"<Contents><Key>k</Key><Size>10</Size></Contents>"
PAGE = b"<ListBucketResult><Name>b</Name><KeyCount>1</KeyCount>" + ENTRY + b"</ListBucketResult>"
KEYS = b'{"AccessKeyId": "A", "SecretAccessKey": "B", "Token": "T", "Expiration": "2099-01-01T00:00:00Z"}'
main, imported = threading.get_ident(), []
given, calls = sys.argv[1], sys.argv[2:]
HEAVY = ("botocore", "aiobotocore", "aiohttp")

def heard(event, arguments):
    if event == "import" and threading.get_ident() == main:
        imported.append(arguments[0])

def serve(ready, url):
    async def serving():
        is_list = lambda request: "list-type" in request.target
        page = Rule(fault=Fault(status=200, body=PAGE), matches=is_list, times=None)
        written = Rule(fault=Fault(status=200, body=b"", headers={"ETag": '"e"'}), method="PUT", times=None)
        gone = Rule(fault=Fault(status=204), method="DELETE", times=None)
        objects = {"bucket/k": b"the object", "credentials": KEYS}
        async with FaultServer(objects, [page, written, gone]) as server:
            url.append(server.url)
            ready.set()
            await asyncio.Event().wait()
    asyncio.run(serving())

async def first(url):
    options = {"endpoint_url": url}
    if given == "options":
        options |= {"access_key_id": "AKIA", "secret_access_key": "env:TEST_SECRET", "region": "r-1"}
    if given == "container":
        os.environ["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = url + "/credentials"
    async with ap.Operator.from_uri("s3://bucket", **options) as operator:
        for call in calls:
            if call == "list":
                assert [entry.path async for entry in operator.list("")] == ["k"]
            elif call == "write":
                await operator.write("k", b"x")
            elif call == "delete":
                await operator.delete("k")
            else:
                await getattr(operator, call)("k")
    loaded = [name for name in HEAVY if name in sys.modules]
    assert loaded == (list(HEAVY) if given == "container" else []), loaded
    on_loop = [name for name in imported if name.startswith(("botocore", "aiobotocore", "aiohttp."))]
    assert not on_loop, on_loop

ready, url = threading.Event(), []
threading.Thread(target=serve, args=(ready, url), daemon=True).start()
ready.wait()
sys.addaudithook(heard)
with LoopLag(0.2) as lag:  # botocore takes longer to load, also where nothing else runs
    asyncio.run(first(url[0]))
assert not lag.held, "".join(map(str, lag.held))
"""
CREDENTIALS = "[default]\naws_access_key_id = A\naws_secret_access_key = B\n[work]\naws_access_key_id = C\n"


@pytest.fixture(scope="module")
def compiled() -> Mapping[str, str]:
    """An environment in which the modules are compiled, as a package is when it has been installed."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    load = "import aioprefetch.testing.fault_server, tests.probes.loop_lag, aioprefetch.services.s3.accessor"
    subprocess.run([sys.executable, "-c", load], env=variables, check=True)
    return {name: value for name, value in variables.items() if not name.startswith("AWS_")}


@pytest.mark.parametrize("given", ["options", "variables", "files", "container"])
def test_keys_in_plain_sight_load_neither_botocore_nor_aiohttp(
    given: str, tmp_path: Path, compiled: Mapping[str, str]
) -> None:
    """For reads, metadata, listings, puts and deletes; keys that a provider has are asked for beside the loop.

    No step of the loop takes long: other tasks, time-outs and watchdogs go on while botocore is imported.
    """
    (tmp_path / "credentials").write_text(CREDENTIALS if given == "files" else "")
    environment = {
        **compiled,
        "HOME": str(tmp_path),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_EC2_METADATA_DISABLED": "true",
        "TEST_SECRET": "secret",
    }
    if given == "variables":
        environment |= {"AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": "B", "AWS_SESSION_TOKEN": "T"}
    calls = ["read", "stat", "list", "write", "delete", "presign"] if given == "options" else ["read"]
    command = [sys.executable, "-c", PROGRAM, given, *calls]
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert run.returncode == 0, run.stderr

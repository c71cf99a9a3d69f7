"""The first request of a process: what has to be imported, read and made for it does not stop the event loop."""

import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

PROGRAM = """
import asyncio, sys, threading
import aioprefetch as ap
from aioprefetch.testing import Fault, FaultServer, LoopLag, Rule

ENTRY = b"<Contents><Key>k</Key><Size>10</Size></Contents>"
PAGE = b"<ListBucketResult><Name>b</Name><KeyCount>1</KeyCount>" + ENTRY + b"</ListBucketResult>"
main, imported = threading.get_ident(), []

def heard(event, arguments):
    if event == "import" and threading.get_ident() == main:
        imported.append(arguments[0])

def serve(ready, url):
    async def serving():
        is_list = lambda request: "list-type" in request.target
        page = Rule(fault=Fault(status=200, body=PAGE), matches=is_list, times=None)
        async with FaultServer({"bucket/k": b"the object"}, [page]) as server:
            url.append(server.url)
            ready.set()
            await asyncio.Event().wait()
    asyncio.run(serving())

async def first(url):
    options = {"signing": "header"} if "header" in sys.argv else {}
    operator = ap.Operator.from_uri(
        "s3://bucket", endpoint_url=url, access_key_id="AKIA", secret_access_key="secret", **options
    )
    assert "botocore" not in sys.modules
    if "list" in sys.argv:
        assert [entry.path async for entry in operator.list("")] == ["k"]
    else:
        assert await operator.read("k") == b"the object"
    await operator.aclose()
    assert "botocore.client" in sys.modules
    assert not [name for name in imported if name.startswith(("botocore", "aiobotocore", "aiohttp."))], imported

ready, url = threading.Event(), []
threading.Thread(target=serve, args=(ready, url), daemon=True).start()
ready.wait()
sys.addaudithook(heard)
with LoopLag() as lag:
    asyncio.run(first(url[0]))
assert not lag.held, "".join(map(str, lag.held))
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """An environment in which the modules are compiled, as a package is when it has been installed."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    variables["PYTHONPYCACHEPREFIX"] = str(tmp_path_factory.mktemp("compiled"))
    load = "import aioprefetch.testing.fault_server, aioprefetch.testing.loop_lag, aioprefetch.services.s3.accessor"
    subprocess.run([sys.executable, "-c", load], env=variables, check=True)
    return variables


@pytest.mark.parametrize("way", ["read", "read by header", "list"])
def test_no_step_of_the_loop_takes_long(way: str, compiled: Mapping[str, str]) -> None:
    """Other tasks, time-outs and watchdogs go on while a client is made. Half a second, if it is on the loop."""
    command = [sys.executable, "-c", PROGRAM, *way.split()]
    run = subprocess.run(command, env=compiled, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr

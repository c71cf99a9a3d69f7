"""The first request of a process: what has to be imported, read and made for it does not stop the event loop."""

import subprocess
import sys

import pytest

# Imports, models and files take half a second, if they are on the loop.
CPU_SECONDS_MAX = 0.05

PROGRAM = """
import asyncio, sys, threading, time
import aioprefetch as ap
from aioprefetch.testing import Fault, FaultServer, Rule

ENTRY = b"<Contents><Key>k</Key><Size>10</Size></Contents>"
PAGE = b"<ListBucketResult><Name>b</Name><KeyCount>1</KeyCount>" + ENTRY + b"</ListBucketResult>"
main, steps, imported, run = threading.get_ident(), [], [], asyncio.Handle._run

def heard(event, arguments):
    if event == "import" and threading.get_ident() == main:
        imported.append(arguments[0])

def measured(handle):
    before = time.thread_time()
    run(handle)
    if threading.get_ident() == main:
        steps.append((time.thread_time() - before, repr(handle)))

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
    longest = max(steps)
    await operator.aclose()
    assert "botocore.client" in sys.modules
    assert not [name for name in imported if name.startswith(("botocore", "aiobotocore", "aiohttp."))], imported
    return longest

ready, url = threading.Event(), []
threading.Thread(target=serve, args=(ready, url), daemon=True).start()
ready.wait()
asyncio.Handle._run = measured
sys.addaudithook(heard)
print(*asyncio.run(first(url[0])))
"""


@pytest.mark.parametrize("way", ["read", "read by header", "list"])
def test_no_step_of_the_loop_takes_long(way: str) -> None:
    """Other tasks, time-outs and watchdogs go on while a client is made. Measured in CPU of the loop's own thread."""
    run = subprocess.run([sys.executable, "-c", PROGRAM, *way.split()], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    seconds, step = run.stdout.split(maxsplit=1)
    assert float(seconds) < CPU_SECONDS_MAX, (seconds, step)

"""Files, zarr, obspec and ASGI over one operator for long: many opens, forks, other processes, running loops."""

import pytest

from tests.probes.programs import run_program
from tests.profile import chosen

# How often a store is opened: over connections, where each costs some milliseconds, and in memory.
OPENS = {"http": 200, "memory": chosen(quick=500, full=2_000, search=10_000)}

# A store in the process, on a loop of its own.
OVER_HTTP = """
import asyncio, gc, os, threading
import aioprefetch as ap
from aioprefetch.testing import FaultServer

started, server = threading.Event(), FaultServer({"k": bytes(range(256)) * 40, "a/k": b"0123456789"})
def serve():
    async def run():
        async with server:
            started.set()
            await asyncio.get_running_loop().create_future()
    asyncio.run(run())
threading.Thread(target=serve, daemon=True).start()
started.wait()
op = ap.Operator.from_uri(server.url)
"""

OVER_MEMORY = """
import asyncio, gc, os, threading
import aioprefetch as ap

class server:
    requests, connections = [], 0
# A timer of the default stack outlives its loop's runtime by some seconds.
op = ap.Operator.bare(ap.services.Memory("many"))
async def fill():
    async with op:
        await op.write("k", bytes(range(256)) * 40)
        await op.write("a/k", b"0123456789")
asyncio.run(fill())
"""

STORES = {"http": OVER_HTTP, "memory": OVER_MEMORY}

# What is left behind by a function that opens and reads.
CHECK = """
def left():
    gc.collect()
    return len(os.listdir("/proc/self/fd")), threading.active_count(), len(gc.get_objects())

def check_many(once, opens):
    for number in range(50):
        once(number)
    before, connections, requests = left(), server.connections, len(server.requests)
    for number in range(opens):
        once(number)
    files, threads, objects = (after - earlier for after, earlier in zip(left(), before))
    assert files <= 2 and threads <= 1, (files, threads)
    # The server keeps a record of each request, with its headers.
    assert objects - 3 * (len(server.requests) - requests) <= 2_000, objects
    print("connections:", server.connections - connections <= opens)
"""

ZARR = """
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
def once(number):
    store = ap.zarr.Store(op, "a")
    found = sync(store.get("k", default_buffer_prototype()))
    assert found.to_bytes() == b"0123456789"
    if number % 2:
        store.close()  # The others are collected.
"""

OBSPEC = """
def once(number):
    store = ap.obspec.store(op)
    assert bytes(store.get_range("a/k", start=2, end=5)) == b"234"
    result = store.get("k")
    if number % 3:
        assert len(result.buffer()) == 10_240
    if number % 2:
        store.close()
"""

ASGI = """
loop = asyncio.new_event_loop()
async def request(app, leaves):
    sent, left = [], asyncio.Event()
    async def send(message):
        sent.append(message)
        if leaves:
            left.set()
            await asyncio.get_running_loop().create_future()
    async def receive():
        await left.wait()
        return {"type": "http.disconnect"}
    headers = [(b"range", b"bytes=0-1500" if leaves else b"bytes=0-499")]
    await app({"type": "http", "method": "GET", "path": "/k", "headers": headers}, receive, send)
    assert sent[0]["status"] == 206
def once(number):
    app = ap.asgi.RangeApp(op, chunk_bytes=1000)
    loop.run_until_complete(request(app, leaves=number % 3 == 0))
"""

FILES = """
def once(number):
    with ap.sync.BlockingOperator(op) as blocking, blocking.open("k") as file:
        assert file.read_at(2, 3) == blocking.read_at("k", 2, 3) == bytes((2, 3, 4))
    with ap.sync.open("a/k", operator=op) as file:
        assert file.read() == b"0123456789"
"""

PROGRAMS = {"files": FILES, "zarr": ZARR, "obspec": OBSPEC, "asgi": ASGI}


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("bridge", PROGRAMS)
def test_many_opens_leave_nothing_behind(bridge: str, store: str) -> None:
    """Whether they are closed or not: no descriptor, no thread, no object."""
    end = "loop.close()" if bridge == "asgi" else "ap.sync.run(op.aclose())"
    run = f"check_many(once, {OPENS[store]})\n{end}\nprint('done', flush=True)\nos._exit(0)"
    printed = run_program(f"{STORES[store]}{CHECK}{PROGRAMS[bridge]}\n{run}")
    assert printed.split() == ["connections:", "True", "done"]


@pytest.mark.parametrize("bridge", PROGRAMS)
def test_a_child_reads_after_a_fork(bridge: str) -> None:
    """What the parent has used is not used again; and the parent goes on."""
    again = "loop = asyncio.new_event_loop()" if bridge == "asgi" else ""
    program = f"""{OVER_HTTP}{PROGRAMS[bridge]}
once(1)
once(2)
pid = os.fork()
if pid == 0:
    {again or "pass"}
    once(1)
    once(2)
    print("child", flush=True)
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
once(1)
print("parent", flush=True)
os._exit(0)
"""
    assert run_program(program).split() == ["child", "parent"]


IN_ANOTHER_PROCESS = """
import multiprocessing, operator
from concurrent.futures import ProcessPoolExecutor
import numpy, zarr
import aioprefetch as ap
op = ap.Operator.from_uri("file://FOLDER")
with ap.zarr.Store(op, "zarr") as store, ap.obspec.store(op) as objects:
    array = zarr.create_array(store, name="a", shape=(8, 8), chunks=(4, 4), dtype="i4")
    array[:] = numpy.arange(64).reshape(8, 8)
    objects.put("k", b"0123456789")
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        print(pool.submit(operator.getitem, array, (7, 3)).result())
        print(pool.submit(operator.methodcaller("head", "k"), objects).result()["size"])
"""


def test_another_process_reads_what_was_pickled(tmp_path: object) -> None:
    """A process that is spawned has nothing of ours but what it gets."""
    assert run_program(IN_ANOTHER_PROCESS.replace("FOLDER", str(tmp_path))).split() == ["59", "10"]

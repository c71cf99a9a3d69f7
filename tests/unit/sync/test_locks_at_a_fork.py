"""A fork at the moment at which other threads hold locks: the child goes on with all that its parent has made."""

from collections.abc import Callable

import pytest

from aioprefetch.testing.conformance.suite import checks

Program = Callable[[str], str]

# Another thread holds the locks of each live object of the library, of its modules, and of what these objects consist
# of, as far as they are free, while the main thread forks. A child that waits for one of them is ended by its alarm.
HOLDING = """
import gc, logging, os, signal, sys, tempfile, threading, types
import aioprefetch as ap

LOCKS = type(threading.Lock()), type(threading.RLock())
PARTS = "threading", "queue", "functools", "concurrent.futures"

def locks_of(owner, depth=0):
    for part in [*gc.get_referents(owner), *getattr(owner, "__dict__", {}).values()]:
        module = type(part).__module__ or ""
        if isinstance(part, LOCKS):
            yield part
        elif isinstance(part, dict) and isinstance(owner, types.ModuleType | type):
            yield from locks_of(part, depth)
        elif module.startswith(PARTS) and depth < 3:
            yield from locks_of(part, depth + 1)

def is_ours(thing):
    if isinstance(thing, types.ModuleType):
        return thing.__name__.startswith("aioprefetch")
    bases = type.mro(thing if isinstance(thing, type) else type(thing))
    return any(isinstance(one.__module__, str) and one.__module__.startswith("aioprefetch") for one in bases)

def child(work):
    gc.collect()
    locks = {id(lock): lock for thing in gc.get_objects() if is_ours(thing) for lock in locks_of(thing)}
    held, done = threading.Event(), threading.Event()
    taken = []
    def hold():
        taken.extend(lock for lock in locks.values() if lock.acquire(blocking=False))
        held.set()
        done.wait(60)
        for lock in taken:
            lock.release()
    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    pid = os.fork()
    if not pid:
        signal.alarm(30)
        # The first threads of a child get the numbers of the parent's, and an RLock would take one for its holder.
        for _ in range(16):
            threading.Thread(target=threading.Event().wait, daemon=True).start()
        try:
            work()
            gc.collect()
            sys.stdout.flush()
        except BaseException as error:
            print("child:", repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    done.set()
    holder.join()
    assert status == 0, status
    return len(taken)
"""


@checks("reliability:K28")
def test_every_lock_of_what_a_child_may_use(program: Program) -> None:
    source = """
from aioprefetch.verbs.progress import ProgressDisplay
folder = tempfile.mkdtemp()
data = bytes(range(256)) * 4000
made = []
for url in ("memory://locks", f"file://{folder}"):
    op = ap.Operator.from_uri(url, block_bytes=1 << 16)
    blocking = ap.sync.BlockingOperator(op)
    blocking.write("k", data)
    blocking.read_at("k", 0, 100)
    file, dropped = blocking.open("k"), blocking.open("k")
    dropped.warns_unclosed = False
    views = [one.view_at(0, 60_000) for one in (file, dropped)]
    writing = blocking.open("half", "wb")
    writing.write(b"1")
    trace = ap.trace.record(op).__enter__()
    file.read(1000)
    made.append([op, blocking, file, dropped, views, writing, trace])
class Bars(ProgressDisplay):
    def open(self, name):
        return types.SimpleNamespace(update=lambda step: None, close=lambda error: None)
bars = Bars()
async def count():
    for number in range(50):
        yield number
items = ap.sync.iterate(count(), window_items=3)
next(items)

def work():
    for op, blocking, file, dropped, views, writing, trace in made:
        file.statistics, repr(file), op.statistics, repr(op)
        file.seek(0)
        assert b"".join(iter(lambda: file.read(10_000), b"")) == file.read_at(0, None) == data
        file.seek(0)
        assert file.readline() == data[:11] and file.read() == data[11:]
        assert blocking.read_at("k", 5, 10) == data[5:15]
        assert blocking.stat("k").size == len(data)
        blocking.write(f"new {os.getpid()}", b"1")
        op.events.subscribe(print)()
        assert trace.recording is not None and trace.html()
        writing.discard()
        bars(100)
        bars.close()
        views.clear()
        file.close()
        blocking.close()
    items.close()
    del op, blocking, file, dropped, views, writing, trace
    made.clear()
    gc.collect()
    assert ap.sync.run(ap.Operator.from_uri("memory://locks").read("k")) == data

assert child(work) > 20
for op, blocking, file, dropped, views, writing, trace in made:
    assert file.read_at(0, None) == data
    trace.stop()
    writing.discard()
    dropped.close()
    file.close()
    blocking.close()
items.close()
print("both")
"""
    assert program(HOLDING + source) == "both\n"


def test_the_log_of_a_client_of_s3(program: Program) -> None:
    pytest.importorskip("aiobotocore")
    source = """
from aioprefetch.services.s3.key_source import _redacting
def work():
    assert _redacting.filter(logging.makeLogRecord({"msg": "text"}))
    class Client:
        def without_secrets(self, text):
            return text.replace("secret", "***")
    client, record = Client(), logging.makeLogRecord({"msg": "a secret"})
    _redacting.add(client)
    assert _redacting.filter(record) and record.msg == "a ***"
child(work)
print("both")
"""
    assert program(HOLDING + source) == "both\n"

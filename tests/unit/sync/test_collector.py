"""No destructor of a caller's runs on a thread that callers wait for, also where a collection is due there.

Each in a process of its own: the collector is one for all that a process does.
"""

from collections.abc import Callable

import pytest

Program = Callable[[str], str]

COMMON = """
import contextvars, gc, os, sys, threading, weakref
import aioprefetch as ap

lock, ended_on = threading.RLock(), []

class Locked:  # as h5py's objects are, in a cycle
    def __init__(self):
        self.itself = self
    def __del__(self):
        with lock:
            ended_on.append(threading.current_thread().name)

async def collect():
    gc.collect()
    return threading.current_thread().name
"""


@pytest.mark.parametrize("kind", ["destructor", "callback of a weak reference", "finalizer", "generator"])
def test_what_wants_a_lock_of_the_caller_is_not_destroyed_on_the_loop_thread(kind: str, program: Program) -> None:
    """The loop thread collects while the caller holds the lock and waits for it."""
    made = {
        "destructor": "Locked()",
        "callback of a weak reference": "kept.append(weakref.ref(node := Node(), lambda _: ended()))",
        "finalizer": "weakref.finalize(node := Node(), ended)",
        "generator": "node = Node(); node.generator = generator(node); next(node.generator)",
    }[kind]
    source = f"""
class Node:
    def __init__(self):
        self.itself = self
def ended():
    with lock:
        ended_on.append(threading.current_thread().name)
def generator(node):
    try:
        yield
    finally:
        ended()
kept = []
def make():
    {made}
gc.disable()
make()
with lock:
    print(ap.sync.run(collect()), ended_on)
gc.collect()
print(ended_on)
"""
    assert program(COMMON + source) == "aioprefetch-sync []\n['MainThread']\n"


def test_nor_on_a_thread_that_works_for_the_loop(program: Program) -> None:
    """What an iterable makes is made by such a thread, and so is what is read of a file of this machine."""
    source = """
def parts():
    yield b"1"
    gc.collect()
    yield threading.current_thread().name.encode()
gc.disable()
Locked()
with ap.sync.BlockingOperator(ap.Operator.from_uri("memory://x")) as store, lock:
    store.write("k", parts())
    print(store.read("k").decode(), ended_on)
"""
    thread, ended_on = program(COMMON + source).split()
    assert thread.startswith("1aioprefetch-")
    assert ended_on == "[]"


def test_garbage_made_while_the_loop_thread_works_is_collected_all_the_same(program: Program) -> None:
    """By a thread for which none waits, so that a call of any length leaves no more than a program does by itself."""
    source = """
class Counted:
    alive = most = 0
    def __init__(self):
        self.itself = self
        Counted.alive += 1
        Counted.most = max(Counted.most, Counted.alive)
    def __del__(self):
        Counted.alive -= 1
        ended_on.append(threading.current_thread().name)
async def work():
    while len(ended_on) < 200_000:
        Counted()
        if Counted.alive > 150_000:
            raise AssertionError("it is not collected")
ap.sync.run(work())
print(sorted(set(ended_on)))
"""
    assert program(COMMON + source) == "['aioprefetch-collector']\n"


def test_the_collector_stays_as_the_program_has_set_it(program: Program) -> None:
    """On or off, its thresholds, and what it has frozen; then garbage is collected as if we were not there."""
    source = """
frozen = gc.get_freeze_count()
def settings():
    return gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()
before = settings()
ap.sync.run(collect())
print(settings() == before)
gc.set_threshold(1234, 5, 6)
gc.disable()
ap.sync.run(collect())
print(gc.isenabled(), gc.get_threshold(), gc.get_freeze_count() == frozen)
Locked()
gc.freeze()
frozen = gc.get_freeze_count()
Locked()
ap.sync.run(collect())
print(gc.get_freeze_count() > frozen * 0.9, ended_on)
"""
    assert program(COMMON + source) == "True\nFalse (1234, 5, 6) True\nTrue ['aioprefetch-sync']\n"


def test_a_forked_child_has_a_collector_of_its_own(program: Program) -> None:
    """The thread stays behind at the fork."""
    source = """
ap.sync.run(collect())
child = os.fork()
if child == 0:
    gc.disable()
    Locked()
    with lock:
        ap.sync.run(collect())
    assert ended_on == []
    gc.enable()
    async def work():
        while not ended_on:
            Locked()
    ap.sync.run(work())
    os._exit(set(ended_on) != {"aioprefetch-collector"})
print(os.waitpid(child, 0)[1])
"""
    assert program(COMMON + source) == "0\n"


def test_an_exit_waits_for_a_collection_that_has_begun(program: Program) -> None:
    """Python would end the thread in the destructor, with the lock held and garbage half freed: h5py then crashed."""
    source = """
begun = threading.Event()
class Slow:
    def __init__(self):
        self.itself = self
    def __del__(self):
        with lock:
            begun.set()
            threading.Event().wait(0.3)
            os.write(1, threading.current_thread().name.encode())
gc.disable()
Slow()
class Node:
    def __init__(self):
        self.itself = self
async def work():
    gc.enable()
    while not begun.is_set():
        Node()
ap.sync.run(work())
"""
    assert program(COMMON + source) == "aioprefetch-collector"


def test_an_error_that_a_thread_of_ours_still_holds_has_no_frame_of_a_caller(program: Program) -> None:
    """The thread would destroy what these frames hold where it is the last to drop the error."""
    source = """
class Local:
    def __del__(self):
        ended_on.append(threading.current_thread().name)
kept = []
async def fails():
    kept.append(ap.NotFound("it is not there", operation="read", path="k"))
    raise kept[0]
async def drop():
    kept.clear()
def call():
    held = Local()
    try:
        ap.sync.run(fails())
    except ap.NotFound:
        pass
call()
ap.sync.run(drop())
print(ended_on)
"""
    assert program(COMMON + source) == "['MainThread']\n"

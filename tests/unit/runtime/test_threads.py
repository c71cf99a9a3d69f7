"""The executor of blocking calls: its threads, what becomes of calls at its end, and the end of a process."""

import asyncio
import contextvars
import gc
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future

import pytest

from aioprefetch.errors import Closed
from aioprefetch.runtime.threads import SHARED_MAX, Threads, in_thread
from aioprefetch.testing.conformance.suite import checks
from tests.probes.programs import run_program

PATIENCE_SECONDS = 20


@pytest.fixture
def threads() -> Iterator[Threads]:
    made = Threads(3, "aioprefetch-test")
    yield made
    made.shutdown()


def own_threads() -> list[threading.Thread]:
    """The threads of the fixture that are alive."""
    return [one for one in threading.enumerate() if one.name.startswith("aioprefetch-test")]


def test_as_many_threads_as_calls_at_once_and_no_more(threads: Threads) -> None:
    for number in range(20):
        assert threads.submit(divmod, number, 7).result() == divmod(number, 7)
    assert len(own_threads()) == 1
    together = threading.Barrier(3, timeout=PATIENCE_SECONDS)
    for _ in range(5):
        for future in [threads.submit(together.wait) for _ in range(3)]:
            future.result()
    assert len(own_threads()) == 3
    assert all(one.daemon for one in own_threads())


def test_a_call_beside_calls_that_wait_has_a_thread(threads: Threads) -> None:
    """Whenever it comes: a thread that is about to be free is not taken for one that is."""
    for _ in range(50):
        released = threading.Event()
        waiting = [threads.submit(released.wait) for _ in range(2)]
        assert threads.submit(int).result(PATIENCE_SECONDS) == 0
        released.set()
        for future in waiting:
            future.result()


def test_what_a_call_raises_is_its_own_and_keeps_nothing_alive(threads: Threads) -> None:
    class Held:
        def fail(self) -> None:
            raise ZeroDivisionError

    held = Held()
    seen = weakref.ref(held)
    future: Future[None] = threads.submit(held.fail)
    del held
    with pytest.raises(ZeroDivisionError):
        future.result()
    gc.disable()  # No cycle is needed to be found.
    try:
        del future
        threads.submit(int).result()
        assert seen() is None
    finally:
        gc.enable()


def test_calls_that_wait_are_made_at_the_end_or_cancelled() -> None:
    for cancels in (False, True):
        threads, released = Threads(1, "aioprefetch-test"), threading.Event()
        begun = threads.submit(released.wait)
        while not begun.running():
            pass
        waiting = threads.submit(int)
        threads.shutdown(wait=False, cancel_futures=cancels)
        assert waiting.cancelled() is cancels
        released.set()
        assert begun.result() is True
        if cancels:
            with pytest.raises(CancelledError):
                waiting.result()
        else:
            assert waiting.result() == 0
        with pytest.raises(Closed):
            threads.submit(int).result()
        for thread in own_threads():
            thread.join(PATIENCE_SECONDS)
        assert own_threads() == []


def test_an_executor_that_is_dropped_ends_its_threads() -> None:
    dropped = Threads(2, "aioprefetch-test")
    result = dropped.submit(threading.current_thread).result()
    del dropped
    result.join(PATIENCE_SECONDS)
    assert own_threads() == []


def test_a_system_without_threads_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is counted as begun then."""
    threads = Threads(1, "aioprefetch-test")

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            threads.submit(int)
    assert threads.submit(int).result() == 0
    threads.shutdown()


async def test_shared_threads_have_the_context_and_never_wait_for_each_other() -> None:
    name = contextvars.ContextVar("name", default="none")
    name.set("of the caller")
    together = threading.Barrier(SHARED_MAX // 4, timeout=PATIENCE_SECONDS)

    def call() -> str:
        together.wait()
        return name.get()

    names = await asyncio.gather(*(in_thread(call) for _ in range(SHARED_MAX // 4)))
    assert set(names) == {"of the caller"}


async def test_a_forked_child_has_shared_threads_of_its_own() -> None:
    """Also while those of its parent are held."""
    released = threading.Event()
    waiting = [asyncio.ensure_future(in_thread(released.wait)) for _ in range(4)]
    await asyncio.sleep(0)
    output = await in_thread(run_program, FORKS)
    assert output == "child 7\nparent 7\n"
    released.set()
    await asyncio.gather(*waiting)


FORKS = """
import asyncio, os, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
from aioprefetch.runtime.threads import Threads, in_thread
async def later(value):
    return await in_thread(int, value)
held = Threads(2, "aioprefetch-held")
held.submit(int).result()
assert asyncio.run(later(5)) == 5
child = os.fork()
value = asyncio.run(later(7))
if child:
    os.waitpid(child, 0)
print("parent" if child else "child", value, flush=True)
"""

WAITS = """
import threading
from aioprefetch.runtime.threads import Threads
threads, begun = Threads(1, "aioprefetch-files"), threading.Event()
def write():
    begun.set()
    threading.main_thread().join()
    print("written", flush=True)
threads.submit(write)
threads.submit(print, "the one that waits too", flush=True)
begun.wait()
print("main ends", flush=True)
"""


def test_a_process_waits_for_calls_that_end() -> None:
    assert run_program(WAITS) == "main ends\nwritten\nthe one that waits too\n"


HANGS = """
import asyncio, os, sys, tempfile, threading
import aioprefetch as ap

directory = tempfile.mkdtemp()
fifo = f"{directory}/fifo"
os.mkfifo(fifo)
read, write = os.pipe()

def items():
    yield b"first"
    threading.Event().wait()

async def main():
    operator = ap.Operator.from_uri("memory://hangs")
    for upload in (
        lambda: operator.upload(fifo, "k"),
        lambda: operator.write("k", open(read, "rb", closefd=False)),
        lambda: operator.write("k", items()),
        lambda: ap.fsspec.AioPrefetchFileSystem(operator, asynchronous=True)._put_file(fifo, "k"),
    ):
        begun = asyncio.ensure_future(upload())
        done, _ = await asyncio.wait((begun,), timeout=0.3)
        assert not done, done
        begun.cancel()
        await asyncio.wait((begun,))
    assert not await operator.exists("k")
    await operator.aclose()

asyncio.run(main())
print("ended")
"""


@checks("reliability:W48")
def test_a_program_ends_although_uploads_wait_for_ever() -> None:
    """From a FIFO that no one opens, a pipe, and code of the caller."""
    assert run_program(HANGS) == "ended\n"


AFTER_MAIN = """
import os, sys, tempfile, threading
import aioprefetch as ap

def late():
    threading.main_thread().join()
    directory = tempfile.mkdtemp()
    with ap.sync.open(f"file://{directory}/k", "wb") as file:
        file.write(b"0123456789")
    with ap.sync.open(f"file://{directory}/k") as file:
        assert file.read() == b"0123456789"
    ap.sync.copy(f"{directory}/k", f"{directory}/copy")
    operator = ap.sync.BlockingOperator(ap.Operator.from_uri(f"file://{directory}"))
    operator.upload(f"{directory}/k", "uploaded")
    operator.download("uploaded", f"{directory}/downloaded")
    with open(f"{directory}/downloaded", "rb") as local:
        operator.write("from a file", local)
    with operator.writer("written") as writer:
        writer.write(b"bytes")
    try:
        with ap.sync.open("http://localhost:1/k", attempts_max=1) as file:
            file.read()
    except ap.Unavailable:
        print("first used after the end of the main thread")

threading.Thread(target=late).start()
"""


def test_the_first_use_may_come_after_the_end_of_the_main_thread() -> None:
    assert run_program(AFTER_MAIN) == "first used after the end of the main thread\n"

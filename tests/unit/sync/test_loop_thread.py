"""The loop thread: one per process, refuses to wait for itself, times out, ends quietly, survives forks."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any

import pytest

from aioprefetch.errors import Closed, InvalidArgument, InvalidType, TimedOut, WrongLoop
from aioprefetch.sync import run
from aioprefetch.sync.loop_thread import Call, LoopThread, loop_thread


async def current_thread() -> threading.Thread:
    return threading.current_thread()


def test_all_callers_share_one_daemon_thread() -> None:
    threads: list[threading.Thread] = []
    callers = [threading.Thread(target=lambda: threads.append(run(current_thread()))) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert set(threads) == {run(current_thread())}
    assert threads[0].daemon
    assert threads[0] is not threading.current_thread()


def test_results_and_errors_come_back() -> None:
    async def fail() -> None:
        raise LookupError("as raised")

    assert run(asyncio.sleep(0, "done")) == "done"
    with pytest.raises(LookupError, match="as raised"):
        run(fail())


def test_context_variables_go_along() -> None:
    variable = contextvars.ContextVar("variable", default="unset")

    async def read() -> str:
        return variable.get()

    variable.set("set by the caller")
    assert run(read()) == "set by the caller"


def test_the_loop_thread_refuses_to_wait_for_itself() -> None:
    async def nested() -> None:
        run(asyncio.sleep(0))

    with pytest.raises(WrongLoop, match="would wait for itself"):
        run(nested(), timeout_seconds=5)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set by the coroutine of a call: its time counts from then on, however late the loop's thread comes to it."""
    begun, wait = threading.Event(), Call.wait

    def wait_from_then(call: Call[Any], timeout_seconds: float) -> bool:
        assert begun.wait(20)
        return wait(call, timeout_seconds)

    monkeypatch.setattr(Call, "wait", wait_from_then)
    return begun


def test_a_timeout_cancels_and_lets_the_coroutine_clean_up(begun: threading.Event) -> None:
    events: list[str] = []

    async def wait_for_ever() -> None:
        begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            events.append("cleaned up")

    with pytest.raises(TimedOut, match=r"timeout_seconds=0\.2"):
        run(wait_for_ever(), timeout_seconds=0.2)
    assert events == ["cleaned up"]


def test_a_result_that_beats_the_cancellation_counts(begun: threading.Event) -> None:
    async def stubborn() -> str:
        begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            return "finished anyway"
        raise AssertionError("unreachable")

    assert run(stubborn(), timeout_seconds=0.2) == "finished anyway"


@pytest.mark.parametrize("timeout", [-1, float("nan")])
def test_nonsense_timeouts_are_refused(timeout: float) -> None:
    with pytest.raises(InvalidArgument, match="timeout_seconds"):
        run(asyncio.sleep(0), timeout_seconds=timeout)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit()])
def test_what_is_no_exception_comes_back_too_and_the_loop_goes_on(error: BaseException) -> None:
    async def leave() -> None:
        await asyncio.sleep(0)
        raise error

    thread = run(current_thread())
    with pytest.raises(type(error)):
        run(leave())
    assert run(current_thread()) is thread


async def test_a_running_loop_in_the_callers_thread_is_refused_with_a_hint() -> None:
    with pytest.raises(WrongLoop, match="await"):
        run(asyncio.sleep(0))
    assert await asyncio.to_thread(run, asyncio.sleep(0, "from a thread")) == "from a thread"


def test_a_wait_longer_than_a_slice_still_times_out() -> None:
    with pytest.raises(TimedOut, match=r"timeout_seconds=0\.6"):
        run(asyncio.Event().wait(), timeout_seconds=0.6)


def test_only_coroutines_are_run() -> None:
    with pytest.raises(InvalidType, match="needs a coroutine, not int"):
        run(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", ["1", True, [1]])
def test_a_timeout_that_is_no_number_is_refused_and_the_coroutine_closed(timeout: Any) -> None:
    with pytest.raises(InvalidType, match="number of seconds"):
        run(current_thread(), timeout)


def test_a_stopped_loop_tells_who_waits_and_who_comes_later() -> None:
    thread = LoopThread()
    started, outcome = threading.Event(), []

    async def hold() -> None:
        started.set()
        await asyncio.get_running_loop().create_future()

    def wait() -> None:
        try:
            thread.run(hold())
        except asyncio.CancelledError as error:
            outcome.append(type(error))

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert started.wait(5)
    thread.stop(5)
    waiter.join(5)
    assert outcome == [asyncio.CancelledError]
    assert not thread.is_alive
    with pytest.raises(Closed):
        thread.run(asyncio.sleep(0))


def test_closing_in_the_background_never_raises(caplog: pytest.LogCaptureFixture) -> None:
    done = threading.Event()

    async def fail() -> None:
        done.set()
        raise OSError("the store is gone")

    loop_thread().finish(fail, timeout_seconds=5)
    assert done.is_set()
    assert "closing failed" in caplog.text


def test_the_process_ends_quietly_with_work_under_way(program: Callable[[str], str]) -> None:
    source = """
import asyncio, threading
from aioprefetch.sync import run
started = threading.Event()
async def linger():
    started.set()
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        print("ended", flush=True)
async def spawn():
    spawn.task = asyncio.create_task(linger())
run(spawn())
started.wait(5)
"""
    assert program(source) == "ended\n"


def test_a_forked_child_gets_a_loop_of_its_own(program: Callable[[str], str]) -> None:
    source = """
import asyncio, os, sys, threading
from aioprefetch.sync import run
async def where():
    return os.getpid(), threading.current_thread()
pid, thread = run(where())
child = os.fork()
if not child:
    there, other = run(where(), timeout_seconds=10)
    os._exit(0 if there == os.getpid() and other is not thread else 1)
assert os.waitpid(child, 0)[1] == 0
assert run(where()) == (pid, thread)
print("both")
"""
    assert program(source) == "both\n"

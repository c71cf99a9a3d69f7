"""Work that begins in its caller: it is a task of its own for the code within, and independent of its caller."""

import asyncio
import gc
import threading
from collections.abc import Coroutine
from contextvars import ContextVar
from typing import Any

import anyio
import anyio.to_thread
import pytest

from aioprefetch.runtime.supervisor import Supervisor
from tests.stores.gated_reader import settle

value: ContextVar[int] = ContextVar("value", default=0)


def started(supervisor: Supervisor, work: Coroutine[Any, Any, None]) -> Any:
    """The work, after its first step."""
    eager = supervisor.start(work, asyncio.get_running_loop(), name="test")
    eager.start()
    return eager


async def test_it_runs_up_to_its_first_wait_at_once_and_then_by_itself() -> None:
    seen: list[str] = []
    gate = asyncio.get_running_loop().create_future()

    async def work() -> None:
        seen.append("began")
        await gate
        await asyncio.sleep(0)
        seen.append("ended")

    supervisor = Supervisor()
    eager = started(supervisor, work())
    assert (seen, eager.done()) == (["began"], False)
    gate.set_result(None)
    await settle()
    assert (seen, eager.done()) == (["began", "ended"], True)
    await supervisor.aclose()


async def test_it_is_the_current_task_in_a_context_of_its_own() -> None:
    tasks: list[Any] = []

    async def work() -> None:
        value.set(5)
        tasks.append(asyncio.current_task())
        await asyncio.sleep(0)
        tasks.append((asyncio.current_task(), value.get()))

    supervisor = Supervisor()
    caller = asyncio.current_task()
    eager = started(supervisor, work())
    assert asyncio.current_task() is caller
    assert value.get() == 0
    await settle()
    assert tasks == [eager, (eager, 5)]
    await supervisor.aclose()


@pytest.mark.parametrize("kind", ["asyncio", "anyio"])
async def test_time_limits_within_it_end_it_alone(kind: str) -> None:
    outcomes: list[str] = []

    async def work() -> None:
        if kind == "asyncio":
            try:
                async with asyncio.timeout(0):
                    await asyncio.Event().wait()
            except TimeoutError:
                outcomes.append("timed out")
        else:
            with anyio.move_on_after(0) as scope:
                await anyio.sleep_forever()
            outcomes.append("timed out" if scope.cancelled_caught else "passed")
        await asyncio.sleep(0)
        outcomes.append("went on")

    supervisor = Supervisor()
    eager = started(supervisor, work())
    async with asyncio.timeout(5):
        while not eager.done():  # noqa: ASYNC110 - the work has no event for its end
            await asyncio.sleep(0)
    assert outcomes == ["timed out", "went on"]
    current = asyncio.current_task()
    assert current is not None
    assert current.cancelling() == 0
    await supervisor.aclose()


@pytest.mark.parametrize("turns", range(4))
async def test_cancelled_at_every_wait_it_ends_by_cancellation(turns: int) -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            for _ in range(5):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    supervisor = Supervisor()
    eager = started(supervisor, work())
    for _ in range(turns):
        await asyncio.sleep(0)
    assert eager.cancel()
    await settle()
    assert (ended, eager.done(), eager.cancel()) == (["cancelled"], True, False)
    await supervisor.aclose()


async def test_a_cancellation_that_was_taken_back_is_not_raised() -> None:
    ended: list[str] = []

    async def work() -> None:
        this = asyncio.current_task()
        assert this is not None
        this.cancel()
        assert (this.cancelling(), this.uncancel()) == (1, 0)
        await asyncio.sleep(0)
        ended.append("went on")

    supervisor = Supervisor()
    started(supervisor, work())
    await settle()
    assert ended == ["went on"]
    await supervisor.aclose()


async def test_a_cancellation_takes_the_place_of_the_error_that_it_waited_for() -> None:
    """And the loop does not complain that no caller has seen that error."""
    loop = asyncio.get_running_loop()
    complaints: list[Any] = []
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    seen: list[str] = []

    async def work(answer: asyncio.Future[None]) -> None:
        try:
            await answer
        except BaseException as error:
            seen.append(type(error).__name__)
            raise

    supervisor = Supervisor()
    answer: asyncio.Future[None] = loop.create_future()
    eager = started(supervisor, work(answer))
    answer.set_exception(ConnectionError("it broke"))
    assert eager.cancel()
    del answer
    await settle()
    gc.collect()
    assert (seen, eager.cancelled(), complaints) == (["CancelledError"], True, [])
    await supervisor.aclose()


async def test_closing_cancels_it_and_waits_until_it_has_ended() -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            seen.append("cleaned up")

    async def closer() -> None:
        seen.append("closed")

    supervisor = Supervisor()
    supervisor.on_close(closer)
    started(supervisor, work())
    await asyncio.sleep(0)
    await supervisor.aclose()
    assert seen == ["cleaned up", "closed"]


async def test_after_closing_it_does_not_begin() -> None:
    seen: list[str] = []

    async def work() -> None:
        seen.append("began")

    supervisor = Supervisor()
    await supervisor.aclose()
    assert started(supervisor, work()).done()
    assert seen == []


async def test_an_error_that_escapes_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        await asyncio.sleep(0)
        raise ValueError("a bug")

    supervisor = Supervisor()
    started(supervisor, work())
    await settle()
    assert "background work failed: test" in caplog.text
    await supervisor.aclose()


async def test_it_tells_how_it_ended_and_calls_back_like_a_task() -> None:
    ended: list[Any] = []

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("a bug")

    supervisor = Supervisor()
    for work in (asyncio.sleep(0), fail(), asyncio.Event().wait()):
        eager = started(supervisor, work)  # type: ignore[arg-type]  # whose result is ignored
        eager.add_done_callback(ended.append)
        eager.add_done_callback(print)
        assert eager.remove_done_callback(print) == 1
        eager.set_name("renamed")
        assert (repr(eager), len(eager.get_stack())) == ("<EagerWork pending name='renamed'>", 1)
        with pytest.raises(asyncio.InvalidStateError):
            eager.result()
    eager.cancel()
    await settle()
    by_end = {repr(eager): eager for eager in ended}
    failed = next(eager for eager in ended if not eager.cancelled() and eager.exception())
    assert len(ended) == 3
    assert set(by_end) == {"<EagerWork finished name='renamed'>", "<EagerWork cancelled name='renamed'>"}
    with pytest.raises(ValueError, match="a bug"):
        failed.result()
    with pytest.raises(asyncio.CancelledError):
        by_end["<EagerWork cancelled name='renamed'>"].exception()
    eager.add_done_callback(ended.append)  # As with a task, an ended one calls back too.
    await settle()
    assert (len(ended), eager.get_stack()) == (4, [])
    await supervisor.aclose()


def test_threads_of_anyio_serve_it_on_a_loop_that_runs_for_ever() -> None:
    """There anyio finds no task of ``run_until_complete``, and ties its threads to the current task."""
    served: list[int] = []

    async def work() -> None:
        served.append(await anyio.to_thread.run_sync(lambda: 5))

    async def main() -> None:
        supervisor = Supervisor()
        ended = asyncio.Event()
        started(supervisor, work()).add_done_callback(lambda _: ended.set())
        await ended.wait()
        await supervisor.aclose()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(main(), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
    assert served == [5]

"""The supervisor: no work is lost, and no resource stays open, however it ends."""

import asyncio
import gc
import logging
import weakref
from collections.abc import Callable, Coroutine

import pytest

from aioprefetch.runtime.supervisor import Supervisor
from aioprefetch.testing.conformance.suite import checks
from tests.stores.gated_reader import settle


class Log(list[str]):
    """What happened, in order."""

    def note(self, word: str) -> Callable[[], None]:
        return lambda: self.append(word)

    async def work(self, word: str) -> None:
        """Work that goes on until it is cancelled."""
        self.append(f"{word} begins")
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.append(f"{word} ends")

    def closer(self, word: str) -> Callable[[], Coroutine[object, object, None]]:
        """A closer that needs a turn of the loop."""

        async def close() -> None:
            await asyncio.sleep(0)
            self.append(word)

        return close


async def test_aclose_cancels_work_and_then_closes_in_reverse() -> None:
    supervisor, log = Supervisor(), Log()
    supervisor.on_close(log.closer("first"))
    supervisor.on_close(log.closer("second"))
    supervisor.spawn(log.work("w"), name="w", on_end=log.note("on_end"))
    await settle()
    await supervisor.aclose()
    assert log == ["w begins", "w ends", "on_end", "second", "first"]
    await supervisor.aclose()
    assert len(log) == 5


async def test_work_cancelled_before_its_first_step_calls_on_end() -> None:
    """Its body never runs, so what must be given back is given back by on_end."""
    supervisor, log = Supervisor(), Log()
    supervisor.spawn(log.work("early"), name="w", on_end=log.note("early on_end")).cancel()
    await settle()
    handle = supervisor.spawn(log.work("late"), name="w", on_end=log.note("late on_end"))
    handle.cancel()
    handle.cancel()
    await settle()
    assert log == ["early on_end", "late on_end"]
    await supervisor.aclose()


async def test_closed_before_its_own_first_step() -> None:
    """Nothing had a turn yet: on_end and closers are called all the same, no coroutine is left unawaited."""
    supervisor, log = Supervisor(), Log()
    supervisor.on_close(log.closer("closed"))
    supervisor.spawn(log.work("w"), name="w", on_end=log.note("on_end"))
    await supervisor.aclose()
    assert log == ["on_end", "closed"]


async def test_work_handed_over_after_closing_ends_at_once() -> None:
    supervisor, log = Supervisor(), Log()
    await supervisor.aclose()
    supervisor.spawn(log.work("w"), name="w", on_end=log.note("on_end"))
    assert log == ["on_end"]


async def test_work_that_hands_over_work_while_it_is_ended() -> None:
    supervisor, log = Supervisor(), Log()

    async def work() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            supervisor.spawn(log.work("child"), name="child", on_end=log.note("child on_end"))

    supervisor.spawn(work(), name="w", on_end=log.note("on_end"))
    await settle()
    await supervisor.aclose()
    assert log == ["child on_end", "on_end"]


async def test_a_second_aclose_does_not_cut_the_first_off() -> None:
    supervisor, log = Supervisor(), Log()
    for word in ("first", "second"):
        supervisor.on_close(log.closer(word))
    await settle()
    await asyncio.gather(supervisor.aclose(), supervisor.aclose(), supervisor.aclose())
    assert log == ["second", "first"]


@checks("reliability:C08")
async def test_a_cancelled_aclose_goes_on_in_the_background() -> None:
    supervisor, log = Supervisor(), Log()
    supervisor.on_close(log.closer("closed"))
    await settle()
    task = asyncio.create_task(supervisor.aclose())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await settle()
    assert log == ["closed"]


@checks("reliability:C31")
async def test_work_that_no_one_holds_goes_on_after_a_collection() -> None:
    """A loop keeps its tasks by weak references alone."""
    supervisor, log = Supervisor(), Log()
    waited = weakref.WeakSet[asyncio.Future[None]]()

    async def work() -> None:
        wait = asyncio.get_running_loop().create_future()  # Nothing beside this frame refers to it.
        waited.add(wait)
        await wait
        log.append("ended")

    supervisor.spawn(work(), name="w")
    await settle()
    gc.collect()
    [wait] = waited
    wait.set_result(None)
    await settle()
    assert log == ["ended"]
    await supervisor.aclose()


async def test_failing_work_is_logged_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    supervisor, log = Supervisor(), Log()

    async def fail() -> None:
        raise ValueError("a bug")

    supervisor.spawn(log.work("other"), name="other")
    with caplog.at_level(logging.ERROR):
        supervisor.spawn(fail(), name="buggy", on_end=log.note("on_end"))
        await settle()
    assert log == ["other begins", "on_end"]
    assert "buggy" in caplog.text
    assert not supervisor.closed
    await supervisor.aclose()


async def test_a_failing_closer_is_logged_and_the_others_are_called(caplog: pytest.LogCaptureFixture) -> None:
    supervisor, log = Supervisor(), Log()

    async def fail() -> None:
        raise OSError("no")

    supervisor.on_close(log.closer("first"))
    supervisor.on_close(fail)
    await supervisor.aclose()
    assert log == ["first"]
    assert "closing a resource failed" in caplog.text


@checks("reliability:C16")
def test_the_end_of_the_loop_closes_everything() -> None:
    """asyncio.run without aclose: the work is cancelled and waited for, the resources are closed."""
    log = Log()

    async def main() -> None:
        supervisor = Supervisor()
        supervisor.on_close(log.closer("first"))
        supervisor.on_close(log.closer("second"))
        supervisor.spawn(log.work("w"), name="w", on_end=log.note("on_end"))
        await settle()

    asyncio.run(main())
    assert log == ["w begins", "w ends", "on_end", "second", "first"]


def test_the_end_of_the_loop_before_the_first_step() -> None:
    log = Log()

    async def main() -> None:
        Supervisor().spawn(log.work("w"), name="w", on_end=log.note("on_end"))

    asyncio.run(main())
    assert log == ["on_end"]


def test_the_end_of_the_loop_while_closing_skips_no_closer() -> None:
    log = Log()

    async def hang() -> None:
        await asyncio.get_running_loop().create_future()

    async def main() -> None:
        supervisor = Supervisor()
        supervisor.on_close(log.closer("first"))
        supervisor.on_close(hang)
        await settle()
        task = asyncio.create_task(supervisor.aclose())
        await settle()
        assert not task.done()

    asyncio.run(main())
    assert log == ["first"]


async def test_ending_again_while_a_resource_is_being_closed_cuts_nothing_off() -> None:
    supervisor, log = Supervisor(), Log()
    closing, released = asyncio.Event(), asyncio.Event()

    async def close() -> None:
        closing.set()
        await released.wait()
        log.append("closed")

    supervisor.on_close(close)
    await settle()
    ended = asyncio.create_task(supervisor.aclose())
    await closing.wait()
    supervisor.end()
    again = asyncio.create_task(supervisor.aclose())
    await settle()
    released.set()
    await asyncio.gather(ended, again)
    assert log == ["closed"]

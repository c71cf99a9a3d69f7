"""What a process does to its reads: clocks that jump, threads and descriptors that run out, listeners that raise."""

import asyncio
import gc
import logging
import os
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aioprefetch import Operator, copy
from aioprefetch.errors import TimedOut, Unavailable
from aioprefetch.runtime.events import Event
from aioprefetch.testing import Fault
from aioprefetch.testing.conformance.suite import checks
from tests.probes.descriptors import IN_PROC, needs_proc
from tests.reliability.scripted import PATIENT_HANG_SECONDS, Serve, once

PATIENCE_SECONDS = 30
HOUR = 3600.0
OPENS = 300


@checks("reliability:C28")
@pytest.mark.parametrize("jump", [HOUR, -HOUR])
async def test_a_wall_clock_that_jumps(serve: Serve, monkeypatch: pytest.MonkeyPatch, jump: float) -> None:
    """Limits are kept by another clock: none ends early, and none lasts an hour longer."""
    real = time.time
    async with serve(once(Fault(hang_before_head=True), index=2)) as scripted, asyncio.timeout(PATIENCE_SECONDS):
        await scripted.read()
        monkeypatch.setattr(time, "time", lambda: real() + jump)
        await scripted.read(timeout_seconds=PATIENCE_SECONDS)
        with pytest.raises(TimedOut):
            await scripted.read(timeout_seconds=PATIENT_HANG_SECONDS)
        monkeypatch.setattr(time, "time", real)
        await scripted.read(timeout_seconds=PATIENCE_SECONDS)


@checks("reliability:W48", "reliability:C30")
async def test_threads_of_the_loop_that_are_all_taken(serve: Serve, tmp_path: Path) -> None:
    """What blocks for us has threads of its own, so calls get on beside a program that has taken all of asyncio's."""
    loop, released = asyncio.get_running_loop(), threading.Event()
    taken = [loop.run_in_executor(None, released.wait) for _ in range(2 * min(32, (os.cpu_count() or 1) + 4))]
    try:
        async with serve() as scripted, asyncio.timeout(PATIENCE_SECONDS):
            await scripted.read()
            async with scripted.operator.reader("k") as reader:
                assert await reader.read_at(10, 1000) == scripted.data[10:1010]
            (tmp_path / "source").write_bytes(b"bytes")
            memory = Operator.from_uri("memory://")
            await memory.upload(tmp_path / "source", "uploaded")
            with (tmp_path / "source").open("rb") as file:
                await memory.write("written", file)
            await memory.write("iterated", iter([b"bytes"]))
            await copy(tmp_path, (memory, "copied/"))
            await copy((memory, "copied/"), tmp_path / "back")
            assert (tmp_path / "back" / "source").read_bytes() == b"bytes"
            await memory.aclose()
            assert not any(one.done() for one in taken)
    finally:
        released.set()
        await asyncio.gather(*taken)


@checks("reliability:C32")
async def test_a_listener_that_raises(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """The error is logged once, and no read notices, nor another listener."""
    heard: list[str] = []

    def fail(event: Event) -> None:
        raise RuntimeError("the listener is broken")

    async with serve(once(Fault(reset_after_bytes=100))) as scripted:
        events = scripted.operator.runtime().events
        events.subscribe(fail)
        events.subscribe(lambda event: heard.append(event.name))
        with caplog.at_level(logging.ERROR, "aioprefetch"):
            await scripted.read()
            async with scripted.operator.reader("k") as reader:
                assert await reader.read_at(0, 1000) == scripted.data[:1000]
        await scripted.operator.aclose()  # The request may be drained until then.
        assert {"request.retried", "reader.opened", "block.fetched", "reader.closed"} <= set(heard)
        assert len([one for one in caplog.records if "a listener failed" in one.message]) == 1


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Whatever would open a file or a socket fails with EMFILE."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir(IN_PROC))) + 5, hard))
    opened = []
    try:
        while True:
            try:
                opened.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                break
        yield
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@checks("reliability:C35")
@needs_proc
async def test_no_descriptor_for_a_socket(serve: Serve) -> None:
    """The error says what is missing, takes nothing of what all share, and the next read finds one again."""
    async with serve() as scripted, asyncio.timeout(PATIENCE_SECONDS):
        if scripted.operator.capability.presign:  # What signs is made before: it needs descriptors of its own.
            await scripted.operator.presign("k", expires_seconds=60)
        with no_descriptor_left():
            error = await scripted.fail(Unavailable, requests=0)
            others = await asyncio.gather(*(scripted.operator.read("k") for _ in range(100)), return_exceptions=True)
        assert "EMFILE" in str(error)
        assert "ulimit -n" in str(error)
        assert {type(other) for other in others} == {Unavailable}
        await scripted.read()


def left_behind() -> tuple[int, int, int]:
    """Tasks, descriptors and objects that are alive."""
    gc.collect()
    return len(asyncio.all_tasks()), len(os.listdir(IN_PROC)), len(gc.get_objects())


@checks("reliability:C36")
@needs_proc
async def test_opening_again_and_again_leaves_nothing(serve: Serve) -> None:
    """No task, descriptor or object for each reader that was opened, read and closed."""
    async with serve() as scripted:

        async def open_readers(count: int) -> None:
            for number in range(count):
                async with scripted.operator.reader("k") as reader:
                    assert await reader.read_at(number, 10) == scripted.data[number : number + 10]
            scripted.server.requests.clear()

        await open_readers(OPENS // 10)
        tasks, descriptors, objects = left_behind()
        await open_readers(OPENS)
        after = left_behind()
        assert after[:2] == (tasks, descriptors)
        assert after[2] - objects < OPENS


@checks("reliability:C37")
@pytest.mark.skipif(not hasattr(asyncio, "eager_task_factory"), reason="no eager tasks before Python 3.12")
async def test_tasks_that_begin_at_once(serve: Serve) -> None:
    """A program may have chosen so for its loop: reads, readers and their prefetches get on."""
    loop = asyncio.get_running_loop()
    loop.set_task_factory(getattr(asyncio, "eager_task_factory", None))
    try:
        async with serve(once(Fault(reset_after_bytes=100))) as scripted, asyncio.timeout(PATIENCE_SECONDS):
            await scripted.read()
            await asyncio.gather(*(scripted.read(number, 100) for number in range(10)))
            async with scripted.operator.reader("k") as reader:
                assert b"".join([bytes(chunk) async for chunk in reader.stream()]) == scripted.data
    finally:
        loop.set_task_factory(None)

"""Short calls of threads: one thread makes them, and others help where it waits for a device."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from functools import partial

import pytest

from aioprefetch import errors
from aioprefetch.local_files.threads import WRITE_THREADS, FileThreads
from aioprefetch.runtime.options import RuntimeOptions
from aioprefetch.runtime.runtime import Runtime

CALLS = 40


@pytest.fixture
async def threads() -> AsyncIterator[FileThreads]:
    runtime = Runtime(RuntimeOptions())
    yield FileThreads.of(runtime)
    await runtime.aclose()


class Clock:
    """The clock of the process, which goes on by what is slept."""

    seconds = 0.0

    def sleep(self, seconds: float) -> int:
        """What a slow call does; the thread of it."""
        self.seconds += seconds
        return threading.get_ident()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: clock.seconds)
    return clock


async def test_one_thread_makes_short_calls_and_each_ends_for_itself(threads: FileThreads, clock: Clock) -> None:
    """What one raises is its own, and in no other's way."""
    seen = set[int]()

    def call(number: int) -> int:
        seen.add(threading.get_ident())
        if number % 3 == 0:
            raise ValueError(number)
        return number

    results = await asyncio.gather(
        *(threads.call_short(partial(call, number)) for number in range(CALLS)), return_exceptions=True
    )
    assert [result.args[0] if isinstance(result, ValueError) else result for result in results] == [*range(CALLS)]
    assert [isinstance(result, ValueError) for result in results] == [number % 3 == 0 for number in range(CALLS)]
    assert len(seen) == 1


async def test_slow_calls_have_all_threads(threads: FileThreads, clock: Clock) -> None:
    """Where calls turn out to be slow, as many as there are threads are made at once."""
    await threads.call_short(clock.sleep, 1.0)
    together = threading.Barrier(WRITE_THREADS, timeout=20)
    await asyncio.gather(*(threads.call_short(together.wait) for _ in range(WRITE_THREADS)))


async def test_calls_that_are_fast_again_have_one_thread(threads: FileThreads, clock: Clock) -> None:
    seen = [await threads.call_short(clock.sleep, seconds) for seconds in [0.0001, 1.0, *[0.0001] * 300]]
    assert seen[0] == seen[1] == seen[-1]
    assert seen[2] != seen[1]


async def test_short_calls_of_a_closed_runtime_are_refused() -> None:
    runtime = Runtime(RuntimeOptions())
    threads = FileThreads.of(runtime)
    await runtime.aclose()
    for _ in range(2):
        with pytest.raises(errors.Closed):
            await threads.call_short(int)

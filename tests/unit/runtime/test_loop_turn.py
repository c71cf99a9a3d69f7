"""Tasks that read what is in memory take turns, and let every other task have its own."""

import asyncio
import itertools

import pytest

from aioprefetch.runtime.runtime import TURN_BYTES, LoopTurn
from aioprefetch.testing.conformance.suite import checks
from tests.profile import each_of


async def reading(turn: LoopTurn, name: int, count: int, size_bytes: int, log: list[int]) -> None:
    """Read ``count`` times, as a caller does."""
    for _ in range(count):
        if turn.left_bytes <= 0:
            await turn.end()
        log.append(name)
        turn.spend(size_bytes)


@checks("reliability:C29")
@each_of("size_bytes", [0, 1, 4096, TURN_BYTES, 2 * TURN_BYTES])
@each_of("tasks", [1, 3, 50])
async def test_no_turn_is_long(tasks: int, size_bytes: int) -> None:
    """Between two turns of another task there are few reads, however many tasks read."""
    turn = LoopTurn(asyncio.get_running_loop())
    log: list[int] = []
    seen = [0]
    readers = asyncio.gather(*[reading(turn, name, 40, size_bytes, log) for name in range(tasks)])
    while not readers.done():
        await asyncio.sleep(0)
        seen.append(len(log))
    await readers
    assert len(log) == 40 * tasks
    assert max(after - before for before, after in itertools.pairwise(seen)) <= 32


@pytest.mark.parametrize("tasks", [2, 7, 30])
async def test_no_task_is_left_behind(tasks: int) -> None:
    """The last one ends its first half before the first one ends its last tenth."""
    log: list[int] = []
    turn = LoopTurn(asyncio.get_running_loop())
    await asyncio.gather(*[reading(turn, name, 200, 4096, log) for name in range(tasks)])
    place = [[number for number, name in enumerate(log) if name == task] for task in range(tasks)]
    assert max(places[100] for places in place) < min(places[180] for places in place)


@pytest.mark.parametrize("tasks", [10, 100])
async def test_tasks_that_read_once_begin_together(tasks: int) -> None:
    """There are far fewer turns than tasks."""
    log: list[int] = []
    turn = LoopTurn(asyncio.get_running_loop())
    readers = asyncio.gather(*[reading(turn, name, 1, 0, log) for name in range(tasks)])
    turns = 0
    while not readers.done():
        await asyncio.sleep(0)
        turns += 1
    assert log == list(range(tasks))
    assert turns < 8 + tasks // 4


async def test_cancelled_waiters_delay_no_other() -> None:
    log: list[int] = []
    turn = LoopTurn(asyncio.get_running_loop())
    tasks = [asyncio.ensure_future(reading(turn, name, 40, TURN_BYTES, log)) for name in range(20)]
    for turns, task in enumerate(tasks[::2]):
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
    await asyncio.gather(*tasks[1::2])
    assert all(task.cancelled() for task in tasks[::2])
    assert all(log.count(name) == 40 for name in range(1, 20, 2))
    await asyncio.wait_for(reading(turn, 99, 3, TURN_BYTES, log), 5)

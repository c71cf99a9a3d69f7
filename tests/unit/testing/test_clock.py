"""The virtual clock: time passes without waiting, in order, repeatably, and a hang is an error."""

import asyncio
import random
import time

import anyio
import pytest

from aioprefetch.testing.clock import Deadlock, VirtualClockLoop, run_virtual

HOUR = 3600.0


def test_an_hour_of_sleep_takes_no_real_time() -> None:
    """An hour of virtual time takes almost no real time."""

    async def scenario() -> float:
        loop = asyncio.get_running_loop()
        start = loop.time()
        await anyio.sleep(HOUR)
        return loop.time() - start

    real = time.monotonic()
    assert run_virtual(scenario) == pytest.approx(HOUR)
    assert time.monotonic() - real < 5


def test_timers_fire_in_order_of_their_deadline() -> None:
    """A later deadline never overtakes an earlier one."""

    async def scenario() -> list[float]:
        fired: list[float] = []
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        for delay_seconds in (3.0, 1.0, 2.0):
            loop.call_later(delay_seconds, fired.append, delay_seconds)
        loop.call_later(4.0, done.set_result, None)
        await done
        return fired

    assert run_virtual(scenario) == [1.0, 2.0, 3.0]


def test_timeouts_fire() -> None:
    """asyncio and anyio timeouts run on virtual time."""

    async def scenario() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await asyncio.Event().wait()
        with anyio.move_on_after(HOUR):
            await anyio.sleep_forever()
        return asyncio.get_running_loop().time()

    assert run_virtual(scenario) == pytest.approx(60 + HOUR)


def test_a_wait_without_an_end_is_a_deadlock_that_names_the_waiter() -> None:
    """A hang is reported with the task and the line, not by a hanging test run."""

    async def waits_for_ever() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match=r"no timer is armed at 0 s\n.*wait"):
        run_virtual(waits_for_ever)


def test_a_timer_that_is_never_stopped_is_a_deadlock() -> None:
    """A heartbeat keeps the loop busy, so virtual time itself is bounded."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()

        def heartbeat() -> None:
            loop.call_later(HOUR, heartbeat)

        heartbeat()
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match="limit of 86400 s"):
        run_virtual(scenario, seconds_max=24 * HOUR)


async def _order_of_steps() -> list[tuple[int, int]]:
    steps: list[tuple[int, int]] = []

    async def worker(number: int) -> None:
        for step in range(3):
            steps.append((number, step))
            await asyncio.sleep(0)

    await asyncio.gather(*(worker(number) for number in range(5)))
    return steps


def test_the_same_seed_gives_the_same_schedule_and_seeds_differ() -> None:
    """Probes the private names of asyncio that the shuffle relies on."""
    by_seed = {seed: run_virtual(_order_of_steps, seed=seed) for seed in range(8)}
    assert all(run_virtual(_order_of_steps, seed=seed) == steps for seed, steps in by_seed.items())
    assert len({tuple(steps) for steps in by_seed.values()}) > 1


def test_without_a_seed_tasks_step_in_the_order_of_asyncio() -> None:
    """Without a seed the schedule is that of asyncio."""
    assert run_virtual(_order_of_steps) == asyncio.run(_order_of_steps())


def test_callbacks_keep_their_order_under_a_seed() -> None:
    """call_soon is first in, first out with every seed."""

    async def scenario() -> list[int]:
        called: list[int] = []
        loop = asyncio.get_running_loop()
        for number in range(20):
            loop.call_soon(called.append, number)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return called

    for seed in range(5):
        assert run_virtual(scenario, seed=seed) == list(range(20))


def test_the_random_module_is_seeded_and_put_back() -> None:
    """Code that draws from the module-level generator repeats; the caller's state is untouched."""

    async def draw() -> float:
        return random.random()

    before = random.getstate()
    assert run_virtual(draw, seed=7) == run_virtual(draw, seed=7)
    assert random.getstate() == before


def test_executor_jobs_run_inline_and_report_errors() -> None:
    """No thread is started, results and exceptions arrive as usual."""

    async def scenario() -> int:
        loop = asyncio.get_running_loop()
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(None, lambda: 1 // 0)
        return await asyncio.to_thread(lambda: 42)

    assert run_virtual(scenario) == 42


@pytest.mark.virtual
async def test_the_marker_puts_a_test_on_the_virtual_loop() -> None:
    """The plugin hook in tests/conftest.py picks the loop."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualClockLoop)
    await anyio.sleep(HOUR)
    assert loop.time() >= HOUR

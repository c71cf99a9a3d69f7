"""Work side by side: results in order, one error, and no task left."""

import asyncio
from functools import partial

import pytest

from aioprefetch.runtime.task_group import PlainTaskGroup, gather_all
from aioprefetch.testing.conformance.suite import checks

pytestmark = pytest.mark.virtual

LONG_SECONDS = 5.0


async def test_results_are_in_the_order_of_the_calls_and_few_run_at_once() -> None:
    running = [0, 0]

    async def call(number: int) -> int:
        running[0] += 1
        running[1] = max(running)
        await asyncio.sleep(10 - number)
        running[0] -= 1
        return number

    for at_once, most in ((None, 10), (3, 3), (1, 1)):
        running[1] = 0
        assert await gather_all((partial(call, number) for number in range(10)), at_once=at_once) == list(range(10))
        assert running == [0, most]
    assert await gather_all([]) == []


@checks("reliability:C09")
@pytest.mark.parametrize("at_once", [None, 2])
@pytest.mark.parametrize("count", [1, 5])
async def test_each_failure_is_raised_as_it_is_and_ends_the_others(count: int, at_once: int | None) -> None:
    for failing in range(count):
        ended: list[int] = []

        async def call(number: int, failing: int = failing, ended: list[int] = ended) -> None:
            try:
                await asyncio.sleep(1 if number == failing else LONG_SECONDS)
                if number == failing:
                    raise KeyError(number) from ValueError("cause")
            finally:
                ended.append(number)

        with pytest.raises(KeyError) as caught:
            await gather_all([partial(call, number) for number in range(count)], at_once=at_once)
        assert caught.value.args == (failing,)
        assert isinstance(caught.value.__cause__, ValueError)
        assert failing in ended
        assert len(asyncio.all_tasks()) == 1


async def test_a_cancellation_ends_all_calls() -> None:
    ended: list[int] = []

    async def call(number: int) -> None:
        try:
            await asyncio.sleep(LONG_SECONDS)
        finally:
            ended.append(number)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await gather_all([partial(call, number) for number in range(3)])
    assert sorted(ended) == [0, 1, 2]


async def test_a_failure_of_the_block_is_raised_as_it_is() -> None:
    async def run() -> None:
        async with PlainTaskGroup() as group:
            group.create_task(asyncio.sleep(LONG_SECONDS))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await run()
    assert len(asyncio.all_tasks()) == 1

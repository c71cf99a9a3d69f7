"""`map_batches`: order, window, errors with the batch's number, and nothing left running. Without Spark."""

import asyncio
import inspect
import pickle
import threading
import typing
from collections.abc import AsyncIterator, Callable, Iterator

import pandas as pd
import pytest

from aioprefetch.errors import ConfigInvalid, InvalidArgument, InvalidType, TimedOut
from aioprefetch.spark.udf import BatchMapping, map_batches
from aioprefetch.sync import run
from tests.stores.gated_reader import settle


class Gauge:
    """How many are in work, and how many at most."""

    def __init__(self) -> None:
        self.now = 0
        self.most = 0
        self.cancelled = 0

    async def __call__(self, number: int) -> int:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            # The first to begin is the last to end.
            for _ in range(30 - number % 10):
                await asyncio.sleep(0)
            return number * 10
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.now -= 1


async def hang() -> None:
    await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("window", [1, 3, 50])
def test_results_come_in_order_within_the_window(window: int) -> None:
    gauge = Gauge()
    assert list(map_batches(gauge, window=window)(range(40))) == [n * 10 for n in range(40)]
    assert gauge.most <= window
    assert window == 1 or gauge.most > 1


def test_the_input_is_taken_on_the_callers_thread_and_no_further_than_the_window() -> None:
    taken: list[int] = []
    threads = set()

    def batches() -> Iterator[int]:
        for number in range(20):
            threads.add(threading.current_thread())
            taken.append(number)
            yield number

    for given, _ in enumerate(map_batches(Gauge(), window=3)(batches())):
        assert len(taken) <= given + 3
    assert threads == {threading.current_thread()}


def test_a_generator_gives_any_number_of_batches() -> None:
    async def repeat(number: int) -> AsyncIterator[str]:
        for turn in range(number % 3):
            await asyncio.sleep(0)
            yield f"{number}.{turn}"

    assert list(map_batches(repeat)(range(6))) == ["1.0", "2.0", "2.1", "4.0", "5.0", "5.1"]


def test_a_coroutine_may_return_a_stream() -> None:
    async def stream(number: int) -> AsyncIterator[int]:
        async def items() -> AsyncIterator[int]:
            yield number
            yield -number

        return items()

    mapped: Callable[[object], Iterator[int]] = map_batches(stream)  # type: ignore[arg-type, assignment]
    assert list(mapped([1, 2])) == [1, -1, 2, -2]


def test_an_error_names_the_batch_and_cancels_the_rest() -> None:
    gauge = Gauge()

    async def fail(number: int) -> int:
        if number == 3:
            raise LookupError("no such key")
        return await gauge(number)

    results: list[int] = []
    with pytest.raises(LookupError, match="no such key") as caught:
        results.extend(map_batches(fail, window=3)(range(100)))
    assert results == [0, 10, 20]
    assert caught.value.__notes__ == ["in batch 3 of this task, counted from 0, in map_batches()"]
    assert gauge.now == 0


def test_leaving_early_cancels_what_is_in_work() -> None:
    closed: list[int] = []

    async def hold(number: int) -> int:
        if number == 0:
            return 0
        try:
            await hang()
        finally:
            closed.append(number)
        return number

    results = map_batches(hold, window=4)(range(100))
    assert next(results) == 0
    run(settle())
    results.close()  # type: ignore[attr-defined]
    assert sorted(closed) == [1, 2, 3]


def test_a_failing_input_cancels_what_is_in_work() -> None:
    closed: list[int] = []

    async def hold(number: int) -> int:
        try:
            await hang()
        finally:
            closed.append(number)
        return number

    def batches() -> Iterator[int]:
        yield 0
        yield 1
        run(settle())
        raise ConnectionResetError("the socket broke")

    with pytest.raises(ConnectionResetError, match="the socket broke"):
        list(map_batches(hold, window=4)(batches()))
    assert sorted(closed) == [0, 1]


def test_a_result_that_takes_too_long() -> None:
    async def slow(number: int) -> int:
        if number:
            await hang()
        return number

    results = map_batches(slow, timeout_seconds=0.1)(range(3))
    assert next(results) == 0
    with pytest.raises(TimedOut, match=r"timeout_seconds=0\.1") as caught:
        next(results)
    assert "in batch 1 " in caught.value.__notes__[0]


def test_a_timeout_of_the_functions_own_stays_what_it_is() -> None:
    async def fail(number: int) -> int:
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        list(map_batches(fail, timeout_seconds=5)([1]))


def test_a_function_that_is_not_asynchronous_is_refused_when_it_runs() -> None:
    with pytest.raises(InvalidType, match="has to be asynchronous; it returned int"):
        list(map_batches(lambda number: number)([1]))  # type: ignore[arg-type]


def test_as_a_decorator_with_and_without_options() -> None:
    @map_batches
    async def once(number: int) -> int:
        """Say it once."""
        return number

    @map_batches(window=2)
    async def twice(number: int) -> int:
        return number * 2

    assert list(once([1, 2])) == [1, 2]
    assert list(twice([1, 2])) == [2, 4]
    assert (once.__name__, once.__doc__) == ("once", "Say it once.")


def test_hints_become_those_of_iterators() -> None:
    async def series(x: pd.Series) -> pd.Series:
        return x

    async def several(x: tuple[pd.Series, ...]) -> AsyncIterator[pd.DataFrame]:
        yield pd.DataFrame()

    async def unhinted(x):  # type: ignore[no-untyped-def]
        return x

    assert typing.get_type_hints(map_batches(series)) == {
        "batches": Iterator[pd.Series],
        "return": Iterator[pd.Series],
    }
    assert typing.get_type_hints(map_batches(several)) == {
        "batches": Iterator[tuple[pd.Series, ...]],
        "return": Iterator[pd.DataFrame],
    }
    assert typing.get_type_hints(map_batches(unhinted)) == {}
    assert list(inspect.signature(map_batches(series)).parameters) == ["batches"]


def test_the_plan_travels_by_pickle() -> None:
    mapping: BatchMapping[float, None] = pickle.loads(pickle.dumps(BatchMapping(asyncio.sleep, 2, None)))
    assert list(mapping.run([0.0, 0.0])) == [None, None]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"window": 0}, ConfigInvalid),
        ({"window": "4"}, InvalidType),
        ({"timeout_seconds": 0}, InvalidArgument),
        ({"fn": 3}, InvalidType),
    ],
)
def test_nonsense_is_refused_at_once(options: dict[str, typing.Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        map_batches(**{"fn": Gauge(), **options})

"""`with_operator`: one operator for each recipe and process, no secret on the way, signatures as Spark reads them."""

import asyncio
import functools
import inspect
import os
import pickle
import typing
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from aioprefetch.errors import ConfigInvalid, InvalidType, NotFound
from aioprefetch.operator.operator import Operator
from aioprefetch.spark import worker
from aioprefetch.spark.udf import WarmOperator, map_batches, warn_of_single_calls, with_operator
from aioprefetch.sync import BlockingOperator
from aioprefetch.testing.conformance.suite import checks
from tests.probes.programs import run_program


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A URL of a directory with one object."""
    (tmp_path / "k").write_bytes(b"0123456789")
    return tmp_path.as_uri()


def test_each_function_gets_the_operator_of_its_kind(store: str) -> None:
    @with_operator(store)
    def plain(start: int, operator: BlockingOperator) -> bytes:
        return operator.read_at("k", start, 2)

    @with_operator(store)
    def generator(numbers: Iterator[int], *, operator: BlockingOperator) -> Iterator[bytes]:
        for number in numbers:
            yield operator.read_at("k", number, 2)

    @map_batches
    @with_operator(store)
    async def batch(number: int, operator: Operator) -> bytes:
        return await operator.read("k", offset=number, size=2)

    @map_batches
    @with_operator(store)
    async def batches(number: int, operator: Operator) -> AsyncIterator[bytes]:
        yield await operator.read("k", offset=number, size=2)

    assert plain(3) == b"34"
    assert list(generator(iter([1, 2]))) == list(batch([1, 2])) == list(batches([1, 2])) == [b"12", b"23"]


async def test_an_asynchronous_function_gives_its_value_where_no_loop_runs(store: str) -> None:
    async def later(start: int, operator: Operator) -> bytes:
        return await operator.read("k", offset=start, size=2)

    class Reader:
        async def __call__(self, start: int, operator: Operator) -> bytes:
            return await operator.read("k", offset=start, size=2)

    functions: list[Callable[..., typing.Any]] = [later, functools.partial(later), Reader()]
    for function in map(with_operator(store), functions):
        assert await asyncio.to_thread(function, 3) == b"34"
        made = function(3)
        assert inspect.iscoroutine(made), "here a loop runs"
        made.close()

    @with_operator(store)
    async def failing(operator: Operator) -> bytes:
        return await operator.read("no such key")

    with pytest.raises(NotFound):
        await asyncio.to_thread(failing)


def test_an_asynchronous_generator_is_refused_where_no_loop_runs(store: str) -> None:
    @with_operator(store)
    async def parts(batches: Iterator[int], operator: Operator) -> AsyncIterator[bytes]:
        for start in batches:
            yield await operator.read("k", offset=start, size=2)

    with pytest.raises(InvalidType, match=r"parts is an asynchronous generator.*map_batches"):
        parts(iter([1]))


def test_an_operator_that_a_function_closed_is_made_again(store: str) -> None:
    @with_operator(store, concurrency=9)
    def closing(operator: BlockingOperator) -> bytes:
        with operator:
            return operator.read_at("k", 0, 2)

    @map_batches
    @with_operator(store, concurrency=9)
    async def closing_later(number: int, operator: Operator) -> bytes:
        async with operator:
            return await operator.read("k", offset=number, size=2)

    assert closing() == closing() == b"01"
    assert list(closing_later([3])) == list(closing_later([3])) == [b"34"]
    assert closing() == b"01"


def test_a_callable_object_is_asked_by_its_method(store: str) -> None:
    class Reader:
        async def __call__(self, number: int, operator: Operator) -> bytes:
            return await operator.read("k", offset=number, size=1)

    assert list(map_batches(with_operator(store)(Reader()))([4])) == [b"4"]


def test_the_same_recipe_is_the_same_operator_however_often_it_travels(store: str) -> None:
    recipe = WarmOperator(store, {"concurrency": 3})
    copies = [pickle.loads(pickle.dumps(recipe)) for _ in range(3)]
    assert {id(copy.blocking) for copy in copies} == {id(recipe.blocking)}
    assert WarmOperator(store, {"concurrency": 3}).operator is recipe.operator
    assert WarmOperator(store, {"concurrency": 4}).operator is not recipe.operator
    assert recipe.operator is recipe.blocking.operator


def test_what_was_read_once_costs_no_request_the_second_time(store: str) -> None:
    @with_operator(store, concurrency=7)
    def read(operator: BlockingOperator) -> tuple[bytes, int]:
        return operator.read_at("k", 0, 4), operator.statistics["action_http_get_request"]

    assert read() == (b"0123", 1)
    again = pickle.loads(pickle.dumps(WarmOperator(store, {"concurrency": 7}))).blocking
    assert again.read_at("k", 2, 4) == b"2345"
    assert read() == (b"0123", 1)


def test_memory_is_the_workers_share_unless_it_is_given(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "state", worker.WorkerState())
    monkeypatch.setenv("PYSPARK_EXECUTOR_MEMORY_MB", "64")
    share = worker.memory_budget_bytes()
    assert WarmOperator(store).operator.options.memory_bytes == share == 32 << 20
    large_blocks = WarmOperator(store, {"block_bytes": 16 << 20}).operator
    assert large_blocks.options.memory_bytes == 64 << 20
    assert WarmOperator(store, {"memory_bytes": 9 << 20}).operator.options.memory_bytes == 9 << 20


def test_a_worker_keeps_few_operators_and_those_asked_for_last(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "state", worker.WorkerState())
    recipes = [WarmOperator(store, {"concurrency": number}) for number in range(1, worker.OPERATORS_MAX + 3)]
    first = recipes[0].blocking
    held = recipes[1].blocking
    for recipe in recipes[1:]:
        recipe.blocking.read_at("k", 0, 1)
        assert recipes[0].blocking is first
    assert len(worker.state.operators) == worker.OPERATORS_MAX
    assert recipes[1].blocking is not held


def test_an_operator_may_be_given_whole(store: str) -> None:
    given = Operator.from_uri(store, memory_bytes=12 << 20)
    recipe = pickle.loads(pickle.dumps(WarmOperator(given)))
    assert recipe.operator.options.memory_bytes == 12 << 20
    assert repr(recipe) == f"<WarmOperator {given.info.url}>"


@checks("reliability:P18")
def test_no_secret_travels_and_the_driver_warns(caplog: pytest.LogCaptureFixture) -> None:
    options: dict[str, Any] = {
        "access_key_id": "AKIAEXAMPLE",
        "secret_access_key": "do-not-tell",
        "session_token": "env:TOKEN",
    }

    @with_operator("s3://bucket", **options)
    def read(operator: BlockingOperator) -> None: ...

    recipe = WarmOperator("s3://bucket", options)
    for text in (pickle.dumps(recipe), repr(recipe).encode(), caplog.text.encode()):
        assert b"AKIAEXAMPLE" not in text
        assert b"do-not-tell" not in text
    assert "secret_access_key is not sent to Spark's workers" in caplog.text
    assert "session_token is" not in caplog.text


def test_signature_and_hints_are_without_the_operator(store: str) -> None:
    @with_operator(store)
    def series(x: pd.Series, y: pd.Series, operator: BlockingOperator) -> pd.Series:
        """Add."""
        return x + y

    assert list(inspect.signature(series).parameters) == inspect.getfullargspec(series).args == ["x", "y"]
    assert typing.get_type_hints(series) == {"x": pd.Series, "y": pd.Series, "return": pd.Series}
    assert (series.__name__, series.__doc__) == ("series", "Add.")

    @map_batches
    @with_operator(store)
    async def later(x: pd.Series, operator: Operator) -> pd.Series:
        return x

    assert typing.get_type_hints(later) == {"batches": Iterator[pd.Series], "return": Iterator[pd.Series]}


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: with_operator("s3://bucket", colour="red"), ConfigInvalid),  # type: ignore[call-arg]
        (lambda: with_operator("gopher://bucket"), ConfigInvalid),
        (lambda: with_operator("memory://m", memory_bytes=0), ConfigInvalid),
        (lambda: with_operator(3), InvalidType),  # type: ignore[arg-type]
        (lambda: with_operator(Operator.from_uri("memory://m"), concurrency=3), ConfigInvalid),
        (lambda: with_operator("memory://m")(lambda batch: batch), ConfigInvalid),
    ],
)
def test_mistakes_show_where_they_are_written(make: Callable[[], object], error: type[Exception]) -> None:
    with pytest.raises(error):
        make()


def test_only_workers_of_spark_are_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    before = pa.cpu_count(), pa.io_thread_count()
    monkeypatch.setattr(worker, "state", worker.WorkerState())
    worker.prepare()
    assert (pa.cpu_count(), pa.io_thread_count()) == before


@checks("reliability:P19")
def test_a_worker_is_prepared_once_and_a_fork_of_it_again(store: str) -> None:
    source = f"""
import os
os.environ["SPARK_PYTHON_RUNTIME"] = "PYTHON_WORKER"
import pyarrow as pa
from aioprefetch.spark import worker
from aioprefetch.spark.udf import WarmOperator
recipe = WarmOperator({store!r})
parent = recipe.blocking
assert parent.read_at("k", 0, 2) == b"01"
assert (pa.cpu_count(), pa.io_thread_count()) == (1, 2)
pa.set_cpu_count(5)
worker.prepare()
assert pa.cpu_count() == 5
pid = os.fork()
if not pid:
    mine = recipe.blocking
    assert mine is not parent and recipe.blocking is mine
    assert mine.read_at("k", 2, 2) == b"23" and mine.statistics["action_http_get_request"] == 1
    assert pa.cpu_count() == 1
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert recipe.blocking is parent
print("both")
"""
    assert run_program(source) == "both\n"
    assert "SPARK_PYTHON_RUNTIME" not in os.environ


def test_what_a_worker_has_imported_is_left_out_of_the_collections_after_its_tasks() -> None:
    source = """
import gc, os
from aioprefetch.spark import worker
worker.prepare()
gc.collect()
worker.prepare()
assert gc.get_freeze_count() == 0, "it is not a worker of Spark"
os.environ["SPARK_PYTHON_RUNTIME"] = "PYTHON_WORKER"
worker.prepare()
worker.prepare()
assert gc.get_freeze_count() == 0, "the first task is not over"
gc.collect()
worker.prepare()
frozen = gc.get_freeze_count()
assert frozen > 10_000, frozen
gc.collect()
worker.prepare()
assert gc.get_freeze_count() <= frozen, "once"
print("spared")
"""
    assert run_program(source) == "spared\n"


@pytest.mark.parametrize(("argument", "warns"), [("a", True), (pa.array(["a"]), False), (iter(()), False)])
def test_a_udf_that_is_called_value_by_value_says_that_it_is_slow(
    store: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, argument: Any, warns: bool
) -> None:
    monkeypatch.setenv("SPARK_PYTHON_RUNTIME", "PYTHON_WORKER")

    @with_operator(store)
    def plain(value: Any, operator: Any) -> Any:
        return value

    @with_operator(store)
    async def asynchronous(value: Any, operator: Any) -> Any:
        return value

    for function in (plain, asynchronous):
        warn_of_single_calls.cache_clear()
        caplog.clear()
        for _ in range(2):
            function(argument)
        assert caplog.text.count("called for one value after the other") == warns

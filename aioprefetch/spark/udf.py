"""Asynchronous code in functions that Spark runs: ``map_batches`` and ``with_operator``.

``map_batches`` runs an asynchronous function over the batches of a task, several at a time, results in order.

``with_operator`` gives a function the one warm Operator of its Python worker. Only a recipe travels with the function:
a store and settings, secrets as references. The worker looks up, or makes, the Operator of that recipe, so that a later
task finds connections open and blocks in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
import pickle
import typing
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from aioprefetch.accessor.protocols import Service
from aioprefetch.credentials import Secret
from aioprefetch.errors import ConfigInvalid, InvalidType, TimedOut
from aioprefetch.operator.from_uri import configure
from aioprefetch.operator.operator import Operator
from aioprefetch.operator.shared import shared_copy
from aioprefetch.options import SECONDS
from aioprefetch.ranges import at_least
from aioprefetch.runtime.events import logger
from aioprefetch.spark import worker
from aioprefetch.sync import BlockingIterator, BlockingOperator, iterate, run

if TYPE_CHECKING:
    from aioprefetch.operator.options import UriOptions

X = TypeVar("X")
Y = TypeVar("Y")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

Result = Awaitable[Y] | AsyncIterator[Y]
Mapped = Callable[[Iterable[X]], Iterator[Y]]

WINDOW = 4
# The maximum number of waiting results of one batch.
RESULTS_AHEAD = 2


@overload
def map_batches(
    fn: Callable[[X], Result[Y]], *, window: int = WINDOW, timeout_seconds: float | None = None
) -> Mapped[X, Y]: ...


@overload
def map_batches(
    fn: None = None, *, window: int = WINDOW, timeout_seconds: float | None = None
) -> Callable[[Callable[[X], Result[Y]]], Mapped[X, Y]]: ...


def map_batches(
    fn: Callable[[X], Result[Y]] | None = None, *, window: int = WINDOW, timeout_seconds: float | None = None
) -> Any:
    """Turn an asynchronous function into a function over an iterator of batches, as Spark calls it.

    For ``df.mapInArrow(map_batches(fn), schema)``, ``mapInPandas``, and ``pandas_udf`` and ``arrow_udf`` in their form
    with iterators (``fn`` has to have type hints there). ``fn`` takes a batch and returns one, or is an asynchronous
    generator of any number of them. At most ``window`` batches are in work, all on the loop thread of the worker;
    their results come in the order of the batches, up to two of a batch waiting. Work that keeps the processor busy
    belongs in ``asyncio.to_thread``.

    An error has a note that says which batch of the task it was in, counted from 0; the rest is cancelled, as when the
    consumer leaves early or the input fails. ``TimedOut`` when a result takes longer than ``timeout_seconds``.

    Without ``fn`` it returns a decorator.
    """
    plan = (
        at_least(1, window, "window", operation="map_batches", path=""),
        None if timeout_seconds is None else SECONDS.checked(timeout_seconds, "timeout_seconds", "map_batches"),
    )
    if fn is None:
        return lambda function: _mapped(function, *plan)
    return _mapped(fn, *plan)


def _mapped(fn: Callable[[X], Result[Y]], window: int, timeout_seconds: float | None) -> Mapped[X, Y]:
    if not callable(fn):
        raise InvalidType(f"map_batches() needs a function, not {fn!r}", operation="map_batches")
    mapping = BatchMapping(fn, window, timeout_seconds)

    # Pickled by value, so it refers only to modules that are imported in the worker.
    def mapped(batches: Iterable[X]) -> Iterator[Y]:
        return mapping.run(batches)

    mapped.__name__ = getattr(fn, "__name__", type(fn).__name__)
    mapped.__doc__ = fn.__doc__
    mapped.__annotations__ = _iterator_hints(fn)
    return mapped


class BatchMapping(typing.Generic[X, Y]):
    """The function and its window, as run by a task."""

    def __init__(self, fn: Callable[[X], Result[Y]], window: int, timeout_seconds: float | None) -> None:
        self._fn = fn
        self._window = window
        self._timeout_seconds = timeout_seconds

    def run(self, batches: Iterable[X]) -> Iterator[Y]:
        """The results, in order. The input is taken on the caller's thread alone: it is a socket."""
        worker.prepare()
        source = enumerate(batches)
        working: deque[BlockingIterator[Y]] = deque()
        has_more = True
        try:
            while True:
                while has_more and len(working) < self._window:
                    numbered = next(source, None)
                    if numbered is None:
                        has_more = False
                    else:
                        working.append(self._start(*numbered))
                if not working:
                    return
                yield from working[0]
                working.popleft()
        finally:
            for results in working:  # first all of them, so that they end side by side
                results.cancel()
            for results in working:
                results.close()

    def _start(self, number: int, batch: X) -> BlockingIterator[Y]:
        results = iterate(lambda: self._results(number, batch), window_items=RESULTS_AHEAD)
        results.start()
        return results

    async def _results(self, number: int, batch: X) -> AsyncIterator[Y]:
        try:
            outcome: Any = self._fn(batch)
            if inspect.isawaitable(outcome):
                outcome = await self._in_time(outcome)
                if not hasattr(outcome, "__aiter__"):
                    yield outcome
                    return
            if not hasattr(outcome, "__aiter__"):
                raise InvalidType(
                    f"the function of map_batches() has to be asynchronous; it returned {type(outcome).__name__}",
                    operation="map_batches",
                )
            async with contextlib.aclosing(aiter(outcome)) as items:
                while True:
                    try:
                        item = await self._in_time(anext(items))
                    except StopAsyncIteration:
                        return
                    yield item
        except Exception as error:
            error.add_note(f"in batch {number} of this task, counted from 0, in map_batches()")
            raise

    async def _in_time(self, awaitable: Awaitable[T]) -> T:
        if self._timeout_seconds is None:
            return await awaitable
        try:
            async with asyncio.timeout(self._timeout_seconds) as timeout:
                return await awaitable
        except TimeoutError as error:
            if not timeout.expired():
                raise
            raise TimedOut(
                f"no result within timeout_seconds={self._timeout_seconds}", operation="map_batches"
            ) from error


def _iterator_hints(fn: Callable[..., Any]) -> dict[str, Any]:
    """``Series -> Series`` as ``Iterator[Series] -> Iterator[Series]``, by which Spark tells kinds of UDFs apart."""
    try:
        hints = typing.get_type_hints(fn)
    except (NameError, TypeError, AttributeError):
        return {}  # hints that only a type checker understands, or none
    returned = hints.pop("return", None)
    taken = next((hints[name] for name in inspect.signature(fn).parameters if name in hints), None)
    if taken is None or returned is None:
        return {}
    if typing.get_origin(returned) in _STREAMS:
        returned = typing.get_args(returned)[0]
    iterator: Any = Iterator
    return {"batches": iterator[taken], "return": iterator[returned]}


_STREAMS = (
    typing.get_origin(typing.AsyncIterator[int]),
    typing.get_origin(typing.AsyncIterable[int]),
    typing.get_origin(typing.AsyncGenerator[int, None]),
)


# The parameter by which a decorated function gets its operator.
OPERATOR = "operator"


class WarmOperator:
    """A recipe that pickles without secrets, and finds its Operator in each process.

    In a process all functions and sources with the same URL and options, or with copies of one Operator, share
    connections, memory and credentials.

    ``store`` is a URL with the options of ``Operator.from_uri``, checked at once, or an ``Operator``. An Operator from
    a URL gets the worker's share of memory unless ``memory_bytes`` is given.
    """

    def __init__(self, store: str | os.PathLike[str] | Operator, options: Mapping[str, Any] | None = None) -> None:
        if isinstance(store, Operator):
            if options:
                raise ConfigInvalid(
                    f"an Operator has its options already: {', '.join(sorted(options))}", operation="with_operator"
                )
            recipe: Operator | _UrlRecipe = store
            self._url = store.info.url
        elif isinstance(store, str | os.PathLike):
            recipe = _UrlRecipe(*configure(store, options or {}))
            self._url = recipe.service.info.url
        else:
            raise InvalidType(f"a URL or an Operator is needed, not {store!r}", operation="with_operator")
        # Once, since it is also the key: the same bytes in every task.
        self._pickled = pickle.dumps(recipe)

    def __repr__(self) -> str:
        return f"<WarmOperator {self._url}>"

    def __getstate__(self) -> tuple[str, bytes]:
        return self._url, self._pickled

    def __setstate__(self, state: tuple[str, bytes]) -> None:
        self._url, self._pickled = state

    @property
    def blocking(self) -> BlockingOperator:
        """The operator of this process, for code without an event loop."""
        return worker.warm_operator(self._pickled, self._make)

    @property
    def operator(self) -> Operator:
        """The operator of this process, for asynchronous code."""
        return self.blocking.operator

    def _make(self) -> Operator:
        recipe: Operator | _UrlRecipe = pickle.loads(self._pickled)
        return recipe if isinstance(recipe, Operator) else recipe.operator()


class _UrlRecipe:
    """The recipe of an Operator from a URL; its memory depends on the process."""

    def __init__(self, service: Service, options: Mapping[str, Any]) -> None:
        self.service = service
        self._options = dict(options)
        Operator(service, **options)  # to have its options checked where they were written

    def operator(self) -> Operator:
        operator = Operator(self.service, **worker.with_memory(self._options))
        return shared_copy(operator) or operator


def with_operator(
    store: str | os.PathLike[str] | Operator, **options: Unpack[UriOptions]
) -> Callable[[F], Callable[..., Any]]:
    """Decorate a function that Spark runs: it gets the keyword ``operator``, one for the life of its Python worker.

    For the body of a plain UDF, of a ``pandas_udf``, of ``mapInArrow`` or ``mapInPandas`` it is a ``BlockingOperator``;
    for an asynchronous function an ``Operator``. Such a function gives its coroutine where an event loop runs, as under
    ``map_batches``; called elsewhere, as Spark calls a UDF, it runs on the loop thread of the process and gives its
    value. An asynchronous generator is for ``map_batches`` alone. ``store`` and ``options`` are as for
    ``Operator.from_uri``; the memory is the worker's share unless ``memory_bytes`` is given. To bound the requests of
    an executor, divide by its cores: ``concurrency`` counts for each worker.

    No secret travels. Name variables of the executors (``secret_access_key="env:NAME"``), or leave keys out: then the
    store's own chain of providers is asked there. Keys given as text stay here: there they are ``PermissionDenied``,
    unless ``fallback="ambient"`` lets the chain stand in for them.
    """
    recipe = WarmOperator(store, options)
    _warn_of_literals(options)

    def decorate(function: F) -> Callable[..., Any]:
        if OPERATOR not in inspect.signature(function).parameters:
            raise ConfigInvalid(
                f"{_name(function)} has no parameter named {OPERATOR!r}, by which it would get its operator",
                operation="with_operator",
            )
        # Two functions, since these are pickled by value, with no more around them than they need.
        if _is_asynchronous(function):

            @functools.wraps(function)
            def call(*arguments: Any, **keywords: Any) -> Any:
                note_call(arguments)
                return outcome(function(*arguments, operator=recipe.operator, **keywords))

        else:

            @functools.wraps(function)
            def call(*arguments: Any, **keywords: Any) -> Any:
                note_call(arguments)
                return function(*arguments, operator=recipe.blocking, **keywords)

        _hide_operator(call, function)
        return call

    return decorate


def outcome(result: Any) -> Any:
    """The result of an asynchronous function: its coroutine where a loop runs, otherwise the value.

    ``InvalidType`` for an asynchronous generator, which Spark would turn into text.
    """
    if asyncio._get_running_loop() is not None:
        return result
    if hasattr(result, "__aiter__"):
        raise InvalidType(
            f"{_name(result)} is an asynchronous generator, and no event loop runs here: Spark calls it through "
            "map_batches(...), as in frame.mapInArrow(map_batches(with_operator(url)(fn)), schema)",
            operation="with_operator",
        )
    return run(_awaited(result)) if inspect.isawaitable(result) else result


def note_call(arguments: tuple[Any, ...]) -> None:
    """Warn, once in a process of Spark, of a UDF that is called for one value after the other."""
    if arguments and worker.is_worker() and all(isinstance(one, str | bytes | int | float) for one in arguments):
        warn_of_single_calls()


@functools.cache
def warn_of_single_calls() -> None:
    """Warn, once in a process, that calls wait for each other."""
    logger.warning(
        "a function with an operator runs in a UDF that is called for one value after the other, so each waits for "
        "the requests of the one before it: map_batches, or an Arrow UDF over a batch, has many of them at once"
    )


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable


def _hide_operator(call: Callable[..., Any], function: Callable[..., Any]) -> None:
    """Remove the parameter from signature and hints, by which Spark tells kinds of functions apart."""
    signature = inspect.signature(function)
    shown = [parameter for name, parameter in signature.parameters.items() if name != OPERATOR]
    call.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    hints = dict(getattr(function, "__annotations__", {}))
    hints.pop(OPERATOR, None)
    call.__annotations__ = hints


def _is_asynchronous(function: Any) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    bodies = (function, type(function).__call__)  # an object may have a method in place of a body
    return any(inspect.iscoroutinefunction(body) or inspect.isasyncgenfunction(body) for body in bodies)


def _name(function: object) -> str:
    return getattr(function, "__qualname__", None) or repr(function)


def _warn_of_literals(options: Mapping[str, Any]) -> None:
    for name in ("access_key_id", "secret_access_key", "session_token", "sse_customer_key"):
        secret = Secret.of(options.get(name))
        if secret is not None and secret.is_literal:
            logger.warning(
                "with_operator: %s is not sent to Spark's workers; give it as 'env:NAME' and set that variable on the"
                " executors, or leave it out for their own credentials",
                name,
            )

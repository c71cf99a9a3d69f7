"""``map_batches``: an asynchronous function over the batches of a task, several at a time, results in order."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import typing
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Any, TypeVar, overload

from aioprefetch.errors import InvalidType, TimedOut
from aioprefetch.ranges import at_least
from aioprefetch.runtime.options import checked_seconds
from aioprefetch.spark import worker
from aioprefetch.sync import BlockingIterator, iterate

X = TypeVar("X")
Y = TypeVar("Y")
T = TypeVar("T")

Result = Awaitable[Y] | AsyncIterator[Y]
Mapped = Callable[[Iterable[X]], Iterator[Y]]

WINDOW = 4
# Results that wait for their turn, of one batch whose function gives several.
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
    """Make of an asynchronous function a function over an iterator of batches, as Spark wants one.

    For ``df.mapInArrow(map_batches(fn), schema)``, ``mapInPandas``, and ``pandas_udf`` and ``arrow_udf`` in their form
    with iterators (``fn`` has to have type hints there). ``fn`` takes a batch and returns one, or is an asynchronous
    generator of any number of them. At most ``window`` batches are in work, all on the loop thread of the worker;
    their results come in the order of the batches, up to two of a batch waiting. Work that keeps the processor busy
    belongs into ``asyncio.to_thread``.

    An error has a note that says which batch of the task it was in, counted from 0; the rest is cancelled, as when the
    consumer leaves early or the input fails. ``TimedOut`` when a result takes longer than ``timeout_seconds``.

    Without ``fn`` it returns a decorator.
    """
    plan = (
        at_least(1, window, "window", operation="map_batches", path=""),
        None
        if timeout_seconds is None
        else checked_seconds("timeout_seconds", timeout_seconds, operation="map_batches"),
    )
    if fn is None:
        return lambda function: _mapped(function, *plan)
    return _mapped(fn, *plan)


def _mapped(fn: Callable[[X], Result[Y]], window: int, timeout_seconds: float | None) -> Mapped[X, Y]:
    if not callable(fn):
        raise InvalidType(f"map_batches() needs a function, not {fn!r}", operation="map_batches")
    mapping = BatchMapping(fn, window, timeout_seconds)

    # Pickled by value, so there is nothing in it but what is imported where it arrives.
    def mapped(batches: Iterable[X]) -> Iterator[Y]:
        return mapping.run(batches)

    mapped.__name__ = getattr(fn, "__name__", type(fn).__name__)
    mapped.__doc__ = fn.__doc__
    mapped.__annotations__ = _iterator_hints(fn)
    return mapped


class BatchMapping(typing.Generic[X, Y]):
    """The function and its window; what a task does with them."""

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
            for one in working:  # first all of them, so that they end side by side
                one.cancel()
            for one in working:
                one.close()

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

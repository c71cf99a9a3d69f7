"""One warm Operator for each Python worker, for functions of users that Spark pickles into each task.

Only a recipe travels with a function: a store and settings, secrets as references. The worker looks up, or makes, the
one Operator of that recipe, so that a later task finds connections open and blocks in memory.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import pickle
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from aioprefetch.accessor.protocols import Service
from aioprefetch.credentials import Secret
from aioprefetch.errors import ConfigInvalid, InvalidType
from aioprefetch.operator.from_uri import configure
from aioprefetch.operator.operator import Operator
from aioprefetch.runtime.events import logger
from aioprefetch.spark import worker
from aioprefetch.sync import BlockingOperator, run

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

# The parameter by which a decorated function gets its operator.
OPERATOR = "operator"


class WarmOperator:
    """A recipe that pickles without secrets, and finds its Operator in whatever process it is used.

    ``store`` is a URL with the options of ``Operator.from_uri``, checked at once, or an ``Operator``. An Operator from
    a URL gets the worker's share of memory unless ``memory_bytes`` is given.
    """

    def __init__(self, store: str | Operator, options: Mapping[str, Any] | None = None) -> None:
        if isinstance(store, Operator):
            if options:
                raise ConfigInvalid(
                    f"an Operator has its options already: {', '.join(sorted(options))}", operation="with_operator"
                )
            made: _Made | _Settings = _Made(store)
            self._url = store.info.url
        elif isinstance(store, str):
            made = _Settings(*configure(store, options or {}))
            self._url = made.service.info.url
        else:
            raise InvalidType(f"a URL or an Operator is needed, not {store!r}", operation="with_operator")
        # Once, since it is also the key: the same bytes in every task.
        self._pickled = pickle.dumps(made)

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
        made: Operator = pickle.loads(self._pickled).operator()
        return made


class _Made:
    """The recipe of an existing Operator."""

    def __init__(self, given: Operator) -> None:
        self._given = given

    def operator(self) -> Operator:
        return self._given


class _Settings:
    """The recipe of an Operator from a URL; its memory depends on the process."""

    def __init__(self, service: Service, options: Mapping[str, Any]) -> None:
        self.service = service
        self._options = dict(options)
        Operator(service, **options)  # to have its options checked where they were written

    def operator(self) -> Operator:
        return Operator(self.service, **worker.with_memory(self._options))


def with_operator(store: str | Operator, **options: Any) -> Callable[[F], Callable[..., Any]]:
    """Decorate a function that Spark runs: it gets the keyword ``operator``, one for the life of its Python worker.

    For the body of a plain UDF, of a ``pandas_udf``, of ``mapInArrow`` or ``mapInPandas`` it is a ``BlockingOperator``;
    for an asynchronous function an ``Operator``. Such a function gives its coroutine where an event loop runs, as under
    ``map_batches``; called elsewhere, as Spark calls a UDF, it runs on the loop thread of the process and gives its
    value. An asynchronous generator is for ``map_batches`` alone. ``store`` and ``options`` are those of
    ``Operator.from_uri``; the memory is the worker's share unless ``memory_bytes`` is given. To bound the requests of
    an executor, divide by its cores: ``concurrency`` counts for each worker.

    No secret travels. Name variables of the executors (``secret_access_key="env:NAME"``), or leave keys out: then the
    store's own chain of providers is asked there. Keys given as text stay here, and are missed there.
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
                return outcome(function(*arguments, operator=recipe.operator, **keywords))

        else:

            @functools.wraps(function)
            def call(*arguments: Any, **keywords: Any) -> Any:
                return function(*arguments, operator=recipe.blocking, **keywords)

        _hide_operator(call, function)
        return call

    return decorate


def outcome(made: Any) -> Any:
    """The result of an asynchronous function: its coroutine where a loop runs, otherwise the value.

    ``InvalidType`` for an asynchronous generator, of which Spark would make a text.
    """
    if asyncio._get_running_loop() is not None:
        return made
    if hasattr(made, "__aiter__"):
        raise InvalidType(
            f"{_name(made)} is an asynchronous generator, and no event loop runs here: Spark calls it through "
            "map_batches(...), as in frame.mapInArrow(map_batches(with_operator(url)(fn)), schema)",
            operation="with_operator",
        )
    return run(_awaited(made)) if inspect.isawaitable(made) else made


async def _awaited(made: Awaitable[T]) -> T:
    return await made


def _hide_operator(call: Callable[..., Any], function: Callable[..., Any]) -> None:
    """Remove the parameter from signature and hints, by which Spark tells kinds of functions apart."""
    signature = inspect.signature(function)
    shown = [one for name, one in signature.parameters.items() if name != OPERATOR]
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

"""Verbs of many objects end with all of their work.

fsspec runs such a verb as a task for each object. If the verb is cancelled, these tasks would go on: requests without a
caller, objects that appear after an interrupt. Here the tasks of a verb are known to it, and are cancelled with it.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Scope:
    """The tasks of one verb of many."""

    def __init__(self) -> None:
        self.owner = asyncio.current_task()
        self.tasks: set[asyncio.Task[Any]] = set()
        self.is_ended = False

    async def end(self) -> None:
        """Cancel the tasks, also those that have not begun, and wait until each has cleaned up."""
        self.is_ended = True
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks)


_scope: ContextVar[Scope | None] = ContextVar("aioprefetch_fsspec_scope", default=None)


@asynccontextmanager
async def many() -> AsyncIterator[None]:
    """A verb of many: if the block fails or is cancelled, so are the verbs of one that it has begun."""
    scope = Scope()
    token = _scope.set(scope)
    try:
        yield
    except BaseException:
        await scope.end()
        raise
    finally:
        _scope.reset(token)


def of_one(verb: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """A verb of one object, which ends with the verb of many that has begun it."""

    @functools.wraps(verb)
    async def call(*arguments: P.args, **options: P.kwargs) -> T:
        scope, task = _scope.get(), asyncio.current_task()
        if scope is None or task is None or task is scope.owner:
            return await verb(*arguments, **options)
        if scope.is_ended:
            raise asyncio.CancelledError
        scope.tasks.add(task)
        try:
            return await verb(*arguments, **options)
        finally:
            scope.tasks.discard(task)

    return call

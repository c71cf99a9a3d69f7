"""Work side by side that fails with one error, the first failure as it is, and leaves no other work running."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, TypeVar

from aioprefetch.runtime.callers import entering

T = TypeVar("T")


class PlainTaskGroup(asyncio.TaskGroup):
    """A task group that raises its first failure as it is, with its cause, and no ``ExceptionGroup``."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        first: Exception | None = None
        try:
            await super().__aexit__(kind, error, trace)
        except ExceptionGroup as failures:
            _forget_frame(failures.__traceback__)
            first = failures.exceptions[0]
        except BaseException as raised:
            _forget_frame(raised.__traceback__)
            raise
        finally:
            # What is raised may hold this frame, and frames that hold the group. As Python does from 3.13 on.
            del error, trace
            self._parent_task: asyncio.Task[object] | None = None
        try:
            if first is not None:  # Raised here, so that the group, which holds it, is not its context.
                raise first from first.__cause__
        finally:
            del first


def _forget_frame(trace: TracebackType | None) -> None:
    """Clear the frame of asyncio's ``__aexit__``, which holds the errors that it raises before Python 3.13."""
    if trace is not None and trace.tb_next is not None:
        trace.tb_next.tb_frame.clear()


async def gather_all(calls: Iterable[Callable[[], Coroutine[Any, Any, T]]], *, at_once: int | None = None) -> list[T]:
    """The results of all calls, in their order; at most ``at_once`` of them run at a time, ``None`` for all.

    The first failure, or a cancellation, cancels the other calls and is raised when they have ended.
    """
    waiting = list(calls)
    if len(waiting) == 1:
        return [await waiting[0]()]
    turn = contextlib.nullcontext() if at_once is None else asyncio.Semaphore(at_once)

    async def called(call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async with turn:
            return await call()

    tasks: list[asyncio.Task[T]] = []
    group = PlainTaskGroup()
    try:
        async with group:
            tasks += [group.create_task(called(call), context=entering()) for call in waiting]
        return [task.result() for task in tasks]
    finally:
        del tasks, group  # The tracebacks of their errors hold this frame.


async def all_stopped(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait for their ends. Failures of theirs are not raised."""
    running = list(tasks)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def stopped(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait for its end, also if cancelled meanwhile: what it works on is the caller's.

    Its failure is not raised, because another one is.
    """
    task.cancel()
    interruption: asyncio.CancelledError | None = None
    try:
        while not task.done():
            try:
                await asyncio.wait((task,))
            except asyncio.CancelledError as error:
                interruption = error.with_traceback(None)  # From Python 3.14 on a frame of ``wait`` holds this task.
        if not task.cancelled():
            task.exception()  # Retrieved, or asyncio would log it.
        if interruption is not None:
            raise interruption
    finally:
        del task, interruption  # The tracebacks of their errors hold this frame.

"""The task of a runtime that owns all its background work, so that no work outlives the runtime.

Readers never enter a task group: they spawn work here, or start it in their own turn (``start``). Work reports failures
to its own waiters; an exception that still escapes is a bug: it is logged, and other work continues.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine

from aioprefetch.runtime.callers import entering
from aioprefetch.runtime.eager_work import EagerWork
from aioprefetch.runtime.events import logger
from aioprefetch.runtime.statistics import count_for
from aioprefetch.runtime.task_group import PlainTaskGroup

Closer = Callable[[], Awaitable[None]]

# Closing waits for no response; a resource that hangs anyway is cut off.
CLOSE_SECONDS_MAX = 10.0

# A loop holds its tasks weakly: a supervisor that waits for its own future would be collected with its operator,
# without closing it.
_running: set[asyncio.Task[None]] = set()


class Work:
    """A piece of background work that may be cancelled, also before it starts.

    ``on_end`` is called once, however the work ends. A coroutine that is cancelled before its first step never runs,
    not even its ``finally``: resources that must always be released are released in ``on_end``.
    """

    def __init__(self, on_end: Callable[[], None] | None = None) -> None:
        self._task: asyncio.Task[None] | None = None
        self._work: Coroutine[object, object, None] | None = None
        self._cancelled = False
        self._on_end = on_end
        self._context = entering()

    def cancel(self) -> None:
        """Stop it at its next suspension; without effect when it has ended."""
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()

    def _start(self, group: asyncio.TaskGroup | None, work: Coroutine[object, object, None], name: str) -> None:
        self._work = work
        if self._cancelled or group is None:
            self._ended()
            return
        self._task = group.create_task(_guarded(work, name), name=f"aioprefetch {name}", context=self._context)
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None] | None = None) -> None:
        if self._work is not None:
            self._work.close()  # Without effect unless it never began.
            self._work = None
        self._task = None  # It holds its cancellation, whose traceback may hold who holds this.
        if self._on_end is not None:
            self._on_end()
            self._on_end = None


class Supervisor:
    """Runs work in a task group inside one task, and closes resources when that task ends.

    It ends by ``aclose`` or when the loop cancels its tasks at shutdown (``asyncio.run``): both cancel the work, wait
    for it, and then call the closers in reverse order.
    """

    def __init__(self) -> None:
        self._main: asyncio.Task[None] | None = None
        self._begun = False
        self._group: asyncio.TaskGroup | None = None
        self._pending: list[tuple[Work, Coroutine[object, object, None], str]] = []
        self._closers: list[Closer] = []
        self._started: set[EagerWork] = set()
        self._all_ended: asyncio.Future[None] | None = None
        self.closed = False

    def start(self, work: Coroutine[object, object, None], loop: asyncio.AbstractEventLoop, *, name: str) -> EagerWork:
        """Work that begins in the caller, at ``start()`` of the result, and needs no task.

        Once closed, it is cancelled at its first step.
        """
        if self._main is None:
            self._ensure_started()
        begun = EagerWork(work, loop, self._eager_ended, name=name)
        self._started.add(begun)
        if self.closed:
            begun.cancel()
        return begun

    def _eager_ended(self, work: EagerWork) -> None:
        self._started.discard(work)
        if not self._started and self._all_ended is not None and not self._all_ended.done():
            self._all_ended.set_result(None)

    def spawn(
        self, work: Coroutine[object, object, None], *, name: str, on_end: Callable[[], None] | None = None
    ) -> Work:
        """Run ``work`` in the background. Must be called on the loop's thread."""
        handle = Work(on_end)
        self._ensure_started()
        if self._group is None and not self.closed:
            self._pending.append((handle, work, name))
        else:
            handle._start(None if self.closed else self._group, work, name)
        return handle

    def on_close(self, closer: Closer) -> None:
        """Await ``closer()`` when the supervisor ends, after all work has ended."""
        self._ensure_started()
        self._closers.append(closer)

    def end(self) -> None:
        """Cancel all work and close the resources in the background. Must be called on the loop's thread."""
        ended, self.closed = self.closed, True
        # A second cancellation would interrupt the closers, and one before the first step would skip them.
        if not ended and self._main is not None and self._begun:
            self._main.cancel()

    async def aclose(self) -> None:
        """Cancel all work, wait for it, close the resources. May be called twice; if cancelled, closing continues."""
        self.end()
        if self._main is not None and not self._main.done():
            await asyncio.wait({self._main})

    def _ensure_started(self) -> None:
        if self._main is None and not self.closed:
            self._main = asyncio.get_running_loop().create_task(self._run(), name="aioprefetch supervisor")
            _running.add(self._main)
            self._main.add_done_callback(self._forget)

    async def _run(self) -> None:
        self._begun = True
        try:
            if not self.closed:
                await self._run_group()
        except asyncio.CancelledError:
            pass
        finally:
            self._start_pending(None)
            await self._end_started()
            await self._close_resources()

    async def _run_group(self) -> None:
        async with PlainTaskGroup() as group:
            try:
                self._group = group
                self._start_pending(group)
                await asyncio.get_running_loop().create_future()
            finally:
                self.closed = True  # A group that is shutting down takes no more work.

    def _start_pending(self, group: asyncio.TaskGroup | None) -> None:
        for handle, work, name in self._pending:
            handle._start(group, work, name)
        self._pending.clear()

    def _forget(self, main: asyncio.Task[None]) -> None:
        self.closed = True
        _running.discard(main)
        self._start_pending(None)  # Left over when the loop was shut down before the first step.
        self._cancel_started()

    def _cancel_started(self) -> None:
        for work in tuple(self._started):
            work.cancel()

    async def _end_started(self) -> None:
        """Cancel the work that began in its callers, and wait until all of it has ended."""
        self._cancel_started()
        while self._started:
            self._all_ended = asyncio.get_running_loop().create_future()
            with contextlib.suppress(
                asyncio.CancelledError
            ):  # As in a task group, which waits for its work in any case.
                await self._all_ended

    async def _close_resources(self) -> None:
        while self._closers:
            try:
                await _within_limit(self._closers.pop())
            except asyncio.CancelledError:
                logger.debug("closing a resource was cut off; the others are closed all the same")
            except Exception:
                logger.exception("closing a resource failed")


async def _within_limit(closer: Closer) -> None:
    # By asyncio alone: anyio takes tens of milliseconds to load its backend, on the loop that closes.
    try:
        async with asyncio.timeout(CLOSE_SECONDS_MAX) as limit:
            await closer()
    except TimeoutError:
        if not limit.expired():
            raise
        logger.warning("closing a resource took longer than %s s and was cut off", CLOSE_SECONDS_MAX)


async def _guarded(work: Coroutine[object, object, None], name: str) -> None:
    count_for(None)  # Not for the reader in whose task it was spawned: work for a reader calls count_for itself.
    try:
        await work
    except Exception:
        logger.exception("background work failed: %s", name)

"""Work that begins in its caller: no task is made for it, and no turn of the loop passes before its first step.

``EagerWork`` runs a coroutine up to its first wait within the call of ``start``, and continues it in the callbacks of
the futures that it waits for, like a task. It is independent of its caller, who may end or be cancelled meanwhile. For
the code within it, it **is** the current task (the "third party task" of asyncio's documentation): ``asyncio.timeout``,
``asyncio.TaskGroup`` and the cancel scopes of anyio cancel the work, never its caller. From Python 3.12 on asyncio has
eager tasks; this is the part of them that work for a read needs, on every version and at less cost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from types import FrameType
from typing import Any

from aioprefetch.runtime.callers import entering
from aioprefetch.runtime.events import logger


class EagerWork:
    """A coroutine that runs from ``start`` on; ``on_end`` is called once, however it ends.

    The methods besides ``start`` are as in ``asyncio.Task``: libraries call them on what is the current task.
    """

    __slots__ = (
        "__weakref__",
        "_callbacks",
        "_cancel_message",
        "_cancel_requests",
        "_context",
        "_coro",
        "_error",
        "_fut_waiter",
        "_loop",
        "_must_cancel",
        "_on_end",
        "name",
    )

    def __init__(
        self,
        work: Coroutine[Any, Any, None],
        loop: asyncio.AbstractEventLoop,
        on_end: Callable[[EagerWork], None],
        *,
        name: str,
    ) -> None:
        self.name = name
        self._coro: Coroutine[Any, Any, None] | None = work
        self._loop = loop
        self._on_end = on_end
        self._context = entering() or copy_context()
        self._cancel_requests = 0
        self._cancel_message: Any | None = None
        self._must_cancel = False
        self._fut_waiter: asyncio.Future[Any] | None = None
        self._callbacks: list[tuple[Callable[[Any], object], Context | None]] | None = None
        self._error: BaseException | None = None

    def __repr__(self) -> str:
        state = "pending" if self._coro is not None else "cancelled" if self.cancelled() else "finished"
        return f"<{type(self).__name__} {state} name={self.name!r}>"

    def start(self) -> None:
        """Run the first step, up to the first wait, in a copy of the caller's context."""
        loop = self._loop
        caller = asyncio.current_task(loop)  # Later steps are callbacks of the loop, which no task calls.
        if caller is None:
            self._context.run(self._step)
            return
        asyncio._leave_task(loop, caller)
        try:
            self._context.run(self._step)
        finally:
            asyncio._enter_task(loop, caller)

    def cancel(self, msg: Any | None = None) -> bool:
        """Raise ``CancelledError`` within the work at its next step; ``False`` when it has ended."""
        if self._coro is None:
            return False
        self._cancel_requests += 1
        if self._fut_waiter is None or not self._fut_waiter.cancel(msg=msg):
            self._must_cancel = True
            self._cancel_message = msg  # By which the cancel scopes of anyio know their own cancellations.
        return True

    def cancelling(self) -> int:
        """The number of cancellations that were requested and not taken back."""
        return self._cancel_requests

    def uncancel(self) -> int:
        """Take one cancellation back; returns the number that is left."""
        if self._cancel_requests:
            self._cancel_requests -= 1
            if not self._cancel_requests:
                self._must_cancel = False
        return self._cancel_requests

    def done(self) -> bool:
        """Whether it has ended."""
        return self._coro is None

    def cancelled(self) -> bool:
        """Whether it has ended by a cancellation."""
        return isinstance(self._error, asyncio.CancelledError)

    def exception(self) -> BaseException | None:
        """The error by which it has ended; raises ``CancelledError`` or ``InvalidStateError`` as a task does."""
        if self._coro is not None:
            raise asyncio.InvalidStateError(f"{self!r} has not ended")
        if isinstance(self._error, asyncio.CancelledError):
            raise self._error
        return self._error

    def result(self) -> None:
        """Raise the error by which it has ended, if there is one."""
        error = self.exception()
        try:
            if error is not None:
                raise error
        finally:
            del error  # Its traceback holds this frame.

    def add_done_callback(self, callback: Callable[[Any], object], *, context: Context | None = None) -> None:
        """Call ``callback`` with this work in the turn of the loop after its end."""
        if self._coro is None:
            self._loop.call_soon(callback, self, context=context)
        elif self._callbacks is None:
            self._callbacks = [(callback, context)]
        else:
            self._callbacks.append((callback, context))

    def remove_done_callback(self, callback: Callable[[Any], object]) -> int:
        """Do not call ``callback``; returns the number of times that it was added."""
        before = self._callbacks or []
        self._callbacks = [added for added in before if added[0] != callback]
        return len(before) - len(self._callbacks)

    def get_context(self) -> Context:
        """The context in which it runs."""
        return self._context

    def get_stack(self, *, limit: int | None = None) -> list[FrameType]:
        """The frame in which it waits; empty when it has ended. A ``limit`` of at least one changes nothing."""
        frame = getattr(self._coro, "cr_frame", None)
        return [] if frame is None else [frame]

    def set_name(self, name: object) -> None:
        """Change the name."""
        self.name = str(name)

    def get_name(self) -> str:
        """The name, for people."""
        return self.name

    def get_coro(self) -> Coroutine[Any, Any, None] | None:
        """The coroutine, ``None`` when it has ended."""
        return self._coro

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """The loop on which it runs."""
        return self._loop

    # --- inside -------------------------------------------------------------------------------------------------

    def _step(self, _: Any = None, error: BaseException | None = None) -> None:
        """Continue up to the next wait. A future that was awaited raises its error in the coroutine by itself."""
        coro = self._coro
        if coro is None:
            return
        if self._must_cancel:
            self._must_cancel = False
            message, self._cancel_message = self._cancel_message, None
            error = asyncio.CancelledError() if message is None else asyncio.CancelledError(message)
        self._fut_waiter = None
        loop = self._loop
        this: Any = self  # A task by its methods, but not by its type.
        asyncio._enter_task(loop, this)
        try:
            awaited = coro.send(None) if error is None else coro.throw(error)
        except StopIteration:
            self._end()
        except asyncio.CancelledError as cancelled:
            self._end(cancelled)
        except Exception as failure:
            logger.exception("background work failed: %s", self.name)
            self._end(failure)
        except BaseException as exit_request:  # SystemExit and KeyboardInterrupt end the loop, as they do in a task.
            self._end(exit_request)
            raise
        else:
            self._wait_for(awaited)
        finally:
            asyncio._leave_task(loop, this)

    def _wait_for(self, awaited: Any) -> None:
        if getattr(awaited, "_asyncio_future_blocking", None):
            awaited._asyncio_future_blocking = False
            awaited.add_done_callback(self._step, context=self._context)
            self._fut_waiter = awaited
            if self._must_cancel and awaited.cancel(msg=self._cancel_message):
                self._must_cancel = False
        elif awaited is None:  # ``asyncio.sleep(0)``
            self._loop.call_soon(self._step, context=self._context)
        else:
            misuse = RuntimeError(f"{self.name} waits for {awaited!r}, which is not a future of its loop")
            self._loop.call_soon(self._step, None, misuse, context=self._context)

    def _end(self, error: BaseException | None = None) -> None:
        self._coro = None
        if error is not None:
            self._error = error.with_traceback(None)  # Its frames would keep buffers alive.
        callbacks, self._callbacks = self._callbacks, None
        self._on_end(self)
        for callback, context in callbacks or ():
            self._loop.call_soon(callback, self, context=context)

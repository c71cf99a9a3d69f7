"""A virtual clock for asyncio: hours of timeouts and back-off run in milliseconds, in a repeatable order.

The loop never sleeps. If nothing is ready it moves its clock to the next timer. Without a timer no task can ever wake
up, and it raises :class:`Deadlock` instead of hanging the test run.

With a seed, the order in which ready tasks take their next step is drawn from that seed, so races can be searched
and replayed. Plain callbacks keep their order: ``call_soon`` is documented as first in, first out, and protocols
rely on that.

Limits. Threads live in real time, so virtual time would run away from them: the loop runs ``run_in_executor``
inline, and ``anyio.to_thread`` (own threads) ends in `Deadlock`. Real sockets are polled but not waited for. Use the
memory service here, and the ordinary loop for the network and for files.

It imports only the standard library.
"""

import asyncio
import random
import selectors
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

SECONDS_MAX_DEFAULT = 7 * 24 * 3600.0
"""A week: longer than any timeout in the package, so only a periodic timer that is never stopped reaches it."""


class Deadlock(RuntimeError):
    """No task can make progress: nothing is ready and no timer is armed, or virtual time exceeded its limit."""


class VirtualSelector(selectors.BaseSelector):
    """A selector that polls real file descriptors, and passes waiting time to a callable.

    `idle` receives the timeout in seconds that the loop wanted to sleep, or None for no limit.
    """

    def __init__(self, idle: Callable[[float | None], None]) -> None:
        self._idle = idle
        self._real = selectors.DefaultSelector()

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Watch a file object, as in `selectors.BaseSelector`."""
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        """Stop watching a file object."""
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Change what is watched for a file object."""
        return self._real.modify(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return the ready events; if none is ready, let virtual time pass and return an empty list."""
        ready = self._real.select(0)
        if not ready and (timeout is None or timeout > 0):
            self._idle(timeout)
        return ready

    def close(self) -> None:
        """Close the real selector."""
        self._real.close()

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        """Return the registered file objects."""
        return self._real.get_map()


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock moves only while all tasks wait.

    `seed` shuffles the order of ready task steps; None keeps asyncio's order. `seconds_max` bounds virtual time.
    """

    def __init__(self, *, seed: int | None = None, seconds_max: float = SECONDS_MAX_DEFAULT) -> None:
        self._now_seconds = 0.0
        self._seconds_max = seconds_max
        self._random = None if seed is None else random.Random(seed)
        super().__init__(VirtualSelector(self._pass_time))

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now_seconds

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Run `func` inline, as a separate event, so that results do not depend on threads."""
        future: asyncio.Future[T] = self.create_future()
        self.call_soon(_settle, future, func, args)
        return future

    def _pass_time(self, timeout_seconds: float | None) -> None:
        if timeout_seconds is None:
            raise Deadlock(f"nothing is ready and no timer is armed at {self._now_seconds:g} s{self._waiting()}")
        self._now_seconds += timeout_seconds
        if self._now_seconds > self._seconds_max:
            # Reset the limit, so that the cancellation of tasks can still run on this loop.
            self._now_seconds, self._seconds_max = self._seconds_max, float("inf")
            raise Deadlock(f"virtual time passed its limit of {self._now_seconds:g} s{self._waiting()}")

    def _waiting(self) -> str:
        tasks = sorted(asyncio.all_tasks(self), key=lambda task: task.get_name())
        return "".join(f"\n  {_where(task)}" for task in tasks)

    def _run_once(self) -> None:
        # Private names of asyncio; tests/unit/testing/test_clock.py checks that they still behave this way.
        if self._random is not None:
            self._shuffle(self._ready, self._random)  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]

    @staticmethod
    def _shuffle(ready: Any, source: random.Random) -> None:
        slots = [index for index, handle in enumerate(ready) if _is_task_step(handle)]
        handles = [ready[index] for index in slots]
        source.shuffle(handles)
        for index, handle in zip(slots, handles, strict=True):
            ready[index] = handle


def run_virtual(
    coro_fn: Callable[[], Coroutine[Any, Any, T]],
    *,
    seed: int | None = None,
    seconds_max: float = SECONDS_MAX_DEFAULT,
) -> T:
    """Run `coro_fn()` to its end on a fresh virtual loop and return its result.

    The module-level random generator is seeded for the run and restored afterwards, so code that draws from it
    repeats as well. Remaining tasks are cancelled, as by `asyncio.run`.

    Raises:
        Deadlock: no task can make progress, or `seconds_max` of virtual time went by.
    """
    state = random.getstate()
    random.seed(seed)
    try:
        with asyncio.Runner(loop_factory=lambda: VirtualClockLoop(seed=seed, seconds_max=seconds_max)) as runner:
            return runner.run(coro_fn())
    finally:
        random.setstate(state)


def _settle(future: asyncio.Future[T], func: Callable[..., T], args: tuple[Any, ...]) -> None:
    if future.cancelled():
        return
    try:
        result = func(*args)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


def _is_task_step(handle: Any) -> bool:
    return isinstance(getattr(handle._callback, "__self__", None), asyncio.Task)


def _where(task: asyncio.Task[Any]) -> str:
    frames = task.get_stack(limit=1)
    if not frames:
        return f"{task.get_name()} (no frame)"
    code = frames[0].f_code
    return f"{task.get_name()} waits in {code.co_qualname} ({code.co_filename}:{frames[0].f_lineno})"

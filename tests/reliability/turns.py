"""A call that is cancelled at one turn of its event loop, counted from its first step."""

import asyncio
import gc
import os
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

SECONDS_MAX = 30.0


def at_once(work: Coroutine[Any, Any, T]) -> T | None:
    """The result of work that ends at its first step; ``None`` for work that waits, which is ended."""
    try:
        work.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    work.close()
    return None


class TurnSelector(selectors.DefaultSelector):
    """Counts the turns of the loop that asks it, and makes a call at one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = 0
        self.at = -1
        self.call: Callable[[], object] = lambda: None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for events, but not in the turn at which a call was made: its callbacks are ready."""
        if self.turns == self.at:
            self.call()
            timeout = 0
        self.turns += 1
        return super().select(timeout)


class Turns:
    """The turns of one loop, which is that of ``run``."""

    def __init__(self) -> None:
        self._selector = TurnSelector()
        self.count = 0

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, on a loop of its own."""
        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(self._selector)) as runner:
            return runner.run(main)

    async def cancelled(self, call: Coroutine[Any, Any, T], turn: int | None) -> BaseException | None:
        """Cancel a call at a turn, counted from its first one, and wait for its end.

        Returns what it has raised, its cancellation included; ``count`` is how many turns it had.
        """
        task = asyncio.ensure_future(call)
        is_cancelled = False

        def cancel() -> None:
            nonlocal is_cancelled
            is_cancelled = task.cancel()

        selector, begin = self._selector, self._selector.turns
        selector.at, selector.call = -1 if turn is None else begin + turn, cancel
        done, _ = await asyncio.wait({task}, timeout=SECONDS_MAX)
        selector.at, self.count = -1, selector.turns - begin
        assert done, f"cancelled at turn {turn}, it hangs: {task.get_stack()}"
        assert task.cancelled() or not is_cancelled, f"its cancellation at turn {turn} was swallowed"
        return asyncio.CancelledError() if task.cancelled() else task.exception()


def open_sockets() -> int:
    """How many sockets this process has, without those of garbage; 0 where the system has no list of them."""
    gc.collect()
    found = 0
    for number in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        try:
            found += os.readlink(f"/proc/self/fd/{number}").startswith("socket:")
        except FileNotFoundError:  # the descriptor with which the list was made
            continue
    return found

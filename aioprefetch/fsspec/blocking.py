"""The verbs that block, on our loop thread.

fsspec waits in ``fsspec.asyn.sync``: an interrupt (Ctrl-C) leaves the work running there, and a ``TimedOut`` comes out
as another error. Here the work is cancelled before the interrupt is raised, and errors are those of the verbs.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

from fsspec.asyn import mirror_sync_methods, sync

from aioprefetch.errors import WrongLoop
from aioprefetch.sync.loop_thread import loop_thread


def blocking(verb: Callable[..., Coroutine[Any, Any, Any]], fs: Any = None) -> Callable[..., Any]:
    """``verb`` as a function that waits; without ``fs`` it is a method of a class.

    ``timeout`` are the seconds after which it is cancelled and raises ``TimedOut``.
    """

    @functools.wraps(verb)
    def call(*arguments: Any, timeout: float | None = None, **options: Any) -> Any:
        its = arguments[0] if fs is None else fs
        if its.asynchronous:
            raise WrongLoop(
                f"the file system is asynchronous=True: await {verb.__name__}(), or make one without it",
                operation=verb.__name__.lstrip("_"),
            )
        thread = loop_thread()
        if its.loop is thread.loop:
            return thread.run(verb(*arguments, **options), timeout or None)
        return sync(its.loop, verb, *arguments, timeout=timeout, **options)

    return call


def mirror(fs: Any) -> None:
    """Give a file system the verbs that block: those that fsspec would give it, each by ``blocking``."""
    before = set(vars(fs))
    mirror_sync_methods(fs)
    for name in vars(fs).keys() - before:
        verb = getattr(vars(fs)[name], "__wrapped__", None)
        if inspect.iscoroutinefunction(verb):
            setattr(fs, name, blocking(verb, fs))

"""The progress of a call that moves bytes: numbers for a function, a bar for a display."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol, Self

from aioprefetch.errors import Error, InvalidType, excerpt
from aioprefetch.operator.transfer.report import CopyProgress
from aioprefetch.runtime.events import logger
from aioprefetch.runtime.forks import free_in_child


class ProgressBar(Protocol):
    """The bar of one call."""

    def update(self, progress: CopyProgress) -> object:
        """Show how far the call is. ``total`` is ``None`` as long as it is not known."""

    def close(self, error: BaseException | None) -> object:
        """End with the call: well, or by an error, a cancellation among them. Called once."""


class ProgressDisplay:
    """The base of objects that show a bar for each call; ``on_progress`` may be one, or a function.

    A transfer opens a bar, updates it and closes it, on its event loop, and however it ends. Other callers, such as
    readers, only know numbers of bytes, and call the display itself: then use it by ``with``, or call ``close``. An
    error that a display raises is logged, once for each call, and fails no transfer. A subclass has ``open``.
    """

    def __init__(self) -> None:
        self._lock = free_in_child(threading.RLock())  # Opening a bar may take it too.
        self._own: Reporter | None = None

    def open(self, name: str) -> ProgressBar:
        """Open the bar of a call; ``name`` is a short text of what is moved."""
        raise NotImplementedError

    def __call__(self, step: Any, /) -> None:
        """Show a number of bytes, or a ``CopyProgress``, in a bar of its own, which ``close`` ends. From any thread."""
        with self._lock:
            if self._own is None:
                self._own = Reporter(self, "read", "read")
        self._own(step)

    def close(self, error: BaseException | None = None) -> None:
        """End the bar of callers that do not tell their end; those of transfers end by themselves."""
        with self._lock:
            own, self._own = self._own, None
        if own is not None:
            own.close(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(error)


@contextmanager
def reported(on_progress: Any, operation: str, path: str) -> Iterator[Reporter | None]:
    """The place to which a call reports its progress while the block lasts; ``None`` without an ``on_progress``.

    ``InvalidType`` for an ``on_progress`` that cannot be called.
    """
    if on_progress is None:
        yield None
        return
    if not callable(on_progress):
        raise InvalidType(f"on_progress must be callable, not {on_progress!r}", operation=operation, path=path)
    reporter = Reporter(on_progress, operation, path)
    try:
        yield reporter
    except BaseException as error:
        reporter.close(error)
        raise
    reporter.close(None)


class Reporter:
    """The ``on_progress`` of one call, which gets numbers of bytes, or the ``CopyProgress`` of a copy of many objects.

    ``shows_copies``: it is a display, which takes a ``CopyProgress`` from any call. What it raises is logged, once.
    """

    def __init__(self, on_progress: Callable[[Any], object], operation: str, path: str) -> None:
        self._on_progress = on_progress
        self._call = f"{operation} of {path!r}"
        self._bytes = 0
        self._total: int | None = None
        self._has_failed = False
        self._bar: ProgressBar | None = None
        self.shows_copies = isinstance(on_progress, ProgressDisplay)
        if isinstance(on_progress, ProgressDisplay):
            self._bar = self._guarded(on_progress.open, excerpt(path))

    def expect(self, total: int) -> None:
        """Learn how many bytes the call moves."""
        self._total = total
        if self.shows_copies:
            self(0)

    def __call__(self, step: int | CopyProgress) -> None:
        """Report more bytes, or fewer where an object begins again; or the progress of a copy."""
        if not self.shows_copies:
            self._guarded(self._on_progress, step)
            return
        if isinstance(step, int):
            self._bytes += step
            step = CopyProgress(
                bytes=self._bytes,
                total=self._total,
                step_bytes=step,
                objects=0,
                objects_total=1,
                skipped=0,
                failed=0,
            )
        if self._bar is not None:
            self._guarded(self._bar.update, step)

    def close(self, error: BaseException | None) -> None:
        """End the bar, if there is one."""
        if self._bar is not None:
            self._guarded(self._bar.close, error)

    def _guarded(self, call: Callable[..., Any], argument: object) -> Any:
        try:
            return call(argument)
        except Exception:
            if not self._has_failed:
                logger.exception("on_progress failed for the %s; later failures of it are not logged", self._call)
            self._has_failed = True
            return None


# --- what a bar says beside its numbers -------------------------------------------------------------------------------

NAME_CHARACTERS_MAX = 30


def checked_options(options: Mapping[str, Any], names: Collection[str], of: str) -> dict[str, Any]:
    """The options of a display; ``TypeError`` for one that there is not, before any transfer begins."""
    if unknown := options.keys() - set(names):
        raise TypeError(f"unknown option {min(unknown)!r} for {of}; there are {', '.join(sorted(names))}")
    return dict(options)


def short_name(name: str) -> str:
    """The end of a name, which tells more than its beginning."""
    return name if len(name) <= NAME_CHARACTERS_MAX else f"…{name[1 - NAME_CHARACTERS_MAX :]}"


def objects_of(progress: CopyProgress) -> str:
    """How many objects are done, skipped and failed; an empty text for a single object."""
    if progress.objects_total == 1 and not progress.failed:
        return ""
    total = "?" if progress.objects_total is None else f"{progress.objects_total:,}"
    parts = [f"{progress.objects:,}/{total} objects"]
    counts = (progress.skipped, "skipped"), (progress.failed, "failed")
    return ", ".join([*parts, *(f"{count:,} {word}" for count, word in counts if count)])


def end_of(error: BaseException) -> str:
    """How a call ended that did not end well."""
    if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
        return "cancelled"
    return f"failed: {error.kind if isinstance(error, Error) else type(error).__name__}"

"""The progress and the result of calls that move bytes: numbers for a function, a bar for a display. No I/O."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeAlias

from aioprefetch.errors import Error, InvalidType, copy_of, excerpt, printable
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.runtime.events import logger
from aioprefetch.runtime.forks import free_in_child
from aioprefetch.values import Entry

# A line for each object, and a warning of what ``aioprefetch.copy`` passed over.
copy_logger = logging.getLogger("aioprefetch.copy")

# Failures that a repr shows.
_SHOWN_FAILURES_MAX = 3
# In a notebook, of failures, objects passed over and steps each.
_SHOWN_ROWS_MAX = 30
# Names of ``CopyReport.passed_over``.
PASSED_OVER_MAX = 1000

CopyAction: TypeAlias = Literal["copy", "skip", "delete"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyFailure:
    """An object that was not copied: its path in the source, where it was to go, and why not.

    An object that was to be deleted at the destination, and was not, has no path in the source.
    """

    path: str
    target: str
    error: Error


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyStep:
    """One step of a dry run: the path in the source (empty to delete), that at the destination, and the size in bytes.

    ``skip`` is for what is there already.
    """

    action: CopyAction
    path: str
    target: str
    size: int | None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CopyReport:
    """The outcome of ``aioprefetch.copy``.

    ``copied`` and ``skipped`` are numbers of objects, ``bytes`` and ``bytes_skipped`` the sizes of these in bytes
    (``bytes`` includes what an earlier run had received, and what a store copied by itself). ``deleted`` is
    the number of objects that only the destination had. ``failures`` has an entry for each object that is not there, or
    not deleted. ``passed_over`` has path and reason of what a local source has and a listing leaves out: symbolic links
    below a directory, FIFOs, sockets, devices, files that are being written. It keeps the first 1,000 of
    ``passed_over_count``. ``steps`` is what a dry run would do, object by object; its other fields are what would be
    done too.
    """

    copied: int = 0
    skipped: int = 0
    bytes: int = 0
    bytes_skipped: int = 0
    deleted: int = 0
    passed_over_count: int = 0
    passed_over: tuple[tuple[str, str], ...] = ()
    failures: tuple[CopyFailure, ...] = ()
    steps: tuple[CopyStep, ...] = ()

    @property
    def objects(self) -> int:
        """The number of objects that were found: copied, skipped, deleted or failed."""
        return self.copied + self.skipped + self.deleted + len(self.failures)

    @property
    def failed(self) -> int:
        """The number of objects that were not copied, or not deleted."""
        return len(self.failures)

    def raise_failures(self) -> None:
        """Raise the first failure, if there is one, with ``failures`` in its context: each path, and why."""
        if not self.failures:
            return
        kinds = {failure.path or failure.target: failure.error.kind for failure in self.failures}
        error = copy_of(self.failures[0].error)
        error.context |= {"failed": self.failed, "of": self.objects, "failures": kinds}
        try:
            raise error
        finally:
            del error  # Its traceback holds this frame.

    def __repr__(self) -> str:
        shown = [
            f"{failure.path or failure.target!r}: {failure.error.kind}"
            for failure in self.failures[:_SHOWN_FAILURES_MAX]
        ]
        deleted = f", deleted={self.deleted}" if self.deleted else ""
        passed_over = f", passed_over={self.passed_over_count}" if self.passed_over_count else ""
        more = ", …" if self.failed > len(shown) else ""
        failures = f", failures={{{', '.join(shown)}{more}}}" if shown else ""
        return (
            f"CopyReport(copied={self.copied}, skipped={self.skipped}, failed={self.failed}, bytes={self.bytes},"
            f" bytes_skipped={self.bytes_skipped}{deleted}{passed_over}{failures})"
        )

    def _repr_html_(self) -> str:
        from aioprefetch.display.tables import facts_html, table

        names = ("copied", "bytes", "skipped", "bytes_skipped", "deleted", "failed", "passed_over_count")
        lists = {
            "failed": [(failure.path or failure.target, str(failure.error)) for failure in self.failures],
            "passed over": self.passed_over,
            "steps": [(step.path or step.target, step.action) for step in self.steps],
        }
        tables = [
            table((name, ""), rows[:_SHOWN_ROWS_MAX], caption=f"{len(rows):,}") for name, rows in lists.items() if rows
        ]
        return facts_html("Copy", {name: getattr(self, name) for name in names}, *tables)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyProgress:
    """How far a copy is, as ``on_progress`` gets it.

    ``bytes`` were copied of ``total``, which is ``None`` while the listing of the source goes on; ``step_bytes`` of
    them since the call before (``bar.update(progress.step_bytes)`` for tqdm; below 0 for an object that failed midway).
    ``objects`` are done: copied, skipped or failed; ``objects_total`` is ``None`` as ``total`` is.
    """

    bytes: int
    total: int | None
    step_bytes: int
    objects: int
    objects_total: int | None
    skipped: int
    failed: int


CopyCallback = Callable[[CopyProgress], object]


class Meter:
    """Counts what a copy does, and tells ``on_progress``, which raises nothing."""

    def __init__(self, on_progress: CopyCallback | None, *, keeps_steps: bool = False) -> None:
        self._on_progress = on_progress
        self._told_bytes = 0
        self._found = self._found_bytes = self._skipped_bytes = 0
        self._bytes = self._copied = self._skipped = self._deleted = 0
        self._passed_over: list[tuple[str, str]] = []
        self._passed_over_count = 0
        self._is_listed = False
        self.failures: list[CopyFailure] = []
        self._steps: list[CopyStep] | None = [] if keeps_steps else None

    def found(self, size: int) -> None:
        """Another object is to be copied."""
        self._found += 1
        self._found_bytes += size

    def passed_over(self, path: str, why: str) -> None:
        """The listing of the source leaves something out."""
        self._passed_over_count += 1
        if len(self._passed_over) < PASSED_OVER_MAX:
            self._passed_over.append((path, why))

    def listed(self) -> None:
        """There are no further objects."""
        self._is_listed = True
        self._tell()

    def moved(self, count: int) -> None:
        """Bytes were copied; fewer than none where an object begins again."""
        if count:
            self._bytes += count
            self._tell()

    def copied(self, path: str, target: str, size: int | None) -> None:
        """An object is there."""
        self._copied += 1
        self._step("copy", path, target, size)
        self._tell()

    def skipped(self, path: str, target: str, size: int | None) -> None:
        """An object was there already."""
        self._skipped += 1
        self._skipped_bytes += size or 0
        self._step("skip", path, target, size)
        self._tell()

    def deleted(self, entry: Entry) -> None:
        """An object that the source has not is gone from the destination."""
        self._deleted += 1
        self._step("delete", "", entry.path, entry.size)

    def not_deleted(self, failure: CopyFailure) -> None:
        """An object that the source has not is still at the destination."""
        self.failures.append(failure)

    def failed(self, failure: CopyFailure, moved_bytes: int) -> None:
        """An object was not copied, although ``moved_bytes`` of it were counted."""
        self.failures.append(failure)
        self._bytes -= moved_bytes
        self._tell()

    def report(self) -> CopyReport:
        """The result so far."""
        return CopyReport(
            copied=self._copied,
            skipped=self._skipped,
            bytes=self._bytes,
            bytes_skipped=self._skipped_bytes,
            deleted=self._deleted,
            passed_over_count=self._passed_over_count,
            passed_over=tuple(self._passed_over),
            failures=tuple(self.failures),
            steps=tuple(self._steps or ()),
        )

    def _step(self, action: CopyAction, path: str, target: str, size: int | None) -> None:
        if self._steps is not None:
            self._steps.append(CopyStep(action=action, path=path, target=target, size=size))
        elif action != "skip":
            copy_logger.info("%s %s%s%s", action, printable(path), " -> " if path else "", printable(target))

    def _tell(self) -> None:
        if self._on_progress is None:
            return
        step_bytes, self._told_bytes = self._bytes - self._told_bytes, self._bytes
        progress = CopyProgress(
            bytes=self._bytes,
            total=self._found_bytes - self._skipped_bytes if self._is_listed else None,
            step_bytes=step_bytes,
            objects=self._copied + self._skipped + len(self.failures),
            objects_total=self._found if self._is_listed else None,
            skipped=self._skipped,
            failed=len(self.failures),
        )
        self._on_progress(progress)


# --- bars -------------------------------------------------------------------------------------------------------------


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
        """End the bar of callers that do not tell their end; bars of transfers end by themselves."""
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
    """The options of a display; ``TypeError`` for an unknown one, before any transfer begins."""
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

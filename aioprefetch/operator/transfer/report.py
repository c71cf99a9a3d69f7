"""The result of a copy of many objects, and its progress. Pure, no I/O."""

from __future__ import annotations

from collections.abc import Callable

from aioprefetch.errors import Error
from aioprefetch.lean_dataclass import dataclass

# Failures that a repr shows.
_SHOWN_FAILURES_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyFailure:
    """An object that was not copied: its path in the source, where it was to go, and why not."""

    path: str
    target: str
    error: Error


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CopyReport:
    """The outcome of ``aioprefetch.copy``.

    ``copied`` and ``skipped`` are numbers of objects, ``bytes`` and ``bytes_skipped`` the sizes of these in bytes
    (``bytes`` counts those that an earlier run had received, and those that a store copied by itself). ``failures``
    has an entry for each object that is not there.
    """

    copied: int = 0
    skipped: int = 0
    bytes: int = 0
    bytes_skipped: int = 0
    failures: tuple[CopyFailure, ...] = ()

    @property
    def objects(self) -> int:
        """The number of objects that were found: copied, skipped or failed."""
        return self.copied + self.skipped + len(self.failures)

    @property
    def failed(self) -> int:
        """The number of objects that were not copied."""
        return len(self.failures)

    def raise_failures(self) -> None:
        """Raise the first failure, if there is one, with ``failures`` in its context: each path, and why."""
        if not self.failures:
            return
        error = self.failures[0].error
        kinds = {failure.path: failure.error.kind for failure in self.failures}
        error.context |= {"failed": self.failed, "of": self.objects, "failures": kinds}
        raise error

    def __repr__(self) -> str:
        shown = [f"{failure.path!r}: {failure.error.kind}" for failure in self.failures[:_SHOWN_FAILURES_MAX]]
        more = ", …" if self.failed > len(shown) else ""
        failures = f", failures={{{', '.join(shown)}{more}}}" if shown else ""
        return (
            f"CopyReport(copied={self.copied}, skipped={self.skipped}, failed={self.failed}, bytes={self.bytes},"
            f" bytes_skipped={self.bytes_skipped}{failures})"
        )


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

    def __init__(self, on_progress: CopyCallback | None) -> None:
        self._on_progress = on_progress
        self._told_bytes = 0
        self._found = self._found_bytes = self._skipped_bytes = 0
        self._bytes = self._copied = self._skipped = 0
        self._is_listed = False
        self.failures: list[CopyFailure] = []

    def found(self, size: int) -> None:
        """Another object is to be copied."""
        self._found += 1
        self._found_bytes += size

    def listed(self) -> None:
        """There are no further objects."""
        self._is_listed = True
        self._tell()

    def moved(self, count: int) -> None:
        """Bytes were copied; fewer than none where an object begins again."""
        if count:
            self._bytes += count
            self._tell()

    def copied(self) -> None:
        """An object is there."""
        self._copied += 1
        self._tell()

    def skipped(self, size: int) -> None:
        """An object was there already."""
        self._skipped += 1
        self._skipped_bytes += size
        self._tell()

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
            failures=tuple(self.failures),
        )

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

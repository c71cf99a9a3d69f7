"""The result of a copy of many objects, and its progress. Pure, no I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from aioprefetch.errors import Error
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.values import Entry

# Failures that a repr shows.
_SHOWN_FAILURES_MAX = 3


CopyAction: TypeAlias = Literal["copy", "skip", "delete"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyFailure:
    """An object that was not copied: its path in the source, where it was to go, and why not.

    One that was to be deleted at the destination, and was not, has no path in the source.
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
    (``bytes`` counts those that an earlier run had received, and those that a store copied by itself). ``deleted`` is
    the number of objects that only the destination had, ``links`` that of the symbolic links below a local directory
    that were passed over. ``failures`` has an entry for each object that is not there, or not deleted. ``steps`` is
    what a dry run would do, object by object; its other fields are what would be done too.
    """

    copied: int = 0
    skipped: int = 0
    bytes: int = 0
    bytes_skipped: int = 0
    deleted: int = 0
    links: int = 0
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
        error = self.failures[0].error
        kinds = {failure.path or failure.target: failure.error.kind for failure in self.failures}
        error.context |= {"failed": self.failed, "of": self.objects, "failures": kinds}
        raise error

    def __repr__(self) -> str:
        shown = [
            f"{failure.path or failure.target!r}: {failure.error.kind}"
            for failure in self.failures[:_SHOWN_FAILURES_MAX]
        ]
        deleted = f", deleted={self.deleted}" if self.deleted else ""
        links = f", links={self.links}" if self.links else ""
        more = ", …" if self.failed > len(shown) else ""
        failures = f", failures={{{', '.join(shown)}{more}}}" if shown else ""
        return (
            f"CopyReport(copied={self.copied}, skipped={self.skipped}, failed={self.failed}, bytes={self.bytes},"
            f" bytes_skipped={self.bytes_skipped}{deleted}{links}{failures})"
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

    def __init__(self, on_progress: CopyCallback | None, *, keeps_steps: bool = False) -> None:
        self._on_progress = on_progress
        self._told_bytes = 0
        self._found = self._found_bytes = self._skipped_bytes = 0
        self._bytes = self._copied = self._skipped = self._deleted = 0
        self._links = 0
        self._is_listed = False
        self.failures: list[CopyFailure] = []
        self._steps: list[CopyStep] | None = [] if keeps_steps else None

    def found(self, size: int) -> None:
        """Another object is to be copied."""
        self._found += 1
        self._found_bytes += size

    def passed_links(self, count: int) -> None:
        """Symbolic links of the source were passed over."""
        self._links += count

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
            links=self._links,
            failures=tuple(self.failures),
            steps=tuple(self._steps or ()),
        )

    def _step(self, action: CopyAction, path: str, target: str, size: int | None) -> None:
        if self._steps is not None:
            self._steps.append(CopyStep(action=action, path=path, target=target, size=size))

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

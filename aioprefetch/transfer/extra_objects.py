"""The objects that only the destination of a copy has: found beside the copy, and deleted after it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from aioprefetch.errors import Error, InvalidArgument, NotFound, Unsupported
from aioprefetch.plan.overlap import folded
from aioprefetch.plan.patterns import compile_glob
from aioprefetch.transfer.sides import Selection, Side
from aioprefetch.values import Entry
from aioprefetch.verbs.listing import DELETE_PATHS, delete_paths, list_literally
from aioprefetch.verbs.progress import CopyFailure, Meter


class ExtraObjects:
    """The objects below the destination that no object of the source is copied to.

    Where a glob chose what is copied, an object at the destination counts only if the glob matches it there. They are
    found while the destination is listed beside the source, and kept until everything was copied. Where a listing
    leaves the order it promised, both are listed once more at the end, and the names of all objects are in memory.

    What the listing of the source passes over is not known to be absent: objects of these names and below them stay.
    """

    def __init__(self, selection: Selection, target: Side, *, delete_max: float | None) -> None:
        self._selection = selection
        self._target = target
        self._delete_max = delete_max
        self._extra: list[Entry] = []
        self._passed_over: set[str] = set()
        self._kept = 0
        # There a written file keeps an existing name that differs in case or in the form of its letters.
        self._folds_names = sys.platform == "darwin" and target.root is not None
        self._pattern = None if selection.glob is None else compile_glob(selection.glob)

    def check(self) -> None:
        """Raise what makes a deletion impossible or dangerous, before anything is copied."""
        selection, target = self._selection, self._target
        if selection.single is not None:
            raise InvalidArgument(
                f"delete_extra is for a directory, and {selection.side.label} is one object", operation="copy"
            )
        if not target.operator.capability.delete:
            scheme = target.operator.info.scheme
            raise Unsupported(f"the {scheme} service does not support delete", operation="copy", path=target.label)

    def passed_over(self, path: str, why: str) -> None:
        """The listing of the source has left out a name."""
        self._passed_over.add(self._name(path[len(self._selection.base) :]))

    def passed(self, entry: Entry) -> None:
        """The listing of the destination has passed an entry that no object of the source is copied to."""
        if self._counts(entry):
            self._extra.append(entry)

    def kept(self) -> None:
        """An object of the source was at the destination before it was copied."""
        self._kept += 1

    def _counts(self, entry: Entry) -> bool:
        if entry.is_directory:
            return False
        below = entry.path[len(self._target.path) :]
        if not self._selection.picks(below):
            return False
        return self._pattern is None or self._pattern.fullmatch(self._selection.base + below) is not None

    async def delete(self, meter: Meter, *, is_known: bool, is_dry: bool) -> None:
        """Delete them, in batches; an object that cannot be deleted is a failure, and leaves the others.

        ``is_known`` tells that they are those which were passed. Local directories that become empty are removed too.
        ``NotFound`` for a source without objects, in whose place everything would be deleted; ``InvalidArgument`` for
        more of them than ``delete_max``, before the first, and in a dry run after the last step.
        """
        if not meter.report().objects:
            raise NotFound(
                "the source has no objects, so delete_extra deletes nothing: delete_all deletes a whole directory",
                operation="copy",
                path=self._selection.side.label,
            )
        if not is_known or self._folds_names:
            await self._list_again(0 if is_dry else meter.report().copied)
        counted = self._kept + len(self._extra)
        self._extra = [entry for entry in self._extra if not self._is_passed_over(entry)]
        if not is_dry:
            self._check_limit(counted, meter)
        directories: set[str] = set()
        for start in range(0, len(self._extra), DELETE_PATHS):
            batch = self._extra[start : start + DELETE_PATHS]
            failures = {} if is_dry else await self._delete_batch(batch)
            for entry in batch:
                if error := failures.get(entry.path):
                    meter.not_deleted(CopyFailure(path="", target=entry.path, error=error))
                else:
                    meter.deleted(entry)
                    directories.update(self._directories_of(entry))
        if is_dry:
            self._check_limit(counted, meter)
        if self._target.root is not None and not is_dry:
            with suppress(Error):  # A directory that holds something stays.
                await delete_paths(self._target.operator.accessor(), sorted(directories, reverse=True))

    def _check_limit(self, counted: int, meter: Meter) -> None:
        """``InvalidArgument`` if they are too large a share of the objects counted at the destination."""
        most, count = self._delete_max, len(self._extra)
        if most is None:
            is_beyond = count > 10 and count > counted / 2
        else:
            is_beyond = count > most if isinstance(most, int) else count > 0 and count / counted > most
        if is_beyond:
            limit = "half of them and more than 10" if most is None else f"delete_max={most}"
            raise InvalidArgument(
                f"delete_extra would delete {count:,} of {counted:,} objects, more than {limit}; nothing was deleted:"
                f" delete_max={count} allows these, delete_max=1.0 any number",
                operation="copy",
                path=self._target.label,
                context={"report": meter.report()},
            )

    async def _list_again(self, copied: int) -> None:
        """Find them by the names of all objects that the source has now.

        ``copied`` objects were written: not all that are there have been there before.
        """
        target, base = self._target, self._selection.base
        entries = self._selection.entries(self.passed_over)
        names = {self._name(target.path + found.path[len(base) :]) async for found in entries}
        self._extra, there = [], 0
        async for entry in list_literally(target.operator, target.path, recursive=True):
            if self._name(entry.path) in names:
                there += 1
            else:
                self.passed(entry)
        self._kept = max(0, there - copied)

    def _is_passed_over(self, entry: Entry) -> bool:
        """Whether the source has something of its name, or of one above it, that the listing has left out."""
        above = (directory[:-1] for directory in self._directories_of(entry))
        return any(self._name(path[len(self._target.path) :]) in self._passed_over for path in (entry.path, *above))

    def _name(self, path: str) -> str:
        return folded(path) if self._folds_names else path

    def _directories_of(self, entry: Entry) -> Iterator[str]:
        """The directories below the destination in which an object lies."""
        end = len(self._target.path)
        while (end := entry.path.find("/", end) + 1) > 0:
            yield entry.path[:end]

    async def _delete_batch(self, batch: Sequence[Entry]) -> dict[str, Error]:
        """Delete some; returns the errors of the ones left."""
        try:
            await delete_paths(self._target.operator.accessor(), [entry.path for entry in batch])
        except Error as error:
            named = error.context.get("failures")
            left = named if isinstance(named, Mapping) else [entry.path for entry in batch]
            return dict.fromkeys(left, error)
        return {}

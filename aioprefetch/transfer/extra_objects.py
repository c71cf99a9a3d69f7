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
    found while the destination is listed beside the source, and kept until everything was copied. Where the two list in
    different orders, both are listed once more at the end, and the names of all objects are in memory.
    """

    def __init__(self, selection: Selection, target: Side) -> None:
        self._selection = selection
        self._target = target
        self._extra: list[Entry] = []
        # There a file that is written keeps the name of one that differs in case or in the form of its letters.
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

    def passed(self, entry: Entry) -> None:
        """The listing of the destination has passed an entry that no object of the source is copied to."""
        if self._counts(entry):
            self._extra.append(entry)

    def _counts(self, entry: Entry) -> bool:
        if entry.is_directory:
            return False
        below = entry.path[len(self._target.path) :]
        return self._pattern is None or self._pattern.fullmatch(self._selection.base + below) is not None

    async def delete(self, meter: Meter, *, is_known: bool, is_dry: bool) -> None:
        """Delete them, in batches; one that cannot be deleted is a failure, and leaves the others.

        ``is_known`` tells that they are those which were passed. Local directories that become empty are removed too.
        ``NotFound`` for a source without objects, in whose place everything would be deleted.
        """
        if not meter.report().objects:
            raise NotFound(
                "the source has no objects, so delete_extra deletes nothing: delete_all deletes a whole directory",
                operation="copy",
                path=self._selection.side.label,
            )
        if not is_known or self._folds_names:
            await self._list_again()
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
        if self._target.root is not None and not is_dry:
            with suppress(Error):  # One that holds something stays.
                await delete_paths(self._target.operator.accessor(), sorted(directories, reverse=True))

    async def _list_again(self) -> None:
        """Find them by the names of all objects that the source has now."""
        target, base = self._target, self._selection.base
        names = {self._name(target.path + found.path[len(base) :]) async for found in self._selection.entries()}
        listing = list_literally(target.operator, target.path, recursive=True)
        self._extra = [e async for e in listing if self._name(e.path) not in names and self._counts(e)]

    def _name(self, path: str) -> str:
        return folded(path) if self._folds_names else path

    def _directories_of(self, entry: Entry) -> Iterator[str]:
        """The directories below the destination in which an object lies."""
        end = len(self._target.path)
        while (end := entry.path.find("/", end) + 1) > 0:
            yield entry.path[:end]

    async def _delete_batch(self, batch: Sequence[Entry]) -> dict[str, Error]:
        """Delete some; returns the errors of those that are left."""
        try:
            await delete_paths(self._target.operator.accessor(), [entry.path for entry in batch])
        except Error as error:
            named = error.context.get("failures")
            left = named if isinstance(named, Mapping) else [entry.path for entry in batch]
            return dict.fromkeys(left, error)
        return {}

"""The objects that only the destination of a copy has: found, and deleted, after everything was copied."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import AsyncIterator, Mapping, Sequence

from aioprefetch.errors import Error, InvalidArgument, NotFound, Unsupported
from aioprefetch.operator.listing import compile_glob, list_literally
from aioprefetch.operator.removal import DELETE_PATHS, delete_paths
from aioprefetch.operator.transfer.report import CopyFailure, Meter
from aioprefetch.operator.transfer.sides import Selection, Side
from aioprefetch.values import Entry


class ExtraObjects:
    """The objects below the destination that no object of the source is copied to.

    Where a glob chose what is copied, an object at the destination counts only if the glob matches it there. The names
    of the copy are kept until its end: some 100 bytes for each object.
    """

    def __init__(self, selection: Selection, target: Side) -> None:
        self._selection = selection
        self._target = target
        self._copied: set[str] = set()
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
        source = selection.side
        if source.is_same_store(target) and source.absolute(selection.base).startswith(target.absolute(target.path)):
            raise InvalidArgument(
                f"the source {source.label} lies inside of the destination {target.label}, and would be deleted",
                operation="copy",
                path=target.path,
            )

    def keep(self, path: str) -> None:
        """An object of the source belongs at this path."""
        self._copied.add(self._name(path))

    def _name(self, path: str) -> str:
        return unicodedata.normalize("NFC", path).casefold() if self._folds_names else path

    async def delete(self, meter: Meter, *, is_dry: bool) -> None:
        """Delete them, in batches; one that cannot be deleted is a failure, and leaves the others.

        ``NotFound`` for a source without objects, in whose place everything would be deleted.
        """
        if not self._copied:
            raise NotFound(
                "the source has no objects, so delete_extra deletes nothing: delete_all deletes a whole directory",
                operation="copy",
                path=self._selection.side.label,
            )
        async for batch in self._batches():
            failures = {} if is_dry else await self._delete_batch(batch)
            for entry in batch:
                if error := failures.get(entry.path):
                    meter.not_deleted(CopyFailure(path="", target=entry.path, error=error))
                else:
                    meter.deleted(entry)

    async def _batches(self) -> AsyncIterator[list[Entry]]:
        """The entries, as many as one request deletes."""
        batch: list[Entry] = []
        target, base = self._target, self._selection.base
        async for entry in list_literally(target.operator, target.path, recursive=True):
            if entry.is_directory or self._name(entry.path) in self._copied:
                continue
            if self._pattern is None or self._pattern.fullmatch(base + entry.path[len(target.path) :]):
                batch.append(entry)
            if len(batch) == DELETE_PATHS:
                yield batch
                batch = []
        if batch:
            yield batch

    async def _delete_batch(self, batch: Sequence[Entry]) -> dict[str, Error]:
        """Delete some; returns the errors of those that are left."""
        try:
            await delete_paths(self._target.operator.accessor(), [entry.path for entry in batch])
        except Error as error:
            named = error.context.get("failures")
            left = named if isinstance(named, Mapping) else [entry.path for entry in batch]
            return dict.fromkeys(left, error)
        return {}

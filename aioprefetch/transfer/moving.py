"""Moves: an object gets another name where the store can do that, or is copied, and then deleted.

A source is deleted only after a proof that its copy is there, if it is still what was copied:

1. The ETag of the store's response to the copy in s3; elsewhere a look at the target, with its size, and its ETag and
   time if the copy returned them.
2. A second look at the source, with the size, the ETag and the time of the first one.
3. The ETag as a condition of the deletion, where the store takes one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

from aioprefetch.accessor.path_hints import hint_at_directory
from aioprefetch.accessor.protocols import Accessor
from aioprefetch.credentials import hiding_frames
from aioprefetch.errors import (
    AlreadyExists,
    ConditionNotMatch,
    Error,
    InvalidArgument,
    InvalidPath,
    NotFound,
    ObjectChanged,
    ProtocolError,
    Unsupported,
    cause_of,
)
from aioprefetch.transfer.many import CopyOptions, copy_side
from aioprefetch.transfer.object_copy import ObjectCopier, is_digest
from aioprefetch.transfer.sides import Side, Store
from aioprefetch.values import CreateDirRequest, DeleteRequest, Entry, Metadata, RenameRequest, StatRequest
from aioprefetch.verbs.arguments import check_file
from aioprefetch.verbs.listing import delete_empty, delete_paths, kinds_of, list_literally
from aioprefetch.verbs.writer import copy_object

# Two objects of equal size are compared in pieces of this size.
PIECE_BYTES = 4 << 20
_MEANWHILE = "overwritten while it was moved: it is at its old place too, as it is now"


@hiding_frames
async def move(
    operator: Store, source: str, target: str, *, if_not_exists: bool, if_match: str | None, version: str | None
) -> Metadata:
    """Move one object, or with ``/`` at the end of ``source`` all that is below it; see ``Operator.move``."""
    if not operator.capability.delete:
        raise Unsupported("the service does not support delete", operation="move", path=source)
    try:
        if source.endswith("/"):
            if if_match is not None or version is not None:
                raise InvalidArgument("if_match and version belong to one object", path=source)
            return await _move_directory(operator, source, target, overwrite=not if_not_exists)
        return await _move_object(operator, source, target, if_not_exists, if_match, version)
    except Error as error:
        error.operation = "move"
        raise


async def _move_object(
    operator: Store, source: str, target: str, if_not_exists: bool, if_match: str | None, version: str | None
) -> Metadata:
    accessor = operator.accessor()
    for path in (source, target):
        check_file(path, "move", "with / at its end the source is all that is below it")
    try:
        if accessor.capability.rename and version is None:
            return await accessor.rename(
                RenameRequest(path=source, target=target, if_match=if_match, if_not_exists=if_not_exists)
            )
        before = await accessor.stat(StatRequest(path=source, if_match=if_match, version=version))
    except NotFound as error:
        await hint_at_directory(accessor, error, source, f"{source + '/'!r} moves what is below it")
        raise
    pin = before.etag if version is None and accessor.capability.copy_if_match else None
    conditions: dict[str, Any] = {"if_not_exists": if_not_exists, "if_match": pin, "version": version}
    try:
        moved = await copy_object((accessor, operator.runtime()), "move", source, target, **conditions)
        await prove(accessor, before, moved, target)
    except ConditionNotMatch as error:
        raise ObjectChanged("overwritten before it was copied: nothing was moved", path=source) from cause_of(error)
    except AlreadyExists:
        there = await _found(accessor, target)
        if there is None or not await have_same_bytes(operator, source, target):
            raise
        moved = there  # Of a move that did not come to its end.
    if version is not None:
        await accessor.delete(DeleteRequest(path=source, paths=(source,), versions=(version,)))
        return moved
    await delete_moved(accessor, before)
    return moved


async def delete_moved(accessor: Accessor, before: Metadata) -> None:
    """Delete an object that has been copied; ``ObjectChanged`` if it is no longer what the first look showed."""
    path = before.path
    now = await _found(accessor, path)
    if now is not None and not is_same(before, now):
        raise ObjectChanged(_MEANWHILE, expected_etag=before.etag, actual_etag=now.etag, operation="move", path=path)
    try:
        await delete_paths(accessor, [path], _etags([before]))
    except ConditionNotMatch as error:
        raise ObjectChanged(_MEANWHILE, expected_etag=before.etag, operation="move", path=path) from cause_of(error)


async def prove(accessor: Accessor, source: Entry | Metadata, copied: Metadata, target: str) -> None:
    """Raise ``ProtocolError`` unless the copy of an object is at its target, by the rules of this module."""
    if copied.etag is not None and accessor.info.scheme in ("s3", "s3a"):
        return
    there = await _found(accessor, target)
    if there is None or there.size != source.size or not _shows(there, copied):
        raise ProtocolError(
            f"the store said that {source.path!r} was copied, and the copy is not there: nothing was deleted",
            path=target,
        )


def _shows(there: Metadata, copied: Metadata) -> bool:
    """Whether a look at the target shows the facts that the copy returned, where both have them."""
    if copied.path == there.path and copied.etag and there.etag:  # A file's is of the object it was received from.
        return copied.etag == there.etag
    if copied.last_modified is None or there.last_modified is None:
        return True
    return abs(copied.last_modified - there.last_modified) < timedelta(seconds=1)


async def _found(accessor: Accessor, path: str) -> Metadata | None:
    try:
        return await accessor.stat(StatRequest(path=path))
    except NotFound:
        return None


async def have_same_bytes(operator: Store, source: str, target: str) -> bool:
    """Whether two objects have the same bytes: by their ETags where those are digests, otherwise both are read.

    They have not where one is overwritten meanwhile.
    """
    one, other = await operator.stat(source), await operator.stat(target)
    if one.size is None or one.size != other.size:
        return False
    if one.etag == other.etag and is_digest(one.etag):
        return True
    for offset in range(0, one.size, PIECE_BYTES):
        try:
            pieces = [
                await operator.read(found.path, offset=offset, size=PIECE_BYTES, if_match=found.etag)
                for found in (one, other)
            ]
        except ConditionNotMatch:
            return False
        if pieces[0] != pieces[1]:
            return False
    return True


def is_same(before: Entry | Metadata, now: Entry | Metadata) -> bool:
    """Whether the second look at an object shows what the first one did."""
    was, found = ((one.size, one.etag, one.last_modified) for one in (before, now))
    return was == found


def _etags(objects: list[Entry] | list[Metadata]) -> dict[str, str]:
    return {one.path: one.etag for one in objects if one.etag is not None}


# --- directories ------------------------------------------------------------------------------------------------------


class ObjectMover:
    """Moves the files of a directory by renaming them; elsewhere it copies objects, which ``copied`` has by path."""

    def __init__(self, source: Side, target: Side, *, overwrite: bool) -> None:
        self._accessor = source.operator.accessor()
        self._copier = ObjectCopier(source, target, overwrite=overwrite, pins=True)
        self._overwrite = overwrite
        self.renames = self._accessor.capability.rename
        self.own_bytes = 0 if self.renames else self._copier.own_bytes
        self.copied: dict[str, Entry | Metadata] = {}

    def check(self, found: Entry | Metadata, path: str, below: str) -> None:
        """As for a copy."""
        self._copier.check(found, path, below)

    async def copy(self, found: Entry | Metadata, path: str, below: str, on_bytes: Callable[[int], object]) -> Metadata:
        """Move a file, or copy an object and prove that the copy is there."""
        if self.renames:
            request = RenameRequest(path=found.path, target=path, if_not_exists=not self._overwrite)
            moved = await self._accessor.rename(request)
            on_bytes(found.size or 0)
            return moved
        try:
            copied = await self._copier.copy(found, path, below, on_bytes)
        except ConditionNotMatch:  # It was overwritten since it was listed: the newer one is as good.
            found = await self._accessor.stat(StatRequest(path=found.path))
            copied = await self._copier.copy(found, path, below, on_bytes)
        await prove(self._accessor, found, copied, path)
        self.copied[found.path] = found
        return copied


async def _move_directory(operator: Store, source: str, target: str, *, overwrite: bool) -> Metadata:
    sides = Side(operator=operator, path=source, label=source), Side(operator=operator, path=target, label=target)
    mover = ObjectMover(*sides, overwrite=overwrite)
    report = await copy_side(*sides, CopyOptions(skip_same=False, overwrite=overwrite), copier=mover)
    if not all(isinstance(failure.error, InvalidPath) for failure in report.failures):
        report.raise_failures()  # Names that cannot be served stay, and keep no other one from being moved.
    into = target if not target or target.endswith("/") else f"{target}/"
    if mover.renames:
        await _move_links(operator, source, into)
    changed = await _delete_copied(operator, source, into, mover.copied, is_empty=not report.objects)
    report.raise_failures()
    if changed:
        raise ObjectChanged(
            _MEANWHILE,
            path=changed[0],
            context={"changed": len(changed), "moved": report.copied - len(changed)},
        )
    return Metadata(path=target, kind="directory", size=report.bytes)


async def _move_links(operator: Store, source: str, target: str) -> None:
    """Move the links, which a listing passes over. FIFOs and the like stay, and their directories with them."""
    links: list[str] = []
    listing = list_literally(operator, source, recursive=True)
    listing.on_passed_over = lambda path, why: links.append(path)
    async for _ in listing:
        pass
    for path in links:
        with suppress(InvalidPath):
            await operator.accessor().rename(RenameRequest(path=path, target=target + path[len(source) :]))


async def _delete_copied(
    operator: Store, source: str, target: str, copied: dict[str, Entry | Metadata], *, is_empty: bool
) -> list[str]:
    """Delete the objects that are still what was copied, and the directories; returns the paths of the other ones."""
    accessor = operator.accessor()
    same: list[Entry] = []
    changed: list[str] = []
    directories: list[str] = []
    async for entry in list_literally(operator, source, recursive=True):
        if entry.is_directory:
            directories.append(entry.path)
        elif entry.path in copied:  # Others are new, and stay.
            if is_same(copied[entry.path], entry):
                same.append(entry)
            else:
                changed.append(entry.path)
    if operator.capability.create_dir:
        for path in directories or ([source] if is_empty and target else []):
            await accessor.create_dir(CreateDirRequest(path=target + path[len(source) :]))
    changed += await _delete_unless_changed(accessor, same)
    await delete_empty(accessor, [*directories, source])
    return sorted(changed)


async def _delete_unless_changed(accessor: Accessor, objects: list[Entry]) -> list[str]:
    """Delete objects; returns the paths of objects that had changed by then."""
    try:
        await delete_paths(accessor, [entry.path for entry in objects], _etags(objects))
    except ConditionNotMatch as error:
        if kinds_of(error) != {error.kind}:
            raise
        failures = error.context.get("failures")
        return [*failures] if isinstance(failures, Mapping) else [error.path]
    return []

"""``Operator.move``: an object, or all that is below a directory, copied within a store and then deleted."""

from __future__ import annotations

from collections.abc import Mapping

from aioprefetch.errors import Error, IsADirectory, ObjectChanged, Unsupported
from aioprefetch.operator.listing import list_literally
from aioprefetch.operator.removal import delete_paths
from aioprefetch.operator.server_copy import copy_object
from aioprefetch.operator.transfer.many import copy_side
from aioprefetch.operator.transfer.sides import Side, Store
from aioprefetch.values import CreateDirRequest, DeleteRequest, Entry, Metadata


async def move_object(operator: Store, source: str, target: str) -> Metadata:
    """Copy one object within the store, and delete ``source`` once that is done."""
    accessor = operator.accessor()
    metadata = await copy_object((accessor, operator.runtime()), "move", source, target)
    await accessor.delete(DeleteRequest(path=source, paths=(source,)))
    return metadata


async def move_directory(operator: Store, source: str, target: str) -> Metadata:
    """Copy what is below the directory ``source``, and then delete there what was copied; see ``Operator.move``."""
    if not operator.capability.delete:
        raise Unsupported("the service does not support delete", operation="move", path=source)
    sides = Side(operator=operator, path=source, label=source), Side(operator=operator, path=target, label=target)
    copied: dict[str, Entry | Metadata] = {}
    try:
        report = await copy_side(*sides, skip_same=False, on_copied=lambda found: copied.update({found.path: found}))
        report.raise_failures()
        changed = await _delete_copied(operator, source, f"{target.rstrip('/')}/" if target else "", copied)
    except Error as error:
        error.operation = "move"
        raise
    if changed:
        raise ObjectChanged(
            "overwritten while the directory was moved: it is at its old place too, as it is now",
            operation="move",
            path=changed[0],
            context={"changed": len(changed), "moved": len(copied) - len(changed)},
        )
    return Metadata(path=target, kind="directory", size=report.bytes)


async def _delete_copied(operator: Store, source: str, target: str, copied: dict[str, Entry | Metadata]) -> list[str]:
    """Delete the objects that are still what was copied, and the directories; returns the paths of the other ones."""
    accessor = operator.accessor()
    same: list[str] = []
    changed: list[str] = []
    directories: list[str] = []
    async for entry in list_literally(operator, source, recursive=True):
        if entry.is_directory:
            directories.append(entry.path)
        elif entry.path in copied:  # Others are new, and stay.
            (same if _is_same(copied[entry.path], entry) else changed).append(entry.path)
    if operator.capability.create_dir:
        for path in directories:
            await accessor.create_dir(CreateDirRequest(path=target + path[len(source) :]))
    await delete_paths(accessor, same)
    try:
        await delete_paths(accessor, [*sorted(directories, reverse=True), source])
    except IsADirectory as error:  # There is something in it, which stays.
        failures = error.context.get("failures")
        if not isinstance(failures, Mapping) or {*failures.values()} != {error.kind}:
            raise
    return changed


def _is_same(copied: Entry | Metadata, found: Entry) -> bool:
    was, now = ((one.size, one.etag, one.last_modified) for one in (copied, found))
    return was == now

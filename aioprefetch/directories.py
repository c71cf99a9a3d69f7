"""A store as a tree of directories: what is at a path and below it, and changes of whole directories.

Paths have no slash at their end. A directory of a store without directories is there as long as an object lies below
it, or an empty object stands for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from aioprefetch.accessor.path_hints import hint_at_path
from aioprefetch.errors import AlreadyExists, Error, InvalidPath, IsADirectory, NotADirectory, NotFound
from aioprefetch.operator.operator import Operator
from aioprefetch.runtime.task_group import gather_all
from aioprefetch.values import Entry, Metadata
from aioprefetch.verbs.listing import delete_below, has_bytes, list_literally

# Requests of one call that are made side by side.
LOOKS_AT_ONCE = 64


def directory_of(path: str) -> str:
    """The path of a directory, with its slash; ``""`` is the root."""
    return path if not path or path.endswith("/") else f"{path}/"


def parents_of(path: str, root: str) -> Iterator[str]:
    """The directories above a path, up to and with ``root``, the nearest first."""
    while len(path) > len(root):
        above, slash, _ = path.rpartition("/")
        if not slash or len(above) < len(root):
            return
        yield above
        path = above


async def key_of(operator: Operator, path: str) -> str:
    """The key of a path, in which a slash at the end says nothing, unless an object with bytes has that name."""
    key = path.rstrip("/")
    return path if key and key != path and await has_bytes(operator.accessor(), path) else key


async def find(operator: Operator, path: str) -> Metadata | None:
    """The object at a path, otherwise the directory; ``None`` if there is neither."""
    try:
        return await operator.stat(path)
    except IsADirectory:
        pass
    except (NotFound, NotADirectory):
        if not path:
            return None
    return await find_directory(operator, path)


async def find_directory(operator: Operator, path: str) -> Metadata | None:
    """The directory at a path, or ``None``."""
    if not operator.capability.stat_directory:
        return None
    try:
        found = await operator.stat(directory_of(path))
    except (NotFound, NotADirectory):
        return None
    return found if found.is_directory else Metadata(path=found.path, kind="directory")  # An object is in it.


async def find_all(operator: Operator, paths: Iterable[str]) -> list[Metadata | None]:
    """The object or directory at each of the paths, found side by side."""

    async def find_one(path: str) -> Metadata | None:
        return await find(operator, await key_of(operator, path))

    return await gather_all((partial(find_one, path) for path in paths), at_once=LOOKS_AT_ONCE)


async def check_directory(operator: Operator, path: str, operation: str) -> None:
    """Raise ``NotFound`` if there is nothing at a path, ``NotADirectory`` for an object."""
    if await find_directory(operator, path) is None:
        if await find(operator, path) is None:
            raise missing(operator, "directory", operation, path)
        raise NotADirectory("there is an object, a directory is needed", operation=operation, path=path)


async def check_object(operator: Operator, path: str, operation: str) -> None:
    """Raise ``NotFound`` if there is nothing at a path, ``IsADirectory`` for a directory."""
    found = await find(operator, path)
    if found is None:
        raise missing(operator, "object", operation, path)
    if found.is_directory:
        raise _a_directory(operation, path)


async def below(operator: Operator, base: str, *, recursive: bool) -> list[Entry] | None:
    """The entries of a directory, or with ``recursive`` all below it, directories among them.

    An object whose key ends with ``/`` has that slash in its path, and is in the directory of its name. ``None`` if
    there is nothing at ``base``; ``NotADirectory`` for an object.
    """
    found: dict[str, Entry] = {}
    async for entry in list_literally(operator, directory_of(base), recursive=recursive):
        path = entry.path.removesuffix("/") if entry.is_directory else entry.path
        for above in parents_of(path, base):
            if above != base:
                found.setdefault(above, Entry(path=above, kind="directory"))
        if not entry.is_directory or path not in found:
            found[path] = Entry(
                path=path, kind=entry.kind, size=entry.size, etag=entry.etag, last_modified=entry.last_modified
            )
    if not found:
        there = await find(operator, base)
        if there is None:
            return None
        if not there.is_directory:
            raise NotADirectory("there is an object, a directory is needed", operation="list", path=base)
    return list(found.values())


async def create(operator: Operator, path: str, *, recursive: bool) -> None:
    """Create a directory; an existing one is kept. Without ``recursive`` its parent must be there (``NotFound``).

    ``AlreadyExists`` if there is an object of that name.
    """
    there = await find(operator, path)
    if there is not None and there.is_directory:
        return
    if there is not None:
        raise AlreadyExists("an object of that name is there", operation="create_dir", path=path)
    parent = path.rpartition("/")[0]
    if parent and not recursive:
        await check_directory(operator, parent, "create_dir")
    await operator.create_dir(directory_of(path))


async def remove(operator: Operator, path: str) -> None:
    """Delete a directory and all below it."""
    if not path:
        raise InvalidPath(
            "the root itself cannot be deleted: delete_dir_contents('', accept_root_dir=True) empties it",
            operation="delete_dir",
        )
    await check_directory(operator, path, "delete_dir")
    await operator.delete_all(directory_of(path))


async def empty(operator: Operator, path: str, *, missing_allowed: bool) -> None:
    """Delete all below a directory, which stays. ``NotFound`` if it does not exist, unless ``missing_allowed``."""
    entries = await below(operator, path, recursive=False)
    if entries is None:
        if missing_allowed:
            return
        raise missing(operator, "directory", "delete_dir_contents", path)
    await delete_below(operator, directory_of(path), keeps_directory=True)
    if path and entries:  # Elsewhere than in files it may have been there by its contents alone.
        await operator.create_dir(directory_of(path))


async def delete(operator: Operator, path: str) -> None:
    """Delete an object. ``NotFound`` if it does not exist, ``IsADirectory`` for a directory."""
    path = await key_of(operator, path)
    await check_object(operator, path, "delete_file")
    await operator.delete(path)


async def copy(operator: Operator, source: str, target: str) -> None:
    """Copy an object; one at ``target`` is replaced. ``IsADirectory`` if either is a directory."""
    source = await key_of(operator, source)
    await check_object(operator, source, "copy_file")
    await _check_no_directory(operator, target, "copy_file")
    if source != target:
        await operator.copy(source, target)


async def move(operator: Operator, source: str, target: str) -> None:
    """Move an object, which replaces one at ``target``, or a directory with all below it, to an empty one or none.

    A directory moves as ``Operator.move`` has it: after a failure each object is at one of both places, or at both.
    What others write below either directory meanwhile stays where it is; so do names that cannot be served.
    """
    there = await find(operator, source)
    if there is None:
        raise missing(operator, "object or directory", "move", source)
    if source == target:
        return
    if not there.is_directory:
        await _check_no_directory(operator, target, "move")
        await operator.move(source, target)
        return
    if not source or target.startswith(directory_of(source)):
        raise InvalidPath("a directory cannot be moved into itself", operation="move", path=source)
    if await below(operator, target, recursive=False):
        raise AlreadyExists("the target is a directory that is not empty", operation="move", path=target)
    await operator.move(directory_of(source), directory_of(target))


async def _check_no_directory(operator: Operator, path: str, operation: str) -> None:
    if not path or await find_directory(operator, path) is not None:
        raise _a_directory(operation, path)


def missing(operator: Operator, what: str, operation: str, path: str) -> Error:
    """``NotFound`` for a path, with its store."""
    return hint_at_path(NotFound(f"there is no such {what}", operation=operation, path=path), operator.info)


def _a_directory(operation: str, path: str) -> IsADirectory:
    return IsADirectory("the path is a directory's, an object is needed", operation=operation, path=path)

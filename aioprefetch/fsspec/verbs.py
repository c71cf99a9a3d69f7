"""Parts of the file system's verbs: how they block and how they end, slices of objects, local files.

**Verbs that block** do it on our loop thread. fsspec waits in ``fsspec.asyn.sync``: an interrupt (Ctrl-C) leaves the
work running there, and a ``TimedOut`` comes out as another error. Here the work is cancelled before the interrupt is
raised, and the verbs' own errors are.

**Verbs of many objects** end with all of their work. fsspec runs such a verb as a task for each object. If the verb is
cancelled, these tasks would go on: requests without a caller, objects that appear after an interrupt. Here the tasks of
a verb are known to it, and are cancelled with it.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from functools import partial
from glob import has_magic
from itertools import compress
from operator import not_
from typing import Any, BinaryIO, ParamSpec, TypeVar

from fsspec.asyn import AsyncFileSystem, mirror_sync_methods, sync
from fsspec.implementations.local import make_path_posix
from fsspec.utils import common_prefix, isfilelike, other_paths, stringify_path

from aioprefetch.accessor.protocols import copies_from
from aioprefetch.credentials import frameless
from aioprefetch.errors import (
    Error,
    InvalidArgument,
    InvalidPath,
    IsADirectory,
    NotFound,
    RangeNotSatisfied,
    WrongLoop,
    copy_of,
)
from aioprefetch.fsspec.kept import asking
from aioprefetch.fsspec.tree import Place, Tree
from aioprefetch.local_files.identity import local_identity
from aioprefetch.plan.overlap import conflict, folded
from aioprefetch.runtime.task_group import gather_all
from aioprefetch.runtime.threads import in_thread
from aioprefetch.sync.loop_thread import loop_thread
from aioprefetch.transfer.moving import delete_moved, prove
from aioprefetch.transfer.sides import check_local_name
from aioprefetch.values import Identity, Metadata
from aioprefetch.verbs.download import download
from aioprefetch.verbs.progress import CopyProgress, ProgressBar, ProgressDisplay
from aioprefetch.verbs.ranged_read import first_bytes_of
from aioprefetch.verbs.requests import read_request
from aioprefetch.verbs.writer import PLACEMENT, copy_by_server, description_of

# Names that are looked at side by side.
_LOOKS_AT_ONCE = 64
Identify = Callable[[str], Coroutine[Any, Any, Identity]]
P = ParamSpec("P")
T = TypeVar("T")


def blocking(verb: Callable[..., Coroutine[Any, Any, Any]], fs: Any = None) -> Callable[..., Any]:
    """``verb`` as a function that waits; without ``fs`` it is a method of a class.

    ``timeout`` are the seconds after which it is cancelled and raises ``TimedOut``.
    """

    @frameless
    @functools.wraps(verb)
    def call(*arguments: Any, timeout: float | None = None, **options: Any) -> Any:
        its = arguments[0] if fs is None else fs
        if its.asynchronous:
            raise WrongLoop(
                f"the file system is asynchronous=True: await {verb.__name__}(), or make one without it",
                operation=verb.__name__.lstrip("_"),
            )
        thread = loop_thread()
        if its.loop is thread.loop:
            return thread.run(verb(*arguments, **options), timeout or None)
        return sync(its.loop, verb, *arguments, timeout=timeout, **options)

    return call


def mirror(fs: Any) -> None:
    """Give a file system the blocking verbs that fsspec would give it, each by ``blocking``."""
    before = set(vars(fs))
    mirror_sync_methods(fs)
    for name in vars(fs).keys() - before:
        verb = getattr(vars(fs)[name], "__wrapped__", None)
        if inspect.iscoroutinefunction(verb):
            setattr(fs, name, blocking(verb, fs))


# --- verbs of many objects --------------------------------------------------------------------------------------------


class Scope:
    """The tasks of one verb of many, and what it knows for all of them.

    ``directories`` were just listed by the store, and share no name with an object; there is
    something in ``holding``, which may share the name of an object. ``files`` are only objects.
    Names that cannot be served are ``refused``, to be raised when the others are done.
    """

    def __init__(self) -> None:
        self.owner = asyncio.current_task()
        self.tasks: set[asyncio.Task[Any]] = set()
        self.is_ended = False
        self.directories: set[str] = set()
        self.holding: set[str] = set()
        self.files: set[str] = set()
        self.refused: dict[str, Error] = {}

    async def end(self) -> None:
        """Cancel the tasks, begun or not, and wait until each has cleaned up."""
        self.is_ended = True
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks)


_scope: ContextVar[Scope | None] = ContextVar("aioprefetch_fsspec_scope", default=None)


@asynccontextmanager
async def many() -> AsyncIterator[None]:
    """A verb of many, ``asking``: if the block fails or is cancelled, so are the single verbs that it has begun."""
    scope, above = Scope(), _scope.get()
    if above is not None:  # A part of that verb.
        scope.directories, scope.holding, scope.refused = above.directories, above.holding, above.refused
        scope.files = above.files
    token = _scope.set(scope)
    try:
        with asking():
            yield
        if scope.refused and above is None:
            failures = {path: each.kind for path, each in scope.refused.items()}
            raise next(iter(scope.refused.values())).add_context(failures=failures)
    except BaseException:
        await scope.end()
        raise
    finally:
        _scope.reset(token)


def of_one(verb: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """A verb of one object, which ends with the verb of many that has begun it."""

    @functools.wraps(verb)
    async def call(*arguments: P.args, **options: P.kwargs) -> T:
        scope, task = _scope.get(), asyncio.current_task()
        try:
            if scope is None or task is None or task is scope.owner:
                return await verb(*arguments, **options)
            if scope.is_ended:
                raise asyncio.CancelledError
            scope.tasks.add(task)
            try:
                return await verb(*arguments, **options)
            finally:
                scope.tasks.discard(task)
        finally:
            del task  # The traceback of its error holds this frame.

    return call


def note_directories(root: str, found: Iterable[Mapping[str, Any]], *, is_whole: bool) -> None:
    """Tell the running verb of many what the store has just listed below ``root``, and whether that is all."""
    if (scope := _scope.get()) is not None:
        names = {kind: {info["name"] for info in found if info["type"] == kind} for kind in ("file", "directory")}
        scope.files |= names["file"] - names["directory"]
        if not is_whole:
            return
        scope.directories |= names["directory"] - names["file"] - {root}
        scope.holding |= {name.rpartition("/")[0] for those in names.values() for name in those - {root}}


async def is_empty(tree: Tree, name: str) -> bool:
    """Whether there is nothing in a directory."""
    scope = _scope.get()
    if scope is not None and (name in scope.holding or name in scope.directories):
        return name not in scope.holding
    return not await tree.entries(name, refresh=True)


async def copied(
    tree: Tree, name: str, copy: Callable[[], Awaitable[None]], make: Callable[[], Awaitable[None]]
) -> None:
    """Copy an object. fsspec has directories copied too: ``make`` makes one, where no object has the name."""
    scope = _scope.get()
    is_object = scope is None or name not in scope.directories
    if scope is not None and is_object and name in scope.holding:
        is_object = await tree.is_object(name)
    try:
        if is_object:
            await copy()
            return
    except (InvalidPath, IsADirectory, NotFound) as error:
        if isinstance(error, InvalidPath) or not await tree.is_directory_alone(name):
            if scope is None or isinstance(error, NotFound):
                raise
            scope.refused[name] = copy_of(error)
            return
    await make()


# --- slices -----------------------------------------------------------------------------------------------------------

Bounds = tuple[int | None, int | None]


async def read_slice(place: Place, bounds: Bounds) -> bytes:
    """The bytes of one slice, as from a file: fewer at the end of the object, none beyond it."""
    begin, end = bounds[0] or 0, bounds[1]
    if begin < 0 and end is None:
        return await place.operator.read(place.key, suffix=-begin, version=place.version)
    if begin < 0 or (end or 0) < 0:
        return (await _read_sized(place, [bounds], None))[0]
    try:
        size = None if end is None else max(0, end - begin)
        return await place.operator.read(place.key, offset=begin, size=size, version=place.version)
    except RangeNotSatisfied:
        return b""


async def read_slices(place: Place, slices: Sequence[Bounds], gap_bytes: int | None) -> list[bytes]:
    """The bytes of several slices of one object, in few requests."""
    if len(slices) == 1:
        return [await read_slice(place, slices[0])]
    ranges = [(start or 0, max(start or 0, end)) for start, end in slices if end is not None]
    if len(ranges) == len(slices) and all(min(start or 0, end or 0) >= 0 for start, end in slices):
        with suppress(RangeNotSatisfied):  # A range goes beyond the end, where a file is only short.
            return await place.operator.read_ranges(place.key, ranges, gap_bytes=gap_bytes, version=place.version)
    return await _read_sized(place, slices, gap_bytes)


async def _read_sized(place: Place, slices: Sequence[Bounds], gap_bytes: int | None) -> list[bytes]:
    """Slices that need the size: it and their bytes are of one version."""
    async with place.operator.reader(place.key, policy="random", version=place.version) as reader:
        reader.seek(0, os.SEEK_END)  # So that the first request brings the end.
        size = await reader.ensure_size()
        ranges = [slice(*bounds).indices(size)[:2] for bounds in slices]
        return await reader.read_ranges([(start, max(start, end)) for start, end in ranges], gap_bytes=gap_bytes)


def by_path(paths: Sequence[str], starts: Any, ends: Any) -> dict[str, list[tuple[int, Bounds]]]:
    """The slices of each path, with their positions; a single bound is for all paths."""
    if not isinstance(paths, list):
        raise InvalidArgument(f"paths must be a list, not {type(paths).__name__}", operation="cat_ranges")
    firsts, lasts = (list(one) if isinstance(one, Iterable) else [one] * len(paths) for one in (starts, ends))
    if not len(paths) == len(firsts) == len(lasts):
        raise InvalidArgument("paths, starts and ends differ in length", operation="cat_ranges")
    found: dict[str, list[tuple[int, Bounds]]] = {}
    for position, (path, start, end) in enumerate(zip(paths, firsts, lasts, strict=True)):
        found.setdefault(path, []).append((position, (start, end)))
    return found


def in_order(wanted: Mapping[str, list[tuple[int, Bounds]]], results: Iterable[Any], *, raises: bool) -> list[Any]:
    """The results of the slices of ``by_path``, by their positions; of a path that failed its error."""
    found: dict[int, Any] = {}
    for slices, result in zip(wanted.values(), results, strict=True):
        for order, (position, _) in enumerate(slices):
            found[position] = result if isinstance(result, BaseException) else result[order]
    if raises and (error := next((one for _, one in sorted(found.items()) if isinstance(one, Exception)), None)):
        raise copy_of(error)
    return [found[position] for position in range(len(found))]


# --- names and patterns -----------------------------------------------------------------------------------------------


async def name_of(fs: Any, path: Any) -> str:
    """A path as the tree has it: with the slash at its end only if an object has that name, which is asked."""
    name: str = fs._strip_protocol(path)
    may_be = name and stringify_path(path).endswith("/") and hasattr(fs, "place_of")
    return f"{name}/" if may_be and await fs._tree.is_object(f"{name}/") else name


async def expanded(
    fs: Any, path: str | Iterable[str], *, recursive: bool, maxdepth: int | None, is_literal: bool = False
) -> tuple[list[str], list[str]]:
    """The names that a path, or each of several, means; and all of them in order, with what is below if ``recursive``.

    A name that is there is no pattern. Each is looked for once, so that what a verb copies is what it deletes.
    Raises ``NotFound``.
    """
    if maxdepth is not None and maxdepth < 1:
        raise InvalidArgument("maxdepth must be at least 1", operation="list")
    roots: list[str] = []
    names: set[str] = set()
    for one in [path] if isinstance(path, str) else path:
        name = fs._strip_protocol(one) if recursive else await name_of(fs, one)
        those, levels = [name], maxdepth
        if not is_literal and has_magic(name) and not await fs._lexists(name):
            those, levels = await fs._glob(name, maxdepth=maxdepth), maxdepth and maxdepth - 1
        roots += those
        for root in those:
            if recursive and levels != 0:
                names.update(await fs._find(root, maxdepth=levels, withdirs=True))
            if root not in names and (not recursive or levels == 0 or await fs._exists(root)):
                names.add(root)
    if not names:
        raise NotFound("there is no such object or directory", operation="list", path=str(path))
    return roots, sorted(names)


async def expand_path(
    fs: Any, path: Any, recursive: bool = False, maxdepth: int | None = None, assume_literal: bool = False
) -> list[str]:
    """The method of a file system, by which fsspec's own verbs learn what a path means."""
    return (await expanded(fs, path, recursive=recursive, maxdepth=maxdepth, is_literal=assume_literal))[1]


async def holds(fs: Any, path: Any) -> bool:
    """Whether what is copied to a path goes into it: into a directory, which the store is asked for."""
    found: bool = await fs._tree.has_directory(fs._strip_protocol(path))
    return found


async def placed(
    fs: Any, source: Any, target: Any, is_directory: Callable[[str], Awaitable[bool]] | None = None, **levels: Any
) -> tuple[list[str], list[str], list[str]]:
    """The names that a copy from a file system reads, the target of each by the rules of fsspec, and the roots of all.

    fsspec itself would take a name that is there for a pattern, and cut nothing off one without a directory above it.
    ``levels`` are ``recursive`` and ``maxdepth``.
    """
    if isinstance(source, list) and isinstance(target, list):
        names = [await name_of(fs, one) for one in source]
        return names, target, names
    is_one = isinstance(source, str)
    roots, names = await expanded(fs, source, **levels)
    if is_one and (not levels["recursive"] or levels["maxdepth"] is not None):
        files = scope.files if (scope := _scope.get()) is not None and hasattr(fs, "place_of") else ()
        passed = [name for name in names if name not in files and await fs._isdir(name)]
        if not (passed == roots[:1] == roots and hasattr(fs, "place_of") and await fs._tree.is_object(roots[0])):
            names = [name for name in names if name not in passed]
    if not names or not isinstance(target, str):
        return names, names and other_paths(names, target), roots
    is_inside = is_one and len(names) == 1
    if is_one and roots == [fs._strip_protocol(source)]:
        is_inside = not source.endswith("/") and (
            target.endswith("/") or await (is_directory(target) if is_directory is not None else holds(fs, target))
        )
    if is_inside:
        target = f"{target.rstrip('/')}/{common_prefix(names).rpartition('/')[2]}"
    return names, other_paths(names, target, flatten=not is_one), roots


async def placed_in_files(fs: Any, source: Any, target: Any, **levels: Any) -> tuple[list[str], list[str]]:
    """The same for a copy into local files. A name that leads out of the directory ``target`` is refused."""
    target = make_path_posix(target)
    names, targets, _ = await placed(fs, source, target, lambda path: in_thread(os.path.isdir, path), **levels)
    if not isinstance(target, str):
        return names, targets
    scope, inside = _scope.get(), [_is_within(target, file) for file in targets]
    for name in compress(names, map(not_, inside)):
        if scope is not None and name not in scope.directories:
            scope.refused[name] = InvalidPath(f"the name leads out of {target}", operation="get", path=name)
    return list(compress(names, inside)), list(compress(targets, inside))


async def identity_in(fs: Any, path: str) -> Identity:
    """The identity of what a path of a file system names."""
    place: Place = fs.place_of(path)
    return await place.operator.accessor().identity(place.directory if path.endswith("/") else place.key)


async def local_identity_of(path: str) -> Identity:
    """The identity of a local file."""
    return await in_thread(local_identity, path)


async def _known(identify: Identify, name: str) -> Identity | None:
    """An identity, ``None`` where it cannot be known: the verb says what is wrong with the name."""
    with suppress(OSError, ValueError, Error):
        return await identify(name)
    return None


async def check_pairs(fs: Any, names: Sequence[str], targets: Any, reads: Identify, writes: Identify) -> None:
    """Raise ``InvalidArgument`` before a run that would write two objects to one place, or over its own source.

    The names are of ``fs``. A directory alone, which is found above its content, reads nothing.
    """
    scope = _scope.get()
    left = scope.directories.union(scope.refused) if scope is not None else ()
    pairs = [pair for pair in zip(names, targets, strict=False) if pair[0] not in left]
    if len(pairs) < 2:
        return
    source, place = await _known(reads, pairs[0][0]), await _known(writes, pairs[0][1])
    if source is not None and place is not None and source.store[0] != place.store[0]:
        spelled = Counter(folded(target) for _, target in pairs)  # No target is a source: one may be written twice.
        pairs = [pair for pair in pairs if spelled[folded(pair[1])] > 1]
    sources = await gather_all((partial(_known, reads, name) for name, _ in pairs), at_once=_LOOKS_AT_ONCE)
    places = await gather_all((partial(_known, writes, target) for _, target in pairs), at_once=_LOOKS_AT_ONCE)
    files = [
        (pair, source, place)
        for pair, source, place in zip(pairs, sources, places, strict=True)
        if source is not None and place is not None and source.kind != "directory"
    ]
    is_object = fs._tree.is_object if hasattr(fs, "place_of") else fs._isfile
    while found := conflict([source for _, source, _ in files], [place for _, _, place in files]):
        first, second, is_read = found
        (name, target), (other, _) = files[first][0], files[second][0]
        if idle := [number for number in (first, second) if not await is_object(files[number][0][0])]:
            if scope is not None:  # Asked again in the run it might find what the run has written.
                scope.directories.add(files[idle[0]][0][0])
            del files[idle[0]]
            continue
        both = f"{other!r} and {name!r} would be one object"
        what = f"{name!r} would be copied over {other!r}, which is to be copied itself" if is_read else both
        raise InvalidArgument(what, operation="copy", path=target)


def _is_within(directory: str, file: str) -> bool:
    return os.path.relpath(file, directory).split(os.sep)[0] != os.pardir


# --- transfers --------------------------------------------------------------------------------------------------------


class SizeFirst(ProgressDisplay):
    """A callback of fsspec as the display of a download, from which it learns the size before the bytes come."""

    def __init__(self, callback: Any) -> None:
        super().__init__()
        self._callback = callback

    def open(self, name: str) -> ProgressBar:
        """The bar of the download."""
        return _CallbackBar(self._callback)


class _CallbackBar:
    """The bar of one call, which tells its size once."""

    def __init__(self, callback: Any) -> None:
        self._callback = callback
        self._has_size = False

    def update(self, progress: CopyProgress) -> None:
        if progress.total is not None and not self._has_size:
            self._has_size = True
            self._callback.set_size(progress.total)
        if progress.step_bytes:
            self._callback.relative_update(progress.step_bytes)

    def close(self, error: BaseException | None) -> None:
        """The caller closes its callback."""


async def get_object(place: Place, target: Any, callback: Any) -> None:
    """Write an object, or one version of it, into a local file or into a file that is open.

    A local file appears whole; if that fails or is cancelled, it is as it was. Raises ``IsADirectory`` for a directory.
    """
    if isfilelike(target):
        await _stream_into(place, target, callback)
        return
    if target.endswith("/") and place.key.endswith("/"):
        check_local_name(place.key, "", place.key)
    await in_thread(os.makedirs, os.path.dirname(target) or ".", exist_ok=True)
    operator = place.operator
    request = read_request(first_bytes_of(operator.options), place.key, 0, None, options={"version": place.version})
    assert request is not None
    await download(operator.accessor(), operator.runtime(), request, target, SizeFirst(callback))


async def put_object(source: str, place: Place, options: dict[str, Any], callback: Any) -> None:
    """Write an object from a local file. Errors: ``Operator.upload``."""
    with suppress(OSError):  # The upload says what is wrong with the file.
        callback.set_size(await in_thread(os.path.getsize, source))
    await place.operator.upload(source, place.key, on_progress=callback.relative_update, **options)


async def move_objects(
    fs: Any, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **options: Any
) -> None:
    """The method ``mv`` of a file system: move objects as ``Operator.move`` does; options as for ``cp_file``.

    ``IsADirectory`` for a directory, unless ``recursive``; directories that a glob matches, or that lie deeper than
    ``maxdepth``, stay where they are. After a failure each object is at one of both places, or at both. Names that
    cannot be served stay, and so does what others write meanwhile, with ``ObjectChanged``.
    """
    if path1 == path2:
        return
    async with many():
        names, targets, roots = await placed(fs, path1, path2, recursive=recursive, maxdepth=maxdepth)
        if not names and [fs._strip_protocol(path1)] == roots:
            raise IsADirectory("a directory: recursive=True moves what is below", operation="move", path=path1)
        await check_pairs(fs, names, targets, partial(identity_in, fs), partial(identity_in, fs))
        is_whole = recursive and maxdepth is None and not isinstance(path2, list)
        with fs._changing(*roots, *targets[: len(roots)]):
            if is_whole and not options and roots == names[:1] and await _move_directory(fs, names[0], targets[0]):
                return
            directories = (await fs._tree.contents(roots))[1] if is_whole else []
            options |= {"recursive": recursive, "on_error": "raise", "is_move": True}
            await AsyncFileSystem._copy(fs, names, targets, **options)
            await fs._stores.remove_directories(directories)


async def _move_directory(fs: Any, name: str, path: str) -> bool:
    """Move a directory as ``Operator.move``; ``False`` if it is not a directory, or goes elsewhere, or into itself."""
    source, target = fs.place_of(name), fs.place_of(path)
    if source.operator is not target.operator or not source.key or not target.key or placement_in(fs._settings.write):
        return False
    scope = _scope.get()
    is_known = scope is not None and name in scope.holding
    if target.directory.startswith(source.directory) or not (is_known or await fs._tree.has_directory(name)):
        return False
    if await fs._tree.is_object(name):
        return False
    await source.operator.move(source.directory, target.directory)
    return True


async def move_object(source: Place, target: Place, options: Mapping[str, Any]) -> None:
    """Move an object: as ``Operator.move`` within a store, otherwise by a copy, with the same proof and second look."""
    reads, writes = source.operator, target.operator
    is_named = not (source.key.endswith("/") or target.key.endswith("/"))
    if is_named and source.version is None and reads is writes and not placement_in(options):
        await reads.move(source.key, target.key)
        return
    before = await reads.stat(source.key, version=source.version)
    await prove(writes.accessor(), before, await copy_object(source, target, options), target.key)
    if source.version is not None:
        await reads.delete(source.key, version=source.version)
    else:
        await delete_moved(reads.accessor(), before)


def placement_in(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a write that say how a copy is stored, which the store does by itself."""
    return {name: options[name] for name in PLACEMENT if options.get(name) is not None}


async def copy_object(source: Place, target: Place, options: Mapping[str, Any]) -> Metadata:
    """Copy an object within its store, or into another one; between two buckets the store does it alone.

    A version is read and written. The copy has the description of its source, and for the rest the ``options`` of a
    write. Raises ``Unsupported`` where the store cannot obey them.
    """
    reads, writes = source.operator, target.operator
    placement = placement_in(options)
    if source.version is None and reads is writes and not (placement or target.key.endswith("/")):
        return await reads.copy(source.key, target.key)
    connected = writes.accessor(), writes.runtime()
    if source.version is None and (reads is writes or copies_from(writes.service, reads.service)):
        other = None if reads is writes else reads
        return await copy_by_server(
            connected,
            source.key,
            target.key,
            source=None if other is None else other.accessor(),
            store=None if other is None else other.service.info,
            placement=placement,
        )
    found = await reads.stat(source.key, version=source.version)
    described = {**options, **description_of(found, writes.capability)}
    reader = reads.reader(source.key, policy="sequential", etag=found.etag, version=source.version)
    async with reader, reader.stream() as chunks:
        return await writes.write(target.key, chunks, **described)


async def _stream_into(place: Place, file: BinaryIO, callback: Any) -> None:
    async with place.operator.reader(place.key, policy="sequential", version=place.version) as reader:
        callback.set_size(await reader.ensure_size())
        async for chunk in reader.stream():
            await in_thread(file.write, chunk)
            callback.relative_update(len(chunk))

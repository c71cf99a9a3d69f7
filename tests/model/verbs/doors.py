"""The doors through which a step is made: each translates it into its verb, and says which verbs and flags it has."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import aioprefetch as ap
from aioprefetch import Operator
from aioprefetch.arrow import filesystem
from aioprefetch.cli import main
from aioprefetch.fsspec import AioPrefetchFileSystem
from aioprefetch.layers.lru_cache import LruCacheLayer
from aioprefetch.obspec import store
from aioprefetch.sync.loop_thread import loop_thread
from aioprefetch.testing.bucket import etag_of
from tests.model.verbs.places import Place
from tests.model.verbs.steps import ALL_VERBS
from tests.model.verbs.tree import Step, Tree, has_dots, pattern_of

Verbs = Mapping[str, Collection[str]]
NO_FLAGS = frozenset[str]()


class Door:
    """A door to a place, of which the operator is its own. ``verbs`` are those it has, with their flags.

    With ``is_strict`` its errors are those of the model; others may be of other kinds. One that ``is_file_system`` has
    meanings of its own where a name is that of an object and of a directory.
    """

    name: ClassVar[str]
    verbs: ClassVar[Verbs]
    is_strict = True
    is_file_system = False

    def __init__(self, place: Place, *, is_cached: bool = False) -> None:
        self.place = place
        self.op = place.operator()
        if is_cached:
            self.op = self.op.layer(LruCacheLayer(cache=Operator(ap.services.Memory())))

    def means(self, tree: Tree, step: Step) -> Step | None:
        """The step as it is meant here; ``None`` for one that this door takes for something else in such a tree."""
        return step

    def may_refuse(self, tree: Tree, step: Step) -> bool:
        """Whether it refuses what the store would do."""
        return False

    async def make(self, step: Step) -> bytes | None:
        """Make a step; the bytes that it reads. Raises what has failed of it."""
        raise NotImplementedError

    async def seen(self) -> Tree | None:
        """What is there, as this door sees it; ``None`` if it keeps nothing."""
        return None

    async def aclose(self) -> None:
        """Release what it holds."""
        await self.op.aclose()


@asynccontextmanager
async def door_of(kind: type[Door], place: Place, *, is_cached: bool = False) -> AsyncIterator[Door]:
    """A door that is closed at the end."""
    door = kind(place, is_cached=is_cached)
    try:
        yield door
    finally:
        await door.aclose()


async def conditions_of(op: Operator, step: Step) -> dict[str, Any]:
    """The conditions of a step on one object, with the ETag that it has now."""
    conditions: dict[str, Any] = {}
    if step.arguments.get("if_not_exists"):
        conditions["if_not_exists"] = True
    for name in ("if_match", "if_none_match"):
        if step.arguments.get(name) == "other":
            conditions[name] = etag_of(b"another")
        elif step.arguments.get(name) == "current":
            path = step.source if step.verb in ("copy", "move") else step.path + step.arguments.get("name", "")
            try:
                conditions[name] = (await op.stat(path)).etag
            except ap.Error:
                conditions[name] = etag_of(b"missing")
        elif step.arguments.get(name):
            conditions[name] = "*"
    return conditions


@contextlib.contextmanager
def local_file(data: bytes = b"", name: str = "file") -> Any:
    """The path of a local file."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, name)
        with open(path, "wb") as file:
            file.write(data)
        yield path


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


# --- operators --------------------------------------------------------------------------------------------------------


async def by_operator(op: Operator, step: Step, copy: Callable[..., Any] = ap.copy) -> bytes | None:
    """Make a step by the verbs of an Operator, or of one that has the same; the bytes that it reads."""
    many = step.verb.endswith(("_tree", "_all", "_many", "_named", "_dir"))
    conditions = {} if many else await conditions_of(op, step)
    match step.verb:
        case "write":
            await op.write(step.path, step.data, **conditions)
        case "writer":
            async with op.writer(step.path, **conditions) as writer:
                await writer.write(step.data[:3])
                await writer.write(step.data[3:])
        case "upload":
            with local_file(step.data) as file:
                await op.upload(file, step.path, **conditions)
        case "upload_into":
            with local_file(step.data, step.name) as file:
                await op.upload(file, step.path, **conditions)
        case "read":
            return await op.read(step.path)
        case "download":
            with local_file(name="target") as file:
                await op.download(step.path, file)
                return _content(file)
        case "copy" | "move":
            await getattr(op, step.verb)(step.source, step.target, **conditions)
        case "delete":
            await op.delete(step.path, **conditions)
        case "delete_many":
            await op.delete(list(step.paths))
        case "delete_all":
            await op.delete_all(step.path)
        case "create_dir":
            await op.create_dir(step.path)
        case "move_tree":
            await op.move(step.source, step.target, if_not_exists=step.if_not_exists)
        case "copy_tree" | "copy_named":
            report = await copy((op, step.source), (op, step.target), **copy_flags(step))
            report.raise_failures()
        case _:
            raise AssertionError(step.verb)
    return None


def copy_flags(step: Step) -> dict[str, Any]:
    """The flags of a copy of many."""
    names = ("glob", "overwrite", "delete_extra", "delete_max", "literal")
    described = {"write_options": {"cache_control": "no-cache"}} if step.arguments.get("is_described") else {}
    return {name: step.arguments[name] for name in names if name in step.arguments} | described


class OperatorDoor(Door):
    """The operator, and ``aioprefetch.copy``."""

    name = "operator"
    verbs: ClassVar[Verbs] = {
        verb: flags for verb, flags in ALL_VERBS.items() if verb not in ("append", "delete_named", "unlink")
    }

    async def make(self, step: Step) -> bytes | None:
        return await by_operator(self.op, step)

    async def seen(self) -> Tree:
        found = self.op.list("", recursive=True)
        paths = [entry.path async for entry in found if not (entry.is_directory or has_dots(entry.path))]
        return {path: await self.op.read(path) for path in paths}


class SyncDoor(Door):
    """The operator that blocks, and ``aioprefetch.sync.copy``."""

    name = "sync"
    verbs: ClassVar[Verbs] = OperatorDoor.verbs

    async def make(self, step: Step) -> bytes | None:
        """Each call blocks, on a thread of its own."""
        blocking: Any = _Awaited(ap.sync.BlockingOperator(self.op))
        return await by_operator(blocking, step, _awaitable(ap.sync.copy))

    async def aclose(self) -> None:
        await asyncio.to_thread(loop_thread().run, self.op.aclose())
        await super().aclose()


def _awaitable(call: Callable[..., Any]) -> Callable[..., Any]:
    async def made(*arguments: Any, **options: Any) -> Any:
        return await asyncio.to_thread(call, *map(_blocking, arguments), **options)

    return made


def _blocking(argument: Any) -> Any:
    """An argument of a call that blocks: the operator in a pair is the one that blocks."""
    is_place = isinstance(argument, tuple) and isinstance(argument[0], _Awaited)
    return (argument[0].blocking, argument[1]) if is_place else argument


class _Awaited:
    """An operator that blocks, with verbs that are awaited."""

    def __init__(self, blocking: Any) -> None:
        self.blocking = blocking

    def __getattr__(self, name: str) -> Any:
        return _awaitable(getattr(self.blocking, name))

    @asynccontextmanager
    async def writer(self, path: str, **options: Any) -> AsyncIterator[_Awaited]:
        """A file to write to."""
        file = self.blocking.writer(path, **options)
        try:
            yield _Awaited(file)
        except BaseException:
            await asyncio.to_thread(file.__exit__, *sys.exc_info())
            raise
        await asyncio.to_thread(file.close)


class PathDoor(Door):
    """``aioprefetch.Path``."""

    name = "path"
    verbs: ClassVar[Verbs] = {
        "write": {"if_not_exists", "if_match", "if_none_match"},
        "writer": {"if_not_exists"},
        "read": NO_FLAGS,
        "move": {"if_not_exists"},
        "move_tree": {"if_not_exists"},
        "unlink": {"missing_ok"},
    }

    async def make(self, step: Step) -> bytes | None:
        path = ap.Path.of(self.op, step.arguments.get("path", step.arguments.get("source")))
        match step.verb:
            case "write":
                await path.write_bytes(step.data, **await conditions_of(self.op, step))
            case "writer":
                async with path.open("xb" if step.if_not_exists else "wb") as writer:
                    await writer.write(step.data)
            case "read":
                return await path.read_bytes()
            case "unlink":
                await path.unlink(missing_ok=step.missing_ok)
            case _:
                move = path.rename if step.if_not_exists else path.replace
                assert (await move(ap.Path.of(self.op, step.target))).key == step.target
        return None


class ObspecDoor(Door):
    """A store of obspec."""

    name = "obspec"
    is_strict = False
    verbs: ClassVar[Verbs] = {
        "write": {"if_not_exists", "if_match"},
        "upload": {"if_not_exists", "if_match"},
        "copy": {"if_not_exists"},
        "move": {"if_not_exists"},
        "delete": NO_FLAGS,
        "delete_many": NO_FLAGS,
        "read": NO_FLAGS,
    }

    async def make(self, step: Step) -> bytes | None:
        stored, conditions = store(self.op), await conditions_of(self.op, step)
        mode: Any = "create" if conditions.get("if_not_exists") else None
        if "if_match" in conditions:
            mode = {"e_tag": conditions["if_match"]}
        match step.verb:
            case "write":
                await stored.put_async(step.path, step.data, mode=mode)
            case "upload":
                with local_file(step.data) as path:
                    await stored.put_async(step.path, Path(path), mode=mode)
            case "copy":
                await stored.copy_async(step.source, step.target, overwrite=not step.if_not_exists)
            case "move":
                await stored.rename_async(step.source, step.target, overwrite=not step.if_not_exists)
            case "delete":
                await stored.delete_async(step.path)
            case "delete_many":
                await stored.delete_async(list(step.paths))
            case "read":
                return bytes(await (await stored.get_async(step.path)).buffer_async())
        return None


# --- file systems -----------------------------------------------------------------------------------------------------


def is_directory(tree: Tree, path: str) -> bool:
    """Whether there is a directory of this name."""
    return not path or any(name.startswith(f"{path.rstrip('/')}/") for name in tree)


def has_two_kinds(tree: Tree) -> bool:
    """Whether a name is that of an object and of a directory."""
    return any(not name.endswith("/") and is_directory(tree, name) for name in tree)


def is_loose(tree: Tree, step: Step) -> bool:
    """Whether file systems have a meaning of their own for it.

    They take the object of a directory's name for it, a directory for an object, one that is missing for a pattern, and
    a pattern for directories too. They copy a directory into itself, and ignore what is missing.
    """
    path, source = step.arguments.get("path", ""), step.arguments.get("source", "")
    if step.verb in ("copy_tree", "move_tree", "delete_all", "create_dir"):
        if (path + source).rstrip("/") in tree or not is_directory(tree, path + source):
            return True
        return "target" in step.arguments and step.target.startswith(source)
    if step.verb == "delete_named":
        above = {name[:end] for name in tree for end, letter in enumerate(name) if letter == "/"}
        is_pattern = "[" in path or "*" in path or "?" in path
        if path not in tree and is_directory(tree, path):
            return True
        if is_pattern and any(name.endswith("/") for name in tree):
            return True
        return path not in tree and (not is_pattern or any(pattern_of(path).fullmatch(name) for name in above))
    return source == step.arguments.get("target") or (bool(source) and source not in tree)


class FsspecDoor(Door):
    """fsspec's file system, whose verbs block, and whose listings are kept with ``is_cached``."""

    name = "fsspec"
    is_file_system = True
    is_strict = False
    verbs: ClassVar[Verbs] = {
        "write": {"if_not_exists"},
        "writer": {"if_not_exists"},
        "append": NO_FLAGS,
        "upload": {"if_not_exists"},
        "upload_into": NO_FLAGS,
        "copy": NO_FLAGS,
        "move": NO_FLAGS,
        "delete": NO_FLAGS,
        "read": NO_FLAGS,
        "download": NO_FLAGS,
        "delete_all": NO_FLAGS,
        "copy_tree": NO_FLAGS,
        "move_tree": NO_FLAGS,
        "create_dir": NO_FLAGS,
        "delete_named": NO_FLAGS,
    }

    def __init__(self, place: Place, *, is_cached: bool = False) -> None:
        super().__init__(place)
        self.fs = AioPrefetchFileSystem(self.op, use_listings_cache=is_cached, skip_instance_cache=True)

    def means(self, tree: Tree, step: Step) -> Step | None:
        if has_two_kinds(tree) or is_loose(tree, step):
            return None
        if step.verb == "move" and is_directory(tree, step.target):
            into = f"{step.target}/{step.source.rpartition('/')[2]}"
            return None if into == step.source else Step("move", {**step.arguments, "target": into})
        return step

    def may_refuse(self, tree: Tree, step: Step) -> bool:
        if step.verb == "delete_all":
            return not is_directory(tree, step.path)
        if step.verb in ("copy_tree", "move_tree"):  # A marker is not made again beside an object of its name.
            return any(name.startswith(step.source) and not data for name, data in tree.items())
        return step.verb in ("upload_into", "append") and is_directory(tree, step.path + step.arguments.get("name", ""))

    async def make(self, step: Step) -> bytes | None:
        return await asyncio.to_thread(self._made, step)

    def _made(self, step: Step) -> bytes | None:
        fs, mode = self.fs, "create" if step.arguments.get("if_not_exists") else "overwrite"
        match step.verb:
            case "write":
                fs.pipe_file(step.path, step.data, mode=mode)
            case "writer" | "append":
                opened = "ab" if step.verb == "append" else "xb" if mode == "create" else "wb"
                with fs.open(step.path, opened) as written:
                    written.write(step.data)
            case "upload":
                with local_file(step.data) as file:
                    fs.put_file(file, step.path, mode=mode)
            case "upload_into":
                with local_file(step.data, step.name) as file:
                    fs.put_file(file, step.path + step.name)
            case "read":
                return bytes(fs.cat_file(step.path))
            case "download":
                with local_file(name="target") as file:
                    fs.get_file(step.path, file)
                    return _content(file)
            case "copy":
                fs.cp_file(step.source, step.target)
            case "move":
                fs.mv(step.source, step.target)
            case "delete":
                fs.rm_file(step.path)
            case "delete_named":
                fs.rm(step.path)
            case "delete_all":
                fs.rm(step.path, recursive=True)
            case "copy_tree":
                fs.copy(step.source, step.target, recursive=True)
            case "move_tree":
                fs.mv(step.source, step.target, recursive=True)
            case "create_dir":
                fs.makedirs(step.path, exist_ok=True)
        return None

    async def seen(self) -> Tree:
        def found() -> Tree:
            listed: dict[str, Any] = self.fs.find("", detail=True)
            return {name: self.fs.cat_file(name) for name in listed if not has_dots(name)}

        return await asyncio.to_thread(found)

    async def aclose(self) -> None:
        await asyncio.to_thread(self.fs.close)
        await super().aclose()


class ArrowDoor(Door):
    """Arrow's file system."""

    name = "arrow"
    is_file_system = True
    is_strict = False
    verbs: ClassVar[Verbs] = dict.fromkeys(
        ("writer", "read", "copy", "move", "delete", "delete_all", "create_dir", "move_tree"), NO_FLAGS
    )

    def means(self, tree: Tree, step: Step) -> Step | None:
        return None if has_two_kinds(tree) or is_loose(tree, step) else step

    def may_refuse(self, tree: Tree, step: Step) -> bool:
        if step.verb == "delete":
            return step.path not in tree
        if step.verb == "delete_all":
            return not is_directory(tree, step.path)
        if step.verb not in ("copy", "move", "move_tree"):
            return False
        return is_directory(tree, step.target) or step.target.rstrip("/") in tree

    async def make(self, step: Step) -> bytes | None:
        return await asyncio.to_thread(self._made, step)

    def _made(self, step: Step) -> bytes | None:
        fs = filesystem(self.op)
        match step.verb:
            case "writer":
                with fs.open_output_stream(step.path) as file:
                    file.write(step.data)
            case "read":
                with fs.open_input_stream(step.path) as file:
                    return bytes(file.read())
            case "copy":
                fs.copy_file(step.source, step.target)
            case "move":
                fs.move(step.source, step.target)
            case "move_tree":
                fs.move(step.source.rstrip("/"), step.target.rstrip("/"))
            case "delete":
                fs.delete_file(step.path)
            case "delete_all":
                fs.delete_dir(step.path.rstrip("/"))
            case "create_dir":
                fs.create_dir(step.path.rstrip("/"))
        return None

    async def aclose(self) -> None:
        await asyncio.to_thread(loop_thread().run, self.op.aclose())
        await super().aclose()


# --- the command line -------------------------------------------------------------------------------------------------


class CommandFailed(Exception):
    """A command has ended with another code than 0."""


class CommandDoor(Door):
    """The command line, each command in this process."""

    name = "commands"
    is_strict = False
    verbs: ClassVar[Verbs] = {
        "write": {"if_not_exists"},
        "upload": {"if_not_exists"},
        "upload_into": {"if_not_exists"},
        "read": NO_FLAGS,
        "download": NO_FLAGS,
        "delete_all": NO_FLAGS,
        "delete_named": {"literal"},
        "copy_named": {"literal", "overwrite"},
        "move": {"if_not_exists"},
        "move_tree": {"if_not_exists"},
        "copy_tree": {"glob", "overwrite", "delete_extra", "delete_max"},
    }

    def means(self, tree: Tree, step: Step) -> Step | None:
        if step.verb == "copy_tree" and not step.overwrite:  # That is ``cp -n``, which deletes nothing.
            return Step("copy_tree", {**step.arguments, "delete_extra": False})
        if not self.place.meaning.directories:
            return step
        if step.verb == "upload" and is_directory(tree, step.path):
            return Step("upload_into", {**step.arguments, "path": f"{step.path}/", "name": "file"})
        if step.verb == "move" and is_directory(tree, step.source):
            return None  # The command moves what is below it; the model moves objects.
        if step.verb in ("copy_named", "move") and step.source in tree and is_directory(tree, step.target):
            into = f"{step.target}/{step.source.rpartition('/')[2]}"
            return Step(step.verb, {**step.arguments, "target": into})
        return step

    def may_refuse(self, tree: Tree, step: Step) -> bool:
        path = step.arguments.get("path", step.arguments.get("source", "none"))
        return self.place.meaning.directories and is_directory(tree, path) and not path.endswith("/")

    def _url(self, path: str) -> str:
        return f"{self.place.url}/{path}"

    async def make(self, step: Step) -> bytes | None:
        return await asyncio.to_thread(self._made, step)

    def _made(self, step: Step) -> bytes | None:
        keeps = ["-n"] if step.arguments.get("if_not_exists") or not step.arguments.get("overwrite", True) else []
        literal = ["--literal"] if step.arguments.get("literal") else []
        match step.verb:
            case "write":
                self._run("cp", *keeps, "-", self._url(step.path), stdin=step.data)
            case "upload" | "upload_into":
                with local_file(step.data, step.arguments.get("name", "file")) as file:
                    self._run("cp", "-q", "--literal", *keeps, file, self._url(step.path))
            case "read":
                return self._run("cat", "--literal", self._url(step.path))
            case "download":
                with local_file(name="target") as file:
                    self._run("cp", "-q", "--literal", self._url(step.path), file)
                    return _content(file)
            case "delete_named":
                self._run("rm", *literal, self._url(step.path))
            case "delete_all":
                self._run("rm", "-r", "-f", self._url(step.path))
            case "copy_named":
                self._run("cp", "-q", *keeps, *literal, self._url(step.source), self._url(step.target))
            case "move" | "move_tree":
                self._run("mv", *keeps, self._url(step.source), self._url(step.target))
            case "copy_tree":
                self._copy_tree(step, keeps)
        return None

    def _copy_tree(self, step: Step, keeps: list[str]) -> None:
        flags = ["--glob", step.glob] if step.glob else []
        if step.delete_extra and not keeps:
            flags += ["--delete", *(["--delete-max", str(step.delete_max)] if step.delete_max is not None else [])]
        how = ["cp", "-r", *keeps] if keeps else ["sync", "--exact"]
        self._run(*how, "-q", *flags, self._url(step.source), self._url(step.target))

    def _run(self, *arguments: str, stdin: bytes = b"") -> bytes:
        names = {f"AIOPREFETCH_{name.upper()}": str(value) for name, value in self.place.options.items()}
        output, errors = io.BytesIO(), io.BytesIO()
        stdout, stderr = (io.TextIOWrapper(stream, write_through=True) for stream in (output, errors))
        with (
            mock.patch.dict(os.environ, names),
            mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin))),
            contextlib.redirect_stdout(stdout),
            contextlib.redirect_stderr(stderr),
        ):
            code = main(arguments)
        said = errors.getvalue().decode()
        if code or "because of -n" in said:  # A command that leaves what is there says so, and ends well.
            raise CommandFailed(f"{arguments}: {code}: {said}")
        return output.getvalue()


DOORS: dict[str, type[Door]] = {
    kind.name: kind for kind in (OperatorDoor, SyncDoor, PathDoor, FsspecDoor, ArrowDoor, ObspecDoor, CommandDoor)
}

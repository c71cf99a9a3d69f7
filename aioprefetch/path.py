"""``ap.Path``: pathlib's words over the verbs of an operator, to be awaited; ``KeyPath`` has what sends nothing.

A key stays as it is given: ``a/b``, ``a/b/`` and ``a//b`` are three keys, and three paths.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Self, Unpack

from aioprefetch.credentials import frameless
from aioprefetch.errors import InvalidArgument, InvalidType, IsADirectory, NotFound, Unsupported
from aioprefetch.operator.from_uri import local_uri, split_url
from aioprefetch.operator.operator import Operator
from aioprefetch.operator.shared import operator_at
from aioprefetch.plan.patterns import compile_glob, literal_glob, wildcard_at
from aioprefetch.values import ListRequest
from aioprefetch.verbs.listing import Lister

if TYPE_CHECKING:
    from aioprefetch.operator.options import AnyFileOptions, UriOptions
    from aioprefetch.values import Metadata
    from aioprefetch.verbs.requests import MoveOptions, WriteOptions


class KeyPath:
    """A key of the store of an operator. Equal paths name one key of one store.

    ``parts`` joined by ``/`` are the key. ``name`` and ``parent`` take ``a/b/`` for the directory ``a/b``, as pathlib
    does; a ``parent`` ends with ``/`` only where the key has two in a row. ``path / "x"`` puts a ``/`` between two keys
    unless there is one, and resolves nothing.
    """

    __slots__ = ("key", "operator")
    operator: Any  # Of one kind in each subclass.
    key: str

    @frameless
    def __init__(self, url: str | os.PathLike[str], **options: Unpack[UriOptions]) -> None:
        uri = local_uri(url)
        if uri.startswith("file://"):  # Links are followed here, where they are named, and not on the way of a key.
            above, _, name = uri.removeprefix("file://").rpartition("/")
            uri = f"file://{os.path.realpath(above or '/')}/{name}"
        store, self.key = split_url(uri, path_required=False, at_origin=True)
        self.operator = self._operator_at(store, options)

    @staticmethod
    def _operator_at(uri: str, options: Mapping[str, Any]) -> Any:
        raise NotImplementedError

    @classmethod
    def of(cls, operator: Any, key: str = "") -> Self:
        """The path of a key of an operator: ``operator / key``."""
        if not isinstance(key, str):
            raise InvalidType(f"a key must be a string, not {type(key).__name__}", operation="join")
        path = cls.__new__(cls)
        path.operator, path.key = operator, key
        return path

    def __reduce__(self) -> tuple[Callable[..., Self], tuple[Any, str]]:
        return self.of, (self.operator, self.key)

    def __str__(self) -> str:
        url = self.operator.info.url
        return f"{url}{'' if url.endswith('/') else '/'}{self.key}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def _identity(self) -> tuple[str, ...]:
        info = self.operator.info
        key = f"{info.root}/{self.key}" if info.root.strip("/") else self.key
        return info.scheme, info.endpoint, info.region, info.name, key

    def __eq__(self, other: object) -> bool:
        return self._identity() == other._identity() if isinstance(other, type(self)) else NotImplemented

    def __lt__(self, other: Self) -> bool:
        return self._identity() < other._identity() if isinstance(other, type(self)) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._identity())

    def __truediv__(self, other: str) -> Self:
        if not isinstance(other, str):
            raise InvalidType(f"a key must be a string, not {type(other).__name__}", operation="join", path=self.key)
        return self.of(self.operator, (self._directory() if other else self.key) + other)

    def joinpath(self, *others: str) -> Self:
        """The path of a key below this one: ``path / "a" / "b"``."""
        return self.joinpath(*others[:-1]) / others[-1] if others else self

    @property
    def parts(self) -> tuple[str, ...]:
        """The segments of the key; the last one is empty if it ends with ``/``."""
        return tuple(self.key.split("/")) if self.key else ()

    def _split(self) -> tuple[str, str]:
        above, slash, name = self.key.removesuffix("/").rpartition("/")
        return above + slash, name

    @property
    def name(self) -> str:
        """The last segment, without a ``/`` at its end."""
        return self._split()[1]

    @property
    def stem(self) -> str:
        """The name without its suffix."""
        return PurePosixPath(self.name).stem

    @property
    def suffix(self) -> str:
        """The end of the name from its last dot on: ``.gz``."""
        return PurePosixPath(self.name).suffix

    @property
    def parent(self) -> Self:
        """The directory that the key lies in; the root's is the root, as in pathlib."""
        above = self._split()[0]
        return self.of(self.operator, above if above.endswith("//") or above == "/" else above.removesuffix("/"))

    def with_name(self, name: str) -> Self:
        """Another name in the same directory. ``InvalidArgument``, a ``ValueError``, for an invalid name."""
        if not name or "/" in name:
            raise InvalidArgument(f"{name!r} is not a name", operation="with_name", path=self.key)
        return self.of(self.operator, self._split()[0] + name)

    def with_suffix(self, suffix: str) -> Self:
        """Another suffix in place of the last one; ``""`` removes it. ``ValueError`` where pathlib refuses it."""
        return self.with_name(PurePosixPath(self.name).with_suffix(suffix).name)

    def _directory(self) -> str:
        """The key of a directory, with its slash; ``""`` is the root."""
        return self.key if not self.key or self.key.endswith("/") else f"{self.key}/"


class Path(KeyPath):
    """``ap.Path("s3://bucket/key", **options)`` or ``operator / "key"``: a key of a store, with pathlib's words.

    Options as for ``Operator.from_uri``. Paths of one store and the same options share connections and memory.
    ``path.operator`` is their operator, for all else, and to be closed. Paths pickle as it does.
    """

    __slots__ = ()
    operator: Operator

    @staticmethod
    def _operator_at(uri: str, options: Mapping[str, Any]) -> Operator:
        return operator_at(uri, options)[0]

    async def read_bytes(self) -> bytes:
        """The bytes of the object."""
        return await self.operator.read(self.key)

    async def read_text(self, encoding: str = "utf-8", errors: str = "strict", newline: str | None = None) -> str:
        """The text of the object; options as for Python's ``open``."""
        return io.TextIOWrapper(io.BytesIO(await self.read_bytes()), encoding, errors, newline).read()

    async def write_bytes(self, data: bytes | bytearray | memoryview, **options: Unpack[WriteOptions]) -> int:
        """Write the object, whole or not at all, as ``Operator.write``; returns the number of bytes."""
        await self.operator.write(self.key, data, **options)
        return memoryview(data).nbytes

    async def write_text(self, text: str, encoding: str = "utf-8", **options: Unpack[WriteOptions]) -> int:
        """Write a text as it is; returns the number of its characters."""
        await self.write_bytes(text.encode(encoding), **options)
        return len(text)

    def open(self, mode: str = "rb", **options: Unpack[AnyFileOptions]) -> Any:
        """A ``RangeReader`` (``rb``) or ``ObjectWriter`` (``wb``; ``xb`` where nothing is), for ``async with``."""
        given: Any = options  # Each of the two refuses the other's.
        if mode == "rb":
            return self.operator.reader(self.key, **given)
        if mode not in ("wb", "xb"):
            why = f"mode={mode!r} is not 'rb', 'wb' or 'xb'; read_text and ap.sync.Path have text"
            raise Unsupported(why, operation="open", path=self.key)
        return self.operator.writer(self.key, **{"if_not_exists": mode == "xb", **given})

    async def stat(self) -> Metadata:
        """The metadata of the object, or of the directory of its name, which costs another request."""
        try:
            return await self.operator.stat(self.key)
        except NotFound:
            if self.key != self._directory():
                with suppress(NotFound, Unsupported):
                    return await self.operator.stat(self._directory())
            raise

    async def exists(self) -> bool:
        """Whether an object or a directory is there, by the requests of ``stat``."""
        with suppress(NotFound):
            return bool(await self.stat())
        return False

    async def is_file(self) -> bool:
        """Whether an object is there."""
        with suppress(NotFound):
            return not (await self.operator.stat(self.key)).is_directory
        return False

    async def is_dir(self) -> bool:
        """Whether a directory is there: objects below it, or what stands for it."""
        with suppress(NotFound):
            return (await self.operator.stat(self._directory())).is_directory
        return False

    async def unlink(self, missing_ok: bool = False) -> None:
        """Delete the object. Unless ``missing_ok`` a request asks for it first, and ``NotFound`` is raised without one.

        ``IsADirectory`` for a directory: ``Operator.delete_all`` deletes what is below it.
        """
        if not missing_ok or self.key == self._directory():
            with suppress(*(NotFound,) * missing_ok):
                if (await self.operator.stat(self.key)).is_directory:
                    raise IsADirectory("unlink deletes objects", operation="delete", path=self.key)
        await self.operator.delete(self.key)

    async def rename(self, target: Self | str) -> Self:
        """Move the object, or of ``dir/`` all that is below it, to a path, a URL or a whole key of the same operator.

        Returns the new path. ``AlreadyExists`` if something is there.
        """
        return await self._moved(target, if_not_exists=True)

    async def replace(self, target: Self | str) -> Self:
        """Move as ``rename`` does, in place of what is at ``target``."""
        return await self._moved(target)

    async def _moved(self, target: KeyPath | str, **conditions: Unpack[MoveOptions]) -> Self:
        root, key = str(self.of(self.operator)), str(target)
        if isinstance(target, KeyPath) or "://" in key:
            is_here = isinstance(target, str) or target._identity()[:-1] == self._identity()[:-1]
            if not (is_here and key.startswith(root)):
                why = f"{key!r} is not in {root}, where a rename stays; ap.copy and unlink lead elsewhere"
                raise Unsupported(why, operation="move", path=self.key)
            key = key.removeprefix(root)
        await self.operator.move(self.key, key, **conditions)
        return self.of(self.operator, key)

    def iterdir(self) -> AsyncGenerator[Path, None]:
        """``async for path in ...``: what lies in the directory. The key of a directory ends with ``/``."""
        return self.glob("*")

    def glob(self, pattern: str) -> AsyncGenerator[Path, None]:
        """``async for path in ...``: what is below the directory and matches, with ``*``, ``?``, ``[a-z]``, ``**``.

        Only what begins with the text before the first wildcard is listed. A pattern over several levels finds objects,
        and no directories. ``InvalidArgument`` if it cannot be understood.
        """
        directory, start = self._directory(), pattern[: wildcard_at(pattern)]
        rest = pattern[start.rfind("/") + 1 :]
        request = ListRequest(path=directory + start, recursive="/" in rest or "**" in rest)
        matches = re.compile(f"{compile_glob(literal_glob(directory) + pattern).pattern}/?", re.DOTALL)
        found = Lister(self.operator.accessor, self.operator.runtime, request, matches, is_literal=True)
        return (self.of(self.operator, entry.path) async for entry in found)

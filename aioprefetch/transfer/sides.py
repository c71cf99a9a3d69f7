"""The two sides of a copy, each an operator and a path in it; what of the source is copied, and where it goes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Protocol

from aioprefetch.accessor.protocols import Layer, Service
from aioprefetch.errors import InvalidArgument, InvalidPath, IsADirectory, IsSameFile, NotFound
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.local_files.files import names_of
from aioprefetch.local_files.identity import FILES
from aioprefetch.plan.overlap import FOLDED_PAIRS, folded, path_between, position
from aioprefetch.plan.patterns import compile_glob, has_wildcard, literal_glob, literal_part, literal_prefix
from aioprefetch.reader.policy import PolicyName
from aioprefetch.reader.reader import RangeReader
from aioprefetch.runtime.options import RuntimeOptions
from aioprefetch.runtime.threads import in_thread
from aioprefetch.services.fs.options import FsOptions
from aioprefetch.values import Capability, Entry, Identity, Metadata, ServiceInfo
from aioprefetch.verbs.listing import Listed, Lister, OnPassedOver, list_literally

# The longest name of a file that file systems have.
_NAME_BYTES_MAX = 255


class Store(Listed, Protocol):
    """The part of an operator that a copy needs."""

    @property
    def info(self) -> ServiceInfo:
        """The identity of the store."""

    @property
    def capability(self) -> Capability:
        """The operations that it supports."""

    @property
    def service(self) -> Service:
        """The recipe of the store."""

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers around it."""

    @property
    def options(self) -> RuntimeOptions:
        """The limits it runs under."""

    async def stat(self, path: str) -> Metadata:
        """Metadata of an object or a directory."""

    async def read(self, path: str, *, offset: int, size: int | None, if_match: str | None) -> bytes:
        """Some bytes of an object."""

    async def exists(self, path: str) -> bool:
        """Whether it is there."""

    def list(self, prefix: str = "", *, recursive: bool = False, glob: str | None = None) -> Lister:
        """The entries below a prefix."""

    def reader(
        self, path: str, *, policy: PolicyName, size: int | None, etag: str | None, keep_behind: bool | None
    ) -> RangeReader:
        """A reader of an object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A place: a path in an operator, which the caller closes. ``label`` is what the caller named.

    ``name`` is a single file's, where the path has another one: a link was named, and the path is its target.
    ``is_literal``: the path is a name, whichever characters it has.
    """

    operator: Store
    path: str
    label: str
    name: str = ""
    is_literal: bool = False

    @property
    def has_wildcard(self) -> bool:
        """Whether the path is a pattern, if there is nothing of that very name."""
        return not self.is_literal and has_wildcard(self.path)

    @property
    def root(self) -> str | None:
        """The directory of the operator's files, ``None`` for a store that is not of files."""
        service = self.operator.service
        return service.directory if isinstance(service, FsOptions) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The objects to copy: one, or all that are listed below ``base`` and whose whole path matches ``glob``.

    ``is_recursive`` tells whether it reaches into the directories of ``base``, ``picks`` which names below it count.
    """

    side: Side
    base: str
    single: Metadata | None = None
    glob: str | None = None
    is_recursive: bool = True
    picks: Callable[[str], bool] = lambda below: True

    async def entries(self, on_passed_over: OnPassedOver = lambda path, why: None) -> AsyncIterator[Entry | Metadata]:
        """The objects, in the order of the store. ``NotFound`` at the end without any.

        ``on_passed_over``: see ``Lister``.
        """
        if self.single is not None:
            yield self.single
            return
        operator, found, passed = self.side.operator, 0, ""

        def pass_over(path: str, why: str) -> None:
            nonlocal passed
            passed = passed or f": {path!r} is {why}, and passed over"
            on_passed_over(path, why)

        lister = self.listing()
        lister.on_passed_over = pass_over
        async for entry in lister:
            if not entry.is_directory and self.picks(entry.path[len(self.base) :]):
                found += 1
                yield entry
        if found:
            return
        if self.glob is not None:
            raise NotFound(
                f"no object matches the glob {self.glob!r}{passed}",
                operation="copy",
                path=self.side.label,
                context={"service": operator.info.location},
            )
        if self.base:  # A directory may be there and hold nothing.
            await operator.stat(self.base)
        elif self.side.root is not None and not await in_thread(os.path.isdir, self.side.root):
            raise NotFound("there is no such directory", operation="copy", path=self.side.root)

    def listing(self) -> Lister:
        """The entries of a selection that is not a single object, directories among them."""
        if self.glob is None:
            return list_literally(self.side.operator, self.base, recursive=True)
        return self.side.operator.list(literal_prefix(self.glob), recursive=self.is_recursive, glob=self.glob)


def picker(include: Sequence[str], exclude: Sequence[str]) -> Callable[[str], bool]:
    """Whether a name below a directory is included (all are without ``include``), and not excluded.

    A pattern without ``/`` is for the last part of the name; with ``/`` at its end it is for all that is below.
    """

    def matcher(patterns: Sequence[str]) -> Callable[[str], bool]:
        found = [
            compile_glob(f"{one}**" if one.endswith("/") else one if "/" in one else f"**/{one}") for one in patterns
        ]
        return lambda below: any(one.fullmatch(below) for one in found)

    includes, excludes = matcher(include) if include else lambda below: True, matcher(exclude)
    return lambda below: includes(below) and not excludes(below)


async def select(side: Side, glob: str | None) -> Selection:
    """The objects of a source. A path is a pattern only if there is neither an object nor a directory of that name.

    Raises ``NotFound``, and ``IsADirectory`` for a directory in the place of an object. What else a store says to the
    name is raised too: an object that may not be looked at is there.
    """
    operator, path = side.operator, side.path
    if glob is not None:
        if side.has_wildcard and not path.endswith("/"):
            raise InvalidArgument(
                "src has a glob already; give glob= with a directory, which ends with /", operation="copy", path=path
            )
        if path and not path.endswith("/"):
            path += "/"
        pattern = literal_glob(path) + glob
        compile_glob(glob)
        return Selection(side=side, base=path, glob=pattern, is_recursive=_crosses_directories(glob))
    if not path or path.endswith("/"):
        return Selection(side=side, base=path)
    try:
        metadata = await operator.stat(path)
    except NotFound:
        is_dangling = side.root is not None and await in_thread(os.path.lexists, f"{side.root}/{path}")
        if is_dangling or not operator.capability.list:
            raise
        if await operator.exists(f"{path}/"):
            raise IsADirectory(
                f"there is no such object but a directory of that name: {side.label}/ copies what is below it",
                operation="copy",
                path=path,
            ) from None
        if not side.has_wildcard:
            raise
        compile_glob(path)
        prefix, end = literal_part(path)
        is_recursive = _crosses_directories(path[end:])
        return Selection(side=side, base=prefix[: prefix.rfind("/") + 1], glob=path, is_recursive=is_recursive)
    if metadata.is_directory:
        return Selection(side=side, base=f"{path}/")
    return Selection(side=side, base=path[: path.rfind("/") + 1], single=metadata)


def _crosses_directories(glob: str) -> bool:
    return "/" in glob or "**" in glob


def place_of(selection: Selection, side: Side) -> Side:
    """The place of the objects: the path of the one object, or the prefix of all, empty or with ``/`` at its end.

    One object goes into a place that ends with ``/``, or is a local directory, under its own name.
    """
    path = side.path
    if selection.single is None:
        if path and not path.endswith("/"):
            path += "/"
    elif not path or path.endswith("/"):
        path += selection.side.name or selection.single.path[len(selection.base) :]
    return replace(side, path=path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The two places of a run; refused at the start if it would read what it writes.

    ``made`` has the paths below the source at which the run itself makes objects: they are not its sources. Between
    two directories of files a link or a mount below the destination may lead into ``source`` all the same.
    """

    made: frozenset[str] = frozenset()
    source: Identity | None = None

    async def check(self, selection: Selection, path: str, target: Side, target_path: str) -> None:
        """Raise ``IsSameFile`` or ``InvalidArgument`` for a file that would be written over one of the source."""
        if self.source is None:
            return
        there = await target.operator.accessor().identity(target_path)
        if there == await selection.side.operator.accessor().identity(path):
            raise IsSameFile("source and target are one file", operation="copy", path=path)
        if position(there, self.source) == "inside":
            raise _refused(f"{target_path!r} leads into the source {selection.side.label}", target)


async def check_places(selection: Selection, target: Side, *, deletes_extra: bool) -> Places:
    """Refuse a run that would read what it writes, or write two objects to one place; nothing is written before.

    ``target`` as for ``place_of``. Raises ``IsSameFile``, and ``InvalidArgument`` that names the two paths.
    """
    source = selection.side
    from_path = selection.base if selection.single is None else selection.single.path
    from_place = await source.operator.accessor().identity(from_path)
    to_place = await target.operator.accessor().identity(target.path)
    lies = position(to_place, from_place)
    if lies == "same":
        raise IsSameFile(
            "source and destination are the same", operation="copy", path=target.path, context={"of": target.label}
        )
    if selection.single is not None:
        return Places()
    if lies == "inside" and selection.is_recursive:
        raise _refused(
            f"the destination {target.label} lies inside of the source {source.label}: it would copy itself", target
        )
    if lies == "around" and deletes_extra:
        raise _refused(
            f"the source {source.label} lies inside of the destination {target.label}, and would be deleted", target
        )
    await _check_one_each(selection, target)
    if lies == "around":
        return Places(made=await _own_targets(selection, target, path_between(to_place, from_place)))
    return Places(source=from_place if lies == "apart" and from_place.store == to_place.store == FILES else None)


async def _own_targets(selection: Selection, target: Side, between: str) -> frozenset[str]:
    """The targets below the source, where ``between`` is its path in the destination."""
    operator, base = selection.side.operator, selection.base
    matches = (lambda path: True) if selection.glob is None else compile_glob(selection.glob).fullmatch
    made: set[str] = set()
    async for entry in list_literally(operator, base + between, recursive=True):
        path = base + entry.path[len(base + between) :]
        if entry.is_directory or not matches(entry.path):
            continue
        if matches(path):
            there = await is_there(operator, path)
            if there is not None and not there.is_directory:
                raise _refused(f"{entry.path!r} would be copied over {path!r}, which is to be copied itself", target)
            made.add(path)
    return frozenset(made)


async def _check_one_each(selection: Selection, target: Side) -> None:
    """Raise ``InvalidArgument`` if two objects have one place, in a store where names of two spellings are one."""
    identity = target.operator.accessor().identity

    async def is_one(first: str, second: str) -> bool:
        return await identity(first) == await identity(second)

    if not any([await is_one(target.path + first, target.path + second) for first, second in FOLDED_PAIRS]):
        return
    seen: dict[str, list[str]] = {}
    async for found in selection.entries():
        below = found.path[len(selection.base) :]
        for other in seen.setdefault(folded(below), []):
            if await is_one(target.path + other, target.path + below):
                pair = f"{selection.base + other!r} and {found.path!r}"
                raise _refused(f"{pair} would be one object at {target.label}, which does not distinguish them", target)
        seen[folded(below)].append(below)


def _refused(why: str, target: Side) -> InvalidArgument:
    return InvalidArgument(why, operation="copy", path=target.path)


async def is_there(target: Store, path: str) -> Metadata | None:
    """The object at a path, or ``None``."""
    try:
        found = await target.stat(path)
    except NotFound:
        return None
    return None if path.endswith("/") and found.is_directory else found


def check_local_name(path: str, below: str, key: str) -> None:
    """Raise ``InvalidPath`` for a key that files cannot have as it is: another key would be the same file.

    ``below`` is the part of the path that comes from the key.
    """
    try:
        names_of(path, operation="copy")  # Refuses ``.`` and ``..``, NUL, and the names of files being written.
    except InvalidPath as error:
        raise InvalidPath(error.message, operation="copy", path=key) from None
    why = ""
    if below.startswith("/"):
        why = "begins with /"
    elif "//" in below:
        why = "has // in it"
    elif below.endswith("/") or not below:
        why = "ends with /"
    elif len(raw := os.fsencode(below)) > _NAME_BYTES_MAX and max(map(len, raw.split(b"/"))) > _NAME_BYTES_MAX:
        why = f"has a name of more than {_NAME_BYTES_MAX} bytes"
    if why:
        raise InvalidPath(f"the key {why}, which no file can: copy it alone, under another name", path=key)

"""The stores behind the paths of a file system, and the names in them, believed for a while as they were listed."""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from time import monotonic
from typing import Any, NamedTuple

from aioprefetch.accessor.counted_requests import latest_change
from aioprefetch.directories import directory_of, find_directory, parents_of
from aioprefetch.errors import ConfigInvalid, Error, InvalidArgument, IsADirectory, NotADirectory, NotFound, Unsupported
from aioprefetch.fsspec.kept import Info, Kept, Listing
from aioprefetch.operator.operator import Operator
from aioprefetch.operator.shared import operator_at
from aioprefetch.runtime.task_group import gather_all
from aioprefetch.runtime.threads import in_thread
from aioprefetch.services.fs.options import FsOptions
from aioprefetch.values import Entry, ListRequest, Metadata
from aioprefetch.verbs.arguments import checked_path
from aioprefetch.verbs.listing import Pages, delete_empty, list_literally
from aioprefetch.verbs.requests import ObjectName

# Operators that a file system keeps; of http each query is a store.
OPERATORS_MAX = 64
# What stands between a key and its version in the paths of file systems that are aware of them.
VERSION_MARK = "?versionId="

# From a path to the URL of its store, the key in it, and what stands before the keys of that store in paths.
Split = Callable[[str], tuple[str, str, str]]


class Place(NamedTuple):
    """A path resolved: a store, the key in it, and what stands before each key in the paths of that store."""

    operator: Operator
    key: str
    base: str
    version: str | None = None

    @property
    def directory(self) -> str:
        """The key of a directory, with its slash."""
        return directory_of(self.key)

    def error(self, kind: type[Error], what: str, operation: str, path: str) -> Error:
        """An error at a path of the file system, with the store that it names."""
        return kind(what, operation=operation, path=path).add_context(service=self.operator.info.location)

    def missing(self, operation: str, path: str, what: str = "there is no such object or directory") -> Error:
        """``NotFound`` at a path of the file system."""
        return self.error(NotFound, what, operation, path)

    @property
    def has_directories(self) -> bool:
        """Whether a directory is there without anything in it, and has to be made."""
        return self.operator.info.scheme == "file"


class Stores:
    """The operators of one file system: its own, or one for each store that a path has named.

    Operators of a URL share their runtimes with all operators of the same options and principal in the process.
    """

    def __init__(
        self, only: Operator | None, scheme: str, split: Split, options: Mapping[str, Any], *, version_aware: bool
    ) -> None:
        self.only = only
        self._scheme = scheme
        self._split = split
        self._options = options
        self._version_aware = version_aware
        self._operators: OrderedDict[str, Operator] = OrderedDict()

    def place_of(self, path: str) -> Place:
        """The store and the key of a stripped path. Raises ``InvalidArgument`` if it names no store."""
        store, key, base = ("", path, "") if self.only is not None else self._split(path)
        version = None
        if self._version_aware:
            key, _, version = key.partition(VERSION_MARK)
        return Place(self.only or self._operator(store), key, base, version or None)

    async def close(self) -> None:
        """Release connections and memory on the running loop. The stores stay usable."""
        for operator in list(self._operators.values()) if self.only is None else (self.only,):
            await operator.aclose()

    async def names(self) -> list[str]:
        """The stores that there are: the buckets of the account. ``Unsupported`` where they cannot be listed."""
        names: list[str] = await self.buckets(self._operator(f"{self._scheme}://any-bucket"), "list").names()
        return names

    async def remove(self, objects: Iterable[str], directories: Iterable[str] = ()) -> None:
        """Delete objects, and then directories, by requests for many. The root of a store stays.

        Where directories come and go with what is in them, these are their markers.
        """
        keys: dict[Operator, list[ObjectName]] = {}
        for place in map(self.place_of, objects):
            keys.setdefault(place.operator, []).append((place.key, place.version))
        for place in map(self.place_of, directories):
            if place.key:
                keys.setdefault(place.operator, []).append(place.directory)
        for operator, those in keys.items():
            await operator.delete(those)

    async def remove_directories(self, directories: Iterable[str]) -> None:
        """Delete directories, as ``delete_empty``; the root of a store stays."""
        places: dict[Operator, list[str]] = {}
        for place in map(self.place_of, directories):
            if place.key:
                places.setdefault(place.operator, []).append(place.directory)
        for operator, paths in places.items():
            await delete_empty(operator.accessor(), paths)

    def buckets(self, operator: Operator, operation: str) -> Any:
        """The buckets of a store, to list, make and delete them. ``Unsupported`` where that is not possible."""
        buckets = getattr(operator.service, "buckets", None)
        if buckets is None:
            raise Unsupported(
                f"{self._scheme or operator.info.scheme}:// neither lists, makes nor deletes buckets here: "
                "name an existing bucket",
                operation=operation,
            )
        return buckets(operator.runtime())

    def _operator(self, store: str) -> Operator:
        operator = self._operators.get(store)
        if operator is None:
            # Another thread may have been faster.
            operator = self._operators.setdefault(store, operator_at(store, self._options)[0])
            while len(self._operators) > OPERATORS_MAX:
                self._operators.popitem(last=False)
        return operator


# --- entries ----------------------------------------------------------------------------------------------------------


def info_of(base: str, found: Entry | Metadata) -> Info:
    """An entry or metadata in fsspec's form, under s3fs's names. ``base`` stands before each path of a store."""
    if found.is_directory:
        return directory_info(base + found.path)
    info: Info = {"name": base + found.path, "size": found.size, "type": "file"}
    if found.etag is not None:
        info["ETag"] = found.etag if found.etag.startswith("W/") else f'"{found.etag}"'
    if found.last_modified is not None:
        info["LastModified"] = found.last_modified
    if found.version is not None:
        info["VersionId"] = found.version
    if isinstance(found, Metadata) and found.content_type is not None:
        info["ContentType"] = found.content_type
    return info


def version_info(base: str, found: Entry) -> Info:
    """A version of an object, which its name ends with, as in s3fs."""
    info = info_of(base, found)
    if found.version not in (None, "null"):
        info["name"] += f"{VERSION_MARK}{found.version}"
    return {**info, "IsLatest": found.is_latest, "IsDeleteMarker": found.is_delete_marker}


def directory_info(name: str) -> Info:
    """A directory."""
    return {"name": name.rstrip("/") or name, "size": 0, "type": "directory"}


def grouped(files: Iterable[Info], directories: Iterable[str], root: str) -> dict[str, list[Info]]:
    """The entries of each directory at or below ``root``, made of everything below it."""
    below: dict[str, list[Info]] = {root: []}

    def add(directory: str) -> list[Info]:
        if directory not in below:
            below[directory] = []
            if directory != root:
                add(directory.rpartition("/")[0]).append(directory_info(directory))
        return below[directory]

    for info in files:
        add(info["name"].rpartition("/")[0]).append(info)
    for directory in directories:
        add(directory)
    return below


def digest_of(info: Info) -> str:
    """A digest of what tells one version of an object from another."""
    facts = [str(info.get(name)) for name in ("name", "size", "ETag", "VersionId", "LastModified")]
    return hashlib.blake2b("\n".join(facts).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


# --- the tree ---------------------------------------------------------------------------------------------------------

# Directories of one level that are listed side by side.
LISTINGS_AT_ONCE = 64
# What says that something is not there. Any other failure says nothing, and is raised.
ABSENT = (NotFound, IsADirectory, NotADirectory)


class Tree:
    """The entries at a path and below it. Paths are stripped; ``""`` without a store is the root of all stores.

    Listings are kept in ``kept``: an entry is found in its directory's listing, and not looked for if missing there,
    until it expires or ``forget`` drops it. ``stores`` lists the stores below the root.
    """

    def __init__(
        self,
        place_of: Callable[[str], Place],
        kept: Kept,
        *,
        root: str | None,
        stores: Callable[[], Awaitable[Iterable[str]]],
    ) -> None:
        self._place_of = place_of
        self._kept = kept
        self._root = root
        self._stores = stores

    def forget(self, path: str) -> None:
        """Drop all listings that contain ``path``, or what is below it."""
        is_in_root = self._root is None or "/" not in path  # Otherwise that is the list of stores.
        self._kept.forget(path, "/", *([""] if is_in_root else []))

    def known(self, path: str) -> Info | None:
        """The entry of a path in a listing that is believed. ``NotFound`` if its directory was listed without it."""
        parent = path.rpartition("/")[0]
        listing = self._kept.get(parent)
        if listing is not None and (info := listing.find(path)) is not None:
            return dict(info)
        if path in self._kept:  # It proves a directory, but an object may have the same name.
            return None
        if listing is not None and parent != self._root:  # Stores of other accounts are not listed.
            raise self._place_of(path).missing("info", path, "there is no such object in the listing of its directory")
        return None

    async def is_object(self, path: str) -> bool:
        """Whether there is an object. The store is asked, not a kept listing."""
        place = self._place_of(path)
        try:
            return not (await place.operator.stat(place.key, version=place.version, if_match="*")).is_directory
        except ABSENT:
            return False

    async def has_directory(self, path: str) -> bool:
        """Whether there is a directory, maybe beside an object of its name. The store is asked, as by ``is_object``."""
        try:
            return path == self._root or await self._is_listed(path, self._place_of(path))
        except ABSENT:
            return False

    async def is_directory_alone(self, path: str) -> bool:
        """Whether there is a directory, and no object of its name. The store is asked, as by ``is_object``."""
        return await self.has_directory(path) and (path == self._root or not await self.is_object(path))

    async def info(self, path: str, *, refresh: bool, version: str | None) -> Info:
        """The entry of a path: from a listing, or by a ``stat`` of the object, then of the directory."""
        if path == self._root:
            return directory_info(path)
        place = self._place_of(path)
        version = version or place.version
        known = None if refresh or version else self._kept.find_alone(path) or self.known(path)
        if known is not None:
            return dict(known)
        if place.key:
            try:
                return await self._stat(path, place, version)
            except (NotFound, IsADirectory):
                if version or not place.operator.capability.stat_directory:
                    raise
        if (refresh or path not in self._kept) and not await self._is_listed(path, place):
            raise place.missing("info", path)
        return directory_info(path)

    async def _stat(self, path: str, place: Place, version: str | None) -> Info:
        """The entry of a key by a ``stat``, kept for a moment if it is an object's. Raises the errors of that."""
        change = latest_change()
        found = await place.operator.stat(place.key, version=version)
        info = {**info_of(place.base, found), "name": path}
        if version is None and not found.is_directory:
            self._kept.keep_alone(path, dict(info), change)
        return info

    async def is_directory(self, path: str) -> bool:
        """Whether there is a directory: at most one request, whose answer is kept if it is the whole listing."""
        if path == self._root:
            return True
        place = self._place_of(path)
        listing = self._kept.get(path.rpartition("/")[0])
        if path in self._kept or (listing is not None and listing.has_directory(path)):
            return True
        try:
            known = self.known(path)
            return await self._is_listed(path, place) if known is None else bool(known["type"] == "directory")
        except ABSENT:
            return False

    async def is_file(self, path: str) -> bool:
        """Whether there is an object: at most one request."""
        place = None if path == self._root else self._place_of(path)
        if place is None or not place.key:
            return False
        try:
            known = None if place.version else self._kept.find_alone(path) or self.known(path)
            return bool((known or await self._stat(path, place, place.version))["type"] == "file")
        except ABSENT:
            return False

    async def is_named(self, path: str) -> bool:
        """Whether an object or a directory has this name: the store is asked, for a listing that is kept may be old."""
        try:
            place = self._place_of(path)
            await self.info(path, refresh=True, version=None)
        except ConfigInvalid:  # No store has a name with a wildcard.
            return False
        except ABSENT:  # A link that leads nowhere has its name.
            files = place.operator.service
            return isinstance(files, FsOptions) and await in_thread(os.path.lexists, f"{files.root}/{place.key}")
        return True

    async def entries(self, path: str, *, refresh: bool = False) -> Listing:
        """The entries of a directory, or the one entry of an object. Raises ``NotFound``."""
        listing: Listing | None = None if refresh else self._kept.get(path)
        if listing is not None:
            return listing
        began = monotonic()
        if path == self._root:
            return self._keep(path, map(directory_info, await self._stores()), began)
        place = self._place_of(path)
        if not place.operator.capability.list and (own := await self._alone(path)):
            return Listing(own)
        pages = _pages_of(place, place.directory)
        found = await _all_of(pages, place)
        if found or pages.has_marker or not place.key:
            return self._keep(path, found, began)
        try:
            alone = await place.operator.stat(place.key)
        except (NotFound, IsADirectory) as error:
            if pages.has_marker is False and isinstance(error, NotFound):
                raise
            alone = await place.operator.stat(place.directory)
        return self._keep(path, [], began) if alone.is_directory else Listing([info_of(place.base, alone)])

    async def versions(self, path: str, *, is_object: bool = False) -> list[Info]:
        """Each version and delete marker of the objects of a directory, or of one object, the newest first.

        Raises ``NotFound``, and ``Unsupported`` where the store cannot list them.
        """
        self._check_below(path)
        place = self._place_of(path)
        found = [] if is_object else await _versions_of(place, place.directory)
        if not found and place.key:
            found = await _versions_of(place, place.key, only=place.key)
            if not found:
                raise place.missing("list", path)
        return found

    async def beginning(self, path: str, prefix: str) -> list[Info]:
        """The entries of a directory whose names begin with ``prefix``."""
        place = self._place_of(path)
        return await _all_of(_pages_of(place, place.directory + prefix), place)

    async def below(self, path: str, prefix: str) -> list[Info]:
        """Everything below a path, by one listing, with the path itself if there is anything."""
        self._check_below(path)
        began = monotonic()
        if not self._place_of(path).operator.capability.list and (own := await self._alone(path)):
            return own
        files, directories = await self._all_below(path, prefix)
        if not (files or directories):
            return await self._alone(path) if not prefix else []
        levels = grouped(files, directories, path.rstrip("/"))
        if not prefix and len(files) + len(levels) <= self._kept.max_entries:
            for directory, infos in levels.items():
                self._keep(directory, infos, began)
        has_root = not prefix and path != self._root and self._place_of(path).key  # As in s3fs, not the bucket.
        roots = [directory_info(path)] if has_root else []
        return [*roots, *(info for infos in levels.values() for info in infos)]

    async def contents(self, paths: Iterable[str]) -> tuple[list[str], list[str]]:
        """Everything below some paths, or what they name, to be deleted: the objects, and then the directories.

        The directories of a path begin with the deepest; where these come and go they are markers. Raises ``NotFound``.
        """
        found = [await self._contents_of(path) for path in paths]
        return [name for objects, _ in found for name in objects], [name for _, above in found for name in above]

    async def _contents_of(self, path: str) -> tuple[list[str], list[str]]:
        self._check_below(path)
        place = self._place_of(path)
        files, markers = await self._all_below(path, "")
        names = [info["name"] for info in files]
        if not (names or markers):
            if place.key and await self.is_object(path):
                return [path], []
            if not await self._is_listed(path, place):
                raise place.missing("delete", path)
            return [], [path]
        if not place.has_directories:
            return names, [*markers, path]
        directories = {above for name in (*names, *markers) for above in parents_of(name, path)}
        return names, sorted({path, *markers, *directories}, key=len, reverse=True)

    async def levels(self, path: str, prefix: str, maxdepth: int) -> list[Info]:
        """Everything down to ``maxdepth`` levels below a path, the directories of a level side by side."""
        if maxdepth < 1:
            raise InvalidArgument("maxdepth must be at least 1", operation="list", path=path)
        try:
            infos = await (self.beginning(path, prefix) if prefix else self.entries(path))
        except (NotFound, IsADirectory):
            return []
        is_directory = bool(path) and not prefix and [info["name"] for info in infos] != [path]
        found = [*infos, *([directory_info(path)] if is_directory else [])]
        for _ in range(maxdepth - 1):
            names = [info["name"] for info in infos if info["type"] == "directory"]
            listings = await gather_all((partial(self.entries, name) for name in names), at_once=LISTINGS_AT_ONCE)
            infos = [info for listing in listings for info in listing]
            found += infos
        return found

    async def _is_listed(self, path: str, place: Place) -> bool:
        """Whether there is anything below a path, or a marker of it; a whole store is ``NotFound`` if it is missing.

        One page is asked for. If it is the whole listing, it is kept for the ``ls`` that often follows.
        """
        if not place.operator.capability.stat_directory:
            return not place.key
        if place.has_directories or (place.key and not self._kept.use_listings_cache):
            return await find_directory(place.operator, place.key) is not None
        began = monotonic()
        pages = _pages_of(place, place.directory)
        found: list[Info] = []
        while not (found or pages.finished):
            found = [info_of(place.base, entry) for entry in await pages.next()]
        if pages.finished and (found or pages.has_marker):
            self._keep(path, found, began)
        if found or pages.has_marker or not place.key:
            return True
        return pages.has_marker is None and await find_directory(place.operator, place.key) is not None

    async def _all_below(self, path: str, prefix: str) -> tuple[list[Info], list[str]]:
        """The objects below a path, and the directories that are listed with them: markers, or empty ones."""
        place = self._place_of(path)
        files: list[Info] = []
        directories: list[str] = []
        async for entry in list_literally(place.operator, place.directory + prefix, recursive=True):
            info = info_of(place.base, entry)
            if entry.is_directory:
                directories.append(info["name"])
            else:
                files.append(info)
        return files, directories

    async def _alone(self, path: str) -> list[Info]:
        """The entry of a path with nothing below it, from a listing too; none if there is nothing at all."""
        place = self._place_of(path)
        if not place.key:
            return []
        try:
            known = None if place.version else self.known(path)
            if known is not None and known["type"] == "file":
                return [known]
            return [{**info_of(place.base, await place.operator.stat(place.key)), "name": path}]
        except (NotFound, IsADirectory):
            return []

    def _check_below(self, path: str) -> None:
        if path == self._root:
            raise Unsupported(
                "all objects of all stores are not listed at once: name a bucket", operation="list", path=path
            )

    def _keep(self, path: str, entries: Iterable[Info], began: float) -> Listing:
        """Keep a listing, unless something has been written since it ``began``."""
        listing = Listing(sorted(entries, key=lambda info: info["name"]))
        self._kept.keep(path, listing, began)
        return listing


def _pages_of(place: Place, prefix: str, *, versions: bool = False) -> Pages:
    """The listing of what begins with a prefix in the store of a place, page by page."""
    operator, path = place.operator, checked_path(prefix, "list", dots_allowed=True)
    return Pages(operator.accessor, operator.runtime, ListRequest(path=path, versions=versions))


async def _all_of(pages: Pages, place: Place) -> list[Info]:
    found: list[Info] = []
    while not pages.finished:
        found += [info_of(place.base, entry) for entry in await pages.next()]
    return found


async def _versions_of(place: Place, prefix: str, *, only: str | None = None) -> list[Info]:
    pages = _pages_of(place, prefix, versions=True)
    found: list[Info] = []
    while not pages.finished:
        entries = [entry for entry in await pages.next() if only in (None, entry.path)]
        found += [(info_of if entry.is_directory else version_info)(place.base, entry) for entry in entries]
    return found

"""The names in the stores of a file system: found by requests, and believed for a while as they were listed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from fsspec.dircache import DirCache

from aioprefetch.errors import InvalidArgument, IsADirectory, NotADirectory, NotFound, Unsupported
from aioprefetch.fsspec.listings import Info, Listing, directory_info, grouped, info_of, parents_of, version_info
from aioprefetch.fsspec.stores import Place
from aioprefetch.operator.arguments import checked_path
from aioprefetch.operator.listing import Pages, list_literally, parent_of
from aioprefetch.runtime.task_group import gather_all
from aioprefetch.values import ListRequest

# A longer listing is not kept: its entries take more memory than what would be read again.
LISTED_ENTRIES_MAX = 100_000
# Directories of one level that are listed side by side.
LISTINGS_AT_ONCE = 64
# What says that something is not there. Any other failure says nothing, and is raised.
ABSENT = (NotFound, IsADirectory, NotADirectory)


class Tree:
    """The entries at a path and below it. Paths are stripped; ``""`` without a store is the root of all stores.

    Listings are kept in ``kept``, fsspec's ``DirCache``: an entry is found in that of its directory, and what is not
    there is not looked for, until it expires or ``forget`` drops it. ``stores`` lists the stores below the root.
    """

    def __init__(
        self,
        place_of: Callable[[str], Place],
        kept: DirCache,
        *,
        root: str | None,
        stores: Callable[[], Awaitable[Iterable[str]]],
    ) -> None:
        self._place_of = place_of
        self._kept = kept
        self._root = root
        self._stores = stores
        self._forgotten = 0

    def forget(self, path: str) -> None:
        """Believe no listing of which ``path``, or what is below it, is a part."""
        self._forgotten += 1
        for name in [name for name in self._kept if name.startswith(f"{path}/")]:
            self._kept.pop(name, None)
        for name in (path, *parents_of(path, ""), "/"):
            self._kept.pop(name, None)
        if self._root is None or "/" not in path:  # Otherwise it is the list of stores.
            self._kept.pop("", None)

    def forget_all(self) -> None:
        """Believe no listing."""
        self._forgotten += 1
        self._kept.clear()

    def known(self, path: str) -> Info | None:
        """The entry of a path in a listing that is believed. ``NotFound`` if its directory was listed without it."""
        parent = parent_of(path)
        listing = self._kept.get(parent)
        if listing is not None and (info := listing.find(path)) is not None:
            return dict(info)
        children = self._kept.get(path)
        if children is not None:
            return dict(children.find(path) or directory_info(path))
        if listing is not None and parent != self._root:  # There are stores that are not listed: those of others.
            raise self._place_of(path).missing("info", path, "there is no such object in the listing of its directory")
        return None

    def known_directory(self, path: str) -> bool:
        """Whether a listing that is believed has the path as a directory."""
        try:
            known = self.known(path)
        except NotFound:
            return False
        return known is not None and known["type"] == "directory"

    async def info(self, path: str, *, refresh: bool, version: str | None) -> Info:
        """The entry of a path: from a listing, or by a ``stat`` of the object, then of the directory."""
        if path == self._root:
            return directory_info(path)
        place = self._place_of(path)
        version = version or place.version
        known = None if refresh or version else self.known(path)
        if known is not None:
            return known
        if place.key:
            try:
                found = await place.operator.stat(place.key, version=version)
                return {**info_of(place.base, found), "name": path}
            except (NotFound, IsADirectory):
                if version or not place.operator.capability.stat_directory:
                    raise
        if not await self._is_listed(path, place):
            raise place.missing("info", path)
        return directory_info(path)

    async def is_directory(self, path: str) -> bool:
        """Whether there is a directory: at most one request, whose answer is kept if it is the whole listing."""
        if path == self._root:
            return True
        place = self._place_of(path)
        listing = self._kept.get(parent_of(path))
        if listing is not None and listing.has_directory(path):
            return True
        try:
            known = self.known(path)
            if known is not None:
                return bool(known["type"] == "directory")
            return await self._is_listed(path, place)
        except ABSENT:
            return False

    async def is_file(self, path: str) -> bool:
        """Whether there is an object: at most one request."""
        place = None if path == self._root else self._place_of(path)
        if place is None or not place.key:
            return False
        try:
            known = None if place.version else self.known(path)
            if known is not None:
                return bool(known["type"] == "file")
            return not (await place.operator.stat(place.key, version=place.version)).is_directory
        except ABSENT:
            return False

    async def entries(self, path: str, *, refresh: bool = False) -> Listing:
        """The entries of a directory, or that of an object alone. Raises ``NotFound``."""
        listing: Listing | None = None if refresh else self._kept.get(path)
        if listing is not None:
            return listing
        before = self._forgotten
        if path == self._root:
            return self._keep(path, map(directory_info, await self._stores()), before)
        place = self._place_of(path)
        if not place.operator.capability.list and (own := await self._alone(path)):
            return Listing(own)
        pages = _pages_of(place, place.directory)
        found = await _all_of(pages, place)
        if found or pages.has_marker or not place.key:
            return self._keep(path, found, before)
        try:
            alone = await place.operator.stat(place.key)
        except (NotFound, IsADirectory) as error:
            if pages.has_marker is False and isinstance(error, NotFound):
                raise
            alone = await place.operator.stat(place.directory)
        return self._keep(path, [], before) if alone.is_directory else Listing([info_of(place.base, alone)])

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
        before = self._forgotten
        if not self._place_of(path).operator.capability.list and (own := await self._alone(path)):
            return own
        files, directories = await self._all_below(path, prefix)
        if not (files or directories):
            return await self._alone(path) if not prefix else []
        levels = grouped(files, directories, path.rstrip("/"))
        if not prefix and len(files) <= LISTED_ENTRIES_MAX:
            for directory, infos in levels.items():
                self._keep(directory, infos, before)
        has_root = not prefix and path != self._root and self._place_of(path).key  # As in s3fs, not the bucket.
        roots = [directory_info(path)] if has_root else []
        return [*roots, *(info for infos in levels.values() for info in infos)]

    async def contents(self, paths: Iterable[str]) -> tuple[list[str], list[str]]:
        """Everything below some paths, or what they name, to be deleted: objects and markers, and then the directories.

        The directories of a path begin with the deepest. Raises ``NotFound``.
        """
        found = [await self._contents_of(path) for path in paths]
        return [name for objects, _ in found for name in objects], [name for _, above in found for name in above]

    async def _contents_of(self, path: str) -> tuple[list[str], list[str]]:
        self._check_below(path)
        files, markers = await self._all_below(path, "")
        names = [info["name"] for info in files]
        if not (names or markers):
            if any(info["type"] == "file" for info in await self._alone(path)):
                return [path], []
            if not await self._is_listed(path, self._place_of(path)):
                raise self._place_of(path).missing("delete", path)
            return [], [path]
        if not self._place_of(path).has_directories:
            return [*names, *(f"{marker}/" for marker in markers)], [path]
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
            return await _has_directory(place)
        before = self._forgotten
        pages = _pages_of(place, place.directory)
        found: list[Info] = []
        while not (found or pages.finished):
            found = [info_of(place.base, entry) for entry in await pages.next()]
        if pages.finished and (found or pages.has_marker):
            self._keep(path, found, before)
        if found or pages.has_marker or not place.key:
            return True
        return pages.has_marker is None and await _has_directory(place)

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

    def _keep(self, path: str, entries: Iterable[Info], before: int) -> Listing:
        """Keep a listing, unless something has been written since the ``before`` that it was begun at."""
        listing = Listing(sorted(entries, key=lambda info: info["name"]))
        if before == self._forgotten:
            self._kept[path] = listing
        return listing


def _pages_of(place: Place, prefix: str, *, versions: bool = False) -> Pages:
    """The listing of what begins with a prefix in the store of a place, page by page."""
    operator, path = place.operator, checked_path(prefix, "list")
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


async def _has_directory(place: Place) -> bool:
    try:
        await place.operator.stat(place.directory)
    except ABSENT:
        return False
    return True

"""The file system: fsspec's verbs over operators."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any

from fsspec.asyn import AsyncFileSystem, _run_coros_in_chunks
from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.local import LocalFileSystem, make_path_posix
from fsspec.utils import isfilelike, stringify_path

from aioprefetch.credentials import frameless
from aioprefetch.errors import AlreadyExists, InvalidArgument, IsADirectory, Unsupported
from aioprefetch.fsspec import opening
from aioprefetch.fsspec.kept import Info, Kept, asking
from aioprefetch.fsspec.opening import AsyncReadFile, AsyncWriteFile, ReadFile, WholeTransaction, WriteFile
from aioprefetch.fsspec.options import Instances, as_json, file_system_settings, portable
from aioprefetch.fsspec.tree import Place, Stores, Tree, digest_of
from aioprefetch.fsspec.verbs import (
    Bounds,
    blocking,
    by_path,
    check_pairs,
    copied,
    copy_object,
    expand_path,
    get_object,
    holds,
    identity_in,
    in_order,
    is_empty,
    local_identity_of,
    many,
    mirror,
    move_object,
    move_objects,
    name_of,
    note_directories,
    of_one,
    placed,
    placed_in_files,
    put_object,
    read_slice,
    read_slices,
)
from aioprefetch.operator.operator import Operator
from aioprefetch.runtime.threads import in_thread
from aioprefetch.sync.loop_thread import loop_thread
from aioprefetch.sync.opening import Mode

# Listings are believed this long.
LISTING_SECONDS = 30.0


class AioPrefetchFileSystem(AsyncFileSystem, metaclass=Instances):  # type: ignore[misc]
    """fsspec's file system over an operator, or over the stores of a scheme.

    Parameters
    ----------
    op
        The operator whose keys are the paths: ``AioPrefetchFileSystem(op).open("dir/key")``; also a URL, with the
        options of its store beside it. Without it the file system is one of a scheme (``aioprefetch+s3``, ...), whose
        paths begin with the bucket.
    use_listings_cache
        Keep listings. Writes through this file system drop what they change, and so does ``invalidate_cache``.
    listings_expiry_time
        The seconds for which a listing is kept, 30 by default; ``None`` is for ever, as in s3fs.
    max_paths
        The maximum of directories whose listings are kept.
    listings_max_entries
        The maximum of entries in all listings that are kept, 200 000 by default: the oldest listings go.
    asynchronous
        As for every file system of fsspec. Without it the verbs run on the loop thread of ``aioprefetch.sync``, where
        files are read too, so that all share connections and memory.
    loop
        The event loop of the verbs, as for every file system of fsspec.
    batch_size
        The maximum of coroutines at once, as for every file system of fsspec.
    pickle_secrets
        Whether literal keys are a part of pickles and of ``to_json``. By default they are references, which other
        processes than this one and its forks cannot follow: give ``key="env:NAME"``, or the providers of AWS there.
    storage_options
        Options of ``Operator.from_uri`` and of ``Operator.reader``, the words of s3fs for them, and ``check_on_open``.
    """

    protocol: Any = ("aioprefetch",)
    scheme = ""
    transaction_type = WholeTransaction
    mirror_sync_methods = False  # They are mirrored by ``mirror``.
    _extra_tokenize_attributes = ("identity",)

    def __init__(
        self,
        op: Operator | str | None = None,
        *,
        asynchronous: bool = False,
        loop: asyncio.AbstractEventLoop | None = None,
        batch_size: int | None = None,
        listings_expiry_time: float | None = LISTING_SECONDS,
        pickle_secrets: bool = False,
        **storage_options: Any,
    ) -> None:
        operator = op if isinstance(op, Operator) else None  # The class has made one of a URL.
        own_loop = None if asynchronous else loop or loop_thread().loop
        super().__init__(asynchronous=asynchronous, loop=own_loop, batch_size=batch_size)
        self.dircache = Kept(listings_expiry_time, storage_options)
        self._given_loop = loop
        self._settings = file_system_settings(self.scheme, {**storage_options, "op": operator})
        settings = self._settings
        self.version_aware = settings.version_aware
        self._stores = Stores(operator, self.scheme, self.split, settings.store, version_aware=settings.version_aware)
        root = "" if operator is None else None
        self._tree = Tree(self._stores.place_of, self.dircache, root=root, stores=self._stores.names)
        self._lexists = self._tree.is_named  # ``expand_path`` asks it.
        self._pickles_secrets = pickle_secrets
        mirror(self)

    def __repr__(self) -> str:
        what = repr(self._stores.only) if self._stores.only is not None else f"{self.scheme}://"
        return f"<{type(self).__name__} {what}{' asynchronous' if self.asynchronous else ''}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), portable(self.storage_options, with_secrets=self._pickles_secrets))

    def to_dict(self, *, include_password: bool = True) -> dict[str, Any]:
        """The file system as plain values. Secrets and an operator are names that this process and its forks know.

        With ``pickle_secrets`` and ``include_password`` secrets are themselves.
        """
        options = as_json(self.storage_options, with_secrets=self._pickles_secrets and include_password)
        cls = type(self)
        return {"cls": f"{cls.__module__}:{cls.__qualname__}", "protocol": self.protocol[0], "args": [], **options}

    @property
    def loop(self) -> Any:
        """The loop of the verbs that block: the loop of ``aioprefetch.sync`` in this process, after a fork too."""
        if self.asynchronous:
            return None
        return self._given_loop or loop_thread().loop

    @property
    def fsid(self) -> str:
        """A name of the kind of file system, the same in all processes."""
        return f"aioprefetch+{self.scheme if self._stores.only is None else self._stores.only.info.url}"

    async def aclose(self) -> None:
        """Release connections and memory on the running loop. The file system stays usable."""
        await self._stores.close()

    async def set_session(self, *options: Any, **more_options: Any) -> Stores:
        """The stores, whose ``close`` ends the session. Connections are made when they are needed."""
        return self._stores

    def close(self) -> None:
        """Release connections and memory of the verbs that block, and of files. The file system stays usable."""
        loop_thread().run(self.aclose())

    # --- paths ------------------------------------------------------------------------------------------------------

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = stringify_path(path)
        for protocol in cls.protocol:
            if path.startswith(f"{protocol}://"):
                path = path[len(protocol) + 3 :]
                break
            if path.startswith(f"{protocol}::"):
                path = path[len(protocol) + 2 :]
                break
        return path.strip("/")

    def split(self, path: str) -> tuple[str, str, str]:
        """The URL of the store of a stripped path, the key in it, and what stands before the key."""
        name, _, key = path.partition("/")
        if not name:
            raise InvalidArgument(
                f"the path names no store: paths of {self.scheme}:// begin with a bucket", operation="open"
            )
        return f"{self.scheme}://{name}", key, f"{name}/"

    def place_of(self, path: str) -> Place:
        """The store and the key of a path. Raises ``InvalidArgument`` if it names no store."""
        return self._stores.place_of(self._strip_protocol(path))

    def invalidate_cache(self, path: str | None = None) -> None:
        """Believe no listing any more; with ``path`` for it, what is below it, and the directories above."""
        self._tree.forget(self._strip_protocol(path or ""))

    @contextmanager
    def _changing(self, *paths: str) -> Iterator[None]:
        """Believe no listing of these paths after the block: what failed or was cancelled may have changed them too."""
        try:
            yield
        finally:
            for path in paths:
                self.invalidate_cache(path)

    # --- what is there ------------------------------------------------------------------------------------------------

    async def _info(self, path: str, refresh: bool = False, version_id: str | None = None, **options: Any) -> Info:
        return self.shown(await self._tree.info(await name_of(self, path), refresh=refresh, version=version_id))

    def shown(self, info: Info) -> Info:
        """An entry as callers get it."""
        return dict(info)

    async def _isdir(self, path: str) -> bool:
        return await self._tree.is_directory(self._strip_protocol(path))

    async def _isfile(self, path: str) -> bool:
        return await self._tree.is_file(await name_of(self, path))

    _expand_path = expand_path

    async def _ls(
        self, path: str, detail: bool = True, refresh: bool = False, versions: bool = False, **options: Any
    ) -> list[Any]:
        path = self._strip_protocol(path)
        listing: list[Info] = await (
            self._tree.versions(path) if versions else self._tree.entries(path, refresh=refresh)
        )
        if versions:
            listing = [info for info in listing if not info.get("IsDeleteMarker")]
        return [self.shown(info) for info in listing] if detail else [info["name"] for info in listing]

    async def _object_version_info(self, path: str, **options: Any) -> list[Info]:
        """The versions and delete markers of an object, the newest first; each name is one for ``version_aware``."""
        return [self.shown(info) for info in await self._tree.versions(self._strip_protocol(path), is_object=True)]

    object_version_info = blocking(_object_version_info)

    async def _find(
        self,
        path: str,
        maxdepth: int | None = None,
        withdirs: bool = False,
        detail: bool = False,
        prefix: str | None = None,
        **options: Any,
    ) -> Any:
        path, prefix = self._strip_protocol(path), prefix or ""
        found = await (
            self._tree.below(path, prefix) if maxdepth is None else self._tree.levels(path, prefix, maxdepth)
        )
        note_directories(path, found, is_whole=maxdepth is None)
        if not withdirs:
            found = [info for info in found if info["type"] != "directory"]
        by_name = {info["name"]: self.shown(info) for info in sorted(found, key=lambda info: info["name"])}
        return by_name if detail else list(by_name)

    async def _du(self, path: str, total: bool = True, maxdepth: int | None = None, **options: Any) -> Any:
        found = await self._find(path, maxdepth=maxdepth, detail=True, **options)
        sizes = {name: info["size"] for name, info in found.items()}
        return sum(sizes.values()) if total else sizes

    def modified(self, path: str) -> datetime:
        """When the object was written. ``IsADirectory`` for a directory, which has no time."""
        info = self.info(path)
        if info["type"] == "directory":
            raise IsADirectory("a directory has no time of its own", operation="modified", path=path)
        found: datetime = info["LastModified"]
        return found

    def created(self, path: str) -> datetime:
        """When the object was written: each write makes another one."""
        return self.modified(path)

    def ukey(self, path: str) -> str:
        """A digest that another version of the object does not have."""
        self.dircache.alone.clear()
        return digest_of(self.info(path))

    def checksum(self, path: str, refresh: bool = False) -> int:
        """``ukey`` as a number."""
        self.dircache.alone.clear()
        return int(digest_of(self.info(path, refresh=refresh)), 16)

    async def _sign(self, path: str, expiration: float = 100, **options: Any) -> str:
        """A URL whose bearer may read the object for ``expiration`` seconds; ``method="PUT"``: write it."""
        place = await self._versioned(path, None)
        return await place.operator.presign(place.key, expires_seconds=expiration, version=place.version, **options)

    sign = blocking(_sign)

    # --- reading ------------------------------------------------------------------------------------------------------

    @of_one
    async def _cat_file(
        self, path: str, start: int | None = None, end: int | None = None, version_id: str | None = None, **options: Any
    ) -> bytes:
        return await read_slice(await self._versioned(path, version_id), (start, end))

    async def _cat(self, path: Any, **options: Any) -> Any:
        if isinstance(path, str) and (name := await name_of(self, path)).endswith("/") and not options.get("recursive"):
            return await self._cat_file(name, **options)
        async with many():
            return await super()._cat(path, **options)

    async def _cat_ranges(
        self,
        paths: list[str],
        starts: Any,
        ends: Any,
        max_gap: int | None = None,
        batch_size: int | None = None,
        on_error: str = "return",
        **options: Any,
    ) -> list[Any]:
        """The bytes of ranges of several objects, in as few requests for each object as they take.

        Ranges at most ``max_gap`` bytes apart share one; by default it is ``gap_bytes`` of ``Operator.read_ranges``.
        """
        wanted = by_path(paths, starts, ends)

        @of_one
        async def read(path: str, slices: list[tuple[int, Bounds]]) -> list[bytes]:
            ranges = [bounds for _, bounds in slices]
            return await read_slices(await self._versioned(path, None), ranges, max_gap)

        async with many():
            results = await _run_coros_in_chunks(
                [read(path, slices) for path, slices in wanted.items()],
                batch_size=batch_size or self.batch_size,
                nofiles=True,
                return_exceptions=True,
            )
        return in_order(wanted, results, raises=on_error != "return")

    async def _versioned(self, path: str, version_id: str | None) -> Place:
        """The place of an object that is read, at a version that is given beside it."""
        place = self._stores.place_of(await name_of(self, path))
        return place._replace(version=version_id or place.version)

    @of_one
    async def _get_file(
        self, rpath: str, lpath: Any, callback: Any = DEFAULT_CALLBACK, version_id: str | None = None, **options: Any
    ) -> None:
        place = await self._versioned(rpath, version_id)
        get = partial(get_object, place, lpath, callback)
        if place.version or isfilelike(lpath):
            await get()
        else:
            make = partial(in_thread, os.makedirs, lpath, exist_ok=True)
            await copied(self._tree, place.base + place.key, get, make)

    async def _get(
        self, rpath: Any, lpath: Any, recursive: bool = False, maxdepth: int | None = None, **options: Any
    ) -> Any:
        async with many():
            names, targets = await placed_in_files(self, rpath, lpath, recursive=recursive, maxdepth=maxdepth)
            await check_pairs(self, names, targets, partial(identity_in, self), local_identity_of)
            return await super()._get(names, targets, **options)

    def head(self, path: str, size: int = 1024) -> bytes:
        """The first ``size`` bytes."""
        found: bytes = self.cat_file(path, start=0, end=size)
        return found

    def tail(self, path: str, size: int = 1024) -> bytes:
        """The last ``size`` bytes."""
        found: bytes = self.cat_file(path, start=-size) if size else b""
        return found

    # --- files ----------------------------------------------------------------------------------------------------

    @frameless
    def open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        cache_options: dict[str, Any] | None = None,
        compression: str | None = None,
        **options: Any,
    ) -> Any:
        """A file of bytes (``rb``, ``wb``, ``xb``, ``ab``) or of text (``r``, ``w``, ``x``, ``a``).

        No request is sent yet, but with ``check_on_open`` the first one of ``rb``, for ``x`` a look, and for
        ``a`` requests that read the object: it is written again with the addition, unless another writer was faster.
        What is written appears when the file is closed, whole, in a transaction at its end; a ``with`` block that fails
        changes nothing, with ``compression`` and in text too. ``compression`` is a name of fsspec's, or ``infer``; text
        is UTF-8 without an ``encoding``. ``options`` as for ``Operator.reader``, or for a write.
        """
        checked = opening.FileMode(mode, path=path)
        path = loop_thread().run(name_of(self, path)) if checked.kind == "r" else self._strip_protocol(path)
        text = opening.text_options(checked, options, path)
        codec = opening.codec_of(compression, path)
        autocommit = options.pop("autocommit", not self._intrans)
        file = self._open(path, checked.of_bytes, block_size, autocommit=autocommit, **options)
        if not autocommit and isinstance(file, WriteFile):
            self.transaction.files.append(file)
        return opening.wrapped_file(file, checked, codec=codec, text=text)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        version_id: str | None = None,
        **options: Any,
    ) -> ReadFile | WriteFile:
        how: dict[str, Any] = {"block_size": block_size, "autocommit": autocommit, "version_id": version_id}
        return opening.opened(self, path, opening.FileMode(mode, path=path), self._settings, options, **how)

    async def open_async(self, path: str, mode: str = "rb", **options: Any) -> Any:
        """A file of bytes whose ``read`` or ``write``, and ``close``, are awaited."""
        checked = Mode(mode, path=path)
        payer = opening.payer(self, options)
        place = await payer._versioned(path, None) if checked.kind == "r" else payer.place_of(path)
        if checked.is_text or options.get("compression"):
            raise Unsupported("open_async is for bytes as they are: 'rb', 'wb' and 'xb'", operation="open", path=path)
        if checked.kind == "r":
            size, version = options.pop("block_size", None), options.pop("version_id", None)
            chosen = opening.reading_options(self._settings, place, options, block_size=size, version_id=version)
            reader = place.operator.reader(place.key, **chosen)
            await reader.ensure_size()
            return AsyncReadFile(reader, path)
        chosen = self._writing("create" if checked.kind == "x" else "overwrite", options)
        return AsyncWriteFile(self, path, place.operator.writer(place.key, **chosen))

    # --- writing ------------------------------------------------------------------------------------------------------

    @of_one
    async def _pipe_file(
        self, path: str, value: Any = None, mode: str = "overwrite", *, data: Any = None, **options: Any
    ) -> None:
        place, value = self.place_of(path), value if data is None else data
        chosen = self._writing(mode, options)
        if path.endswith("/") and not place.has_directories:  # A marker: nothing but its name is kept.
            place = place._replace(key=place.directory)
        if mode == "create":
            await self._refuse_existing(path)
        with self._changing(path):
            if place.key.endswith("/") and value == b"":
                await place.operator.create_dir(place.key)
            else:
                await place.operator.write(place.key, value, **chosen)

    async def _pipe(self, path: Any, value: Any = None, **options: Any) -> Any:
        async with many():
            return await super()._pipe(path, value, **options)

    async def _put(
        self, lpath: Any, rpath: Any, recursive: bool = False, maxdepth: int | None = None, **options: Any
    ) -> Any:
        files, lpath = AsyncFileSystemWrapper(LocalFileSystem(), asynchronous=True), make_path_posix(lpath)
        levels: dict[str, Any] = {"recursive": recursive, "maxdepth": maxdepth}
        async with many():
            names, targets, _ = await placed(files, lpath, rpath, partial(holds, self), **levels)
            await check_pairs(files, names, targets, local_identity_of, partial(identity_in, self))
            return await super()._put(names, targets, **options)

    async def _refuse_existing(self, path: str) -> None:
        """Look first: there are stores that ignore the condition of a write."""
        if await self._tree.is_object(self._strip_protocol(path)):
            raise self.place_of(path).error(AlreadyExists, "there is an object already", "write", path)

    def _writing(self, mode: str, options: dict[str, Any]) -> dict[str, Any]:
        return opening.writing_options(self._settings, mode, options)

    @of_one
    async def _put_file(
        self, lpath: str, rpath: str, mode: str = "overwrite", callback: Any = DEFAULT_CALLBACK, **options: Any
    ) -> None:
        if await in_thread(os.path.isdir, lpath):
            await self._makedirs(rpath, exist_ok=True)
            return
        place = self.place_of(rpath)
        chosen = self._writing(mode, options)
        if mode == "create":
            await self._refuse_existing(rpath)
        with self._changing(rpath):
            await put_object(lpath, place, chosen, callback)

    async def _copy(
        self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **options: Any
    ) -> None:
        async with many():
            names, targets, _ = await placed(self, path1, path2, recursive=recursive, maxdepth=maxdepth)
            await check_pairs(self, names, targets, partial(identity_in, self), partial(identity_in, self))
            await super()._copy(names, targets, recursive=recursive, **options)

    _mv = move_objects
    mv = blocking(_mv)

    @of_one
    async def _cp_file(
        self, path1: str, path2: str, preserve_etag: bool | None = None, is_move: bool = False, **options: Any
    ) -> None:
        chosen = opening.copying_options(self._settings, options, preserve_etag=preserve_etag)
        name = await name_of(self, path1)
        source, target = self._stores.place_of(name), self.place_of(path2)
        if name.endswith("/") and path2.endswith("/"):
            target = target._replace(key=target.directory)

        async def copy() -> None:
            with self._changing(path2):
                await (move_object if is_move else copy_object)(source, target, chosen)

        async def make() -> None:
            await self._makedirs(path2, exist_ok=True)
            if source.operator is target.operator and target.key and await is_empty(self._tree, name):
                await target.operator.create_dir(target.directory)

        await copied(self._tree, name, copy, make)

    async def _rm_file(self, path: str, **options: Any) -> None:
        with self._changing(path):
            await self._stores.remove([path])

    async def _rm(
        self,
        path: Any,
        recursive: bool = False,
        batch_size: int | None = None,
        maxdepth: int | None = None,
        **options: Any,
    ) -> None:
        with asking():
            names = await self._expand_path(path)
            objects, directories = names, list[str]()
            if recursive and maxdepth is None:
                objects, directories = await self._tree.contents(names)
            elif recursive:
                objects = [found for name in names for found in await self._find(name, maxdepth=maxdepth)]
                if not (objects or await self._exists(names[0])):
                    raise self.place_of(names[0]).missing("delete", names[0])
        with self._changing(*names):
            await self._stores.remove(objects, directories)

    async def _mkdir(self, path: str, create_parents: bool = True, **options: Any) -> None:
        """Make a bucket, or a directory where directories are. Elsewhere these come and go with what is in them."""
        place = self.place_of(path)
        if not (place.key or place.has_directories) and self._stores.only is None:
            if self.scheme != "memory" and await holds(self, path):  # There a store is not made.
                raise place.error(AlreadyExists, "the bucket exists", "create_dir", path)
            with self._changing(path):
                await self._stores.buckets(place.operator, "create_dir").create()
            return
        if not place.has_directories:
            return
        if await place.operator.exists(place.directory):
            raise place.error(AlreadyExists, "the directory exists", "create_dir", path)
        parent = self._parent(self._strip_protocol(path))
        if not create_parents and parent and not await holds(self, parent):
            raise place.missing("create_dir", path, "the directory above does not exist")
        with self._changing(path):
            await place.operator.create_dir(place.directory)

    async def _makedirs(self, path: str, exist_ok: bool = False) -> None:
        if exist_ok and not self.place_of(path).key and await holds(self, path):
            return
        try:
            await self._mkdir(path)
        except AlreadyExists:
            if not exist_ok:
                raise

    async def _rmdir(self, path: str) -> None:
        place = self.place_of(path)
        with self._changing(path):
            if not (place.key or place.has_directories) and self._stores.only is None:
                await self._stores.buckets(place.operator, "delete").delete()
            elif await self._tree.beginning(self._strip_protocol(path), ""):
                raise IsADirectory("the directory is not empty", operation="delete", path=path)
            elif not place.key:
                raise Unsupported("the root of an operator is not deleted", operation="delete", path=path)
            else:
                await place.operator.stat(place.directory)
                await place.operator.delete(place.directory)

    rmdir = blocking(_rmdir)

    async def _touch(self, path: str, truncate: bool = True, **options: Any) -> None:
        if not truncate and await self._lexists(self._strip_protocol(path)):
            raise Unsupported(
                "the time of an object is when it was last written: truncate=True writes an empty one",
                operation="touch",
                path=path,
            )
        await self._pipe_file(path, b"", **options)

    touch = blocking(_touch)


def _rebuilt(cls: type[AioPrefetchFileSystem], options: dict[str, Any]) -> AioPrefetchFileSystem:
    return cls(**options)

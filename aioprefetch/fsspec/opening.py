"""Files by mode, compression and text, as fsspec's ``open`` has them, of which a failing block leaves nothing.

fsspec wraps files in ``io.TextIOWrapper`` and in its codecs, and closes these: what a block that failed has written
would appear. Here they are those of ``aioprefetch.sync.codecs``, which discard.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from functools import partial
from typing import Any

from fsspec.compression import compr
from fsspec.core import get_compression

from aioprefetch.errors import AlreadyExists, InvalidArgument, InvalidType, NotFound, Unsupported
from aioprefetch.fsspec.files import BlockCachedFile, ReadFile, WriteFile
from aioprefetch.fsspec.stores import Place
from aioprefetch.fsspec.words import Settings, check_no_option_left, reader_options, write_options
from aioprefetch.operator.server_copy import PLACEMENT, description_of
from aioprefetch.sync import codecs
from aioprefetch.sync.loop_thread import loop_thread
from aioprefetch.sync.opening import Mode
from aioprefetch.values import Metadata

# Codecs of fsspec that are those of ``DecompressedFile``, which buffers and closes what is below it.
_BUFFERED = {"gzip": "gzip", "bz2": "bz2", "xz": "xz", "lzma": "xz"}
# The bytes of an object that are read at once to be written again before those that are appended.
APPEND_BYTES = 8 << 20
TEXT_OPTIONS = ("encoding", "errors", "newline")
# Options of fsspec's files that say nothing about a write.
_OF_READS = ("cache_options", "cache_type", "size", "fill_cache")


def checked_mode(mode: object, path: str) -> Mode:
    """A mode of ``open_async``. ``Unsupported`` for ``a`` and ``+``, ``InvalidArgument`` for an unknown one."""
    return Mode(mode, path=path)


class FileMode(Mode):
    """A mode of fsspec's ``open``: ours, and ``a``, which is ``w`` after what is there. Raises as ``checked_mode``."""

    __slots__ = ("appends",)

    def __init__(self, mode: object, *, path: str) -> None:
        self.appends = isinstance(mode, str) and sorted(mode) in (["a"], ["a", "b"], ["a", "t"])
        super().__init__(mode.replace("a", "w") if isinstance(mode, str) and self.appends else mode, path=path)
        if self.appends:
            self.name = self.name.replace("w", "a")

    @property
    def of_bytes(self) -> str:
        """The mode of the file of bytes below a text."""
        return f"{self.name.removesuffix('b')}b"


def opened(
    fs: Any,
    path: str,
    mode: FileMode,
    settings: Settings,
    options: Mapping[str, Any],
    *,
    block_size: int | None,
    autocommit: bool,
    version_id: str | None,
) -> ReadFile | WriteFile:
    """A file of bytes of a file system, from the options of ``open`` and its own."""
    place: Place = fs.place_of(path)
    if mode.kind == "r":
        chosen = reading_options(settings.reader, place, options, block_size=block_size, version_id=version_id)
        return read_file_type(options)(fs, path, place.operator, place.key, chosen)
    if place.version is not None:
        raise InvalidArgument("a version is not written: leave ?versionId= out", operation="open", path=path)
    chosen = opened_write_options(settings.write, options)
    if mode.kind == "x":
        if fs.isfile(path):
            raise place.error(AlreadyExists, "mode='xb' is for an object that is not there yet", "open", path)
        chosen["if_not_exists"] = True
    found = loop_thread().run(_existing(place)) if mode.appends and place.operator.capability.write else None
    if mode.appends:
        chosen = appending_options(place, found, chosen)
    file = WriteFile(fs, path, place.operator, place.key, chosen, mode=mode.of_bytes, autocommit=autocommit)
    if found is not None and found.size:
        before = {"policy": "sequential", "size": found.size, "etag": found.etag}
        _begin_with(file, ReadFile(fs, path, place.operator, place.key, before))
    return file


async def _existing(place: Place) -> Metadata | None:
    try:
        return await place.operator.stat(place.key)
    except NotFound:
        return None


def appending_options(place: Place, found: Metadata | None, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a write that appends to what was found: its description, and that no other writer comes between.

    That is only compared where the store can.
    """
    capability = place.operator.capability
    if found is None:
        return {**({"if_not_exists": True} if capability.write_if_not_exists else {}), **chosen}
    condition = {"if_match": found.etag} if capability.write_if_match and found.etag else {}
    return {**description_of(found, capability), **condition, **chosen}


def _begin_with(file: WriteFile, before: ReadFile) -> None:
    """Write what was there into a file. If that fails, nothing is written."""
    try:
        with before:
            while piece := before.read(APPEND_BYTES):
                file.write(piece)
    except BaseException as error:
        file.discard(error)
        raise


def codec_of(compression: str | None, path: str) -> str | None:
    """The name of a codec of fsspec, ``None`` for plain bytes; ``infer`` goes by the end of the path."""
    if compression is None:
        return None
    try:
        name: str | None = get_compression(path, compression)
    except ValueError:
        known = ", ".join(repr(name) for name in ("infer", *sorted(name for name in compr if name)))
        raise InvalidArgument(
            f"compression={compression!r} must be None or one of {known}; others need a package that is not installed",
            operation="open",
            path=path,
        ) from None
    return name


def wrapped_file(file: ReadFile | WriteFile, mode: Mode, *, codec: str | None, text: Mapping[str, str | None]) -> Any:
    """A file of bytes with compression and text around it. If that fails, it is closed, and nothing is written."""
    if codec is None:
        return codecs.layered(file, mode.name, text, compressed=None, decompressed=None)
    name, make = str(file.name), compr[codec]

    def decompressed(below: ReadFile) -> Any:
        if codec in _BUFFERED:
            return codecs.DecompressedFile(below, _BUFFERED[codec], name=name)
        return make(io.BufferedReader(below, codecs.BUFFER_BYTES), mode="r")

    return codecs.layered(
        file,
        mode.name,
        text,
        compressed=lambda below: codecs.CompressedFile(below, partial(make, mode="w"), name=name),
        decompressed=decompressed,
    )


def text_options(mode: Mode, options: dict[str, Any], path: str) -> dict[str, str | None]:
    """Take the options of a text out of ``options``; UTF-8 by default. ``InvalidArgument`` for some beside bytes."""
    text = {name: options.pop(name, None) for name in TEXT_OPTIONS}
    for name, value in text.items():
        if value is not None and not mode.is_text:
            raise InvalidArgument(
                f"{name} is an option of a text, and mode={mode.name!r} is of bytes", operation="open", path=path
            )
        if not (value is None or isinstance(value, str)):
            raise InvalidType(f"{name} must be a string, not {value!r}", operation="open", path=path)
    return {**text, "encoding": text["encoding"] or "utf-8"}


def reading_options(
    defaults: Mapping[str, Any],
    place: Place,
    options: Mapping[str, Any],
    *,
    block_size: int | None,
    version_id: str | None,
) -> dict[str, Any]:
    """The options of a reader, from those of ``open`` and of the file system."""
    names = {name: value for name, value in options.items() if value is not None}
    names.pop("requester_pays", None)  # It is an option of the file system.
    chosen = {**defaults, **reader_options(names, block_size=block_size)}
    check_no_option_left(names)
    version = version_id or place.version
    return chosen | ({"version": version} if version else {})


def read_file_type(options: Mapping[str, Any]) -> type[ReadFile]:
    """The type of a file to read, from the options of ``open``."""
    return BlockCachedFile if options.get("cache_type") == "none" else ReadFile


def writing_options(defaults: Mapping[str, Any], mode: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a write, from those of a verb and of the file system. ``mode`` is ``overwrite`` or ``create``."""
    taken = {name: value for name, value in options.items() if name not in ("chunksize", "max_concurrency")}
    chosen = write_options(taken, defaults)
    if mode == "create":
        chosen["if_not_exists"] = True
    elif mode != "overwrite":
        raise InvalidArgument(f"mode={mode!r} must be 'overwrite' or 'create'", operation="write")
    return chosen


def copying_options(
    defaults: Mapping[str, Any], options: Mapping[str, Any], *, preserve_etag: bool | None
) -> dict[str, Any]:
    """The options of a copy, from those of a verb over those of the file system: how the store keeps it.

    ``ConfigInvalid`` for others that the verb was given: the description of a copy is that of its source.
    """
    if preserve_etag:
        raise Unsupported("the store chooses the ETag of a copy: leave preserve_etag= out", operation="copy")
    return write_options(options, defaults, allowed=PLACEMENT, of="a copy")


def opened_write_options(defaults: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a file to write."""
    return write_options({name: value for name, value in options.items() if name not in _OF_READS}, defaults)

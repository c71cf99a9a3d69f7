"""Objects from and to local files, as the verbs of fsspec move them."""

from __future__ import annotations

import asyncio
import mimetypes
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from glob import has_magic
from typing import Any, BinaryIO

from fsspec.utils import isfilelike

from aioprefetch.accessor.protocols import copies_from
from aioprefetch.fsspec.stores import Place
from aioprefetch.operator.progress import ProgressBar, ProgressDisplay
from aioprefetch.operator.server_copy import PLACEMENT, copy_by_server, description_of
from aioprefetch.operator.transfer.report import CopyProgress


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
    await asyncio.to_thread(os.makedirs, os.path.dirname(target) or ".", exist_ok=True)
    await place.operator.download(place.key, target, version=place.version, on_progress=SizeFirst(callback))


async def put_object(source: str, place: Place, options: dict[str, Any], callback: Any) -> None:
    """Write an object from a local file, with the content type that its name tells. Errors: ``Operator.upload``."""
    with suppress(OSError):  # The upload says what is wrong with the file.
        callback.set_size(await asyncio.to_thread(os.path.getsize, source))
    guessed = mimetypes.guess_type(source)[0]
    if guessed is not None and place.operator.capability.write_content_type:
        options.setdefault("content_type", guessed)
    await place.operator.upload(source, place.key, on_progress=callback.relative_update, **options)


async def copy_object(source: Place, target: Place, options: Mapping[str, Any]) -> None:
    """Copy an object within its store, or into another one; between two buckets the store does it alone.

    A version is read and written. The copy has the description of its source, and for the rest the ``options`` of a
    write. Raises ``Unsupported`` where the store cannot obey them.
    """
    reads, writes = source.operator, target.operator
    placement = {name: options[name] for name in PLACEMENT if options.get(name) is not None}
    if source.version is None and reads is writes and not placement:
        await reads.copy(source.key, target.key)
        return
    connected = writes.accessor(), writes.runtime()
    if source.version is None and (reads is writes or copies_from(writes.service, reads.service)):
        other = None if reads is writes else reads
        await copy_by_server(
            connected,
            source.key,
            target.key,
            source=None if other is None else other.accessor(),
            store=None if other is None else other.service.info,
            placement=placement,
        )
        return
    found = await reads.stat(source.key, version=source.version)
    described = {**options, **description_of(found, writes.capability)}
    reader = reads.reader(source.key, policy="sequential", size=found.size, etag=found.etag, version=source.version)
    async with reader, reader.stream() as chunks:
        await writes.write(target.key, chunks, **described)


async def into_directory(
    fs: Any, source: Any, target: Any, is_directory: Callable[[str], Awaitable[bool]], **levels: Any
) -> tuple[Any, Any]:
    """Source and target of a copy, where a source without a directory above it goes into a directory by its name.

    fsspec cuts names off at a slash, and would copy to the place of that directory what belongs into it. ``levels`` are
    ``recursive`` and ``maxdepth``.
    """
    name = fs._strip_protocol(source) if isinstance(source, str) and isinstance(target, str) else ""
    if not name or "/" in name or source.endswith("/"):
        return source, target
    inside = target.rstrip("/")
    if has_magic(name):
        found = await fs._expand_path(name, **levels)
        if not levels["recursive"] or levels["maxdepth"] is not None:  # Then directories are passed over.
            found = [path for path in found if not await fs._isdir(path)]
        return (found, [f"{inside}/{found[0]}"]) if len(found) == 1 else (source, target)
    return source, f"{inside}/{name}" if target.endswith("/") or await is_directory(target) else target


async def _stream_into(place: Place, file: BinaryIO, callback: Any) -> None:
    async with place.operator.reader(place.key, policy="sequential", version=place.version) as reader:
        callback.set_size(await reader.ensure_size())
        async for chunk in reader.stream():
            await asyncio.to_thread(file.write, chunk)
            callback.relative_update(len(chunk))

"""The copy of one object: by the store itself, into a local file, or by reading here and writing there.

**The same already?** An object is not copied if it is at its destination by size and by one of these proofs:

1. Different sizes, or a size that is not known: not the same.
2. In s3 the ETag of an object that was written at once is its MD5; in parts, it follows from the MD5s
   of the parts. Where both sides are of s3, equal ETags mean the same, and two different MD5s mean not the same. Zeros,
   and an ETag that objects of two sizes have, prove nothing.
3. By time, where the caller says so. A local file gets the time of its object: an equal time means the same.
   Elsewhere a destination that was written after the source means the same, as for ``aws s3 sync``.
4. Between s3 and a local file the MD5 of the file is compared with the ETag.

A time counts for nothing where the source may have changed again within it, because stores tell whole seconds. All that
is not the same by one of these rules is copied.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import Any, BinaryIO, Protocol

from aioprefetch.accessor.protocols import copies_from
from aioprefetch.accessor.request_events import served
from aioprefetch.accessor.response_check import ETags, is_strong
from aioprefetch.accessor.sink import CollectSink, Sink
from aioprefetch.errors import ConditionNotMatch, InvalidPath, ObjectChanged, Unsupported
from aioprefetch.layers import CompleteLayer, ConcurrentLimitLayer, ErrorContextLayer, RetryLayer, TimeoutLayer
from aioprefetch.local_files.files import ConfinedRoot, names_of
from aioprefetch.local_files.threads import FileThreads, translated
from aioprefetch.local_files.writer import PartialFile, write_file
from aioprefetch.runtime.callers import entering
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.task_group import stopped
from aioprefetch.services.fs.options import FsOptions
from aioprefetch.transfer.sides import Side, Store, check_local_name
from aioprefetch.values import Entry, Metadata, ReadHead, ReadRequest, WriteRequest
from aioprefetch.verbs.arguments import checked_path
from aioprefetch.verbs.download import first_response_bytes, metadata_of, nanoseconds_of, receive
from aioprefetch.verbs.ranged_read import first_bytes_of
from aioprefetch.verbs.requests import write_request
from aioprefetch.verbs.resumable_file import open_resumable
from aioprefetch.verbs.writer import abort_after, copy_by_server, description_of, open_body

_DIGEST = re.compile(r"(?!0{32})([0-9a-f]{32})(?:-([1-9][0-9]{0,4}))?")
_READ_BYTES = 1 << 20


class Comparison:
    """Compares the objects of two sides. ``has_proofs`` tells whether the bytes of any can be proven to be the same."""

    def __init__(self, source: Side, target: Side, runtime: Runtime, *, by_time: bool, by_size: bool = False) -> None:
        self._by_size = by_size
        self._source = source
        self._target = target
        self._runtime = runtime
        self._by_time = by_time
        self._etags = ETags()
        self._have_digests = _has_digests(source) and _has_digests(target)
        sides = ((source, target), (target, source))
        self.has_proofs = self._have_digests or any(_has_digests(one) and two.root is not None for one, two in sides)

    async def is_same(self, found: Entry | Metadata, there: Entry | Metadata) -> bool:
        """Whether the object at the destination is a copy of the one in the source."""
        first, second = (
            self._etags.dated(one.etag or "", side + one.path, one.size, one.last_modified)
            for side, one in (("from", found), ("to", there))
        )
        if found.size is None or found.size != there.size:
            return False
        if self._by_size:
            return True
        if self._have_digests:
            known = _by_digests(first, second)
            if known is not None:
                return known
        target_file = self._file(self._target, there.path)
        if self._by_time and await self._looks_same(found, there, target_file):
            return True
        if target_file is not None and _has_digests(self._source):
            return await self._has_digest(target_file, found.etag, self._source)
        source_file = self._file(self._source, found.path)
        if source_file is not None and _has_digests(self._target):
            return await self._has_digest(source_file, there.etag, self._target)
        return False

    async def _looks_same(self, found: Entry | Metadata, there: Entry | Metadata, file: str | None) -> bool:
        if file is None:
            return _is_later(there.last_modified, found.last_modified)
        return await self._runtime.run_blocking(_has_time, file, found.last_modified)

    @staticmethod
    def _file(side: Side, path: str) -> str | None:
        return None if side.root is None else os.path.join(side.root, path)

    async def _has_digest(self, file: str, etag: str | None, other: Side) -> bool:
        part_bytes = other.operator.capability.write_part_bytes
        return await self._runtime.run_blocking(_file_has_digest, file, etag, part_bytes)


def _has_digests(side: Side) -> bool:
    return side.operator.info.scheme in ("s3", "s3a")


def _by_digests(first: str | None, second: str | None) -> bool | None:
    """Whether two ETags of s3 are of the same bytes, ``None`` if they do not tell."""
    if first is None or second is None:
        return None
    one, other = _DIGEST.fullmatch(first), _DIGEST.fullmatch(second)
    if one is None or other is None:
        return None
    if first == second:
        return True
    return False if one[2] is other[2] is None else None


def is_digest(etag: str | None) -> bool:
    """Whether an ETag has the form of a digest of the bytes."""
    return _DIGEST.fullmatch(etag or "") is not None


def _resolution(time: datetime) -> timedelta:
    """Within which a store may have changed an object again without another time."""
    return timedelta(microseconds=1) if time.microsecond else timedelta(seconds=1)


def _is_later(there: datetime | None, found: datetime | None) -> bool:
    return there is not None and found is not None and there >= found + _resolution(found)


def _has_time(file: str, modified: datetime | None) -> bool:
    """On a thread: whether a file has the time of an object that did not change after the file was written."""
    if modified is None:
        return False
    try:
        status = os.stat(file)
    except OSError:
        return False
    written = datetime.fromtimestamp(status.st_ctime_ns // 1000 / 1e6, UTC)
    return status.st_mtime_ns // 1000 * 1000 == nanoseconds_of(modified) and _is_later(written, modified)


def _file_has_digest(file: str, etag: str | None, part_bytes: int) -> bool:
    """On a thread: whether a file has the bytes of an ETag of s3; ``False`` too for an ETag of another form."""
    match = _DIGEST.fullmatch(etag or "")
    if match is None:
        return False
    try:
        with open(file, "rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            if match[2] is None:
                return _md5_of_next(opened, size) == bytes.fromhex(match[1])
            if not part_bytes or -(-size // part_bytes) != int(match[2]):
                return False
            digests = b"".join(_md5_of_next(opened, part_bytes) for _ in range(int(match[2])))
    except OSError:
        return False
    return hashlib.md5(digests, usedforsecurity=False).hexdigest() == match[1]


def _md5_of_next(file: BinaryIO, size: int) -> bytes:
    digest = hashlib.md5(usedforsecurity=False)
    while size > 0:
        data = file.read(min(size, _READ_BYTES))
        if not data:
            break
        digest.update(data)
        size -= len(data)
    return digest.digest()


# --- the copy ---------------------------------------------------------------------------------------------------------

# Layers that change neither bytes nor names: what they wrap may be copied past them.
_PLAIN_LAYERS = (CompleteLayer, ConcurrentLimitLayer, ErrorContextLayer, RetryLayer, TimeoutLayer)
# A response that brings all of an object is handed on in pieces of this size. A file of no more is written at once.
PIECE_BYTES = 1 << 20
# The pieces that may wait for the target. Then the response is paused.
PIECES_WAITING_MAX = 4


class Copier(Protocol):
    """Brings objects to another place, each alone. ``own_bytes`` is the memory that one takes besides the budget's."""

    own_bytes: int

    def check(self, found: Entry | Metadata, path: str, below: str) -> None:
        """Raise ``InvalidPath`` for an object that cannot have its name at the destination, or be read by it."""

    async def copy(self, found: Entry | Metadata, path: str, below: str, on_bytes: Callable[[int], object]) -> Metadata:
        """Bring an object to ``path``; ``below`` comes from its own path; ``on_bytes`` gets numbers of bytes."""


class ObjectCopier:
    """Copies objects of one side to the other, each alone.

    ``by_server``: the store copies them by itself, and none of their bytes comes here. With ``pins`` it copies the
    version that was listed, or none, where it takes such a condition. ``written`` are options of each write; with any
    the bytes come here, since stores keep the description of what they copy.
    """

    def __init__(
        self,
        source: Side,
        target: Side,
        *,
        overwrite: bool,
        pins: bool = False,
        written: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        self._source = source.operator
        self._target = target.operator
        self._source_root = source.root
        self._overwrite = overwrite
        self._pins = pins
        capability = self._target.capability
        checked = write_request("copy", "k", written)
        self._written = {name: getattr(checked, name) for name in written}
        self.by_server = not written and self._copies_by_server() and (overwrite or capability.copy_part_bytes > 0)
        self._store = None if self._is_one_store() else self._source.info
        service = self._target.service
        self._files: FsOptions | None = None
        if isinstance(service, FsOptions) and _is_plain(self._target) and not self.by_server:
            if written:
                why = f"files keep no {min(written)}"
                raise Unsupported(why, operation="copy", path=target.path, context={"service": target.label})
            self._files = service
            self._root = ConfinedRoot(service.directory, follow_symlinks=service.follow_symlinks)
        self._names_files = isinstance(service, FsOptions)
        self._copies_descriptions = (
            self._source.capability.write_user_metadata and capability.write_user_metadata and not self.by_server
        )
        first_bytes = first_bytes_of(self._source.options)
        self._whole_bytes_max = min(first_bytes, capability.write_part_bytes or first_bytes)
        self.own_bytes = first_bytes
        if self.by_server:
            self.own_bytes = 0
        elif self._files is not None:
            self.own_bytes = first_response_bytes(self._source.options)

    def check(self, found: Entry | Metadata, path: str, below: str) -> None:
        """Raise ``InvalidPath`` for an object that cannot have its name at the destination, or be read by it."""
        for name in (found.path, path):
            checked_path(name, "copy")
        if not path:
            raise InvalidPath("it is the object of the directory itself, and would have no name there", path=found.path)
        if self._names_files:
            check_local_name(path, below, found.path)

    async def copy(self, found: Entry | Metadata, path: str, below: str, on_bytes: Callable[[int], object]) -> Metadata:
        """Copy an object to ``path``; ``below``, its end, comes from its own path; ``on_bytes`` gets numbers of bytes.

        ``ObjectChanged`` if it is overwritten meanwhile, ``AlreadyExists`` where something is there that must not be
        overwritten. If it fails or is cancelled, nothing is at ``path`` that was not there before.
        """
        self.check(found, path, below)
        if self.by_server:
            return await self._copy_by_server(found, path, on_bytes)
        try:
            try:
                return await self._copy_bytes(found, path, on_bytes)
            except ConditionNotMatch:  # It was overwritten since it was listed: the newer one is as good.
                return await self._copy_bytes(await self._source.stat(found.path), path, on_bytes)
        except ConditionNotMatch as error:
            raise ObjectChanged(
                "the object was overwritten twice before its first byte was read",
                expected_etag=found.etag,
                operation="copy",
                path=found.path,
            ) from error

    async def _copy_bytes(self, found: Entry | Metadata, path: str, on_bytes: Callable[[int], object]) -> Metadata:
        if self._files is not None:
            return await self._copy_to_file(found, path, on_bytes)
        if found.size is not None and found.size <= self._whole_bytes_max:
            return await self._copy_whole(found, path, on_bytes)
        if not isinstance(found, Metadata):
            found = await self._source.stat(found.path)
        if found.size is None or not is_strong(found.etag, None):  # Nothing would prove that ranges are of one version.
            return await self._copy_response(found, path, on_bytes)
        moved = 0

        def on_moved(count: int) -> None:
            nonlocal moved
            moved += count
            on_bytes(count)

        try:
            return await self._copy_stream(found, path, on_moved)
        except Unsupported as error:
            if error.operation != "read":
                raise
        on_bytes(-moved)  # The server sends everything instead of a range.
        return await self._copy_response(found, path, on_bytes)

    # --- by the store -------------------------------------------------------------------------------------------

    def _copies_by_server(self) -> bool:
        source, target = self._source, self._target
        if isinstance(target.service, FsOptions):  # Its bytes come here anyway.
            return False
        if source.service is target.service and source.layers == target.layers:
            return target.service.capability.copy
        is_plain = _is_plain(source) and _is_plain(target)
        return is_plain and target.service.capability.copy and copies_from(target.service, source.service)

    def _is_one_store(self) -> bool:
        source, target = self._source.service, self._target.service
        return source is target or (source == target and source.info == target.info)

    async def _copy_by_server(self, found: Entry | Metadata, path: str, on_bytes: Callable[[int], object]) -> Metadata:
        connected = self._target.accessor(), self._target.runtime()
        return await copy_by_server(
            connected,
            found.path,
            path,
            source=self._source.accessor(),
            store=self._store,
            size=found.size,
            if_not_exists=not self._overwrite,
            if_match=found.etag if self._pins and self._target.capability.copy_if_match else None,
            on_bytes=on_bytes,
        )

    # --- into a file --------------------------------------------------------------------------------------------

    async def _copy_to_file(self, found: Entry | Metadata, path: str, on_bytes: Callable[[int], object]) -> Metadata:
        assert self._files is not None
        written = WriteRequest(path=path, if_not_exists=not self._overwrite)
        names, mode = names_of(path, operation="copy"), await self._source_mode(found.path)
        opener = partial(open_resumable, self._root, names, written, fsync=self._files.fsync, source_mode=mode)
        if found.size is not None and found.size <= PIECE_BYTES:
            return await self._copy_short(found, opener, on_bytes)
        request = ReadRequest(path=found.path, if_match=found.etag, first_bytes=first_bytes_of(self._source.options))
        connected = self._source.accessor(), self._source.runtime()
        return await receive(*connected, request, opener, on_bytes, keeps_time=True, is_reserved=True)

    async def _copy_short(
        self, found: Entry | Metadata, opener: Callable[..., PartialFile], on_bytes: Callable[[int], object]
    ) -> Metadata:
        """Receive an object into memory, and write its file by one job of a thread."""
        runtime, sink, given_up = self._source.runtime(), _ShortSink(), threading.Event()
        request = ReadRequest(path=found.path, if_match=found.etag)
        head = (await served(self._source.accessor(), runtime).read(request, sink)).head
        modified_ns = None if head.last_modified is None else nanoseconds_of(head.last_modified)
        opener = partial(opener, modified_ns=modified_ns, is_short=True)
        job = FileThreads.of(runtime).call_short(write_file, opener, sink.to_view(), threading.Lock(), given_up)
        await translated(WriteRequest(path=found.path), job, give_up=given_up.set)
        on_bytes(head.size)
        return metadata_of(found.path, head, head.size)

    async def _source_mode(self, path: str) -> int | None:
        """The mode of a source that is a file: its copy allows no more than that."""
        if self._source_root is None:
            return None
        file = os.path.join(self._source_root, *names_of(path))
        return (await self._source.runtime().run_blocking(os.stat, file)).st_mode

    # --- by reading and writing ---------------------------------------------------------------------------------

    async def _copy_whole(self, found: Entry | Metadata, path: str, on_bytes: Callable[[int], object]) -> Metadata:
        if self._copies_descriptions and not isinstance(found, Metadata):
            found = await self._source.stat(found.path)
        size = None if found.etag is not None else found.size
        request = ReadRequest(path=found.path, size=size, if_match=found.etag)
        sink = CollectSink(self._source.runtime().budget)
        head = ReadHead(start=0, size=0, total=0)
        if size != 0:
            source = served(self._source.accessor(), self._source.runtime())
            head = (await source.read(request, sink)).head
        if head.total != found.size:
            raise ObjectChanged(
                f"the object had {found.size} bytes when it was listed, and has {head.total}",
                expected_etag=found.etag,
                actual_etag=head.etag,
                operation="copy",
                path=found.path,
            )
        described = {"content_type": head.content_type, **self._written}
        if isinstance(found, Metadata):
            described = self._described(found)
        written = WriteRequest(path=path, if_not_exists=not self._overwrite, **described)
        metadata = await self._target.accessor().write(written, sink.to_view())
        on_bytes(head.size)
        return metadata

    async def _copy_stream(self, found: Metadata, path: str, on_bytes: Callable[[int], object]) -> Metadata:
        """Read the blocks of the object ahead, several at once, and write them in parts, several at once."""
        written = WriteRequest(path=path, if_not_exists=not self._overwrite, **self._described(found))
        opened = self._source.reader(
            found.path, policy="sequential", size=found.size, etag=found.etag, keep_behind=False
        )
        async with opened as reader:
            body = await open_body(self._target.accessor(), self._target.runtime(), written, found.size or 0)
            try:
                async with reader.stream() as chunks:
                    async for chunk in chunks:
                        await body.write(chunk)
                        on_bytes(len(chunk))
                if found.size is not None and reader.tell() != found.size:
                    raise ObjectChanged(
                        f"the object ended after {reader.tell()} of {found.size} bytes",
                        expected_etag=found.etag,
                        operation="copy",
                        path=found.path,
                    )
                return await body.close()
            except ObjectChanged as error:
                if error.operation == "copy":
                    await abort_after(error, body, path)
                    raise
                # The reader's advises what the caller of a copy cannot do.
                changed = ObjectChanged(
                    "the object was overwritten while it was copied; copied again it is copied in its new version",
                    expected_etag=error.expected_etag,
                    actual_etag=error.actual_etag,
                    operation="copy",
                    path=found.path,
                )
                try:
                    await abort_after(changed, body, path)
                    raise changed from error
                finally:
                    del changed  # Its traceback holds this frame.
            except BaseException as error:
                await abort_after(error, body, path)
                raise

    async def _copy_response(self, found: Metadata, path: str, on_bytes: Callable[[int], object]) -> Metadata:
        """Write in parts what one response brings, at the pace of the target."""
        source, target = self._source, (self._target.accessor(), self._target.runtime())
        written = WriteRequest(path=path, if_not_exists=not self._overwrite, **self._described(found))
        sink = _PieceSink()
        request = ReadRequest(path=found.path, if_match=found.etag)
        body = await open_body(*target, written, found.size or 0)
        received = served(source.accessor(), source.runtime()).read(request, sink)
        reading = asyncio.create_task(received, context=entering())
        reading.add_done_callback(lambda _: sink.changed.set())
        try:
            responses = moved = 0
            while True:
                piece = await sink.next_piece(reading)
                if sink.responses != responses:  # The object begins again, with this piece.
                    responses = sink.responses
                    await body.abort()
                    body = await open_body(*target, written, found.size or 0)
                    on_bytes(-moved)
                    moved = 0
                if piece is None:
                    return await body.close()
                await body.write(piece)
                moved += len(piece)
                on_bytes(len(piece))
        except BaseException as error:
            await abort_after(error, body, path)
            raise
        finally:
            await stopped(reading)
            del reading  # The traceback of its error holds this frame.

    def _described(self, metadata: Metadata) -> dict[str, Any]:
        """The description of an object, without what the target does not keep, and the options of the write."""
        return description_of(metadata, self._target.capability) | self._written


class _ShortSink(CollectSink):
    """Collects an object that is no longer than its listing may have said."""

    def _begun(self, head: ReadHead) -> None:
        if head.size > PIECE_BYTES:
            raise ConditionNotMatch(f"it has {head.size} bytes now")


class _PieceSink(Sink):
    """A response in pieces that another task takes, paused while several wait.

    ``responses`` counts responses that were given up because nothing proved that a further one is of the same version.
    ``changed`` is set whenever bytes have arrived.
    """

    is_paced = True

    def __init__(self) -> None:
        super().__init__()
        self.changed = asyncio.Event()
        self.responses = 0
        self._drained = asyncio.Event()
        self._pieces: deque[memoryview] = deque()
        self._taken_bytes = 0

    async def next_piece(self, reading: asyncio.Task[object]) -> memoryview | None:
        """The next piece, ``None`` at the end of the object. Raises what ``reading`` has raised."""
        while not (self._pieces and self._taken_bytes + len(self._pieces[0]) <= self.received):
            if reading.done():
                try:
                    reading.result()
                finally:
                    del reading  # The traceback of its error holds this frame.
                return None
            self.changed.clear()
            await self.changed.wait()
        piece = self._pieces.popleft()
        self._taken_bytes += len(piece)
        self._drained.set()
        return piece

    @property
    def is_full(self) -> bool:  # type: ignore[override]  # A constant for sinks that are never behind.
        """Whether as many pieces wait as may."""
        return self.received - self._taken_bytes >= PIECES_WAITING_MAX * PIECE_BYTES

    async def drained(self) -> None:
        """Wait until a piece was taken."""
        while self.is_full:
            self._drained.clear()
            await self._drained.wait()

    async def begin_again(self) -> bool:
        """Drop what has arrived: the task that takes the pieces drops what it has taken."""
        self._rewind()
        self.head = None
        self._pieces.clear()
        self._taken_bytes = 0
        self.responses += 1
        self._drained.set()
        return True

    def _allocate(self, position: int, size: int) -> memoryview:
        piece = memoryview(bytearray(min(size - position, PIECE_BYTES)))
        self._pieces.append(piece)
        return piece

    def _advanced(self) -> None:
        self.changed.set()


def _is_plain(operator: Store) -> bool:
    return all(type(layer) in _PLAIN_LAYERS for layer in operator.layers)

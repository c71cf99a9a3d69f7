"""Objects into local files: the parts of a long read, each written where it belongs when it has arrived.

The bytes go into a hidden file beside the target, which takes the target's place at the end: under no name is there a
part of an object. A large object that did not arrive whole leaves this file with a note of what it has, and the next
download of it asks for the rest alone.

A part is in memory until it is written, so a download of any size takes the memory of its requests.
The one response of a store that sends everything at once is written piece by piece. It pauses while the disk is behind.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial as bound

from aioprefetch.accessor.parallel_parts import PART_BYTES_MAX, ParallelParts
from aioprefetch.accessor.path_hints import hint_at_directory
from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.request_events import served
from aioprefetch.accessor.response_check import is_strong
from aioprefetch.credentials import hiding_frames
from aioprefetch.errors import (
    AlreadyExists,
    Error,
    InvalidPath,
    InvalidType,
    IsADirectory,
    NotFound,
    ObjectChanged,
    copy_of,
)
from aioprefetch.local_files.errors import from_os_error
from aioprefetch.local_files.identity import refuse_same_file
from aioprefetch.local_files.threads import FileThreads, settled, translated
from aioprefetch.ranges import Range, subtract
from aioprefetch.reader.options import ProgressCallback
from aioprefetch.runtime.buffers import lend_buffer
from aioprefetch.runtime.options import RuntimeOptions
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import Metadata, ReadHead, ReadRequest, StatRequest, WriteRequest
from aioprefetch.verbs.progress import reported
from aioprefetch.verbs.ranged_read import ParallelRead, first_bytes_of
from aioprefetch.verbs.resumable_file import ReceivedVersion, ResumableFile

# A smaller object is received again sooner than it is gone on with.
RESUMABLE_BYTES_MIN = 16 << 20
# The pieces of one response that may wait for the disk. Then the response is paused.
PIECES_WAITING_MAX = 2
# What gets the numbers of bytes written, and the size of the object.
Callbacks = tuple[ProgressCallback | None, ProgressCallback | None]


@hiding_frames
async def download(
    accessor: Accessor,
    runtime: Runtime,
    request: ReadRequest,
    target: str | os.PathLike[str],
    on_progress: ProgressCallback | None,
) -> Metadata:
    """Write the object of a request into a file. If it fails or is cancelled, the target is as it was."""
    path = _checked_target(target, request)
    try:
        written = WriteRequest(path=request.path)
        with reported(on_progress, "download", request.path) as reporter:
            on_size = None if reporter is None else reporter.expect
            await refuse_same_file(accessor, runtime, request.path, path, "download")
            return await receive(accessor, runtime, request, bound(_begin, path, written), reporter, on_size=on_size)
    except Error as error:
        error.operation = "download"
        error.add_context(path=request.path, target=path)
        if isinstance(error, NotFound):
            await hint_at_directory(accessor, error, request.path, f"{request.path + '/'!r} downloads what is below it")
        raise


async def receive(
    accessor: Accessor,
    runtime: Runtime,
    request: ReadRequest,
    open_file: Callable[[], ResumableFile],
    on_bytes: ProgressCallback | None,
    *,
    on_size: ProgressCallback | None = None,
    keeps_time: bool = False,
    is_reserved: bool = False,
) -> Metadata:
    """Write the object of a request into the file that ``open_file`` begins on a thread.

    It goes on where an earlier run has stopped, if the object is of the same version still. ``on_size`` gets the size
    of the object once it is known, ``on_bytes`` the numbers of bytes written; neither raises. ``keeps_time`` gives the
    file the object's time. With ``is_reserved`` the caller has reserved the memory of the first response
    (``first_response_bytes``).
    """
    accessor, callbacks = served(accessor, runtime), (on_bytes, on_size)
    threads = FileThreads.of(runtime)
    written = WriteRequest(path=request.path)
    file = await translated(written, threads.call(open_file), ResumableFile.discard)
    try:
        begin = bound(Download, accessor, runtime, request, file, callbacks, is_reserved=is_reserved)
        reading = await _received(begin, accessor, request, file, threads)
        head = reading.head
        assert head is not None
        if keeps_time and head.last_modified is not None:
            file.modified_ns = nanoseconds_of(head.last_modified)
        await translated(written, threads.call(file.place, threading.Lock()), give_up=file.given_up.set)
    except BaseException as error:
        if isinstance(error, ObjectChanged | AlreadyExists):  # What is there is of no use to a next run.
            file.drop_at_end()
        await threads.clean_up(file.discard)
        raise
    return metadata_of(request.path, head, reading.size)


def metadata_of(path: str, head: ReadHead, size: int) -> Metadata:
    """The metadata of an object of ``size`` bytes, by the head of a response."""
    return Metadata(
        path=path,
        size=size,
        etag=head.etag,
        version=head.version,
        last_modified=head.last_modified,
        content_type=head.content_type,
    )


async def _received(
    begin: Callable[..., Download], accessor: Accessor, request: ReadRequest, file: ResumableFile, threads: FileThreads
) -> Download:
    """The read that has filled the file: of what is missing, or of everything."""
    reading = begin()
    begun = file.begun
    if begun is None:
        await reading.run()
        return reading
    reported = 0
    if await _is_current(accessor, request, begun, file.done):
        try:
            await reading.go_on(begun, file.done)
            return reading
        except ObjectChanged:
            reported = reading.reported
    await settled(threads.call(file.forget))
    reading = begin(repeated_bytes=reported)
    await reading.run()
    return reading


async def _is_current(accessor: Accessor, request: ReadRequest, begun: ReceivedVersion, done: Sequence[Range]) -> bool:
    """Whether what is in the file may be of the version that is wanted. The requests for the rest will tell."""
    if (begun.store, begun.path) != (_store_of(accessor), request.path):
        return False
    head = begun.head
    if request.version not in (None, head.version):
        return False
    if request.if_match is not None or (subtract((0, head.size), done) and is_strong(head.etag, request.version)):
        return request.if_match in (None, head.etag)
    metadata = await accessor.stat(StatRequest(path=request.path, version=request.version))  # No request would tell.
    return (metadata.etag, metadata.version, metadata.size) == (head.etag, head.version, head.size)


def _store_of(accessor: Accessor) -> tuple[str, ...]:
    return accessor.info.namespace[:-1]  # Without the principal: all callers that may read it get the same bytes.


def nanoseconds_of(time: datetime) -> int:
    """The time of a file in nanoseconds, without the error of a float."""
    return (time - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1) * 1000


def _checked_target(target: object, request: ReadRequest) -> str:
    path = os.fspath(target) if isinstance(target, str | os.PathLike) else None
    if not isinstance(path, str):
        raise InvalidType(
            f"the target must be the path of a local file, not {target!r}", operation="download", path=request.path
        )
    if not path or path.endswith("/"):
        raise IsADirectory(f"the target must name a file, not {path!r}", operation="download", path=request.path)
    try:
        is_possible = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        is_possible = False
    if not is_possible:
        raise InvalidPath(
            f"the file system has no name like the target {path!r}: a character cannot be encoded, or is NUL",
            operation="download",
            path=request.path,
        )
    return path


def _begin(target: str, request: WriteRequest) -> ResumableFile:
    """On a thread: the hidden file beside the target."""
    directory, name = os.path.split(os.path.abspath(target))
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise NotFound(f"the directory of the target, {directory!r}, does not exist") from error
    return ResumableFile(descriptor, name, request, fsync=False).begin()


def first_response_bytes(options: RuntimeOptions) -> int:
    """The memory that the first response of a download takes: of a store that sends everything, all of its pieces."""
    return max(first_bytes_of(options), _piece_bytes(options) * (PIECES_WAITING_MAX + 1))


def _piece_bytes(options: RuntimeOptions) -> int:
    """One piece is filled while the others wait: together they fit into the budget."""
    return max(1, min(PART_BYTES_MAX, options.memory_bytes // (PIECES_WAITING_MAX + 1)))


class Download(ParallelRead):
    """A read of a whole object into a file. ``size`` is the object's.

    Of a large object the file notes which parts it has, where the version proves that they belong together: they stay
    if the read fails. ``repeated_bytes`` of it were reported by a read before this one.
    """

    is_paced = True

    def __init__(
        self,
        accessor: Accessor,
        runtime: Runtime,
        request: ReadRequest,
        file: ResumableFile,
        callbacks: Callbacks,
        *,
        repeated_bytes: int = 0,
        is_reserved: bool = False,
    ) -> None:
        ParallelRead.__init__(self, accessor, runtime, request)
        self.is_placed = True
        self._file = file
        self._on_bytes, self._on_size = callbacks
        self._threads = FileThreads.of(runtime)
        self._position = 0
        self.reported = repeated_bytes
        self._repeated_bytes = repeated_bytes  # To be written that were reported before.
        self._writing: set[asyncio.Future[int]] = set()
        self._drained: asyncio.Future[None] | None = None
        self._emptied: asyncio.Future[None] | None = None
        self._failure: BaseException | None = None
        self._piece_bytes = _piece_bytes(runtime.options)
        self._is_reserved = is_reserved

    @property
    def size(self) -> int:
        """The bytes of the object."""
        return self._wanted[1] - self._wanted[0]

    async def run(self) -> None:
        """Read and write everything. No thread writes afterwards, however it ends."""
        try:
            await ParallelRead.run(self)
            self._write_pieces()
        finally:
            await self._all_written()
        if self._failure is not None:
            raise copy_of(self._failure)
        if self._repeated_bytes:  # More was reported than the object has now.
            self._tell(-self._repeated_bytes)

    async def go_on(self, begun: ReceivedVersion, done: Sequence[Range]) -> None:
        """Read and write what is missing of the version that an earlier run has received ``done`` of.

        ``ObjectChanged`` if the store has another version now.
        """
        head, size = begun.head, begun.head.size
        self.head, self._wanted = head, (0, size)
        self._pin(head)
        if is_strong(head.etag, None):  # An older version may be there still, and the ETag tells whether it is wanted.
            self._pinned = replace(self._pinned, version=self._request.version)
        if self._on_size is not None:
            self._on_size(size)
        missing = subtract((0, size), done)
        self._report(size - sum(end - start for start, end in missing))
        await ParallelParts(self._runtime, missing, self).run()

    def _begun(self, head: ReadHead) -> None:
        ParallelRead._begun(self, head)
        if self._on_size is not None:
            self._on_size(self.size)

    async def begin_again(self) -> bool:
        """Begin again with an empty file, when no thread writes a piece any more."""
        await self._all_written()
        await settled(self._threads.call(self._empty))
        self._repeated_bytes += self._position
        self._position = 0
        return await ParallelRead.begin_again(self)

    @property
    def is_full(self) -> bool:  # type: ignore[override]  # A constant for sinks that are never behind.
        """Whether as many pieces wait for the disk as may."""
        return len(self._writing) >= PIECES_WAITING_MAX

    async def drained(self) -> None:
        """Wait until a piece was written. Raises nothing: a failure is raised by the next ``writable``."""
        while self.is_full:
            if self._drained is None:
                self._drained = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._drained,))

    def _open(self, size: int) -> memoryview:
        head = self.head
        if head is not None and size >= RESUMABLE_BYTES_MIN and self._is_proven(head):
            whole = replace(head, start=0, size=size, total=size)
            self._file.expect(ReceivedVersion(store=_store_of(self._accessor), path=self._request.path, head=whole))
        return memoryview(b"")  # Each part has memory of its own.

    def _open_part(self, start: int, end: int) -> memoryview:
        return lend_buffer(end - start, self._owner)

    async def _filled(self, start: int, part: memoryview) -> None:
        self._report(await settled(self._threads.call(self._write, start, part)))

    def _allocate(self, position: int, size: int) -> memoryview:
        """Memory for the next piece of the first response; the piece before it is complete."""
        self._write_pieces()
        piece = lend_buffer(min(size - position, self._piece_bytes), self._owner)
        self._pieces.append(piece)
        return piece

    def _advanced(self) -> None:
        if self.complete:  # Others may still arrive.
            self._write_pieces()

    def _write_pieces(self) -> None:
        """Let threads write what has arrived of the first response; the budget counts it until then."""
        if self._failure is not None:
            raise copy_of(self._failure)
        budget = self._runtime.budget
        for piece in self._pieces:
            if not self._is_reserved:
                budget.room(len(piece), "demand")
                budget.charge(len(piece))
            writing = self._threads.call(self._write, self._position, piece)
            self._writing.add(writing)
            writing.add_done_callback(bound(self._written, len(piece)))
            self._position += len(piece)
        self._pieces.clear()

    async def _all_written(self) -> None:
        """Wait until no thread writes a piece, and each is counted or its failure known; also if cancelled meanwhile.

        ``gather`` would not do: a thread's future is done a turn of the loop before ``_written`` is called, and from
        Python 3.12 on futures that are done are gathered without a turn.
        """
        if self._writing:
            self._emptied = asyncio.get_running_loop().create_future()
            await settled(self._emptied)

    def _written(self, size: int, writing: asyncio.Future[int]) -> None:
        self._writing.discard(writing)
        if not self._is_reserved:
            self._runtime.budget.release(size)
        failure = asyncio.CancelledError() if writing.cancelled() else writing.exception()
        if failure is None:
            self._report(writing.result())
        elif self._failure is None:
            self._failure = copy_of(failure)
        if self._drained is not None:
            self._drained.set_result(None)
            self._drained = None
        if self._emptied is not None and not self._writing:
            self._emptied.set_result(None)
            self._emptied = None

    def _write(self, start: int, part: memoryview) -> int:
        """For a thread: write a part of the object where it belongs."""
        count = 0
        try:
            while count < len(part):
                count += os.pwrite(self._file.descriptor, part[count:], start + count)
            self._file.note(start, start + count)
        except OSError as error:
            self._file.drop_at_end()  # The disk may be full.
            raise from_os_error(error, operation="download", path=self._request.path) from error
        return count

    def _empty(self) -> None:
        """For a thread: remove what was written."""
        try:
            os.ftruncate(self._file.descriptor, 0)
        except OSError as error:
            raise from_os_error(error, operation="download", path=self._request.path) from error

    def _report(self, count: int) -> None:
        repeated = min(count, self._repeated_bytes)
        self._repeated_bytes -= repeated
        self._tell(count - repeated)

    def _tell(self, count: int) -> None:
        self.reported += count
        if self._on_bytes is not None and count:
            self._on_bytes(count)

"""Objects into local files: the parts of a long read, each written where it belongs when it has arrived.

The bytes go into a hidden file beside the target, which takes the target's place at the end: under no name is there a
part of an object. A part is in memory until it is written, so a download of any size takes the memory of its requests.
The one response of a store that sends everything at once is written piece by piece. It pauses while the disk is behind.
"""

from __future__ import annotations

import asyncio
import os
import threading
from functools import partial as bound

from aioprefetch.accessor.parallel_parts import PART_BYTES_MAX
from aioprefetch.accessor.protocols import Accessor
from aioprefetch.errors import Error, InvalidPath, InvalidType, IsADirectory, NotFound
from aioprefetch.operator.parallel_read import ParallelRead
from aioprefetch.reader.options import ProgressCallback
from aioprefetch.runtime.buffers import lend_buffer
from aioprefetch.runtime.events import logger
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.fs.errors import from_os_error
from aioprefetch.services.fs.threads import FileThreads, settled, translated
from aioprefetch.services.fs.writer import PartialFile
from aioprefetch.values import Metadata, ReadRequest, WriteRequest

# The pieces of one response that may wait for the disk. Then the response is paused.
PIECES_WAITING_MAX = 2


async def download(
    accessor: Accessor,
    runtime: Runtime,
    request: ReadRequest,
    target: str | os.PathLike[str],
    on_progress: ProgressCallback | None,
) -> Metadata:
    """Write the object of a request into a file. If it fails or is cancelled, the target is as it was."""
    path = _checked_target(target, request)
    if not (on_progress is None or callable(on_progress)):
        raise InvalidType(f"on_progress must be callable, not {on_progress!r}", operation="download", path=request.path)
    threads = FileThreads.of(runtime)
    written = WriteRequest(path=request.path)
    try:
        job = threads.call(_begin, path, written)
        partial = await translated(written, job, PartialFile.discard)
        try:
            reading = Download(accessor, runtime, request, partial.descriptor, on_progress)
            await reading.run()
            await translated(written, threads.call(partial.place, threading.Lock()), give_up=partial.give_up)
        except BaseException:
            await threads.clean_up(partial.discard)
            raise
    except Error as error:
        error.operation = "download"
        error.add_context(path=request.path, target=path)
        raise
    head = reading.head
    assert head is not None
    return Metadata(
        path=request.path,
        size=reading.size,
        etag=head.etag,
        version=head.version,
        last_modified=head.last_modified,
        content_type=head.content_type,
    )


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


def _begin(target: str, request: WriteRequest) -> PartialFile:
    """On a thread: the hidden file beside the target."""
    directory, name = os.path.split(os.path.abspath(target))
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise NotFound(f"the directory of the target, {directory!r}, does not exist") from error
    partial = PartialFile(descriptor, name, request, fsync=False, keeps_mode=True)
    try:
        partial.refuse_by_conditions()
        partial.create()
    except BaseException:
        partial.discard()
        raise
    return partial


class Download(ParallelRead):
    """A read of a whole object into the file of ``descriptor``. ``size`` is that of the object."""

    __slots__ = (
        "_descriptor",
        "_drained",
        "_failure",
        "_on_progress",
        "_piece_bytes",
        "_position",
        "_repeated_bytes",
        "_threads",
        "_writing",
    )
    is_paced = True

    def __init__(
        self,
        accessor: Accessor,
        runtime: Runtime,
        request: ReadRequest,
        descriptor: int,
        on_progress: ProgressCallback | None,
    ) -> None:
        ParallelRead.__init__(self, accessor, runtime, request)
        self.is_placed = True
        self._descriptor = descriptor
        self._on_progress = on_progress
        self._threads = FileThreads.of(runtime)
        self._position = 0
        self._repeated_bytes = 0  # To be written that were reported before.
        self._writing: set[asyncio.Future[int]] = set()
        self._drained: asyncio.Future[None] | None = None
        self._failure: BaseException | None = None
        # One piece is filled while the others wait: together they fit into the budget.
        self._piece_bytes = max(1, min(PART_BYTES_MAX, runtime.options.memory_bytes // (PIECES_WAITING_MAX + 1)))

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
            if self._writing:
                await settled(asyncio.gather(*self._writing, return_exceptions=True))
        if self._failure is not None:
            raise self._failure
        if self._repeated_bytes:  # More was reported than the object has now.
            self._tell(-self._repeated_bytes)

    async def begin_again(self) -> bool:
        """Begin again with an empty file, when no thread writes a piece any more."""
        if self._writing:
            await settled(asyncio.gather(*self._writing, return_exceptions=True))
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

    def _write_pieces(self) -> None:
        """Let threads write what has arrived of the first response; the budget counts it until then."""
        if self._failure is not None:
            raise self._failure
        budget = self._runtime.budget
        for piece in self._pieces:
            budget.room(len(piece), "demand")
            budget.charge(len(piece))
            writing = self._threads.call(self._write, self._position, piece)
            self._writing.add(writing)
            writing.add_done_callback(bound(self._written, len(piece)))
            self._position += len(piece)
        self._pieces.clear()

    def _written(self, size: int, writing: asyncio.Future[int]) -> None:
        self._writing.discard(writing)
        self._runtime.budget.release(size)
        failure = asyncio.CancelledError() if writing.cancelled() else writing.exception()
        if failure is None:
            self._report(writing.result())
        elif self._failure is None:
            self._failure = failure
        if self._drained is not None:
            self._drained.set_result(None)
            self._drained = None

    def _write(self, start: int, part: memoryview) -> int:
        """For a thread: write a part of the object where it belongs."""
        count = 0
        try:
            while count < len(part):
                count += os.pwrite(self._descriptor, part[count:], start + count)
        except OSError as error:
            raise from_os_error(error, operation="download", path=self._request.path) from error
        return count

    def _empty(self) -> None:
        """For a thread: remove what was written."""
        try:
            os.ftruncate(self._descriptor, 0)
        except OSError as error:
            raise from_os_error(error, operation="download", path=self._request.path) from error

    def _report(self, count: int) -> None:
        repeated = min(count, self._repeated_bytes)
        self._repeated_bytes -= repeated
        self._tell(count - repeated)

    def _tell(self, count: int) -> None:
        try:
            if self._on_progress is not None and count:
                self._on_progress(count)
        except Exception:
            logger.exception("on_progress failed for the download of %r", self._request.path)

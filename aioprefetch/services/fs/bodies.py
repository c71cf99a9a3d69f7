"""The two streams of the fs service: a file being read, and one being written."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import aiofiles

from aioprefetch.accessor.sink import Sink
from aioprefetch.errors import Closed, Error
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.fs.failures import from_os_error
from aioprefetch.services.fs.opened import OpenedFile, metadata_of
from aioprefetch.services.fs.partial import PartialFile
from aioprefetch.services.fs.threads import FileThreads, settled
from aioprefetch.values import Metadata, ReadHead, ReadRequest, Request, WriteRequest

T = TypeVar("T")

# One thread job moves at most this much: a cancelled caller waits no longer than for that.
PIECE_BYTES = 4 << 20


async def translated(
    request: Request,
    job: Awaitable[T],
    dispose: Callable[[T], object] | None = None,
    *,
    give_up: Callable[[], object] | None = None,
) -> T:
    """Await a thread's job to its end (see ``settled``) and raise what goes wrong as an error of ours."""
    try:
        return await settled(job, dispose, give_up=give_up)
    except Error as error:
        error.add_context(operation=request.operation, path=request.path)
        raise
    except OSError as error:
        raise from_os_error(error, operation=request.operation, path=request.path) from error


class FileBody:
    """The bytes of one request out of an open file, which it owns and closes."""

    def __init__(self, runtime: Runtime, request: ReadRequest, file: OpenedFile, head: ReadHead) -> None:
        self.head = head
        self._runtime = runtime
        self._request = request
        self._file = file
        self._position = head.start

    async def read_chunk(self) -> bytearray:
        count = min(PIECE_BYTES, self.head.end - self._position)
        if count == 0:
            return bytearray()
        chunk = await self._in_thread(self._file.read, self._position, count)
        self._advance(count)
        return chunk

    async def fill(self, sink: Sink) -> None:
        """Read straight into the sink's memory."""
        while not sink.complete:
            window = sink.writable()[: min(PIECE_BYTES, self.head.end - self._position)]
            await self._in_thread(self._file.read_into, window, self._position)
            self._advance(len(window))
            sink.advance(len(window))

    async def _in_thread(self, call: Callable[..., T], *arguments: object) -> T:
        try:
            return await translated(self._request, self._runtime.run_blocking(call, *arguments))
        except Error as error:
            error.head, error.received = self.head, self._position - self.head.start
            raise

    def _advance(self, count: int) -> None:
        self._position += count
        self._runtime.counters["stream_read_total_bytes"] += count

    async def aclose(self) -> None:
        self._position = self.head.end
        self._file.close()


class FileWriteBody:
    """A file being written piece by piece, in a temporary file beside its target."""

    def __init__(
        self, runtime: Runtime, request: WriteRequest, partial: PartialFile, lock: threading.Lock, file: Any
    ) -> None:
        self._runtime = runtime
        self._threads = FileThreads.of(runtime)
        self._request = request
        self._partial: PartialFile | None = partial
        self._lock = lock
        self._file = file

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        self._check_open()
        view = memoryview(chunk)
        data = view.cast("B") if view.c_contiguous else memoryview(view.tobytes())
        while data:
            # A raw file may take less than it is given.
            count = await translated(self._request, self._file.write(data[:PIECE_BYTES]))
            data = data[count:]
            self._runtime.counters["stream_write_bytes"] += count

    async def close(self) -> Metadata:
        """Put the file in its place.

        If cancelled before the last rename nothing appears; after it the file is there, whole.
        """
        partial = self._check_open()
        job = self._threads.call(partial.place, self._lock)
        status = await translated(self._request, job, give_up=partial.give_up)
        self._partial = None
        return metadata_of(self._request.path, status)

    async def abort(self) -> None:
        partial, self._partial = self._partial, None
        if partial is not None:
            await settled(self._threads.call(partial.discard))

    def _check_open(self) -> PartialFile:
        if self._partial is None:
            raise Closed("the write was closed or aborted already", operation="write", path=self._request.path)
        return self._partial


class _Opening:
    """Makes a temporary file in a thread, and knows of it even if nobody gets the result.

    A loop that ends cancels whatever waits for the thread, while the thread goes on.
    """

    def __init__(self, open_partial: Callable[[], PartialFile]) -> None:
        self._open_partial = open_partial
        self._lock = threading.Lock()
        self._made: PartialFile | None = None
        self._given_up = False

    def run(self) -> PartialFile:
        """For the thread. A file that is wanted no more when it is made is removed at once."""
        made = self._open_partial()
        with self._lock:
            if not self._given_up:
                self._made = made
                return made
        made.discard()
        raise InterruptedError(errno.EINTR, os.strerror(errno.EINTR))

    def give_up(self) -> PartialFile | None:
        """The file, if it was made by now: the caller's to discard."""
        with self._lock:
            self._given_up = True
            return self._made


async def open_write_body(
    runtime: Runtime, request: WriteRequest, open_partial: Callable[[], PartialFile], lock: threading.Lock
) -> FileWriteBody:
    """Make the temporary file and wrap it. A cancelled call leaves none behind."""
    threads = FileThreads.of(runtime)
    opening = _Opening(open_partial)

    async def opened(partial: PartialFile) -> Any:
        # Made in here: a job that is cancelled before it begins has made nothing that would have to be awaited. The
        # descriptor stays ours: it must be closed even where aiofiles was cancelled.
        return await aiofiles.open(partial.descriptor, "wb", buffering=0, closefd=False, executor=threads.executor)

    try:
        partial = await translated(request, threads.call(opening.run))
        file = await settled(opened(partial))
    except BaseException:
        made = opening.give_up()
        if made is not None:
            await settled(threads.call(made.discard))
        raise
    return FileWriteBody(runtime, request, partial, lock, file)

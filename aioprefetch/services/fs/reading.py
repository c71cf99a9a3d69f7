"""The reads of files: on the event loop what the kernel has in memory, in a thread what the disk has to bring.

A read on the loop is bounded: at most ``TURN_BYTES`` at once, and after as many of them the other tasks get a turn,
since a task that reads in a loop would otherwise never wait. It delivers all of its bytes or none.

A read that a thread has to do is one job where it is small: the job opens, checks and reads. Large ones are read
straight into the memory of the sink, in jobs that end after ``JOB_SECONDS``, so that progress is seen, and at the next
piece when the caller is cancelled. From two parts on several threads read side by side.

A reader's session keeps its descriptor. Each later read that is pinned to that version uses it, with a look at the file
that would show that it was renamed, replaced or changed; then the path is walked again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from weakref import WeakSet

from aioprefetch.accessor.response_check import check_range
from aioprefetch.accessor.sink import Sink
from aioprefetch.errors import Closed, Error
from aioprefetch.local_files.files import ConfinedRoot, OpenedFile, open_cached, open_file
from aioprefetch.local_files.threads import translated
from aioprefetch.runtime.page_cache import PageCache
from aioprefetch.runtime.runtime import TURN_BYTES, Runtime
from aioprefetch.values import ReadHead, ReadReply, ReadRequest

# A job that opens a file reads as much in memory of its own: copying it costs less than a second job.
SMALL_BYTES = 256 << 10
# One job reads no longer than this, so that progress is seen, and no more than this.
JOB_SECONDS = 0.02
JOB_BYTES = 64 << 20
# Long bodies are read in parts by as many threads at once.
PART_BYTES = 8 << 20
SIDE_BY_SIDE = min(4, os.cpu_count() or 1)
# Sessions keep at most as many descriptors together. The reads of further ones open the file each time.
KEPT_MAX = 128


class FileReads:
    """The reads of one live service. ``cache`` is ``None`` where everything is left to threads.

    ``names_of`` gives the names on the path of the file of a request, and raises the errors of a path that has none.

    A job of a thread moves at most ``job_bytes``, and so does a read on the loop; ``side_by_side`` jobs at once read a
    long body.
    """

    def __init__(
        self,
        root: ConfinedRoot,
        runtime: Runtime,
        cache: PageCache | None,
        names_of: Callable[[ReadRequest], tuple[str, ...]],
        *,
        job_bytes: int = JOB_BYTES,
        side_by_side: int = SIDE_BY_SIDE,
    ) -> None:
        self._root = root
        self._runtime = runtime
        self._cache = cache
        self._names_of = names_of
        self._job_bytes = job_bytes
        self._side_by_side = side_by_side
        self._part_bytes = min(PART_BYTES, job_bytes)
        self._loop_bytes = min(TURN_BYTES, job_bytes)
        # The kernel copies into it: fresh memory would cost more than the copy out of it.
        self._room = memoryview(bytearray(self._loop_bytes))
        # Whether file systems, by device, tell what they have in memory: learned from the first file that is opened.
        self._answers: dict[int, bool] = {}
        self._opens_on_loop = False
        self._kept: WeakSet[OpenedFile] | None = None

    async def read(self, request: ReadRequest, sink: Sink) -> ReadReply:
        """Read a file into a sink, as ``Accessor.read`` does."""
        runtime = self._runtime
        if runtime.closed:
            raise Closed("the operator is closed", operation="read", path=request.path)
        names = self._names_of(request)
        turn = runtime.turn
        if turn.left_bytes <= 0:
            await turn.end()
        file = self._find(request, names)
        taken = None if file is None else self._take(request, file)
        if file is not None and taken is not None:
            head, cached = taken
            turn.spend(head.size)
            try:
                if request.session is not None:
                    self._keep(request, file)
                sink.begin(head, path=request.path)
                sink.feed(cached)
            finally:
                self._let_go(request, file)
            return ReadReply(head=head, received=head.size)
        data: bytearray | None = None
        if file is None or (self._is_kept(request, file) and not file.is_current()):
            file, data = await self._opened(request, names, SMALL_BYTES)
        try:
            with file.used():  # The session may keep another one meanwhile, or be closed with its reader.
                head = self._head(request, file)
                self._keep(request, file)
                sink.begin(head, path=request.path)
                await self._fill(file, request, sink, head, data)
        finally:
            self._let_go(request, file)
        return ReadReply(head=head, received=head.size)

    # --- opening ------------------------------------------------------------------------------------------------

    async def opened(self, request: ReadRequest) -> tuple[OpenedFile, ReadHead]:
        """The file of a request, and the head of the response. The caller closes the file."""
        names = self._names_of(request)
        file, _ = await self._opened(request, names, 0)
        try:
            return file, self._head(request, file)
        except BaseException:
            file.close()
            raise

    def _find(self, request: ReadRequest, names: tuple[str, ...]) -> OpenedFile | None:
        """The file of a request if it can be had without waiting: it is kept, or its path is in memory.

        A kept file may have been replaced: ``_take`` gives no bytes of it then.
        """
        cache = self._cache
        if cache is None:
            return None
        kept = self._kept_for(request)
        if kept is not None:
            return kept if self._is_answered(kept) else None
        found = open_cached(cache, names) if self._opens_on_loop else None
        if found is None or self._is_answered(found):
            return found
        found.close()
        self._opens_on_loop = False  # Another file system was mounted there.
        return None

    async def _opened(
        self, request: ReadRequest, names: tuple[str, ...], small_bytes: int
    ) -> tuple[OpenedFile, bytearray | None]:
        """The file of a request, opened in a thread, and its bytes if they are few. The caller closes the file."""
        job = partial(self._open, request, names, min(small_bytes, self._job_bytes))
        kept = self._kept_for(request)
        opened = await translated(request, self._runtime.run_blocking(partial(job, kept)), _close_first)
        if opened[0].closed:  # It was kept, and was closed since the thread looked at it.
            opened = await translated(request, self._runtime.run_blocking(partial(job, None)), _close_first)
        return opened

    def _open(
        self, request: ReadRequest, names: tuple[str, ...], small_bytes: int, kept: OpenedFile | None
    ) -> tuple[OpenedFile, bytearray | None]:
        """Open a file, unless the kept one is current, and read it if its response is small. Runs in a thread."""
        if kept is not None and kept.hold():  # The session may close it on the loop meanwhile.
            try:
                if kept.is_current():
                    return kept, self._read_small(request, kept, small_bytes)
            finally:
                kept.release()
        file = open_file(self._root, names)
        try:
            return file, self._read_small(request, file, small_bytes)
        except BaseException:
            file.close()
            raise

    def _read_small(self, request: ReadRequest, file: OpenedFile, small_bytes: int) -> bytearray | None:
        """The bytes of a response of up to ``small_bytes``; ``None`` for a larger one, and for an error."""
        self._learn(file)
        try:
            head = self._head(request, file)
        except Error:
            return None  # Raised again by the caller.
        return file.read(head.start, head.size) if 0 < head.size <= small_bytes else None

    def _learn(self, file: OpenedFile) -> None:
        """Find out once for each device whether its files may be read on the loop. Runs in a thread."""
        device, cache = file.status.st_dev, self._cache
        if cache is None or device in self._answers or not file.status.st_size:
            return
        self._answers[device] = answers = file.answers_from_memory(cache)
        if answers and self._root.device() == device:
            self._opens_on_loop = cache.can_open

    def _is_answered(self, file: OpenedFile) -> bool:
        return self._answers.get(file.status.st_dev, False)

    def _head(self, request: ReadRequest, file: OpenedFile) -> ReadHead:
        status = file.status
        return check_range(request, total=status.st_size, etag=file.etag, last_modified=file.modified)

    # --- the descriptor of a reader -----------------------------------------------------------------------------

    def _kept_for(self, request: ReadRequest) -> OpenedFile | None:
        """The file that the session of a request keeps, if it is of the version that the request is pinned to."""
        session = request.session
        kept = None if session is None else session.kept
        return kept if isinstance(kept, OpenedFile) and request.if_match == kept.etag and not kept.closed else None

    def _keep(self, request: ReadRequest, file: OpenedFile) -> None:
        """Keep a file for the next reads of its session, unless sessions keep many already."""
        session = request.session
        if session is None or session.kept is file:
            return
        if self._kept is None:
            self._kept = WeakSet()
            self._runtime.supervisor.on_close(self._close_kept)
        if len(self._kept) < KEPT_MAX and session.keep(file):
            self._kept.add(file)

    @staticmethod
    def _is_kept(request: ReadRequest, file: OpenedFile) -> bool:
        """Whether the session of a request keeps this file."""
        session = request.session
        return session is not None and session.kept is file

    def _let_go(self, request: ReadRequest, file: OpenedFile) -> None:
        """Close a file, unless the session of its request keeps it."""
        if not self._is_kept(request, file):
            file.close()

    async def _close_kept(self) -> None:
        for file in tuple(self._kept or ()):
            file.close()

    # --- reading ------------------------------------------------------------------------------------------------

    async def _fill(
        self, file: OpenedFile, request: ReadRequest, sink: Sink, head: ReadHead, data: bytearray | None
    ) -> None:
        """Deliver the body: the bytes that were read already, or from the file straight into the sink's memory."""
        position = head.start
        try:
            if data is not None:
                sink.feed(data)
                return
            while not sink.complete:
                if sink.is_full:
                    await sink.drained()
                window = sink.writable()[: head.end - position]
                if len(window) >= 2 * self._part_bytes and self._side_by_side > 1:
                    count = await self._read_side_by_side(file, request, window, position)
                else:
                    count = await self._read_in_thread(file, request, window[: self._job_bytes], position)
                position += count
                sink.advance(count)
        except Error as error:
            error.head, error.received = head, position - head.start
            raise

    def _take(self, request: ReadRequest, file: OpenedFile) -> tuple[ReadHead, bytes] | None:
        """The head and the bytes of a response if they are few, all in memory, and of the file as it is now."""
        cache = self._cache
        if cache is None or not self._is_answered(file):
            return None
        try:
            head = self._head(request, file)
        except Error:
            return None  # Raised again when it is clear that the file is the one of this path.
        size = head.size
        if size > self._loop_bytes:
            return None
        room = self._room[:size]
        try:
            is_there = file.read_cached(cache, room, head.start) == size if size else file.is_current()
        except OSError:
            self._answers[file.status.st_dev] = False
            return None
        return (head, bytes(room)) if is_there else None

    async def _read_in_thread(self, file: OpenedFile, request: ReadRequest, window: memoryview, position: int) -> int:
        """Read the beginning of ``window`` in one job; returns the number of bytes."""
        stop = _Stop(JOB_SECONDS)
        # Released here: a thread drops its job a moment after its end, and a view that it still holds would make
        # ``io.BytesIO.getvalue`` copy the whole result.
        with window:
            job = partial(file.read_into, window, position, until=stop)
            return await translated(request, self._runtime.run_blocking(job), give_up=stop.set)

    async def _read_side_by_side(
        self, file: OpenedFile, request: ReadRequest, window: memoryview, position: int
    ) -> int:
        """Read the first parts of ``window``, each in a thread, since new memory costs more than the copy into it."""
        stop, part_bytes = _Stop(float("inf")), self._part_bytes
        count = min(self._side_by_side, len(window) // part_bytes) * part_bytes
        with contextlib.ExitStack() as views:
            jobs = []
            for start in range(0, count, part_bytes):
                part = views.enter_context(window[start : start + part_bytes])
                job = partial(file.read_into, part, position + start, until=stop)
                jobs.append(self._runtime.run_blocking(job))
            await translated(request, _all(jobs), give_up=stop.set)
        window.release()
        return count


class _Stop:
    """Whether a job is to end at its next piece: its time is over, or its caller was cancelled."""

    def __init__(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds

    def __call__(self) -> bool:
        return time.monotonic() >= self._at

    def set(self) -> None:
        """End at the next piece."""
        self._at = 0.0


async def _all(jobs: Sequence[Awaitable[object]]) -> None:
    """Wait for all jobs, and raise the first failure only then: their threads use memory of the caller."""
    results = await asyncio.gather(*jobs, return_exceptions=True)
    failure = next((result for result in results if isinstance(result, BaseException)), None)
    try:
        if failure is not None:
            raise failure
    finally:
        del jobs, results, failure  # The tracebacks of their errors hold this frame.


def _close_first(opened: tuple[OpenedFile, object]) -> None:
    opened[0].close()

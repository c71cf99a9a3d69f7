"""The decode loop: batches of a given number of rows, which have nothing to do with pages.

After the document's ``BatchDecodeStream``. A pump drains rows as soon as all their pages have arrived, and decodes a
few batches ahead of the consumer, on threads of the runtime if that pays. It stops at ``readahead`` batches: then pages
stay where they are, the queue runs out of budget, and so a slow consumer stops the reads. Pages go back to the budget
when the consumer comes back for the batch after the last that needs them.

The parts of a scan may come in any order: then several are decoded at once, each by a loop of its own, so that a slow
response holds back the batches of its own part alone. The rows of one part stay in order.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from aioprefetch.errors import Closed, UntrustedMetadata, copy_of
from aioprefetch.runtime.callers import entering
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.supervisor import Work
from aioprefetch.scheduler.pages import DecodeTask, PreparedScan, ReadService, RootDecoder, ScanLine, ScanPart
from aioprefetch.scheduler.scheduling_loop import ScheduledPages, each_part, resolve, schedule_parts

if TYPE_CHECKING:
    import pyarrow as pa

# A batch has about this number of bytes at most, and this share (1 / n) of an operator's memory, unless the caller
# names another: where rows are wide, the usual number of them would be larger than all that is read ahead.
BATCH_BYTES_MAX = 64 << 20
BATCH_SHARE = 16

# Of small batches about this much is decoded at once, as far as it has arrived, and the batches are slices of it: to
# decode a hundred rows costs as much as ten thousand.
RUN_ROWS = 16_384
RUN_BYTES = 4 << 20

# How many batches there may be at once: the consumer's, and the batches decoded ahead of it.
READAHEAD_BATCHES = 4

# At most this many batches are decoded at once: the memory of decoders comes on top of all other memory.
DECODES_MAX = min(4, os.cpu_count() or 1)

# After a request has ended, the free task of an indirect read takes a few turns of the loop to submit the next one.
_TURNS = 3

# If the rows of a batch have not all arrived in this time, the arrived rows are delivered as a shorter batch: a read
# that hangs holds back no row before its own.
SHORT_BATCH_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """How a scan cuts its rows: at most ``rows`` rows and about ``bytes`` bytes of Arrow memory a batch.

    Batches of fewer rows than ``together`` are decoded in runs of about that many, which the scan cuts. ``bytes``
    is ``None`` for as many as the memory of the operator allows. After ``limit`` rows the scan is over.
    """

    rows: int
    bytes: int | None = None
    readahead: int = READAHEAD_BATCHES
    limit: int | None = None
    together: int = 0


@dataclass(slots=True)
class _BatchDecoding:
    task: DecodeTask
    batch: asyncio.Future[pa.RecordBatch | None]


class DecodeLoop:
    """Runs both loops of a scan and returns its batches. Bound to the runtime's loop; one consumer at a time."""

    def __init__(self, runtime: Runtime, scan: PreparedScan, options: BatchOptions, *, path: str) -> None:
        self._runtime = runtime
        self._scan = scan
        self._options = options
        usual = min(BATCH_BYTES_MAX, max(1, runtime.options.memory_bytes // BATCH_SHARE))
        self._batch_bytes = usual if options.bytes is None else options.bytes
        self._path = path
        self._pages = ScheduledPages()
        self._decoding: deque[_BatchDecoding] = deque()
        self._in_hands: DecodeTask | None = None
        self._part: ScanPart | None = None
        self._error: BaseException | None = None
        self._ended = False
        self._wake: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._progress: asyncio.Future[None] | None = None
        self._threads = asyncio.Semaphore(DECODES_MAX)
        self._works: list[Work] = []
        self._running = 0
        self._stopped: asyncio.Future[None] | None = None
        self._still_decoding: list[asyncio.Future[pa.RecordBatch | None]] = []

    def start(self) -> None:
        """Start scheduling and decoding in the background."""
        self._scan.service.on_progress = lambda: resolve(self._progress)
        spawn = self._runtime.supervisor.spawn
        self._running = 2
        scheduling = schedule_parts(self._scan.parts, self._pages)
        self._works.append(spawn(scheduling, name="scheduling loop", on_end=self._broken_off))
        self._works.append(spawn(self._pump(), name="decode loop", on_end=self._broken_off))

    async def next_batch(self) -> pa.RecordBatch | None:
        """The next batch, ``None`` at the end. A cancelled wait takes no batch with it.

        Raises the error of a read, of a page or of scheduling after the batches before it.
        """
        self._put_down()
        while True:
            while not self._decoding:
                if self._ended:
                    if self._error is not None:
                        raise copy_of(self._error)
                    return None
                self._wake = self._runtime.loop.create_future()
                resolve(self._progress)
                await self._wake
            first = self._decoding[0]
            if not first.batch.done():
                await asyncio.wait((first.batch,))
            if not self._decoding or self._decoding[0] is not first:  # Closed meanwhile.
                continue
            self._decoding.popleft()
            self._in_hands = first.task
            try:
                if first.batch.cancelled():
                    raise self._closed("the operator was closed")
                batch = first.batch.result()
            finally:
                del first  # The traceback of its error holds this frame.
            if batch is not None and batch.num_rows:
                return batch
            self._put_down()

    async def aclose(self) -> None:
        """``close``, and wait for both loops, and for the batches that threads are at: they may still read pages."""
        self.close()
        while self._running:
            self._stopped = self._runtime.loop.create_future()
            await self._stopped
        if self._still_decoding:
            await asyncio.wait(tuple(self._still_decoding))

    def close(self) -> None:
        """Stop both loops and release every page. Needs no response; may be called twice.

        Batches that threads are still decoding release their pages at the end.
        """
        self._end(self._closed("the scan was closed"))
        for work in self._works:
            work.cancel()
        self._works.clear()
        self._put_down()
        decoding = tuple(self._decoding)
        self._decoding.clear()
        running = [entry.batch for entry in decoding if not entry.batch.done()]
        part, self._part = self._part, None

        left = len(running)

        def give_back(_: object = None) -> None:
            nonlocal left
            left -= 1
            if left > 0:
                return
            # The tracebacks of their errors hold this loop.
            self._still_decoding = [batch for batch in self._still_decoding if batch not in running]
            for entry in decoding:
                if not entry.batch.cancelled():
                    entry.batch.exception()  # Retrieve it: asyncio would log it otherwise.
                entry.task.release()
            if part is not None:
                part.root.close()
            self._scan.service.close()

        self._still_decoding += running
        for batch in running:
            batch.add_done_callback(give_back)
        if not running:
            give_back()

    def _closed(self, what: str) -> Closed:
        return Closed(what, operation="scan", path=self._path)

    def _put_down(self) -> None:
        task, self._in_hands = self._in_hands, None
        if task is not None:
            task.release()
            resolve(self._room)

    # --- the pump -----------------------------------------------------------------------------------------------

    async def _pump(self) -> None:
        try:
            while (item := await self._pages.next()) is not None:
                if isinstance(item, ScanLine):  # Pages behind the last row.
                    self._accept(item)
                    continue
                if self._part is not None:
                    self._part.root.close()
                self._part = item
                await self._drain(item)
            self._end(None)
        except Exception as error:
            self._end(error)

    async def _drain(self, part: ScanPart) -> None:
        drained = scheduled = 0
        while drained < part.rows:
            while len(self._decoding) + (self._in_hands is not None) >= self._options.readahead:
                self._room = self._runtime.loop.create_future()
                await self._room
            rows = part.root.likely_rows(min(self._options.rows, part.rows - drained), self._batch_bytes)
            while scheduled < drained + rows:
                line = await self._pages.next()
                if not isinstance(line, ScanLine):
                    raise UntrustedMetadata(
                        f"the pages cover {scheduled} of {part.rows} rows", operation="scan", path=self._path
                    )
                self._accept(line)
                scheduled = line.rows
            rows = await self._loaded(part.root, rows)
            rows = self._run(part, rows, drained, scheduled)
            self._decode(part.root.drain(rows), drained)
            drained += rows

    def _run(self, part: ScanPart, rows: int, drained: int, scheduled: int) -> int:
        """The rows to decode of ``rows`` loaded ones: those that fit, or the loaded ones of a run of small batches."""
        asked, together, run = self._options.rows, self._options.together, 0
        if rows == asked < together:
            run = part.root.loaded_rows(min(together, scheduled - drained))
            run = part.root.fitting_rows(run, min(RUN_BYTES, self._batch_bytes))
            if drained + run < part.rows:
                run -= run % asked
        return max(run, part.root.fitting_rows(rows, self._batch_bytes))

    def _accept(self, line: ScanLine[Any]) -> None:
        assert self._part is not None
        for column, page in line.pages:
            self._part.root.accept(column, page)

    async def _loaded(self, root: RootDecoder[Any], rows: int) -> int:
        """Wait until ``rows`` rows have arrived or, if that takes long, until any have. Returns their number.

        While the consumer does not wait, the pages within the budget have to do. Only then are the pages
        promoted: promoted pages may exceed the budget, and a slow consumer must not make that the rule.
        """
        while (loaded := root.loaded_rows(rows)) < rows and (self._decoding or self._wake is None or self._wake.done()):
            self._progress = self._runtime.loop.create_future()
            await self._progress
            for _ in range(_TURNS):
                await asyncio.sleep(0)
        if loaded >= rows:
            return rows
        waiting = asyncio.ensure_future(root.wait(rows))
        try:
            while True:
                await asyncio.wait((waiting,), timeout=SHORT_BATCH_SECONDS)
                if waiting.done():
                    waiting.result()
                    return rows
                if loaded := root.loaded_rows(rows):
                    return loaded
        finally:
            waiting.cancel()
            del waiting  # The traceback of its error holds this frame.

    def _decode(self, task: DecodeTask, first_row: int) -> None:
        finish, compute = None if self._part is None else self._part.finish, self._scan.compute

        def decode() -> pa.RecordBatch | None:
            batch: pa.RecordBatch | None = task.decode()
            if batch is not None and finish is not None:
                batch = finish(batch, first_row)
            return batch if batch is None or compute is None else compute(batch)

        if task.is_cheap and finish is None and compute is None:
            batch: asyncio.Future[pa.RecordBatch | None] = self._runtime.loop.create_future()
            try:
                batch.set_result(decode())
            except Exception as error:
                batch.set_exception(error)
        else:
            batch = asyncio.ensure_future(self._decode_on_thread(decode))
        self._decoding.append(_BatchDecoding(task, batch))
        resolve(self._wake)

    async def _decode_on_thread(self, decode: Callable[[], pa.RecordBatch | None]) -> pa.RecordBatch | None:
        async with self._threads:
            if self._ended and self._error is not None:
                raise copy_of(self._error)
            return await self._runtime.run_blocking(decode)

    # --- the end ------------------------------------------------------------------------------------------------

    def _broken_off(self) -> None:
        """A loop has ended: by itself, after it reported so, or because the operator was closed."""
        self._running -= 1
        resolve(self._stopped)
        if self._runtime.supervisor.closed:
            self._pages.end()
            self._end(self._closed("the operator was closed"))

    def _end(self, error: BaseException | None) -> None:
        if not self._ended:
            self._ended, self._error = True, None if error is None else copy_of(error)
        resolve(self._wake)
        resolve(self._room)
        resolve(self._progress)


# --- parts in any order -----------------------------------------------------------------------------------------------

# The number of parts that are decoded at once. Each may exceed the budget by what its decoder waits for.
PARTS_AT_ONCE = 4


class _Shared:
    """The I/O service as one of the loops sees it: to close it is for the scan."""

    def __init__(self, service: ReadService) -> None:
        self.on_progress: Callable[[], None] | None = None
        self._service = service

    @property
    def has_received(self) -> bool:
        return self._service.has_received

    def close(self) -> None:
        """Do nothing."""


class UnorderedLoop:
    """Has the methods of ``DecodeLoop``. Bound to the runtime's loop; one consumer at a time."""

    def __init__(self, runtime: Runtime, scan: PreparedScan, options: BatchOptions, *, path: str) -> None:
        self._runtime = runtime
        self._scan = scan
        self._path = path
        self._options = replace(options, readahead=max(1, options.readahead // PARTS_AT_ONCE))
        self._parts: AsyncIterator[ScanPart] = each_part(scan.parts)
        self._turn = asyncio.Lock()
        self._lanes: dict[_Lane, asyncio.Task[pa.RecordBatch | None]] = {}
        self._idle: list[_Lane] = []
        self._closed = False

    def start(self) -> None:
        """Start to decode the first parts in the background."""
        self._scan.service.on_progress = self._progressed
        self._idle = [_Lane(self) for _ in range(PARTS_AT_ONCE)]
        self._take()

    async def next_batch(self) -> pa.RecordBatch | None:
        """The next batch that is ready, ``None`` at the end; a cancelled wait takes no batch with it.

        Raises the error of any part as soon as it is known.
        """
        self._check_open()
        self._take()
        while self._lanes:
            await asyncio.wait(self._lanes.values(), return_when=asyncio.FIRST_COMPLETED)
            self._check_open()
            lane = next(lane for lane, task in self._lanes.items() if task.done())
            task = self._lanes.pop(lane)
            self._idle.append(lane)
            try:
                batch = task.result()
            finally:
                del task  # The traceback of its error holds this frame.
            if batch is not None:
                return batch
            self._idle.remove(lane)
        return None

    async def aclose(self) -> None:
        """``close``, and wait for the batches that threads are at."""
        lanes, tasks = self._all_lanes(), list(self._lanes.values())
        self.close()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._lanes.clear()  # The tracebacks of their errors hold this loop.
        self._idle.clear()
        for lane in lanes:
            await lane.aclose()
        close = getattr(self._parts, "aclose", None)
        if close is not None:
            await close()

    def close(self) -> None:
        """Stop all loops and release every page. Needs no response; may be called twice."""
        self._closed = True
        for lane in self._all_lanes():
            lane.close()
        for task in self._lanes.values():
            task.cancel()
        self._scan.service.close()

    async def next_part(self) -> ScanPart | None:
        """The next part for a lane."""
        async with self._turn:
            return None if self._closed else await anext(self._parts, None)

    def loop_of(self, part: ScanPart) -> tuple[DecodeLoop, _Shared]:
        """A loop for one part, started."""
        shared = _Shared(self._scan.service)
        alone = replace(self._scan, parts=[part], service=shared)
        loop = DecodeLoop(self._runtime, alone, self._options, path=self._path)
        if self._closed:
            loop.close()
        self._check_open()
        loop.start()
        return loop, shared

    def _take(self) -> None:
        """Let each lane without a batch to come get one."""
        idle, self._idle = self._idle, []
        for lane in idle:
            self._lanes[lane] = asyncio.create_task(lane.next_batch(), context=entering())

    def _all_lanes(self) -> list[_Lane]:
        return [*self._lanes, *self._idle]

    def _progressed(self) -> None:
        for lane in self._all_lanes():
            lane.progressed()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the scan was closed", operation="scan", path=self._path)


class _Lane:
    """One part after the other."""

    def __init__(self, loops: UnorderedLoop) -> None:
        self._loops = loops
        self._loop: DecodeLoop | None = None
        self._shared: _Shared | None = None

    async def next_batch(self) -> pa.RecordBatch | None:
        while True:
            if self._loop is None:
                part = await self._loops.next_part()
                if part is None:
                    return None
                self._loop, self._shared = self._loops.loop_of(part)
            batch = await self._loop.next_batch()
            if batch is not None:
                return batch
            await self.aclose()

    def progressed(self) -> None:
        if self._shared is not None and self._shared.on_progress is not None:
            self._shared.on_progress()

    def close(self) -> None:
        if self._loop is not None:
            self._loop.close()

    async def aclose(self) -> None:
        loop, self._loop = self._loop, None
        self._shared = None
        if loop is not None:
            await loop.aclose()

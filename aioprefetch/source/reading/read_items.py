"""Items read into batches of one schema: ahead in a window, with policies for failures.

Several items are read at once, and their records are returned in the order of the items. While the records of one item
are consumed, later items are fetched and decoded ahead, up to ``files_in_flight``, as long as their pieces fit in
``bytes_in_flight`` and in the runtime's budget. The first item always makes progress. An item that has ended and waits
for its turn does not count as in flight: one slow file holds back rows, not requests.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from aioprefetch.errors import Closed, Error, copy_of
from aioprefetch.operator.operator import Operator
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.supervisor import Work
from aioprefetch.scheduler.io_service import ScanMemory
from aioprefetch.source.formats import FoundBatch, format_of
from aioprefetch.source.formats.corruption import UNDECODABLE, undecodable
from aioprefetch.source.formats.line_stream import SmallText
from aioprefetch.source.options import ReadOptions
from aioprefetch.source.reading.output import DirectoryLayout, Layouts, Output, Records
from aioprefetch.source.reading.task import Failures, ReadTask
from aioprefetch.source.values import FetchItem

# The estimated memory of an item beside its bytes, and its maximum, since large items come in pieces.
_ITEM_BYTES_MIN = 16 << 10
_ITEM_BYTES_MAX = 8 << 20
# The memory of a batch beside its buffers.
_PIECE_BYTES_MIN = 4 << 10
# The rows of a file that may be left out are held back up to this share (1 / n) of the window.
_HELD_SHARE = 2


# Records of one item, decoded or not.
Piece = Records | SmallText
ReadPieces = Callable[[FetchItem], AsyncGenerator[Piece, None]]


@dataclass(slots=True, eq=False)
class _BegunItem:
    """An item that has begun. ``is_let_go``: its records may be consumed before it has ended."""

    item: FetchItem
    reserved_bytes: int
    is_let_go: bool
    pieces: deque[tuple[Piece, int]] = field(default_factory=deque)
    held_bytes: int = 0
    is_half_taken: bool = False
    is_done: bool = False
    error: BaseException | None = None
    changed: asyncio.Future[None] | None = None
    room: asyncio.Future[None] | None = None


class ItemWindow:
    """Reads ``items`` by ``read``, and returns their pieces. Belongs to the loop of ``runtime``; one consumer.

    Work runs in the background of the runtime and ends with it, or by ``aclose``, which waits until all memory is
    returned. An item that ``comes_whole`` reserves its size twice: for its bytes, and for the value that they become.
    """

    def __init__(
        self,
        runtime: Runtime,
        items: Iterable[FetchItem],
        read: ReadPieces,
        options: ReadOptions,
        failures: Failures,
        *,
        comes_whole: Callable[[FetchItem], bool] = lambda _: False,
    ) -> None:
        self._runtime = runtime
        self._comes_whole = comes_whole
        self._items: Iterator[FetchItem] = iter(items)
        self._next: FetchItem | None = next(self._items, None)
        self._read = read
        self._files_max = options.files_in_flight
        self._held_max = max(options.bytes_in_flight // _HELD_SHARE, 1)
        self._failures = failures
        self._memory = ScanMemory(runtime.budget, options.bytes_in_flight, self._fill_soon)
        self._entries: deque[_BegunItem] = deque()
        # Entries that wait for room, in the order of their items.
        self._waiting: deque[_BegunItem] = deque()
        self._workers: set[_ItemWorker] = set()
        self._active = 0
        self._ended: asyncio.Future[None] | None = None
        self._closed = False

    async def next(self) -> tuple[FetchItem, Piece] | None:
        """The next piece, with its item; ``None`` after the last one.

        Raises the error of an item at its turn, unless the item is left out.
        """
        while True:
            ready = self._next_ready()
            if ready is not None or not self._entries:
                return ready
            entry = self._entries[0]
            entry.changed = self._runtime.loop.create_future()
            await entry.changed

    def _next_ready(self) -> tuple[FetchItem, Piece] | None:
        """The next piece if there is one. Drops items that are consumed; the caller awaits the first one left."""
        while True:
            self._fill()
            if not self._entries:
                return None
            entry = self._entries[0]
            if entry.error is not None:
                self._leave_out(entry, entry.error)
            if entry.pieces and (entry.is_done or entry.is_let_go):
                return entry.item, self._take(entry)
            if not entry.is_done:
                return None
            self._entries.popleft()
            self._make_room()

    async def aclose(self) -> None:
        """Stop all work and return its memory."""
        self._closed = True
        self._memory.leave_queue()
        for worker in tuple(self._workers):
            worker.work.cancel()
        if self._workers:
            self._ended = self._runtime.loop.create_future()
            await self._ended
        while self._entries:
            self._drop(self._entries.popleft())

    # --- results ----------------------------------------------------------------------------------------

    def _take(self, entry: _BegunItem) -> Piece:
        piece, size = entry.pieces.popleft()
        self._failures.has_read = True
        entry.is_half_taken = True
        entry.held_bytes -= size
        self._memory.give_back(size)
        self._make_room()
        return piece

    def _drop(self, entry: _BegunItem) -> None:
        entry.pieces.clear()
        self._memory.give_back(entry.held_bytes)
        entry.held_bytes = 0

    def _leave_out(self, entry: _BegunItem, error: BaseException) -> None:
        """Drop all pieces of a failed item, or raise its error if it must not be left out."""
        if entry.is_half_taken or not self._failures.leave_out(entry.item, error):
            self._failures.explain(entry.item, error, is_half_taken=entry.is_half_taken)
            raise copy_of(error)
        entry.error = None
        self._drop(entry)

    # --- reads -----------------------------------------------------------------------------------------

    def _fill_soon(self) -> None:
        # The budget calls this while it grants memory, and must not be asked for more meanwhile.
        self._runtime.loop.call_soon(self._fill)

    def _fill(self) -> None:
        """Begin as many items as the limits allow."""
        while self._active < self._files_max and not self._closed and (entry := self._begin()) is not None:
            self._active += 1
            worker = _ItemWorker(entry)
            self._workers.add(worker)
            worker.work = self._runtime.supervisor.spawn(
                self._run(worker), name="read items", on_end=partial(self._on_end, worker)
            )

    def _begin(self) -> _BegunItem | None:
        """The next item, if there is one and memory for it. The first item always begins."""
        item = self._next
        if item is None:
            return None
        need = _ITEM_BYTES_MIN + min(item.bytes, _ITEM_BYTES_MAX)
        if self._comes_whole(item):  # Room for the read of a piece is left.
            need = max(need, min(2 * item.bytes, self._memory.limit_bytes - _ITEM_BYTES_MAX))
        free = self._memory.free_bytes(need)
        if self._entries and free is not None and free < need:
            if self._memory.left_bytes >= need:
                self._memory.queue_for(need)  # The window has room, and the runtime has none.
            return None
        self._memory.take(need)
        entry: _BegunItem = _BegunItem(item, need, self._failures.is_strict)
        self._entries.append(entry)
        self._next = next(self._items, None)
        return entry

    async def _run(self, worker: _ItemWorker) -> None:
        """Read one item after the other as long as another may begin."""
        entry: _BegunItem | None = worker.entry
        while entry is not None:
            worker.entry = entry
            try:
                if not await self._read_into(entry):
                    async with aclosing(self._read(entry.item)) as pieces:
                        async for piece in pieces:
                            await self._put(entry, piece)
            except Exception as error:
                self._finish(entry, copy_of(error))  # Raised by ``next`` at the item's turn.
            else:
                self._finish(entry, None)
            entry = None if self._closed else self._begin()
        self._active -= 1

    async def _read_into(self, entry: _BegunItem) -> bool:
        """Read an item. ``False`` for a good one that is too large to be held back: its rows are dropped."""
        is_checked = False
        async with aclosing(self._read(entry.item)) as pieces:
            async for piece in pieces:
                is_too_large = entry.held_bytes + piece.nbytes + _PIECE_BYTES_MIN > self._held_max
                if is_too_large and self._failures.checks_first and not is_checked:
                    is_checked = True
                    self._drop(entry)
                if not is_checked:
                    await self._put(entry, piece)
        entry.is_let_go = entry.is_let_go or is_checked
        return not is_checked

    def _on_end(self, worker: _ItemWorker) -> None:
        self._workers.discard(worker)
        if not worker.entry.is_done:  # Cancelled, because this or the operator is closed; perhaps before it began.
            self._active -= 1
            self._finish(worker.entry, Closed("the reading was closed", operation="read_items"))
        if self._ended is not None and not self._workers:
            _wake(self._ended)

    async def _put(self, entry: _BegunItem, piece: Piece) -> None:
        """Add a piece when there is room for it; at once if it is the only piece of the first item."""
        size = piece.nbytes + _PIECE_BYTES_MIN
        while self._must_wait(entry, size):
            entry.room = self._runtime.loop.create_future()
            self._waiting.append(entry)
            await entry.room
        self._memory.take(size)
        entry.pieces.append((piece, size))
        entry.held_bytes += size
        if entry.held_bytes > self._held_max:
            entry.is_let_go = True
        if entry.is_let_go:
            _wake(entry.changed)

    def _must_wait(self, entry: _BegunItem, size: int) -> bool:
        if self._memory.left_bytes + entry.reserved_bytes >= size:
            return False
        return self._entries[0] is not entry or (entry.is_let_go and bool(entry.pieces))

    def _finish(self, entry: _BegunItem, error: BaseException | None) -> None:
        entry.is_done, entry.error = True, error
        self._memory.give_back(entry.reserved_bytes)
        entry.reserved_bytes = 0
        _wake(entry.changed)
        self._make_room()

    def _make_room(self) -> None:
        """Wake the entries that wait for room: the first item always, others if there is memory."""
        waiting, self._waiting = self._waiting, deque()
        for entry in waiting:
            if self._memory.left_bytes > 0 or (self._entries and self._entries[0] is entry):
                _wake(entry.room)
            else:
                self._waiting.append(entry)


class _ItemWorker:
    """A background task, and the item that it reads."""

    def __init__(self, entry: _BegunItem) -> None:
        self.entry = entry
        self.work = Work()


def _wake(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


# --- the items of a task ----------------------------------------------------------------------------------------------

# The text of small files that is parsed at once, which takes some milliseconds.
TOGETHER_BYTES = 256 << 10


async def read_items(
    operator: Operator, items: Iterable[FetchItem], task: ReadTask
) -> AsyncGenerator[pa.RecordBatch, None]:
    """The records of the items in their order, in batches of exactly ``task.schema``, at most ``batch_rows`` each.

    While the records of one item are consumed, later items are fetched and decoded (``ItemWindow``). Each is read at
    the version that it names. An item whose file is missing, changed, corrupt or unreadable fails the batch with an
    error that names it, or by ``task.failures`` is left out as a whole: its rows are held back until all of it is
    decoded. An item that decodes to more than half of ``bytes_in_flight`` is decoded twice where corrupt files are left
    out, the first time without giving rows; if it changes after that, the batch fails under each policy. Bad records
    that are left out are counted for each file. The lines of quarantined files go to ``task.quarantine`` after the last
    batch.

    An early close or a cancellation stops all work and returns all memory. ``InvalidArgument`` for filters that do not
    fit the schema is raised before the first request.
    """
    failures, output = Failures(task), Output(task)
    reading = _ItemReader(operator, task, failures)
    window = ItemWindow(operator.runtime(), items, reading.read, task.read, failures, comes_whole=reading.comes_whole)
    try:
        while (read := await window.next()) is not None:
            for records in reading.decoded(*read):
                for batch in output.add(records):
                    yield batch
        for records in reading.rest():
            for batch in output.add(records):
                yield batch
        for batch in output.end():
            yield batch
        await failures.write_down()
    finally:
        await window.aclose()


class _ItemReader:
    """Reads one item at a time, and gathers small files until it pays to parse them."""

    def __init__(self, operator: Operator, task: ReadTask, failures: Failures) -> None:
        self._operator = operator
        self._format = task.format
        self._failures = failures
        self._layouts = Layouts(operator, task, failures.bad_records)
        self._gathered: list[tuple[FetchItem, SmallText]] = []
        self._gathered_bytes = 0

    def comes_whole(self, item: FetchItem) -> bool:
        """Whether all of an item is in memory at once."""
        return format_of(item.file.key, self._format).comes_whole

    async def read(self, item: FetchItem) -> AsyncGenerator[Piece, None]:
        """The records of an item, or the whole text of a small file that is parsed together with others."""
        if not self._layouts.may_match(item.file.key):
            return
        layout = self._layouts.of(item.file.key)
        try:
            async with aclosing(self._pieces(item, layout)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, SmallText):
                        yield piece
                    elif (records := layout.records(item, piece)) is not None:
                        yield records
        except UNDECODABLE as error:
            raise undecodable(item.file.key, error) from error

    def _pieces(self, item: FetchItem, layout: DirectoryLayout) -> AsyncGenerator[SmallText | FoundBatch, None]:
        if layout.small.suits(item):
            return layout.small.read(item)
        return format_of(item.file.key, self._format).read(self._operator, item, layout.want)

    def decoded(self, item: FetchItem, piece: Piece) -> Iterator[Records]:
        """The records that are complete with this piece, in the order of the pieces."""
        if isinstance(piece, Records):
            yield from self.rest()
            yield piece
            return
        if self._gathered and not self._is_alike(*self._gathered[-1], item, piece):
            yield from self.rest()
        self._gathered.append((item, piece))
        self._gathered_bytes += piece.nbytes
        if self._gathered_bytes >= TOGETHER_BYTES:
            yield from self.rest()

    def rest(self) -> Iterator[Records]:
        """The records of the gathered small files, parsed together if possible, otherwise one by one."""
        gathered, self._gathered, self._gathered_bytes = self._gathered, [], 0
        together = self._together(gathered)
        if together is not None:
            yield together
            return
        for item, text in gathered:
            try:
                records = self._alone(item, text)
            except Error as error:
                if not self._failures.leave_out(item, error):
                    self._failures.explain(item, error, is_half_taken=False)
                    raise
                continue
            if records is not None:
                yield records

    def _is_alike(self, item: FetchItem, text: SmallText, other: FetchItem, other_text: SmallText) -> bool:
        layouts = self._layouts
        return text.likeness == other_text.likeness and layouts.of(item.file.key) is layouts.of(other.file.key)

    def _together(self, gathered: Sequence[tuple[FetchItem, SmallText]]) -> Records | None:
        if len(gathered) < 2:
            return None
        files = [item.file for item, _ in gathered]
        layout = self._layouts.of(files[0].key)
        joined = layout.small.together(files, [text for _, text in gathered])
        if joined is None:
            return None
        try:
            return layout.joined([item for item, _ in gathered], joined)
        except (Error, *UNDECODABLE):
            return None  # Parsed one by one, the file at fault is found.

    def _alone(self, item: FetchItem, text: SmallText) -> Records | None:
        layout = self._layouts.of(item.file.key)
        try:
            batch = layout.small.alone(item.file, text)
            return None if batch is None else layout.records(item, batch)
        except UNDECODABLE as error:
            raise undecodable(item.file.key, error) from error

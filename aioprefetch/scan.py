"""A scan of a table: an asynchronous stream of record batches, and an Arrow stream.

The same object serves both: ``async for batch in scan`` on an event loop, and without one ``for batch in scan`` and
consumers of an Arrow stream (``pyarrow``, pandas, polars, DuckDB) through the Arrow PyCapsule interface.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from aioprefetch.credentials import hiding_frames
from aioprefetch.errors import Closed, Error, InvalidType
from aioprefetch.operator.shared import checked_operator
from aioprefetch.ranges import Range, at_least, bytes_at_least, checked_ranges
from aioprefetch.runtime.closing import AsyncClosing, refused
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.scheduler.decode_loop import READAHEAD_BATCHES, RUN_ROWS, BatchOptions, DecodeLoop, UnorderedLoop
from aioprefetch.scheduler.pages import PreparedScan
from aioprefetch.sync.loop_thread import LoopThread, loop_thread

if TYPE_CHECKING:
    import pyarrow as pa

    from aioprefetch.operator.operator import Operator

BATCH_ROWS = 65536

CLOSE_SECONDS_MAX = 5.0

Prepare = Callable[[], Awaitable[PreparedScan]]


class BatchScan(AsyncClosing):
    """The record batches of a table, in row order unless another was asked for.

    Nothing is requested before a batch, or the schema, is awaited.

    Batches have ``batch_rows`` rows, with pages of any size. Shorter ones come at the end of a file, where
    ``batch_bytes`` is reached, where a filter took rows away, and when a read keeps the consumer waiting for more than
    a second although rows before it have arrived.

    ``async for`` uses it up. To leave it early, use ``aclose`` or ``async with``: requests in flight are
    cancelled, all memory is released, and another batch is ``Closed``. A scan that is dropped does so when it is
    collected. Batches stay readable. Several tasks may take batches in turns; a cancelled one takes none with it.

    In a plain ``for``, and as an Arrow stream (``to_reader``, ``__arrow_c_stream__``), it runs on the loop thread of
    ``aioprefetch.sync``, each time from the beginning, apart from any ``async for``.
    """

    def __init__(
        self, operator: Operator, prepare: Prepare, *, path: str, options: BatchOptions, operation: str = "scan"
    ) -> None:
        self._operator = checked_operator(operator, operation)
        self._prepare = prepare
        self._path = path
        self._operation = operation
        self._options = options
        self._runtime: Runtime | None = None
        self._prepared: PreparedScan | None = None
        self._loop: DecodeLoop | UnorderedLoop | None = None
        self._turn: asyncio.Lock | None = None
        self._closed = False
        self._is_finished = False
        self._rows_left = options.limit
        self._run: pa.RecordBatch | None = None
        self._cut_rows = 0
        self._is_started = False

    def __repr__(self) -> str:
        return f"<BatchScan of {self._path!r}, {self._options.rows} rows a batch>"

    def _repr_html_(self) -> str:
        from aioprefetch.display.tables import facts_html

        state = "closed" if self._closed else "in progress" if self._is_started else "not begun: nothing was requested"
        rows = self._options.rows
        return facts_html("Batches", {"path": self._path, "rows a batch": f"{rows:,}", "state": state})

    # --- asynchronous -------------------------------------------------------------------------------------------

    if not TYPE_CHECKING:
        __enter__ = __exit__ = refused("with", "write 'async with', or a plain 'for', which closes by itself")
        __await__ = refused("await", "write 'async for batch in scan' or 'await scan.read_all()'")

    def __aiter__(self) -> BatchScan:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        async with self._guard(), self._named():
            batch = None if self._is_finished else await self._next_batch()
            if batch is None:
                self._is_finished = True
                await self.aclose()
                raise StopAsyncIteration
            return batch

    async def _next_batch(self) -> pa.RecordBatch | None:
        if self._rows_left == 0:
            await self._opened()  # It raises for what is not there, and for arguments that do not go with it.
            return None
        if self._run is None:
            loop = await self._started()
            try:
                self._run, self._cut_rows = await loop.next_batch(), 0
            except Exception:
                await self.aclose()
                raise
            if self._run is None:
                return None
        return self._cut(self._run)

    def _cut(self, run: pa.RecordBatch) -> pa.RecordBatch:
        """The next batch of a run of rows that were decoded together."""
        start, left = self._cut_rows, run.num_rows - self._cut_rows
        rows = min(self._options.rows, left if self._rows_left is None else min(left, self._rows_left))
        self._cut_rows += rows
        if rows == left:
            self._run = None
        if self._rows_left is not None:
            self._rows_left -= rows
            if not self._rows_left:
                self._is_finished = self._closed = True
                self._run = None
                if self._loop is not None:
                    self._loop.close()  # Without a wait, which could be cancelled, and the batch lost.
        return run if rows == run.num_rows else run.slice(start, rows)

    async def schema(self) -> pa.Schema:
        """The schema of the batches. The metadata of the file is read if it has not been yet, and no data."""
        async with self._guard(), self._named():
            if self._prepared is None:
                await self._opened()
            assert self._prepared is not None
            return self._prepared.schema

    async def read_all(self) -> pa.Table:
        """The rest as one table, whose chunks are the batches."""
        import pyarrow as pa

        async with self:
            schema = await self.schema()
            return pa.Table.from_batches([batch async for batch in self], schema)

    async def aclose(self) -> None:
        """End the scan: requests are cancelled, and memory is released. Delivered batches stay readable."""
        self._closed = True
        self._run = None
        loop, self._loop = self._loop, None
        if loop is not None:
            await loop.aclose()

    def __del__(self) -> None:
        loop, runtime = getattr(self, "_loop", None), getattr(self, "_runtime", None)
        if loop is not None and runtime is not None and not runtime.closed:
            with contextlib.suppress(RuntimeError):  # The loop closed in between, and with it all that ran on it.
                runtime.loop.call_soon_threadsafe(loop.close)

    def _guard(self) -> asyncio.Lock:
        if self._runtime is None:
            self._runtime = self._operator.runtime()
            self._turn = asyncio.Lock()
        self._runtime.check_loop(operation=self._operation, path=self._path)
        assert self._turn is not None
        return self._turn

    @asynccontextmanager
    async def _named(self) -> AsyncIterator[None]:
        """Add the operation and the path to errors."""
        try:
            yield
        except Error as error:
            error.add_context(operation=self._operation, path=self._path)
            raise

    async def _started(self) -> DecodeLoop | UnorderedLoop:
        """The loops, which request data from now on."""
        loop = await self._opened()
        if not self._is_started:
            self._is_started = True
            loop.start()
        return loop

    @hiding_frames
    async def _opened(self) -> DecodeLoop | UnorderedLoop:
        """Read the metadata. ``Closed`` if it was closed before its end: a part is never taken for the whole."""
        if self._loop is None and not self._closed:
            assert self._runtime is not None
            self._prepared = prepared = await self._prepare()
            make = DecodeLoop if prepared.is_ordered else UnorderedLoop
            loop = make(self._runtime, prepared, self._options, path=self._path)
            if self.is_closed:  # While the metadata was read.
                loop.close()
            else:
                self._loop = loop
        if self._loop is None:
            raise Closed("the scan was closed", operation=self._operation, path=self._path)
        return self._loop

    @property
    def is_closed(self) -> bool:
        """Whether it has ended, by itself or by ``aclose``."""
        return self._closed

    @property
    def has_received(self) -> bool:
        """Whether the store has sent data for it, and so has said that the version is still there.

        Metadata do not count. Without it, all that was given so far was in memory.
        """
        return self._prepared is not None and self._prepared.service.has_received

    # --- without a loop -----------------------------------------------------------------------------------------

    def to_reader(self) -> pa.RecordBatchReader:
        """The whole scan as a ``pyarrow.RecordBatchReader`` for code without an event loop.

        Blocks for the metadata. ``WrongLoop`` on the thread of ``aioprefetch.sync`` itself. A reader that is dropped
        or closed ends the scan.
        """
        import pyarrow as pa

        batches = iter(self)
        return pa.RecordBatchReader.from_batches(batches.schema(), batches)

    def __iter__(self) -> BlockingBatches:
        """The batches for code without an event loop: ``for batch in scan``, each time from the beginning.

        It runs on the loop thread of ``aioprefetch.sync``, and ends when the ``for`` is left. Where an event loop runs
        in the caller's thread, it stops that loop while it waits: there ``async for`` is better.
        """
        scan = BatchScan(
            self._operator, self._prepare, path=self._path, options=self._options, operation=self._operation
        )
        return BlockingBatches(scan, loop_thread())

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> Any:
        """The Arrow PyCapsule interface, by which pandas, polars, DuckDB and pyarrow take a stream."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    async def next_or_none(self) -> pa.RecordBatch | None:
        """The next batch, ``None`` at the end."""
        return await anext(self, None)


class BlockingBatches:
    """The batches of a scan, each awaited on the loop thread. Threads may take them in turns."""

    def __init__(self, scan: BatchScan, thread: LoopThread) -> None:
        self._scan = scan
        self._thread = thread

    def schema(self) -> pa.Schema:
        """The schema of the batches. The metadata of the file is read if it has not been yet, and no data."""
        return self._thread.run(self._scan.schema())

    def __iter__(self) -> BlockingBatches:
        return self

    def __next__(self) -> pa.RecordBatch:
        batch = self._thread.run(self._scan.next_or_none())
        if batch is None:
            raise StopIteration
        return batch

    @property
    def is_closed(self) -> bool:
        """Whether the scan has ended, by itself or by ``close``."""
        return self._scan.is_closed

    @property
    def has_received(self) -> bool:
        """Whether the store has sent data for it; see ``BatchScan.has_received``."""
        return self._scan.has_received

    def close(self) -> None:
        """End the scan: requests are cancelled, and memory is released. Batches that were given stay readable."""
        if self._thread.is_alive and not self._scan.is_closed:  # Not in a fork, nor at the end of the process.
            self._thread.finish(self._scan.aclose, timeout_seconds=CLOSE_SECONDS_MAX)

    def __del__(self) -> None:
        self.close()


def batch_options(
    batch_rows: object,
    batch_bytes: object | None,
    readahead: object = READAHEAD_BATCHES,
    limit: object | None = None,
    *,
    path: str,
) -> BatchOptions:
    """The options of a scan from its caller. ``ConfigInvalid`` or ``InvalidType`` for invalid values."""

    def positive(value: object, name: str) -> int:
        return at_least(1, value, name, operation="scan", path=path)

    return BatchOptions(
        rows=positive(batch_rows, "batch_rows"),
        bytes=None
        if batch_bytes is None
        else bytes_at_least(1, batch_bytes, "batch_bytes", operation="scan", path=path),
        readahead=positive(readahead, "readahead"),
        limit=None if limit is None else at_least(0, limit, "limit", operation="scan", path=path),
        together=RUN_ROWS,
    )


def io_options(
    path: str,
    *,
    gap_bytes: object | None,
    request_bytes_max: object | None,
    budget_bytes: object | None,
    slots: object | None,
    operation: str = "scan",
) -> dict[str, int]:
    """The options of the I/O service that the caller set. ``ConfigInvalid`` or ``InvalidType``."""
    limits = (
        ("gap_bytes", gap_bytes, 0, bytes_at_least),
        ("request_bytes_max", request_bytes_max, 1, bytes_at_least),
        ("budget_bytes", budget_bytes, 0, bytes_at_least),
        ("slots", slots, 1, at_least),
    )
    return {
        name: check(lowest, value, name, operation=operation, path=path)
        for name, value, lowest, check in limits
        if value is not None
    }


def column_names(columns: object, *, path: str = "") -> list[str]:
    """The names of columns from a caller; ``InvalidType`` for anything but a list of names."""
    if isinstance(columns, str | bytes) or not isinstance(columns, Iterable):
        raise InvalidType(f"columns must be a list of names, not {columns!r}", operation="scan", path=path)
    names = list(columns)
    for name in names:
        if not isinstance(name, str):
            raise InvalidType(f"a column's name must be text, not {name!r}", operation="scan", path=path)
    return names


def row_range(rows: object, *, path: str = "") -> Range:
    """``(start, stop)`` from a caller. ``InvalidType`` or ``InvalidRange`` for anything else."""
    if not isinstance(rows, Sequence) or isinstance(rows, str | bytes):
        raise InvalidType(f"rows must be (start, stop), not {rows!r}", operation="scan", path=path)
    return checked_ranges([rows], operation="scan", path=path)[0]


def row_ranges(rows: Any, *, path: str = "") -> list[Range]:
    """``(start, stop)``, or a list of such pairs, from a caller. ``InvalidType`` or ``InvalidRange`` for others."""
    is_pair = isinstance(rows, Sequence) and len(rows) == 2 and not any(isinstance(row, Sequence) for row in rows)
    return checked_ranges([rows] if is_pair else rows, operation="scan", path=path)

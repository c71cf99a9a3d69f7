"""Row groups as pages of the two loops: their chunks are scheduled leaf by leaf, decoded together by pyarrow.

A **window** is some consecutive row groups: a large one alone, small ones together, so that a batch of them is one
decode and not fifty. Within a window pyarrow's one reader gives its rows in order; different windows are decoded in
different threads. A batch over the border of two windows is put together, which copies its rows once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import pyarrow as pa

from aioprefetch.parquet.row_reader import concatenated, decode_pool
from aioprefetch.scheduler.pages import DecodeTask, PageIo

# The columns of some rows, by their place in the scan's schema.
Columns = list[tuple[int, pa.Array]]


class Unit(Protocol):
    """A unit of scheduling, in parts: a chunk, pages of a chunk, or all chunks of a small row group."""

    @property
    def parts(self) -> int:
        """The number of parts."""
        ...

    def scan_row(self, part: int) -> int:
        """The row of the scan at which a part begins, exact or estimated."""
        ...

    def submit(self, io: PageIo, count: int) -> None:
        """Submit the first ``count`` parts, if they are not yet."""
        ...


class LeafScheduler:
    """The parts of one leaf in row order: a ``ColumnScheduler``. Its pages are the units themselves."""

    def __init__(self, units: Sequence[Unit], rows: int) -> None:
        self._units = [unit for unit in units if unit.parts]
        # Rows between the units are those of other schedulers: small row groups are read by the first leaf's.
        self._ends = [unit.scan_row(0) for unit in self._units[1:]] + [rows]
        self._unit = 0
        self._part = 0
        self.rows_scheduled = self._units[0].scan_row(0) if self._units else rows

    @property
    def is_finished(self) -> bool:
        return self._unit == len(self._units)

    def schedule_next(self, io: PageIo) -> Unit:
        unit = self._units[self._unit]
        self._part += 1
        unit.submit(io, self._part)
        if self._part < unit.parts:
            self.rows_scheduled = unit.scan_row(self._part)
        else:
            self.rows_scheduled = self._ends[self._unit]
            self._unit, self._part = self._unit + 1, 0
        return unit


class ColumnSource(Protocol):
    """Some columns of a window. Row numbers count the window's wanted rows from 0."""

    def ready(self) -> int:
        """The number of rows that can be decoded, from the window's first row on."""
        ...

    def promote(self, rows: int) -> None:
        """The first ``rows`` rows are needed now."""
        ...

    async def wait(self, rows: int) -> None:
        """Wait until the first ``rows`` rows can be decoded."""
        ...

    def drain(self, first: int, last: int) -> Callable[[], Columns]:
        """A function that decodes the rows ``[first, last)``, which are ready and follow the drained rows."""
        ...

    def row_bytes(self) -> float:
        """The Arrow memory of a row, as far as it is known."""
        ...

    def release(self, rows: int) -> None:
        """Release the pages of the first ``rows`` rows, which are decoded."""
        ...

    def close(self) -> None:
        """Release everything."""
        ...


class Window:
    """Some consecutive row groups of which ``rows`` rows are wanted, and the sources that have all their columns."""

    def __init__(self, rows: int, sources: Sequence[ColumnSource]) -> None:
        self.rows = rows
        self.sources = sources


class _Drained:
    """A batch that is being decoded: its windows, and the last row in each."""

    __slots__ = ("is_decoded", "parts")

    def __init__(self, parts: Sequence[tuple[Window, int]]) -> None:
        self.parts = parts
        self.is_decoded = False


class WindowsDecoder:
    """The ``RootDecoder`` of a file: windows in row order, whose columns ``schema`` names in order.

    Where columns have dictionaries, these differ from row group to row group, and so a batch ends where its window
    does; pyarrow's do so, too.

    pyarrow copies what it decodes, so pages go back as soon as a batch is decoded, and not when its consumer is done
    with it. ``on_loop`` has a function called on the loop's thread, from any. ``is_memory_short``: what is read
    does not fit into the budget, and unused memory goes back to the kernel soon. ``on_close`` is called once, when all
    pages are released: ``close`` waits for batches that threads are at.
    """

    def __init__(
        self,
        windows: Sequence[Window],
        schema: pa.Schema,
        *,
        on_loop: Callable[[Callable[[], None]], None],
        is_memory_short: bool = False,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self._on_loop = on_loop
        self._on_close = on_close or _nothing
        self._is_closing = False
        self._is_memory_short = is_memory_short
        self._draining: deque[_Drained] = deque()
        self._windows = [window for window in windows if window.rows]
        self._schema = schema
        self._ends_with_window = has_dictionaries(schema)
        self._firsts = [0]
        for window in self._windows:
            self._firsts.append(self._firsts[-1] + window.rows)
        self._drained = 0

    def accept(self, column: int, page: Unit) -> None:
        """Do nothing: the pages are units, which the windows have already."""

    async def wait(self, rows: int) -> None:
        parts = self._parts(rows)
        for window, _, last in parts:
            for source in window.sources:
                source.promote(last)
        for window, _, last in parts:
            for source in window.sources:
                await source.wait(last)

    def loaded_rows(self, rows_max: int) -> int:
        loaded = 0
        for window, first, last in self._parts(rows_max):
            ready = min((source.ready() for source in window.sources), default=last)
            loaded += max(0, min(ready, last) - first)
            if ready < last:
                break
        return loaded

    def likely_rows(self, rows: int, batch_bytes: int) -> int:
        return self.fitting_rows(rows, batch_bytes)

    def fitting_rows(self, rows: int, batch_bytes: int) -> int:
        """The number of rows that may fit, by the sizes in the footer and of the batches so far."""
        fitting, left = 0, float(batch_bytes)
        parts = self._parts(rows)
        for window, first, last in parts[:1] if self._ends_with_window else parts:
            row_bytes = max(sum(source.row_bytes() for source in window.sources), 1 / 64)
            rows_max = int(left / row_bytes)
            fitting += min(rows_max, last - first)
            if rows_max < last - first:
                break
            left -= row_bytes * (last - first)
        return max(1, fitting)

    def drain(self, rows: int) -> DecodeTask:
        parts = self._parts(rows)
        self._drained += rows
        decodes = [(last - first, [source.drain(first, last) for source in w.sources]) for w, first, last in parts]
        schema = self._schema
        drained = _Drained([(window, last) for window, _, last in parts])
        self._draining.append(drained)

        def decode() -> pa.RecordBatch:
            batch = concatenated(
                [_batch(count, [column() for column in columns], schema) for count, columns in decodes]
            )
            drained.is_decoded = True
            self._on_loop(self._release_decoded)
            return batch

        return DecodeTask(rows, decode, partial(self._put_down, drained))

    def _put_down(self, drained: _Drained) -> None:
        """Release the pages of a delivered batch, and the allocator's unused memory if memory is short."""
        drained.is_decoded = True  # Or it never will be.
        self._release_decoded()
        if self._is_memory_short:
            decode_pool().release_unused()

    def _release_decoded(self) -> None:
        """Release the pages of batches that are decoded, up to the first that is not: it may need any of them."""
        while self._draining and self._draining[0].is_decoded:
            for window, last in self._draining.popleft().parts:
                for source in window.sources:
                    source.release(last)
        if self._is_closing and not self._draining:
            self._release_all()

    def close(self) -> None:
        self._is_closing = True
        self._release_decoded()

    def _release_all(self) -> None:
        self._is_closing = False
        windows, self._windows = self._windows, []
        for window in windows:
            for source in window.sources:
                source.close()
        self._on_close()
        self._on_close = _nothing

    def _parts(self, rows: int) -> list[tuple[Window, int, int]]:
        """The windows that the next ``rows`` rows lie in, and which of their rows these are."""
        end = min(self._drained + rows, self._firsts[-1])
        parts: list[tuple[Window, int, int]] = []
        index = bisect_right(self._firsts, self._drained) - 1
        while index < len(self._windows) and self._firsts[index] < end:
            window, first = self._windows[index], self._firsts[index]
            parts.append((window, max(self._drained - first, 0), min(end - first, window.rows)))
            index += 1
        return parts


def _nothing() -> None:
    pass


def has_dictionaries(schema: pa.Schema) -> bool:
    """Whether any column is of a dictionary type, or has one inside."""
    return any(_has_dictionary(field.type) for field in schema)


def _has_dictionary(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return True
    if isinstance(kind, pa.BaseExtensionType):
        return _has_dictionary(kind.storage_type)
    return any(_has_dictionary(kind.field(number).type) for number in range(kind.num_fields))


def _batch(rows: int, sources: Sequence[Columns], schema: pa.Schema) -> pa.RecordBatch:
    columns = sorted((column for source in sources for column in source), key=lambda column: column[0])
    if not columns:
        # Rows without columns: a batch takes their number from a column that is dropped again.
        counted = pa.schema([("rows", pa.null())], metadata=schema.metadata)
        return pa.RecordBatch.from_arrays([pa.nulls(rows)], schema=counted).select([])
    return pa.RecordBatch.from_arrays([array for _, array in columns], schema=schema)

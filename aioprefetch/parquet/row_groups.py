"""Row groups as pages of the two loops: their chunks are scheduled leaf by leaf, decoded together by pyarrow.

A **window** is some consecutive row groups: a large one alone, small ones together, so that a batch of them is one
decode and not fifty. Within a window pyarrow's one reader gives its rows in order; different windows are decoded in
different threads. A batch over the border of two windows is put together, which copies its rows once.

pyarrow returns batches one after the other, and cuts them where a dictionary changes or a batch of strings is full.
Here a piece of rows is requested by its range; the rows between the pieces are decoded and dropped, and a piece that
takes several of pyarrow's batches is concatenated.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, Protocol

import pyarrow as pa
from pyarrow.parquet.core import ParquetReader

from aioprefetch.errors import Unsupported, copy_of
from aioprefetch.parquet.decoded_values import Int96, check_indices, check_int96, leaves_of
from aioprefetch.ranges import Range
from aioprefetch.scheduler.pages import DecodeTask, PageIo

# The variable by which a user chooses an allocator.
_CHOICE = "ARROW_DEFAULT_MEMORY_POOL"
# Rows that are decoded to be dropped are read in batches of this size.
_SKIPPED_ROWS = 65536
# Fewer values are decoded by one thread in less time than it takes to wake others.
_THREADED_VALUES_MIN = 32_768


def decode_pool() -> pa.MemoryPool:
    """The allocator for decoding Parquet: jemalloc if pyarrow has it and no allocator was chosen, else the default.

    pyarrow's wheels use mimalloc by default, which asks the kernel for large pages. Decoding always takes fresh memory,
    and where the host of a virtual machine has reclaimed unused memory it has to find 2 MiB again at each first touch:
    reading 244 MB took 1.1 to 1.6 s of CPU, and 0.55 s with jemalloc. jemalloc has small pages, and the kernel
    gives recently used ones, and keeps freed ones for a second, so that the next batch gets them. Where large pages are
    available they are better: 61 MB took 0.11 s of CPU with them, and 0.13 s with jemalloc.
    """
    default = pa.default_memory_pool()
    if default.backend_name != "mimalloc" or os.environ.get(_CHOICE):
        return default
    try:
        return pa.jemalloc_memory_pool()
    except NotImplementedError:
        return default


class MissingRows(ValueError):
    """The pages hold fewer rows than the footer claims."""


@dataclass(slots=True)
class RowSpan:
    """Rows that will be read together, and their batch once it is decoded."""

    ranges: Sequence[Range]
    batch: pa.RecordBatch | None = None


class RowReader:
    """The rows of some row groups, counted from the first one's first row, of some leaves.

    ``expect`` announces the pieces in order; ``read`` may be called in any order and by several threads, once for each
    piece. The first caller decodes the rows before its piece as well. ``first_rows`` has the first row of each row
    group and the end of the last; no row from ``end`` on is read. ``check`` is called with the index of each row group
    before it is decoded: it raises for a row group that must not be decoded, and returns whether its pages have exactly
    its rows. Other row groups are read separately: pyarrow would take surplus rows for rows of the next row group, and
    fill up missing rows from it.
    """

    def __init__(
        self,
        open_source: Callable[[], pa.BufferReader],
        metadata: Any,
        row_groups: Sequence[int],
        leaves: Sequence[int],
        *,
        first_rows: Sequence[int],
        end: int,
        check: Callable[[int], bool],
        int96: Int96 | None = None,
        page_checksums: bool = True,
    ) -> None:
        self._open_source = open_source
        self._page_checksums = page_checksums
        self._int96_unit = int96.unit if int96 is not None else None
        # The timestamps of 96 bits once more, in the unit that checks them.
        self._others: RowReader | None = None
        self._int96_leaves = [leaf for leaf in leaves if int96 is not None and leaf in int96.leaves]
        if int96 is not None and int96.other is not None and self._int96_leaves:
            again, places = Int96(int96.leaves, int96.other, None), (open_source, metadata, row_groups)
            self._others = RowReader(
                *places, self._int96_leaves, first_rows=first_rows, end=end, check=check, int96=again
            )
        self._metadata = metadata
        self._row_groups = row_groups
        self._leaves = leaves
        self._first_rows = first_rows
        self._end = end
        self._check = check
        self._checked: list[bool] = []
        self._lock = threading.Lock()
        self._pieces: deque[RowSpan] = deque()
        self._reader: Any = None
        self._batches: Iterator[pa.RecordBatch] | None = None
        # Rows up to here came from pyarrow; ``_rest`` are the last of them, which were not read yet.
        self._pulled = 0
        self._rest: pa.RecordBatch | None = None
        # The row at which a new reader of pyarrow begins.
        self._border = -1
        self._position = 0
        self._has_dictionaries: bool | None = None
        self._error: Exception | None = None
        # The maximum memory of a row so far; 0 before the first batch.
        self.row_bytes = 0.0

    def expect(self, ranges: Sequence[Range]) -> RowSpan:
        """The next piece: its rows, in ranges behind all rows that were expected before."""
        piece = RowSpan(ranges)
        self._pieces.append(piece)
        return piece

    def read(self, piece: RowSpan) -> pa.RecordBatch:
        """The rows of a piece. Raises pyarrow's error for bad pages, or ``MissingRows``, also for all later pieces."""
        with self._lock:
            while piece.batch is None:
                if self._error is not None:
                    raise copy_of(self._error)
                try:
                    self._decode(self._pieces[0])
                except Exception as error:
                    self._error = copy_of(error)
                    raise
                self._pieces.popleft()
            batch, piece.batch = piece.batch, None
            return batch

    def close(self) -> None:
        """Release the file. There must be no further reads."""
        self._batches = self._reader = self._rest = self._others = None
        self._pieces.clear()

    def _decode(self, piece: RowSpan) -> None:
        parts: list[pa.RecordBatch] = []
        for start, end in piece.ranges:
            while self._position < start:
                self._take(min(start - self._position, _SKIPPED_ROWS))
            while self._position < end:
                parts.append(self._take(end - self._position))
        if self._position >= self._end:
            self._batches = self._reader = self._rest = None  # They hold buffers as large as a batch.
        batch = concatenated(parts)
        if self._others is not None:
            others = self._others.read(self._others.expect(piece.ranges))
            arrays = dict(zip(self._leaves, leaves_of(batch.columns), strict=True))
            for leaf, other in zip(self._int96_leaves, leaves_of(others.columns), strict=True):
                check_int96(arrays[leaf], other, self._metadata.schema.column(leaf).path)
        self.row_bytes = max(self.row_bytes, batch.nbytes / max(batch.num_rows, 1))
        piece.batch = batch

    def _take(self, rows_max: int) -> pa.RecordBatch:
        """At least one and at most ``rows_max`` of the next rows."""
        batch, self._rest = self._pull(rows_max) if self._rest is None else self._rest, None
        if batch.num_rows > rows_max:
            batch, self._rest = batch.slice(0, rows_max), batch.slice(rows_max)
        self._position += batch.num_rows
        return batch

    def _pull(self, rows_max: int) -> pa.RecordBatch:
        group = min(bisect_right(self._first_rows, self._pulled), len(self._row_groups)) - 1
        is_exact = self._is_exact(group)
        if self._pulled == self._border or (not is_exact and self._pulled == self._first_rows[group]):
            self._batches = None
        rows = self._together(group, self._pulled + rows_max) - self._pulled
        if self._batches is None:
            self._reader = self._reader or open_reader(
                self._open_source(), self._metadata, self._int96_unit, page_checksums=self._page_checksums
            )
            groups = self._row_groups[group:] if is_exact else self._row_groups[group : group + 1]
            self._batches = self._reader.iter_batches(
                rows, row_groups=groups, column_indices=self._leaves, use_threads=False
            )
            self._reader.set_use_threads(len(self._leaves) > 1 and rows * len(self._leaves) >= _THREADED_VALUES_MIN)
        else:
            # The size counts from the next batch that pyarrow decodes on.
            self._reader.set_batch_size(rows)
        for batch in self._batches:
            if batch.num_rows:
                self._pulled += batch.num_rows
                if self._has_dictionaries is None:
                    self._has_dictionaries = has_dictionaries(batch.schema)
                if self._has_dictionaries:
                    check_indices(batch.columns)
                return batch
        raise MissingRows(f"the pages end after {self._position} rows")

    def _together(self, group: int, end: int) -> int:
        """The row, at most ``end``, up to which rows from row group ``group`` on can be pulled together."""
        if not self._is_exact(group):
            self._border = self._first_rows[group + 1]
            return min(end, self._border)
        while self._first_rows[group + 1] < end and group + 2 < len(self._first_rows):
            group += 1
            if not self._is_exact(group):
                self._border = self._first_rows[group]
                return self._border
        return end

    def _is_exact(self, group: int) -> bool:
        while len(self._checked) <= group:
            self._checked.append(self._check(len(self._checked)))
        return self._checked[group]


def open_reader(source: Any, metadata: Any, int96_unit: str | None = None, *, page_checksums: bool = True) -> Any:
    """Pyarrow's reader of a file whose footer is known, with the settings of ``pyarrow.parquet.read_table``.

    ``page_checksums``: they are verified where page headers have them. ``int96_unit``: see ``Int96``.

    A ``ParquetFile`` around the reader would take no allocator, and build an unused table of all names.
    """
    reader = ParquetReader(memory_pool=decode_pool())
    reader.open(
        source,
        metadata=metadata,
        pre_buffer=False,
        page_checksum_verification=page_checksums,
        arrow_extensions_enabled=True,  # As read_table does; a ParquetFile asks for it.
        coerce_int96_timestamp_unit=int96_unit,
    )
    return reader


def read_schema(metadata: Any, leaves: Sequence[int], int96_unit: str | None = None) -> pa.Schema:
    """The Arrow schema of some leaves, as ``pyarrow.parquet.read_table`` has it."""
    reader = open_reader(pa.BufferReader(b""), metadata, int96_unit)
    whole: pa.Schema = reader.schema_arrow
    if len(leaves) == metadata.num_columns:
        return whole
    read = reader.read_row_groups([], column_indices=list(leaves), use_threads=False).schema
    # A table read by row groups also has the key-value pairs of the file outside of a stored Arrow schema.
    return read.with_metadata(whole.metadata) if whole.metadata else read.remove_metadata()


def concatenated(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Batches of one schema as one: copied, unless there is one alone. Dictionaries become one as well.

    ``Unsupported`` for more bytes, or items of lists, than one array of a type holds.
    """
    if len(batches) == 1:
        return batches[0]
    table = pa.Table.from_batches(batches)
    try:
        combined = table.combine_chunks(memory_pool=decode_pool()).to_batches()
    except (pa.ArrowInvalid, pa.ArrowCapacityError) as error:
        raise too_large(table.num_rows) from error
    if len(combined) == 1:
        return combined[0]
    raise too_large(table.num_rows)


def one_array(arrays: Sequence[pa.Array]) -> pa.Array:
    """Arrays of one type as one; see ``concatenated``."""
    if len(arrays) == 1:
        return arrays[0]
    try:
        return pa.concat_arrays(arrays, memory_pool=decode_pool())
    except (pa.ArrowInvalid, pa.ArrowCapacityError) as error:
        raise too_large(sum(map(len, arrays))) from error


def too_large(rows: int) -> Unsupported:
    """The error for ``rows`` rows that do not fit into one array."""
    return Unsupported(
        f"{rows} rows have more bytes than one array of their type holds; ask for fewer rows a batch", operation="scan"
    )


# --- windows ----------------------------------------------------------------------------------------------------------

# The columns of some rows, by their place in the scan's schema.
Columns = list[tuple[int, pa.Array]]


class Unit(Protocol):
    """A unit of scheduling, in parts: a chunk, pages of a chunk, or all chunks of a small row group."""

    @property
    def parts(self) -> int:
        """The number of parts."""

    def scan_row(self, part: int) -> int:
        """The row of the scan at which a part begins, exact or estimated."""

    def submit(self, io: PageIo, count: int) -> None:
        """Submit the first ``count`` parts, if they are not yet."""


class LeafScheduler:
    """The parts of one leaf in row order: a ``ColumnScheduler``. Its pages are the units themselves."""

    def __init__(self, units: Sequence[Unit], rows: int) -> None:
        self._units = [unit for unit in units if unit.parts]
        # Rows between the units belong to other schedulers: small row groups are read by the first leaf's.
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

    def promote(self, rows: int) -> None:
        """The first ``rows`` rows are needed now."""

    async def wait(self, rows: int) -> None:
        """Wait until the first ``rows`` rows can be decoded."""

    def drain(self, first: int, last: int) -> Callable[[], Columns]:
        """A function that decodes the rows ``[first, last)``, which are ready and follow the drained rows."""

    def row_bytes(self) -> float:
        """The known Arrow memory of a row."""

    def release(self, rows: int) -> None:
        """Release the pages of the first ``rows`` rows, which are decoded."""

    def close(self) -> None:
        """Release everything."""


class Window:
    """Some consecutive row groups with ``rows`` wanted rows, and the sources that have all their columns."""

    def __init__(self, rows: int, sources: Sequence[ColumnSource]) -> None:
        self.rows = rows
        self.sources = sources


class _Drained:
    """A batch that is being decoded: its windows, and the last row in each."""

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
        self._firsts = list(accumulate((window.rows for window in self._windows), initial=0))
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
    return any(map(_has_dictionary, set(schema.types)))


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

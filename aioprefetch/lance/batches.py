"""From decoded rows to the batches of a scan: rows that match, without deleted ones, in the order of a ``take``.

**Order.** The distinct rows of a ``take`` are read in the order of the file. The first batch needs all of them, since
its rows may lie anywhere. They are decoded once and stay in memory until the last batch is delivered. Batches with
different dictionaries are merged here, because Arrow does not merge dictionaries with a null, which those in version
2.0 have.

**Deleted rows.** Every range of rows costs time in every column, so single deleted rows all over a fragment would make
its scan slow. Deleted rows in small holes are read with their neighbours and filtered out of the decoded batches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aioprefetch.errors import Unsupported
from aioprefetch.filters import (
    Filters,
    check_clauses,
    check_expression,
    filter_expression,
    filtered,
    kept_rows,
    named_columns,
    row_mask,
)
from aioprefetch.lance.output import WrappedColumn, fixed_width, merge_dictionaries, rows_without_columns
from aioprefetch.lance.schema import Field, arrow_schema, check_known, project, with_whole_rows
from aioprefetch.row_ranges import RowNumbers, RowRanges
from aioprefetch.scheduler.pages import ColumnScheduler, DecodeTask, PageIo, RootDecoder

Finish = Callable[[pa.RecordBatch, int], pa.RecordBatch | None]


@dataclass(frozen=True, slots=True)
class RowFilter:
    """The rows that match ``expression``, which reads the columns ``names``."""

    expression: pc.Expression
    names: Sequence[str]
    path: str


@dataclass(frozen=True, slots=True)
class Projection:
    """The fields to read and their schema; the schema of the result, and ``finish``, which makes it of a batch."""

    fields: tuple[Field, ...]
    read_schema: pa.Schema
    schema: pa.Schema
    finish: Finish | None = None
    row_filter: RowFilter | None = None


def chosen_columns(schema: pa.Schema, places: Sequence[int]) -> pa.Schema:
    """The schema of the columns at some places."""
    return pa.schema([schema.field(place) for place in places], schema.metadata)


def make_projection(
    fields: Sequence[Field],
    columns: object | None,
    filters: Filters,
    metadata: Mapping[str, bytes] | None,
    *,
    path: str,
    hidden: Sequence[Field] = (),
) -> Projection:
    """The projection of a scan of a table with ``fields``, and with ``hidden`` ones, which only a name selects.

    Columns that only ``filters`` need are read and dropped.
    ``InvalidArgument`` for columns that the table does not have, and for filters that do not go with their types.
    """
    wanted = tuple(fields) if columns is None else project([*fields, *hidden], columns, path=path)
    schema = arrow_schema(wanted, metadata)
    expression = filter_expression(filters, path=path)
    fields = [*fields, *hidden]
    by_name = {field.name: field for field in fields}
    read = wanted if columns is None else tuple(with_whole_rows(field, by_name[field.name]) for field in wanted)
    finish: Finish | None = partial(selected, schema) if read != wanted else None
    names: list[str] = []
    if expression is not None:
        whole = arrow_schema(fields)
        check_clauses(filters, whole, path=path)
        names = named_columns(whole, filters, path=path)
        # A struct that the filters read is read whole, since an expression may ask for any of its fields.
        read = tuple(({field.name: field for field in read} | {name: by_name[name] for name in names}).values())
        finish = partial(_matching_rows, schema, expression, names, path)
    check_known(read, path=path)
    read_schema = arrow_schema(read, metadata)
    if expression is not None:
        check_expression(read_schema, expression, names, path=path)  # A table without rows would not show it.
        return Projection(read, read_schema, schema, finish, RowFilter(expression, names, path))
    return Projection(read, read_schema, schema, finish)


def _matching_rows(
    schema: pa.Schema, expression: pc.Expression, names: Sequence[str], path: str, batch: pa.RecordBatch, first_row: int
) -> pa.RecordBatch | None:
    """The wanted columns of the rows that match; ``None`` without such a row."""
    if not names:  # Without columns a batch does not know how many of its rows are left.
        mask = row_mask(pa.schema([]).empty_table(), expression, rows=batch.num_rows, path=path)
        if not schema.names:
            return rows_without_columns(schema, mask.true_count) if mask.true_count else None
        kept = kept_rows(batch, mask, path=path)
    else:
        kept = filtered(batch, expression, names, path=path)
    return selected(schema, kept, first_row) if kept.num_rows else None


def selected(schema: pa.Schema, batch: pa.RecordBatch, _: int) -> pa.RecordBatch:
    """The columns of the result, of a batch that has those that are read."""
    if not schema.names:
        return rows_without_columns(schema, batch.num_rows)
    columns = [_with_fields(batch.column(place), field.type) for place, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _with_fields(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """An array of structs with only those fields that the type ``kind`` has, in its order. Others as they are."""
    if array.type.equals(kind) or not pa.types.is_struct(kind):
        return array
    places = [array.type.get_field_index(field.name) for field in kind]
    children = [_with_fields(array.field(place), field.type) for place, field in zip(places, kind, strict=True)]
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)


# --- order ------------------------------------------------------------------------------------------------------------

# The approximate size of a decoded group of distinct rows, so that no column of it exceeds the maximum of a buffer.
_PIECE_BYTES = 128 << 20


class ReorderedColumn:
    """One column in all parts of a scan. No row of the result is scheduled until all rows are.

    Until then its count is negative and grows, so that pages are scheduled in row-major order. Its pages carry the
    number of their part.
    """

    def __init__(self, parts: Sequence[ColumnScheduler[Any]], distinct: int, rows: int) -> None:
        self._parts = parts
        self._distinct = distinct
        self._rows = rows
        self._number = 0
        self._before = 0
        self._go_on()

    @property
    def rows_scheduled(self) -> int:
        """The number of scheduled rows: negative until all pages are scheduled."""
        if self.is_finished:
            return self._rows
        return self._before + self._parts[self._number].rows_scheduled - self._distinct - 1

    @property
    def is_finished(self) -> bool:
        """Whether all pages of all parts are scheduled."""
        return self._number == len(self._parts)

    def schedule_next(self, io: PageIo) -> tuple[int, Any]:
        """Submit the reads of the next page; returns it with the number of its part."""
        number = self._number
        page = self._parts[number].schedule_next(io)
        self._go_on()
        return number, page

    def _go_on(self) -> None:
        while not self.is_finished and self._parts[self._number].is_finished:
            self._before += self._parts[self._number].rows_scheduled
            self._number += 1


class ReorderedRoot:
    """A ``RootDecoder`` that returns the ``distinct`` rows of the decoders of all parts in the order of ``order``.

    ``order`` holds positions among the distinct rows.
    """

    def __init__(
        self, roots: Sequence[tuple[RootDecoder[Any], int]], schema: pa.Schema, distinct: int, order: RowNumbers
    ) -> None:
        self._roots = roots
        self._schema = schema
        self._distinct = distinct
        self._order = order
        self._drained = 0
        self._decoded: _Decoded | None = None
        self._fitting_rows = len(order)

    def accept(self, column: int, page: tuple[int, Any]) -> None:
        number, inner = page
        self._roots[number][0].accept(column, inner)

    async def wait(self, rows: int) -> None:
        """Wait for all distinct rows."""
        if self._decoded is None:
            for root, count in self._roots:
                await root.wait(count)

    def loaded_rows(self, rows_max: int) -> int:
        """All ``rows_max`` rows or none, since the first batch needs all distinct rows."""
        if self._decoded is None and any(root.loaded_rows(count) < count for root, count in self._roots):
            return 0
        return rows_max

    def likely_rows(self, rows: int, batch_bytes: int) -> int:
        """All rows, since ``wait`` loads all of them."""
        return rows

    def fitting_rows(self, rows: int, batch_bytes: int) -> int:
        """All rows if the whole result fits; otherwise the number of rows that fit in the worst order; at least 1."""
        if self._decoded is None:
            copies = -(-len(self._order) // self._distinct) * len(self._roots)
            fitting = [(root.fitting_rows(count, max(1, batch_bytes // copies)), count) for root, count in self._roots]
            self._fitting_rows = min((fits for fits, count in fitting if fits < count), default=len(self._order))
        return min(rows, self._fitting_rows)

    def drain(self, rows: int) -> DecodeTask:
        if self._decoded is None:
            tasks = [task for root, count in self._roots for task in _drain(root, count)]
            self._decoded = _Decoded(self._schema, tasks)
        decoded, start = self._decoded, self._drained
        self._drained = stop = start + rows
        return DecodeTask(
            rows=rows,
            decode=lambda: decoded.take(self._order[start:stop]),
            release=decoded.release if stop == len(self._order) else _nothing,
        )

    def close(self) -> None:
        """Release every page that was not drained, and the decoded rows."""
        for root, _ in self._roots:
            root.close()
        if self._decoded is not None:
            self._decoded.release()


def _drain(root: RootDecoder[Any], rows: int) -> list[DecodeTask]:
    """Drain all rows of a part, in groups within 32-bit offsets and the memory limit of nulls."""
    tasks = []
    while rows:
        fitting = root.fitting_rows(rows, _PIECE_BYTES)
        tasks.append(root.drain(fitting))
        rows -= fitting
    return tasks


class _Decoded:
    """The distinct rows, decoded by the first thread that needs them."""

    def __init__(self, schema: pa.Schema, tasks: Sequence[DecodeTask]) -> None:
        self._schema = schema
        self._tasks = tasks
        self._lock = threading.Lock()
        self._table: pa.Table | None = None

    def take(self, positions: RowNumbers) -> pa.RecordBatch:
        """The rows at ``positions``, as one batch."""
        if not self._schema.names:
            return rows_without_columns(self._schema, len(positions))
        with self._lock:
            if self._table is None:
                self._table = table_of([task.decode() for task in self._tasks], self._schema)
        try:
            return self._table.take(pa.array(positions)).combine_chunks().to_batches()[0]
        except pa.ArrowException as error:
            raise Unsupported(f"these rows cannot be put in this order: {error}", operation="scan") from error

    def release(self) -> None:
        """Release the pages. May be called repeatedly."""
        tasks, self._tasks = self._tasks, ()
        for task in tasks:
            task.release()


def _nothing() -> None:
    """Do nothing: only the last batch releases the pages."""


# --- dictionaries -----------------------------------------------------------------------------------------------------


def table_of(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """The batches as one table. Each column has one dictionary, at any depth.

    ``Unsupported`` if an index type cannot count the values of all dictionaries.
    """
    columns = [
        pa.chunked_array(with_one_dictionary([batch.column(index) for batch in batches]), field.type)
        for index, field in enumerate(schema)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def with_one_dictionary(arrays: Sequence[pa.Array]) -> Sequence[pa.Array]:
    """Arrays of one type with equal dictionaries. Arrays without dictionaries are returned unchanged."""
    kind = arrays[0].type if arrays else pa.null()
    if len(arrays) < 2 or not has_dictionary(kind):
        return arrays
    if pa.types.is_dictionary(kind):
        return _renamed(kind, arrays)
    if pa.types.is_struct(kind):
        columns = [with_one_dictionary([array.field(index) for array in arrays]) for index in range(kind.num_fields)]
        return [_struct(array, children) for array, *children in zip(arrays, *columns, strict=True)]
    items = with_one_dictionary([array.values for array in arrays])
    return [
        pa.Array.from_buffers(
            kind,
            len(array),
            array.buffers()[: 1 if pa.types.is_fixed_size_list(kind) else 2],
            -1,
            array.offset,
            [values],
        )
        for array, values in zip(arrays, items, strict=True)
    ]


def has_dictionary(kind: pa.DataType) -> bool:
    """Whether a type has a dictionary that ``with_one_dictionary`` can replace."""
    if pa.types.is_struct(kind):
        return any(has_dictionary(kind.field(index).type) for index in range(kind.num_fields))
    is_list: tuple[Callable[[pa.DataType], bool], ...] = (
        pa.types.is_list,
        pa.types.is_large_list,
        pa.types.is_fixed_size_list,
    )
    if any(check(kind) for check in is_list):
        return has_dictionary(kind.value_type)
    return bool(pa.types.is_dictionary(kind))


def _struct(array: pa.StructArray, children: Sequence[pa.Array]) -> pa.StructArray:
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(array.type), mask=mask)


def _renamed(kind: pa.DataType, arrays: Sequence[pa.DictionaryArray]) -> Sequence[pa.Array]:
    first = arrays[0].dictionary
    if all(array.dictionary.equals(first) for array in arrays[1:]):
        return arrays
    merged, renamings = merge_dictionaries(kind, [array.dictionary for array in arrays])
    width = fixed_width(kind.index_type)
    result = []
    for array, renamed in zip(arrays, renamings, strict=True):
        indices = array.indices
        numbers = np.asarray(indices.fill_null(0)).view(f"u{width}")
        # If all rows are null, the dictionary may be empty.
        moved = renamed[numbers] if len(renamed) else np.zeros(len(numbers), renamed.dtype)
        mask = np.asarray(indices.is_null()) if indices.null_count else None
        new = pa.array(moved.view(kind.index_type.to_pandas_dtype()), kind.index_type, mask=mask)
        result.append(pa.DictionaryArray.from_arrays(new, merged, ordered=kind.ordered, safe=False))
    return result


# --- deleted rows -----------------------------------------------------------------------------------------------------

# Holes of up to this number of deleted rows are read through: for vectors of 3 KB that is about the gap for merged
# reads.
HOLE_ROWS_MAX = 32


def read_through(ranges: RowRanges, living: RowRanges) -> tuple[RowRanges, RowNumbers]:
    """``ranges`` with their small holes closed, and the ascending positions of unwanted rows in the result.

    ``living`` are the same rows counted without deleted rows: a gap in them means that a hole has living rows that are
    unwanted, and the hole is kept.
    """
    if len(ranges) == len(living):
        return ranges, np.empty(0, np.int64)
    before = ranges.positions[:-1]
    holes = ranges.starts[1:] - ranges.ends[:-1]
    is_edge = np.isin(before[1:], living.positions)
    closed = (holes <= HOLE_ROWS_MAX) & ~is_edge
    first = np.concatenate(([True], ~closed))
    last = np.concatenate((~closed, [True]))
    coarse = RowRanges(ranges.starts[first], ranges.ends[last])
    dropped = holes[closed]
    before_hole = np.cumsum(dropped) - dropped
    # The start of a hole: all wanted rows before it, and all rows of the closed holes before it.
    starts = before[1:][closed] + before_hole
    within = np.arange(int(dropped.sum())) - np.repeat(before_hole, dropped)
    return coarse, np.repeat(starts, dropped) + within


class KeptRows:
    """Converts numbers of rows that are read to rows that are kept, and back. ``dropped`` are ascending positions."""

    def __init__(self, dropped: RowNumbers) -> None:
        self.dropped = dropped
        self._before = dropped - np.arange(len(dropped))

    def kept(self, read: int) -> int:
        """The number of kept rows among the first ``read`` rows."""
        return read - int(np.searchsorted(self.dropped, read, "left"))

    def read(self, kept: int) -> int:
        """The number of rows to read for ``kept`` kept rows."""
        return kept + int(np.searchsorted(self._before, kept - 1, "right")) if kept else 0


class FilteredColumn(WrappedColumn):
    """A ``ColumnScheduler`` that counts only kept rows."""

    def __init__(self, inner: ColumnScheduler[Any], rows: KeptRows) -> None:
        super().__init__(inner)
        self._rows = rows

    @property
    def rows_scheduled(self) -> int:
        return self._rows.kept(self._inner.rows_scheduled)


class FilteredRoot:
    """A ``RootDecoder`` that drops rows from the batches of another one."""

    def __init__(self, inner: RootDecoder[Any], schema: pa.Schema, rows: KeptRows) -> None:
        self._inner = inner
        self._schema = schema
        self._rows = rows
        self._kept = 0
        self._read = 0

    def accept(self, column: int, page: Any) -> None:
        self._inner.accept(column, page)

    async def wait(self, rows: int) -> None:
        await self._inner.wait(self._reach(rows))

    def loaded_rows(self, rows_max: int) -> int:
        """The number of the next kept rows, up to ``rows_max``, that could be drained at once."""
        return self._kept_in(self._inner.loaded_rows(self._reach(rows_max)))

    def likely_rows(self, rows: int, batch_bytes: int) -> int:
        """The number of the next ``rows`` kept rows that may fit ``batch_bytes``, dropped rows included; at least 1."""
        return max(1, self._kept_in(self._inner.likely_rows(self._reach(rows), batch_bytes)))

    def fitting_rows(self, rows: int, batch_bytes: int) -> int:
        """The number of the next ``rows`` kept rows that fit ``batch_bytes``, dropped rows included; at least 1."""
        return max(1, self._kept_in(self._inner.fitting_rows(self._reach(rows), batch_bytes)))

    def drain(self, rows: int) -> DecodeTask:
        start, count = self._read, self._reach(rows)
        task = self._inner.drain(count)
        self._kept += rows
        self._read += count
        if count == rows:
            return task
        low, high = np.searchsorted(self._rows.dropped, (start, start + count))
        mask = np.ones(count, bool)
        mask[self._rows.dropped[low:high] - start] = False
        schema = self._schema

        def decode() -> pa.RecordBatch:
            batch = task.decode()
            return batch.filter(pa.array(mask)) if schema.names else rows_without_columns(schema, rows)

        return DecodeTask(rows=rows, decode=decode, release=task.release)

    def close(self) -> None:
        self._inner.close()

    def _reach(self, rows: int) -> int:
        return self._rows.read(self._kept + rows) - self._read

    def _kept_in(self, read: int) -> int:
        return self._rows.kept(self._read + read) - self._kept

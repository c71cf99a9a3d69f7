"""Rows in another order than that of the file: a ``take`` of unsorted or repeated row numbers.

The distinct rows are read in the order of the file. The first batch needs all of them, since its rows may lie anywhere.
They are decoded once and stay in memory until the last batch is delivered. Batches with different dictionaries are
merged here, because Arrow does not merge dictionaries with a null, which those of version 2.0 have.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from aioprefetch.errors import Unsupported
from aioprefetch.lance.output import fixed_width, merge_dictionaries
from aioprefetch.lance.row_ranges import RowNumbers
from aioprefetch.scheduler.pages import ColumnScheduler, DecodeTask, PageIo, RootDecoder

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
        """Append a scheduled page of a column."""
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
        """Take the next ``rows`` rows of the result."""
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


def rows_without_columns(schema: pa.Schema, rows: int) -> pa.RecordBatch:
    """A batch of rows without columns, made from a struct without fields: only that gives Arrow a number of rows."""
    empty = pa.StructArray.from_buffers(pa.struct([]), rows, [None])
    return pa.RecordBatch.from_struct_array(empty).replace_schema_metadata(schema.metadata)


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

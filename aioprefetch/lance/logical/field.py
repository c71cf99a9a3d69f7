"""A top-level field as the decode loop sees it, and the record of all fields, which is the root of a scan of one file.

``FieldDecoder`` gives rows of an Arrow array, page by page, after the ``LogicalPageDecoder`` and ``NextDecodeTask`` of
the format's documentation. All versions of the format share it. The record is the documentation's picture of a whole
file as one page of ``SimpleStruct`` without nulls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from aioprefetch.lance.output import null_bits
from aioprefetch.scheduler.pages import DecodeTask, PendingRead

PageT_contra = TypeVar("PageT_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class ArrayTask:
    """Rows of one field to decode: ``decode`` runs once, on any thread, and uses nothing that the loop may change.

    ``spent``: the reads of every page that ends with these rows. They are released when the consumer has dropped the
    batch. ``is_cheap``: slicing alone, not worth another thread.
    """

    decode: Callable[[], pa.Array]
    spent: Sequence[PendingRead] = ()
    is_cheap: bool = False


class FieldDecoder(Protocol[PageT_contra]):
    """The pages of one field in row order. Stateful: each call is for the *next* rows; belongs to the loop's thread.

    ``rows`` never goes beyond the pages that were accepted.
    """

    def accept(self, page: PageT_contra) -> None:
        """Append a scheduled page."""
        ...

    def promote(self, rows: int) -> None:
        """Want every read that is known to be needed for the next ``rows`` rows. Does not wait."""
        ...

    async def wait(self, rows: int) -> None:
        """Wait until the next ``rows`` rows can be drained. Raises the error of a failed read, or bad metadata.

        A cancelled wait leaves everything as it is.
        """
        ...

    def loaded_rows(self, rows: int) -> int:
        """The number of the next ``rows`` rows that can be drained without waiting."""
        ...

    def size_bytes(self, rows: int) -> int:
        """About how much Arrow memory the next ``rows`` rows take, which are loaded. Grows with ``rows``."""
        ...

    def drain(self, rows: int) -> ArrayTask:
        """Take the next ``rows`` rows, which are loaded."""
        ...

    def close(self) -> None:
        """Release every page that was not drained."""
        ...


# The maximum size of a batch of more than a row: 32-bit offsets of its strings and lists end there.
BATCH_BYTES_MAX = (1 << 31) - 1


class RecordRoot:
    """``RootDecoder`` over the fields of a scan, in the order of ``schema``: a batch is one array of each.

    Without fields its batches have rows and no columns. ``close`` ends with a call of ``on_close``.
    """

    def __init__(
        self, schema: pa.Schema, fields: Sequence[FieldDecoder[Any]], on_close: Callable[[], None] = lambda: None
    ) -> None:
        self._schema = schema
        self._on_close = on_close
        self._fields = list(fields)
        self._row_bits = sum(null_bits(kind) for kind in schema.types)

    def accept(self, column: int, page: Any) -> None:
        """A page of field ``column``, behind those that came before."""
        self._fields[column].accept(page)

    async def wait(self, rows: int) -> None:
        """Wait until the next ``rows`` rows can be drained; raises the error of a failed read."""
        for field in self._fields:
            field.promote(rows)
        for field in self._fields:
            await field.wait(rows)

    def likely_rows(self, rows: int, batch_bytes: int) -> int:
        """The number of rows that may fit, by the types alone: strings and lists count without their content."""
        return max(1, min(rows, batch_bytes * 8 // max(self._row_bits, 1)))

    def loaded_rows(self, rows: int) -> int:
        """The number of the next ``rows`` rows that can be drained without waiting."""
        for field in self._fields:
            if not rows:
                break
            rows = min(rows, field.loaded_rows(rows))
        return rows

    def fitting_rows(self, rows: int, batch_bytes: int) -> int:
        """The number of the next ``rows`` loaded rows that stay within ``batch_bytes``; at least 1.

        Never more than fit into ``BATCH_BYTES_MAX``.
        """
        most_bytes = min(batch_bytes, BATCH_BYTES_MAX)
        size_bytes = self._size_bytes(rows)
        if size_bytes <= most_bytes or rows <= 1:
            return rows
        fits, exceeds = 1, rows
        guess = min(max(2, rows * most_bytes // size_bytes), rows - 1)
        while exceeds - fits > 1:
            if self._size_bytes(guess) <= most_bytes:
                fits = guess
            else:
                exceeds = guess
            guess = (fits + exceeds) // 2
        return fits

    def drain(self, rows: int) -> DecodeTask:
        """Take the next ``rows`` rows, which are loaded."""
        tasks = [field.drain(rows) for field in self._fields]
        spent = [read for task in tasks for read in task.spent]
        schema = self._schema
        return DecodeTask(
            rows=rows,
            decode=lambda: _record_batch(schema, tasks, rows),
            release=lambda: _release(spent),
            is_cheap=all(task.is_cheap for task in tasks),
        )

    def close(self) -> None:
        """Release every page that was not drained."""
        for field in self._fields:
            field.close()
        self._on_close()

    def _size_bytes(self, rows: int) -> int:
        return sum(field.size_bytes(rows) for field in self._fields)


def _record_batch(schema: pa.Schema, tasks: Sequence[ArrayTask], rows: int) -> pa.RecordBatch:
    if not tasks:  # Arrow counts rows by the columns, but takes the length of a struct without fields.
        empty = pa.StructArray.from_buffers(pa.struct([]), rows, [None])
        return pa.RecordBatch.from_struct_array(empty).replace_schema_metadata(schema.metadata)
    return pa.RecordBatch.from_arrays([task.decode() for task in tasks], schema=schema)


def _release(spent: list[PendingRead]) -> None:
    for read in spent:
        read.release()
    spent.clear()

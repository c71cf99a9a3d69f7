"""The decoder of a top-level field, and the decoder of the record of all fields, which is the root of a scan of a file.

``FieldDecoder`` follows ``LogicalPageDecoder`` and ``NextDecodeTask`` of the format's documentation; all versions of
the format share it. The documentation describes the record of all fields as one page of ``SimpleStruct`` without nulls.
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
    """Rows of one field to decode.

    ``decode`` runs once, on any thread, and shares no mutable state with the event loop.

    ``spent`` are the reads of the pages that end with these rows. They are released when the consumer has dropped the
    batch. ``is_cheap`` says that decoding is slicing and not worth another thread.
    """

    decode: Callable[[], pa.Array]
    spent: Sequence[PendingRead] = ()
    is_cheap: bool = False


class FieldDecoder(Protocol[PageT_contra]):
    """The pages of one field in row order. Stateful: each call is for the *next* rows. Not thread-safe.

    ``rows`` never exceeds the rows of the accepted pages.
    """

    def accept(self, page: PageT_contra) -> None:
        """Append a scheduled page."""
        ...

    def promote(self, rows: int) -> None:
        """Promote the reads of the next ``rows`` rows, as far as they are planned. Does not wait."""
        ...

    async def wait(self, rows: int) -> None:
        """Wait until the next ``rows`` rows can be drained. Raises the error of a failed read or of invalid metadata.

        A cancelled wait changes nothing.
        """
        ...

    def loaded_rows(self, rows: int) -> int:
        """The number of the next ``rows`` rows that can be drained without waiting."""
        ...

    def size_bytes(self, rows: int) -> int:
        """The approximate Arrow memory of the next ``rows`` rows, which are loaded. Grows with ``rows``."""
        ...

    def drain(self, rows: int) -> ArrayTask:
        """Take the next ``rows`` rows, which are loaded."""
        ...

    def close(self) -> None:
        """Release every page that was not drained."""
        ...


# The maximum size of a batch of more than one row, because of 32-bit offsets of strings and lists.
BATCH_BYTES_MAX = (1 << 31) - 1


class RecordRoot:
    """``RootDecoder`` of the fields of a scan, in the order of ``schema``. A batch has one array of each field.

    Without fields, batches have rows and no columns. ``close`` calls ``on_close`` at its end.
    """

    def __init__(
        self, schema: pa.Schema, fields: Sequence[FieldDecoder[Any]], on_close: Callable[[], None] = lambda: None
    ) -> None:
        self._schema = schema
        self._on_close = on_close
        self._fields = list(fields)
        self._row_bits = sum(null_bits(kind) for kind in schema.types)

    def accept(self, column: int, page: Any) -> None:
        """Append a scheduled page of field ``column``."""
        self._fields[column].accept(page)

    async def wait(self, rows: int) -> None:
        """Wait until the next ``rows`` rows can be drained; raises the error of a failed read."""
        for field in self._fields:
            field.promote(rows)
        for field in self._fields:
            await field.wait(rows)

    def likely_rows(self, rows: int, batch_bytes: int) -> int:
        """The number of rows that may fit, estimated from the types: strings and lists count without their contents."""
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

        Their size never exceeds ``BATCH_BYTES_MAX``.
        """
        bytes_max = min(batch_bytes, BATCH_BYTES_MAX)
        size_bytes = self._size_bytes(rows)
        if size_bytes <= bytes_max or rows <= 1:
            return rows
        fits, exceeds = 1, rows
        guess = min(max(2, rows * bytes_max // size_bytes), rows - 1)
        while exceeds - fits > 1:
            if self._size_bytes(guess) <= bytes_max:
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
    if not tasks:  # Only a struct without fields can give Arrow a number of rows without columns.
        empty = pa.StructArray.from_buffers(pa.struct([]), rows, [None])
        return pa.RecordBatch.from_struct_array(empty).replace_schema_metadata(schema.metadata)
    return pa.RecordBatch.from_arrays([task.decode() for task in tasks], schema=schema)


def _release(spent: list[PendingRead]) -> None:
    for read in spent:
        read.release()
    spent.clear()

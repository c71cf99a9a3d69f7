"""The root of a scan over one file: the one struct, without nulls, that the file is.

After the document's picture of a whole file as one page of ``SimpleStruct``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from aioprefetch.lance.logical.field import ArrayTask, FieldDecoder
from aioprefetch.lance.output import null_bits
from aioprefetch.scheduler.pages import DecodeTask, PendingRead

# No batch is larger than this where rows can be divided: 32-bit offsets of its strings and lists end there.
BATCH_BYTES_MAX = (1 << 31) - 1


class RecordRoot:
    """``RootDecoder`` over the fields of a scan, in the order of ``schema``: a batch is one array of each.

    Without fields its batches have rows and no columns.
    """

    def __init__(self, schema: pa.Schema, fields: Sequence[FieldDecoder[Any]]) -> None:
        self._schema = schema
        self._fields = list(fields)
        self._row_bits = sum(null_bits(kind) for kind in schema.types)

    def accept(self, column: int, page: Any) -> None:
        """A page of field ``column``, behind those that came before."""
        self._fields[column].accept(page)

    async def wait(self, rows: int) -> None:
        """Wait until the next ``rows`` rows can be drained; raises what a read of theirs failed with."""
        for field in self._fields:
            field.want(rows)
        for field in self._fields:
            await field.wait(rows)

    def likely_rows(self, rows: int, batch_bytes: int) -> int:
        """How many rows may fit, by the types alone: strings and lists are counted without what is in them."""
        return max(1, min(rows, batch_bytes * 8 // max(self._row_bits, 1)))

    def loaded_rows(self, most: int) -> int:
        """How many of the next rows, up to ``most``, could be drained at once without waiting."""
        for field in self._fields:
            if not most:
                break
            most = min(most, field.loaded_rows(most))
        return most

    def fitting_rows(self, rows: int, batch_bytes: int) -> int:
        """How many of the next ``rows`` rows, which are loaded, stay within ``batch_bytes``; at least 1.

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

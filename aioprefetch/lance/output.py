"""The output of a scan: rows of several pages become one Arrow array, and arrays a record batch.

Rows of a single page become slices of its memory. For rows of several pages the buffers are allocated once, and each
page is decoded into its part: bitmaps from any bit on, offsets of strings that continue from the page before. The
only concatenated arrays are:

* the values of dictionaries, where a batch of a ``dictionary`` type spans pages whose dictionaries differ; the indices
  are bridged like everything else.

Callers build the offsets and validity of lists, and of structs in versions with levels. The values below them are built
here.

The last rows of a page are copied if they are few. A batch that the consumer keeps then does not hold the memory of the
whole page.

``FieldDecoder`` and ``RecordRoot``, the decoder of the record of all fields, follow ``LogicalPageDecoder`` and
``NextDecodeTask`` of the format's documentation; all versions of the format share them. The documentation describes
the record of all fields as one page of ``SimpleStruct`` without nulls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from aioprefetch.errors import Error, Unexpected, Unsupported, UntrustedMetadata
from aioprefetch.lance.physical.protocols import (
    Capacity,
    EncodedPage,
    PageRows,
    PhysicalPageDecoder,
    Slice,
    allocate,
)
from aioprefetch.lance.physical.value import NullRows
from aioprefetch.scheduler.pages import ColumnScheduler, DecodeTask, PageIo, PendingRead

PageT_contra = TypeVar("PageT_contra", contravariant=True)

# The last rows of a page are copied if they are less than 1 / SMALL_SHARE of it and the page is larger than this size.
SMALL_SHARE = 4
KEPT_BYTES_MAX = 64 << 10

AnyPage = PhysicalPageDecoder | EncodedPage


def offset_bytes(kind: pa.DataType) -> int:
    """The size of an offset of a string or binary type in bytes, 0 for other types."""
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return 4
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return 8
    return 0


def fixed_width(kind: pa.DataType) -> int:
    """The size of a value of a fixed-width type in bytes. ``Unsupported`` for other types."""
    if pa.types.is_fixed_size_binary(kind):
        return int(kind.byte_width)
    if pa.types.is_primitive(kind) or pa.types.is_decimal(kind):
        bits = int(kind.bit_width)
        if bits % 8 == 0:
            return bits // 8
    raise Unsupported(f"values of type {kind} are not supported here")


def null_bits(kind: pa.DataType) -> int:
    """The bits of a null of a type in Arrow's memory, which are its validity and an unused value."""
    if pa.types.is_null(kind):
        return 0
    if pa.types.is_struct(kind):
        return 1 + sum(null_bits(kind.field(index).type) for index in range(kind.num_fields))
    if pa.types.is_fixed_size_list(kind):
        return 1 + int(kind.list_size) * null_bits(kind.value_type)
    if pa.types.is_dictionary(kind):
        return null_bits(kind.index_type)
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        return 1 + 32
    if pa.types.is_large_list(kind):
        return 1 + 64
    if offset_bytes(kind):
        return 1 + 8 * offset_bytes(kind)
    return 1 + int(kind.bit_width)


def _children(kind: pa.DataType) -> list[pa.Field]:
    return [kind.field(index) for index in range(kind.num_fields)]


def assemble(kind: pa.DataType, pieces: Sequence[PageRows[AnyPage]]) -> pa.Array:
    """The rows of ``pieces``, one after the other, as an array of type ``kind``.

    The pages decode to its row buffers. Arrays of a ``dictionary`` type are built by ``dictionary``.
    ``UntrustedMetadata`` for pages that contradict themselves, ``Unsupported`` for more than 32-bit offsets hold.
    """
    pieces = [piece for piece in pieces if piece.rows]
    parts = [_plain(piece) for piece in pieces]
    if not parts:
        return pa.array([], kind)
    if len(parts) > 1 or is_small_rest(pieces[0]):
        return build(kind, sum(part.rows for part in parts), bridge(parts))
    return build(kind, parts[0].rows, parts[0].page.slice(parts[0].skip, parts[0].rows))


def _plain(piece: PageRows[AnyPage]) -> PageRows[PhysicalPageDecoder]:
    page = piece.page
    if isinstance(page, PhysicalPageDecoder):
        return PageRows(page, piece.skip, piece.rows)
    decoded, skip = page.decoded(piece.skip, piece.rows)
    return PageRows(decoded, skip, piece.rows)


def is_small_rest(piece: PageRows[AnyPage]) -> bool:
    """Whether the rows are the last few rows of a large page.

    Pages of nulls do not count, since they hold no memory.
    """
    if not piece.is_last or isinstance(piece.page, NullRows) or piece.rows * SMALL_SHARE >= piece.page.rows:
        return False
    return piece.page.size_bytes(0, piece.page.rows) > KEPT_BYTES_MAX


def bridge(parts: Sequence[PageRows[PhysicalPageDecoder]]) -> list[Slice | None]:
    """Decode all parts into one allocation for each buffer. A buffer is ``None`` if no part needs it."""
    capacities = [Capacity() for _ in parts[0].page.buffers]
    for part in parts:
        part.page.update_capacity(part.skip, part.rows, capacities)
    targets = [buffer.target(capacity) for buffer, capacity in zip(parts[0].page.buffers, capacities, strict=True)]
    for part in parts:
        part.page.decode_into(part.skip, part.rows, targets)
    return [None if target is None else target.memory for target in targets]


# --- from buffers to arrays -------------------------------------------------------------------------------------------


def build(kind: pa.DataType, rows: int, buffers: Sequence[Slice | None]) -> pa.Array:
    """An array of the buffers, which are in Arrow's order. Only unaligned values are copied.

    ``UntrustedMetadata`` for text that is not UTF-8, which readers of Arrow rely on.
    """
    array, used = _build(kind, rows, buffers, 0)
    if used != len(buffers):
        raise UntrustedMetadata(f"a page of {len(buffers)} buffers cannot be of type {kind}")
    return array


def _build(kind: pa.DataType, rows: int, buffers: Sequence[Slice | None], at: int) -> tuple[pa.Array, int]:
    if pa.types.is_null(kind):
        return pa.nulls(rows), at
    validity = arrow_buffer(buffers[at])
    if pa.types.is_fixed_size_list(kind):
        items, at = _build(kind.value_type, rows * kind.list_size, buffers, at + 1)
        return pa.Array.from_buffers(kind, rows, [validity], children=[items]), at
    if pa.types.is_struct(kind):
        children: list[pa.Array] = []
        at += 1
        for child in _children(kind):
            array, at = _build(child.type, rows, buffers, at)
            children.append(array)
        return pa.Array.from_buffers(kind, rows, [validity], children=children), at
    if offset_bytes(kind):
        offsets, content = buffers[at + 1], buffers[at + 2]
        text = pa.Array.from_buffers(kind, rows, [validity, arrow_buffer(offsets), arrow_buffer(content)])
        if content is not None and (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            check_text(text, content)
        return text, at + 3
    values = buffers[at + 1]
    return pa.Array.from_buffers(kind, rows, [validity, arrow_buffer(values, _alignment(kind))]), at + 2


def arrow_buffer(memory: Slice | None, alignment: int = 1) -> pa.Buffer | None:
    """The memory as an Arrow buffer, copied if it is not aligned."""
    if memory is None:
        return None
    if alignment > 1 and memory.__array_interface__["data"][0] % alignment:
        raw = memory.view(np.uint8)
        memory = allocate(raw.nbytes)
        memory[:] = raw
    return pa.py_buffer(memory)


def _alignment(kind: pa.DataType) -> int:
    if pa.types.is_boolean(kind) or pa.types.is_fixed_size_binary(kind):
        return 1
    return min(16, fixed_width(kind))


def check_text(text: pa.Array, content: npt.NDArray[np.uint8]) -> None:
    """Raise ``UntrustedMetadata`` unless every value is UTF-8. Bytes that are all ASCII need no further check."""
    if is_ascii(content):
        return
    try:
        text.validate(full=True)
    except pa.ArrowInvalid as error:
        raise UntrustedMetadata(f"a page of strings is damaged: {error}") from error


def is_ascii(content: npt.NDArray[np.uint8]) -> bool:
    """Whether no byte has its highest bit set."""
    words = len(content) // 8 * 8
    seen = int(np.bitwise_or.reduce(content[:words].view(np.uint64))) if words else 0
    seen |= int(np.bitwise_or.reduce(content[words:])) if words < len(content) else 0
    return not seen & 0x8080_8080_8080_8080


# --- dictionaries -----------------------------------------------------------------------------------------------------


def dictionary(
    kind: pa.DataType, pieces: Sequence[PageRows[AnyPage]], dictionaries: Sequence[pa.Array]
) -> pa.DictionaryArray:
    """An array of a ``dictionary`` type: ``pieces`` decode to indices into ``dictionaries``, one for each piece.

    Pages with equal dictionaries share the first one; others are merged into a dictionary of all values. The indices
    were checked by their pages.
    """
    used = [(piece, values) for piece, values in zip(pieces, dictionaries, strict=True) if piece.rows]
    if not used:
        return pa.DictionaryArray.from_arrays(pa.array([], kind.index_type), pa.array([], kind.value_type))
    first = used[0][1]
    indices = assemble(kind.index_type, [piece for piece, _ in used])
    if all(values is first or values.equals(first) for _, values in used[1:]):
        return _with_dictionary(kind, indices, first)
    merged, renamings = merge_dictionaries(kind, [values for _, values in used])
    width = fixed_width(kind.index_type)
    validity, old = indices.buffers()
    numbers = np.frombuffer(old, f"u{width}", len(indices))
    memory = allocate(len(indices) * width).view(f"u{width}")
    start = 0
    for (piece, _), renamed in zip(used, renamings, strict=True):
        part = slice(start, start + piece.rows)
        memory[part] = renamed[numbers[part]]
        start = part.stop
    indices = pa.Array.from_buffers(kind.index_type, len(indices), [validity, pa.py_buffer(memory)])
    return _with_dictionary(kind, indices, merged)


def merge_dictionaries(kind: pa.DataType, dictionaries: Sequence[pa.Array]) -> tuple[pa.Array, list[npt.NDArray[Any]]]:
    """A dictionary of all values, nulls included, and for each of ``dictionaries`` a table from old to new indices.

    ``Unsupported`` if the index type of ``kind`` cannot count the values.
    """
    both = pa.concat_arrays(dictionaries).dictionary_encode(null_encoding="encode")
    width = fixed_width(kind.index_type)
    if len(both.dictionary) > 1 << (8 * width - (0 if pa.types.is_unsigned_integer(kind.index_type) else 1)):
        raise Unsupported(f"the dictionaries of a batch have {len(both.dictionary)} values, too many for {kind}")
    renamed = np.asarray(both.indices).astype(f"u{width}")
    return both.dictionary, np.split(renamed, np.cumsum([len(values) for values in dictionaries])[:-1])


def _with_dictionary(kind: pa.DataType, indices: pa.Array, values: pa.Array) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(indices, values, ordered=kind.ordered, safe=False)


# --- fields and records -----------------------------------------------------------------------------------------------


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


class ScheduledPages(Protocol[PageT_contra]):
    """The scheduled pages of one field in row order. Stateful: each call is for the *next* rows. Not thread-safe.

    ``rows`` never exceeds the rows of the accepted pages.
    """

    def accept(self, page: PageT_contra) -> None:
        """Append a scheduled page."""

    def promote(self, rows: int) -> None:
        """Promote the reads of the next ``rows`` rows, if they are planned. Does not wait."""

    async def wait(self, rows: int) -> None:
        """Wait until the next ``rows`` rows can be drained. Raises the error of a failed read or of invalid metadata.

        A cancelled wait changes nothing.
        """

    def loaded_rows(self, rows: int) -> int:
        """The number of the next ``rows`` rows that can be drained without waiting."""

    def size_bytes(self, rows: int) -> int:
        """The approximate Arrow memory of the next ``rows`` rows, which are loaded. Grows with ``rows``."""

    def close(self) -> None:
        """Release every page that was not drained."""


class FieldDecoder(ScheduledPages[PageT_contra], Protocol[PageT_contra]):
    """The decoder of a top-level field."""

    def drain(self, rows: int) -> ArrayTask:
        """Take the next ``rows`` rows, which are loaded."""


class RowsOfPage(Protocol):
    """A scheduled page."""

    @property
    def rows(self) -> int:
        """The number of its wanted rows."""


RowsOfPageT = TypeVar("RowsOfPageT", bound=RowsOfPage)


def next_rows(pages: Iterable[RowsOfPageT], taken: int, rows: int) -> Iterator[tuple[RowsOfPageT, int, int]]:
    """The pages of the next ``rows`` rows, where ``taken`` of the first page are taken.

    Each comes with its taken rows and its share of the rows.
    """
    for page in pages:
        if rows <= 0:
            return
        count = min(rows, page.rows - taken)
        yield page, taken, count
        rows -= count
        taken = 0
    if rows > 0:
        raise Unexpected("more rows were asked for than pages were scheduled", operation="scan")


@contextmanager
def blamed_on(name: str, path: str) -> Iterator[None]:
    """Add field and file to errors, and turn errors of numpy and Arrow into ``UntrustedMetadata``."""
    try:
        yield
    except Error as error:
        raise error.add_context(operation="scan", path=path, field=name) from error.__cause__
    except MemoryError as error:
        message = f"a batch of field {name!r} does not fit into memory: ask for fewer rows a batch"
        raise Unsupported(message, operation="scan", path=path) from error
    except (pa.ArrowException, ValueError, TypeError, IndexError, OverflowError) as error:
        # Every number is checked where it is read. This is the safety net for a missing check.
        message = f"the pages of field {name!r} contradict themselves: {error}"
        raise UntrustedMetadata(message, operation="scan", path=path) from error


# The maximum size of a batch of more than one row, because of 32-bit offsets of strings and lists.
BATCH_BYTES_MAX = (1 << 31) - 1


class ColumnWithoutReads:
    """A ``ColumnScheduler`` of a column that no file holds: one page of all rows."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self.rows_scheduled = 0

    @property
    def is_finished(self) -> bool:
        return self.rows_scheduled == self._rows

    def schedule_next(self, io: PageIo) -> None:
        self.rows_scheduled = self._rows


class FieldWithoutReads:
    """The parts of the ``FieldDecoder`` of such a column that have nothing to do: its page is empty."""

    def accept(self, page: None) -> None: ...

    def promote(self, rows: int) -> None: ...

    async def wait(self, rows: int) -> None: ...

    def loaded_rows(self, rows: int) -> int:
        return rows

    def close(self) -> None: ...


class WrappedColumn:
    """A ``ColumnScheduler`` around another one."""

    def __init__(self, inner: ColumnScheduler[Any]) -> None:
        self._inner = inner

    @property
    def rows_scheduled(self) -> int:
        return self._inner.rows_scheduled

    @property
    def is_finished(self) -> bool:
        return self._inner.is_finished

    def schedule_next(self, io: PageIo) -> Any:
        return self._inner.schedule_next(io)


class RecordRoot:
    """``RootDecoder`` of the fields of a scan, in the order of ``schema``. A batch has one array of each field.

    Without fields, batches have rows and no columns. The first ``close`` calls ``on_close`` at its end. ``row_bytes``
    is the size of a row in the files.
    """

    def __init__(
        self,
        schema: pa.Schema,
        fields: Sequence[FieldDecoder[Any]],
        on_close: Callable[[], None] = lambda: None,
        row_bytes: float = 0.0,
    ) -> None:
        self._schema = schema
        self._on_close = on_close
        self._fields = list(fields)
        self._row_bytes = max(sum(null_bits(kind) for kind in schema.types) / 8, row_bytes, 1 / 8)

    def accept(self, column: int, page: Any) -> None:
        self._fields[column].accept(page)

    async def wait(self, rows: int) -> None:
        for field in self._fields:
            field.promote(rows)
        for field in self._fields:
            await field.wait(rows)

    def likely_rows(self, rows: int, batch_bytes: int) -> int:
        """The number of rows that may fit, by the types and by the size of rows in the files."""
        return max(1, min(rows, int(batch_bytes / self._row_bytes)))

    def loaded_rows(self, rows: int) -> int:
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
        for field in self._fields:
            field.close()
        self._on_close()
        self._on_close = lambda: None

    def _size_bytes(self, rows: int) -> int:
        return sum(field.size_bytes(rows) for field in self._fields)


def _record_batch(schema: pa.Schema, tasks: Sequence[ArrayTask], rows: int) -> pa.RecordBatch:
    if not tasks:
        return rows_without_columns(schema, rows)
    return pa.RecordBatch.from_arrays([task.decode() for task in tasks], schema=schema)


def rows_without_columns(schema: pa.Schema, rows: int) -> pa.RecordBatch:
    """A batch of rows without columns, made from a struct without fields: only that gives Arrow a number of rows."""
    empty = pa.StructArray.from_buffers(pa.struct([]), rows, [None])
    return pa.RecordBatch.from_struct_array(empty).replace_schema_metadata(schema.metadata)


def _release(spent: list[PendingRead]) -> None:
    for read in spent:
        read.release()
    spent.clear()

"""A top-level field: a scheduler for the wanted pages of its leaf columns, and a decoder for all its leaves.

The decoder accepts pages of all leaves and returns arrays of any number of rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from aioprefetch.errors import UntrustedMetadata
from aioprefetch.lance.footer import PageMetadata
from aioprefetch.lance.output import ArrayTask, blamed_on, fixed_width, next_rows, offset_bytes
from aioprefetch.lance.physical.reads import LoadingPage
from aioprefetch.lance.schema import Field
from aioprefetch.lance.structural.assembly import assemble_field
from aioprefetch.lance.structural.decoded_rows import DecodedRows, LoadedRows
from aioprefetch.lance.structural.layouts import Constant, Fsst, FullZip, General, MiniBlock, PageLayout, parse_layout
from aioprefetch.lance.structural.pages import page_scheduler
from aioprefetch.row_ranges import RowRanges
from aioprefetch.scheduler.pages import PageIo, PendingRead

# Large batches are decoded in parts of about this size: a step over a few chunks costs as much as one over a hundred,
# and the temporary arrays of a step are small compared with the batch.
SPAN_BYTES = 4 << 20

# A page of large values may hold as much as the whole budget.
_PART_BYTES = 16 << 20
# The estimated expansion of compressed text.
_TEXT_GROWTH = 3


@dataclass(frozen=True, slots=True)
class LeafPage:
    """The wanted rows of one page of leaf ``leaf``. ``row_bytes`` is the approximate Arrow memory of a row."""

    leaf: int
    loading: LoadingPage[LoadedRows]
    row_bytes: float

    @property
    def rows(self) -> int:
        """The number of wanted rows."""
        return self.loading.rows

    @property
    def together(self) -> int:
        """The number of rows to decode at once when batches are larger."""
        return int(SPAN_BYTES / max(self.row_bytes, 0.125))


class LeafColumn:
    """One leaf column, which schedules the pages with rows of ``wanted``.

    ``UntrustedMetadata`` if its pages lack rows.
    """

    def __init__(
        self, leaf: int, field: Field, pages: Sequence[PageMetadata], wanted: RowRanges, file_rows: int, path: str
    ) -> None:
        if sum(page.rows for page in pages) != file_rows:
            raise UntrustedMetadata(
                f"the pages of field {field.name!r} hold other than the {file_rows} rows of the file", path=path
            )
        self.leaf = leaf
        self.rows_scheduled = 0
        self._field = field
        self._path = path
        self._wanted = wanted
        self._parts = self._cut(pages, wanted)

    @property
    def is_finished(self) -> bool:
        """Whether all wanted rows are scheduled."""
        return self.rows_scheduled >= self._wanted.rows

    def schedule_next(self, io: PageIo) -> LeafPage:
        """Submit the reads of the next page, or part of a large one, that holds wanted rows."""
        with blamed_on(self._field.name, self._path):
            page, layout, ranges = next(self._parts)
            scheduler = page_scheduler(layout, page.rows, page.buffers)
            loading = LoadingPage(scheduler, ranges, io, self.rows_scheduled)
        self.rows_scheduled += ranges.rows
        return LeafPage(self.leaf, loading, _row_bytes(self._field.arrow.type, layout, page))

    def _cut(
        self, pages: Sequence[PageMetadata], wanted: RowRanges
    ) -> Iterator[tuple[PageMetadata, PageLayout, RowRanges]]:
        """Pages with the rows that are wanted of them, large pages whose rows can be read one by one in parts."""
        first = 0
        for page in pages:
            ranges = wanted.within(first, first + page.rows)
            first += page.rows
            if not ranges.rows:
                continue
            layout, step = parse_layout(page.encoding, page.type_url), page.rows
            if isinstance(layout, FullZip):
                size = page.buffers[0][1] - page.buffers[0][0]
                step = max(1, page.rows * _PART_BYTES // max(size, 1))
            for start in range(0, page.rows, step):
                part = ranges if step >= page.rows else ranges.between(start, start + step)
                if part.rows:
                    yield page, layout, part


class StructuralColumn:
    """``ColumnScheduler`` of a top-level field. The leaf with the fewest scheduled rows is scheduled next."""

    def __init__(self, leaves: Sequence[LeafColumn]) -> None:
        self._leaves = leaves

    @property
    def rows_scheduled(self) -> int:
        """The number of rows that are scheduled for every leaf."""
        return min(leaf.rows_scheduled for leaf in self._leaves)

    @property
    def is_finished(self) -> bool:
        """Whether all wanted rows of every leaf are scheduled."""
        return all(leaf.is_finished for leaf in self._leaves)

    def schedule_next(self, io: PageIo) -> LeafPage:
        """Submit the reads of the next page and return the page, without waiting for them."""
        return min(self._leaves, key=lambda leaf: leaf.rows_scheduled).schedule_next(io)


def _row_bytes(kind: pa.DataType, layout: PageLayout, page: PageMetadata) -> float:
    """The approximate Arrow memory of a row, estimated from metadata."""
    if isinstance(layout, Constant):
        levels = sum(end - start for start, end in page.buffers[-2:]) if len(page.buffers) > 1 else 0
        items = max(1.0, levels / 2 / page.rows) if levels else 1.0
        scalar = page.buffers[0][1] - page.buffers[0][0] if len(page.buffers) in (1, 3) else 0
        return items * (_value_bytes(kind) or 4 + len(layout.inline_value or b"") + scalar) + 8
    items = max(1.0, layout.items / page.rows)
    if fixed := _value_bytes(kind):
        return items * fixed + 8 * (len(layout.layers) - 1)
    stored = page.buffers[0 if isinstance(layout, FullZip) else 1]
    text = float(stored[1] - stored[0])
    if isinstance(layout, MiniBlock) and layout.dictionary is not None:
        text = (page.buffers[2][1] - page.buffers[2][0]) / max(1, layout.dictionary_items) * layout.items
    elif isinstance(layout.values, Fsst | General):
        text *= _TEXT_GROWTH
    return text / page.rows + items * 8


def _value_bytes(kind: pa.DataType) -> float:
    """Bytes of a value of a fixed-width type, 0 for others."""
    if pa.types.is_null(kind) or pa.types.is_boolean(kind):
        return 0.25
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size) * _value_bytes(kind.value_type)
    if pa.types.is_struct(kind):
        return sum(_value_bytes(kind.field(index).type) for index in range(kind.num_fields))
    if pa.types.is_dictionary(kind):
        return fixed_width(kind.index_type)
    return 0 if offset_bytes(kind) else fixed_width(kind) + 0.125


@dataclass(frozen=True, slots=True)
class _LoadedPart:
    """Some wanted rows of one loaded page. Immutable, so that another thread can decode them."""

    rows_of_page: LoadedRows
    skip: int
    rows: int
    together: int

    def decoded_parts(self) -> Iterator[DecodedRows]:
        return self.rows_of_page.decoded_parts(self.skip, self.rows, self.together)


class StructuralField:
    """``FieldDecoder`` of a field of ``leaves`` leaf columns, which are decoded separately and joined by levels."""

    def __init__(self, field: Field, leaves: int, path: str) -> None:
        self._field = field
        self._path = path
        self._pages: list[deque[LeafPage]] = [deque() for _ in range(leaves)]
        self._drained = [0] * leaves  # Drained rows of the first page of each leaf.

    def accept(self, page: LeafPage) -> None:
        self._pages[page.leaf].append(page)

    def promote(self, rows: int) -> None:
        for leaf in range(len(self._pages)):
            for page, _, _ in self._parts(leaf, rows):
                page.loading.promote()

    async def wait(self, rows: int) -> None:
        self.promote(rows)
        for leaf in range(len(self._pages)):
            for page, _, _ in self._parts(leaf, rows):
                with blamed_on(self._field.name, self._path):
                    await page.loading.wait()

    def loaded_rows(self, rows: int) -> int:
        return min(self._loaded(leaf, rows) for leaf in range(len(self._pages)))

    def _loaded(self, leaf: int, rows: int) -> int:
        loaded = 0
        for page, _, count in self._parts(leaf, rows):
            if not page.loading.is_loaded:
                break
            loaded += count
        return loaded

    def size_bytes(self, rows: int) -> int:
        """The approximate Arrow memory of the next ``rows`` rows, estimated from metadata."""
        parts = (part for leaf in range(len(self._pages)) for part in self._parts(leaf, rows))
        return int(sum(count * page.row_bytes for page, _, count in parts))

    def drain(self, rows: int) -> ArrayTask:
        """A task that decodes the next ``rows`` rows; the call itself decodes nothing."""
        spent: list[PendingRead] = []
        loaded_parts: list[list[_LoadedPart]] = []
        for leaf, pages in enumerate(self._pages):
            parts = self._parts(leaf, rows)
            loaded_parts.append(
                [_LoadedPart(page.loading.decoder, skip, count, page.together) for page, skip, count in parts]
            )
            for page, skip, count in parts:
                self._drained[leaf] = skip + count
                if skip + count == page.rows:
                    spent += pages.popleft().loading.reads
                    self._drained[leaf] = 0
        return ArrayTask(lambda: self._decode(rows, loaded_parts), spent)

    def close(self) -> None:
        for pages in self._pages:
            while pages:
                pages.popleft().loading.release()

    def _parts(self, leaf: int, rows: int) -> list[tuple[LeafPage, int, int]]:
        return list(next_rows(self._pages[leaf], self._drained[leaf], rows))

    def _decode(self, rows: int, loaded_parts: Sequence[Sequence[_LoadedPart]]) -> pa.Array:
        """Decode on any thread: loaded pages are immutable."""
        with blamed_on(self._field.name, self._path):
            decoded_parts = ((decoded for part in leaf for decoded in part.decoded_parts()) for leaf in loaded_parts)
            return assemble_field(self._field, rows, decoded_parts)

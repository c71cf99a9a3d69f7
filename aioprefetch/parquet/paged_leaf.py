"""Leaves read by chosen pages: few rows of a chunk are wanted, and the places of its pages are known.

Neighbouring pages make a part, which is submitted, decoded and released as one. Each part is decoded once, by the first
batch that needs it. A column with such a leaf has its leaves decoded separately; ``PagedField`` assembles them.

pyarrow decodes chunks as a whole, so chosen pages become a chunk of their own, in a small file. The bytes are the
chunk's dictionary page and the chosen data pages, back to back. The footer is the file's own, cut to the top-level
column of the leaf, with one row group. The chunk of the leaf is described again in it; the chunks of the column's other
leaves stay as they are, since they are not read. Names, nesting and types are therefore the file's.
"""

from __future__ import annotations

import base64
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from aioprefetch.errors import Error
from aioprefetch.parquet import thrift
from aioprefetch.parquet.byte_plan import PlannedChunk
from aioprefetch.parquet.chunk_columns import ChunkColumns, GroupRows, has_come
from aioprefetch.parquet.decoded_values import check_indices, check_int96, leaves_of
from aioprefetch.parquet.footer import ARROW_SCHEMA, MAGIC, Footer
from aioprefetch.parquet.page_metadata import (
    DICTIONARY,
    LARGE_PAGE_BYTES,
    UNCOMPRESSED,
    BadPage,
    LargePages,
    OffsetIndex,
    PageHeader,
    chunk_refused,
    dictionary_row_bytes,
    read_page_header,
)
from aioprefetch.parquet.row_groups import Columns, one_array, open_reader
from aioprefetch.ranges import Range, joined
from aioprefetch.scheduler.pages import PageIo, PendingRead

# Fields of FileMetaData, RowGroup, ColumnChunk and ColumnMetaData.
_VERSION, _SCHEMA, _ROWS, _ROW_GROUPS, _PAIRS, _WRITER = 1, 2, 3, 4, 5, 6
_COLUMNS, _GROUP_BYTES, _GROUP_ROWS = 1, 2, 3
_META_DATA = 3
_VALUES, _COMPRESSED_SIZE, _DATA_OFFSET, _DICTIONARY_OFFSET = 5, 7, 9, 11

# Of a SchemaElement.
_CHILDREN = 5

# The fields of a chunk's description: type, encodings, path, codec, sizes. Statistics and other places are left out.
_KEPT_OF_CHUNK = (2, _META_DATA)
_KEPT_OF_META_DATA = (1, 2, 3, 4, _VALUES, 6, _COMPRESSED_SIZE, _DATA_OFFSET)
# The lists of this footer come from the file's, which were checked against its bytes.
_LIST_MAX = (1 << 31) - 1


class FooterParts:
    """The parts of a footer, split once, from which footers of one column are made.

    A footer with all columns would be copied, and parsed, for every leaf: time quadratic in the number of columns.
    """

    def __init__(self, footer: Footer) -> None:
        self._footer = footer
        self._raw = bytes(footer.raw)
        self._kept: thrift.Struct = {}
        number = position = schema_start = 0
        while True:
            kind, number, position = thrift.read_field_header(self._raw, position, number)
            if kind == 0:
                break
            # The row groups were walked already; skip them, since there may be very many.
            is_walked = number == _ROW_GROUPS and position < footer.row_groups_end
            end = footer.row_groups_end if is_walked else thrift.skip_value(self._raw, position, kind)
            if number in (_VERSION, _WRITER):
                self._kept[number] = (kind, thrift.Written(self._raw[position:end]))
            elif number == _SCHEMA:
                schema_start = position
            position = end
        self._root, self._elements = self._columns(schema_start)
        # The first leaf of each column, by where its element lies.
        positions = footer.shape.positions
        self._leaves = [bisect_left(positions, elements[0][0]) for elements in self._elements]
        self._arrow_schema = self._stored_schema()
        self.int96 = footer.int96
        # By column: the fields of its footers, but for the row groups and their rows.
        self._heads: dict[int, thrift.Struct] = {}

    def first_leaf(self, leaf: int) -> int:
        """The first leaf of the column that ``leaf`` is in. The column is the only one of a footer that is made."""
        return self._leaves[self._column_of(leaf)]

    def with_chunk(self, row_group: int, leaf: int, *, rows: int, dictionary_bytes: int, data_bytes: int) -> bytes:
        """The footer of a file whose one chunk, of ``leaf``, begins behind the magic bytes and has ``rows`` values."""
        column = self._column_of(leaf)
        if column not in self._heads:
            self._heads[column] = self._fields_of(column)
        group = self._group_with_chunk(row_group, leaf, column, rows, dictionary_bytes, data_bytes)
        groups = (thrift.LIST, thrift.ThriftList(thrift.STRUCT, [group]))
        return thrift.write_struct({**self._heads[column], _ROWS: (thrift.I64, rows), _ROW_GROUPS: groups})

    # --- one column -----------------------------------------------------------------------------------------------

    def _column_of(self, leaf: int) -> int:
        return bisect_right(self._leaves, leaf) - 1

    def _columns(self, start: int) -> tuple[thrift.Struct, list[list[Range]]]:
        """The root of the schema, and the ranges of the elements of each column."""
        _, count, position = thrift.read_list_header(self._raw, start)
        root, position = thrift.read_struct(self._raw, position)
        columns: list[list[Range]] = []
        left = 0
        for _ in range(count - 1):
            children = 0
            for kind, number, at in thrift.fields_of(self._raw, position):
                if number == _CHILDREN and kind in (thrift.I16, thrift.I32, thrift.I64):
                    children = thrift.read_value(self._raw, at, kind)[0]
            end = thrift.skip_value(self._raw, position, thrift.STRUCT)
            if left == 0:
                columns.append([])
                left = 1
            columns[-1].append((position, end))
            left += children - 1
            position = end
        return root, columns

    def _stored_schema(self) -> pa.Schema | None:
        """The Arrow schema that the writer stored, or ``None``. pyarrow's own if it is damaged."""
        stored = (self._footer.metadata.metadata or {}).get(ARROW_SCHEMA)
        if stored is None:
            return None
        try:
            schema = pa.ipc.read_schema(pa.BufferReader(base64.b64decode(stored)))
        except (ValueError, pa.ArrowException, OSError):
            schema = self._footer.schema
        return schema if len(schema) == len(self._elements) else self._footer.schema

    def _fields_of(self, column: int) -> thrift.Struct:
        """The fields of a footer of one column in their order, without values for the rows."""
        elements = [thrift.Written(self._raw[start:end]) for start, end in self._elements[column]]
        root = {**self._root, _CHILDREN: (thrift.I32, 1)}
        fields: thrift.Struct = {
            _VERSION: self._kept[_VERSION],
            _SCHEMA: (thrift.LIST, thrift.ThriftList(thrift.STRUCT, [root, *elements])),
            _ROWS: (thrift.I64, None),
            _ROW_GROUPS: (thrift.LIST, None),
        }
        if self._arrow_schema is not None:
            schema = pa.schema([self._arrow_schema.field(column)])
            pair: thrift.Struct = {
                1: (thrift.BINARY, ARROW_SCHEMA),
                2: (thrift.BINARY, base64.b64encode(schema.serialize().to_pybytes())),
            }
            fields[_PAIRS] = (thrift.LIST, thrift.ThriftList(thrift.STRUCT, [pair]))
        if _WRITER in self._kept:
            fields[_WRITER] = self._kept[_WRITER]
        return fields

    def _group_with_chunk(
        self, row_group: int, leaf: int, column: int, rows: int, dictionary_bytes: int, data_bytes: int
    ) -> thrift.Struct:
        """A RowGroup of the chunks of a column. Only the chunk of ``leaf`` is read."""
        group = self._footer.chunks[row_group]
        first = self._leaves[column]
        last = self._leaves[column + 1] if column + 1 < len(self._leaves) else len(group)
        chunks: list[thrift.Struct | thrift.Written] = []
        for index in range(first, last):
            position = group[index].position
            if index == leaf:
                chunks.append(_described(self._raw, position, rows, dictionary_bytes, data_bytes))
            else:
                end = thrift.skip_value(self._raw, position, thrift.STRUCT)
                chunks.append(thrift.Written(self._raw[position:end]))
        return {
            _COLUMNS: (thrift.LIST, thrift.ThriftList(thrift.STRUCT, chunks)),
            _GROUP_BYTES: (thrift.I64, dictionary_bytes + data_bytes),  # No reader depends on it.
            _GROUP_ROWS: (thrift.I64, rows),
        }


def _described(raw: bytes, position: int, rows: int, dictionary_bytes: int, data_bytes: int) -> thrift.Struct:
    """A ColumnChunk for pages at the beginning of a file."""
    chunk, _ = thrift.read_struct(raw, position)
    chunk = {number: chunk[number] for number in _KEPT_OF_CHUNK if number in chunk}
    kind, meta_data = chunk[_META_DATA]
    meta_data = {number: meta_data[number] for number in _KEPT_OF_META_DATA if number in meta_data}
    first = len(MAGIC)
    meta_data[_VALUES] = (thrift.I64, rows)
    meta_data[_COMPRESSED_SIZE] = (thrift.I64, dictionary_bytes + data_bytes)
    meta_data[_DATA_OFFSET] = (thrift.I64, first + dictionary_bytes)
    if dictionary_bytes:
        meta_data[_DICTIONARY_OFFSET] = (thrift.I64, first)
    return {**chunk, _META_DATA: (kind, meta_data)}


def decode_pages(
    parts: FooterParts,
    row_group: int,
    leaf: int,
    *,
    rows: int,
    dictionary: memoryview,
    pages: Sequence[memoryview],
    page_checksums: bool = True,
) -> pa.Array:
    """The values of data pages that have ``rows`` rows together, as the column that the leaf alone makes.

    ``dictionary`` is empty where the chunk has none. Headers stay as they are, and so do their checksums. Raises what
    pyarrow raises for bad pages.
    """
    data_bytes = sum(len(page) for page in pages)
    raw = parts.with_chunk(row_group, leaf, rows=rows, dictionary_bytes=len(dictionary), data_bytes=data_bytes)
    content = b"".join((MAGIC, dictionary, *pages, raw, len(raw).to_bytes(4, "little"), MAGIC))
    source = pa.BufferReader(content)
    metadata: Any = pq.ParquetFile(source, thrift_container_size_limit=_LIST_MAX).metadata
    int96 = parts.int96

    def read(unit: str | None) -> pa.Array:
        reader = open_reader(pa.BufferReader(content), metadata, unit, page_checksums=page_checksums)
        table = reader.read_row_groups([0], column_indices=[leaf - parts.first_leaf(leaf)], use_threads=False)
        column = table.column(0)
        check_indices(column.chunks)
        return one_array(column.chunks) if column.num_chunks else column.combine_chunks()

    values = read(None if int96 is None else int96.unit)
    if int96 is not None and int96.other is not None and leaf in int96.leaves:
        for array, other in zip(leaves_of([values]), leaves_of([read(int96.other)]), strict=True):
            check_int96(array, other, metadata.schema.column(leaf - parts.first_leaf(leaf)).path)
    return values


# --- leaves and fields ------------------------------------------------------------------------------------------------

_NOTHING = memoryview(b"")


class _PageSpan:
    """Some pages, and their wanted rows ``[first, last)``, counted over the wanted rows of the row group."""

    def __init__(self, pages: Sequence[int], rows: Sequence[Range], first: int, last: int) -> None:
        self.pages = pages
        # The wanted rows, counted over the rows of the concatenated pages.
        self.rows = rows
        self.first = first
        self.last = last
        self.read: PendingRead | None = None
        self.values: pa.ChunkedArray | None = None
        self.large_bytes = 0
        self.lock = threading.Lock()


class PagedLeaf:
    """A ``Unit`` and a source of one column. The dictionary is part of the first part and is kept."""

    def __init__(
        self,
        planned: PlannedChunk,
        footer: FooterParts,
        group: GroupRows,
        large_pages: LargePages,
        *,
        part_bytes: int,
    ) -> None:
        assert planned.offset_index is not None
        self.chunk = planned.chunk
        self._index: OffsetIndex = planned.offset_index
        self._footer = footer
        self._wanted = group.wanted
        self._first = group.first
        self._path = group.path
        self._page_options = group.pages
        self._large_pages = large_pages
        self._parts = self._cut(planned.pages or (), part_bytes)
        self._lasts = [part.last for part in self._parts]
        self._dictionary_read: PendingRead | None = None
        self._dictionary_range = (self.chunk.start, self._index.starts[0])
        self._io: PageIo | None = None
        self._submitted = 0
        self._arrived = 0
        self._released = 0

    def _cut(self, pages: Sequence[int], part_bytes: int) -> list[_PageSpan]:
        together: list[list[int]] = []
        size = part_bytes
        for page in pages:
            if size + self._index.sizes[page] > part_bytes or page != together[-1][-1] + 1:
                together.append([])
                size = 0
            together[-1].append(page)
            size += self._index.sizes[page]
        return [self._part(these) for these in together]

    def _part(self, pages: list[int]) -> _PageSpan:
        start, end = self._index.page_rows(pages[0])[0], self._index.page_rows(pages[-1])[1]
        rows = [(low, high) for low, high in self._wanted.within(start, end).ranges]
        return _PageSpan(pages, rows, self._wanted.before(start), self._wanted.before(end))

    # --- scheduling ---------------------------------------------------------------------------------------------

    @property
    def parts(self) -> int:
        return len(self._parts)

    def scan_row(self, part: int) -> int:
        return self._first + self._parts[part].first

    def submit(self, io: PageIo, count: int) -> None:
        self._io = io
        start, end = self._dictionary_range
        if self._submitted == 0 and count and start < end:
            self._dictionary_read = io.submit([(start, end)], self._first)
        while self._submitted < min(count, len(self._parts)):
            part = self._parts[self._submitted]
            ranges = joined(self._index.page_bytes(page) for page in part.pages)
            part.read = io.submit(ranges, self.scan_row(self._submitted))
            self._submitted += 1

    # --- as a source of columns -----------------------------------------------------------------------------------

    def ready(self) -> int:
        if not has_come(self._dictionary_read):
            return 0
        while self._arrived < self._submitted:
            if not has_come(self._parts[self._arrived].read):
                break
            self._arrived += 1
        return self._lasts[self._arrived - 1] if self._arrived else 0

    def dictionary_row_bytes(self) -> float:
        """The memory of a row by the values of its dictionary that have arrived."""
        read = self._dictionary_read
        if read is None or not has_come(read):
            return 0.0
        return dictionary_row_bytes(lambda start, end: read.views[0], self.chunk)

    def promote(self, rows: int) -> None:
        if self._dictionary_read is not None:
            self._dictionary_read.promote()
        for part in self._before(rows):
            if part.read is not None:
                part.read.promote()

    async def wait(self, rows: int) -> None:
        self.promote(rows)
        if self._dictionary_read is not None:
            await self._dictionary_read.wait()
        for part in self._before(rows):
            if part.read is not None:
                await part.read.wait()

    def _before(self, rows: int) -> Sequence[_PageSpan]:
        """The parts of the first ``rows`` rows that may not have arrived; all are submitted."""
        end = bisect_left(self._lasts, rows) + 1
        if self._submitted < min(end, len(self._parts)):
            assert self._io is not None, "a leaf is scheduled before it is waited for"
            self.submit(self._io, end)
        return self._parts[self._arrived : end]

    def drain(self, first: int, last: int) -> Callable[[], pa.Array]:
        """A function that decodes the rows ``[first, last)``, which are ready; it runs on any thread."""
        start, end = bisect_right(self._lasts, first), bisect_left(self._lasts, last) + 1
        parts = self._parts[start:end]

        def decode() -> pa.Array:
            pieces: list[pa.Array] = []
            for part in parts:
                low, high = max(first, part.first) - part.first, min(last, part.last) - part.first
                if low < high:
                    pieces += self._values(part).slice(low, high - low).chunks
            return one_array(pieces)

        return decode

    def release(self, rows: int) -> None:
        while self._released < len(self._parts) and self._lasts[self._released] <= rows:
            self._give_back(self._parts[self._released])
            self._released += 1
        if self._released == len(self._parts):
            self.close()

    def close(self) -> None:
        for part in self._parts:
            self._give_back(part)
        read, self._dictionary_read = self._dictionary_read, None
        if read is not None:
            read.release()

    def _give_back(self, part: _PageSpan) -> None:
        part.values = None
        self._large_pages.remove(part.large_bytes)
        part.large_bytes = 0
        read, part.read = part.read, None
        if read is not None:
            read.release()

    # --- decoding -------------------------------------------------------------------------------------------------

    def _values(self, part: _PageSpan) -> pa.ChunkedArray:
        """The wanted rows of a part."""
        with part.lock:
            if part.values is None:
                part.values = self._decoded(part)
            return part.values

    def _decoded(self, part: _PageSpan) -> pa.ChunkedArray:
        assert part.read is not None
        rows = sum(high - low for low, high in map(self._index.page_rows, part.pages))
        pages = self._pages(part, part.read)
        try:
            dictionary = self._checked_dictionary()
            sizes = [self._checked_page(page, view) for page, view in zip(part.pages, pages, strict=True)]
            self._count(part, sum(size for size in sizes if size > LARGE_PAGE_BYTES))
            values = decode_pages(
                self._footer,
                self.chunk.row_group,
                self.chunk.column,
                rows=rows,
                dictionary=dictionary,
                pages=pages,
                page_checksums=self._page_options.checksums,
            )
        except Error as error:
            raise error.add_context(path=self._path) from error.__cause__
        except Exception as error:
            raise chunk_refused(self.chunk, error, self._path) from error
        if len(values) != rows:
            raise chunk_refused(self.chunk, f"its pages have {len(values)} rows, its index tells {rows}", self._path)
        return pa.chunked_array([values.slice(low, high - low) for low, high in part.rows], type=values.type)

    def _pages(self, part: _PageSpan, read: PendingRead) -> list[memoryview]:
        """The bytes of each page; pages back to back were submitted as one range."""
        pages: list[memoryview] = []
        views = iter(read.views)
        ranges = iter(joined(self._index.page_bytes(page) for page in part.pages))
        (start, end), view = next(ranges), next(views)
        for low, high in map(self._index.page_bytes, part.pages):
            if low >= end:
                (start, end), view = next(ranges), next(views)
            pages.append(view[low - start : high - start])
        return pages

    def _checked_dictionary(self) -> memoryview:
        read = self._dictionary_read
        if read is None:
            return _NOTHING
        view = read.views[0]
        header = self._header(view)
        if header is None or header.kind != DICTIONARY or header.end != len(view):
            raise BadPage("the page before its first data page is not a dictionary page")
        return view

    def _header(self, view: memoryview) -> PageHeader | None:
        return read_page_header(view, 0, len(view), self.chunk.codec, bytes_max=self._page_options.bytes_max)

    def _count(self, part: _PageSpan, large_bytes: int) -> None:
        if large_bytes and self.chunk.codec != UNCOMPRESSED:
            self._large_pages.add(large_bytes, self.chunk)
            part.large_bytes = large_bytes

    def _checked_page(self, page: int, view: memoryview) -> int:
        """The decompressed size of a page, which must be the page of the offset index, with its rows.

        Leaves of lists are never paged.
        """
        header = self._header(view)
        low, high = self._index.page_rows(page)
        if header is None or not header.is_data or header.end != len(view) or header.values != high - low:
            raise BadPage(f"page {page} is not the one of {high - low} rows that its offset index tells")
        return header.uncompressed_bytes


class PagedField:
    """A ``ColumnSource`` of the column at ``place``, which is of type ``kind``.

    ``others`` has its leaves that are read whole. With several leaves ``can_be_merged`` must hold.
    """

    def __init__(
        self,
        place: int,
        kind: pa.DataType,
        leaves: Sequence[PagedLeaf],
        others: ChunkColumns | None,
        *,
        row_bytes: float,
    ) -> None:
        self._place = place
        self._kind = kind
        self._leaves = leaves
        self._others = others
        self._row_bytes = row_bytes
        self._sources: list[PagedLeaf | ChunkColumns] = [*leaves, *([others] if others is not None else [])]

    def ready(self) -> int:
        return min(source.ready() for source in self._sources)

    def promote(self, rows: int) -> None:
        for source in self._sources:
            source.promote(rows)

    async def wait(self, rows: int) -> None:
        for source in self._sources:
            await source.wait(rows)

    def drain(self, first: int, last: int) -> Callable[[], Columns]:
        decodes = [leaf.drain(first, last) for leaf in self._leaves]
        others = self._others.drain(first, last) if self._others is not None else None
        place, kind = self._place, self._kind

        def decode() -> Columns:
            arrays = [decode_leaf() for decode_leaf in decodes]
            arrays += [array for _, array in others()] if others is not None else []
            return [(place, merged(arrays, kind))]

        return decode

    def row_bytes(self) -> float:
        return max(self._row_bytes, sum(leaf.dictionary_row_bytes() for leaf in self._leaves))

    def release(self, rows: int) -> None:
        for source in self._sources:
            source.release(rows)

    def close(self) -> None:
        for source in self._sources:
            source.close()


def can_be_merged(kind: pa.DataType, leaves: int) -> bool:
    """Whether leaves that are decoded separately can be merged: their paths must part at a struct."""
    return leaves == 1 or pa.types.is_struct(kind)


def merged(arrays: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
    """One column from the arrays of its leaves: the same rows, each with the fields of some leaves."""
    if len(arrays) == 1:
        return arrays[0]
    children: list[pa.Array] = []
    for field in kind:
        having = [array for array in arrays if array.type.get_field_index(field.name) >= 0]
        children.append(merged([array.field(field.name) for array in having], field.type))
    nulls = arrays[0].is_null() if arrays[0].null_count else None
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=nulls)

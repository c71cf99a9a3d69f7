"""A small file of chosen pages: pyarrow decodes chunks as a whole, so chosen pages become a chunk of their own.

The bytes are the chunk's dictionary page and the chosen data pages, back to back. The footer is the file's own, cut to
the top-level column of the leaf, with one row group. The chunk of the leaf is described again in it; those of the
column's other leaves stay as they are, since they are not read. Names, nesting and types are therefore the file's.
"""

from __future__ import annotations

import base64
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from aioprefetch.parquet import thrift
from aioprefetch.parquet.footer import MAGIC, Footer
from aioprefetch.parquet.row_reader import one_array, open_reader
from aioprefetch.ranges import Range

# Fields of FileMetaData, RowGroup, ColumnChunk and ColumnMetaData.
_VERSION, _SCHEMA, _ROWS, _ROW_GROUPS, _PAIRS, _WRITER = 1, 2, 3, 4, 5, 6
_COLUMNS, _GROUP_BYTES, _GROUP_ROWS = 1, 2, 3
_META_DATA = 3
_VALUES, _COMPRESSED_SIZE, _DATA_OFFSET, _DICTIONARY_OFFSET = 5, 7, 9, 11

# Of a SchemaElement.
_CHILDREN = 5

# The pair whose value is the Arrow schema of the columns, by which they get their types.
_ARROW_SCHEMA = b"ARROW:schema"

# What is described of a chunk: type, encodings, path, codec, sizes. Statistics and what lies elsewhere is left out.
_KEPT_OF_CHUNK = (2, _META_DATA)
_KEPT_OF_META_DATA = (1, 2, 3, 4, _VALUES, 6, _COMPRESSED_SIZE, _DATA_OFFSET)


class FooterParts:
    """The bytes of a footer, taken apart once: from it footers are made that know one column alone.

    A footer with all columns would be copied, and parsed, for every leaf: time quadratic in the number of columns.
    """

    def __init__(self, footer: Footer) -> None:
        self._footer = footer
        self._raw = bytes(footer.raw)
        self._fields: dict[int, tuple[int, Range]] = {}
        number = position = 0
        while True:
            kind, number, position = thrift.read_field_header(self._raw, position, number)
            if kind == 0:
                break
            # The row groups were walked before: there may be very many.
            is_walked = number == _ROW_GROUPS and position < footer.row_groups_end
            end = footer.row_groups_end if is_walked else thrift.skip_value(self._raw, position, kind)
            self._fields[number] = (kind, (position, end))
            position = end
        self._root, self._elements = self._columns()
        self._leaves = self._leaves_of_columns()
        self._arrow_schema = self._stored_schema()
        self.int96_unit = footer.int96_unit
        # By column: the fields before the row groups, and those behind them, but for the number of rows.
        self._heads: dict[int, tuple[bytes, bytes]] = {}

    def first_leaf(self, leaf: int) -> int:
        """The first leaf of the column that ``leaf`` is in. The column is the only one of a footer that is made."""
        return self._leaves[self._column_of(leaf)]

    def with_chunk(self, row_group: int, leaf: int, *, rows: int, dictionary_bytes: int, data_bytes: int) -> bytes:
        """The footer of a file whose one chunk, of ``leaf``, begins behind the magic bytes and has ``rows`` values."""
        column = self._column_of(leaf)
        if column not in self._heads:
            self._heads[column] = self._schema_fields(column), self._rest_fields(column)
        before, behind = self._heads[column]
        group = self._group_with_chunk(row_group, leaf, column, rows, dictionary_bytes, data_bytes)
        total = _field_header(_ROWS, thrift.I64, _SCHEMA) + _integer(rows)
        groups = _field_header(_ROW_GROUPS, thrift.LIST, _ROWS) + _list_header(thrift.STRUCT, 1) + group
        return b"".join((before, total, groups, behind))

    # --- one column -----------------------------------------------------------------------------------------------

    def _column_of(self, leaf: int) -> int:
        return bisect_right(self._leaves, leaf) - 1

    def _columns(self) -> tuple[thrift.Struct, list[tuple[int, Range]]]:
        """The root of the schema, and how many elements each column has, and where they lie."""
        _, count, position = thrift.read_list_header(self._raw, self._fields[_SCHEMA][1][0])
        root, position = thrift.read_struct(self._raw, position)
        columns: list[tuple[int, Range]] = []
        start, elements, left = position, 0, 1
        for _ in range(count - 1):
            children = 0
            for kind, number, at in thrift.fields_of(self._raw, position):
                if number == _CHILDREN and kind in (thrift.I16, thrift.I32, thrift.I64):
                    children = thrift.read_value(self._raw, at, kind)[0]
            position = thrift.skip_value(self._raw, position, thrift.STRUCT)
            elements += 1
            left += children - 1
            if left == 0:
                columns.append((elements, (start, position)))
                start, elements, left = position, 0, 1
        return root, columns

    def _leaves_of_columns(self) -> list[int]:
        """The first leaf of each column, by where its element lies."""
        positions = self._footer.shape.positions
        return [bisect_left(positions, start) for _, (start, _) in self._elements]

    def _stored_schema(self) -> pa.Schema | None:
        """The Arrow schema that the writer stored; ``None`` if there is none, and what was made of one that is odd."""
        stored = (self._footer.metadata.metadata or {}).get(_ARROW_SCHEMA)
        if stored is None:
            return None
        try:
            schema = pa.ipc.read_schema(pa.BufferReader(base64.b64decode(stored)))
        except (ValueError, pa.ArrowException, OSError):
            schema = self._footer.schema
        return schema if len(schema) == len(self._elements) else self._footer.schema

    def _schema_fields(self, column: int) -> bytes:
        kind, (start, end) = self._fields[_VERSION]
        version = _field_header(_VERSION, kind, 0) + self._raw[start:end]
        elements, (start, end) = self._elements[column]
        root = thrift.write_struct({**self._root, _CHILDREN: (thrift.I32, 1)})
        header = _field_header(_SCHEMA, thrift.LIST, _VERSION) + _list_header(thrift.STRUCT, 1 + elements)
        return b"".join((version, header, root, self._raw[start:end]))

    def _rest_fields(self, column: int) -> bytes:
        out, before = b"", _ROW_GROUPS
        if self._arrow_schema is not None:
            schema = pa.schema([self._arrow_schema.field(column)])
            pair: thrift.Struct = {
                1: (thrift.BINARY, _ARROW_SCHEMA),
                2: (thrift.BINARY, base64.b64encode(schema.serialize().to_pybytes())),
            }
            out = _field_header(_PAIRS, thrift.LIST, before) + _list_header(thrift.STRUCT, 1)
            out, before = out + thrift.write_struct(pair), _PAIRS
        if _WRITER in self._fields:
            kind, (start, end) = self._fields[_WRITER]
            out += _field_header(_WRITER, kind, before) + self._raw[start:end]
        return out + b"\x00"

    def _group_with_chunk(
        self, row_group: int, leaf: int, column: int, rows: int, dictionary_bytes: int, data_bytes: int
    ) -> bytes:
        """A RowGroup of the chunks of a column, of which only that of ``leaf`` is read."""
        group = self._footer.chunks[row_group]
        first = self._leaves[column]
        last = self._leaves[column + 1] if column + 1 < len(self._leaves) else len(group)
        out = [_field_header(_COLUMNS, thrift.LIST, 0), _list_header(thrift.STRUCT, last - first)]
        for index in range(first, last):
            position = group[index].position
            if index == leaf:
                out.append(_described(self._raw, position, rows, dictionary_bytes, data_bytes))
            else:
                out.append(self._raw[position : thrift.skip_value(self._raw, position, thrift.STRUCT)])
        # The number of bytes is nothing that decides anything.
        out.append(_field_header(_GROUP_BYTES, thrift.I64, _COLUMNS) + _integer(dictionary_bytes + data_bytes))
        out.append(_field_header(_GROUP_ROWS, thrift.I64, _GROUP_BYTES) + _integer(rows) + b"\x00")
        return b"".join(out)


def _described(raw: bytes, position: int, rows: int, dictionary_bytes: int, data_bytes: int) -> bytes:
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
    chunk[_META_DATA] = (kind, meta_data)
    return thrift.write_struct(chunk)


def _field_header(number: int, kind: int, before: int) -> bytes:
    delta = number - before
    return bytes([delta << 4 | kind]) if 0 < delta <= 15 else bytes([kind]) + _integer(number)


def _list_header(element: int, count: int) -> bytes:
    if count < 15:
        return bytes([count << 4 | element])
    return bytes([0xF0 | element]) + _varint(count)


def _integer(number: int) -> bytes:
    return _varint(number << 1 if number >= 0 else (-number << 1) - 1)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


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
    reader = open_reader(pa.BufferReader(content), metadata, parts.int96_unit, page_checksums=page_checksums)
    table = reader.read_row_groups([0], column_indices=[leaf - parts.first_leaf(leaf)], use_threads=False)
    column = table.column(0)
    return one_array(column.chunks) if column.num_chunks else column.combine_chunks()


# The lists of this footer are those of the file's, which were held against its bytes.
_LIST_MAX = (1 << 31) - 1

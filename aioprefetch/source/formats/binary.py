"""Binary: each file is one record with its path, time, length and content, as Spark's ``binaryFile`` has them."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pyarrow as pa

from aioprefetch.errors import Unsupported
from aioprefetch.operator.operator import Operator
from aioprefetch.source.formats.file_bytes import read_content
from aioprefetch.source.formats.line_stream import check_splits
from aioprefetch.source.formats.record_format import FoundBatch, RecordFormat, Wanted
from aioprefetch.source.options import FormatOptions, ReadOptions
from aioprefetch.source.values import FetchItem, SourceFile

BINARY_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("modificationTime", pa.timestamp("us", "UTC")),
        ("length", pa.int64()),
        ("content", pa.binary()),
    ]
)

# The limit of a value in an Arrow array with offsets of 32 bits, and of an array in Java.
_CONTENT_BYTES_MAX = (1 << 31) - 1


class BinaryFormat(RecordFormat):
    """The content is read only if its column is wanted. It is not decompressed."""

    name = "binary"
    comes_whole = True

    def has_column_names(self, options: FormatOptions) -> bool:
        return False

    async def sample(
        self, operator: Operator, file: SourceFile, options: FormatOptions, read: ReadOptions
    ) -> pa.Schema:
        return BINARY_SCHEMA

    async def read(self, operator: Operator, item: FetchItem, want: Wanted) -> AsyncGenerator[FoundBatch, None]:
        file = item.file
        check_splits(item, want.options)
        modified_us = None if file.modified_ms is None else file.modified_ms * 1000
        row: dict[str, object] = {
            "path": f"{operator.info.url}/{file.key}",
            "modificationTime": modified_us,
            "length": file.size,
        }
        arrays = {name: pa.array([value], BINARY_SCHEMA.field(name).type) for name, value in row.items()}
        if "content" in want.schema.names:
            arrays["content"] = _one_value(await _content(operator, file, want))
        schema = pa.schema([field for field in BINARY_SCHEMA if field.name in arrays])
        offsets = pa.array([0], pa.int64()) if want.offsets else None
        batch = pa.RecordBatch.from_arrays([arrays.pop(name) for name in schema.names], schema=schema)
        del arrays
        yield FoundBatch(batch, offsets)


def _one_value(content: bytes) -> pa.Array:
    """An array of one value, without a copy."""
    bounds = pa.array([0, len(content)], pa.int32()).buffers()[1]
    return pa.Array.from_buffers(pa.binary(), 1, [None, bounds, pa.py_buffer(content)])


async def _content(operator: Operator, file: SourceFile, want: Wanted) -> bytes:
    if file.size > _CONTENT_BYTES_MAX:
        raise Unsupported(
            f"a binary record holds at most {_CONTENT_BYTES_MAX} bytes, the file has {file.size}",
            operation="read_items",
            path=file.key,
        )
    return await read_content(operator, file, want.read.open_file)

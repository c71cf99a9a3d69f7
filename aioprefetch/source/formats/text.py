"""Text: each line is a record with one column, called ``value`` unless the schema has another name."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pyarrow as pa

from aioprefetch.errors import ConfigInvalid
from aioprefetch.operator.operator import Operator
from aioprefetch.source.formats.line_stream import LineFormat, line_ends
from aioprefetch.source.formats.record_format import FoundBatch, Wanted
from aioprefetch.source.formats.records import (
    JoinedRecords,
    LineEnds,
    Lines,
    ParseLines,
    line_starts,
    parse_joined,
    split_lines,
)
from aioprefetch.source.options import FormatOptions, ReadOptions
from aioprefetch.source.values import SourceFile

TEXT_SCHEMA = pa.schema([("value", pa.string())])


class TextFormat(LineFormat):
    r"""Lines of text. They end as in Spark, with ``\n``, ``\r\n`` or ``\r``, or only with ``line_separator``."""

    name = "text"

    def has_column_names(self, options: FormatOptions) -> bool:
        return False

    async def sample(
        self, operator: Operator, file: SourceFile, options: FormatOptions, read: ReadOptions
    ) -> pa.Schema:
        """The schema of one string column, without I/O."""
        return TEXT_SCHEMA

    def parser(self, want: Wanted, path: str) -> ParseLines:
        return partial(_records, want, line_ends(want.options))

    def likeness(self, data: bytes, options: FormatOptions) -> bytes | None:
        return None if b"\r" in data else b""

    def joined(self, texts: Sequence[bytes], want: Wanted) -> JoinedRecords | None:
        return parse_joined(texts, self.parser(want, ""))


def _column(want: Wanted) -> str:
    """The name of the column in the schema, if it has one. ``ConfigInvalid`` for another schema."""
    fields = want.known_fields
    if not len(fields):
        return str(TEXT_SCHEMA.names[0])
    if len(fields) == 1 and (pa.types.is_string(fields[0].type) or pa.types.is_large_string(fields[0].type)):
        return str(fields[0].name)
    description = ", ".join(f"{field.name} {field.type}" for field in fields)
    raise ConfigInvalid(f"a text file has one column, a string, not {description}", operation="read_items")


def _records(want: Wanted, ends: LineEnds, lines: Lines) -> FoundBatch:
    batch = pa.RecordBatch.from_arrays([split_lines(lines.data, ends)], [_column(want)])
    return FoundBatch(batch, line_starts(lines, ends) if want.offsets else None)

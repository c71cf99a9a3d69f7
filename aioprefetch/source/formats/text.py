"""Text: each line is a record with one column, called ``value`` unless the schema has another name."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pyarrow as pa

from aioprefetch.errors import ConfigInvalid
from aioprefetch.operator.operator import Operator
from aioprefetch.source.formats.line_stream import Cutter, LineFormat, line_ends
from aioprefetch.source.formats.record_format import FoundBatch, Wanted
from aioprefetch.source.formats.records import (
    JoinedRecords,
    LineEnds,
    Lines,
    ParseLines,
    WholeCutter,
    line_starts,
    parse_joined,
    split_lines,
)
from aioprefetch.source.options import FormatOptions, ReadOptions
from aioprefetch.source.values import FetchItem, SourceFile

TEXT_SCHEMA = pa.schema([("value", pa.string())])


class TextFormat(LineFormat):
    r"""Lines of text. They end as in Spark, with ``\n``, ``\r\n`` or ``\r``, or only with ``line_separator``.

    With ``whole_text`` a file is one record.
    """

    name = "text"
    options = LineFormat.options | {"whole_text"}

    def can_split(self, file: SourceFile, options: FormatOptions) -> bool:
        return not options.whole_text and super().can_split(file, options)

    def cutter(self, item: FetchItem, options: FormatOptions) -> Cutter:
        return WholeCutter(path=item.file.key) if options.whole_text else super().cutter(item, options)

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
        return None if options.whole_text or b"\r" in data else b""

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
    if want.options.whole_text:
        texts, starts = pa.array([lines.data], pa.binary()).cast(pa.string()), pa.array([0], pa.int64())
    else:
        texts, starts = split_lines(lines.data, ends), line_starts(lines, ends) if want.offsets else None
    return FoundBatch(pa.RecordBatch.from_arrays([texts], [_column(want)]), starts if want.offsets else None)

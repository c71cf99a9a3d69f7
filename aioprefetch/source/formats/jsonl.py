"""JSON lines: each line that is not blank is an object, a record.

pyarrow parses a part of the file at once under the explicit schema, so types never depend on where parts are cut.
What it refuses, or takes otherwise than line by line, is read again by ``json_rows``, which tells what is wrong.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from functools import partial

import pyarrow as pa

from aioprefetch.errors import ConfigInvalid
from aioprefetch.operator.operator import Operator
from aioprefetch.source.files import FetchItem, SourceFile
from aioprefetch.source.formats.json_parts import JsonParts, one_object_a_line
from aioprefetch.source.formats.json_types import infer_json
from aioprefetch.source.formats.line_stream import Cutter, line_cutter, line_ends, on_thread, read_records
from aioprefetch.source.formats.record_format import FoundBatch, Wanted
from aioprefetch.source.formats.records import Joined, Parse, parse_joined
from aioprefetch.source.formats.sampling import sample_lines
from aioprefetch.source.options import FormatOptions, ReadOptions


class JsonLinesFormat:
    """See ``LineFormat``."""

    name = "jsonl"

    async def sample(
        self, operator: Operator, file: SourceFile, options: FormatOptions, read: ReadOptions
    ) -> pa.Schema:
        """See ``RecordFormat``."""
        ends = line_ends(options)
        lines = await sample_lines(operator, file, options, read, self.cutter(FetchItem(file), options))
        return await on_thread(operator, len(lines.data), partial(infer_json, lines, ends, file.key))

    def read(self, operator: Operator, item: FetchItem, want: Wanted) -> AsyncGenerator[FoundBatch, None]:
        """See ``RecordFormat``."""
        return read_records(operator, item, want, self.cutter(item, want.options), self.parser(want, item.file.key))

    def cutter(self, item: FetchItem, options: FormatOptions) -> Cutter:
        """See ``LineFormat``."""
        if options.multi_line:
            raise ConfigInvalid(
                "multiLine is for csv: in JSON lines each record is one line",
                operation="read_items",
                path=item.file.key,
            )
        return line_cutter(item, options)

    def parser(self, want: Wanted, path: str) -> Parse:
        """See ``LineFormat``."""
        return JsonParts(want, line_ends(want.options), path).records

    def likeness(self, data: bytes, options: FormatOptions) -> bytes | None:
        """See ``LineFormat``."""
        return b"" if one_object_a_line(data) else None

    def joined(self, texts: Sequence[bytes], want: Wanted) -> Joined | None:
        """See ``LineFormat``."""
        return parse_joined(texts, JsonParts(want, line_ends(want.options), "").at_once)

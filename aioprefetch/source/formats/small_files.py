"""Small files of lines, each read by one GET and parsed together.

pyarrow takes as long to start as to parse a thousand lines. Adjacent files of one likeness are therefore parsed as one
text, by the same rules as large files. A file that differs is parsed alone.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import cast

from aioprefetch.errors import Error
from aioprefetch.operator.operator import Operator
from aioprefetch.source.files import FetchItem, SourceFile
from aioprefetch.source.formats.compression import decompressed_whole
from aioprefetch.source.formats.corruption import UNDECODABLE
from aioprefetch.source.formats.file_bytes import WHOLE_BYTES_MAX, comes_whole, read_whole
from aioprefetch.source.formats.line_stream import Decoding, LineFormat, on_thread, read_records
from aioprefetch.source.formats.lines import Lines
from aioprefetch.source.formats.record_format import FoundBatch, Wanted
from aioprefetch.source.formats.records import JoinedRecords, in_batches
from aioprefetch.source.formats.registry import compression_of, format_of

# Larger files take longer to parse than pyarrow takes to start.
SMALL_BYTES_MAX = 64 << 10


@dataclass(frozen=True, slots=True)
class SmallText:
    """A small file as UTF-8, whose lines are records. Files of one ``likeness`` can be parsed together."""

    data: bytes
    likeness: tuple[str, bytes]

    @property
    def nbytes(self) -> int:
        """The size of the text in memory. Its parsed rows take about as much."""
        return len(self.data)


class SmallFiles:
    """Reads and parses the small files among the items of one task."""

    def __init__(self, operator: Operator, want: Wanted) -> None:
        self._operator = operator
        self._want = want

    def suits(self, item: FetchItem) -> bool:
        """Whether an item is the whole of a small file of lines."""
        options, file = self._want.options, item.file
        return (
            file.size <= SMALL_BYTES_MAX
            and comes_whole(file)
            and item.is_whole
            and options.line_separator in (None, "\n")
            and not options.multi_line
            and isinstance(format_of(file.key, options), LineFormat)
        )

    async def read(self, item: FetchItem) -> AsyncGenerator[SmallText | FoundBatch, None]:
        """The text of a file, to be parsed together with others, or its records if it must be parsed alone."""
        file, want = item.file, self._want
        line_format = self._format(file)
        raw = await read_whole(self._operator, file, want.read.open_file)
        compression = compression_of(file.key, want.options)
        data = raw if compression == "none" else decompressed_whole(raw, compression, file.key, WHOLE_BYTES_MAX)
        if data is None:
            cutter, parse = line_format.cutter(item, want.options), line_format.parser(want, file.key)
            async with aclosing(read_records(self._operator, item, want, cutter, parse, raw)) as batches:
                async for batch in batches:
                    yield batch
            return
        lines = Decoding(file, want.options).whole(data)
        if not lines.data:
            return
        if len(lines.data) <= SMALL_BYTES_MAX and not lines.offset and lines.length is len:
            likeness = line_format.likeness(lines.data, want.options)
            if likeness is not None:
                yield SmallText(lines.data, (line_format.name, likeness))
                return
        parsed = await on_thread(self._operator, len(lines.data), partial(self._alone, file, lines))
        if parsed is not None:
            for batch in in_batches(parsed, want.read.batch_rows):
                yield batch

    def together(self, files: Sequence[SourceFile], texts: Sequence[SmallText]) -> JoinedRecords | None:
        """The records of files of one likeness; ``None`` if each must be parsed alone."""
        if len(texts) < 2:
            return None
        try:
            return self._format(files[0]).joined([text.data for text in texts], self._want)
        except (Error, *UNDECODABLE):
            return None

    def alone(self, file: SourceFile, text: SmallText) -> FoundBatch | None:
        """The records of one file. Raises as ``RecordFormat.read`` does."""
        return self._alone(file, Lines(text.data, 0))

    def _alone(self, file: SourceFile, lines: Lines) -> FoundBatch | None:
        return self._format(file).parser(self._want, file.key)(lines)

    def _format(self, file: SourceFile) -> LineFormat:
        return cast("LineFormat", format_of(file.key, self._want.options))

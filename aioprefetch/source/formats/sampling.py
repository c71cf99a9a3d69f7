"""The first records of a file, for its schema: whole ones, from few bytes and with one request."""

from __future__ import annotations

from aioprefetch.errors import InvalidArgument
from aioprefetch.operator.operator import Operator
from aioprefetch.source.files import FetchItem, SourceFile
from aioprefetch.source.formats.choosing import compression_of
from aioprefetch.source.formats.compression import decompressor
from aioprefetch.source.formats.line_stream import Cutter, Decoding, line_cutter
from aioprefetch.source.formats.lines import Lines
from aioprefetch.source.formats.opened import beginning
from aioprefetch.source.options import FormatOptions, ReadOptions

# The names of a CSV file are looked for in so much of its head.
HEAD_BYTES = 16 << 10


async def sample_lines(
    operator: Operator, file: SourceFile, options: FormatOptions, read: ReadOptions, cutter: Cutter
) -> Lines:
    """The whole records in the first ``sample_bytes`` of a file, compressed or not; no data where it has none.

    ``InvalidArgument`` when the first record is longer than that.
    """
    raw = await beginning(operator, file, read.open_file, options.sample_bytes)
    data, is_whole = _plain(raw, file, options)
    decoding = Decoding(file, options)
    data = decoding.before(data, is_last=is_whole)
    found = [cutter.push(data)]
    if is_whole:
        found.append(cutter.finish())
    parts = [decoding.after(one) for one in found if one is not None]
    if not parts and not is_whole:
        raise InvalidArgument(
            f"the first record is longer than sample_bytes={options.sample_bytes}: make it larger, or give the schema",
            operation="infer_schema",
            path=file.key,
        )
    if not parts:
        return Lines(b"", 0)
    return Lines(b"".join(one.data for one in parts), parts[0].offset, parts[0].length)


async def first_lines(
    operator: Operator, file: SourceFile, options: FormatOptions, read: ReadOptions, size: int
) -> Lines:
    """The whole lines in the first ``size`` bytes of a file that can be split."""
    raw = await beginning(operator, file, read.open_file, size)
    cutter = line_cutter(FetchItem(file), options)
    found = [cutter.push(raw), cutter.finish() if len(raw) >= file.size else None]
    decoding = Decoding(file, options)
    parts = [decoding.after(one) for one in found if one is not None]
    return Lines(b"".join(one.data for one in parts), parts[0].offset, parts[0].length) if parts else Lines(b"", 0)


def _plain(raw: bytes, file: SourceFile, options: FormatOptions) -> tuple[bytes, bool]:
    """What is decompressed of the beginning of a file, and whether it is all of it."""
    compression = compression_of(file.key, options)
    if compression == "none":
        return raw, len(raw) >= file.size
    stream = decompressor(compression, file.key)
    stream.feed(raw)
    parts: list[bytes] = []
    size = 0
    while size < options.sample_bytes:
        found = stream.take()
        if not found:
            if len(raw) >= file.size:
                stream.finish()
                return b"".join(parts), True
            break
        parts.append(found)
        size += len(found)
    return b"".join(parts)[: options.sample_bytes], False

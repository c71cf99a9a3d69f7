"""The bytes of an item, at its version. Small files are one GET, larger ones are read in pieces by a reader.

A reader costs ten times a GET, and pays from the second request on.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from aioprefetch.accessor.http_headers import is_weak
from aioprefetch.accessor.served_reads import served
from aioprefetch.accessor.sink import CollectSink
from aioprefetch.accessor.version_pin import VersionPin
from aioprefetch.errors import ConditionNotMatch
from aioprefetch.operator.open_file_keys import READ_POLICY, SPLIT_END, SPLIT_START
from aioprefetch.operator.operator import Operator
from aioprefetch.reader import RangeReader
from aioprefetch.reader.options import CHUNK_BYTES
from aioprefetch.source.files import FetchItem, SourceFile
from aioprefetch.values import ReadRequest

# Larger files are read in pieces. The next piece is read while one is decoded.
WHOLE_BYTES_MAX = 1 << 20

# The end of the record that crosses the end of an item is searched in steps. This is the first one.
BEYOND_BYTES = 64 << 10
BEYOND_BYTES_MAX = 8 << 20

# The message of ``ObjectChanged`` for a file that was replaced since it was listed.
OVERWRITTEN = "the file was overwritten after it was listed"

# The number of bytes of a part that are requested ahead.
AHEAD_BYTES = 16 << 20


def check_open_file(operator: Operator, file: SourceFile, settings: Mapping[str, str]) -> None:
    """Check the ``openFile`` settings of a file that is read without a reader.

    Raises ``ConfigInvalid`` and ``Unsupported`` as ``OpenFileBuilder.build`` does. The listed length, ETag and version
    of the file override settings. Settings of a reader have no effect.
    """
    if settings:
        operator.open_file(file.key).propagate(settings).with_status(file).build()


def comes_whole(file: SourceFile) -> bool:
    """Whether to read a file by ``read_whole``: it is small and has no weak ETag, which a store cannot check."""
    return 0 < file.size <= WHOLE_BYTES_MAX and not (file.etag and is_weak(file.etag))


async def read_whole(operator: Operator, file: SourceFile, settings: Mapping[str, str]) -> bytes:
    """All bytes of this version of a file, by one GET. ``ObjectChanged`` if the store has another version."""
    check_open_file(operator, file, settings)
    request = ReadRequest(path=file.key, if_match=file.etag, version=file.version)
    pin = VersionPin(file.etag, file.version, file.size, path=file.key, operation="read_items")
    sink = CollectSink(operator.runtime().budget)
    try:
        response = await served(operator.accessor(), operator.runtime()).read(request, sink)
    except ConditionNotMatch as error:
        raise pin.explain(error, message=OVERWRITTEN) from error
    data = sink.to_bytes()
    if file.etag and response.head.etag not in (None, file.etag):  # Some stores ignore conditions.
        raise pin.changed(response.head.etag, OVERWRITTEN)
    if len(data) != file.size:
        raise pin.changed(None, f"the file has {len(data)} bytes, and had {file.size} when it was listed")
    return data


async def read_content(operator: Operator, file: SourceFile, settings: Mapping[str, str]) -> bytes:
    """All bytes of this version of a file, of any size."""
    if comes_whole(file):
        return await read_whole(operator, file, settings)
    if file.size == 0:
        return b""
    async with await open_pinned(operator, file, settings, policy="whole-file") as reader:
        return await reader.read_at(0, file.size)


async def open_pinned(
    operator: Operator,
    file: SourceFile,
    settings: Mapping[str, str],
    *,
    policy: str,
    split: tuple[int, int] | None = None,
) -> RangeReader:
    """A reader of this version of a file, without any request.

    ``settings`` of ``openFile`` override ``policy`` and ``split``.

    ``ConfigInvalid`` for an unknown mandatory setting.
    """
    builder = operator.open_file(file.key).opt(READ_POLICY, policy)
    if split is not None:
        builder.opt(SPLIT_START, split[0]).opt(SPLIT_END, split[1])
    return await builder.propagate(settings).with_status(file).build()


async def pieces(
    operator: Operator, item: FetchItem, settings: Mapping[str, str], *, begin: int
) -> AsyncGenerator[bytes, None]:
    """The bytes of the file from ``begin`` on: in large pieces to the end of the item, then in small ones beyond it.

    Closing it early leaves no request in flight.
    """
    if item.file.size == 0:
        return
    if item.is_whole and comes_whole(item.file):
        yield await read_whole(operator, item.file, settings)
        return
    policy, split = ("sequential", None) if item.is_whole else ("random", (begin, item.stop))
    async with await open_pinned(operator, item.file, settings, policy=policy, split=split) as reader:
        if item.is_whole:
            async with reader.stream() as chunks:
                async for chunk in chunks:
                    yield chunk
        else:
            async with aclosing(_part(reader, begin, item.stop)) as chunks_of_part:
                async for chunk in chunks_of_part:
                    yield chunk


async def _part(reader: RangeReader, position: int, stop: int) -> AsyncGenerator[bytes, None]:
    """The bytes from ``position`` on, beyond ``stop`` too. Up to ``stop`` they are requested ahead, in exact ranges.

    Whole blocks would exceed the part at both ends, by bytes that the neighbouring parts fetch again.
    """
    requested = position
    while position < stop:
        chunk = await reader.read_at(position, min(CHUNK_BYTES, stop - position))
        if not chunk:
            return
        position += len(chunk)
        if requested < min(stop, position + AHEAD_BYTES // 2):
            begin, requested = max(requested, position), min(stop, position + AHEAD_BYTES)
            reader.will_need([(begin, requested)])
        yield chunk
    size = BEYOND_BYTES
    while chunk := await reader.read_at(position, size):
        position += len(chunk)
        size = min(2 * size, BEYOND_BYTES_MAX)
        yield chunk


async def beginning(operator: Operator, file: SourceFile, settings: Mapping[str, str], size: int) -> bytes:
    """The first ``size`` bytes of a file, by one exact request."""
    if file.size == 0:
        return b""
    if file.size <= size and comes_whole(file):
        return await read_whole(operator, file, settings)
    async with await open_pinned(operator, file, settings, policy="random") as reader:
        return await reader.read_at(0, size)

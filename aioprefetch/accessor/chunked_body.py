"""A body that another library hands over in chunks, copied into a sink."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aioprefetch.accessor.sink import Sink
from aioprefetch.errors import ProtocolError, Unavailable
from aioprefetch.runtime.statistics import Counters
from aioprefetch.values import ReadHead, ReadRequest

# The next chunk of a body, perhaps an empty one; ``None`` at its end.
NextChunk = Callable[[], Awaitable[bytes | memoryview | None]]


async def copy_chunks(
    next_chunk: NextChunk, request: ReadRequest, sink: Sink, head: ReadHead, counters: Counters
) -> None:
    """Copy a body of ``head.size`` bytes into a sink that has begun, at the pace of the sink.

    Raises ``Unavailable`` for a body that ends before its last byte, so that another attempt goes on there, and
    ``ProtocolError`` for a chunk that goes beyond it, of which no byte reaches the sink. No chunk is asked for after
    the last byte, so one that would follow is not noticed.
    """
    received = 0
    while not sink.complete:
        chunk = await next_chunk()
        if chunk is None:
            raise Unavailable(
                f"the body ended after {received} of {head.size} bytes", operation="read", path=request.path
            )
        received += len(chunk)
        counters["stream_read_total_bytes"] += len(chunk)
        if received > head.size:
            raise ProtocolError(
                f"the body has more than the {head.size} bytes that its head promised",
                operation="read",
                path=request.path,
            )
        await sink.pour(memoryview(chunk))  # A chunk may be as large as the object.

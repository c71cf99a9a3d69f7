"""An object written from an asynchronous iterator: it appears whole, or nothing of it is left."""

from __future__ import annotations

from typing import Any

import anyio

from aioprefetch.accessor import Accessor
from aioprefetch.bodies import WriteBody
from aioprefetch.errors import InvalidType
from aioprefetch.telemetry import logger
from aioprefetch.values import Metadata, WriteRequest

# Cleaning up after a failed or cancelled write may not be cut off, but it may not hang either.
ABORT_SECONDS_MAX = 10.0


async def write_stream(accessor: Accessor, request: WriteRequest, data: Any) -> Metadata:
    """Write what ``data`` yields. ``InvalidType`` for what is no iterator of bytes; then nothing is left behind."""
    path = request.path
    if not hasattr(data, "__aiter__"):
        raise InvalidType(
            f"data must be bytes or an asynchronous iterator of bytes, not {type(data).__name__}",
            operation="write",
            path=path,
        )
    body = await accessor.open_write(request)
    try:
        async for chunk in data:
            await body.write(_checked_chunk(chunk, path))
        return await body.close()
    except BaseException:
        with anyio.move_on_after(ABORT_SECONDS_MAX, shield=True):
            await _abort(body, path)
        raise


def _checked_chunk(chunk: object, path: str) -> bytes | bytearray | memoryview:
    if isinstance(chunk, bytes | bytearray | memoryview):
        return chunk
    raise InvalidType(f"data must yield bytes, not {type(chunk).__name__}", operation="write", path=path)


async def _abort(body: WriteBody, path: str) -> None:
    try:
        await body.abort()
    except Exception:  # The failure that led here is the one to tell.
        logger.warning("what was written of %r could not be removed", path, exc_info=True)

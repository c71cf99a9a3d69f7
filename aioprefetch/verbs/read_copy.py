"""A copy by reading and writing, where a store that should copy by itself has no such request."""

from __future__ import annotations

from aioprefetch.accessor.protocols import Accessor, WriteBody
from aioprefetch.accessor.response_check import VersionPin
from aioprefetch.accessor.sink import CollectSink
from aioprefetch.errors import ConditionNotMatch, Error, NotFound, RangeNotSatisfied, Unsupported
from aioprefetch.reader.options import ProgressCallback
from aioprefetch.values import Metadata, ReadRequest

PIECE_BYTES = 8 << 20


def is_not_copied(error: Error) -> bool:
    """Whether a store has answered that it does not copy."""
    return isinstance(error, Unsupported) and "http_status" in error.context


async def copy_into(
    body: WriteBody, source: Accessor, metadata: Metadata, on_bytes: ProgressCallback | None, version: str | None
) -> Metadata:
    """Write the object of ``metadata`` to a body, piece by piece of one version: ``ObjectChanged`` for another one."""
    size, offset = metadata.size or 0, 0
    pin = VersionPin(metadata.etag, version, size, path=metadata.path, operation="copy", advice=", for the copy")
    while offset < size:
        due, sink = (offset, min(offset + PIECE_BYTES, size)), CollectSink()
        piece = ReadRequest(
            path=metadata.path, offset=offset, size=due[1] - offset, if_match=metadata.etag, version=version
        )
        try:
            pin.check((await source.read(piece, sink)).head, due)
        except (ConditionNotMatch, NotFound, RangeNotSatisfied) as error:
            raise pin.explain(error) from error
        await body.write(sink.to_view())
        offset = due[1]
        if on_bytes is not None:
            on_bytes(sink.received)
    return await body.close()

"""A copy by reading and writing, where a store that should copy by itself has no such request."""

from __future__ import annotations

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.response_check import VersionPin
from aioprefetch.accessor.sink import CollectSink
from aioprefetch.errors import ConditionNotMatch, Error, NotFound, RangeNotSatisfied, Unsupported
from aioprefetch.reader.options import ProgressCallback
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import Metadata, ReadRequest, WriteRequest
from aioprefetch.verbs.writer import abort_after, open_body

PIECE_BYTES = 8 << 20


def is_not_copied(error: Error) -> bool:
    """Whether a store has answered that it does not copy."""
    return isinstance(error, Unsupported) and "http_status" in error.context


async def copy_by_reading(
    source: Accessor,
    target: tuple[Accessor, Runtime],
    metadata: Metadata,
    request: WriteRequest,
    on_bytes: ProgressCallback | None,
    version: str | None,
) -> Metadata:
    """Write the object of ``metadata`` by ``request``, piece by piece of one version.

    ``ObjectChanged`` if it is overwritten meanwhile. If it fails or is cancelled, nothing is left.
    """
    size, offset = metadata.size or 0, 0
    pin = VersionPin(metadata.etag, version, size, path=metadata.path, operation="copy", advice=", for the copy")
    body = await open_body(*target, request, size)
    try:
        while offset < size:
            due = (offset, min(offset + PIECE_BYTES, size))
            sink = CollectSink()
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
    except BaseException as error:
        await abort_after(error, body, request.path)
        raise

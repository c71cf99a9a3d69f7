"""The reads of a caller as events: what an operator's own reads got. Made for a read while there is a listener."""

from __future__ import annotations

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.sink import Sink
from aioprefetch.accessor.wrapped import WrappedAccessor
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import ReadReply, ReadRequest


class ServedReads(WrappedAccessor):
    """Publishes ``read.served`` for each read that ends well. ``reader_id`` is ``None``: no reader has asked."""

    def __init__(self, inner: Accessor, runtime: Runtime) -> None:
        self.inner = inner  # As the base does, whose call each read would pay for.
        self._events = runtime.events

    async def read(self, request: ReadRequest, sink: Sink) -> ReadReply:
        events = self._events
        began = events.clock()
        reply = await self.inner.read(request, sink)
        head = reply.head
        start = head.start
        events.publish_served(request.path, start, start + head.size, "store", events.clock() - began)
        return reply

"""The reads of a caller as events: what an operator's own reads got. Nothing here runs without a listener."""

from __future__ import annotations

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.sink import Sink
from aioprefetch.accessor.wrapped import WrappedAccessor
from aioprefetch.runtime.events import EventBus
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import ReadReply, ReadRequest


def publish_reply(
    events: EventBus, request: ReadRequest, reply: ReadReply, began: float, *, bytes_max: int | None = None
) -> None:
    """Publish ``read.served`` for a read that began then, without a reader: its first ``bytes_max`` bytes at most."""
    now = events.clock()
    head = reply.head
    start = head.start
    size = head.size if bytes_max is None else min(head.size, bytes_max)
    events.publish_served(request.path, start, start + size, reply.tier, now - began, None, now)


class ServedReads(WrappedAccessor):
    """Publishes ``read.served`` for each read that ends well: those of which a larger one is made."""

    def __init__(self, inner: Accessor, runtime: Runtime) -> None:
        super().__init__(inner)
        self._events = runtime.events

    async def read(self, request: ReadRequest, sink: Sink) -> ReadReply:
        began = self._events.clock()
        reply = await self.inner.read(request, sink)
        publish_reply(self._events, request, reply, began)
        return reply


def served(accessor: Accessor, runtime: Runtime) -> Accessor:
    """An accessor whose reads are published, if anybody listens."""
    return ServedReads(accessor, runtime) if runtime.events.wants_reads else accessor

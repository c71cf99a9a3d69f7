"""A store whose objects are computed from their offsets: as large as a test likes, near or far, with a log."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.service_base import ServiceAccessor
from aioprefetch.accessor.sink import Sink
from aioprefetch.errors import Error
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.memory.options import CAPABILITY
from aioprefetch.testing.oracle import pattern
from aioprefetch.values import Capability, Lane, Metadata, ReadHead, ReadReply, ReadRequest, ServiceInfo, StatRequest

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

Read = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """How far away the store is: seconds until the first byte, bytes per second and connection, on the loop's clock.

    Bodies come in pieces of ``piece_bytes``, so that a waiter for some bytes is woken when these have come.
    """

    first_byte_seconds: float
    bytes_per_second: float
    piece_bytes: int = 256 * KIB

    def request_seconds(self, size: int) -> float:
        """How long a request of ``size`` bytes takes."""
        return self.first_byte_seconds + size / self.bytes_per_second


@dataclass(slots=True, eq=False)
class Asked:
    """A request: ``[start, end)`` and the lane it was sent in, how much was sent back, and when, in seconds."""

    start: int
    end: int
    lane: Lane
    begun_seconds: float
    sent_bytes: int = 0
    ended_seconds: float = float("inf")


_BLANK = memoryview(bytes(16 * MIB))


def blank(start: int, end: int) -> memoryview:
    """Content that costs nothing to compute, where only times and counts matter."""
    return _BLANK[: end - start]


@dataclass(eq=False)
class Arithmetic:
    """The service: any key is an object of ``size`` bytes; requests are logged, and ``refuse`` may answer one."""

    size: int
    content: Callable[[int, int], bytes | memoryview] = pattern
    distance: Distance | None = None
    refuse: Callable[[int, int], Error | None] | None = None
    log: list[Asked] = field(default_factory=list)
    stats: int = 0

    @property
    def info(self) -> ServiceInfo:
        return ServiceInfo(scheme="arithmetic", name="test")

    @property
    def capability(self) -> Capability:
        return CAPABILITY

    @property
    def reads(self) -> list[Read]:
        """The range of each request so far, in order."""
        return [(one.start, one.end) for one in self.log]

    @property
    def sent_bytes(self) -> int:
        """Bytes of bodies so far. Of a request that was broken off what had left by then."""
        return sum(one.sent_bytes for one in self.log)

    def build(self, runtime: Runtime) -> Accessor:
        return _ArithmeticAccessor(self, runtime)


class _ArithmeticAccessor(ServiceAccessor):
    def __init__(self, service: Arithmetic, runtime: Runtime) -> None:
        super().__init__(service.info, service.capability, runtime)
        self._service = service

    async def stat(self, request: StatRequest) -> Metadata:
        self._service.stats += 1
        self._unsupported(request)

    async def read(self, request: ReadRequest, sink: Sink) -> ReadReply:
        service, distance = self._service, self._service.distance
        total = service.size
        start = max(0, total - request.suffix) if request.suffix is not None else request.offset
        end = total if request.size is None else min(total, start + request.size)
        asked = Asked(start, end, request.lane, self.runtime.now())
        service.log.append(asked)
        try:
            await asyncio.sleep(distance.first_byte_seconds if distance else 0)
            error = service.refuse(start, end) if service.refuse is not None else None
            if error is not None:
                raise error
            head = ReadHead(start=start, size=end - start, total=total, etag="fixed")
            sink.begin(head, path=request.path)
            while not sink.complete:
                stop = min(end, start + (distance.piece_bytes if distance else MIB))
                if distance is not None:
                    await asyncio.sleep((stop - start) / distance.bytes_per_second)
                asked.sent_bytes += stop - start
                sink.feed(service.content(start, stop))
                start = stop
            return ReadReply(head=head, received=head.size)
        finally:
            asked.ended_seconds = self.runtime.now()


def repeated(reads: Iterable[Read]) -> list[tuple[Read, Read]]:
    """Pairs of requests that asked for the same bytes."""
    ordered = sorted(reads)
    furthest, found = (0, 0), []
    for one in ordered:
        if one[0] < furthest[1]:
            found.append((furthest, one))
        furthest = max(furthest, one, key=lambda read: read[1])
    return found


def covered_bytes(ranges: Iterable[Read]) -> int:
    """How many different bytes these ranges hold."""
    total = position = 0
    for start, end in sorted(ranges):
        total += max(0, end - max(start, position))
        position = max(position, end)
    return total

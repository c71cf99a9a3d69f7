"""A memory store behind a gate: the test decides when each read is answered, how far, and whether at all."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from aioprefetch.accessor.protocols import Accessor, Layer, WrappedAccessor
from aioprefetch.accessor.sink import CollectSink, Sink
from aioprefetch.blocks.file import BlockFile
from aioprefetch.layers import ErrorContextLayer
from aioprefetch.operator.operator import Operator
from aioprefetch.reader.object_reads import ObjectReads
from aioprefetch.reader.reader import RangeReader
from aioprefetch.runtime.options import RuntimeOptions
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.memory import Memory, Store
from aioprefetch.testing.oracle import content
from aioprefetch.values import ReadHead, ReadReply, ReadRequest, StatRequest, WriteRequest

KIB = 1 << 10
MIB = 1 << 20


@dataclass(eq=False)
class Call:
    """One read that has reached the store. It waits for ``steps``: how many bytes to deliver, or an error."""

    request: ReadRequest
    steps: asyncio.Queue[int | BaseException | None] = field(default_factory=asyncio.Queue)
    cancelled: bool = False
    ended: bool = False

    def deliver(self, count: int) -> None:
        """Let this many bytes through (0: the head alone)."""
        self.steps.put_nowait(count)

    def fail(self, error: BaseException) -> None:
        """Break off with an error, before or after bytes."""
        self.steps.put_nowait(error)

    def finish(self) -> None:
        """Let everything through."""
        self.steps.put_nowait(None)


class GateAccessor(WrappedAccessor):
    """The live gate. While ``open`` reads pass at once, after one turn of the loop.

    With ``ignores_conditions`` it is a store that has never heard of ``If-Match``.
    """

    def __init__(self, inner: Accessor) -> None:
        super().__init__(inner)
        self.open = True
        self.ignores_conditions = False
        self.calls: list[Call] = []
        self.stats: list[StatRequest] = []
        self.falsify: Callable[[ReadHead], ReadHead] | None = None
        self.arrived = asyncio.Event()

    async def stat(self, request: StatRequest) -> Any:
        self.stats.append(request)
        return await self.inner.stat(request)

    async def read(self, request: ReadRequest, sink: Sink) -> ReadReply:
        call = Call(request)
        self.calls.append(call)
        self.arrived.set()
        if self.open:
            call.finish()
        try:
            return await self._follow(call, sink)
        except asyncio.CancelledError:
            call.cancelled = True
            raise
        finally:
            call.ended = True

    async def _follow(self, call: Call, sink: Sink) -> ReadReply:
        head: ReadHead | None = None
        position = 0
        await asyncio.sleep(0)
        while True:
            step = await call.steps.get()
            if isinstance(step, BaseException):
                raise step
            if head is None:
                response = CollectSink()
                request = call.request
                if self.ignores_conditions:
                    request = dataclasses.replace(request, if_match=None)
                reply = await self.inner.read(request, response)
                data = response.to_view()
                head = reply.head if self.falsify is None else self.falsify(reply.head)
                sink.begin(head, path=request.path)
            end = len(data) if step is None else position + step
            sink.feed(data[position:end])
            position = end
            if step is None or sink.complete:
                return ReadReply(head=head, received=head.size)


@dataclass(frozen=True)
class GateLayer(Layer):
    """The recipe; ``seen`` gets each live gate."""

    seen: list[GateAccessor] = field(default_factory=list)

    def wrap(self, inner: Accessor, runtime: Runtime) -> Accessor:
        gate = GateAccessor(inner)
        self.seen.append(gate)
        return gate


class Bench:
    """An Operator over the gate, the store behind it, and what a test wants to know of both."""

    def __init__(self, size: int, options: RuntimeOptions, layers: Iterable[Layer]) -> None:
        self.memory = Memory()
        self.store: Store = self.memory.store
        self._seen: list[GateAccessor] = []
        self.operator = Operator.bare(self.memory, options=options).layer(
            GateLayer(self._seen), inside=ErrorContextLayer
        )
        for layer in layers:
            self.operator = self.operator.layer(layer)
        self.data = content(size)
        self.put(self.data)

    def put(self, data: bytes, path: str = "k") -> str | None:
        """Store an object behind the gate's back; returns its ETag."""
        return self.store.put(WriteRequest(path=path), data).etag

    @property
    def gate(self) -> GateAccessor:
        """The live gate."""
        self.operator.accessor()
        return self._seen[-1]

    @property
    def runtime(self) -> Runtime:
        """The live runtime."""
        return self.operator.runtime()

    @property
    def ranges(self) -> list[tuple[int, int | None]]:
        """What was asked of the store: offset and end of each GET (end ``None``: a suffix)."""
        return [(c.request.offset, c.request.offset + c.request.size if c.request.size else None) for c in self.calls]

    @property
    def calls(self) -> list[Call]:
        """The GETs so far."""
        return self.gate.calls

    def reader(self, **options: Any) -> RangeReader:
        """A reader of "k" that fills whole blocks, unless the options say otherwise."""
        return self.operator.reader("k", **{"policy": "sequential", **options})

    async def opened(self, **options: Any) -> RangeReader:
        """A reader of "k" that knows its size and holds the first block; the gate is closed from then on."""
        reader = self.reader(**options)
        await reader.read_at(0, 1)
        await settle()
        self.calls.clear()
        self.gate.open = False
        return reader

    async def next_call(self) -> Call:
        """Wait for a GET that has not ended yet, and return the latest."""
        while not (self.calls and not self.calls[-1].ended):
            self.gate.arrived.clear()
            await self.gate.arrived.wait()
        return self.calls[-1]


async def settle(rounds: int = 30) -> None:
    """Let everything that is scheduled happen."""
    for _ in range(rounds):
        await asyncio.sleep(0)


def reads_of(reader: RangeReader) -> ObjectReads:
    """The inside of a reader that has been used: its open object and its windows."""
    assert reader._reads is not None
    return reader._reads


def file_of(reader: RangeReader) -> BlockFile:
    """The blocks and requests of the version that a reader has pinned."""
    file = reads_of(reader).file
    assert file is not None
    return file


def resident_blocks(reader: RangeReader) -> set[int]:
    """The numbers of the blocks that memory holds of a reader's object."""
    return set(file_of(reader).residency().blocks)


@asynccontextmanager
async def bench(
    size: int = MIB,
    *,
    layers: Iterable[Layer] = (),
    memory_bytes: int = 8 * MIB,
    block_bytes: int = 64 * KIB,
    prefetch_blocks: int = 0,
    drain_bytes: int = 32 * KIB,
    **more: Any,
) -> AsyncIterator[Bench]:
    """A bench whose object "k" has ``size`` bytes; closed at the end, when nothing of it may be left.

    Nothing is fetched ahead unless ``prefetch_blocks`` says so.
    """
    options = RuntimeOptions(
        memory_bytes=memory_bytes,
        block_bytes=block_bytes,
        prefetch_blocks=prefetch_blocks,
        drain_bytes=drain_bytes,
        random_seed=7,
        **more,
    )
    made = Bench(size, options, layers)
    try:
        yield made
    finally:
        await made.operator.aclose()


@contextmanager
def in_case(**values: object) -> Iterator[None]:
    """A failure in the block names the values of the loop that it is in."""
    try:
        yield
    except BaseException as error:
        error.add_note("in the case " + ", ".join(f"{name}={value!r}" for name, value in values.items()))
        raise


def with_etag(etag: str | None) -> Callable[[ReadHead], ReadHead]:
    """Heads with another ETag, or none."""
    return lambda head: dataclasses.replace(head, etag=etag)


def with_total(total: int | None) -> Callable[[ReadHead], ReadHead]:
    """Heads that tell another size of the object."""
    return lambda head: dataclasses.replace(head, total=total)

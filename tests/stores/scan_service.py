"""A service over a gated store, for tests of what it sends and of what it leaves behind."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aioprefetch.ranges import Range
from aioprefetch.scheduler.io_service import IoService, ScannedFile
from aioprefetch.scheduler.pages import PendingRead
from aioprefetch.scheduler.pending_read import FileMemory
from aioprefetch.scheduler.pinned_file import PinnedFile
from tests.stores.gated_reader import MIB, Bench, bench, settle

TAIL = 1000


@dataclass
class Scene:
    """A bench with a pinned file and a service over it; the gate is closed."""

    bench: Bench
    pinned: PinnedFile
    service: IoService
    io: ScannedFile

    @property
    def used(self) -> int:
        return self.bench.runtime.budget.used_bytes

    @property
    def held(self) -> int:
        return self.service.memory.held_bytes

    @property
    def queued(self) -> int:
        return self.service.queued

    @property
    def sent(self) -> list[tuple[int, int | None]]:
        return self.bench.ranges

    def is_right(self, read: PendingRead, ranges: Sequence[Range]) -> bool:
        return [bytes(view) for view in read.views] == [self.bench.data[start:end] for start, end in ranges]

    async def response(self, *starts: int) -> None:
        """Answer the requests in flight that begin at these positions; all of them if none is given."""
        await settle()
        for call in self.bench.calls:
            if not call.ended and (not starts or call.request.offset in starts):
                call.finish()
        await settle()


@asynccontextmanager
async def scene(
    size: int = MIB, *, memory: FileMemory | None = None, is_open: bool = False, runtime: Any = None, **options: Any
) -> AsyncIterator[Scene]:
    """A scene; nothing may be left of it at the end."""
    async with bench(size, **(runtime or {})) as b:
        pinned = await PinnedFile.open(b.operator.accessor(), b.runtime, "k", tail_bytes=TAIL)
        b.calls.clear()
        b.gate.open = is_open
        before = b.runtime.budget.used_bytes
        service = IoService(b.operator.accessor(), b.runtime, **options)
        yield Scene(b, pinned, service, ScannedFile(service, pinned, memory=memory))
        service.close()
        await settle()
        assert service.memory.held_bytes == 0
        assert service.in_flight == service.queued == 0
        assert b.runtime.budget.used_bytes == before
        assert b.runtime.budget.waiting == 0


class Mapping:
    """Memory at the file's own offsets, and what of it is in use."""

    def __init__(self, size: int) -> None:
        self.data = bytearray(size)
        self.live: list[Range] = []
        self.allocated = 0

    def allocate(self, start: int, end: int) -> memoryview:
        self.allocated += 1
        self.live.append((start, end))
        return memoryview(self.data)[start:end]

    def discard(self, start: int, end: int) -> None:
        self.live.remove((start, end))

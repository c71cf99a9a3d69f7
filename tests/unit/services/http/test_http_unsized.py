"""Bodies without a length: their memory is counted by the budget, and unwanted bytes take none."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from aioprefetch import errors
from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.sink import Sink
from aioprefetch.runtime.options import RuntimeOptions
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.http.exchange import RESERVED_BYTES_MIN
from aioprefetch.testing import Fault, Rule
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import ReadRequest
from tests.profile import chosen
from tests.stores.raw_server import eventually
from tests.unit.services.http.reading import Servers, accessor_for

MIB = 1 << 20
BODY = bytes(range(256)) * (6 * MIB // 256)
LIMIT_BYTES = 8 * MIB
READS = chosen(quick=6, full=16)
# The maximum that these connections may hold for bodies that are read slowly, and the server for sending them.
STREAMS_BYTES = READS * MIB
UNSIZED = Fault(ignore_range=True, chunked=True)


@pytest.fixture
async def runtime() -> AsyncIterator[Runtime]:
    """A runtime with less memory than all bodies together need."""
    live = Runtime(RuntimeOptions(memory_bytes=LIMIT_BYTES, block_bytes=MIB))
    yield live
    await live.aclose()
    assert live.budget.used_bytes == 0


class CheckingSink(Sink):
    """Checks each piece of a body, and keeps one piece alone."""

    def __init__(self) -> None:
        super().__init__()
        self._buffer = bytearray(256 << 10)
        self._checked = 0

    def _allocate(self, position: int, size: int) -> memoryview:
        return memoryview(self._buffer)[: size - position]

    def _advanced(self) -> None:
        assert self.head is not None
        if self.received % len(self._buffer) == 0 or self.complete:
            start = self.head.start + self._checked
            assert self._buffer[: self.received - self._checked] == BODY[start : self.head.start + self.received]
            self._checked = self.received


async def read_through(accessor: Accessor, **fields: Any) -> int:
    """Read and keep nothing; the number of bytes."""
    return (await accessor.read(ReadRequest(path="k", **fields), CheckingSink())).received


async def peak_of_reads(accessor: Accessor, **fields: Any) -> int:
    """Bytes of memory that many reads beside each other took at most."""
    await read_through(accessor, size=1)  # Whatever is loaded once.
    tracemalloc.start()
    try:
        found = await asyncio.gather(*(read_through(accessor, **fields) for _ in range(READS)))
        assert len(set(found)) == 1
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@checks("reliability:K30")
async def test_reads_beside_each_other_stay_near_the_budget(servers: Servers, runtime: Runtime) -> None:
    """Together they would need much more than 8 MiB: beyond the budget one body at a time is collected."""
    accessor = accessor_for(await servers.start({"base/k": BODY}, [Rule(fault=UNSIZED, times=None)]), runtime)
    peak_bytes = await peak_of_reads(accessor)
    assert peak_bytes < LIMIT_BYTES + 2 * len(BODY) + STREAMS_BYTES
    # The other bodies within the limit, and one reservation beyond it; the one, all of it.
    assert runtime.budget.peak_bytes <= LIMIT_BYTES + len(BODY) + 2 * RESERVED_BYTES_MIN


@pytest.mark.parametrize("fields", [{"offset": len(BODY) - 10}, {"suffix": 10}, {"offset": 5 * MIB, "size": 10}])
async def test_what_was_not_asked_for_is_not_kept(servers: Servers, runtime: Runtime, fields: dict[str, int]) -> None:
    """Ten bytes cost no more memory than ten bytes, wherever they are."""
    accessor = accessor_for(await servers.start({"base/k": BODY}, [Rule(fault=UNSIZED, times=None)]), runtime)
    assert await peak_of_reads(accessor, **fields) < STREAMS_BYTES + READS * 2 * RESERVED_BYTES_MIN
    assert runtime.budget.peak_bytes <= LIMIT_BYTES + 4 * RESERVED_BYTES_MIN


@pytest.mark.parametrize("suffix", [1, 1000, 3 * MIB, 6 * MIB - 1, 6 * MIB, 7 * MIB])
async def test_the_end_of_a_body_without_a_length(servers: Servers, runtime: Runtime, suffix: int) -> None:
    """The bytes are right wherever the memory for them was moved."""
    accessor = accessor_for(await servers.start({"base/k": BODY}, [Rule(fault=UNSIZED)]), runtime)
    assert await read_through(accessor, suffix=suffix) == min(suffix, len(BODY))


async def test_a_body_that_waits_for_memory_gives_up(servers: Servers) -> None:
    """The body that may exceed the budget never ends; the other one fails after its time, and frees its memory."""
    options = RuntimeOptions(memory_bytes=2 * MIB, block_bytes=MIB, budget_wait_seconds=0.05)
    runtime = Runtime(options)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(runtime.aclose)
        hanging = Fault(ignore_range=True, chunked=True, hang_after_bytes=5 * MIB)
        server = await servers.start({"base/k": BODY}, [Rule(fault=hanging, index=0), Rule(fault=UNSIZED, times=None)])
        accessor = accessor_for(server, runtime)
        first = asyncio.ensure_future(read_through(accessor))
        await eventually(lambda: runtime.budget.used_bytes >= 4 * MIB)
        held_bytes = runtime.budget.used_bytes
        with pytest.raises(errors.BudgetExhausted, match="memory_bytes"):
            await read_through(accessor)
        assert runtime.budget.used_bytes >= held_bytes
        first.cancel()
        await asyncio.wait([first])
        assert runtime.budget.used_bytes == 0
        assert await read_through(accessor) == len(BODY)
        assert runtime.budget.used_bytes == 0


@pytest.mark.parametrize("fault", [UNSIZED, Fault(ignore_range=True, chunked=True, close_after_bytes=3 * MIB)])
async def test_a_failed_read_gives_its_memory_back(servers: Servers, runtime: Runtime, fault: Fault) -> None:
    """A range beyond the end, and a body that is cut."""
    accessor = accessor_for(await servers.start({"base/k": BODY}, [Rule(fault=fault)]), runtime)
    with pytest.raises((errors.RangeNotSatisfied, errors.Unavailable)):
        await read_through(accessor, offset=len(BODY) + 1)
    assert runtime.budget.used_bytes == 0

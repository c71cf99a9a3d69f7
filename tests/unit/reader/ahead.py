"""A reader with eight requests on their way in front of it, and what watches its memory."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from aioprefetch import RangeReader
from aioprefetch.runtime.budget import MemoryBudget, Ticket
from aioprefetch.values import Lane
from tests.stores.gated_reader import KIB, MIB, Bench, Call, bench, settle

BLOCK = 64 * KIB
AHEAD = 8
SIZE = 4 * MIB

# How a caller reads [start, start + size) of the reader; all of them give the same bytes.
READS: dict[str, Callable[[RangeReader, int, int], Awaitable[bytes]]] = {}


def _way(read: Callable[[RangeReader, int, int], Awaitable[bytes]]) -> Callable[..., Awaitable[bytes]]:
    READS[read.__name__] = read
    return read


@_way
async def read_at(reader: RangeReader, start: int, size: int) -> bytes:
    """By position."""
    return await reader.read_at(start, size)


@_way
async def view_at(reader: RangeReader, start: int, size: int) -> bytes:
    """As a view, which is given back at once."""
    with await reader.view_at(start, size) as view:
        return bytes(view)


@_way
async def read(reader: RangeReader, start: int, size: int) -> bytes:
    """By cursor."""
    reader.seek(start)
    return await reader.read(size)


@_way
async def readinto(reader: RangeReader, start: int, size: int) -> bytes:
    """By cursor, into a buffer that holds other bytes."""
    reader.seek(start)
    buffer = bytearray(b"\xff" * size)
    return bytes(buffer[: await reader.readinto(buffer)])


@_way
async def stream(reader: RangeReader, start: int, size: int) -> bytes:
    """The first chunk of a stream."""
    reader.seek(start)
    async with reader.stream(size) as chunks:
        return await anext(chunks)


@_way
async def read_ranges(reader: RangeReader, start: int, size: int) -> bytes:
    """Three ranges in one call."""
    cuts = [start, start + size // 3, start + size // 2, start + size]
    return b"".join(await reader.read_ranges(list(itertools.pairwise(cuts))))


@_way
async def iter_ranges(reader: RangeReader, start: int, size: int) -> bytes:
    """Two ranges of one call, as they complete."""
    ranges = [(start, start + size // 2), (start + size // 2, start + size)]
    async with reader.iter_ranges(ranges, gap_bytes=0, request_bytes_max=size) as parts:
        found = {index: part async for index, part in parts}
    return found[0] + found[1]


@asynccontextmanager
async def ahead_bench(size: int = SIZE, **options: Any) -> AsyncIterator[Bench]:
    """A bench in blocks of 64 KiB whose readers may look eight blocks ahead."""
    async with bench(size, **{"block_bytes": BLOCK, "prefetch_blocks": AHEAD, **options}) as made:
        yield made


async def fetching_ahead(
    b: Bench, *, at: int = 0, size: int = BLOCK, blocks: int = AHEAD, **options: Any
) -> tuple[RangeReader, list[Call]]:
    """A reader that has read in the block at ``at`` through its cursor, and its requests for the blocks that follow.

    S3A's step asks for one block a request. The gate is closed: none of them is answered.
    """
    b.gate.open = False
    reader = b.reader(**{"prefetch_growth": "step", "prefetch_blocks": blocks, **options})
    reader.seek(at)
    reading = asyncio.create_task(reader.read(size))
    (await b.next_call()).finish()
    assert await reading == b.data[at : at + size]
    await settle()
    ahead = b.calls[1:]
    assert [(one.request.offset, one.request.size, one.request.lane) for one in ahead] == [
        (start, BLOCK, "prefetch") for start in range(at + BLOCK, at + (1 + blocks) * BLOCK, BLOCK)
    ]
    return reader, ahead


def demands(b: Bench) -> list[Call]:
    """The requests that some read waits for and that are not answered yet."""
    return [one for one in b.calls if one.request.lane == "demand" and not one.ended]


def answer_all(b: Bench) -> None:
    """Let through what waits at the gate, and all that comes."""
    b.gate.open = True
    for one in b.calls:
        one.finish()


async def turns(number: int) -> None:
    """Wait for ``number`` turns of the loop and no more."""
    for _ in range(number):
        await asyncio.sleep(0)


def fetch_tasks() -> list[str]:
    """The requests that are still running, for any reader."""
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("aioprefetch fetch")]


async def assert_all_given_back(b: Bench) -> None:
    """No request, no wait, no pin, no byte but those of blocks that may go at any time; and these do go."""
    await settle()
    assert fetch_tasks() == []
    budget = b.runtime.budget
    assert budget.waiting == 0
    if budget.reclaim is not None:
        budget.reclaim(budget.used_bytes, "demand")
    assert budget.used_bytes == 0


@dataclass
class Watch:
    """Every grant of memory since the watch began: how many in each lane, and those that broke the rules.

    ``entered`` are the reservations in the order in which they came to the demand lane, ``granted`` in that in which
    they left it.
    """

    grants: dict[str, int] = field(default_factory=lambda: {"demand": 0, "prefetch": 0})
    broken: list[str] = field(default_factory=list)
    entered: list[Ticket] = field(default_factory=list)
    granted: list[Ticket] = field(default_factory=list)

    def assert_first_in_first_out(self) -> None:
        """No waiter for memory is overtaken in the demand lane."""
        left = set(map(id, self.granted))
        assert self.granted == [ticket for ticket in self.entered if id(ticket) in left]


def watch_grants(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Look at the budget at each of its grants: prefetch never overdraws, demand by one request at most."""
    watch = Watch()
    admit, request, promote = MemoryBudget._admit, MemoryBudget.request, MemoryBudget.promote

    def watched_admit(budget: MemoryBudget, ticket: Ticket) -> bool:
        granted = admit(budget, ticket)
        if granted:
            watch.grants[ticket.lane] += 1
            most = budget.limit_bytes + (ticket.size_bytes if ticket.lane == "demand" else 0)
            if budget.used_bytes > most:
                watch.broken.append(f"{ticket.lane} of {ticket.size_bytes}: {budget.used_bytes} in use")
            if budget.idle.size_bytes and budget.held_bytes > budget.limit_bytes:
                watch.broken.append(f"{budget.held_bytes} held, {budget.idle.size_bytes} of them idle")
            if ticket.lane == "demand":
                watch.granted.append(ticket)
        return granted

    def watched_request(budget: MemoryBudget, size_bytes: int, lane: Lane, *, is_promise: bool = False) -> Ticket:
        ticket = request(budget, size_bytes, lane, is_promise=is_promise)
        if lane == "demand":
            watch.entered.append(ticket)
        return ticket

    def watched_promote(budget: MemoryBudget, ticket: Ticket) -> None:
        if ticket.lane == "prefetch" and not ticket.granted:
            watch.entered.append(ticket)
        promote(budget, ticket)

    monkeypatch.setattr(MemoryBudget, "_admit", watched_admit)
    monkeypatch.setattr(MemoryBudget, "request", watched_request)
    monkeypatch.setattr(MemoryBudget, "promote", watched_promote)
    return watch

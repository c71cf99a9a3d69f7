"""The runs of a reader: what its hits and its stray reads tell its windows, and what memory does to them."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from aioprefetch import RangeReader
from aioprefetch.operator.operator import Operator
from aioprefetch.reader.growth import GrowthName
from aioprefetch.reader.policy import PolicyName
from aioprefetch.reader.window import Run, Windows
from tests.profile import combinations, each_of
from tests.stores.computed_store import GIB, KIB, MIB, Arithmetic, blank
from tests.stores.gated_reader import file_of, reads_of, settle

BLOCK = 64 * KIB
AHEAD = 8
SMALL = 16


class Reader:
    """A reader over a store that answers at once; each read is followed by all requests that it entails."""

    def __init__(self, reader: RangeReader, operator: Operator, service: Arithmetic) -> None:
        self.reader = reader
        self.operator = operator
        self.service = service

    @property
    def windows(self) -> Windows:
        """The windows behind it."""
        return reads_of(self.reader).ahead.windows

    def run_from(self, start: int) -> Run:
        """The run that began there."""
        (found,) = [session for session in self.windows.runs if session.start == start]
        return found

    async def read(self, start: int, size: int = BLOCK) -> list[tuple[int, int, str]]:
        """A positioned read; what it asked for: first block, blocks, lane."""
        asked = len(self.service.log)
        await self.reader.read_at(start, size)
        await settle(100)
        found = self.service.log[asked:]
        return [(one.start // BLOCK, (one.end - one.start) // BLOCK, one.lane) for one in found]

    async def scatter(self, number: int) -> None:
        """Stray reads in the last quarter of the object."""
        for place in range(number):
            await self.read(48 * MIB + place * 33 * BLOCK, SMALL)

    async def run(self, start: int, blocks: int) -> None:
        """Whole blocks in order."""
        for number in range(blocks):
            await self.read(start + number * BLOCK)


@pytest.fixture
async def r() -> AsyncIterator[Reader]:
    """A reader of 64 MiB in blocks of 64 KiB, whose windows grow with each read that is reported."""
    service = Arithmetic(64 * MIB, content=blank)
    async with (
        Operator(service, block_bytes=BLOCK, memory_bytes=128 * MIB, prefetch_blocks=AHEAD) as operator,
        operator.reader("k", prefetch_growth="linear") as reader,
    ):
        yield Reader(reader, operator, service)


async def test_a_stray_read_ahead_of_a_run_does_not_move_it(r: Reader) -> None:
    """It finds its bytes, which were fetched for the run; the run is not there yet."""
    await r.scatter(5)
    await r.run(0, 12)
    stray = 13 * BLOCK + 100
    assert await r.read(stray, SMALL) == []
    assert await r.read(stray + SMALL, SMALL) == []  # In order, even: two of them beside each other by chance.
    known = len(r.windows.runs)
    for number in range(12, 16):
        await r.read(number * BLOCK)
        assert r.run_from(0).position <= (number + 1) * BLOCK
    assert r.run_from(0).position == 16 * BLOCK
    assert len(r.windows.runs) == known


async def test_a_run_is_reported_by_the_first_read_in_each_block_that_was_fetched_ahead(r: Reader) -> None:
    """So its window moves on while it finds everything it wants."""
    await r.run(0, 4)
    before = r.run_from(0)
    requested_end = before.requested_end
    for start in range(4 * BLOCK, 8 * BLOCK, KIB):
        await r.read(start, KIB)
    assert r.run_from(0) is before
    assert before.requested_end >= requested_end + 3 * BLOCK
    assert before.position == 7 * BLOCK + KIB


async def test_a_consumer_that_skips_through_blocks_is_one_run(r: Reader) -> None:
    """It reads a sixteenth of each block in pieces that lie apart, all of them hits but the first of a block."""
    for start in range(0, 24 * BLOCK, BLOCK // 4):
        await r.read(start, BLOCK // 64)
    (session,) = r.windows.runs
    assert session.blocks >= 1
    assert [one.lane for one in r.service.log].count("demand") <= 3


async def test_short_reads_a_few_mib_apart_are_no_run() -> None:
    """Reads of 4 KiB that lie 4 to 7 MiB behind each other, in blocks of 8 MiB: exact from the fourth on."""
    service = Arithmetic(GIB, content=blank)
    async with Operator(service) as operator, operator.reader("k") as reader:
        made = Reader(reader, operator, service)
        starts = [58 * MIB, 7 * MIB, 64 * MIB + 5, 11 * MIB, 115 * MIB, 69 * MIB, 22 * MIB, 29 * MIB]
        for start in starts:
            await made.read(start, 4 * KIB)
    assert {one.end - one.start for one in service.log if one.start in starts[3:]} == {4 * KIB}
    assert [one.lane for one in service.log].count("prefetch") == 0


async def test_a_run_that_the_cursor_left_bounds_no_window(r: Reader) -> None:
    """Five blocks back from where it stood: what it had begun with is read again, and on through it."""
    r.reader.seek(20 * BLOCK)
    for _ in range(4):
        await r.reader.read(BLOCK)
    await settle()
    r.reader.set_policy("sequential")
    r.reader.seek(10 * BLOCK)
    await r.reader.read(BLOCK)
    assert r.run_from(10 * BLOCK).requested_end > 10 * BLOCK + AHEAD // 2 * BLOCK
    r.reader.seek(17 * BLOCK)
    await r.reader.read(BLOCK)
    assert r.run_from(10 * BLOCK).requested_end > 21 * BLOCK


async def test_what_was_evicted_unread_halves_the_windows(r: Reader) -> None:
    await r.run(0, 12)
    assert r.run_from(0).blocks == AHEAD
    file_of(r.reader).evicted_unread_bytes += BLOCK
    await r.read(12 * BLOCK)
    assert r.run_from(0).blocks == AHEAD // 2 + 1  # Halved, and one further.
    await r.read(13 * BLOCK)
    assert r.run_from(0).blocks == AHEAD // 2 + 2  # Once for each eviction.


async def test_while_a_reservation_waits_nothing_is_fetched_ahead(r: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    """And windows shrink: others need the memory now."""
    await r.run(0, 12)
    budget = r.operator.runtime().budget
    monkeypatch.setattr(budget, "reclaim", None)  # So that what was fetched ahead stays.
    free_bytes = budget.limit_bytes - budget.used_bytes
    tickets = [budget.request(size_bytes, "demand") for size_bytes in (free_bytes + BLOCK, BLOCK)]
    assert [ticket.granted for ticket in tickets] == [True, False]
    assert await r.read(12 * BLOCK) == []
    assert r.run_from(0).blocks == AHEAD // 2
    for ticket in reversed(tickets):
        budget.cancel(ticket)
    await r.run(13 * BLOCK, 2)
    assert r.service.log[-1].lane == "prefetch"


@pytest.mark.parametrize("policy", ["adaptive", "sequential", "columnar"])
async def test_a_split_ends_what_is_fetched_ahead_and_reads_may_go_on(policy: PolicyName) -> None:
    """Nothing beyond the block of its end; who reads a block past it has a window again, from one block on."""
    service = Arithmetic(64 * MIB, content=blank)
    options = {"policy": policy, "prefetch_growth": "geometric", "split": (4 * BLOCK, 20 * BLOCK + 5)}
    async with (
        Operator(service, block_bytes=BLOCK, prefetch_blocks=AHEAD) as operator,
        operator.reader("k", **options) as reader,  # type: ignore[arg-type]
    ):
        made = Reader(reader, operator, service)
        await made.run(4 * BLOCK, 16)
        assert max(one.end for one in service.log) <= 21 * BLOCK
        await made.run(20 * BLOCK, 1)
        assert max(one.end for one in service.log) == 21 * BLOCK
        await made.run(21 * BLOCK, 1)
        assert max(one.end for one in service.log) == 23 * BLOCK
        await made.run(22 * BLOCK, 6)
        assert max(one.end for one in service.log) == (28 + AHEAD) * BLOCK


@each_of(
    ("growth", "policy", "by"),
    combinations(
        ["stall", "geometric", "step"],
        ["csv", "sequential", "adaptive", "whole-file"],
        ["cursor", "position", "stream"],
    ),
)
async def test_reading_the_last_record_of_a_split_costs_a_block_of_the_next(
    policy: PolicyName, growth: GrowthName, by: str
) -> None:
    """64 MiB in four splits, each read by a process of its own up to one buffer behind its end."""
    split_bytes, buffer_bytes, requests, whole = 16 * MIB, 64 * KIB, 0, MIB
    for start in range(0, 64 * MIB, split_bytes):
        service = Arithmetic(64 * MIB, content=blank)
        end = start + split_bytes
        async with (
            Operator(service, block_bytes=whole, prefetch_blocks=AHEAD) as operator,
            operator.reader("k", policy=policy, split=(start, end), prefetch_growth=growth) as reader,
        ):
            reader.seek(start)
            async with reader.stream(buffer_bytes) as chunks:
                for position in range(start, min(end + buffer_bytes, 64 * MIB), buffer_bytes):
                    if by == "cursor":
                        await reader.read(buffer_bytes)
                    elif by == "position":
                        await reader.read_at(position, buffer_bytes)
                    else:
                        await anext(chunks)
            await settle(100)
        asked = sorted((one.start, one.end) for one in service.log)
        last = min(end + whole, 64 * MIB)
        assert sum(high - low for low, high in asked) == last - start
        assert (asked[0][0], asked[-1][1]) == (start, last)
        requests += len(asked)
    assert requests <= 4 * 16 + 3


@pytest.mark.parametrize("policy", ["sequential", "adaptive"])
async def test_a_split_may_end_within_a_block_and_its_last_record_be_longer_than_one(policy: PolicyName) -> None:
    """Up to a block behind the split nothing is fetched ahead; then the run goes on as one that has just begun."""
    service = Arithmetic(64 * MIB, content=blank)
    end = 20 * BLOCK + BLOCK // 2
    async with (
        Operator(service, block_bytes=BLOCK, prefetch_blocks=AHEAD) as operator,
        operator.reader("k", policy=policy, split=(0, end)) as reader,
    ):
        made = Reader(reader, operator, service)
        for position in range(0, end + BLOCK // 2, BLOCK // 2):
            await made.read(position, BLOCK // 2)
        assert max(one.end for one in service.log) == 21 * BLOCK
        assert await made.read(21 * BLOCK, BLOCK // 2) == [(21, 1, "demand"), (22, 1, "prefetch")]


async def test_a_read_far_behind_the_split_brings_its_block_alone() -> None:
    """As a footer does, before the split is read: and the split has its window afterwards."""
    service = Arithmetic(64 * MIB, content=blank)
    async with (
        Operator(service, block_bytes=BLOCK, prefetch_blocks=AHEAD) as operator,
        operator.reader("k", policy="sequential", split=(0, 20 * BLOCK)) as reader,
    ):
        made = Reader(reader, operator, service)
        assert await made.read(100 * BLOCK, SMALL) == [(100, 1, "demand")]
        assert sum(blocks for _, blocks, _ in await made.read(0, SMALL)) == 1 + AHEAD


# --- towards the start ----------------------------------------------------------------------------------------------


@asynccontextmanager
async def large_blocks(policy: PolicyName = "adaptive", *, block_bytes: int = 8 * MIB) -> AsyncIterator[Reader]:
    """A reader of 64 MiB in eight blocks."""
    service = Arithmetic(64 * MIB, content=blank)
    async with (
        Operator(service, block_bytes=block_bytes, prefetch_blocks=AHEAD) as operator,
        operator.reader("k", policy=policy, size=64 * MIB) as reader,
    ):
        yield Reader(reader, operator, service)


async def read_back(made: Reader, step: int, *, end: int = 64 * MIB, skip: int = 0, at_cursor: bool = False) -> None:
    """Read towards the start in steps, the last one short."""
    while end > 0:
        start = max(0, end - step)
        if at_cursor:
            made.reader.seek(start)
            await made.reader.read(end - start)
        else:
            await made.reader.read_at(start, end - start)
        end = start - skip
    await settle(100)


def asked(made: Reader) -> tuple[int, int]:
    """Requests sent, and the bytes they asked for."""
    return len(made.service.log), sum(one.end - one.start for one in made.service.log)


@each_of(
    ("at_cursor", "step", "policy"),
    combinations([False, True], [32 * KIB, 100_000, 3 * MIB], ["adaptive", "sequential"]),
)
async def test_reading_towards_the_start_costs_a_request_a_block(
    policy: PolicyName, step: int, at_cursor: bool
) -> None:
    async with large_blocks(policy) as made:
        await read_back(made, step, at_cursor=at_cursor)
        assert asked(made) == (8, 64 * MIB)


@pytest.mark.parametrize("skip", [1, 1000, MIB])
async def test_short_skips_towards_the_start_cost_no_more(skip: int) -> None:
    async with large_blocks() as made:
        await read_back(made, 64 * KIB, skip=skip)
        assert asked(made)[0] == 8


async def test_chunks_that_are_read_forward_from_the_last_to_the_first() -> None:
    """As who looks for the last lines of a log does, and reads each chunk in order."""
    async with large_blocks() as made:
        for chunk in range(63 * MIB, -1, -MIB):
            for start in range(chunk, chunk + MIB, 128 * KIB):
                await made.reader.read_at(start, 128 * KIB)
        await settle(100)
        assert asked(made) == (8, 64 * MIB)


async def test_a_tail_and_what_lies_before_it_cost_a_request() -> None:
    """The end of a log, in growing steps; a trailer, a directory before it, and what that points to."""
    async with large_blocks() as made:
        position = 64 * MIB
        for size in (22, 8 * KIB, 64 * KIB, 512 * KIB, MIB):
            position -= size
            await made.reader.read_at(position, size)
        assert asked(made) == (1, 8 * MIB)


@pytest.mark.parametrize("policy", ["adaptive", "columnar", "parquet"])
async def test_a_run_towards_the_start_shows_among_scattered_reads(policy: PolicyName) -> None:
    """Exact at first, as far ahead again as it is long, then block by block."""
    async with large_blocks(policy) as made:
        for place in (60, 40, 50, 33):
            await made.reader.read_at(place * MIB + 777, 1000)
        requests, before = asked(made)
        await read_back(made, 64 * KIB, end=30 * MIB)
        now, asked_bytes = asked(made)
        assert now - requests <= 24
        assert asked_bytes - before <= 30 * MIB


@each_of("block_bytes", [MIB, 8 * MIB])
@each_of("seed", range(4))
async def test_scattered_reads_turn_to_exact_ranges_however_they_lie(seed: int, block_bytes: int) -> None:
    """Also where one happens to lie in front of another: a few blocks are all that this may cost."""
    places = random.Random(seed).sample(range(64 * MIB // 4096), 300)
    async with large_blocks(block_bytes=block_bytes) as made:
        for place in places:
            await made.reader.read_at(place * 4096, 4096)
        await settle(100)
        assert asked(made)[1] <= 4 * block_bytes + 300 * 4096
        assert {one.end - one.start for one in made.service.log[-100:]} == {4096}


async def test_a_run_forward_is_not_taken_for_one_towards_the_start() -> None:
    """Two that read the halves, the second half first: both have a window."""
    async with large_blocks(block_bytes=MIB) as made:
        for number in range(24):
            await made.read(32 * MIB + number * MIB, MIB)
            await made.read(number * MIB, MIB)
        assert made.windows.backward_runs == []
        assert {one.lane for one in made.service.log[-4:]} == {"prefetch"}

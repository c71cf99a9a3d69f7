"""What a window is worth: a store 30 ms away at 90 MB/s a connection, on the virtual clock, where times are exact.

The real figures, beside other clients, are the benchmarks'. Here a slip in the window shows in a second.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest

from aioprefetch import RangeReader
from aioprefetch.operator.operator import Operator
from aioprefetch.reader.growth import GROWTHS
from aioprefetch.testing.conformance.suite import checks
from tests.stores.computed_store import GIB, MIB, Arithmetic, Asked, Distance, blank
from tests.stores.gated_reader import reads_of

FAR_AWAY = Distance(first_byte_seconds=0.030, bytes_per_second=90e6)
IN_THE_RACK = Distance(first_byte_seconds=0.002, bytes_per_second=1e9)
BLOCK = 8 * MIB
PART = 4 * MIB
READ = MIB


@dataclass
class Run:
    """A sequential run that ended: when each read ended, how long each had to wait, and how wide the window was."""

    log: list[Asked]
    ended_seconds: list[float] = field(default_factory=list)
    waited_seconds: list[float] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)

    @property
    def bytes_per_second(self) -> float:
        """From the first request to the last byte."""
        return len(self.ended_seconds) * READ / self.ended_seconds[-1]

    def in_flight(self, seconds: float) -> int:
        """How many requests were under way at a time."""
        return sum(one.begun_seconds <= seconds < one.ended_seconds for one in self.log)


async def by_position(reader: RangeReader, size: int) -> AsyncIterator[None]:
    """Positioned reads."""
    for start in range(0, size, READ):
        await reader.read_at(start, READ)
        yield


async def by_cursor(reader: RangeReader, size: int) -> AsyncIterator[None]:
    """As a file is read."""
    for _ in range(0, size, READ):
        await reader.read(READ)
        yield


async def as_views(reader: RangeReader, size: int) -> AsyncIterator[None]:
    """Without a copy."""
    for start in range(0, size, READ):
        (await reader.view_at(start, READ)).release()
        yield


async def as_stream(reader: RangeReader, size: int) -> AsyncIterator[None]:
    """As chunks."""
    async with reader.stream(READ) as chunks:
        async for _ in chunks:
            yield


async def sequential(
    size: int,
    how: Callable[[RangeReader, int], AsyncIterator[None]] = by_position,
    *,
    pause_seconds: float = 0.0,
    distance: Distance = FAR_AWAY,
    concurrency: int = 64,
    **options: object,
) -> Run:
    """Read an object from end to end, with a pause after each read. The virtual clock begins at 0."""
    service = Arithmetic(size, content=blank, distance=distance)
    run = Run(service.log)
    async with (
        Operator(service, concurrency=concurrency) as operator,
        operator.reader("k", **options) as reader,  # type: ignore[arg-type]
    ):
        now = operator.runtime().now
        begun, before = now(), now()
        async for _ in how(reader, size):
            windows = reads_of(reader).ahead.windows
            run.ended_seconds.append(now() - begun)
            run.waited_seconds.append(now() - before)
            run.blocks.append(max((session.blocks for session in windows.runs), default=0))
            await asyncio.sleep(pause_seconds)
            before = now()
    return run


@pytest.mark.virtual
@pytest.mark.parametrize("how", [by_position, by_cursor, as_views, as_stream])
async def test_a_sequential_run_is_seven_times_as_fast_as_one_connection(
    how: Callable[[RangeReader, int], AsyncIterator[None]],
) -> None:
    """256 MiB in reads of 1 MiB with default options, the ramp included, and no byte asked for twice."""
    run = await sequential(256 * MIB, how)
    assert len(run.ended_seconds) == 256
    assert run.bytes_per_second >= (8.4 if how is as_stream else 7.3) * FAR_AWAY.bytes_per_second
    assert {one.end - one.start for one in run.log} == {PART, BLOCK}
    assert run.log[0].end == BLOCK
    assert sum(one.end - one.start for one in run.log) == 256 * MIB
    assert len(run.log) <= 63


@pytest.mark.virtual
@pytest.mark.parametrize("read_mib", [1, 2, 5, 9, 17])
async def test_a_run_that_ends_early_was_sent_little_more_than_was_read(read_mib: int) -> None:
    """At most four times as much is fetched ahead of a run as it has read, and blocks are whole."""
    service = Arithmetic(256 * MIB, content=blank, distance=FAR_AWAY)
    async with Operator(service) as operator, operator.reader("k") as reader:
        for _ in range(read_mib):
            await reader.read(READ)
    requested = sum(one.end - one.start for one in service.log)
    assert requested <= 5 * read_mib * MIB + 2 * BLOCK
    # As much as by whole blocks and windows that double with each MiB, and from the tenth MiB on half of it.
    assert service.sent_bytes <= {1: 1, 2: 2, 5: 8, 9: 27, 17: 27}[read_mib] * MIB


@pytest.mark.virtual
@pytest.mark.parametrize("chunk_bytes", [16 << 10, 64 << 10])
async def test_a_header_read_in_small_pieces_opens_a_window_of_one_block(chunk_bytes: int) -> None:
    """Each piece has to wait; but what was read is short, and so is what is fetched ahead."""
    service = Arithmetic(256 * MIB, content=blank, distance=FAR_AWAY)
    async with Operator(service) as operator, operator.reader("k") as reader:
        for _ in range(8):
            await reader.read(chunk_bytes)
    assert sum(one.end - one.start for one in service.log) <= 2 * BLOCK


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("distance", "concurrency", "block"),
    [(FAR_AWAY, 8, BLOCK), (FAR_AWAY, 64, PART), (IN_THE_RACK, 64, BLOCK)],
    ids=["few connections", "small blocks", "near"],
)
async def test_blocks_stay_whole_where_more_connections_bring_nothing(
    distance: Distance, concurrency: int, block: int
) -> None:
    run = await sequential(128 * MIB, distance=distance, concurrency=concurrency, block_bytes=block)
    # Before the first response it is not known how far away the store is.
    assert {one.end - one.start for one in run.log if one.start >= 80 * MIB} == {block}


@pytest.mark.virtual
@pytest.mark.parametrize("policy", ["sequential", "adaptive"])
async def test_after_the_ramp_the_requests_in_flight_are_what_limits_a_run(policy: str) -> None:
    """1 GiB: at least nine tenths of what n requests of B bytes can carry, n and B as counted at the store."""
    run = await sequential(GIB, policy=policy)
    begins = sorted(one.begun_seconds for one in run.log)
    most = max(map(run.in_flight, begins))
    assert most == 18  # Halves of the block that is read and of eight ahead.
    ramp_ended = next(seconds for seconds in begins if run.in_flight(seconds) == most)
    after = [seconds for seconds in run.ended_seconds if seconds >= ramp_ended]
    size = sum(one.end - one.start for one in run.log) / len(run.log)
    bound = most * size / FAR_AWAY.request_seconds(int(size))
    assert len(after) * READ / (after[-1] - ramp_ended) >= 0.9 * bound


@pytest.mark.virtual
async def test_the_window_is_full_at_the_first_wait_behind_the_second_block() -> None:
    """Each MiB of the first block stalls the reader. The window doubles, up to four times what was read."""
    run = await sequential(256 * MIB)
    assert run.blocks[:9] == [0, 1, 2, 2, 3, 3, 4, 4, 4]
    assert run.blocks[17:20] == [4, 4, 8]


@pytest.mark.virtual
async def test_a_run_that_had_to_wait_in_its_window_gets_no_whole_block_ahead() -> None:
    """Not by reads either that find their bytes in the first two blocks: the reads behind those would wait for it."""
    run = await sequential(256 * MIB)
    assert {one.end - one.start for one in run.log[1:]} == {PART}
    ended = FAR_AWAY.request_seconds(BLOCK) + FAR_AWAY.request_seconds(PART)
    assert sum(seconds <= ended + 0.001 for seconds in run.ended_seconds) >= 88


@checks("reliability:C23")
@pytest.mark.virtual
@pytest.mark.parametrize("pause_ms", [12, 20, 50, 200])
async def test_a_consumer_slower_than_one_connection_has_a_window_of_one_block(pause_ms: int) -> None:
    """It waits for its first read and never again, so there is no reason to look further ahead."""
    run = await sequential(64 * MIB, pause_seconds=pause_ms / 1e3)
    assert max(run.blocks) == 1
    assert run.waited_seconds[0] == pytest.approx(FAR_AWAY.request_seconds(READ))
    assert sum(run.waited_seconds[1:]) == 0
    assert max(map(run.in_flight, (one.begun_seconds for one in run.log))) <= 2


@pytest.mark.virtual
@pytest.mark.parametrize("pause_ms", [3, 6, 9])
async def test_a_faster_consumer_gets_the_window_that_keeps_it_from_waiting(pause_ms: int) -> None:
    """It waits during the ramp, the first block, then once for an instant, and in 128 MiB never again."""
    run = await sequential(128 * MIB, pause_seconds=pause_ms / 1e3)
    wanted = FAR_AWAY.request_seconds(BLOCK) / (8 * pause_ms / 1e3)
    assert run.blocks[-1] >= wanted / 2
    assert sum(run.waited_seconds[8:]) <= 0.010
    assert sum(map(bool, run.waited_seconds[8:])) <= 1


# Reads of 256 MiB: how often as fast as one connection, and the blocks that a consumer with 50 ms for each MiB gets.
STRATEGIES = {"stall": (7.3, 1), "geometric": (8.0, 8), "linear": (7.8, 8), "step": (4.8, 8)}


def test_every_strategy_is_compared() -> None:
    assert STRATEGIES.keys() == GROWTHS.keys()


@pytest.mark.virtual
@pytest.mark.parametrize("growth", STRATEGIES)
async def test_the_strategies_beside_each_other(growth: str) -> None:
    """Growth on stall is nearly as fast as growth with each read, and fetches little in vain."""
    times, blocks = STRATEGIES[growth]
    fast = await sequential(256 * MIB, prefetch_growth=growth)
    assert fast.bytes_per_second / FAR_AWAY.bytes_per_second == pytest.approx(times, rel=0.05)
    slow = await sequential(64 * MIB, pause_seconds=0.050, prefetch_growth=growth)
    assert slow.blocks[-1] == blocks


@pytest.mark.virtual
async def test_without_prefetching_a_run_is_one_request_after_the_other() -> None:
    """What the window is compared with: each read pays its first byte."""
    run = await sequential(64 * MIB, prefetch_enabled=False)
    assert run.ended_seconds[-1] == pytest.approx(64 * FAR_AWAY.request_seconds(READ))

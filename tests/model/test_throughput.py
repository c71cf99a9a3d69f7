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
from tests.benches.computed_store import GIB, MIB, Arithmetic, Asked, Distance, blank
from tests.benches.gated_reader import reads_of

FAR_AWAY = Distance(first_byte_seconds=0.030, bytes_per_second=90e6)
BLOCK = 8 * MIB
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
    **options: object,
) -> Run:
    """Read an object from end to end, with a pause after each read. The virtual clock begins at 0."""
    service = Arithmetic(size, content=blank, distance=FAR_AWAY)
    run = Run(service.log)
    async with Operator(service) as operator, operator.reader("k", **options) as reader:  # type: ignore[arg-type]
        now = operator.runtime().now
        begun, before = now(), now()
        async for _ in how(reader, size):
            windows = reads_of(reader).windows
            run.ended_seconds.append(now() - begun)
            run.waited_seconds.append(now() - before)
            run.blocks.append(max((session.blocks for session in windows.runs), default=0))
            await asyncio.sleep(pause_seconds)
            before = now()
    return run


@pytest.mark.virtual
@pytest.mark.parametrize("how", [by_position, by_cursor, as_views, as_stream])
async def test_a_sequential_run_is_five_times_as_fast_as_one_connection(
    how: Callable[[RangeReader, int], AsyncIterator[None]],
) -> None:
    """256 MiB in reads of 1 MiB with default options, the ramp included, and no byte asked for twice."""
    run = await sequential(256 * MIB, how)
    assert len(run.ended_seconds) == 256
    assert run.bytes_per_second >= 5 * FAR_AWAY.bytes_per_second
    assert [one.end - one.start for one in run.log] == [BLOCK] * 32


@pytest.mark.virtual
@pytest.mark.parametrize("policy", ["sequential", "adaptive"])
async def test_after_the_ramp_the_requests_in_flight_are_what_limits_a_run(policy: str) -> None:
    """1 GiB: at least nine tenths of what n requests of B bytes can carry, n and B as counted at the store."""
    run = await sequential(GIB, policy=policy)
    begins = sorted(one.begun_seconds for one in run.log)
    most = max(map(run.in_flight, begins))
    assert most == 9  # One that is read, eight ahead.
    ramp_ended = next(seconds for seconds in begins if run.in_flight(seconds) == most)
    after = [seconds for seconds in run.ended_seconds if seconds >= ramp_ended]
    size = sum(one.end - one.start for one in run.log) / len(run.log)
    bound = most * size / FAR_AWAY.request_seconds(int(size))
    assert len(after) * READ / (after[-1] - ramp_ended) >= 0.9 * bound


@pytest.mark.virtual
async def test_the_window_is_full_before_the_first_block_has_come() -> None:
    """Each MiB of the first block stalls the reader and doubles the window."""
    run = await sequential(256 * MIB)
    assert run.blocks[:6] == [0, 1, 2, 4, 8, 8]
    assert run.in_flight(FAR_AWAY.request_seconds(5 * MIB)) == 9


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
    """It waits during the ramp, the first two blocks, and in 128 MiB never again."""
    run = await sequential(128 * MIB, pause_seconds=pause_ms / 1e3)
    wanted = FAR_AWAY.request_seconds(BLOCK) / (8 * pause_ms / 1e3)
    assert run.blocks[-1] >= wanted / 2
    assert sum(run.waited_seconds[16:]) == 0


# Reads of 256 MiB: how often as fast as one connection, and the blocks that a consumer with 50 ms for each MiB gets.
STRATEGIES = {"stall": (5.3, 1), "geometric": (5.3, 8), "linear": (5.2, 8), "step": (4.8, 8)}


def test_every_strategy_is_compared() -> None:
    assert STRATEGIES.keys() == GROWTHS.keys()


@pytest.mark.virtual
@pytest.mark.parametrize("growth", STRATEGIES)
async def test_the_strategies_beside_each_other(growth: str) -> None:
    """Growth on stall is as fast as growth with each read, and spares a slow consumer what it has no use for."""
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

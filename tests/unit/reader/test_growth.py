"""How windows grow, by each strategy; how they shrink by waste and for want of memory, and where they end."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioprefetch.errors import ConfigInvalid
from aioprefetch.ranges import Range
from aioprefetch.reader.growth import GROWTHS, Growth, Progress, find_growth
from tests.profile import each_of
from tests.stores.gated_reader import KIB, bench, reads_of, settle
from tests.unit.reader.tape import AHEAD, BLOCK, FAR, Stall, Tape, run_at, tape

# Reads of half a block: how many blocks the window has after each, when every read, or none, had to wait.
WINDOWS: dict[tuple[str, Stall], list[int]] = {
    ("stall", "always"): [0, 1, 2, 4, 8, 8, 8, 8],
    ("stall", "never"): [0, 1, 1, 1, 1, 1, 1, 1],
    ("stall", "on a miss"): [0, 1, 1, 1, 1, 1, 1, 1],
    ("geometric", "always"): [0, 1, 2, 4, 8, 8, 8, 8],
    ("geometric", "never"): [0, 1, 2, 4, 8, 8, 8, 8],
    ("linear", "always"): [0, 1, 2, 3, 4, 5, 6, 7],
    ("linear", "never"): [0, 1, 2, 3, 4, 5, 6, 7],
    ("step", "always"): [1, 1, 8, 8, 8, 8, 8, 8],
    ("step", "never"): [1, 1, 8, 8, 8, 8, 8, 8],
}


def widths(made: Tape, reads: Iterator[Range], stall: Stall) -> list[int]:
    """The window of the run after each of its reads."""
    found = []
    for start, end in reads:
        made.read(start, end, stall=stall)
        found.append(run_at(made.windows, end).blocks)
    return found


@each_of(("growth", "stall"), WINDOWS)
def test_the_windows_of_each_strategy(growth: str, stall: Stall) -> None:
    half = BLOCK // 2
    reads = ((n * half, (n + 1) * half) for n in range(8))
    assert widths(tape("adaptive", growth), reads, stall) == WINDOWS[growth, stall]


@each_of("growth", GROWTHS)
def test_a_full_window_is_full_at_once_whatever_the_strategy(growth: str) -> None:
    """``sequential`` knows what comes."""
    assert tape("sequential", growth).read(0, 4).ahead == (BLOCK, (1 + AHEAD) * BLOCK)


# Where S3A's stream stands at the end of half a block, the next read, and its window: in order within the block or at
# its end, elsewhere a jump.
STEPS = {
    "on": ((BLOCK // 2, BLOCK), 1),
    "back, in the block": ((0, 4), 1),
    "on, over the end of the block": ((BLOCK // 2, BLOCK + 4), AHEAD),
    "to the end of the block": ((BLOCK, BLOCK + 4), AHEAD),
    "a byte behind it": ((BLOCK + 1, BLOCK + 5), 1),
    "two blocks on": ((2 * BLOCK, 2 * BLOCK + 4), 1),
}


@each_of("name", STEPS)
def test_step_opens_the_window_in_order_alone(name: str) -> None:
    made = tape("adaptive", "step")
    made.read(0, BLOCK // 2)
    (start, end), blocks = STEPS[name]
    made.read(start, end)
    assert run_at(made.windows, end).blocks == blocks


@pytest.mark.parametrize(("start", "blocks"), [(BLOCK, AHEAD), (BLOCK + 16, 1)])
def test_step_sees_a_read_in_order_also_when_it_is_a_hit(start: int, blocks: int) -> None:
    """The first read in a block is reported after it has moved the run."""
    made = tape("adaptive", "step")
    made.read(0, BLOCK // 2)
    made.hit(BLOCK // 2, start + 8)
    made.read(start, start + 8, stall="never")
    assert run_at(made.windows, start + 8).blocks == blocks


def test_step_closes_the_window_after_a_jump() -> None:
    made = tape("adaptive", "step")
    made.run(0, BLOCK, 4)
    assert run_at(made.windows, 4 * BLOCK).blocks == AHEAD
    made.read(6 * BLOCK, 7 * BLOCK)
    assert run_at(made.windows, 7 * BLOCK).blocks == 1


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(
    name=st.sampled_from(sorted(GROWTHS)),
    blocks=st.integers(0, 64),
    stalled=st.booleans(),
    crossed=st.booleans(),
    jumped=st.booleans(),
)
def test_no_strategy_shrinks_a_window_unless_the_reader_jumped(
    name: str, blocks: int, stalled: bool, crossed: bool, jumped: bool
) -> None:
    grown = GROWTHS[name].grow(Progress(blocks, stalled, crossed, jumped, 64))
    assert grown >= (min(blocks, 1) if jumped else blocks)


def test_an_unknown_strategy_is_refused_by_name() -> None:
    expected = r"prefetch_growth must be one of stall, geometric, linear, step, or a Growth"
    for name in ("", "Stall", "fast", None, 3, ("stall",)):
        with pytest.raises(ConfigInvalid, match=expected) as caught:
            find_growth(name, operation="reader", path="k")  # type: ignore[arg-type]
        assert repr(name) in str(caught.value)


def test_a_strategy_object_must_be_complete() -> None:
    for growth in (Growth("toy", -1, lambda progress: 1), Growth("toy", True, lambda progress: 1), Growth("toy", 0, 3)):  # type: ignore[arg-type]
        with pytest.raises(ConfigInvalid, match="must have first >= 0 and a callable grow"):
            find_growth(growth, operation="reader", path="k")


async def test_a_reader_takes_a_strategy_of_its_callers_own() -> None:
    """A toy outside the package decides the window of each read; results out of bounds are cut."""
    seen: list[Progress] = []
    windows = [2, 5, 1000, -3, 1]

    def grow(progress: Progress) -> int:
        seen.append(progress)
        return windows[len(seen) - 1]

    block = 64 * KIB
    async with bench(64 * block, prefetch_blocks=6) as b:
        toy = Growth("toy", 1, grow)
        async with b.reader(policy="adaptive", prefetch_growth=toy) as reader:
            assert reader.options.growth is toy
            found = []
            for _ in range(len(windows) + 1):
                await reader.read(block)
                await settle()
                found.append([session.blocks for session in reads_of(reader).ahead.windows.runs])
    assert found == [[1], [2], [5], [6], [0], [1]]
    assert [progress.blocks for progress in seen] == [1, 2, 5, 6, 0]
    assert {progress.blocks_max for progress in seen} == {6}


# --- waste and memory -----------------------------------------------------------------------------------------------


def test_a_run_that_the_cursor_leaves_halves_the_limit_and_breaks_off_what_lies_ahead() -> None:
    made = tape()
    made.run(0, BLOCK, 8, at_cursor=True)
    look = made.read(FAR // 2, FAR // 2 + 4, at_cursor=True)
    assert look.abandoned == (8 * BLOCK, 16 * BLOCK)
    assert made.windows.limit == AHEAD // 2


def test_a_run_that_had_nothing_ahead_is_left_for_nothing() -> None:
    made = tape("columnar")
    made.read(0, 8, at_cursor=True)
    look = made.read(FAR // 2, FAR // 2 + 8, at_cursor=True)
    assert look.abandoned is None
    assert made.windows.limit == AHEAD


def test_jumping_about_after_short_runs_ends_without_windows_and_a_long_run_brings_them_back() -> None:
    """Waste halves what later runs may have, use doubles it."""
    made = tape("sequential")
    limits = []
    for number in range(6):
        made.run(FAR // 2 + number * 100 * BLOCK, 8, 2, at_cursor=True)
        limits.append(made.windows.limit)
    assert limits == sorted(limits, reverse=True)
    assert limits[-1] <= 1
    made.run(0, BLOCK, 40, at_cursor=True)
    assert made.windows.limit == AHEAD
    assert run_at(made.windows, 40 * BLOCK).blocks == AHEAD


def test_a_run_that_never_waits_does_not_raise_the_limit() -> None:
    made = tape("sequential")
    made.run(FAR // 2, BLOCK, 2, at_cursor=True)
    made.run(0, BLOCK, 40, at_cursor=True, stall="never")
    assert made.windows.limit == AHEAD // 2


def test_without_memory_nothing_is_looked_ahead_at_and_windows_shrink() -> None:
    made = tape()
    made.run(0, BLOCK, 8)
    made.windows.shrink()
    assert run_at(made.windows, 8 * BLOCK).blocks == AHEAD // 2
    assert made.read(8 * BLOCK, 9 * BLOCK, may_grow=False).ahead is None
    assert run_at(made.windows, 9 * BLOCK).blocks == AHEAD // 2
    assert made.read(9 * BLOCK, 10 * BLOCK).ahead == (16 * BLOCK, 18 * BLOCK)


def test_with_no_blocks_to_look_ahead_a_run_still_brings_whole_blocks() -> None:
    made = tape(blocks_max=0)
    looks = made.run(0, BLOCK, 40)
    assert {(look.fill, look.ahead) for look in looks} == {("block", None)}


def test_what_was_evicted_ahead_of_a_run_is_asked_for_again() -> None:
    made = tape()
    made.run(0, BLOCK, 8)
    made.asked.clear()
    assert made.read(8 * BLOCK, 9 * BLOCK).ahead == (9 * BLOCK, 17 * BLOCK)


@each_of("policy", ["adaptive", "sequential", "columnar"])
def test_a_split_ends_every_window(policy: str) -> None:
    made = tape(policy, stop=10 * BLOCK + 5)
    made.windows.stop = FAR
    made.run(FAR // 2, BLOCK, 4)
    made.windows.stop = 10 * BLOCK + 5
    made.run(0, BLOCK // 2, 20)
    assert made.ahead[-1][1] == 10 * BLOCK + 5

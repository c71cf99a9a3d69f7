"""The windows of a reader: which reads belong together, and how far to look ahead of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioprefetch.ranges import Range
from aioprefetch.reader.growth import GROWTHS
from aioprefetch.reader.policy import POLICIES
from aioprefetch.reader.window import RUNS_MAX, SKIP_BYTES, WindowDecision
from tests.profile import each_of
from tests.unit.reader.tape import AHEAD, BLOCK, FAR, Stall, block_end, run_at, scatter, tape

PROPERTY = settings(max_examples=150, deadline=None, derandomize=True, database=None)


# --- whatever is read -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """One reported read of a program."""

    start: int
    size: int
    stall: Stall
    at_cursor: bool
    may_grow: bool


def steps() -> st.SearchStrategy[Step]:
    """Reads anywhere in the first 64 blocks."""
    return st.builds(
        Step,
        start=st.integers(0, 64 * BLOCK) | st.sampled_from(range(0, 64 * BLOCK, BLOCK // 2)),
        size=st.integers(1, 3 * BLOCK) | st.just(BLOCK // 2),
        stall=st.sampled_from(("always", "never", "on a miss")),
        at_cursor=st.booleans(),
        may_grow=st.sampled_from((True, True, False)),
    )


@PROPERTY
@given(
    policy=st.sampled_from(sorted(POLICIES)),
    growth=st.sampled_from(sorted(GROWTHS)),
    blocks_max=st.integers(0, 9),
    block=st.sampled_from((1, 7, BLOCK)),
    stop=st.integers(1, 80 * BLOCK),
    program=st.lists(steps(), max_size=40),
)
def test_no_program_of_reads_leaves_the_limits(
    policy: str, growth: str, blocks_max: int, block: int, stop: int, program: list[Step]
) -> None:
    """What is looked ahead at lies behind the read and before the stop, and is no wider than the widest window."""
    made = tape(policy, growth, stop=stop, blocks_max=blocks_max, block=block)
    windows = made.windows
    for step in program:
        start, end = min(step.start, stop - 1), min(step.start + step.size, stop)
        end = max(end, start + 1)
        look = made.read(start, end, stall=step.stall, at_cursor=step.at_cursor, may_grow=step.may_grow)
        assert 0 <= windows.limit <= blocks_max
        assert len(windows.runs) <= RUNS_MAX
        assert all(0 <= session.blocks <= blocks_max for session in windows.runs)
        if look.ahead is not None:
            assert step.may_grow
            assert end <= look.ahead[0] < look.ahead[1] <= stop
            assert look.ahead[1] <= block_end(end, block) + blocks_max * block
        if look.abandoned is not None:
            assert step.at_cursor or len(windows.runs) == RUNS_MAX
            assert look.abandoned[0] < look.abandoned[1] <= stop
        if POLICIES[policy].window == "none":
            assert look == WindowDecision("exact")
        if POLICIES[policy].fill == "block":
            assert look.fill == "block"


@PROPERTY
@given(
    policy=st.sampled_from(("adaptive", "sequential", "columnar")),
    growth=st.sampled_from(sorted(GROWTHS)),
    stop=st.integers(1, 60 * BLOCK),
    begin=st.integers(0, 8 * BLOCK),
    sizes=st.lists(st.tuples(st.integers(1, 3 * BLOCK), st.sampled_from(("always", "never", "on a miss")))),
    scattered=st.booleans(),
)
def test_no_byte_ahead_of_a_run_is_asked_for_twice(
    policy: str,
    growth: str,
    stop: int,
    begin: int,
    sizes: Sequence[tuple[int, Stall]],
    scattered: bool,
) -> None:
    """Each look ahead goes on where the one before ended, however long the reads, also after scattered ones."""
    made = tape(policy, growth, stop=stop)
    if scattered:
        made.windows.stop = 2 * FAR
        scatter(made, 5, start=FAR)
        made.windows.stop = stop
        made.ahead.clear()
    position = begin
    for size, stall in sizes:
        end = min(stop, position + size)
        if end > position:
            made.read(position, end, stall=stall)
            position = end
    edges = [edge for one in made.ahead for edge in one]
    assert edges == sorted(edges)


@PROPERTY
@given(
    policy=st.sampled_from(("adaptive", "sequential", "columnar")),
    blocks_max=st.integers(0, 9),
    begin=st.integers(0, 60 * BLOCK),
    sizes=st.lists(st.tuples(st.integers(1, 3 * BLOCK), st.booleans())),
)
def test_a_run_towards_the_start_asks_for_no_more_than_it_has_read(
    policy: str, blocks_max: int, begin: int, sizes: Sequence[tuple[int, bool]]
) -> None:
    """What it asks for ahead lies in front of it and is as long as the run at most; after a block it reads blocks."""
    windows = tape(policy, blocks_max=blocks_max).windows
    windows.stop = 2 * FAR
    front = begin
    for size, may_grow in sizes:
        start, end = max(0, front - size), front
        if start == end:
            break
        look = windows.on_read(start, end, missing=True, stalled=True, may_grow=may_grow, backward=True)
        front = start
        assert look.abandoned is None
        if look.ahead is not None:
            assert may_grow
            assert 0 <= look.ahead[0] < look.ahead[1] == start
            assert start - look.ahead[0] <= min(begin - start, blocks_max * BLOCK)
        if policy != "columnar":
            assert look == WindowDecision("block")
        elif begin - start >= BLOCK:
            assert (look.fill, look.ahead) == ("block", None)


# --- scattered reads ------------------------------------------------------------------------------------------------


@each_of("growth", GROWTHS)
def test_adaptive_moves_to_exact_ranges_by_the_fourth_read_that_belongs_to_no_run(growth: str) -> None:
    looks = scatter(tape("adaptive", growth), 40)
    assert looks[0].fill == "block"
    assert {look.fill for look in looks[3:]} == {"exact"}
    assert [look.ahead for look in looks[3:]] == [None] * 37


@each_of("growth", GROWTHS)
def test_sequential_never_moves_to_exact_ranges(growth: str) -> None:
    assert {look.fill for look in scatter(tape("sequential", growth), 40)} == {"block"}


@each_of("policy", ["random", "vector", "hbase", "columnar", "parquet"])
def test_policies_for_exact_ranges_never_bring_a_block_for_scattered_reads(policy: str) -> None:
    looks = scatter(tape(policy), 40)
    assert {(look.fill, look.ahead) for look in looks} == {("exact", None)}


def test_reads_of_bytes_that_are_there_are_not_scattered() -> None:
    """A file that is being read all over, but out of memory, is no reason for exact ranges."""
    made = tape()
    made.asked.update(range(40 * BLOCK))
    for start in (0, 20 * BLOCK, 10 * BLOCK, 30 * BLOCK, 5 * BLOCK, 15 * BLOCK):
        made.read(start, start + 4)
    assert not made.windows.is_random


@each_of("burst", [3, 4, 16, 17, 200])
def test_a_run_after_a_burst_of_random_reads_gets_a_window_again(burst: int) -> None:
    """The whole window, by the time it has read as much as the window holds."""
    made = tape()
    scatter(made, burst)
    looks = made.run(0, BLOCK // 4, 4 * AHEAD)
    assert looks[-1].fill == "block"
    assert run_at(made.windows, AHEAD * BLOCK).blocks == AHEAD
    # At first it looks as far ahead as it is long: the guess costs no more than the reads did.
    assert [look.ahead for look in looks[:2]] == [None, None]
    assert looks[2].fill == "exact"
    assert looks[2].ahead == (3 * BLOCK // 4, 6 * BLOCK // 4)


def test_a_run_that_was_there_before_a_burst_goes_on_after_it() -> None:
    """A few random reads between two reads of a run cost it nothing."""
    made = tape()
    made.run(0, BLOCK, 8)
    scatter(made, RUNS_MAX // 2)
    look = made.read(8 * BLOCK, 9 * BLOCK)
    assert look.fill == "block"
    assert look.ahead == (16 * BLOCK, 17 * BLOCK)


@pytest.mark.parametrize("burst", [RUNS_MAX + 1, 200])
def test_a_random_read_at_the_end_of_a_run_that_ended_long_ago_brings_no_window(burst: int) -> None:
    """Among a thousand random reads one may lie where a run has stopped: it has to show that it goes on."""
    made = tape()
    made.run(0, BLOCK, 8)
    scatter(made, burst)
    look = made.read(8 * BLOCK + 2, 8 * BLOCK + 6)
    assert (look.fill, look.ahead) == ("exact", None)


def test_a_run_that_moves_on_by_hits_is_not_forgotten() -> None:
    """Its reads are not reported while their bytes are resident; random ones beside it are, all of them."""
    made = tape()
    scatter(made, 5)
    made.run(0, 8, 4)
    position = 32
    for number in range(3 * RUNS_MAX):
        made.hit(position, position + 1)
        position += 1
        scatter(made, 1, start=2 * FAR + number * 64 * BLOCK)
    assert run_at(made.windows, position).run_bytes == position


def test_one_block_in_seventeen_may_be_spent_on_finding_out_whether_reads_have_become_local_again() -> None:
    made = tape()
    scatter(made, 5)
    made.run(0, BLOCK // 4, 15 * 4)
    assert scatter(made, 1, start=2 * FAR)[0].fill == "exact"
    made.run(15 * BLOCK, BLOCK // 4, 17 * 4)
    looks = scatter(made, 3, start=3 * FAR)
    assert [look.fill for look in looks] == ["block", "exact", "exact"]


# --- runs -----------------------------------------------------------------------------------------------------------


@each_of("skip", [0, 1, BLOCK // 2, BLOCK, -1, -BLOCK // 2, -BLOCK])
def test_small_skips_keep_the_run(skip: int) -> None:
    """Forward and backward, as long as a block."""
    made = tape()
    made.run(10 * BLOCK, BLOCK // 2, 4)
    position = 12 * BLOCK + skip
    made.read(position, position + BLOCK // 2)
    made.read(position + BLOCK // 2, position + BLOCK)
    (session,) = made.windows.runs
    assert (session.position, session.blocks) == (position + BLOCK, AHEAD)
    assert made.abandoned == []


@each_of("blocks", [1, 2, 4, 7])
def test_a_skip_into_what_was_asked_for_keeps_the_run(blocks: int) -> None:
    """However long: the bytes are coming."""
    made = tape()
    made.run(0, BLOCK, 5)
    start = (5 + blocks) * BLOCK
    made.read(start, start + BLOCK)
    (session,) = made.windows.runs
    assert (session.position, session.blocks) == (start + BLOCK, AHEAD)


@each_of("sign", [1, -1])
@each_of(
    ("run", "skip", "kept"),
    [
        (4096, SKIP_BYTES, True),
        (4096, SKIP_BYTES + 1, False),
        (3 * SKIP_BYTES, 3 * SKIP_BYTES, True),
        (3 * SKIP_BYTES, 3 * SKIP_BYTES + 1, False),
        (8 * SKIP_BYTES, 4 * SKIP_BYTES, True),
        (8 * SKIP_BYTES, 4 * SKIP_BYTES + 1, False),
    ],
)
def test_a_skip_in_a_large_block_is_as_long_as_the_run_at_most(run: int, skip: int, kept: bool, sign: int) -> None:
    """Or as it takes a first byte to read on through it, and no longer than a block."""
    made = tape(block=4 * SKIP_BYTES, stop=1 << 40, blocks_max=0)
    begin = 100 * SKIP_BYTES
    look = made.windows.on_read(begin, begin + run, missing=True, stalled=True)
    position = begin + run + sign * skip
    look = made.windows.on_read(position, position + 1, missing=True, stalled=True)
    assert look.ahead is None
    assert (len(made.windows.runs) == 1) is kept


def test_long_skips_into_what_lies_ahead_are_scattered_reads_after_all() -> None:
    """Each may have been aimed anywhere and have hit what was fetched ahead: after a few they move no window."""
    made = tape(blocks_max=40)
    made.run(0, BLOCK, 8)
    position = 8 * BLOCK
    for _ in range(3):
        position += 4 * BLOCK
        made.read(position, position + 4)
    assert made.windows.is_random
    look = made.read(position + 4 * BLOCK, position + 4 * BLOCK + 4)
    assert (look.ahead, look.continues) == (None, False)


@pytest.mark.parametrize("skip", [2 * BLOCK, -2 * BLOCK])
def test_a_long_skip_begins_another_run(skip: int) -> None:
    made = tape("columnar")
    made.run(10 * BLOCK, 8, 2)
    start = 10 * BLOCK + 16 + skip
    made.read(start, start + 8)
    assert [session.position for session in made.windows.runs] == [10 * BLOCK + 16, start + 8]


@each_of("at_cursor", [False, True])
@each_of("policy", ["adaptive", "sequential"])
def test_two_runs_in_turns_keep_both_windows(policy: str, at_cursor: bool) -> None:
    """By position, and by a cursor that goes back and forth: nothing that was fetched for either is broken off."""
    made = tape(policy)
    other = FAR // 2
    for number in range(40):
        for start in (number * BLOCK, other + number * BLOCK):
            made.read(start, start + BLOCK, at_cursor=at_cursor)
        if number == 4:
            made.abandoned.clear()
    assert made.abandoned == []
    assert [session.blocks for session in made.windows.runs] == [AHEAD, AHEAD]
    assert made.windows.limit == AHEAD


@pytest.mark.parametrize("at_cursor", [False, True])
def test_two_runs_and_random_reads_in_turns_keep_both_windows(at_cursor: bool) -> None:
    made = tape()
    for number in range(40):
        for start in (number * BLOCK, FAR // 4 + number * BLOCK):
            made.read(start, start + BLOCK, at_cursor=at_cursor)
        scatter(made, 1, start=FAR // 2 + number * 64 * BLOCK, at_cursor=at_cursor)
    ends = 40 * BLOCK, FAR // 4 + 40 * BLOCK
    assert [run_at(made.windows, end).blocks for end in ends] == [AHEAD, AHEAD]
    assert made.abandoned == []


def test_the_runs_remembered_are_bounded_and_scattered_reads_go_first() -> None:
    made = tape()
    made.run(0, BLOCK, 8)
    scatter(made, 10 * RUNS_MAX)
    assert len(made.windows.runs) == RUNS_MAX
    assert run_at(made.windows, 8 * BLOCK).established


def test_runs_that_come_to_one_place_become_one() -> None:
    """A random read in front of a run is no second run once the run has come there."""
    made = tape()
    made.run(0, BLOCK, 4)
    made.read(40 * BLOCK, 40 * BLOCK + 4)
    made.hit(4 * BLOCK, 41 * BLOCK)
    made.hit(40 * BLOCK + 4, 41 * BLOCK)
    made.read(41 * BLOCK, 42 * BLOCK)
    (session,) = made.windows.runs
    assert (session.position, session.established) == (42 * BLOCK, True)


def test_a_window_ends_where_the_next_run_began() -> None:
    """Two that read the halves of an object: the first one's end is the other's beginning."""
    made = tape()
    middle = 20 * BLOCK
    ahead: list[Range] = []
    for number in range(20):
        look = made.read(number * BLOCK, (number + 1) * BLOCK)
        ahead += [look.ahead] if look.ahead is not None else []
        made.read(middle + number * BLOCK, middle + (number + 1) * BLOCK)
    assert max(end for _, end in ahead) == middle
    made.asked.clear()
    assert made.read(middle, middle + BLOCK).ahead is not None  # It goes on there after all.


def test_a_run_that_the_cursor_left_bounds_no_window() -> None:
    """Only a run that goes on beside it: a reader that jumps back reads on through where it was."""
    made = tape("sequential")
    made.run(20 * BLOCK, BLOCK, 4, at_cursor=True)
    made.read(14 * BLOCK, 15 * BLOCK, at_cursor=True)
    look = made.read(15 * BLOCK, 16 * BLOCK, at_cursor=True)
    assert run_at(made.windows, 16 * BLOCK).requested_end > 20 * BLOCK
    assert look.abandoned is None


def test_hits_of_a_run_are_counted_once() -> None:
    """The read that is reported is one of them."""
    made = tape()
    made.run(0, 8, 2)
    made.hit(16, 40)
    made.read(32, 40)
    assert run_at(made.windows, 40).run_bytes == 40


def test_who_says_that_it_reads_to_the_end_has_the_whole_window_at_its_first_read() -> None:
    made = tape()
    made.windows.expect(3 * BLOCK)
    look = made.read(3 * BLOCK, 3 * BLOCK + 8, at_cursor=True)
    assert look.ahead == (4 * BLOCK, (4 + AHEAD) * BLOCK)


def test_forgetting_starts_again() -> None:
    made = tape()
    scatter(made, 40)
    made.windows.forget()
    assert made.windows.runs == []
    assert made.read(0, 4).fill == "block"

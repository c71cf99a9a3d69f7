"""The columns that a reader goes through: what it fetches ahead in a file whose layout is known."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioprefetch.ranges import Range, joined, total_length
from aioprefetch.reader.layout import CHUNKS_MAX as LAYOUT_CHUNKS_MAX
from aioprefetch.reader.layout import GAP_BYTES, GROUPS_FIRST, LOOKS_MAX, REPORT_CHUNKS_MAX, ColumnRuns, Layout

MIB = 1 << 20
PROPERTY = settings(max_examples=150, deadline=None, derandomize=True, database=None)


def layout_of(columns: int, groups: int, chunk_bytes: int) -> Layout:
    """Chunks of one size, group by group, from byte 4 on."""

    def at(column: int, group: int) -> Range:
        start = 4 + (group * columns + column) * chunk_bytes
        return start, start + chunk_bytes

    size = 4 + columns * groups * chunk_bytes + 1000
    return Layout([[at(column, group) for group in range(groups)] for column in range(columns)], size=size)


class Tape:
    """Reads of whole chunks; all of them miss unless they were fetched ahead."""

    def __init__(self, columns: int, groups: int, chunk_bytes: int, *, limit_bytes: int = 64 * MIB) -> None:
        self.layout = layout_of(columns, groups, chunk_bytes)
        self.runs = ColumnRuns(self.layout, limit_bytes=limit_bytes, stop=1 << 60)
        self.ahead: list[Range] = []

    def chunk(self, column: int, group: int) -> Range:
        number = self.layout.number_of(column, group)
        assert number is not None
        return self.layout.chunks[number][:2]

    def read(self, column: int, group: int) -> list[Range]:
        """Read a chunk; the ranges fetched ahead of it."""
        start, end = self.chunk(column, group)
        missing = not any(low <= start and end <= high for low, high in self.ahead)
        found = self.runs.on_read(start, end, missing=missing, stalled=missing, may_grow=True)
        self.ahead += found or []
        return found or []


def test_one_group_alone_brings_nothing_ahead() -> None:
    """A worker that reads its one row group."""
    tape = Tape(12, 10, 2 * MIB)
    assert [tape.read(column, 3) for column in (1, 5, 9)] == [[], [], []]


def test_the_second_group_brings_the_next_chunks_of_the_columns_that_were_read() -> None:
    tape = Tape(12, 10, 2 * MIB)
    for column in (1, 5, 9):
        tape.read(column, 0)
    found = tape.read(1, 1)
    wanted = [tape.chunk(column, group) for group in range(1, 10) for column in (1, 5, 9)][1:]
    assert found == sorted(wanted)[: len(found)]
    assert total_length(found) == GROUPS_FIRST * 3 * 2 * MIB


def test_columns_are_fetched_for_groups_in_any_order() -> None:
    """Threads that fetch ten groups at once: the chunk of one column, then that of another in a later group."""
    tape = Tape(12, 10, MIB)
    tape.read(1, 2)
    found = tape.read(9, 0)
    assert tape.chunk(9, 1) in found
    assert tape.chunk(1, 0) in found
    assert tape.chunk(1, 3) in found
    assert not any(
        low < tape.chunk(5, group)[1] and tape.chunk(5, group)[0] < high
        for low, high in tape.ahead
        for group in range(10)
    )


def test_the_window_doubles_with_reads_that_wait_once_something_ahead_was_read() -> None:
    tape = Tape(4, 400, 64 << 10)
    tape.read(0, 0)
    tape.read(0, 1)
    before = total_length(tape.ahead)
    tape.read(0, 2)
    tape.runs.on_read(*tape.chunk(0, 3), missing=False, stalled=True, may_grow=True)
    assert total_length(tape.ahead) >= before


def test_reads_that_skip_groups_get_one_window_in_vain_at_most() -> None:
    tape = Tape(12, 1000, MIB, limit_bytes=16 * MIB)
    for group in range(0, 1000, 100):
        tape.read(3, group)
    assert total_length(tape.ahead) <= 17 * MIB


def test_a_chunk_that_is_read_in_pieces_is_fetched_to_its_end() -> None:
    tape = Tape(3, 2, 8 * MIB)
    start, end = tape.chunk(1, 0)
    piece = 64 << 10
    assert tape.runs.on_read(start, start + piece, missing=True, stalled=True, may_grow=True) == []
    found = tape.runs.on_read(start + piece, start + 2 * piece, missing=True, stalled=True, may_grow=True)
    assert found == [(start + 2 * piece, start + 2 * piece + MIB)]
    position = start + 2 * piece
    while position < end:
        ahead = tape.runs.on_read(position, position + piece, missing=False, stalled=False, may_grow=True)
        assert ahead is not None
        assert all(stop <= end for _, stop in ahead)
        position += piece


def test_a_read_through_the_whole_file_is_left_to_the_windows() -> None:
    tape = Tape(4, 3, MIB)
    reads = [tape.chunk(column, group) for group in range(3) for column in range(4)]
    found = [tape.runs.on_read(*one, missing=True, stalled=True, may_grow=True) for one in reads]
    assert found[:4] == [[], [], [], []]
    assert found[4] is None


def test_long_reads_through_the_whole_file_have_the_next_ones_ahead() -> None:
    """As Arrow puts chunks together: every read after the first one finds its bytes, within the window."""
    tape = Tape(8, 12, 2 * MIB)
    group_bytes = 8 * 2 * MIB
    for group in range(12):
        start = tape.chunk(0, group)[0]
        found = tape.runs.on_read(start, start + group_bytes, missing=group < 2, stalled=group < 2, may_grow=True)
        assert found is not None
        assert group < 2 or any(low <= start and start + group_bytes <= high for low, high in joined(tape.ahead))
        tape.ahead += found
        assert max([stop for _, stop in tape.ahead], default=0) <= start + group_bytes + 64 * MIB
    assert joined(tape.ahead) == [(tape.chunk(0, 2)[0], tape.layout.end)]


def test_reads_outside_of_chunks_and_of_too_many_are_left_to_the_windows() -> None:
    tape = Tape(REPORT_CHUNKS_MAX + 1, 1, 10)
    size = 4 + (REPORT_CHUNKS_MAX + 1) * 10
    for start, end in ((0, 4), (size, size + 10), (0, size)):
        assert tape.runs.on_read(start, end, missing=True, stalled=True, may_grow=True) is None


def test_nothing_is_fetched_ahead_while_memory_is_short() -> None:
    tape = Tape(2, 10, MIB)
    for group in range(3):
        assert tape.runs.on_read(*tape.chunk(0, group), missing=True, stalled=True, may_grow=False) == []


def test_bytes_that_were_evicted_after_their_read_begin_the_run_again() -> None:
    tape = Tape(2, 10, MIB)
    for group in range(10):
        tape.read(0, group)
    tape.ahead.clear()
    assert tape.read(0, 0) == []
    assert tape.read(0, 1) != []


@PROPERTY
@given(
    columns=st.integers(1, 6),
    groups=st.integers(1, 12),
    chunk_bytes=st.sampled_from((100, 64 << 10, MIB, 5 * MIB)),
    limit=st.sampled_from((MIB, 16 * MIB)),
    reads=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 11), st.booleans()), max_size=30),
)
def test_no_byte_is_fetched_ahead_twice_and_none_beyond_the_window(
    columns: int, groups: int, chunk_bytes: int, limit: int, reads: list[tuple[int, int, bool]]
) -> None:
    """For any reads of whole chunks that are not evicted: what was fetched and not read fits into the window."""
    tape = Tape(columns, groups, chunk_bytes, limit_bytes=limit)
    read: set[Range] = set()
    for column, group, may_grow in reads:
        chunk = tape.chunk(column % columns, group % groups)
        found = (
            tape.runs.on_read(*chunk, missing=chunk not in read, stalled=True, may_grow=may_grow)
            if (chunk not in read)
            else []
        )
        read.add(chunk)
        if chunk_bytes > GAP_BYTES:  # Ranges bridge smaller ones; what is there is not requested.
            for low, high in found or []:
                assert all(high <= start or end <= low for start, end in tape.ahead)
        tape.ahead += found or []
        unread = [one for one in tape.ahead if not any(one[0] < end and start < one[1] for start, end in read)]
        assert total_length(unread) <= 2 * limit


@pytest.mark.parametrize(
    "columns",
    [
        [[(4, 20)], [(19, 30)]],
        [[(4, 20), (4, 20)]],
        [[(4, 101)]],
        [[(n, n + 1) for n in range(LAYOUT_CHUNKS_MAX + 1)]],
    ],
    ids=["overlapping", "twice", "beyond the end", "too many"],
)
def test_a_layout_that_cannot_be_is_refused(columns: list[list[Range]]) -> None:
    size = 100 if len(columns[0]) < 10 else 1 << 30
    with pytest.raises(ValueError, match=r"chunk"):
        Layout(columns, size=size)


class CountingLayout(Layout):
    """Counts how often a chunk is looked up."""

    looks = 0

    def number_of(self, column: int, group: int) -> int | None:
        self.looks += 1
        return super().number_of(column, group)


def test_a_report_looks_at_few_chunks_and_all_of_them_at_each_once() -> None:
    """From the last group to the first one, in a file of many small groups."""
    columns, groups, chunk_bytes = 20, 300, 20_000
    plain = layout_of(columns, groups, chunk_bytes)
    starts = [[(chunk.start, chunk.end) for chunk in plain.chunks if chunk.column == c] for c in range(columns)]
    layout = CountingLayout(starts, size=plain.end)
    runs = ColumnRuns(layout, limit_bytes=64 * MIB, stop=plain.end)
    waits = 0  # Looks at a chunk that is to come later, as a whole.
    for group in reversed(range(groups)):
        for column in range(columns):
            before = layout.looks
            runs.on_read(*starts[column][group], missing=True, stalled=True, may_grow=True)
            assert layout.looks - before <= LOOKS_MAX
            waits += 1
    assert layout.looks <= len(layout.chunks) + waits

"""The rules of a scan's queue, one by one: order, budget, merging, and that the plan is what is sent."""

import random
import weakref
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from aioprefetch.ranges import Range
from aioprefetch.scheduler.io_queue import IoQueue, cut, plan_requests
from aioprefetch.scheduler.queued_parts import QueuedFile, Submission, TakenRead

PLENTY = 1 << 40


def queue_of(
    ranges: Sequence[Range], *, gap_bytes: int = 0, request_bytes_max: int = 100, slots: int = 8
) -> tuple[IoQueue, QueuedFile, list[Submission]]:
    """A queue with one submission for each range of a file, row after row."""
    queue = IoQueue(slots=slots, request_bytes_max=request_bytes_max)
    file = QueuedFile(gap_bytes)
    return queue, file, [queue.submit(file, [one], row=row) for row, one in enumerate(ranges)]


def taken(queue: IoQueue, free_bytes: int | None = PLENTY) -> list[Range]:
    """Everything that may be sent, in order."""
    found = []
    while (read := queue.take(free_bytes)) is not None:
        found.append((read.start, read.end))
    return found


# --- order ----------------------------------------------------------------------------------------------------------


def test_rank_then_row_then_submission() -> None:
    queue = IoQueue(slots=10, request_bytes_max=100)
    file = QueuedFile(0)
    for number, (rank, row) in enumerate([(1, 0), (0, 7), (0, 3), (0, 7), (1, 0)]):
        queue.submit(file, [(1000 * number, 1000 * number + 1)], rank=rank, row=row)
    assert [start // 1000 for start, _ in taken(queue)] == [2, 1, 3, 0, 4]


def test_slots_bound_what_is_in_flight() -> None:
    queue, _, _ = queue_of([(0, 10), (50, 60), (90, 99)], slots=2)
    first = queue.take(PLENTY)
    assert first is not None
    assert queue.take(PLENTY) is not None
    assert queue.take(PLENTY) is None
    queue.finish(first)
    queue.finish(first)
    assert queue.in_flight == 1
    assert queue.take(PLENTY) is not None


def test_a_later_small_read_does_not_overtake_a_blocked_head() -> None:
    queue, _, _ = queue_of([(0, 10), (200, 290), (400, 401)])
    assert taken(queue, 20) == [(0, 10)]
    assert queue.queued == 2


# --- the rules by which the budget may be exceeded -------------------------------------------------------------------


def test_without_a_budget_everything_goes() -> None:
    queue, _, _ = queue_of([(0, 100), (200, 300), (400, 500)])
    assert taken(queue, None) == [(0, 100), (200, 300), (400, 500)]


def test_a_follow_up_may_exceed_the_budget_once() -> None:
    queue, file, _ = queue_of([(0, 50), (100, 190)])
    assert taken(queue, 60) == [(0, 50)]
    for start in (300, 500):
        queue.submit(file, [(start, start + 80)], row=0, is_follow_up=True)
    assert queue.take(-1) is None
    read = queue.take(10)
    assert read is not None
    assert (read.start, read.is_overdraft) == (300, True)
    assert queue.take(10 - 80) is None


def test_a_follow_up_behind_a_blocked_head_goes_first() -> None:
    queue, file, _ = queue_of([(0, 50), (100, 190)])
    assert taken(queue, 60) == [(0, 50)]
    queue.submit(file, [(300, 380)], row=5, is_follow_up=True)
    assert queue.head is not None
    assert queue.head.start == 100
    assert taken(queue, 10) == [(300, 380)]


def test_what_is_needed_before_everything_held_may_exceed_the_budget() -> None:
    queue, file, submissions = queue_of([(0, 100)])
    assert taken(queue, 0) == [(0, 100)]  # Nothing is held: larger than the budget, and on it goes.
    queue.submit(file, [(200, 250)], row=1)
    assert taken(queue, -100) == []
    queue.submit(file, [(300, 350)], rank=-1, row=9)
    assert taken(queue, -100) == [(300, 350)]
    assert queue.release(submissions[0]) != []


def test_only_what_is_held_counts_for_that() -> None:
    queue, file, (first, _) = queue_of([(0, 100), (200, 300)])
    read = queue.take(100)
    assert read is not None
    queue.finish(read)
    assert queue.take(0) is None  # Delivered and not released: held.
    queue.release(first)
    assert queue.held_bytes == 0
    assert taken(queue, 0) == [(200, 300)]
    assert len(file.parts) == 0


def test_a_failed_read_is_not_held() -> None:
    queue, _, _ = queue_of([(0, 100), (200, 300)])
    read = queue.take(100)
    assert read is not None
    queue.finish(read, failed=True)
    assert queue.held_bytes == 0
    assert taken(queue, 0) == [(200, 300)]


def test_the_rest_of_an_admitted_submission_may_exceed_the_budget() -> None:
    queue = IoQueue(slots=10, request_bytes_max=100)
    file = QueuedFile(0)
    queue.submit(file, [(0, 90), (200, 290), (400, 490)], row=0)
    queue.submit(file, [(600, 690)], row=0)
    assert taken(queue, 95) == [(0, 90), (200, 290), (400, 490), (600, 690)]  # It all fits: no number counts down here.
    queue = IoQueue(slots=10, request_bytes_max=100)
    queue.submit(file, [(0, 90), (200, 290), (400, 490)], row=0)
    queue.submit(file, [(600, 690)], row=0)
    assert taken(queue, 0) == [(0, 90), (200, 290), (400, 490)]


def test_what_is_awaited_goes_past_a_blocked_head_in_order() -> None:
    queue, _, submissions = queue_of([(0, 50), (100, 190), (300, 390), (500, 590)])
    assert taken(queue, 60) == [(0, 50)]
    queue.promote(submissions[3])
    queue.promote(submissions[2])
    queue.promote(submissions[2])
    assert taken(queue, -5) == [(300, 390), (500, 590)]
    assert taken(queue, -5) == []


# --- merging ---------------------------------------------------------------------------------------------------------


def test_neighbours_on_both_sides_come_along() -> None:
    queue, _, _ = queue_of([(50, 60), (65, 70), (0, 5), (40, 45), (71, 90)], gap_bytes=5)
    assert taken(queue) == [(40, 90), (0, 5)]


def test_the_sooner_needed_neighbour_first() -> None:
    ranges = [(50, 60), (20, 50), (60, 90)]
    assert plan_requests(ranges, gap_bytes=0, request_bytes_max=40) == [(20, 60), (60, 90)]
    ranges = [(50, 60), (60, 90), (20, 50)]
    assert plan_requests(ranges, gap_bytes=0, request_bytes_max=40) == [(50, 90), (20, 50)]


def test_a_neighbour_that_is_too_large_leaves_the_other_side_open() -> None:
    ranges = [(50, 60), (15, 50), (60, 80)]
    assert plan_requests(ranges, gap_bytes=0, request_bytes_max=40) == [(50, 80), (15, 50)]


def test_ranges_that_overlap_share_a_request() -> None:
    queue, _, submissions = queue_of([(10, 60), (0, 90), (20, 30), (10, 60)])
    read = queue.take(PLENTY)
    assert read is not None
    assert (read.start, read.end, len(read.parts)) == (0, 90, 4)
    assert set(read.users) == set(submissions)


def test_files_are_never_merged() -> None:
    queue = IoQueue(slots=10, request_bytes_max=100)
    for start in (0, 10):
        queue.submit(QueuedFile(50), [(start, start + 10)])
    assert taken(queue) == [(0, 10), (10, 20)]


def test_each_file_has_its_gap() -> None:
    queue = IoQueue(slots=10, request_bytes_max=100)
    for gap in (1, 2):
        queue.submit(QueuedFile(gap), [(0, 10), (12, 20)])
    assert taken(queue) == [(0, 10), (12, 20), (0, 20)]


def test_neighbours_only_as_far_as_the_budget_reaches() -> None:
    queue, _, submissions = queue_of([(0, 10), (10, 20), (20, 30)])
    assert taken(queue, 25)[:1] == [(0, 20)]
    queue, _, submissions = queue_of([(0, 10), (10, 20), (20, 30)])
    queue.promote(submissions[1])
    assert taken(queue, 5) == [(0, 20)]


def test_ranges_above_the_maximum_are_cut_into_equal_parts() -> None:
    assert cut(0, 100, 100) == [(0, 100)]
    assert cut(5, 106, 50) == [(5, 38), (38, 72), (72, 106)]
    assert cut(7, 7, 50) == []
    assert plan_requests([(0, 250), (250, 260)], gap_bytes=0, request_bytes_max=100) == [(0, 83), (83, 166), (166, 260)]


def test_empty_ranges_ask_for_nothing() -> None:
    queue, _, (only,) = queue_of([(5, 5)])
    assert queue.take(None) is None
    assert queue.release(only) == []


def test_a_released_submission_is_not_sent() -> None:
    queue, file, submissions = queue_of([(0, 10), (10, 20), (40, 50)])
    assert queue.release(submissions[1]) == []
    assert queue.release(submissions[1]) == []
    queue.promote(submissions[1])
    assert taken(queue) == [(0, 10), (40, 50)]
    assert (queue.queued, queue.queued_bytes, len(file.parts)) == (0, 0, 0)


def test_a_request_is_broken_off_with_its_last_user() -> None:
    queue, _, (one, two) = queue_of([(0, 10), (10, 20)])
    read = queue.take(PLENTY)
    assert read is not None
    assert queue.release(one) == []
    assert queue.release(two) == [read]
    assert queue.held_bytes == 20  # The bytes may be on their way still.
    queue.finish(read)
    assert queue.held_bytes == 0


def test_ten_thousand_reads_are_planned_at_once() -> None:
    """A quadratic queue would take minutes here."""
    order = random.Random(3)
    ranges = [(start, start + 90) for start in range(0, 1_000_000, 100)]
    order.shuffle(ranges)
    assert sum(end - start for start, end in plan_requests(ranges, gap_bytes=10, request_bytes_max=1000)) > 900_000


def test_small_ranges_of_a_submission_are_queued_together() -> None:
    queue = IoQueue(slots=64, request_bytes_max=100_000)
    file = QueuedFile(90)
    ranges = [(start, start + 10) for start in range(0, 1_000_000, 100)]
    submission = queue.submit(file, ranges)
    assert (len(submission.parts), queue.queued, queue.queued_bytes) == (1, 10_000, 100_000)
    sent = taken(queue)
    assert sent == plan_requests(ranges, gap_bytes=90, request_bytes_max=100_000)
    assert len(sent) == 10
    assert len(submission.parts) < 30
    assert (queue.queued, queue.queued_bytes, len(file.parts)) == (0, 0, 0)


def test_a_part_is_divided_where_another_begins_within() -> None:
    queue = IoQueue(slots=64, request_bytes_max=1000)
    file = QueuedFile(100)
    one = queue.submit(file, [(0, 10), (100, 110), (200, 210), (300, 310)], row=1)
    two = queue.submit(file, [(50, 60), (150, 160), (160, 170)], row=0)
    assert (len(one.parts), len(two.parts), len(file.parts)) == (3, 2, 5)  # 0, 50, 100, 150 with 160, 200 with 300.
    read = queue.take(PLENTY)
    assert read is not None
    assert (read.start, read.end) == (0, 310)
    assert [part.start for part in read.parts] == [0, 50, 100, 150, 200]
    assert queue.queued == 0


@given(st.lists(st.integers(0, 5000), max_size=400), st.lists(st.integers(0, 5000), max_size=400), st.data())
@settings(max_examples=60, deadline=None)
def test_ascending_ranges_are_sent_as_planned(one: list[int], two: list[int], data: st.DataObject) -> None:
    """Two takes that lie within each other, with ranges that touch, overlap and repeat."""
    size, gap, most = data.draw(st.integers(1, 60)), data.draw(st.integers(0, 40)), data.draw(st.integers(60, 900))
    groups = [[(start, start + size) for start in sorted(starts)] for starts in (one, two)]
    queue = IoQueue(slots=10_000, request_bytes_max=most)
    file = QueuedFile(gap)
    for row, ranges in enumerate(groups):
        queue.submit(file, ranges, row=row)
    assert taken(queue) == plan_requests(groups[0] + groups[1], gap_bytes=gap, request_bytes_max=most)
    assert len(file.parts) == 0


def test_a_long_scan_keeps_nothing_of_what_is_done() -> None:
    queue = IoQueue(slots=2, request_bytes_max=100)
    file = QueuedFile(0)
    gone = []
    for row in range(500):
        submission = queue.submit(file, [(1000 * row, 1000 * row + 10)], row=row, is_follow_up=row % 2 == 0)
        queue.promote(submission)
        read = queue.take(PLENTY)
        assert read is not None
        queue.finish(read)
        queue.release(submission)
        gone.append(weakref.ref(submission))
    del submission, read
    assert sum(one() is not None for one in gone) < 5


# --- the plan is what is sent ----------------------------------------------------------------------------------------

some_ranges = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 60)).map(lambda r: (r[0], r[0] + r[1])), max_size=25
)


@given(some_ranges, st.integers(0, 20), st.integers(1, 70), st.integers(1, 5), st.data())
@settings(max_examples=150, deadline=None)
def test_the_plan_is_what_a_queue_sends(
    ranges: list[Range], gap: int, most: int, slots: int, data: st.DataObject
) -> None:
    """However the ranges are grouped, whatever the slots, and it covers what was asked for."""
    plan = plan_requests(ranges, gap_bytes=gap, request_bytes_max=most)
    queue = IoQueue(slots=slots, request_bytes_max=most)
    file = QueuedFile(gap)
    start = 0
    while start < len(ranges):
        count = data.draw(st.integers(1, 4))
        queue.submit(file, ranges[start : start + count], row=start)
        start += count
    flying: list[TakenRead] = []
    sent: list[Range] = []
    while True:
        read = queue.take(PLENTY)
        if read is not None:
            flying.append(read)
            sent.append((read.start, read.end))
        elif flying:
            queue.finish(flying.pop(data.draw(st.integers(0, len(flying) - 1))))
        else:
            break
    assert sent == plan
    wanted = {byte for one in ranges for byte in range(*one)}
    brought = {byte for one in plan for byte in range(*one)}
    assert wanted <= brought
    assert all(end - start <= most for start, end in plan)
    assert all(any(abs(byte - other) <= gap for other in wanted) for byte in brought)


def test_a_neighbour_that_overlaps_comes_piece_by_piece() -> None:
    """Its last piece brings what lies behind into reach, which is needed before its other pieces."""
    queue = IoQueue(slots=8, request_bytes_max=100)
    file = QueuedFile(0)
    queue.submit(file, [(0, 10), (10, 100)], row=5)
    queue.submit(file, [(100, 110)], row=3)
    queue.submit(file, [(20, 30)], row=0)
    assert taken(queue) == [(10, 110), (0, 10)]


# --- requests that were planned -------------------------------------------------------------------------------------


def test_planned_requests_are_sent_as_they_were_planned() -> None:
    queue = IoQueue(slots=8, request_bytes_max=1000)
    file = QueuedFile(5, planned=[(0, 300), (300, 400)])
    queue.submit(file, [(290, 310)], row=3)
    for row, one in enumerate([(200, 210), (0, 10), (390, 400)]):
        queue.submit(file, [one], row=row)
    queue.submit(file, [(404, 410), (500, 510)], row=9)  # Outside of them the gap counts.
    assert taken(queue) == [(0, 300), (300, 400), (404, 410), (500, 510)]


def test_a_planned_request_waits_for_what_is_still_to_be_submitted() -> None:
    queue = IoQueue(slots=8, request_bytes_max=1000)
    file = QueuedFile(0, planned=[(0, 100), (200, 300)], wanted=[(0, 10), (90, 100), (200, 300)])
    queue.submit(file, [(0, 10)], row=0)
    assert taken(queue) == []
    waits = [queue.waits_for_more]
    queue.submit(file, [(90, 100)], row=1)
    assert [*waits, queue.waits_for_more] == [True, False]
    assert taken(queue) == [(0, 100)]
    awaited = queue.submit(file, [(200, 250)], row=2)
    assert taken(queue) == []
    queue.promote(awaited)
    assert taken(queue) == [(200, 250)]  # A waiter for it would wait for ever.
    queue.submit(file, [(250, 300)], row=3)
    assert taken(queue) == [(250, 300)]

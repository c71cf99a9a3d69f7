"""The queue of a scan in thousands of histories: its rules kept, nothing counted twice, no deadlock."""

import random
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import pytest

from aioprefetch.ranges import Range
from aioprefetch.scheduler import queued_parts
from aioprefetch.scheduler.io_queue import IoQueue
from aioprefetch.scheduler.queued_parts import Part, QueuedFile, Submission, TakenRead
from aioprefetch.testing.conformance.suite import checks
from tests.profile import chosen
from tests.stores.gated_reader import in_case


class Piece(NamedTuple):
    """A piece of a submission, for which the rules are written, however many of them are queued as one part."""

    submission: Submission
    number: int

    @property
    def start(self) -> int:
        return self.submission.starts[self.number]

    @property
    def end(self) -> int:
        return self.submission.ends[self.number]

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def key(self) -> tuple[int, ...]:
        return (*self.submission.priority, self.number)


def pieces(parts: Iterable[Part]) -> list[Piece]:
    return [Piece(part.submission, number) for part in parts for number in range(part.first, part.last)]


class Watched:
    """A queue with a budget, and a naive account of everything, by which each step is checked."""

    def __init__(self, *, budget: int, slots: int, most: int, gaps: Sequence[int]) -> None:
        self.budget = budget
        self.refunded: list[TakenRead] = []
        self.queue = IoQueue(slots=slots, request_bytes_max=most, on_refund=self.refunded.append)
        self.files = [QueuedFile(gap) for gap in gaps]
        self.submissions: list[Submission] = []
        self.queued: dict[Piece, None] = {}
        self.flying: list[TakenRead] = []
        self.held: list[TakenRead] = []
        self.admitted: set[Submission] = set()

    def submit(self, file: int, ranges: Sequence[Range], rank: int, row: int, *, follow_up: bool = False) -> Submission:
        made = self.queue.submit(self.files[file], ranges, rank=rank, row=row, is_follow_up=follow_up)
        self.submissions.append(made)
        self.queued.update(dict.fromkeys(pieces(made.parts)))
        self.check()
        return made

    def take(self) -> TakenRead | None:
        free = self.budget - self.queue.held_bytes
        ordered = sorted(self.queued, key=lambda part: part.key)
        due = self._due(ordered, free)
        read = self.queue.take(free)
        if read is None or due is None:
            assert read is None
            assert due is None
            return None
        assert due in pieces(read.parts)
        self._check_merged(read, due, free)
        for part in pieces(read.parts):
            del self.queued[part]
            self.admitted.add(part.submission)
        self.flying.append(read)
        self.held.append(read)
        assert read.is_overdraft == (read.size > free)
        assert read.is_overdraft or self.queue.held_bytes <= self.budget
        self.check()
        return read

    def _due(self, ordered: list[Piece], free: int) -> Piece | None:
        """What the rules say is next."""
        if len(self.flying) >= self.queue.slots or not ordered:
            return None
        head = ordered[0]
        holders = [user.priority for read in self.held for user in read.users]
        if (
            head.size <= free
            or self.may_exceed(head, free)
            or head.submission.priority <= min(holders, default=head.submission.priority)
        ):
            return head
        return next((p for p in ordered if p.submission.is_awaited or (p.submission.is_follow_up and free >= 0)), None)

    def may_exceed(self, part: Piece, free: int) -> bool:
        one = part.submission
        return one.is_awaited or one in self.admitted or (one.is_follow_up and free >= 0)

    def _check_merged(self, read: TakenRead, due: Piece, free: int) -> None:
        parts = pieces(read.parts)
        assert all(part.submission.file is read.file for part in parts)
        assert (read.start, read.end) == (min(p.start for p in parts), max(p.end for p in parts))
        reached = read.start
        for part in parts:
            assert part.start - reached <= read.file.gap_bytes
            reached = max(reached, part.end)
        assert read.size <= self.queue.request_bytes_max
        if read.size > free:
            self.admitted.add(due.submission)
            loose = [part for part in parts if part != due and not self.may_exceed(part, free)]
            tight = max([due.end, *(p.end for p in loose)]) - min([due.start, *(p.start for p in loose)])
            assert not loose or tight <= free

    def finish(self, number: int, *, failed: bool) -> TakenRead:
        read = self.flying.pop(number)
        if failed or not read.users:
            self.held.remove(read)
        self.queue.finish(read, failed=failed)
        self.check()
        return read

    def release(self, submission: Submission) -> None:
        for part in pieces(submission.parts):
            self.queued.pop(part, None)
        users = {read: set(read.users) - {submission} for read in self.held}
        broken = self.queue.release(submission)
        assert broken == [r for r in broken if r in self.flying and not users[r]]
        self.held = [read for read in self.held if users[read] or read in self.flying]
        self.check()

    def check(self) -> None:
        queue = self.queue
        assert queue.in_flight == len(self.flying) <= queue.slots
        assert queue.held_bytes == sum(read.size for read in self.held)
        assert (queue.queued, queue.queued_bytes) == (len(self.queued), sum(part.size for part in self.queued))
        assert len(self.refunded) == len(set(self.refunded))
        assert not set(self.refunded) & set(self.held)

    def end(self) -> None:
        for submission in self.submissions:
            self.release(submission)
        while self.flying:
            self.finish(0, failed=False)
        assert (self.queue.held_bytes, self.queue.in_flight, self.queue.queued) == (0, 0, 0)
        assert all(len(file.parts) == 0 for file in self.files)
        assert self.queue.take(self.budget) is None


def step(watched: Watched, chosen: random.Random, *, row: int) -> None:
    """One random step."""
    verb = chosen.choice(["submit", "submit", "take", "take", "take", "promote", "finish", "fail", "release"])
    if verb == "submit":
        starts = [chosen.randrange(300) for _ in range(chosen.randint(1, 3))]
        ranges = [(start, start + chosen.choice([0, 3, 10, 40, 130])) for start in starts]
        file, rank = chosen.randrange(2), chosen.randrange(2)
        watched.submit(file, ranges, rank, row + chosen.randrange(9), follow_up=chosen.random() < 0.2)
    elif verb == "take":
        watched.take()
    elif verb in ("finish", "fail") and watched.flying:
        watched.finish(chosen.randrange(len(watched.flying)), failed=verb == "fail")
    elif verb in ("promote", "release") and watched.submissions:
        one = chosen.choice(watched.submissions[-6:])
        watched.queue.promote(one) if verb == "promote" else watched.release(one)


def any_history_keeps_the_rules(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 500):
        chosen = random.Random(seed)
        watched = Watched(
            budget=chosen.choice([0, 1, 50, 200]), slots=chosen.randint(1, 4), most=50, gaps=[0, chosen.randrange(30)]
        )
        for row in range(40):
            step(watched, chosen, row=row)
        watched.end()


def test_any_history_keeps_the_rules() -> None:
    for first_seed in chosen(quick=range(0, 500, 500), full=range(0, 2000, 500)):
        with in_case(first_seed=first_seed):
            any_history_keeps_the_rules(first_seed)


def outcome(seed: int) -> list[object]:
    """What is sent, and what is held and queued after each step, in a history of ascending small ranges."""
    chosen = random.Random(seed)
    queue = IoQueue(slots=chosen.randint(1, 4), request_bytes_max=chosen.choice([20, 50, 200]))
    files = [QueuedFile(gap) for gap in (0, chosen.randrange(30))]
    if chosen.random() < 0.3:
        files[1] = QueuedFile(5, [(0, 40), (60, 100), (100, 250)])
    budget = chosen.choice([1, 50, 200, 10_000])
    submissions: list[Submission] = []
    flying: list[TakenRead] = []
    seen: list[object] = []
    for row in range(60):
        verb = chosen.choice(["submit", "take", "take", "take", "promote", "finish", "release"])
        if verb == "submit":
            starts = [chosen.randrange(300) for _ in range(chosen.randint(1, 20))]
            if chosen.random() < 0.8:
                starts.sort()
            size = chosen.choice([1, 3, 10])
            ranges = [(start, start + size + (chosen.random() < 0.1) * 30) for start in starts]
            line = row + chosen.randrange(9)
            submissions.append(
                queue.submit(files[chosen.randrange(2)], ranges, row=line, is_follow_up=chosen.random() < 0.2)
            )
        elif verb == "take":
            read = queue.take(budget - queue.held_bytes)
            if read is not None:
                flying.append(read)
                users = [(user.priority, number) for user, number in pieces(read.parts)]
                seen.append((read.start, read.end, read.is_overdraft, users))
        elif verb == "finish" and flying:
            queue.finish(flying.pop(chosen.randrange(len(flying))), failed=chosen.random() < 0.1)
        elif verb in ("promote", "release") and submissions:
            one = chosen.choice(submissions[-6:])
            queue.promote(one) if verb == "promote" else queue.release(one)
        seen.append((queue.held_bytes, queue.queued, queue.queued_bytes, queue.in_flight))
    return seen


def test_parts_of_many_ranges_are_taken_as_each_of_them_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same requests, in the same order and with the same overdrafts, whatever is queued as one part."""
    together = [outcome(seed) for seed in range(600)]

    def everywhere(submission: Submission) -> list[int]:
        return list(range(1, len(submission.starts)))

    monkeypatch.setattr(queued_parts, "find_breaks", everywhere)
    assert together == [outcome(seed) for seed in range(600)]


# --- no deadlock -----------------------------------------------------------------------------------------------------


class Page:
    """A page of a simulated column: one or two reads, decoded when all have come."""

    def __init__(self, rows: Range, ranges: list[list[Range]]) -> None:
        self.rows = rows
        self.ranges = ranges
        self.reads: list[Submission] = []
        self.is_promoted = False

    def missing(self, arrived: Callable[[Submission], bool]) -> bool:
        return len(self.reads) < len(self.ranges) or not all(map(arrived, self.reads))


class Scan:
    """Columns with pages of any size, submitted in row order; a decoder that needs all of a batch before it decodes."""

    def __init__(self, chosen: random.Random) -> None:
        self.chosen = chosen
        self.rows = chosen.randint(1, 40)
        self.watched = Watched(
            budget=chosen.choice([1, 10, 60, 300]), slots=chosen.randint(1, 4), most=40, gaps=[chosen.choice([0, 8])]
        )
        self.pages: list[Page] = []
        self.arrived: dict[Submission, int] = {}
        self.drained = 0
        self.batch = chosen.randint(1, 12)
        position = 0
        for _ in range(chosen.randint(1, 4)):
            start = 0
            while start < self.rows:
                end = min(self.rows, start + chosen.randint(1, 15))
                halves = []
                for _ in range(chosen.choice([1, 1, 1, 2])):
                    size = chosen.choice([1, 5, 30, 100])
                    halves.append([(position, position + size), (position + size + 3, position + size + 5)])
                    position += size + chosen.choice([0, 5, 50])
                self.pages.append(Page((start, end), halves))
                start = end
        self.pages.sort(key=lambda page: page.rows[0])
        self.unscheduled = list(self.pages)

    def submit(self, page: Page) -> None:
        half = len(page.reads)
        made = self.watched.submit(0, page.ranges[half], 0, page.rows[0], follow_up=half > 0)
        page.reads.append(made)
        if page.is_promoted:
            self.watched.queue.promote(made)

    def is_there(self, one: Submission) -> bool:
        return self.arrived.get(one, 0) == len(one.starts)

    def ended(self, read: TakenRead) -> None:
        for part in read.parts:
            self.arrived[part.submission] = self.arrived.get(part.submission, 0) + part.count
        for page in self.pages:
            if 0 < len(page.reads) < len(page.ranges) and self.is_there(page.reads[-1]):
                self.submit(page)

    def decode(self) -> bool:
        """Whether a batch was decoded; if not, its reads are wanted now."""
        end = min(self.rows, self.drained + self.batch)
        if self.unscheduled and self.unscheduled[0].rows[0] < end:
            return False
        needed = [page for page in self.pages if page.rows[0] < end and page.rows[1] > self.drained]
        for page in needed:
            page.is_promoted = True
            for one in page.reads:
                self.watched.queue.promote(one)
        if any(page.missing(self.is_there) for page in needed):
            return False
        self.drained = end
        for page in needed:
            if page.rows[1] <= end:
                for one in page.reads:
                    self.watched.release(one)
        return True

    def turn(self) -> bool:
        """One step of those that are possible, in random order; whether there was any."""
        steps = [self._schedule, self._take, self._finish, self.decode]
        self.chosen.shuffle(steps)
        return any(one() for one in (*steps, self._take))  # Once more: it may be only now that something is wanted.

    def _schedule(self) -> bool:
        if self.unscheduled:
            self.submit(self.unscheduled.pop(0))
            return True
        return False

    def _take(self) -> bool:
        return self.watched.take() is not None

    def _finish(self) -> bool:
        if not self.watched.flying:
            return False
        self.ended(self.watched.finish(self.chosen.randrange(len(self.watched.flying)), failed=False))
        return True


def a_decoder_in_row_order_always_gets_on(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 250):
        scan = Scan(random.Random(seed))
        while scan.drained < scan.rows:
            assert scan.turn(), f"seed {seed}: nothing can happen any more at row {scan.drained}"
        assert scan.watched.queue.held_bytes == 0
        scan.watched.end()


def test_a_decoder_in_row_order_always_gets_on() -> None:
    for first_seed in chosen(quick=range(0, 250, 250), full=range(0, 1000, 250)):
        with in_case(first_seed=first_seed):
            a_decoder_in_row_order_always_gets_on(first_seed)


@checks("reliability:C23")
def test_a_slow_consumer_holds_the_budget_and_one_submission_at_most() -> None:
    """No reader waits, requests end at once: with the rule of Lance all of the file would come."""
    for seed in range(200):
        chosen = random.Random(seed)
        watched = Watched(budget=100, slots=3, most=40, gaps=[4])
        largest = position = 0
        for row in range(40):
            sizes = [chosen.randint(1, 60) for _ in range(chosen.randint(1, 3))]
            ranges = []
            for size in sizes:
                ranges.append((position, position + size))
                position += size + chosen.choice([0, 3, 20])
            largest = max(largest, sum(sizes) + 4 * len(sizes))
            watched.submit(0, ranges, 0, row)
            while watched.take() is not None or watched.flying:
                if watched.flying:
                    watched.finish(0, failed=False)
        assert watched.queue.held_bytes <= 100 + largest
        assert watched.queue.queued > 0

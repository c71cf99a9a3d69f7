"""The runs of reads of one reader, and how far each of them looks ahead. Pure, no I/O.

A **run** is a series of reads in sequence; a reader may have several at once, each with a window of its
own. A read that belongs to no run is a random read. The first two random reads bring whole blocks, because most files
are read at their end and at one other place first. From the third on access is random: a miss brings the exact range,
until a run shows again.

Sources: the sessions of JuiceFS, the stall-driven window of Mountpoint for S3, and the block grid of the S3A
prefetching stream (its ``FilePosition``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from aioprefetch.lean_dataclass import dataclass
from aioprefetch.ranges import OFFSET_MAX, Range, subtract
from aioprefetch.reader.growth import Growth, Progress
from aioprefetch.reader.policy import Fill, Policy

# The first random reads bring whole blocks, later ones exact ranges.
RANDOM_READS_BY_BLOCK = 2

# From this many random reads on access is random: a read has to continue a run exactly to belong to it.
RANDOM_AFTER = 3

# A skip of this length ends no run: reading through it takes 23 ms at 90 MB/s, and a first byte takes 20 to 50 ms.
SKIP_BYTES = 2 << 20

# After this many blocks read in order without a random read in between, one random read may bring a block again: at
# most one block in seventeen is then fetched in vain.
ORDERED_BLOCKS = 16

# A run of this many blocks in order is long: it does not need the blocks behind it.
LONG_RUN_BLOCKS = 2

# The most runs of one reader; the run used longest ago is forgotten first. Under random access a run that was not read
# during this many reads has to show again that it is one.
RUNS_MAX = 16


@dataclass(slots=True, eq=False)
class Run:
    """One run: it began at ``start`` and continues at ``position``; everything before ``requested_end`` was requested.

    ``reported_position``: its position after the last reported read; hits in between are not reported.
    ``cursor_left``: the cursor left it and returned, so that leaving it again has no meaning.
    ``merged``: another run has reached the same position, and was merged with it.
    ``beyond_bytes``: the bytes that were read behind the end of the split.
    ``waited_position``: the end of its last read that had to wait.
    ``used``: the number of the reported read that used it last.
    """

    start: int
    position: int
    reported_position: int
    requested_end: int
    blocks: int
    established: bool
    reads: int = 1
    run_bytes: int = 0
    used: int = 0
    cursor_left: bool = False
    merged: bool = False
    beyond_bytes: int = 0
    waited_position: int = -OFFSET_MAX


@dataclass(slots=True, eq=False)
class BackwardRun:
    """A run towards the start of the object: ``front`` is where its last miss began.

    Everything from ``requested_start`` up to there was requested already.
    """

    front: int
    requested_start: int
    run_bytes: int
    established: bool = False
    reads: int = 1
    used: int = 0


@dataclass(frozen=True, slots=True)
class WindowDecision:
    """The decision that follows from a read.

    ``fill``: whether a miss brings blocks or the exact range. ``ahead``: the range to fetch ahead. ``abandoned``: the
    range that was fetched ahead in vain. ``continues`` is false for a read that belongs to no run and begins none,
    because it is in the bytes that were fetched ahead of another run, which continues unchanged. ``chunks`` are the
    ranges to fetch ahead in a file whose layout is known. ``behind``: the end of the blocks that a long run has left
    behind, or 0. ``in_parts``: blocks ahead are wanted sooner than one connection each brings them,
    because the reader had to wait less than a window ago, or its window cannot grow.
    """

    fill: Fill
    ahead: Range | None = None
    abandoned: Range | None = None
    continues: bool = True
    chunks: tuple[Range, ...] = ()
    behind: int = 0
    in_parts: bool = False


# The decisions for a read that fetches nothing ahead.
NOTHING_AHEAD: dict[Fill, WindowDecision] = {"block": WindowDecision("block"), "exact": WindowDecision("exact")}


class Windows:
    """The runs of one reader.

    ``last_end`` returns the end of the hits that have continued a run since a position; hits are not reported here.
    ``stop`` is the end of look-ahead: the end of the object. ``split_end`` is where the caller means to stop. A read
    beyond it mostly finishes a record, so a run looks ahead there only after it has read a block, and its window begins
    at 0 again. ``random_reads`` are taken to have been made before. ``has_gone_back``: a read began before the end of
    an earlier one, so bytes behind a run may be wanted.
    """

    def __init__(
        self,
        policy: Policy,
        growth: Growth,
        *,
        block_bytes: int,
        blocks_max: int,
        split_end: int = OFFSET_MAX,
        last_end: Callable[[int], int] = lambda position: position,
        random_reads: int = 0,
    ) -> None:
        self.policy = policy
        self.growth = growth
        self.block_bytes = block_bytes
        self.blocks_max = blocks_max
        self.split_end = split_end
        self.limit = blocks_max
        self.runs: list[Run] = []  # The last used one at the end.
        self.backward_runs: list[BackwardRun] = []
        self.stop = 0
        self.has_gone_back = False
        self._last_end = last_end
        self._cursor: Run | None = None
        self._first_random_reads = self._random_reads = random_reads
        self._ordered_bytes = 0
        self._tick = 0

    @property
    def is_random(self) -> bool:
        """Whether access is random: then a read has to continue a run exactly to belong to it."""
        fill = self.policy.fill
        return self._random_reads >= RANDOM_AFTER if fill == "adaptive" else fill == "exact"

    @property
    def fill(self) -> Fill:
        """The bytes to fetch for a miss outside of all runs."""
        fill = self.policy.fill
        if fill == "adaptive":
            return "exact" if self._random_reads >= RANDOM_READS_BY_BLOCK else "block"
        return fill

    @property
    def positions(self) -> tuple[int, ...]:
        """The positions of the runs that look ahead."""
        return tuple([run.position for run in self.runs if run.blocks])

    def on_read(
        self,
        start: int,
        end: int,
        *,
        missing: bool,
        stalled: bool,
        at_cursor: bool = False,
        may_grow: bool = True,
        backward: bool = False,
        is_late: bool = False,
        is_alone: bool = False,
    ) -> WindowDecision:
        """Report a read of ``[start, end)`` that was a miss, or a hit that has reached a mark.

        ``missing``: some of it is neither resident nor in flight. ``stalled``: it has to wait. ``at_cursor``: it was
        made through the reader's cursor, which follows one run at a time. ``may_grow``: there is memory to look ahead.
        ``backward``: it is missing, and lies right in front of the read before it. ``is_late``: it is a hit of another
        thread, and hits after it may have been made meanwhile, so its place says nothing about the order of reads.
        ``is_alone``: access is random, and no byte is resident as near as a read may lie to the run that it continues.
        """
        if self.policy.window == "none":
            return NOTHING_AHEAD[self.fill]
        self._tick += 1
        self._catch_up(is_alone=is_alone)
        if is_late:  # Report the last one of the hits that have followed it.
            start, end = start + self._last_end(end) - end, self._last_end(end)
        run = self._find(start, end)
        if is_late and run is not None and end < run.position:
            start, end = start + run.position - end, run.position
        if backward and (run is None or start < run.position):
            self.has_gone_back = True
            return self._go_back(start, end, may_grow=may_grow)
        if run is None:
            if not missing and self._is_requested(start, end):
                return WindowDecision(self.fill, continues=False)
            if not (self.has_gone_back or is_late):
                self.has_gone_back = any(start < run.position for run in self.runs)
            return self._begin(start, end, missing=missing, at_cursor=at_cursor, may_grow=may_grow)
        if not is_late and self._block(start) < self._block(run.reported_position - 1):
            self.has_gone_back = True
        if missing:  # The bytes requested ahead are missing: evicted, cancelled, or never received.
            run.requested_end = min(run.requested_end, end)
        if self.is_random and self._tick - run.used > RUNS_MAX:
            self._doubt(run)
        if (
            abs(start - run.position) > self.block_bytes and not is_late
        ):  # A hit far ahead of the run may be a random read.
            self._random_reads += 1
            self._ordered_bytes = 0
        crossed = self._block(end - 1) != self._block(run.reported_position - 1)
        block_end = self._block_end(run.reported_position)
        jumped = not block_end - self.block_bytes <= start <= block_end  # In the block, or at its end, as in S3A.
        # Bytes that were read by hits were counted by ``_catch_up``.
        in_order_bytes = max(0, end - max(start, run.position))
        run.run_bytes += in_order_bytes
        run.reads += 1
        self._count_beyond(run, max(start, run.position), end)
        run.position = run.reported_position = end
        self._note_ordered(in_order_bytes)
        if not run.established:
            run.established = not self.is_random or run.run_bytes >= self.block_bytes
        abandoned = self._move_cursor(run) if at_cursor else None
        if stalled:
            run.waited_position = end
        if may_grow:
            self._grow(run, stalled=stalled, crossed=crossed, jumped=jumped)
        decision = self._look(run, end, abandoned=abandoned, may_grow=may_grow)
        # A long run does not need the blocks behind it any more.
        is_long = run.established and not self.has_gone_back and run.run_bytes >= LONG_RUN_BLOCKS * self.block_bytes
        return replace(decision, behind=self._block(start) * self.block_bytes) if is_long else decision

    def expect(self, position: int) -> Run:
        """Begin a run with a full window, because the caller is going to read from ``position`` to the end."""
        run = next((run for run in self.runs if run.position == position), None)
        if run is None:
            run = Run(position, position, position, position, self.limit, established=True)
            self._add(run)
        run.established, run.blocks = True, self.limit
        self._cursor = run
        return run

    def leave(self, run: Run | None, position: int) -> list[Range]:
        """End the window of an expected run at ``position``.

        Returns the ranges that were requested ahead of this run alone. A merged run stays as it is.
        """
        self._catch_up()
        if run not in self.runs:  # Forgotten meanwhile; the cursor may follow another run in its place.
            run = self._cursor if self._cursor is not None and self._cursor.position == position else None
        if run is None or run.merged:
            return []
        abandoned = self._leave(run)
        run.blocks = min(self.growth.first, self.limit)
        others = sorted((other.position, other.requested_end) for other in self.runs if other is not run)
        return [] if abandoned is None else subtract(abandoned, others)

    def shrink(self) -> None:
        """Halve every window, because memory is short or prefetched blocks were evicted unread."""
        for run in self.runs:
            run.blocks //= 2

    def forget(self) -> None:
        """Forget all runs, as in a new reader."""
        self.runs.clear()
        self.backward_runs.clear()
        self._cursor = None
        self._random_reads, self._ordered_bytes = self._first_random_reads, 0

    # --- runs ---------------------------------------------------------------------------------------------------

    def _catch_up(self, *, is_alone: bool = False) -> None:
        """Advance every run by its hits, and merge runs at the same position.

        Under random access most runs are single reads. A read that ``is_alone`` continues none of them by way of hits,
        so they are not looked at: they are caught up by another read, or before they are forgotten.
        """
        for run in tuple(self.runs):
            if run.established or not is_alone:
                self._advance(run)
        if not is_alone:
            self._merge()

    def _advance(self, run: Run) -> bool:
        """Advance a run by its hits; returns whether there were any."""
        before = run.position
        position = self._last_end(before)
        if position <= before:
            return False
        self._note_ordered(position - before)
        run.run_bytes += position - before
        self._count_beyond(run, before, position)
        run.position = position
        run.requested_end = max(run.requested_end, position)
        self._use(run)
        return True

    def _use(self, run: Run) -> None:
        """A run is used now."""
        run.used = self._tick
        if self.runs[-1] is not run:
            self.runs.remove(run)
            self.runs.append(run)

    def _merge(self) -> None:
        """Merge runs at the same position."""
        at: dict[int, Run] = {}
        for run in self.runs:
            other = at.get(run.position)
            if other is not None:
                run.merged = other.merged = True
            if other is None or (run.established, run.requested_end) > (other.established, other.requested_end):
                at[run.position] = run
        if len(at) < len(self.runs):
            self.runs = [run for run in self.runs if at[run.position] is run]
            if self._cursor is not None:
                self._cursor = at.get(self._cursor.position, self._cursor)

    def _find(self, start: int, end: int) -> Run | None:
        """The run that a read continues, the nearest of several.

        Under random access a read that skips more than its own length continues nothing: each false match would bring
        a block. Otherwise a skip may be short, or as long as the run up to a block, or end anywhere in the range that
        was fetched ahead.
        """
        if self.is_random:
            low, high = start + start - end, end
            near = [run for run in self.runs if low <= run.position <= high]
        else:
            near = [run for run in self.runs if self._reaches(run, start, end)]
        best: Run | None = None
        for run in near:
            if best is None or abs(start - run.position) < abs(start - best.position):
                best = run
        return best

    def _reaches(self, run: Run, start: int, end: int) -> bool:
        """Whether a read may continue a run while access is not random."""
        back = forward = min(self.block_bytes, max(SKIP_BYTES, end - start, run.run_bytes))
        if run.established:
            forward = max(forward, run.requested_end - run.position)
        return -back <= start - run.position <= forward

    def _is_requested(self, start: int, end: int) -> bool:
        ahead = [(run.position, run.requested_end) for run in self.runs]
        ahead += [(run.requested_start, run.front) for run in self.backward_runs]
        return any(low <= start and end <= high for low, high in ahead)

    def _begin(self, start: int, end: int, *, missing: bool, at_cursor: bool, may_grow: bool) -> WindowDecision:
        fill = self.fill
        if missing or not self.runs:
            self._random_reads += 1
            self._ordered_bytes = 0
        blocks = self.limit if self.policy.window == "full" else min(self.growth.first, self.limit)
        run = Run(start, end, end, end, blocks, established=fill == "block" and blocks > 0, run_bytes=end - start)
        if end > self.split_end:
            self._count_beyond(run, start, end)
        abandoned = self._move_cursor(run) if at_cursor else None
        abandoned = self._add(run) or abandoned
        if fill == "block":
            run.requested_end = self._block_end(end)
        if not run.established or not may_grow:
            return NOTHING_AHEAD[fill] if abandoned is None else WindowDecision(fill, abandoned=abandoned)
        return self._look(run, end, abandoned=abandoned, may_grow=True)

    def _add(self, run: Run) -> Range | None:
        """Add a run. With one too many, a run that is not established goes first, and the one used longest ago."""
        runs = self.runs
        abandoned = None
        while len(runs) >= RUNS_MAX:
            oldest = runs[0]  # Under random access a single read, mostly.
            if oldest.established:
                oldest = next((run for run in runs if not run.established), oldest)
            if not self._advance(oldest):
                runs.remove(oldest)
                abandoned = self._leave(oldest) if oldest.established else None
        run.used = self._tick
        runs.append(run)
        return abandoned

    def _move_cursor(self, run: Run) -> Range | None:
        """Let the cursor follow ``run``. A return to a run that it left before abandons neither of the two."""
        before, self._cursor = self._cursor, run
        is_listed = run in self.runs
        if before is None or before is run or before.cursor_left or is_listed:
            run.cursor_left = run.cursor_left or (is_listed and before is not run)
            return None
        return self._leave(before)

    def _leave(self, run: Run) -> Range | None:
        """End a run: its bytes ahead were fetched in vain, and later runs look less far ahead."""
        position, requested_end = run.position, run.requested_end
        run.requested_end = position
        if not run.established:
            return None
        ahead_of_block = self._block_end(position)
        if requested_end <= ahead_of_block:
            return None
        run.run_bytes = 0
        self.limit //= 2
        return ahead_of_block, requested_end

    # --- backward -----------------------------------------------------------------------------------------------

    def _go_back(self, start: int, end: int, *, may_grow: bool) -> WindowDecision:
        """Report a miss that continues towards the start: it brings a block, in which the next reads are hits.

        Under random access it is exact at first, and fetches ahead as much again as the run is long, as forward.
        """
        run = self._backward_run(start, end)
        if run is None:
            run = BackwardRun(front=start, requested_start=start, run_bytes=end - start)
            self.backward_runs = [*self.backward_runs[1 - RUNS_MAX :], run]
        else:
            if self.is_random and self._tick - run.used > RUNS_MAX:
                run.established, run.run_bytes, run.reads = False, 0, 1
            in_order_bytes = run.front - start
            run.run_bytes += in_order_bytes
            run.reads += 1
            run.front = start
            self._note_ordered(in_order_bytes)
        run.used = self._tick
        run.established = run.established or not self.is_random or run.run_bytes >= self.block_bytes
        run.requested_start = start
        if run.established or not may_grow or run.reads <= 2:
            return NOTHING_AHEAD["block" if run.established else self.fill]
        run.requested_start = max(0, start - min(run.run_bytes, self.limit * self.block_bytes))
        return WindowDecision(self.fill, (run.requested_start, start) if run.requested_start < start else None)

    def _backward_run(self, start: int, end: int) -> BackwardRun | None:
        """The run that a read continues towards the start, the nearest behind it.

        A run that brings blocks misses once in a block. Under random access other runs have to be continued exactly.
        """
        apart = end - start if self.is_random else self.block_bytes + SKIP_BYTES
        near = [
            run
            for run in self.backward_runs
            if start <= run.front
            and run.requested_start - end <= (max(apart, self.block_bytes) if run.established else apart)
        ]
        return min(near, key=lambda run: run.front, default=None)

    # --- windows ------------------------------------------------------------------------------------------------

    def _note_ordered(self, in_order_bytes: int) -> None:
        self._ordered_bytes += in_order_bytes
        if self._ordered_bytes >= ORDERED_BLOCKS * self.block_bytes:
            self._ordered_bytes = 0
            self._random_reads = min(self._random_reads, RANDOM_READS_BY_BLOCK - 1)

    @staticmethod
    def _doubt(run: Run) -> None:
        """The run was not read for long: a random read may lie at its end by chance, so it has to show again."""
        run.established = False
        run.blocks = run.run_bytes = 0
        run.reads = 1

    def _grow(self, run: Run, *, stalled: bool, crossed: bool, jumped: bool) -> None:
        if stalled and run.blocks >= self.limit and run.run_bytes >= max(1, 2 * self.limit) * self.block_bytes:
            # No block was fetched in vain for twice the window.
            self.limit = min(self.blocks_max, max(1, 2 * self.limit))
        if not run.established:
            return
        if self._is_beyond(run) and run.beyond_bytes < self.block_bytes:
            return
        if self.policy.window == "full" and not self._is_beyond(run):
            run.blocks = self.limit
        else:
            run_blocks = run.run_bytes / self.block_bytes
            progress = Progress(run.blocks, stalled, crossed, jumped, self.limit, run_blocks)
            run.blocks = max(0, min(self.limit, self.growth.grow(progress)))

    def _look(self, run: Run, end: int, *, abandoned: Range | None, may_grow: bool) -> WindowDecision:
        self._use(run)
        if run.established:
            fill: Fill = "block"
            run.requested_end = max(run.requested_end, self._block_end(end))
            stop = self._block_end(end) + run.blocks * self.block_bytes
        else:
            # A run under random access: as far ahead again as it is long, once half of that is used up.
            fill = self.fill
            length = min(run.run_bytes, self.limit * self.block_bytes) if run.reads > 2 else 0
            run.requested_end = max(run.requested_end, end)
            stop = end + length if run.requested_end - end <= length // 2 else 0
        own_stop = self.stop if run.beyond_bytes >= self.block_bytes else min(self.stop, self.split_end)
        start, stop = run.requested_end, min(stop, own_stop, self._next_run(end))
        if not may_grow or stop <= start:
            return NOTHING_AHEAD[fill] if abandoned is None else WindowDecision(fill, abandoned=abandoned)
        run.requested_end = stop
        has_waited = run.position - run.waited_position <= run.blocks * self.block_bytes
        return WindowDecision(fill, (start, stop), abandoned, in_parts=has_waited or run.blocks >= self.limit)

    def _count_beyond(self, run: Run, start: int, end: int) -> None:
        """Count the bytes behind the end of the split that a run has read between ``start`` and ``end``."""
        if end <= self.split_end:
            run.beyond_bytes = 0
            return
        if not run.beyond_bytes:  # The window within the split says nothing about reads behind it.
            run.blocks = 0
        run.beyond_bytes += max(0, end - max(start, self.split_end))

    def _is_beyond(self, run: Run) -> bool:
        return run.position > self.split_end

    def _next_run(self, position: int) -> int:
        """The end of the block where the next run began: the bytes behind it were read once already."""
        starts = [run.start for run in self.runs if run.start >= position and run.run_bytes >= self.block_bytes]
        return self._block_end(min(starts)) if starts else self.stop

    def _block(self, position: int) -> int:
        return position // self.block_bytes

    def _block_end(self, end: int) -> int:
        """The end of the block that holds the byte before ``end``."""
        return -(-end // self.block_bytes) * self.block_bytes

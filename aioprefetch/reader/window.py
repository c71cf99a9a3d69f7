"""Which reads belong together, and how far to read ahead of each run of them. Pure, no I/O.

A **session** is one sequential run through an object; a reader may have several at once, each with a window of its own.
Reads that belong to none are scattered: the first two bring whole blocks, because most files are read at their end and
at one other place first; from the third on they bring exactly what was asked for, until a run shows again.

Sources: JuiceFS's sessions, the stall-driven window of Mountpoint for S3, and the block grid of the S3A prefetching
stream (its ``FilePosition``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aioprefetch.ranges import OFFSET_MAX, Range, subtract
from aioprefetch.reader.growth import Growth, Progress
from aioprefetch.reader.policy import Fill, Policy

# So many reads that belong to no run bring whole blocks; those after them exact ranges.
RANDOM_READS_BY_BLOCK = 2

# After so many a read has to continue a run exactly to belong to it.
RANDOM_AFTER = 3

# So long a skip ends no run: to read on through it takes 23 ms at 90 MB/s, and a first byte takes 20 to 50 ms.
SKIP_BYTES = 2 << 20

# After so many blocks read in order without a scattered read in between, one of these may bring a block again: at most
# one block in seventeen is then fetched in vain.
ORDERED_BLOCKS = 16

# More runs than this at once in one object are forgotten, the one used longest ago first. While reads are scattered, a
# run that was not read during so many of them has to show again that it is one.
SESSIONS_MAX = 16


@dataclass(slots=True, eq=False)
class Session:
    """One run: it began at ``start`` and goes on at ``position``; all before ``reach`` was asked for already.

    ``reported_position``: where it stood when a read of it was reported last; hits in between are not.
    ``shared``: the cursor left it and came back, so that leaving it says nothing any more.
    ``joined``: another run has come to the same place, and the two are one.
    ``beyond_bytes``: how much of it was read behind the end of the split.
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


@dataclass(slots=True, eq=False)
class BackwardRun:
    """A run towards the start of the object: ``front`` is where its last miss began.

    All from ``reach`` up to there was asked for already.
    """

    front: int
    requested_end: int
    run_bytes: int
    established: bool = False
    reads: int = 1
    used: int = 0


@dataclass(frozen=True, slots=True)
class WindowDecision:
    """What a read entails.

    How a miss is filled, what to fetch ``ahead``, and what was fetched ahead in vain and is ``left``. A read that
    ``continues`` nothing and begins nothing, amid what was fetched ahead of some run, leaves that run alone.
    """

    fill: Fill
    ahead: Range | None = None
    abandoned: Range | None = None
    continues: bool = True


class Windows:
    """The sessions of one reader.

    ``last_end`` tells how far a run that stood at a position has been read since, by reads that found their bytes
    resident and were not reported here. ``stop`` is where look-ahead ends: at the end of the object. ``split_end`` is
    where the caller means to stop: whoever reads on there is finishing a record, most of the time, so a run looks ahead
    beyond it only after it has read a block there, and from no window on.
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
    ) -> None:
        self.policy = policy
        self.growth = growth
        self.block_bytes = block_bytes
        self.blocks_max = blocks_max
        self.split_end = split_end
        self.limit = blocks_max
        self.sessions: list[Session] = []
        self.backward_runs: list[BackwardRun] = []
        self.stop = 0
        self._last_end = last_end
        self._cursor: Session | None = None
        self._random_reads = 0
        self._ordered_bytes = 0
        self._tick = 0

    @property
    def is_random(self) -> bool:
        """Whether reads are scattered, so that only those belong to a run that continue it exactly."""
        fill = self.policy.fill
        return fill == "exact" or (fill == "adaptive" and self._random_reads >= RANDOM_AFTER)

    @property
    def fill(self) -> Fill:
        """What a miss brings that belongs to no run."""
        spent = self.policy.fill == "adaptive" and self._random_reads >= RANDOM_READS_BY_BLOCK
        return "exact" if spent or self.is_random else "block"

    @property
    def positions(self) -> tuple[int, ...]:
        """Where the runs stand that are read ahead of."""
        return tuple(session.position for session in self.sessions if session.blocks)

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
    ) -> WindowDecision:
        """A read of ``[start, end)`` that was not served from memory alone, or that has come to a mark.

        ``missing``: some of it is neither resident nor on its way. ``stalled``: it has to wait. ``at_cursor``: it was
        made through the reader's cursor, which follows one run at a time. ``may_grow``: there is memory to look ahead.
        ``backward``: it is missing, and lies right in front of what was read before it.
        """
        if self.policy.window == "none":
            return WindowDecision(self.fill)
        self._tick += 1
        self._catch_up()
        found = self._find(start, end)
        if backward and (found is None or start < found.position):
            return self._go_back(start, end, may_grow=may_grow)
        if found is None:
            if not missing and self._asked_for(start, end):
                return WindowDecision(self.fill, continues=False)
            return self._begin(start, end, missing=missing, at_cursor=at_cursor, may_grow=may_grow)
        if missing:  # What had been asked for is gone again: evicted, broken off, or it never came.
            found.requested_end = min(found.requested_end, end)
        if self.is_random and self._tick - found.used > SESSIONS_MAX:
            self._doubt(found)
        if abs(start - found.position) > self.block_bytes:  # It hit what lies ahead, and may have been aimed anywhere.
            self._random_reads += 1
            self._ordered_bytes = 0
        crossed = self._block(end - 1) != self._block(found.reported_position - 1)
        jumped = not self._in_block(start, found.reported_position)
        # What a hit has read was counted by catching up with it.
        in_order_bytes = max(0, end - max(start, found.position))
        found.run_bytes += in_order_bytes
        found.reads += 1
        self._count_beyond(found, max(start, found.position), end)
        found.position = found.reported_position = end
        self._note_ordered(in_order_bytes)
        if not found.established:
            found.established = not self.is_random or found.run_bytes >= self.block_bytes
        abandoned = self._move_cursor(found) if at_cursor else None
        if may_grow:
            self._grow(found, stalled=stalled, crossed=crossed, jumped=jumped)
        return self._look(found, end, abandoned=abandoned, may_grow=may_grow)

    def expect(self, position: int) -> Session:
        """The caller says that it reads on from ``position`` to the end: a run with a full window."""
        session = next((one for one in self.sessions if one.position == position), None)
        if session is None:
            session = Session(position, position, position, position, self.limit, established=True)
            self._add(session)
        session.established, session.blocks = True, self.limit
        self._cursor = session
        return session

    def leave(self, run: Session | None, position: int) -> list[Range]:
        """The caller of ``expect`` stops at ``position``: its run has no window any more.

        Returns what was asked for ahead of it, and of no other run. A run that others have joined stays as it is.
        """
        self._catch_up()
        if run not in self.sessions:  # Forgotten meanwhile; the cursor may follow another in its place.
            run = self._cursor if self._cursor is not None and self._cursor.position == position else None
        if run is None or run.merged:
            return []
        left = self._leave(run)
        run.blocks = min(self.growth.first, self.limit)
        others = sorted((one.position, one.requested_end) for one in self.sessions if one is not run)
        return [] if left is None else subtract(left, others)

    def shrink(self) -> None:
        """There is no memory, or what was fetched ahead was evicted unread: half as far for every run."""
        for session in self.sessions:
            session.blocks //= 2

    def forget(self) -> None:
        """Begin as with a new reader."""
        self.sessions.clear()
        self.backward_runs.clear()
        self._cursor = None
        self._random_reads = self._ordered_bytes = 0

    # --- runs ---------------------------------------------------------------------------------------------------

    def _catch_up(self) -> None:
        """Move every run to where hits have brought it. Those that have come to one place are one."""
        at: dict[int, Session] = {}
        for session in self.sessions:
            position = self._last_end(session.position)
            if position > session.position:
                self._note_ordered(position - session.position)
                session.run_bytes += position - session.position
                self._count_beyond(session, session.position, position)
                session.position = position
                session.requested_end = max(session.requested_end, position)
                session.used = self._tick
            other = at.get(position)
            if other is not None:
                session.merged = other.merged = True
            if other is None or (session.established, session.requested_end) > (other.established, other.requested_end):
                at[position] = session
        if len(at) < len(self.sessions):
            self.sessions = [session for session in self.sessions if at[session.position] is session]
            if self._cursor is not None:
                self._cursor = at.get(self._cursor.position, self._cursor)

    def _find(self, start: int, end: int) -> Session | None:
        """The run that a read continues, the nearest of several.

        While reads are scattered, one that skips more than its own length continues nothing: each false hit would
        bring a block. Otherwise a skip may be short, or as long as the run, to a block; or lead anywhere in what was
        fetched ahead.
        """
        best: Session | None = None
        for session in self.sessions:
            skip = start - session.position
            back = forward = end - start
            if not self.is_random:
                back = forward = min(self.block_bytes, max(SKIP_BYTES, back, session.run_bytes))
                if session.established:
                    forward = max(forward, session.requested_end - session.position)
            if -back <= skip <= forward and (best is None or abs(skip) < abs(start - best.position)):
                best = session
        return best

    def _asked_for(self, start: int, end: int) -> bool:
        ahead = [(session.position, session.requested_end) for session in self.sessions]
        ahead += [(run.requested_end, run.front) for run in self.backward_runs]
        return any(low <= start and end <= high for low, high in ahead)

    def _begin(self, start: int, end: int, *, missing: bool, at_cursor: bool, may_grow: bool) -> WindowDecision:
        fill = self.fill
        if missing or not self.sessions:
            self._random_reads += 1
            self._ordered_bytes = 0
        blocks = self.limit if self.policy.window == "full" else min(self.growth.first, self.limit)
        session = Session(
            start, end, end, end, blocks, established=fill == "block" and blocks > 0, run_bytes=end - start
        )
        self._count_beyond(session, start, end)
        abandoned = self._move_cursor(session) if at_cursor else None
        abandoned = self._add(session) or abandoned
        if fill == "block":
            session.requested_end = self._block_end(end)
        if not session.established or not may_grow:
            return WindowDecision(fill, abandoned=abandoned)
        return self._look(session, end, abandoned=abandoned, may_grow=True)

    def _add(self, session: Session) -> Range | None:
        session.used = self._tick
        self.sessions.append(session)
        if len(self.sessions) <= SESSIONS_MAX:
            return None
        others = self.sessions[:-1]
        oldest = min(others, key=lambda one: (one.established, one.used))
        self.sessions.remove(oldest)
        return self._leave(oldest)

    def _move_cursor(self, session: Session) -> Range | None:
        """The cursor follows ``session`` from now on; to return to a run it has left is no reason to drop either."""
        before, self._cursor = self._cursor, session
        known = session in self.sessions
        if before is None or before is session or before.cursor_left or known:
            session.cursor_left = session.cursor_left or (known and before is not session)
            return None
        return self._leave(before)

    def _leave(self, session: Session) -> Range | None:
        """A run ended: what it had ahead of it was fetched in vain, and the next ones look less far."""
        position, requested_end = session.position, session.requested_end
        session.requested_end = position
        ahead_of_block = self._block_end(position)
        if requested_end <= ahead_of_block or not session.established:
            return None
        session.run_bytes = 0
        self.limit //= 2
        return ahead_of_block, requested_end

    # --- backward -----------------------------------------------------------------------------------------------

    def _go_back(self, start: int, end: int, *, may_grow: bool) -> WindowDecision:
        """A miss that goes on towards the start: it brings a block, in which the next reads are hits.

        While reads are scattered it is exact at first, with as much ahead again as the run is long, as forward.
        """
        run = self._backward_run(start, end)
        if run is None:
            run = BackwardRun(front=start, requested_end=start, run_bytes=end - start)
            self.backward_runs = [*self.backward_runs[1 - SESSIONS_MAX :], run]
        else:
            if self.is_random and self._tick - run.used > SESSIONS_MAX:
                run.established, run.run_bytes, run.reads = False, 0, 1
            in_order_bytes = run.front - start
            run.run_bytes += in_order_bytes
            run.reads += 1
            run.front = start
            self._note_ordered(in_order_bytes)
        run.used = self._tick
        run.established = run.established or not self.is_random or run.run_bytes >= self.block_bytes
        run.requested_end = start
        if run.established or not may_grow or run.reads <= 2:
            return WindowDecision("block" if run.established else self.fill)
        run.requested_end = max(0, start - min(run.run_bytes, self.limit * self.block_bytes))
        return WindowDecision(self.fill, (run.requested_end, start) if run.requested_end < start else None)

    def _backward_run(self, start: int, end: int) -> BackwardRun | None:
        """The run that a read goes on with towards the start, the nearest behind it.

        One that brings blocks misses once in a block. While reads are scattered, others have to be continued exactly.
        """
        apart = end - start if self.is_random else self.block_bytes + SKIP_BYTES
        near = [
            run
            for run in self.backward_runs
            if start <= run.front
            and run.requested_end - end <= (max(apart, self.block_bytes) if run.established else apart)
        ]
        return min(near, key=lambda run: run.front, default=None)

    # --- windows ------------------------------------------------------------------------------------------------

    def _note_ordered(self, in_order_bytes: int) -> None:
        self._ordered_bytes += in_order_bytes
        if self._ordered_bytes >= ORDERED_BLOCKS * self.block_bytes:
            self._ordered_bytes = 0
            self._random_reads = min(self._random_reads, RANDOM_READS_BY_BLOCK - 1)

    @staticmethod
    def _doubt(session: Session) -> None:
        """Nobody has read on for long: a scattered read may lie at its end by chance."""
        session.established = False
        session.blocks = session.run_bytes = 0
        session.reads = 1

    def _grow(self, session: Session, *, stalled: bool, crossed: bool, jumped: bool) -> None:
        if stalled and session.blocks >= self.limit and session.run_bytes >= max(1, 2 * self.limit) * self.block_bytes:
            # Nothing was in vain for as long as it takes to tell.
            self.limit = min(self.blocks_max, max(1, 2 * self.limit))
        if not session.established:
            return
        if self._is_beyond(session) and session.beyond_bytes < self.block_bytes:
            return
        if self.policy.window == "full" and not self._is_beyond(session):
            session.blocks = self.limit
        else:
            progress = Progress(session.blocks, stalled, crossed, jumped, self.limit)
            session.blocks = min(self.limit, self.growth.grow(progress))

    def _look(self, session: Session, end: int, *, abandoned: Range | None, may_grow: bool) -> WindowDecision:
        session.used = self._tick
        if session.established:
            fill: Fill = "block"
            session.requested_end = max(session.requested_end, self._block_end(end))
            stop = self._block_end(end) + session.blocks * self.block_bytes
        else:
            # A run among scattered reads: as far ahead again as it is long, once half of that is used up.
            fill = self.fill
            length = min(session.run_bytes, self.limit * self.block_bytes) if session.reads > 2 else 0
            session.requested_end = max(session.requested_end, end)
            stop = end + length if session.requested_end - end <= length // 2 else 0
        start, stop = session.requested_end, min(stop, self._stop_of(session), self._next_run(end))
        if not may_grow or stop <= start:
            return WindowDecision(fill, abandoned=abandoned)
        session.requested_end = stop
        return WindowDecision(fill, (start, stop), abandoned)

    def _count_beyond(self, session: Session, start: int, end: int) -> None:
        """A run has been read from ``start`` to ``end``: count what of it lies behind the end of the split."""
        if end <= self.split_end:
            session.beyond_bytes = 0
            return
        if not session.beyond_bytes:  # The window that it had within the split says nothing of what lies beyond.
            session.blocks = 0
        session.beyond_bytes += max(0, end - max(start, self.split_end))

    def _is_beyond(self, session: Session) -> bool:
        return session.position > self.split_end

    def _stop_of(self, session: Session) -> int:
        """Where the look-ahead of a run ends."""
        return self.stop if session.beyond_bytes >= self.block_bytes else min(self.stop, self.split_end)

    def _next_run(self, position: int) -> int:
        """Where the next run began: whoever reads an object in parts ends there, and its bytes were had once."""
        starts = [one.start for one in self.sessions if one.start >= position and one.run_bytes >= self.block_bytes]
        return self._block_end(min(starts)) if starts else self.stop

    def _in_block(self, start: int, position: int) -> bool:
        """Whether ``start`` is in order as S3A has it: in the block of ``position``, or at its end."""
        return self._block_end(position) - self.block_bytes <= start <= self._block_end(position)

    def _block(self, position: int) -> int:
        return position // self.block_bytes

    def _block_end(self, end: int) -> int:
        """The end of the block that holds the byte before ``end``."""
        return -(-end // self.block_bytes) * self.block_bytes

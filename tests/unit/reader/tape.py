"""Windows over a row of bytes that are there or not; nothing is evicted unless a test does it."""

from dataclasses import dataclass, field
from typing import Literal

from aioprefetch.ranges import Range
from aioprefetch.reader.growth import GROWTHS
from aioprefetch.reader.policy import POLICIES
from aioprefetch.reader.window import Run, WindowDecision, Windows

BLOCK = 64
AHEAD = 8
FAR = 1 << 20

Stall = Literal["always", "never", "on a miss"]


def block_end(position: int, block: int = BLOCK) -> int:
    """The end of the block that holds the byte before a position."""
    return -(-position // block) * block


@dataclass
class Tape:
    """Windows over an object, and which bytes of it were asked for so far."""

    windows: Windows
    asked: set[int] = field(default_factory=set)
    ahead: list[Range] = field(default_factory=list)
    abandoned: list[Range] = field(default_factory=list)
    hits: dict[int, int] = field(default_factory=dict)

    def read(
        self, start: int, end: int, *, stall: Stall = "always", at_cursor: bool = False, may_grow: bool = True
    ) -> WindowDecision:
        """A read that its reader reports; what it entails is asked for."""
        missing = not self.asked.issuperset(range(start, end))
        stalled = stall == "always" or (stall == "on a miss" and missing)
        look = self.windows.on_read(
            start, end, missing=missing, stalled=stalled, at_cursor=at_cursor, may_grow=may_grow
        )
        self.ask(start, end, look)
        if look.abandoned is not None:
            self.abandoned.append(look.abandoned)
        if look.ahead is not None:
            self.ahead.append(look.ahead)
            self.ask(*look.ahead, look)
        return look

    def ask(self, start: int, end: int, look: WindowDecision) -> None:
        """Whole blocks, or exactly this."""
        block = self.windows.block_bytes
        if look.fill == "block":
            start, end = start // block * block, min(self.windows.stop, block_end(end, block))
        self.asked.update(range(start, end))

    def run(self, start: int, size: int, reads: int, **options: Stall | bool) -> list[WindowDecision]:
        """Reads in order."""
        return [self.read(start + n * size, start + (n + 1) * size, **options) for n in range(reads)]  # type: ignore[arg-type]

    def hit(self, position: int, end: int) -> None:
        """A run at ``position`` has been read on to ``end`` from resident bytes, without a call to the loop."""
        self.hits[position] = end


def tape(
    policy: str = "adaptive",
    growth: str = "stall",
    *,
    stop: int = FAR,
    blocks_max: int = AHEAD,
    block: int = BLOCK,
) -> Tape:
    """A tape for a new reader."""
    hits: dict[int, int] = {}
    windows = Windows(
        POLICIES[policy],
        GROWTHS[growth],
        block_bytes=block,
        blocks_max=blocks_max,
        last_end=lambda position: hits.get(position, position),
    )
    windows.stop = stop
    return Tape(windows, hits=hits)


def run_at(windows: Windows, position: int) -> Run:
    """The one run that stands at a position."""
    (found,) = [session for session in windows.runs if session.position == position]
    return found


def scatter(made: Tape, number: int, *, start: int = FAR // 2, at_cursor: bool = False) -> list[WindowDecision]:
    """Short reads, each too far from all others to belong to them."""
    return [
        made.read(place, place + 4, at_cursor=at_cursor)
        for place in range(start, start + number * 32 * BLOCK, 32 * BLOCK)
    ]

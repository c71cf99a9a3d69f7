"""How the window of a sequential run grows: small strategies to choose from. Pure, no I/O.

``stall`` is the default: a window that is wide enough stays as it is, so it finds the product of bandwidth and delay by
itself. The others are what comparable readers do, and are here to be compared with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aioprefetch.errors import ConfigInvalid


@dataclass(frozen=True, slots=True)
class Progress:
    """One more read of a run.

    How many ``blocks`` its window has and may have at most, whether the read had to wait (``stalled``), whether it
    ``crossed`` into another block, and whether it ``jumped`` to get there: it began neither in the block where the run
    stood nor at its end.
    """

    blocks: int
    stalled: bool
    crossed: bool
    jumped: bool
    blocks_max: int


@dataclass(frozen=True, slots=True)
class Growth:
    """How many blocks to look ahead.

    ``first``: at the first read of a run. ``grow``: at each further one. ``by_block``: a read of several blocks goes
    block by block, as in S3A's stream.
    """

    name: str
    first: int
    grow: Callable[[Progress], int]
    by_block: bool = False


def _on_stall(progress: Progress) -> int:
    """Mountpoint for S3: twice as far when the reader had to wait, otherwise no change."""
    return max(1, 2 * progress.blocks if progress.stalled else progress.blocks)


def _geometric(progress: Progress) -> int:
    """The Analytics Accelerator Library: twice as far with each read."""
    return max(1, 2 * progress.blocks)


def _linear(progress: Progress) -> int:
    """gcsfs: one further with each read."""
    return progress.blocks + 1


def _step(progress: Progress) -> int:
    """S3A: one block after a jump, all of them once the next block is read in order."""
    if progress.jumped:
        return 1
    return progress.blocks_max if progress.crossed else progress.blocks


GROWTHS = {
    growth.name: growth
    for growth in (
        Growth("stall", 0, _on_stall),
        Growth("geometric", 0, _geometric),
        Growth("linear", 0, _linear),
        Growth("step", 1, _step, by_block=True),
    )
}


def find_growth(name: str, *, operation: str, path: str) -> Growth:
    """The strategy of that name; ``ConfigInvalid`` names those there are."""
    growth = GROWTHS.get(name) if isinstance(name, str) else None
    if growth is None:
        raise ConfigInvalid(f"prefetch_growth={name!r} is none of {', '.join(GROWTHS)}", operation=operation, path=path)
    return growth

"""How the window of a sequential run grows: small strategies to choose from, by name or as an object. Pure, no I/O.

``stall`` is the default: a window that is wide enough stays as it is, so it finds the product of bandwidth and delay by
itself. The others imitate comparable readers, for comparison. ``docs/guides/growth.md`` shows how to write one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from aioprefetch.errors import ConfigInvalid
from aioprefetch.lean_dataclass import dataclass

# A window that grows on stall is at most this many times as long as the run, so that a run that ends early has not
# fetched more than that in vain. A store 30 ms away loses 35 ms once by it; half as much would cost 60.
AHEAD_SHARE = 4


@dataclass(frozen=True, slots=True)
class Progress:
    """A read of a run, as passed to a growth strategy.

    ``blocks`` is the window now and ``blocks_max`` its limit, both in blocks. ``stalled``: the read had to wait for its
    bytes. ``crossed``: it ended in another block than the read before it. ``jumped``: it began neither in the block
    where the run stood nor at that block's end. ``run_blocks`` is what the run has read so far, in blocks.
    """

    blocks: int
    stalled: bool
    crossed: bool
    jumped: bool
    blocks_max: int
    run_blocks: float = math.inf


@dataclass(frozen=True, slots=True)
class Growth:
    """A growth strategy: how many blocks a run looks ahead.

    ``first`` is the window at the first read of a run. ``grow`` returns the window after each further read; a result
    beyond the limit is cut to it, and one below 0 counts as 0. It must not block, and an exception of it fails the
    read. With ``by_block``, a read of several blocks goes block by block, as in S3A's stream.
    """

    name: str
    first: int
    grow: Callable[[Progress], int]
    by_block: bool = False


def _on_stall(progress: Progress) -> int:
    """Mountpoint for S3: twice as far after a read that had to wait, otherwise no change.

    Mountpoint begins with a quarter of its window; ours begins with none, and a short run grows by its length.
    """
    blocks = progress.blocks
    if not progress.stalled:
        return max(1, blocks)
    grown = min(2 * blocks, progress.blocks_max, AHEAD_SHARE * progress.run_blocks)
    return max(1, blocks, math.ceil(grown))


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


GrowthName = Literal["stall", "geometric", "linear", "step"]
GROWTHS = {
    growth.name: growth
    for growth in (
        Growth("stall", 0, _on_stall),
        Growth("geometric", 0, _geometric),
        Growth("linear", 0, _linear),
        Growth("step", 1, _step, by_block=True),
    )
}


def find_growth(growth: str | Growth, *, operation: str, path: str) -> Growth:
    """The strategy of that name, or the object itself; ``ConfigInvalid`` for anything else."""
    if isinstance(growth, Growth):
        if type(growth.first) is not int or growth.first < 0 or not callable(growth.grow):
            raise ConfigInvalid(
                f"prefetch_growth={growth!r} must have first >= 0 and a callable grow", operation=operation, path=path
            )
        return growth
    strategy = GROWTHS.get(growth) if isinstance(growth, str) else None
    if strategy is None:
        names = ", ".join(GROWTHS)
        raise ConfigInvalid(
            f"prefetch_growth must be one of {names}, or a Growth, not {growth!r}", operation=operation, path=path
        )
    return strategy

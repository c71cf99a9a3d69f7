"""How the window of a sequential run grows: small strategies to choose from, by name or as an object. Pure, no I/O.

``stall`` is the default: a window that is wide enough stays as it is, so it finds the product of bandwidth and delay by
itself. The others imitate comparable readers, for comparison. ``docs/guides/growth.md`` shows how to write one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aioprefetch.errors import ConfigInvalid


@dataclass(frozen=True, slots=True)
class Progress:
    """A read of a run, as passed to a growth strategy.

    ``blocks`` is the window now and ``blocks_max`` its limit, both in blocks. ``stalled``: the read had to wait for its
    bytes. ``crossed``: it ended in another block than the read before it. ``jumped``: it began neither in the block
    where the run stood nor at that block's end.
    """

    blocks: int
    stalled: bool
    crossed: bool
    jumped: bool
    blocks_max: int


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
    """Mountpoint for S3: twice as far after a read that had to wait, otherwise no change."""
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

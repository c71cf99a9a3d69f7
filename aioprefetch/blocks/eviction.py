"""Which blocks go first when memory is short: a pure order.

Prefetched blocks that readers passed without reading them go first. Then come blocks that were read to their end: the
furthest from a cursor first, and at equal distance the one used longest ago. A block just ahead of a cursor counts as
distance 0, because it is about to be read. Blocks with bytes still to be read go last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# The distance of blocks in a file that no reader has open: further than any within an open file.
FAR = 1 << 62


def distance(index: int, cursors: Sequence[int], *, ahead_blocks: int) -> int:
    """Blocks between ``index`` and the nearest cursor (block numbers); 0 within ``ahead_blocks`` in front of one."""
    nearest = FAR
    for cursor in cursors:
        gap = index - cursor
        nearest = min(nearest, 0 if 0 <= gap <= ahead_blocks else abs(gap))
    return nearest


class Rank(NamedTuple):
    """The sort key of a block: the smallest is evicted first."""

    is_viewed: bool
    is_footer: bool
    is_not_wasted: bool
    is_unread: bool
    nearness: int
    touched: int


def rank(
    *, viewed: bool, footer: bool = False, wasted: bool, unread: bool = False, distance_blocks: int, touched: int
) -> Rank:
    """The sort key of a block: the smallest is evicted first. ``touched`` grows with every use.

    A viewed block goes last: dropping it frees nothing before the last view is gone. A ``footer`` that a policy keeps
    goes just before those: every later reader of the file begins with it.
    """
    return Rank(viewed, footer, not wasted, unread, -distance_blocks, touched)

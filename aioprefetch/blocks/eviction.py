"""Which blocks go first when memory is short: a pure order.

Prefetched blocks that were passed unread go first, then those that were read to their end, and of these what lies
furthest from a cursor, then what was used longest ago. What lies just ahead of a cursor is as near as can be: it is
about to be read. What was fetched and is still to be read goes only where nothing else can.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# A file that nobody has open is further away than any distance within an open one.
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

    A block that somebody views goes last: dropping it frees nothing before the last view is gone. Before it goes a
    ``footer`` that a policy keeps: every later reader of the file begins with it.
    """
    return Rank(viewed, footer, not wasted, unread, -distance_blocks, touched)

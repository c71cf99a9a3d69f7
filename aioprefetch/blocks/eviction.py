"""Which blocks go first when memory is short: a pure order.

Prefetched blocks that were passed unread go first, then what lies furthest from a cursor, then what was used longest
ago. What lies just ahead of a cursor is as near as can be: it is about to be read.
"""

from __future__ import annotations

from collections.abc import Sequence

# A file that nobody has open is further away than any distance within an open one.
FAR = 1 << 62


def distance(index: int, cursors: Sequence[int], *, ahead_blocks: int) -> int:
    """Blocks between ``index`` and the nearest cursor (block numbers); 0 within ``ahead_blocks`` in front of one."""
    nearest = FAR
    for cursor in cursors:
        gap = index - cursor
        nearest = min(nearest, 0 if 0 <= gap <= ahead_blocks else abs(gap))
    return nearest


def rank(
    *, viewed: bool, footer: bool = False, wasted: bool, distance_blocks: int, touched: int
) -> tuple[bool, bool, bool, int, int]:
    """The sort key of a block: the smallest is evicted first. ``touched`` grows with every use.

    A block that somebody views goes last: dropping it frees nothing before the last view is gone. Before it goes a
    ``footer`` that a policy keeps: every later reader of the file begins with it.
    """
    return (viewed, footer, not wasted, -distance_blocks, touched)

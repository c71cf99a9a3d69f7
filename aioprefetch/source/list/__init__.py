"""How files are found: page by page from a cursor on, compared with the known files. Nothing is written here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioprefetch.first_use import load_at_first_use

if TYPE_CHECKING:
    from aioprefetch.source.list.diff_lister import DiffLister
    from aioprefetch.source.list.follower import Follower
    from aioprefetch.source.list.pages import Selection
    from aioprefetch.source.list.tail_sweep_lister import TailSweepLister

__all__ = ["DiffLister", "Follower", "Selection", "TailSweepLister"]

load_at_first_use(
    __name__,
    {
        "diff_lister": ("DiffLister",),
        "follower": ("Follower",),
        "pages": ("Selection",),
        "tail_sweep_lister": ("TailSweepLister",),
    },
)

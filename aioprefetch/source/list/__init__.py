"""How files are found: page by page from a cursor on, compared with the known files. Nothing is written here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioprefetch.first_use import load_at_first_use

if TYPE_CHECKING:
    from aioprefetch.source.list.diff_lister import DiffLister
    from aioprefetch.source.list.follower import Followed, Follower
    from aioprefetch.source.list.key_sets import BloomFilter
    from aioprefetch.source.list.selection import Selection, file_of
    from aioprefetch.source.list.tail_sweep_lister import TailSweepLister

__all__ = ["BloomFilter", "DiffLister", "Followed", "Follower", "Selection", "TailSweepLister", "file_of"]

load_at_first_use(
    __name__,
    {
        "DiffLister": "diff_lister",
        "Followed": "follower",
        "Follower": "follower",
        "BloomFilter": "key_sets",
        "Selection": "selection",
        "file_of": "selection",
        "TailSweepLister": "tail_sweep_lister",
    },
)

"""How files are found: page by page from a cursor on, compared with the known files. Nothing is written here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioprefetch.first_use import load_at_first_use

if TYPE_CHECKING:
    from aioprefetch.source.list.diff_lister import BloomFilter, DiffLister
    from aioprefetch.source.list.follower import Followed, Follower
    from aioprefetch.source.list.pages import Selection, file_of
    from aioprefetch.source.list.tail_sweep_lister import TailSweepLister

__all__ = ["BloomFilter", "DiffLister", "Followed", "Follower", "Selection", "TailSweepLister", "file_of"]

load_at_first_use(
    __name__,
    {
        "DiffLister": "diff_lister",
        "Followed": "follower",
        "Follower": "follower",
        "BloomFilter": "diff_lister",
        "Selection": "pages",
        "file_of": "pages",
        "TailSweepLister": "tail_sweep_lister",
    },
)

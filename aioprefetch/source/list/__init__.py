"""How files are found: page by page, from a cursor on, compared with what is known. Nothing is written here."""

from aioprefetch.source.list.diff_lister import DiffLister
from aioprefetch.source.list.follower import Followed, Follower
from aioprefetch.source.list.key_sets import BloomFilter
from aioprefetch.source.list.selection import Selection, file_of
from aioprefetch.source.list.tail_sweep_lister import TailSweepLister

__all__ = ["BloomFilter", "DiffLister", "Followed", "Follower", "Selection", "TailSweepLister", "file_of"]

"""How files are found: page by page, from a cursor on, compared with what is known. Nothing is written here."""

from aioprefetch.source.list.bloom_filter import BloomFilter
from aioprefetch.source.list.diff_lister import DiffLister
from aioprefetch.source.list.followed import Followed
from aioprefetch.source.list.follower import Follower
from aioprefetch.source.list.lister import Lister
from aioprefetch.source.list.selection import Selection, file_of

__all__ = ["BloomFilter", "DiffLister", "Followed", "Follower", "Lister", "Selection", "file_of"]

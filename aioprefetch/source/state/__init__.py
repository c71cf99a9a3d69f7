"""The durable state of a source: an append-only log of records, sorted runs of known files, one writer at a time.

It lives in any store that an Operator reaches. ``SourceState.open`` finds or makes it. See ``layout`` for the objects,
``delta`` for what a record means, ``compaction`` for how the log becomes runs.
"""

from aioprefetch.source.state.meta import SourceIdentity
from aioprefetch.source.state.options import StateOptions
from aioprefetch.source.state.side_files import SideFiles
from aioprefetch.source.state.source_state import SourceState

__all__ = ["SideFiles", "SourceIdentity", "SourceState", "StateOptions"]

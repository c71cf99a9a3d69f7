"""All checks of a store and of readers over it, as two classes that need no pytest."""

from aioprefetch.testing.conformance.conditions import ConditionChecks, VersionChecks
from aioprefetch.testing.conformance.every_operation import ErrorChecks, PathChecks
from aioprefetch.testing.conformance.listing import ListChecks, StatChecks
from aioprefetch.testing.conformance.peers import PeerChecks, PresignChecks
from aioprefetch.testing.conformance.read import ReadChecks, ReadRangesChecks
from aioprefetch.testing.conformance.reader_lifecycle import LifecycleChecks
from aioprefetch.testing.conformance.reader_reads import PositionedReadChecks, SeekChecks, VectoredChecks
from aioprefetch.testing.conformance.write import CopyChecks, CreateDirChecks, DeleteChecks, WriteChecks, WriterChecks


class AccessorChecks(
    StatChecks,
    ReadChecks,
    ReadRangesChecks,
    ConditionChecks,
    VersionChecks,
    ListChecks,
    WriteChecks,
    WriterChecks,
    CreateDirChecks,
    DeleteChecks,
    CopyChecks,
    PeerChecks,
    PresignChecks,
    PathChecks,
    ErrorChecks,
):
    """All checks of the operations of an `Operator` over one store."""


class ReaderChecks(SeekChecks, PositionedReadChecks, VectoredChecks, LifecycleChecks):
    """All checks of a `RangeReader` over one store."""

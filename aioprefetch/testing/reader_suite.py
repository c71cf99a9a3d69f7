"""`ReaderSuite`: the checks that every `RangeReader` passes, over a store with its layers.

The hooks are those of `AccessorSuite`, so that one mixin with the hooks can serve both.
"""

from aioprefetch.testing.conformance.reader_lifecycle import LifecycleChecks
from aioprefetch.testing.conformance.reader_reads import PositionedReadChecks, SeekChecks, VectoredChecks
from aioprefetch.testing.conformance.suite import skipped_tests


class ReaderSuite(SeekChecks, PositionedReadChecks, VectoredChecks, LifecycleChecks):
    """All checks of a `RangeReader` over one store."""


__all__ = ["ReaderSuite", "skipped_tests"]

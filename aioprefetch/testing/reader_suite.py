"""`ReaderSuite`: the checks that every `RangeReader` passes, over a store with the hooks of `AccessorSuite`."""

from aioprefetch.testing.conformance.by_pytest import ByPytest
from aioprefetch.testing.conformance.suite import skipped_tests
from aioprefetch.testing.conformance.whole import ReaderChecks


class ReaderSuite(ReaderChecks, ByPytest):
    """All checks of a `RangeReader` over one store."""


__all__ = ["ReaderSuite", "skipped_tests"]

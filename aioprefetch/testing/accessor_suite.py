"""`AccessorSuite`: does a store, with its layers, do what aioprefetch promises of every store?

    class TestMyStore(AccessorSuite):
        @pytest.fixture
        async def operator(self):
            self.root = make_an_empty_root()
            async with Operator(MyService(self.root)) as operator:
                yield operator

        async def put_directly(self, path, data): ...
        async def get_directly(self, path): ...

Tests are chosen by `operator.capability`; pin what is skipped with `skipped_tests`, so that a capability that gets
lost fails and is not skipped silently.
"""

from aioprefetch.testing.conformance.conditions import ConditionChecks
from aioprefetch.testing.conformance.errors import ErrorChecks
from aioprefetch.testing.conformance.listing import ListChecks
from aioprefetch.testing.conformance.paths import PathChecks
from aioprefetch.testing.conformance.read import ReadChecks
from aioprefetch.testing.conformance.read_ranges import ReadRangesChecks
from aioprefetch.testing.conformance.remove_and_copy import CopyChecks, DeleteChecks
from aioprefetch.testing.conformance.stat import StatChecks
from aioprefetch.testing.conformance.suite import skipped_tests
from aioprefetch.testing.conformance.write import CreateDirChecks, WriteChecks


class AccessorSuite(
    StatChecks,
    ReadChecks,
    ReadRangesChecks,
    ConditionChecks,
    ListChecks,
    WriteChecks,
    CreateDirChecks,
    DeleteChecks,
    CopyChecks,
    PathChecks,
    ErrorChecks,
):
    """All checks of the operations of an `Operator` over one store."""


__all__ = ["AccessorSuite", "skipped_tests"]

"""`AccessorSuite`: the checks that every store passes, with its layers.

    class TestMyStore(AccessorSuite):
        @pytest.fixture
        async def operator(self):
            self.root = make_an_empty_root()
            async with Operator(MyService(self.root)) as operator:
                yield operator

        async def put_directly(self, path, data): ...
        async def get_directly(self, path): ...

Tests run by `operator.capability`. Pin the skipped ones with `skipped_tests`, so that the loss of a capability fails a
test instead of skipping it silently.
"""

from aioprefetch.testing.conformance.conditions import ConditionChecks, VersionChecks
from aioprefetch.testing.conformance.every_operation import ErrorChecks, PathChecks
from aioprefetch.testing.conformance.listing import ListChecks, StatChecks
from aioprefetch.testing.conformance.peers import PeerChecks, PresignChecks
from aioprefetch.testing.conformance.read import ReadChecks, ReadRangesChecks
from aioprefetch.testing.conformance.suite import skipped_tests
from aioprefetch.testing.conformance.write import CopyChecks, CreateDirChecks, DeleteChecks, WriteChecks, WriterChecks


class AccessorSuite(
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


__all__ = ["AccessorSuite", "skipped_tests"]

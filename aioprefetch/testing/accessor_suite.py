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

from aioprefetch.testing.conformance.by_pytest import ByPytest
from aioprefetch.testing.conformance.suite import skipped_tests
from aioprefetch.testing.conformance.whole import AccessorChecks


class AccessorSuite(AccessorChecks, ByPytest):
    """All checks of the operations of an `Operator` over one store."""


__all__ = ["AccessorSuite", "skipped_tests"]

"""The checks as tests of pytest: the fixture of their operator, and the one place where they are skipped."""

import pytest

from aioprefetch.operator.operator import Operator
from aioprefetch.testing.conformance.suite import ConformanceSuite, reason_to_skip


class ByPytest(ConformanceSuite):
    """Subclass a suite and implement the hooks and `operator`, and pytest runs its tests against your store."""

    pytestmark = pytest.mark.asyncio

    @pytest.fixture
    async def operator(self) -> Operator:
        """An Operator over an empty root, closed after the test. A subclass may make it a generator fixture."""
        raise NotImplementedError("a conformance class must provide the fixture 'operator'")

    @pytest.fixture(autouse=True)
    def _skip_by_capability(self, request: pytest.FixtureRequest, operator: Operator) -> None:
        reason = reason_to_skip(request.function, operator.capability, self.lacks)
        if reason is not None:
            pytest.skip(reason)

"""A runtime, servers that are closed after the test, and short ways to read."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from aioprefetch.runtime.runtime import Runtime
from tests.unit.services.http.reading import Servers


@pytest.fixture
async def servers(runtime: Runtime) -> AsyncIterator[Servers]:
    """Starts servers."""
    async with AsyncExitStack() as stack:
        yield Servers(stack)
        await runtime.aclose()

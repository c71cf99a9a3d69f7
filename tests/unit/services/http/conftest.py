"""A runtime, servers that are closed after the test, and short ways to read."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from aioprefetch.runtime.options import RuntimeOptions
from aioprefetch.runtime.runtime import Runtime
from tests.unit.services.http.reading import Servers


@pytest.fixture
async def runtime() -> AsyncIterator[Runtime]:
    """A runtime, closed after the test and before its servers."""
    live = Runtime(RuntimeOptions())
    yield live
    await live.aclose()


@pytest.fixture
async def servers(runtime: Runtime) -> AsyncIterator[Servers]:
    """Starts servers."""
    async with AsyncExitStack() as stack:
        yield Servers(stack)
        await runtime.aclose()

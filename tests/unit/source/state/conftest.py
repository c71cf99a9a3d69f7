"""Closes what the async tests of states have opened."""

import inspect
from collections.abc import AsyncIterator

import pytest

from tests.unit.source.state import stores


@pytest.fixture
async def closing() -> AsyncIterator[None]:
    """Close states and stores after the test, on its loop."""
    stores.forget_all()
    yield
    await stores.close_all()


@pytest.fixture(autouse=True)
def closed_afterwards(request: pytest.FixtureRequest) -> None:
    """For async tests alone: the others run loops of their own, and close what they open."""
    if inspect.iscoroutinefunction(getattr(request.node, "function", None)):
        request.getfixturevalue(closing.__name__)

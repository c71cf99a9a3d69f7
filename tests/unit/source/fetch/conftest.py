"""The scene of tests of the front door."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.unit.source.fetch.source_scene import Scene


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    """A bucket and a state of its own; everything opened over them is closed."""
    # Late, so that pytest can rewrite the asserts of what the tests share.
    from tests.unit.source.fetch.source_scene import Scene

    async with AsyncExitStack() as stack:
        yield Scene(stack)

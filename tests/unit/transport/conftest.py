"""Every test here that opens sockets runs on asyncio's loop and on uvloop."""

import asyncio
import importlib
from collections.abc import AsyncIterator, Callable, Mapping
from importlib.util import find_spec

import pytest

from aioprefetch.runtime.options import RuntimeOptions
from aioprefetch.runtime.runtime import Runtime


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]] | None:
    """Both loops, except for tests on the virtual clock; uvloop does not exist for every platform."""
    if item.get_closest_marker("virtual") is not None:
        return None
    loops: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    if find_spec("uvloop") is not None:
        loops["uvloop"] = importlib.import_module("uvloop").new_event_loop
    return loops


@pytest.fixture
async def runtime() -> AsyncIterator[Runtime]:
    """A runtime, closed after the test."""
    live = Runtime(RuntimeOptions())
    yield live
    await live.aclose()

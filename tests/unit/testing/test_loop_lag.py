"""LoopLag finds code of the package that holds a loop, and no other code."""

import asyncio
import gc
import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.probes.loop_lag import LoopLag

# On a busy machine a look may come late, and counts all since the one before for the call that it sees.
LIMIT_SECONDS = 0.1
SOURCE = """
import asyncio, time

def burn(cpu_seconds=0.4):
    end = time.thread_time() + cpu_seconds
    while time.thread_time() < end:
        sum(range(1000))

async def burn_awaited():
    burn()

async def burn_in_turns():
    for _ in range(40):
        burn(0.005)
        await asyncio.sleep(0)

async def call(function):
    function()
"""


@pytest.fixture
def package(tmp_path: Path) -> Any:
    """A module outside of the tests, watched instead of the package."""
    path = tmp_path / "watched.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("watched", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def held(tmp_path: Path, main: Callable[[], Any], limit_seconds: float = LIMIT_SECONDS) -> LoopLag:
    """The callbacks that LoopLag reports while a coroutine function runs on a loop."""
    with LoopLag(limit_seconds, tmp_path) as lag:
        asyncio.run(main())
    return lag


def test_a_coroutine_that_burns_cpu_is_found_with_its_stack(package: Any, tmp_path: Path) -> None:
    (found,) = held(tmp_path, package.burn_awaited).held
    assert found.cpu_seconds > 0.1
    assert found.stack[-1][2] in {"burn", "burn_awaited"}
    assert "burn_awaited" in str(found)


def test_work_in_short_turns_is_fine(package: Any, tmp_path: Path) -> None:
    assert held(tmp_path, package.burn_in_turns).held == []


@pytest.mark.cost
def test_work_of_the_caller_is_not_counted(package: Any, tmp_path: Path) -> None:
    def burn_here() -> None:
        end = time.thread_time() + 0.2
        while time.thread_time() < end:
            sum(range(1000))

    async def main() -> None:
        burn_here()
        await package.call(burn_here)

    assert held(tmp_path, main).held == []


def test_collecting_garbage_is_not_counted(package: Any, tmp_path: Path) -> None:
    heap = [[number] for number in range(500_000)]

    async def main() -> None:
        await package.call(gc.collect)

    assert held(tmp_path, main, limit_seconds=0.02).held == []
    assert len(heap) == 500_000

"""What the tests of ap.sync share: a store in memory, and a way to run a program of their own."""

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from aioprefetch.operator.operator import Operator
from aioprefetch.sync import BlockingOperator
from tests.tidy.source_tree import ROOT

BLOCK_BYTES = 4 << 10

MakeFile = Callable[[bytes], str]


@pytest.fixture
def operator(random_name: Callable[[], str]) -> Operator:
    """An operator on an empty store in memory, with small blocks."""
    return Operator.from_uri(f"memory://{random_name()}", block_bytes=BLOCK_BYTES, memory_bytes=4 << 20)


@pytest.fixture
def blocking(operator: Operator) -> Iterator[BlockingOperator]:
    """Its synchronous twin."""
    with BlockingOperator(operator) as blocking:
        yield blocking


def run_program(source: str) -> str:
    """Run a program in a fresh interpreter; its standard output. Any noise on standard error fails the test."""
    run = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-W", "ignore:This process:DeprecationWarning", "-c", source],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    # A loop in debug mode tells of each slow step, and on a busy machine any step may be slow.
    assert [line for line in run.stderr.splitlines() if not line.startswith("Executing <")] == []
    return run.stdout


@pytest.fixture
def program() -> Callable[[str], str]:
    """`run_program` as a fixture."""
    return run_program

"""What the tests of ap.sync share: a store in memory, and a way to run a program of their own."""

from collections.abc import Callable, Iterator

import pytest

from aioprefetch.operator.operator import Operator
from aioprefetch.sync import BlockingOperator
from tests.probes.programs import run_program

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


@pytest.fixture
def program() -> Callable[[str], str]:
    """`run_program` as a fixture."""
    return run_program

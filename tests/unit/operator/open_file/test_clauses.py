"""The 69 clauses of Hadoop's openFile(), each by its number."""

import pytest

from aioprefetch.operator.open_file import warn_once
from tests.stores.gated_reader import bench
from tests.unit.operator.open_file import (
    clauses_build,
    clauses_ends,
    clauses_policy,
    clauses_status,
    clauses_values,
    clauses_vendor,
)
from tests.unit.operator.open_file.clauses import BLOCK, CHECKS, KINDS, SIZE, Scene

PARTS = (clauses_build, clauses_values, clauses_status, clauses_policy, clauses_ends, clauses_vendor)

MUST = {1, 2, 3, 4, 7, 8, 9, 10, 11, 12, 13, 14, 17, 18, 19, 20, 24, 25, 33, 34, 35, 40, 41, 51, 54, 59, 61}
MUST_NOT = {5, 26, 28}
SHOULD = {16, 27, 36, 58}
MAY = {6, 15, 29, 32, 39, 48, 49, 52, 60, 62}


@pytest.mark.virtual
@pytest.mark.parametrize("number", sorted(CHECKS))
async def test_clause(number: int, caplog: pytest.LogCaptureFixture) -> None:
    """What the clause asks for holds."""
    warn_once.cache_clear()  # Another test of this process may have used a value of this one.
    async with bench(SIZE, block_bytes=BLOCK, prefetch_blocks=8) as store:
        await CHECKS[number](Scene(store, caplog))


def test_the_clauses_are_all_there() -> None:
    """69 of them, of the kinds that the list gives, in the parts that say so."""
    assert sorted(CHECKS) == list(range(1, 70))
    for kind, numbers in (("M", MUST), ("N", MUST_NOT), ("S", SHOULD), ("Y", MAY)):
        assert {number for number, found in KINDS.items() if found == kind} == numbers
    for part in PARTS:
        own = sorted(number for number, check in CHECKS.items() if check.__module__ == part.__name__)
        assert part.__doc__ is not None
        assert part.__doc__.startswith(f"Clauses {own[0]} to {own[-1]}:")
        assert own == list(range(own[0], own[-1] + 1))

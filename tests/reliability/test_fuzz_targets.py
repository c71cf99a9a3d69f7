"""The targets of `make fuzz`: what they begin from is read, and damaged bytes are errors of ours."""

import random

import pytest

from aioprefetch.testing.conformance.suite import checks
from tests.fuzz import TARGETS


@checks("reliability:K23", "reliability:K26")
@pytest.mark.parametrize("name", TARGETS)
def test_a_few_damaged_inputs(name: str) -> None:
    check, seeds = TARGETS[name]
    dice = random.Random(name)
    for seed in seeds:
        check(seed)
        for _ in range(40):
            damaged = bytearray(seed)
            damaged[dice.randrange(len(damaged))] = dice.randrange(256)
            check(bytes(damaged[: dice.randrange(len(damaged) + 1)]))

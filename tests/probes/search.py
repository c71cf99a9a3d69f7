"""How long a search for faults goes on, and where it begins.

`make test` gives each search two seconds from the same beginning; CI thirty, from one that the date names; and
`make test-sweeps` as long as all of it takes, up to an hour.
"""

import os
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy, tuples

from tests.profile import PROFILE, chosen

IS_LONG = "AIOPREFETCH_SEARCH_SECONDS" in os.environ
ROUNDS_MAX = int(os.environ.get("AIOPREFETCH_SEARCH_ROUNDS", "100"))
# A list of mutants asks whether something is found, not what is the least of it.
PHASES = (Phase.generate,) if os.environ.get("AIOPREFETCH_SEARCH_SHRINKS") == "0" else (Phase.generate, Phase.shrink)
# What `make search` tries of each scenario on virtual time.
SCENARIO_SEEDS = 200
SECONDS = float(os.environ.get("AIOPREFETCH_SEARCH_SECONDS", chosen(quick="2", full="5")))
SEED = zlib.crc32(os.environ.get("AIOPREFETCH_SEARCH_SEED", "").encode())


def seeds(rounds_max: int, clock: Callable[[], float] = time.monotonic) -> Iterator[int]:
    """Seeds of rounds, one at least, until the time is over or ``rounds_max`` were made."""
    end = clock() + SECONDS
    for number in range(rounds_max):
        if number and clock() > end:
            return
        yield SEED + number


def scenario_seeds(*, quick: int, full: int, clock: Callable[[], float] = time.monotonic) -> Iterator[int]:
    """The seeds of one scenario: the first ones, or in `make search` 200 that were not there before.

    A search ends earlier when its share of the time is over, which is counted from the first seed of a scenario.
    """
    if PROFILE != "search":
        yield from range(chosen(quick=quick, full=full))
        return
    begin, end = (SEED or time.time_ns()) << 8, clock() + SECONDS
    for number in range(SCENARIO_SEEDS):
        if number and clock() > end:
            return
        yield begin + number


def searched(check: Callable[..., Any], *drawn: SearchStrategy[Any], examples: int, rounds: int = 1) -> None:
    """Try that number of examples, the same ones each time, in `make test`; in a search as many as its time allows.

    That is the time of this process, so that a busy machine finds the same. More ``rounds`` of examples are tried in
    `make test`, too, as long as its seconds last.
    """
    kept = settings(max_examples=examples, derandomize=False, database=None, phases=PHASES)
    for number, one in enumerate(seeds(ROUNDS_MAX if IS_LONG else rounds, time.process_time), 1):
        try:
            seed(one)(kept(given(tuples(*drawn))(lambda values: check(*values))))()
        except BaseException as error:
            error.add_note(f"found in round {number}")
            raise

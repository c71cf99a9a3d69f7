"""Processes that are killed while they write, copy, move, delete, upload, download or sync."""

import sys

from aioprefetch.testing.conformance.suite import checks
from tests.probes.programs import completed
from tests.probes.search import SECONDS, SEED

# A start of the processes takes the rest of the time.
SECONDS_LEFT = max(1.0, SECONDS - 4.0)
KILLS_MAX = 240


@checks("reliability:W36", "reliability:W37")
def test_a_process_that_is_killed_at_any_time_loses_nothing() -> None:
    arguments = (str(SECONDS_LEFT), str(SEED), str(KILLS_MAX))
    run = completed([sys.executable, "-m", "tests.reliability.killed_verbs", *arguments], timeout_seconds=SECONDS + 600)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) >= 1

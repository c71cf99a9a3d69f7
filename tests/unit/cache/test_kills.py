"""Processes that are killed while they write, and many that write the same: never a wrong byte, nothing left over."""

import sys
from pathlib import Path

from aioprefetch.testing.conformance.suite import checks
from tests.probes.programs import completed
from tests.unit.cache.kills import BLOCKS, PROCESSES, ROUNDS


def run(program: str, path: Path) -> int:
    """What a program of kills.py says, which fails when something was wrong."""
    command = [sys.executable, "-m", "tests.unit.cache.kills", program, str(path)]
    done = completed(command, timeout_seconds=100)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@checks("reliability:D21")
def test_a_kill_between_any_two_system_calls_of_a_put(tmp_path: Path) -> None:
    """The block is there whole or not at all, others stay, and the next start sweeps what is left."""
    assert run("sweep", tmp_path) >= 12


@checks("reliability:D20", "reliability:P03")
def test_eight_processes_write_the_same_blocks_and_some_are_killed(tmp_path: Path) -> None:
    assert run("share", tmp_path) > ROUNDS * (PROCESSES - 1) * BLOCKS

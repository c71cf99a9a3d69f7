"""Programs of a test in a fresh interpreter: what an import loads, what an exit leaves behind."""

import subprocess
import sys

from tests.benches.source_tree import ROOT


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

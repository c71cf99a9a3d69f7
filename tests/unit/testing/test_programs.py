"""A program of a test that hangs is ended, and the failure says where it hung."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.probes.programs import completed, run_program

HANGS = """
import os, sys, threading
never = threading.Lock()
never.acquire()
def first_waits():
    os.waitpid(child, 0)
def child_waits():
    open(sys.argv[1], "w").close()
    never.acquire()
print("begun", flush=True)
child = os.fork()
first_waits() if child else child_waits()
"""


def is_running(process: str) -> bool:
    """Whether a process has not ended; where no parent asks for its status, it stays in the list."""
    status = Path("/proc", process, "stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the processes of a group are listed in /proc")
def test_a_program_that_hangs_is_ended_and_shows_its_stacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wait = subprocess.Popen.wait
    fifo = tmp_path / "child hangs"
    os.mkfifo(fifo)

    def late(process: Any, timeout: float | None = None) -> int:
        if timeout is None:
            return wait(process)
        fifo.read_bytes()  # Both processes wait now, or are about to.
        raise subprocess.TimeoutExpired("", timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", late)
    with pytest.raises(AssertionError) as raised:
        completed([sys.executable, "-c", HANGS, str(fifo)])
    message = str(raised.value)
    for words in ("not done in 60 s", "begun", "in first_waits", "in child_waits"):
        assert words in message
    processes = [line.split()[2] for line in message.splitlines() if line.startswith("--- process")]
    assert len(processes) == 2
    assert not any(map(is_running, processes))


def test_the_output_and_the_status_of_one_that_ends() -> None:
    done = completed([sys.executable, "-c", "import sys; print('out'); sys.exit('error')"])
    assert (done.returncode, done.stdout, done.stderr) == (1, "out\n", "error\n")
    assert run_program("print('alone')") == "alone\n"
    with pytest.raises(AssertionError, match="noise"):
        run_program("import sys; print('noise', file=sys.stderr)")

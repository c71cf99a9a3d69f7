"""Where a pipeline is killed. Each point is one durable step, before or after it took effect; a kill happens once.

The pipeline runs with real processes: the JVM, the source's runner process, Python workers. Who is to be killed and
where comes from the environment, so that all of them know.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

# Variables that the harness sets for a pipeline and all processes it starts.
POINT, MARKER, JVM = "CRASH_POINT", "CRASH_MARKER", "CRASH_JVM"
# What the marker's name ends with once a process is about to be killed.
KILLED = ".killed"

POINTS = (
    "before-record",  # the planned batch is not durable yet
    "after-record",  # it is, and Spark does not know its offset
    "after-offsets",  # Spark wrote the offset, and asks for the partitions
    "after-partitions",
    "worker-in-file",  # a Python worker dies in the middle of a file
    "jvm-in-file",
    "in-commit",
    "after-sink",  # the sink has the batch, the commit log does not
)


def reached(point: str, *, nth: int = 1) -> None:
    """Die here if this is where the pipeline is to be killed, at the ``nth`` time that any process comes by."""
    if os.environ.get(POINT) != point or not _is_turn(nth):
        return
    Path(os.environ[MARKER]).with_suffix(KILLED).touch()
    if point == "executor-in-file":
        os.kill(_parent(os.getppid()), signal.SIGKILL)  # worker, its daemon, the executor's JVM
    elif point != "worker-in-file":
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(Path(os.environ[JVM]).read_text()), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _is_turn(nth: int) -> bool:
    """Count who comes by across processes: files that only one can create."""
    marker = Path(os.environ[MARKER])
    for number in range(1, nth + 1):
        try:
            marker.with_suffix(f".{number}").touch(exist_ok=False)
        except FileExistsError:
            continue
        return number == nth
    return False

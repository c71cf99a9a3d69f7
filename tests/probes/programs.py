"""Programs of a test in processes of their own: what an import loads, what an exit leaves behind, where one hangs."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from tests.repository.source_tree import ROOT

# How long a process may take to write the stacks of its threads.
STACKS_SECONDS_MAX = 5.0


def run_program(source: str) -> str:
    """Run a program in a fresh interpreter; its standard output. Any noise on standard error fails the test."""
    options = ["-X", "dev", "-W", "error", "-W", "ignore:This process:DeprecationWarning"]
    run = completed([sys.executable, *options, "-c", source])
    assert run.returncode == 0, run.stderr
    # A loop in debug mode tells of each slow step, and on a busy machine any step may be slow.
    noise = [line for line in run.stderr.splitlines() if not line.startswith("Executing <")]
    assert not noise, "\n".join(noise)
    return run.stdout


def completed(
    command: Sequence[str],
    *,
    timeout_seconds: float = 60.0,
    cwd: str | os.PathLike[str] = ROOT,
    env: Mapping[str, str] | None = None,
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end; its status and output.

    ``AssertionError`` if it takes longer: with the output so far and the stacks of all Python threads of its processes,
    which are ended.
    """
    environment = {**(os.environ if env is None else env), "PYTHONFAULTHANDLER": "1"}
    # Files, not pipes: a process that is left over would keep a pipe open.
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        process = subprocess.Popen(
            command, cwd=cwd, env=environment, stdout=stdout, stderr=stderr, start_new_session=True
        )
        is_late = False
        try:
            process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            is_late = True
            _write_stacks(process, stderr)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        said, complained = _text(stdout), _text(stderr)
    if is_late:
        raise AssertionError(f"not done in {timeout_seconds:g} s; it wrote:\n{said}\nand as errors:\n{complained}")
    return subprocess.CompletedProcess(command, process.returncode, said, complained)


def run_installed(source: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run a program far from a checkout, with an installed wheel of the package, whose place is its argument."""
    from hatchling.builders.wheel import WheelBuilder

    site = folder / "site"
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    command = [sys.executable, "-P", "-c", source, str(site)]
    return completed(command, timeout_seconds=120, cwd=folder, env=os.environ | {"PYTHONPATH": str(site)})


def _write_stacks(process: "subprocess.Popen[bytes]", stderr: IO[str]) -> None:
    """Let each process of the group write its stacks, the first one first: the end of another would wake it."""
    for number in sorted(_group(process.pid)):
        # The file's position is that of all who write to it.
        os.write(stderr.fileno(), f"--- process {number}{_threads(number)}\n".encode())
        with contextlib.suppress(ProcessLookupError):
            ended = os.pidfd_open(number)
            try:
                os.kill(number, signal.SIGABRT)
                select.select([ended], [], [], STACKS_SECONDS_MAX)
            finally:
                os.close(ended)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _group(leader: int) -> list[int]:
    """The processes of a group that have not ended; none where the system has no such list."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, group = status.read_text().rpartition(")")[2].split()[:3]
            if int(group) == leader and state != "Z":
                found.append(int(status.parent.name))
    return found


def _threads(process: int) -> str:
    """What the kernel knows of each thread: its name, and where it waits. Of those of libraries nothing else tells."""
    lines = []
    for thread in sorted(Path(f"/proc/{process}/task").glob("*")):
        with contextlib.suppress(OSError):
            lines.append(f"\nthread {(thread / 'comm').read_text().strip()}: {(thread / 'wchan').read_text()}")
    return "".join(lines)


def _text(file: IO[str]) -> str:
    file.seek(0)
    return file.read()

"""Commands as processes: modules that they load, a pipe that is closed early, Ctrl-C."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from aioprefetch.testing import FaultServer
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.testing.faults import Fault, Rule
from tests.probes.programs import run_program
from tests.repository.source_tree import ROOT

# It takes below a second; a busy machine takes its time to end a process.
BUSY_MACHINE_SECONDS_MAX = 5.0


def start(*arguments: str, **variables: str) -> "subprocess.Popen[bytes]":
    """A process of the command line, with variables of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "aioprefetch", *arguments],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("AIOPREFETCH_")} | variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize("command", [("ls", "-lR"), ("cat",)])
def test_what_prints_bytes_and_names_loads_neither_rich_nor_arrow(command: Sequence[str], folder: Path) -> None:
    place = folder if command[0] == "ls" else folder / "a b.txt"
    loaded = run_program(
        f"import sys; from aioprefetch.cli import main; assert main({[*command, str(place)]!r}) == 0;"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'rich', 'pyarrow', 'numpy', 'aiobotocore'}))"
    )
    assert loaded.splitlines()[-1] == "[]"


def test_without_click_one_line_says_what_to_install() -> None:
    shown = run_program(
        "import sys; sys.modules['click'] = None; sys.stderr = sys.stdout;"
        "from aioprefetch.cli import main; assert main(['ls']) == 2"
    )
    assert shown == "aioprefetch: the command line needs click: pip install 'aioprefetch[cli]'\n"


def test_a_pipe_that_is_closed_early_ends_it(tmp_path: Path) -> None:
    """As in `aioprefetch cat PLACE | head -c 1`: at once, with the status of SIGPIPE, and without a traceback."""
    with (tmp_path / "long").open("wb") as file:
        file.truncate(64 << 30)  # Holes take no space; reading all of it would take a minute.
    with start("cat", str(tmp_path / "long")) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1) == b"\0"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_streams_that_are_closed_or_full(folder: Path) -> None:
    """A write that fails is one line; a command that writes nothing needs no stream."""
    copied = f"{folder}/copied"
    for script, code, message in (
        ("cat $0/big >&-", 1, "aioprefetch: Bad file descriptor\n"),
        ("cat $0/big >/dev/full", 1, "aioprefetch: No space left on device\n"),
        ("ls --json $0 >/dev/full", 1, "aioprefetch: No space left on device\n"),
        (f"cp $0/big {copied} >&- 2>&- <&-", 0, ""),
        (f"cp - {copied} <&-", 2, "aioprefetch: standard input is closed (InvalidArgument)\n"),
    ):
        shell = ["bash", "-c", f'"$1" -m aioprefetch {script}', str(folder), sys.executable]
        result = subprocess.run(shell, cwd=ROOT, capture_output=True, text=True, check=False)
        assert (result.returncode, result.stderr) == (code, message), script
    assert os.path.getsize(copied) == os.path.getsize(folder / "big")


@pytest.mark.parametrize(("place", "code"), [("loading", 130), ("at the end", 0)])
def test_ctrl_c_outside_of_the_command_itself(place: str, code: int) -> None:
    """While modules load, and when the command is over and the process waits for its threads: no traceback."""
    program = f"""
import os, signal, sys
from aioprefetch.cli import main

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "click" and {place == "loading"}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
sys.argv = ["aioprefetch", "--version"]
code = main()
os.kill(os.getpid(), signal.SIGINT)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, "")


@checks("reliability:W43", "reliability:C21")
async def test_ctrl_c_ends_it_soon(tmp_path: Path) -> None:
    """Also while the store does not respond; nothing half-written is under its name."""
    async with FaultServer({"k": bytes(1000)}) as server:
        server.add(Rule(fault=Fault(hang_before_head=True), times=None))
        target = tmp_path / "target"
        for arguments in (("cat", f"{server.url}/k"), ("cp", f"{server.url}/k", str(target))):
            before = server.count()
            with start(*arguments) as process:
                await server.wait_for_requests(before + 1, timeout_seconds=30)
                process.send_signal(signal.SIGINT)
                began = time.monotonic()
                assert process.wait(30) == 130
                seconds = time.monotonic() - began
                out, err = process.communicate()
            assert (out, err.count(b"Traceback")) == (b"", 0)
            assert seconds <= BUSY_MACHINE_SECONDS_MAX
        assert not target.exists()


def test_a_terminal_shows_progress_and_a_sum(tmp_path: Path) -> None:
    """Bar, rate and time left while it copies; one line when it is done."""
    (tmp_path / "source").write_bytes(bytes(64 << 20))
    master, slave = os.openpty()
    with (
        open(master, "rb", buffering=0) as screen,
        subprocess.Popen(
            [sys.executable, "-m", "aioprefetch", "cp", str(tmp_path / "source"), str(tmp_path / "target")],
            cwd=ROOT,
            env=os.environ | {"TERM": "xterm", "COLUMNS": "120"},
            stdout=subprocess.PIPE,
            stderr=slave,
        ) as process,
    ):
        os.close(slave)
        shown = b""
        with suppress(OSError):  # A terminal whose other end has closed.
            while piece := screen.read(1 << 16):
                shown += piece
        assert process.communicate()[0] == b""
    assert process.returncode == 0
    assert b"64.0/64.0 MiB" in shown
    assert re.search(rb"[0-9] ([KMGT]i)?B/s", shown)
    assert b"1 object copied, 64 MiB in " in shown.splitlines()[-1]

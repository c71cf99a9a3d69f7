"""``trace``: runs a program, and writes the picture of what it reads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import click

from aioprefetch.cli import EXIT_FAILED, HELP_COLUMNS_MAX
from aioprefetch.cli.printing import note
from aioprefetch.display import bytes_text, counted, seconds_text
from aioprefetch.errors import printable
from aioprefetch.trace.spool import PID, SPOOL_VARIABLE, VARIABLE, Spool, spool_of
from aioprefetch.trace.timeline import by_line
from aioprefetch.trace.trace import STACKS_VARIABLE

EXIT_NOT_EXECUTABLE = 126  # as shells report these two
EXIT_NOT_FOUND = 127
EXIT_SIGNAL = 128
LINES_MAX = 5  # The lines of the program to print; the page has more.


@click.command(
    "trace",
    epilog="\b\nExamples:\n  aioprefetch trace -- python job.py\n  aioprefetch trace --to scan.html -- pytest -k scan"
    "\n  aioprefetch trace --to read.json -- python -m package   # for Perfetto",
    context_settings={"max_content_width": HELP_COLUMNS_MAX, "ignore_unknown_options": True},
)
@click.option(
    "--to", "name", metavar="FILE", default="read.html", show_default=True, help="A page, or .json for Chrome."
)
@click.option("--stacks", is_flag=True, help="Tell for which lines of the program requests were sent.")
@click.argument("program", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
def trace(name: str, stacks: bool, program: Sequence[str]) -> int:
    """Run a Python program and write the picture of what it reads.

    The program, and the processes that it starts, record all of their operators; the page of all of them is written
    when the program has ended, however it did. SIGINT and SIGTERM are passed on to it, and the second one kills it. The
    exit code is the program's, and 1 if no page was written. With --stacks the lines of the program whose
    requests were in flight longest are printed too.

    Without a command, write the page of a recording whose processes were all killed.
    """
    if PID in name:
        raise click.BadParameter(f"{PID} has no meaning here: all processes are on one page", param_hint="'--to'")
    path = os.path.abspath(name)
    folder, code = spool_of(path), 0
    if not program and not os.path.isdir(folder):
        raise click.UsageError(f"give a command: there is no recording in {printable(folder)}")
    spool = Spool(folder, is_root=True, keeps=not program)
    if program:
        wanted = {STACKS_VARIABLE: "1"} if stacks else {}
        code = _run(program, {**os.environ, VARIABLE: path, SPOOL_VARIABLE: folder, **wanted})
    if recording := spool.end(path):
        note(f"the trace is in {printable(name)}")
        for line, requests, seconds in by_line(recording)[:LINES_MAX]:
            received = bytes_text(sum(request.received_bytes for request in requests))
            note(f"{line or 'not known'}: {counted(len(requests), 'request')}, {received}, {seconds_text(seconds)}")
        return code
    if code not in (EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND):
        note(f"no trace was written: the program has not imported aioprefetch, which {sys.executable} has")
    return code or EXIT_FAILED


def _run(program: Sequence[str], environment: dict[str, str]) -> int:
    """The exit code of a program, as shells report it: 128 and the number of a signal that ended it."""
    signals = _Signals()
    with signals.caught():
        try:
            process = subprocess.Popen(program, env=environment)
        except FileNotFoundError:
            note(f"there is no program {printable(program[0])}")
            return EXIT_NOT_FOUND
        except OSError as error:
            note(f"{printable(program[0])} cannot be run: {error.strerror}")
            return EXIT_NOT_EXECUTABLE
        with process:
            signals.pass_to(process)
            code = process.wait()
    return code if code >= 0 else EXIT_SIGNAL - code


class _Signals:
    """Passes signals on to a program, which ends by the first unless it has a handler; the second one kills it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._number: int | None = None

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Catch the signals, except ignored ones; only the main thread can."""
        before = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    before[number] = signal.signal(number, self._on_signal)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def pass_to(self, process: subprocess.Popen[bytes]) -> None:
        """The program has started; a signal may have come before."""
        self._process = process
        if self._number is not None:
            self._pass_on(self._number)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        number = number if self._number is None else signal.SIGKILL
        self._number = number
        self._pass_on(number)

    def _pass_on(self, number: int) -> None:
        # A program that gets Ctrl-C twice at once is interrupted while it ends.
        if self._process is not None and not (number == signal.SIGINT and _is_in_foreground()):
            self._process.send_signal(number)


def _is_in_foreground() -> bool:
    """Whether Ctrl-C at a terminal reaches this process, and with it the programs that it has started."""
    try:
        terminal = os.open(os.ctermid(), os.O_RDONLY | os.O_NOCTTY)
    except OSError:  # There is none.
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)

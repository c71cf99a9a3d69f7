"""The command line, ``aioprefetch``: one module for each family of commands, thin over the library."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import threading
from collections.abc import Sequence

CLEAN_UP_SECONDS = "aioprefetch.clean_up_seconds"  # of the context: how long an interrupted command may clean up
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # as shells report a process that was ended by SIGINT
EXIT_BROKEN_PIPE = 141  # as shells report SIGPIPE
HELP_COLUMNS_MAX = 100


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; without ``argv``, the command line of the process.

    0: success; 1: nothing matched, or some of it failed; 2: arguments that cannot work; 130: interrupted (Ctrl-C);
    141: the reader of the output has closed it. Errors are one line on standard error.
    """
    if argv is None:
        _prepare_process()
    try:
        importlib.import_module("click")
    except ImportError:
        print("aioprefetch: the command line needs click: pip install 'aioprefetch[cli]'", file=sys.stderr)
        return EXIT_USAGE
    result: int = importlib.import_module("aioprefetch.cli.app").run_command(argv)
    if argv is None:
        gc.freeze()  # The exit looks through all objects again and again, and nothing needs that.
    return result


def _prepare_process() -> None:
    """Let Ctrl-C end the process in silence while it loads modules, and give it the streams that it was not given.

    A write to a standard output that is closed (``>&-``) fails, as in other tools; a copy does not write to it.
    """
    gc.set_threshold(10_000)  # Of a short run the collector takes a tenth, and finds nothing.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(EXIT_INTERRUPTED))
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w", encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")


__all__ = ["main"]

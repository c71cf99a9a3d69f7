"""The command line, ``aioprefetch``: one module for each family of commands, thin over the library."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # as shells report a process that was ended by SIGINT
EXIT_BROKEN_PIPE = 141  # as shells report SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; ``argv`` is that of the process without it.

    0: success; 1: nothing matched, or some of it failed; 2: arguments that cannot work; 130: interrupted (Ctrl-C);
    141: the reader of the output has closed it. Errors are one line on standard error.
    """
    try:
        importlib.import_module("click")
    except ImportError:
        print("aioprefetch: the command line needs click: pip install 'aioprefetch[cli]'", file=sys.stderr)
        return EXIT_USAGE
    result: int = importlib.import_module("aioprefetch.cli.app").run_command(argv)
    return result


__all__ = ["main"]

"""The report of a file to write that was never closed: it is lost, and Python shows no ``ResourceWarning``."""

from __future__ import annotations

import sys

from aioprefetch.errors import Closed, redact
from aioprefetch.runtime.events import logger


def report_unclosed(path: str) -> None:
    """Log an error, and hand one to ``sys.unraisablehook``, which shows it by default. From destructors too."""
    error = Closed(
        "the file was never closed: no object is written; open it in a with block, or close it yourself where gzip,"
        " zipfile and others are given it, which leave it open",
        operation="close",
        path=redact(path),
    )
    logger.error("%s", error)
    _Unraisable(error)


class _Unraisable:
    """Ends at once by an error of its destructor: nothing else leads to ``sys.unraisablehook``."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __del__(self) -> None:
        raise self._error


def is_collected() -> bool:
    """Whether a destructor has led to this call, or the interpreter ends."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name == "__del__":
            return True
    return sys.is_finalizing()

"""Counts the Python calls of a block: a cost that no noise of the machine moves."""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Calls:
    """The number of calls that were counted so far."""

    def __init__(self) -> None:
        self.number = 0


@contextmanager
def counted_calls(*, of_package: bool = False) -> Iterator[Calls]:
    """Count the calls of this thread, or those of functions of the package alone.

    The collector waits until the end: what it calls would be counted where it happens to run.
    """
    calls = Calls()
    part = f"{os.sep}aioprefetch{os.sep}" if of_package else ""

    def count(frame: FrameType, event: str, argument: object) -> None:
        calls.number += event == "call" and part in frame.f_code.co_filename

    was_enabled = gc.isenabled()
    gc.disable()
    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        if was_enabled:
            gc.enable()

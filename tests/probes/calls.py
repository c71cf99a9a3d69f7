"""Counts the Python calls of a block: a cost that no noise of the machine moves."""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import aioprefetch


class Calls:
    """The number of calls that were counted so far."""

    def __init__(self) -> None:
        self.number = 0


@contextmanager
def counted_calls(*, of_package: bool = False, of_files: tuple[str, ...] = ()) -> Iterator[Calls]:
    """Count the calls of this thread, or those of functions of the package, or of files with these ends, alone.

    The collector waits until the end: what it calls would be counted where it happens to run.
    """
    calls = Calls()
    root = os.path.dirname(aioprefetch.__file__)
    part = f"{root}{os.sep}" if of_package else ""
    testing = f"{root}{os.sep}testing{os.sep}"  # What measures the loop of a test, and servers.

    def count(frame: FrameType, event: str, argument: object) -> None:
        name = frame.f_code.co_filename
        if of_package and name.startswith(testing):
            return
        calls.number += event == "call" and part in name and (not of_files or name.endswith(of_files))

    was_enabled = gc.isenabled()
    gc.disable()
    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        if was_enabled:
            gc.enable()

"""Which descriptors of files this process has open."""

import os
from pathlib import Path

import pytest

IN_PROC = "/proc/self/fd"
needs_proc = pytest.mark.skipif(not os.path.isdir(IN_PROC), reason="descriptors are listed in /proc")


def descriptors_below(root: Path) -> list[str]:
    """What is open at or below a directory. Others of the process come and go with servers and other tests' garbage."""
    found = []
    for number in os.listdir(IN_PROC):
        try:
            target = os.readlink(f"{IN_PROC}/{number}")
        except FileNotFoundError:  # the descriptor with which the list was made
            continue
        if target.startswith(str(root)):
            found.append(target)
    return found

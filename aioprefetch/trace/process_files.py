"""The files in which processes write their traces: names, and whether one was written meanwhile.

No time is compared with a clock: file systems may keep whole seconds, or the time of another machine. A file was
written if it is not the one that was there before.
"""

from __future__ import annotations

import os
import re

# The file of a process that records itself.
VARIABLE = "AIOPREFETCH_TRACE"
# That file as it was before the command that started this process and others, and its name. None of them replaces what
# another one has written.
BEFORE_VARIABLE = "AIOPREFETCH_TRACE_BEFORE"
# In its name: the number of the process.
PID = "{pid}"


def numbered(name: str) -> str:
    """The file of another process: ``read.html`` becomes ``read.{pid}.html``."""
    if PID in name:
        return name
    stem, suffix = os.path.splitext(name)
    return f"{stem}.{PID}{suffix}"


def identity(path: str) -> str:
    """The file to which a name leads, and its state: another text once it was written, empty where there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return ""
    return f"{status.st_dev}-{status.st_ino}-{status.st_mtime_ns}-{status.st_size}"


def files_of(path: str) -> dict[str, str]:
    """The files there are for a name, that of the name first, then those with the number of a process: identities."""
    folder, name = os.path.split(path)
    before, _, after = numbered(name).partition(PID)
    is_other = re.compile(rf"{re.escape(before)}[0-9]+{re.escape(after)}").fullmatch
    try:
        others = sorted(filter(is_other, os.listdir(folder or ".")))
    except OSError:
        others = []
    found = {place: identity(place) for place in (path, *(os.path.join(folder, other) for other in others))}
    return {place: known for place, known in found.items() if known}


def before_of(path: str) -> str:
    """The value of ``BEFORE_VARIABLE`` for a file as it is now."""
    return f"{identity(path)} {path}"


def identity_before(path: str) -> str:
    """The identity of a file before the command that started this process; without one, that of now."""
    known, _, its_path = os.environ.get(BEFORE_VARIABLE, "").partition(" ")
    return known if its_path == path else identity(path)

"""Names of files that are being written, and which of them nobody writes any more. Pure but for its arguments.

The name holds the process that writes: ``.tmp-<pid>-<process token>-<random>``. A process that was killed leaves its
file behind; whoever opens the directory next removes it. Numbers of processes are used again, in containers at once,
hence the token; and they mean nothing in another container, hence the age.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Callable

# No write takes that long: what is older is left over, whoever has the number of its process now.
ABANDONED_SECONDS = 3600.0

_NAME = re.compile(r"\.tmp-([1-9][0-9]{0,18})-([0-9a-f]{8})-[0-9a-f]{16}")
_token = secrets.token_hex(4)


def temporary_name() -> str:
    """A name that nobody can guess, of a file of this process."""
    return f".tmp-{os.getpid()}-{_token}-{secrets.token_hex(8)}"


def is_temporary(name: str) -> bool:
    """Whether a name is one of these."""
    return _NAME.fullmatch(name) is not None


def is_abandoned(name: str, status: os.stat_result, *, now: float, is_alive: Callable[[int], bool]) -> bool:
    """Whether a temporary file is ours to remove: a regular file of our user whose writer is gone."""
    found = _NAME.fullmatch(name)
    if found is None or not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        return False
    if abs(now - status.st_mtime) > ABANDONED_SECONDS:
        return True
    process, token = int(found[1]), found[2]
    return token != _token if process == os.getpid() else not is_alive(process)

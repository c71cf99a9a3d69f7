"""What every service asks of a path, checked before any I/O. Each service has rules of its own besides."""

from __future__ import annotations

from pathlib import PurePath

from aioprefetch.errors import InvalidType, IsADirectory, NotADirectory
from aioprefetch.services.keys import checked_key

# Paths may be longer than the longest key, since the root goes before them: the service has the last word.
_PATH_BYTES_MAX = 4096


def checked_path(path: object, operation: str) -> str:
    """``path`` itself. ``InvalidType`` or ``InvalidPath`` for what no service could take."""
    if isinstance(path, str):
        return checked_key(path, operation=operation, bytes_max=_PATH_BYTES_MAX)
    hint = ": keys are text, of which Path drops // and a trailing /; give path.as_posix()"
    raise InvalidType(
        f"a path must be a string, not {type(path).__name__}{hint if isinstance(path, PurePath) else ''}",
        operation=operation,
    )


def check_file(path: str, operation: str) -> None:
    """``IsADirectory`` for a path that can only be one."""
    if not checked_path(path, operation) or path.endswith("/"):
        raise IsADirectory(
            "the path names a directory, an object is needed" if path else "the path is empty",
            operation=operation,
            path=path,
        )


def check_directory(path: str, operation: str) -> None:
    """``NotADirectory`` for a path without a slash at its end; ``""`` is the root."""
    if checked_path(path, operation) and not path.endswith("/"):
        raise NotADirectory("the path of a directory ends with /", operation=operation, path=path)

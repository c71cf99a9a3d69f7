"""The one table from the errno of the operating system to our errors."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from aioprefetch.errors import (
    AlreadyExists,
    Error,
    InvalidPath,
    IsADirectory,
    NotADirectory,
    NotFound,
    PermissionDenied,
    Unavailable,
    Unexpected,
)

TABLE: dict[int, tuple[type[Error], str]] = {
    errno.ENOENT: (NotFound, "there is no such file"),
    errno.ENOTDIR: (NotADirectory, "a file stands where the path needs a directory"),
    errno.EISDIR: (IsADirectory, "a directory stands where the path needs a file"),
    errno.ENOTEMPTY: (IsADirectory, "the directory is not empty; delete what is in it first, as delete_all does"),
    errno.EEXIST: (AlreadyExists, "there is a file of that name already"),
    errno.EACCES: (PermissionDenied, "this user may not do that; check the modes of the file and its directories"),
    errno.EPERM: (PermissionDenied, "the system does not permit it; check owner, mount options and attributes"),
    errno.EROFS: (PermissionDenied, "the file system is mounted read-only"),
    errno.ELOOP: (InvalidPath, "a symbolic link is on the way, and links are not followed"),
    errno.ENAMETOOLONG: (InvalidPath, "a name on the way is longer than the file system allows (often 255 bytes)"),
    errno.EILSEQ: (InvalidPath, "the file system cannot hold a character of the name"),
    errno.ENXIO: (InvalidPath, "it is a socket, FIFO or device, not a regular file"),
    errno.ENODEV: (InvalidPath, "it is a device, not a regular file"),
    errno.ENOSPC: (Unexpected, "the file system is full"),
    errno.EDQUOT: (Unexpected, "the disk quota is used up"),
    errno.EFBIG: (Unexpected, "the file would be larger than the file system or the process limit allows"),
    errno.EIO: (Unexpected, "the device reported an input/output error"),
    errno.EMFILE: (Unavailable, "the process has no file descriptor left; raise its limit (ulimit -n)"),
    errno.ENFILE: (Unavailable, "the system has no file descriptor left"),
    errno.ESTALE: (Unavailable, "the network file system lost its handle of the file"),
}

# A path below a file does not exist for a reader; only a writer needs to know that the file is in the way.
_LOOKS_ONLY = ("read", "stat")


def from_os_error(error: OSError, *, operation: str, path: str) -> Error:
    """The error of ours for one of the system's; chain the original as its cause."""
    code = error.errno or 0
    kind, words = TABLE.get(code, (Unexpected, os.strerror(code) if code else str(error)))
    if kind is NotADirectory and operation in _LOOKS_ONLY:
        kind = NotFound
    name = errno.errorcode.get(code, "no errno")
    mapped = kind(words, operation=operation, path=path, context={"errno": name})
    mapped.errno = code or mapped.errno
    return mapped


@contextlib.contextmanager
def naming(operation: str, path: str) -> Iterator[None]:
    """Failures in this block are errors of ours, with this operation and path unless they have one."""
    try:
        yield
    except Error as error:
        error.add_context(operation=operation, path=path)
        raise
    except OSError as error:
        raise from_os_error(error, operation=operation, path=path) from error

"""Files as Arrow opens them: one to read whose look-ahead follows its layout, one to write that appears when closed."""

from __future__ import annotations

import atexit
import contextlib
import os
import time
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from aioprefetch.errors import ObjectChanged
from aioprefetch.operator.operator import Operator
from aioprefetch.runtime.events import logger
from aioprefetch.sync import SyncFile, SyncWriteFile

# The files whose versions are remembered, the last ones that were read.
FOOTERS_MAX = 1 << 16
# How long the end of a program waits for files that Arrow has not closed: those of writes, and those that were read,
# which the program itself may keep.
EXIT_SECONDS_MAX = 1.0
EXIT_READ_SECONDS_MAX = 0.1
# How long after such a file Arrow has dropped what belongs to it.
DROP_SECONDS = 0.05


class Footers:
    """The version of each file whose end was read last. Arrow keeps footers, and opens the file again for its data.

    Without locks, which a fork might leave locked: each operation is one step of the interpreter.
    """

    def __init__(self) -> None:
        self._versions: OrderedDict[str, str] = OrderedDict()

    def keep(self, path: str, version: str | None) -> None:
        """Remember the version whose footer was given out."""
        if version is not None:
            self._versions[path] = version
            if len(self._versions) > FOOTERS_MAX:
                with contextlib.suppress(KeyError):
                    self._versions.popitem(last=False)

    def other(self, path: str, version: str | None) -> str | None:
        """The version whose footer was given out last, if that was another one."""
        kept = self._versions.get(path)
        return None if kept == version else kept


class ReadFile(SyncFile):
    """A ``SyncFile`` that Arrow drops without closing: then it is closed without a word, on any thread.

    Arrow reads it by ``seek`` and ``read_buffer``, one thread at a time, and keeps the views that it gets.

    A file whose footer was of another version, and that is first read elsewhere than at its start or end, is read by
    what that footer said: ``ObjectChanged``. Its bytes would be decoded as others than they are.
    """

    warns_unclosed = False

    def __init__(self, operator: Operator, path: str, footers: Footers) -> None:
        super().__init__(operator, path)
        _read[id(self)] = self
        self._footers = footers
        self._other_footer: str | None = None  # The version of a footer that Arrow may read by.

    def begin(self, *, at_end: bool = False) -> None:
        """Send the first request: for the end of the object, which most formats need first, or for its start."""
        super().begin(at_end=at_end)
        self._other_footer = self._footers.other(self._path, self.etag)

    def _end(self, *, wait: bool) -> None:
        super()._end(wait=wait)
        if not wait:
            _dropped_at[:] = [time.monotonic()]

    def _read(self, start: int, length: int | None) -> bytes:
        self._check_footer(start, length)
        return super()._read(start, length)

    def _view(self, start: int, length: int | None) -> memoryview:
        self._check_footer(start, length)
        return super()._view(start, length)

    def _check_footer(self, start: int, length: int | None) -> None:
        is_at_end = length is None or start + length >= (self._live("read").size or 0)
        if self._other_footer is not None and start and not is_at_end:
            raise ObjectChanged(
                "the object was overwritten after its footer was read: make the dataset again, or read the table again",
                operation="read",
                path=self._path,
                expected_etag=self._other_footer,
                actual_etag=self.etag,
            )
        self._other_footer = None
        if is_at_end:
            self._footers.keep(self._path, self.etag)


class WriteFile(SyncWriteFile):
    """A ``SyncWriteFile`` that writes nothing if Arrow drops it, as it does when the write of a table has failed."""

    def __init__(self, operator: Operator, path: str, options: Mapping[str, Any]) -> None:
        super().__init__(operator, path, options)
        _written[id(self)] = self

    def _warn_unclosed(self) -> None:
        logger.warning("%s was dropped before it was closed: no object is written", self.name)
        _dropped_at[:] = [time.monotonic()]


_written: weakref.WeakValueDictionary[int, WriteFile] = weakref.WeakValueDictionary()
_read: weakref.WeakValueDictionary[int, ReadFile] = weakref.WeakValueDictionary()
_dropped_at: list[float] = []  # The time of the last drop, if there was one.


def wait_for_dropped(
    timeout_seconds: float = EXIT_SECONDS_MAX, read_seconds_max: float = EXIT_READ_SECONDS_MAX
) -> None:
    """Wait until Arrow has dropped its files: of writes that failed, and of tables that were read a moment before.

    It drops each on a thread of its own, after the call that used it has returned, and the file system after it. If
    that happens while the interpreter ends, the process aborts or hangs.
    """
    _wait_for_none_of(_written, timeout_seconds)
    _wait_for_none_of(_read, read_seconds_max)
    if _dropped_at:
        time.sleep(max(0.0, _dropped_at[0] + DROP_SECONDS - time.monotonic()))


def _wait_for_none_of(files: weakref.WeakValueDictionary[int, Any], timeout_seconds: float) -> None:
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline and any(map(_is_open, files.valuerefs())):
        time.sleep(0.001)


def _is_open(reference: weakref.ref[Any]) -> bool:
    file = reference()
    return file is not None and not file.closed


atexit.register(wait_for_dropped)
# A child has none of Arrow's threads, which would drop them.
os.register_at_fork(after_in_child=_written.clear)
os.register_at_fork(after_in_child=_read.clear)

"""The spool of a trace: the folder in which the processes of one recording write what they have recorded.

It stands beside the page, whose name it has with ``.spool`` behind it, while any of them lives. A process has one file
there, locked while it lives, and appends a line of JSON at a time. The system gives up the lock of a process that is
killed: nothing here depends on numbers of processes, or on the orderly end of any. A root, that is the first process or
the command line, writes the page at its end; processes that outlive all roots write it again.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from aioprefetch.errors import printable, redact
from aioprefetch.trace.recording import Recording
from aioprefetch.trace.trace import text_of, write_whole

# The file of a process that records itself.
VARIABLE = "AIOPREFETCH_TRACE"
# The spool of the recording that a process is part of, where another one is its root.
SPOOL_VARIABLE = "AIOPREFETCH_TRACE_SPOOL"
# In the name of the file: the number of the root.
PID = "{pid}"
# Once its file has this size, a process records only counts.
SPOOL_BYTES_MAX = 256 << 20
_ROOT = "root-"


def spool_of(path: str) -> str:
    """The path of a page's spool. For a pipe or a terminal it is in the directory of temporary files."""
    target = os.path.realpath(path)
    if os.path.exists(target) and not os.path.isfile(target):
        return os.path.join(tempfile.gettempdir(), f"aioprefetch-{os.geteuid()}-{zlib.crc32(path.encode()):08x}.spool")
    return f"{target}.spool"


def numbered(path: str) -> str:
    """The page of another process: ``read.html`` becomes ``read.4711.html``."""
    stem, suffix = os.path.splitext(path)
    return f"{stem}.{os.getpid()}{suffix}"


class Spool:
    """The part of one process in a spool. Any method may raise ``OSError``.

    A root makes the folder. Unless it ``keeps`` it, what processes have left there is dropped, if none of them lives.
    """

    def __init__(self, folder: str, *, is_root: bool, keeps: bool = False) -> None:
        self.folder, self._is_root = folder, is_root
        self._name = f"{_ROOT if is_root else ''}{time.time_ns()}-{os.getpid()}.jsonl"
        self._file: int | None = None
        self._identity: tuple[int, int] | None = None
        self.written_bytes = 0
        if is_root:
            with _alone(folder):
                if not keeps and os.path.isdir(folder) and not self._living():
                    shutil.rmtree(folder)
                os.makedirs(folder, mode=0o700, exist_ok=True)
                if os.stat(folder).st_uid != os.geteuid():
                    raise PermissionError(errno.EPERM, "the folder belongs to another user", folder)
                self._open()

    def append(self, label: str, facts: dict[str, Any] | None, *, is_end: bool = False) -> None:
        """Write a line: its time, the name of the process, and its recording. A kill may leave the last one cut."""
        if not self._is_open():
            self._open()
        assert self._file is not None
        line = {"at": time.monotonic(), "process": printable(redact(label)), "facts": facts, "is_end": is_end}
        data = memoryview(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        self.written_bytes += len(data)
        while data:
            data = data[os.write(self._file, data) :]

    def close(self) -> None:
        """Stop counting as a live process; in a forked child, leave the parent's spool alone."""
        if self._file is not None and self._is_open():
            os.close(self._file)
        self._file = None

    def end(self, path: str, *, even_empty: bool = True) -> Recording | None:
        """Close, and write the page, unless a root lives that will. The recording, if it was written.

        A page of nothing is written if ``even_empty``, and any process has written a line.
        """
        while True:
            sizes, text, recording = self._sizes(), "", None
            is_writer = self._is_root or not any(name.startswith(_ROOT) for name in self._living())
            if is_writer:
                recording = merged(self.folder)
                text = text_of(recording, path) if recording.requests or (even_empty and recording.processes) else ""
            with _alone(self.folder):
                living = self._living()
                if is_writer and not living and sizes != self._sizes():
                    continue  # The last of the others has ended meanwhile.
                if text:
                    write_whole(path, text)
                if is_writer and not living:
                    shutil.rmtree(self.folder)
                self.close()
                return recording if text else None

    def _is_open(self) -> bool:
        # A program that becomes a daemon closes all files; the number may belong to another file now.
        return self._file is not None and _identity(self._file) == self._identity

    def _open(self) -> None:
        self._file = os.open(os.path.join(self.folder, self._name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._identity = _identity(self._file)
        with suppress(OSError):  # A file system may have no locks.
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _living(self) -> list[str]:
        """The files of the other processes that live."""
        others = [name for name in os.listdir(self.folder) if name != self._name]
        return [name for name in others if _is_locked(os.path.join(self.folder, name))]

    def _sizes(self) -> dict[str, int]:
        with os.scandir(self.folder) as entries:
            return {entry.name: entry.stat().st_size for entry in entries}


def merged(folder: str) -> Recording:
    """One recording of what all processes have written into a spool."""
    recording = Recording(names_stores=True)
    paths = [os.path.join(folder, name) for name in os.listdir(folder)]
    parts = [(path, lines) for path in paths if (lines := list(_lines(path)))]
    for path, lines in sorted(parts, key=lambda part: _origin(part[1])):
        last = lines[-1]
        facts = (line["facts"] for line in lines if line["facts"] is not None)
        is_running = not last["is_end"] and _is_locked(path)
        recording.add_process(
            f"{last['process']} {path.rpartition('-')[2].partition('.')[0]}",
            facts,
            "ended" if last["is_end"] else "is running" if is_running else "was killed",
            None if is_running else last["at"],
        )
    return recording


def _origin(lines: list[dict[str, Any]]) -> float:
    """When a process recorded something first, by the clock that all of them have."""
    origins: list[float] = [line["facts"]["origin"] for line in lines if line["facts"] is not None]
    return min(origins, default=lines[-1]["at"])


def _lines(path: str) -> Iterator[dict[str, Any]]:
    with open(path, "rb") as file:
        for line in file:
            if line.endswith(b"\n"):  # Otherwise the process was killed while it wrote.
                yield json.loads(line)


@contextmanager
def _alone(folder: str) -> Iterator[None]:
    """Alone among the processes that begin or end a spool there, where the file system has locks."""
    handle = os.open(os.path.dirname(folder), os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _is_locked(path: str) -> bool:
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError:  # It is; or the file system has no locks, and all processes are taken to be alive.
        return True
    finally:
        os.close(handle)


def _identity(handle: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(handle)
    except OSError:
        return None
    return status.st_dev, status.st_ino

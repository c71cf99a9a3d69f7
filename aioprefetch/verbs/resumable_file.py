"""A file that is received over several runs: what arrived stays hidden beside its target until the rest is there.

Two hidden files lie next to the target, named after it: ``….part`` holds the bytes, each where it belongs, and
``….done`` names their object and version, and the ranges that have been written. A range is noted when its
bytes were handed to the system, so a killed process loses none that it had noted. A machine that goes down loses what
was not on the device: the bytes are forced there every ``SYNC_BYTES``, and after a restart of the machine only the
ranges noted before the last of these times count.

While a process writes it holds a lock; another process with the same target uses a temporary file that cannot be
resumed.

The two are removed when the file is in place, when the object has changed, or by the listing of their directory a week
after the last byte.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import stat
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from aioprefetch.lean_dataclass import dataclass
from aioprefetch.local_files.files import ConfinedRoot, done_name, link_status, resumable_name
from aioprefetch.local_files.writer import PartialFile, machine_token
from aioprefetch.ranges import Range, joined
from aioprefetch.values import ReadHead, WriteRequest

# Bytes that may not be on the device yet.
SYNC_BYTES = 256 << 20
# A note of more ranges than an object of the largest size has parts is not ours.
NOTE_BYTES_MAX = 64 << 20
_OPEN = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NOTE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_APPEND


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedVersion:
    """The version of an object whose bytes a file holds: the head of all of it. ``store`` tells stores apart."""

    store: tuple[str, ...]
    path: str
    head: ReadHead

    def as_json(self) -> dict[str, object]:
        """The fields as JSON has them."""
        head = self.head
        return {
            "store": list(self.store),
            "path": self.path,
            "size": head.size,
            "etag": head.etag,
            "version": head.version,
            "last_modified": None if head.last_modified is None else head.last_modified.isoformat(),
            "content_type": head.content_type,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> ReceivedVersion:
        """The version of ``as_json``. Raises ``ValueError``, ``KeyError`` or ``TypeError`` for other values."""
        modified, size = _text(fields["last_modified"]), int(fields["size"])
        head = ReadHead(
            start=0,
            size=size,
            total=size,
            etag=_text(fields["etag"]),
            version=_text(fields["version"]),
            last_modified=None if modified is None else datetime.fromisoformat(modified),
            content_type=_text(fields["content_type"]),
        )
        return cls(store=tuple(map(str, fields["store"])), path=str(fields["path"]), head=head)


class ResumableFile(PartialFile):
    """A ``PartialFile`` whose bytes may stay for the next run. All methods block: call them in a thread.

    ``begun`` is the version that an earlier run has received ``done`` of, or ``None``. With
    ``is_short`` no bytes stay, and the bytes of an earlier run, of a longer version, are dropped.
    """

    def __init__(
        self,
        directory: int,
        name: str,
        request: WriteRequest,
        *,
        fsync: bool,
        source_mode: int | None = None,
        modified_ns: int | None = None,
        is_short: bool = False,
    ) -> None:
        super().__init__(directory, name, request, fsync=fsync, keeps_mode=True, source_mode=source_mode)
        token = hashlib.sha256(os.fsencode(name)).hexdigest()[:16]
        self._part_name, self._done_name = resumable_name(token), done_name(token)
        self._lock = threading.Lock()
        self._note = -1
        self._noted = 0
        self._unsynced_bytes = 0
        self._is_resumable = False
        self._is_kept = self._is_useless = False
        self._expected: ReceivedVersion | None = None
        self.begun: ReceivedVersion | None = None
        self.done: list[Range] = []
        self.modified_ns = modified_ns
        self._is_short = is_short

    def create(self) -> None:
        """Make the empty file, or open the one of an earlier run."""
        if self._go_on():
            if self._is_short:
                self.forget()
        elif self._is_short or not self._create_resumable():
            super().create()

    def forget(self) -> None:
        """Drop the bytes of an earlier run, or of this one."""
        with self._lock:
            self._close_note()
            self.begun, self.done, self._expected, self._is_kept = None, [], None, False
            self._remove(self._done_name)
        os.ftruncate(self.descriptor, 0)

    def expect(self, version: ReceivedVersion) -> None:
        """Note ranges of this version from now on: a run that ends early leaves them to the next one. No I/O."""
        if self._is_resumable:
            self._expected = version

    def note(self, start: int, end: int) -> None:
        """Note that the bytes ``[start, end)`` have been written. For several threads."""
        with self._lock:
            if self._expected is not None:
                head = {**self._expected.as_json(), "machine": machine_token(), "mode": self._mode}
                self._note = os.open(self._done_name, _NOTE | os.O_TRUNC, 0o600, dir_fd=self._directory)
                self._append(json.dumps(head))
                self._expected, self._noted, self._unsynced_bytes = None, 0, 0
            if self._note < 0:
                return
            self._append(f"{start} {end}")
            self._is_kept = True
            self._noted += 1
            self._unsynced_bytes += end - start
            if self._unsynced_bytes < SYNC_BYTES:
                return
            noted, self._unsynced_bytes = self._noted, 0
        os.fdatasync(self.descriptor) if hasattr(os, "fdatasync") else os.fsync(self.descriptor)
        with self._lock:
            if self._note >= 0:
                self._append(f"synced {noted}")

    def drop_at_end(self) -> None:
        """Leave nothing to a next run: what is here is of no use."""
        self._is_useless = True

    def place(self, lock: threading.Lock) -> os.stat_result:
        """As ``PartialFile.place``; the file has the time ``modified_ns``, if one is given."""
        if self.modified_ns is not None:
            with contextlib.suppress(OSError):  # Not every file system has every time.
                os.utime(self.descriptor, ns=(self.modified_ns, self.modified_ns))
        return super().place(lock)

    def _link(self) -> None:
        super()._link()
        self._is_kept = False

    def discard(self) -> None:
        """Close everything; remove the files unless a next run can go on with them."""
        self._close_note()
        is_kept = self._is_kept and not (self._is_useless or self._placed)
        if self._directory >= 0 and self._is_resumable and not is_kept:
            self._remove(self._done_name)
        if is_kept:
            self._made = False  # The name stays.
        super().discard()

    # --- the hidden files ---------------------------------------------------------------------------------------

    def _go_on(self) -> bool:
        """Open what an earlier run has left, with its lock; whether there is something to go on with."""
        try:
            descriptor = os.open(self._part_name, _OPEN, dir_fd=self._directory)
        except OSError:
            return False  # Nothing is there, or a link or directory.
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = self._is_named(descriptor)
        except OSError:  # Another process writes it.
            os.close(descriptor)
            return False
        if is_ours:
            self._read_note(os.fstat(descriptor).st_size)
            if self.begun is not None:
                self.descriptor, self._name = descriptor, self._part_name
                self._made = self._is_resumable = True
                return True
            self._remove(self._part_name)
        os.close(descriptor)
        return False

    def _create_resumable(self) -> bool:
        """Make an empty file under the name that the next run looks for; whether that name was free."""
        temporary, self._name = self._name, self._part_name
        try:
            super().create()
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # Held already, where there are locks.
            if self._is_named(self.descriptor):  # No other process took it for a file that was left.
                self._remove(self._done_name)
                self._is_resumable = True
                return True
        except BlockingIOError:
            pass
        except OSError:
            if self._made:  # The file system has no locks.
                self._remove(self._part_name)
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self._name, self._made, self.descriptor = temporary, False, -1
        return False

    def _is_named(self, descriptor: int) -> bool:
        """Whether the hidden name is of this file, which is regular and of this user."""
        status, named = os.fstat(descriptor), link_status(self._directory, self._part_name)
        is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
        return is_ours and named is not None and (named.st_dev, named.st_ino) == (status.st_dev, status.st_ino)

    def _read_note(self, size: int) -> None:
        """Read the note of an earlier run, if all of it can be true."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, IndexError):
            self._note = os.open(self._done_name, _NOTE & ~os.O_CREAT, dir_fd=self._directory)
            if os.fstat(self._note).st_size > NOTE_BYTES_MAX:
                raise ValueError
            with open(self._note, "rb", closefd=False) as file:
                lines = file.read().decode().split("\n")[:-1]  # The last line of a killed writer may be cut off.
            head = json.loads(lines[0])
            version = ReceivedVersion.from_json(head)
            done = _ranges(lines[1:], is_same_boot=head["machine"] == machine_token())
            if not done or done[-1][1] > min(version.head.size, size):
                raise ValueError
            self._mode = int(head["mode"]) & 0o777
            self._noted = len(lines) - 1 - sum(line.startswith("synced") for line in lines)
            self.begun, self.done, self._is_kept = version, done, True
            return
        self._close_note()

    def _append(self, line: str) -> None:
        data = f"{line}\n".encode()
        if os.write(self._note, data) != len(data):
            raise OSError("the note of the ranges was cut off")

    def _close_note(self) -> None:
        note, self._note = self._note, -1
        if note >= 0:
            os.close(note)

    def _remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=self._directory)


def _ranges(lines: Sequence[str], *, is_same_boot: bool) -> list[Range]:
    """The noted ranges that count, merged and in order. Raises ``ValueError`` for lines that are not a note's."""
    noted: list[Range] = []
    synced = 0
    for line in lines:
        first, second = line.split(" ")
        if first == "synced":
            synced = int(second)
        else:
            noted.append((int(first), int(second)))
    counted = noted if is_same_boot else noted[:synced]
    if not all(0 <= start < end for start, end in counted):
        raise ValueError
    return joined(counted)


def open_resumable(root: ConfinedRoot, names: tuple[str, ...], request: WriteRequest, **options: Any) -> ResumableFile:
    """Begin to receive the file that ``names`` lead to; its directories are made, and stay if that fails."""
    names = root.resolved(names)
    with root.directory(names[:-1], create=True) as directory:
        own = os.dup(directory)
    return ResumableFile(own, names[-1], request, **options).begin()


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None

"""The mode of a file that is received, which may be a copy of a local one, and when it is on the device."""

import os
import stat
import threading
from pathlib import Path

import pytest

from aioprefetch.local_files.files import ConfinedRoot
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import ReadHead, WriteRequest
from aioprefetch.verbs.resumable_file import SYNC_BYTES, ReceivedVersion, ResumableFile, open_resumable

VERSION = ReceivedVersion(store=("s",), path="k", head=ReadHead(start=0, size=4, total=4, etag="e"))


def begun(folder: Path, *, source_mode: int | None, fsync: bool = False) -> ResumableFile:
    root = ConfinedRoot(str(folder), follow_symlinks=False)
    return open_resumable(root, ("d", "k"), WriteRequest(path="d/k"), fsync=fsync, source_mode=source_mode)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    ("source_mode", "expected"), [(None, 0o644), (0o600, 0o600), (0o100755, 0o755), (0o106777, 0o755), (0o444, 0o444)]
)
def test_a_new_file_has_the_mode_of_its_source_less_the_umask(
    tmp_path: Path, source_mode: int | None, expected: int
) -> None:
    before = os.umask(0o022)
    try:
        file = begun(tmp_path, source_mode=source_mode)
        os.write(file.descriptor, b"data")
        file.place(threading.Lock())
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "d" / "k") == expected


@checks("reliability:W31")
@pytest.mark.parametrize(("source_mode", "expected"), [(None, 0o664), (0o640, 0o640), (0o755, 0o644)])
def test_a_replaced_file_keeps_its_mode_less_what_the_source_forbids(
    tmp_path: Path, source_mode: int | None, expected: int
) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "k").write_bytes(b"old")
    (tmp_path / "d" / "k").chmod(0o664)
    begun(tmp_path, source_mode=source_mode).place(threading.Lock())
    assert mode_of(tmp_path / "d" / "k") == expected


def test_a_later_run_obeys_the_mode_that_the_source_has_then(tmp_path: Path) -> None:
    """The source became private while half of it was here."""
    file = begun(tmp_path, source_mode=0o644)
    file.expect(VERSION)
    os.write(file.descriptor, b"da")
    file.note(0, 2)
    file.discard()
    file = begun(tmp_path, source_mode=0o600)
    assert file.begun == VERSION
    os.pwrite(file.descriptor, b"ta", 2)
    file.place(threading.Lock())
    assert (tmp_path / "d" / "k").read_bytes() == b"data"
    assert mode_of(tmp_path / "d" / "k") == 0o600


def test_the_file_and_its_directory_are_forced_to_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bool] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(stat.S_ISDIR(os.fstat(descriptor).st_mode)))
    begun(tmp_path, source_mode=None, fsync=True).place(threading.Lock())
    assert synced == [False, True]


def test_ranges_are_noted_as_synchronised_after_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[list[str]] = []

    def lines() -> list[str]:
        (note,) = (tmp_path / "d").glob(".*.done")
        return note.read_text().splitlines()[1:]

    monkeypatch.setattr(os, "fdatasync" if hasattr(os, "fdatasync") else "fsync", lambda _: notes.append(lines()))
    file, half = begun(tmp_path, source_mode=None), SYNC_BYTES // 2
    file.expect(VERSION)
    ranges = [f"{number * half} {(number + 1) * half}" for number in range(4)]
    for start in range(0, 4 * half, half):
        file.note(start, start + half)
    file.discard()
    assert notes == [ranges[:2], [*ranges[:2], "synced 2", *ranges[2:]]]
    assert lines() == [*notes[1], "synced 4"]

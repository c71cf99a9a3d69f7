"""Open files: what is read is of the version that was opened, or an error."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from aioprefetch.errors import ObjectChanged
from aioprefetch.local_files.files import ConfinedRoot, open_file


def test_a_file_that_grows_within_one_tick_of_the_clock_has_changed(tmp_path: Path) -> None:
    """Its time is the same, and its size is not."""
    path = tmp_path / "k"
    path.write_bytes(b"before")
    file = open_file(ConfinedRoot(str(tmp_path), follow_symlinks=False), ("k",))
    time_ns = path.stat().st_mtime_ns
    path.write_bytes(b"another")
    os.utime(path, ns=(time_ns, time_ns))
    with pytest.raises(ObjectChanged, match="modified while it was read"):
        file.read(0, 6)
    file.close()


def test_a_file_that_ends_before_its_size_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that was cut off for a moment, or of a file system that tells a wrong size."""

    def half(descriptor: int, buffers: Sequence[memoryview], position: int) -> int:
        return read(descriptor, [buffers[0][: max(0, 3 - position)]], position)

    read = os.preadv
    (tmp_path / "k").write_bytes(b"before")
    file = open_file(ConfinedRoot(str(tmp_path), follow_symlinks=False), ("k",))
    monkeypatch.setattr(os, "preadv", half)
    with pytest.raises(ObjectChanged):
        file.read(0, 6)
    assert file.read(0, 3) == b"bef"
    file.close()

"""What may be opened on a loop: regular files below a root, on the mount of the root. All else may wait."""

import os
import tempfile
from pathlib import Path

import pytest

from aioprefetch.runtime.page_cache import PageCache, can_open

pytestmark = pytest.mark.skipif(not can_open(), reason="the system has no call that opens only what is cached")


def opens(root: str, path: str) -> bool:
    """Whether a file is opened whose name is cached."""
    os.lstat(os.path.join(root, path))
    descriptor = PageCache(root, follow_symlinks=False).open(path)
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is not None


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("file")
    assert [name for name in ("file", "directory", "fifo", "link") if opens(str(tmp_path), name)] == ["file"]


def test_another_mount_is_not_entered() -> None:
    """It may be of a server that does not respond."""
    outer, inner = "/dev", "/dev/shm"
    if not os.access(inner, os.W_OK) or os.stat(outer).st_dev == os.stat(inner).st_dev:
        pytest.skip("no mount is known that is below another one")
    with tempfile.NamedTemporaryFile(dir=inner) as file:
        file.write(b"x")
        file.flush()
        assert opens(inner, os.path.basename(file.name))
        assert not opens(outer, os.path.relpath(file.name, outer))

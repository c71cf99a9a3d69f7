"""What tests of commands share."""

from collections.abc import Callable
from pathlib import Path

import pytest

from aioprefetch.testing import CountingS3Server
from tests.unit.cli.commands import Bucket


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two files and a folder in it."""
    place = tmp_path / "folder"
    (place / "inner").mkdir(parents=True)
    (place / "a b.txt").write_bytes(b"hello\n")
    (place / "big").write_bytes(bytes(range(256)) * 10_000)
    (place / "inner" / "c").write_bytes(b"")
    return place


@pytest.fixture
def bucket(s3_server: CountingS3Server, random_name: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """An empty bucket, to which variables lead."""
    return Bucket(s3_server, random_name, monkeypatch.setenv)

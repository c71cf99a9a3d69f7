"""Files being written: when a listing removes what a crash has left, and what a short write leaves out."""

import fcntl
import os
import resource
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aioprefetch import Operator
from aioprefetch.errors import Error
from aioprefetch.local_files.files import partial_name
from aioprefetch.local_files.writer import ABANDONED_SECONDS, ABANDONED_SECONDS_ELSEWHERE, machine_token

HERE, ELSEWHERE = partial_name(machine_token() + "0" * 8), partial_name("f" * 16)


@contextmanager
def file_of_size(size_bytes: int) -> Iterator[None]:
    """No file of this process becomes larger; a write beyond is cut short, and the next one fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory of its own."""
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def left_at(path: Path, age_seconds: float) -> None:
    """A file that was written to so long ago."""
    path.write_bytes(b"half")
    os.utime(path, (time.time() - age_seconds,) * 2)


async def removes(root: Path, name: str) -> bool:
    """Whether the listing of a directory removes a file in it."""
    async with Operator.from_uri(f"file://{root}") as op:
        assert await op.list("").collect() == []
    return not (root / name).exists()


@pytest.mark.parametrize(
    ("name", "age_seconds", "is_removed"),
    [
        (HERE, ABANDONED_SECONDS / 2, False),
        (HERE, ABANDONED_SECONDS + 5, True),
        (ELSEWHERE, ABANDONED_SECONDS + 5, False),
        (ELSEWHERE, ABANDONED_SECONDS_ELSEWHERE + 5, True),
    ],
)
async def test_a_file_without_a_writer_is_removed_after_a_while(
    root: Path, name: str, age_seconds: float, is_removed: bool
) -> None:
    """A new one may not have its lock yet, and locks of other machines may not be seen here."""
    left_at(root / name, age_seconds)
    assert await removes(root, name) is is_removed


async def test_the_file_of_a_living_writer_is_never_removed(root: Path) -> None:
    left_at(root / HERE, 10 * ABANDONED_SECONDS_ELSEWHERE)
    with (root / HERE).open("rb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        assert not await removes(root, HERE)
    assert await removes(root, HERE)


async def test_the_file_of_another_user_is_never_removed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left_at(root / HERE, 10 * ABANDONED_SECONDS_ELSEWHERE)
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    assert not await removes(root, HERE)


async def by_pieces(op: Operator, data: bytes) -> None:
    async with op.writer("k") as writer:
        await writer.write(data)


@pytest.mark.parametrize("write", [lambda op, data: op.write("k", data), by_pieces], ids=["write", "writer"])
async def test_a_write_that_the_system_cuts_short_is_not_taken_for_whole(
    root: Path, write: Callable[[Operator, bytes], Awaitable[object]]
) -> None:
    async with Operator.from_uri(f"file://{root}") as op:
        await op.write("k", b"old")
        with file_of_size(1000), pytest.raises(Error):
            await write(op, bytes(1001))
        assert await op.read("k") == b"old"
    assert os.listdir(root) == ["k"]

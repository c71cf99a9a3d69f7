"""What a file counts: a byte given is a byte counted, whichever method gave it."""

import io
from collections.abc import Callable
from typing import Any

import pytest

from aioprefetch.sync import BlockingOperator, SyncFile

DATA = b"".join(b"%04d\n" % number for number in range(40_000))  # More than one piece in which lines are searched.
BLOCK_BYTES = 4 << 10


def into(file: SyncFile, size: int) -> int:
    """``readinto``, as a read of as many bytes."""
    return file.readinto(bytearray(size))


READS: dict[str, Callable[[SyncFile, int], Any]] = {
    "read": lambda file, size: file.read(size),
    "read_at": lambda file, size: file.read_at(0, size),
    "view_at": lambda file, size: file.view_at(0, size),
    "read_buffer": lambda file, size: file.read_buffer(size),
    "readinto": into,
    "readline": lambda file, size: file.readline(size),
    "read_ranges": lambda file, size: file.read_ranges([(0, size)]),
}


@pytest.fixture
def file(blocking: BlockingOperator) -> Any:
    """An open file over DATA, many blocks long."""
    blocking.write("k", DATA)
    with blocking.open("k") as file:
        yield file


@pytest.mark.parametrize("way", READS)
@pytest.mark.parametrize("size", [1, 3])
def test_a_read_counts_what_it_gives(file: SyncFile, blocking: BlockingOperator, way: str, size: int) -> None:
    """Also by lines, which are cut from larger pieces."""
    for time in range(1, 4):
        file.seek(0)
        READS[way](file, size)
        assert file.statistics["stream_read_bytes"] == time * size
        assert blocking.statistics["stream_read_bytes"] == time * size
        assert file.statistics["stream_read_operations"] == time


@pytest.mark.parametrize(
    "read",
    [list, lambda file: file.readlines(), lambda file: file.readlines(len(DATA)), lambda file: file.readall()],
    ids=["iteration", "readlines", "readlines with a hint", "readall"],
)
def test_the_whole_file_counts_once(file: SyncFile, read: Callable[[SyncFile], Any]) -> None:
    found = read(file)
    assert (found if isinstance(found, bytes) else b"".join(found)) == DATA
    assert file.statistics["stream_read_bytes"] == len(DATA)


def test_a_buffer_over_a_file_counts_what_it_took(file: SyncFile) -> None:
    """Not what it gave: it reads ahead by itself."""
    with io.BufferedReader(file, 1000) as buffered:
        buffered.read(1)
        assert file.statistics["stream_read_bytes"] == 1000


def test_an_operator_counts_reads_through_its_open_readers(blocking: BlockingOperator) -> None:
    blocking.write("k", DATA)
    for time in range(1, 4):
        blocking.read_at("k", 10, 1)
        assert blocking.statistics["stream_read_bytes"] == time


def test_seeks_of_a_file_are_counted(file: SyncFile) -> None:
    file.seek(100)
    file.seek(30)
    file.seek(30)
    file.read(10)
    names = ("stream_read_seek_operations", "stream_read_seek_bytes_skipped", "stream_read_bytes_backwards_on_seek")
    assert [file.statistics[name] for name in names] == [2, 100, 70]


def test_the_statistics_of_a_closed_file_stay(blocking: BlockingOperator) -> None:
    blocking.write("k", DATA)
    with blocking.open("k") as file:
        file.read(10)
    assert (file.statistics["stream_read_bytes"], file.statistics["stream_read_closed"]) == (10, 1)
    assert file.statistics["stream_read_active_memory_in_use"] == 0
    blocking.close()
    assert blocking.statistics["stream_leaks"] == 0
    assert blocking.statistics["stream_read_bytes"] == 10

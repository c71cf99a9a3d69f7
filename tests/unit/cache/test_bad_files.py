"""Block files that are not as they were written, or no files at all: never a wrong byte, and they are removed."""

import errno
import os
import random
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from aioprefetch.cache.entry import BadEntry
from aioprefetch.testing.conformance.suite import checks
from tests.stores.failing_disk import (
    FailingCalls,
    StillCalls,
    cache_in,
    data_of,
    failing,
    file_of,
    files_in,
    is_bad,
    key_of,
    piece_of,
    put,
    read,
)

NO_SPACE = [errno.ENOSPC, errno.EDQUOT, errno.EIO]


@checks("reliability:D04")
@pytest.mark.parametrize("operation", ["open", "status", "read"])
def test_a_file_that_cannot_be_read_is_no_wrong_response(tmp_path: Path, operation: str) -> None:
    key = key_of()
    put(cache_in(tmp_path), key)
    calls = FailingCalls()
    cache = cache_in(tmp_path, calls=calls)
    cache.look()
    calls.before = failing(operation, errno.EIO)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        read(cache, key)
    calls.before = None
    cache.drop(key.name)
    assert files_in(tmp_path) == []
    assert key.name not in cache


@checks("reliability:D05")
def test_a_file_truncated_anywhere_is_bad(tmp_path: Path) -> None:
    cache, key = cache_in(tmp_path), key_of()
    put(cache, key)
    file, whole = file_of(tmp_path, key), file_of(tmp_path, key).read_bytes()
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        assert is_bad(cache, key), f"{size} bytes"
    file.write_bytes(whole + b"x")
    assert is_bad(cache, key)
    file.write_bytes(whole)
    assert read(cache, key) == data_of(key)


@checks("reliability:D05")
def test_a_file_truncated_while_it_is_read_is_bad(tmp_path: Path) -> None:
    cache, key = cache_in(tmp_path), key_of()
    put(cache, key)
    found = cache.find(key)
    assert found is not None
    os.truncate(file_of(tmp_path, key), key.file_bytes - 1)
    with pytest.raises(BadEntry, match="ends at byte"):
        piece_of(found, key, 0)


@checks("reliability:D06")
def test_any_bit_flipped_in_the_data_is_found(tmp_path: Path) -> None:
    cache, key = cache_in(tmp_path), key_of(size=4096, block_bytes=4096)
    put(cache, key)
    with open(file_of(tmp_path, key), "r+b", buffering=0) as file:
        for position, byte in enumerate(data_of(key)):
            for bit in range(8):
                os.pwrite(file.fileno(), bytes([byte ^ 1 << bit]), position)
                assert is_bad(cache, key), f"bit {bit} of byte {position}"
            os.pwrite(file.fileno(), bytes([byte]), position)
    assert read(cache, key) == data_of(key)


@checks("reliability:D06", "reliability:K20")
def test_random_mutations_are_found(tmp_path: Path) -> None:
    cache, key = cache_in(tmp_path), key_of(size=4096, block_bytes=4096)
    put(cache, key)
    rng, good = random.Random(6), file_of(tmp_path, key).read_bytes()
    with open(file_of(tmp_path, key), "r+b", buffering=0) as file:
        for _ in range(10_000):
            start = rng.randrange(len(good))
            junk = rng.randbytes(rng.randint(1, 40))[: len(good) - start]
            if junk == good[start : start + len(junk)]:
                continue
            os.pwrite(file.fileno(), junk, start)
            assert is_bad(cache, key), f"{junk!r} at {start}"
            os.pwrite(file.fileno(), good[start : start + len(junk)], start)


@checks("reliability:D08")
def test_swapped_files_and_files_of_other_objects_are_bad(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    keys = [key_of(0), key_of(1), key_of(0, path="other"), key_of(0, etag="other")]
    for key in keys:
        put(cache, key)
    files = [file_of(tmp_path, key).read_bytes() for key in keys]
    assert len(set(map(len, files[:2]))) == 1
    for mine, key in enumerate(keys):
        for theirs, content in enumerate(files):
            file_of(tmp_path, key).write_bytes(content)
            assert is_bad(cache, key) == (mine != theirs)
        file_of(tmp_path, key).write_bytes(files[mine])


@checks("reliability:D09")
def test_a_file_of_zeroes_is_bad(tmp_path: Path) -> None:
    cache, key = cache_in(tmp_path), key_of()
    put(cache, key)
    file_of(tmp_path, key).write_bytes(bytes(key.file_bytes))
    assert is_bad(cache, key)
    good = file_of(tmp_path, key_of(1))
    put(cache, key_of(1))
    good.write_bytes(bytes(100) + good.read_bytes()[100:])
    assert is_bad(cache, key_of(1))


class CountsBytes(StillCalls):
    """Remembers the largest read."""

    largest_read = 0

    def read(self, descriptor: int, parts: Any, position: int) -> int:  # type: ignore[override]
        self.largest_read = max(self.largest_read, *map(len, parts))
        return super().read(descriptor, parts, position)


@checks("reliability:D10")
def test_a_file_that_seems_huge_is_not_read(tmp_path: Path) -> None:
    calls = CountsBytes()
    cache, key = cache_in(tmp_path, calls=calls), key_of()
    put(cache, key)
    os.truncate(file_of(tmp_path, key), 1 << 40)
    assert is_bad(cache, key)
    assert calls.largest_read == 0


def plant_fifo(path: Path) -> None:
    os.mkfifo(path)


def plant_directory(path: Path) -> None:
    path.mkdir()


def plant_device(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("only root makes devices")


@checks("reliability:D14")
def test_a_link_in_place_of_a_block_is_neither_read_nor_written_through(tmp_path: Path) -> None:
    """Not even when it leads to a good block."""
    key, secret = key_of(), tmp_path / "secret"
    put(cache_in(tmp_path / "other"), key)
    secret.write_bytes(file_of(tmp_path / "other", key).read_bytes())
    before = secret.read_bytes()
    calls = FailingCalls()
    cache = cache_in(tmp_path / "cache", calls=calls)
    cache.look()
    file_of(tmp_path / "cache", key).symlink_to(secret)
    assert is_bad(cache, key)
    cache.drop(key.name)
    assert secret.read_bytes() == before

    def plant_while_writing(made: str) -> None:
        if made == "write":
            file_of(tmp_path / "cache", key).symlink_to(secret)

    calls.before = plant_while_writing
    assert put(cache, key)
    assert secret.read_bytes() == before
    assert not file_of(tmp_path / "cache", key).is_symlink()
    assert read(cache, key) == data_of(key)


@checks("reliability:D15")
@pytest.mark.parametrize("plant", [plant_fifo, plant_directory, plant_device])
def test_a_name_that_is_no_file_is_bad_and_removed(tmp_path: Path, plant: object) -> None:
    """Opening it does not wait for a writer."""
    assert callable(plant)
    cache, key = cache_in(tmp_path), key_of()
    cache.look()
    plant(file_of(tmp_path, key))
    assert is_bad(cache, key)
    cache.drop(key.name)
    assert not file_of(tmp_path, key).exists()
    assert put(cache, key)
    assert read(cache, key) == data_of(key)


@checks("reliability:D16")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_block_file_of_another_user_is_not_read(tmp_path: Path) -> None:
    """Its owner may have written anything with the right checksums. It is a miss, and is removed."""
    cache, key = cache_in(tmp_path), key_of()
    put(cache, key)
    os.chown(file_of(tmp_path, key), 12345, 12345)
    with pytest.raises(BadEntry, match="not a regular file of this user"):
        cache.find(key)
    cache.drop(key.name)
    assert not file_of(tmp_path, key).exists()
    assert put(cache, key)
    assert read(cache, key) == data_of(key)


@checks("reliability:D23")
def test_a_block_that_another_process_removed_is_a_miss(tmp_path: Path) -> None:
    cache, key = cache_in(tmp_path), key_of()
    put(cache, key)
    subprocess.run(["rm", file_of(tmp_path, key)], check=True)
    assert key.name in cache
    assert read(cache, key) is None
    assert key.name not in cache
    assert cache.total_bytes == 0

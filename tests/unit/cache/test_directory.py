"""The directory of block files: private, entered through no link, created again when it is gone."""

import errno
import os
import shutil
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aioprefetch.cache.directory import (
    CLAIM,
    GuardedDirectory,
    SystemCalls,
)
from aioprefetch.errors import ConfigInvalid
from aioprefetch.testing.conformance.suite import checks
from tests.probes.descriptors import descriptors_below, needs_proc
from tests.stores.failing_disk import (
    FailingCalls,
    StillCalls,
    cache_in,
    data_of,
    failing,
    file_of,
    files_in,
    key_of,
    piece_of,
    private,
    put,
    read,
)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0, 0o022, 0o277], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """The mask of the process for new files."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@checks("reliability:D18", "reliability:K18")
def test_everything_is_private_under_any_umask(tmp_path: Path, umask: int) -> None:
    """Each directory that is made on the way, and the file."""
    put(cache_in(tmp_path / "a" / "b" / "c"), key_of())
    levels = [tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "c", private(tmp_path / "a" / "b" / "c")]
    assert [mode_of(level) for level in levels] == [0o700] * 4
    assert mode_of(file_of(tmp_path / "a" / "b" / "c", key_of())) == 0o600


@checks("reliability:D18")
def test_a_directory_of_ours_that_others_may_read_is_closed(tmp_path: Path) -> None:
    put(cache_in(tmp_path), key_of())
    private(tmp_path).chmod(0o755)
    assert read(cache_in(tmp_path), key_of()) == data_of(key_of())
    assert mode_of(private(tmp_path)) == 0o700


@checks("reliability:D16", "reliability:K18")
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775])
def test_a_directory_that_others_may_write_gets_a_private_one_inside(tmp_path: Path, mode: int) -> None:
    given = tmp_path / "shared"
    given.mkdir()
    given.chmod(mode)
    put(cache_in(given), key_of())
    assert [one.name for one in given.iterdir()] == [private(given).name]
    assert mode_of(private(given)) == 0o700
    assert private(given).stat().st_uid == os.geteuid()
    assert mode_of(given) == mode


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away and mounts")


@checks("reliability:D16")
@needs_root
def test_a_directory_of_another_user_gets_a_private_one_inside(tmp_path: Path) -> None:
    given = tmp_path / "theirs"
    given.mkdir()
    os.chown(given, 12345, 12345)
    put(cache_in(given), key_of())
    assert mode_of(private(given)) == 0o700
    assert private(given).stat().st_uid == 0


@checks("reliability:D16")
@needs_root
def test_a_private_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    put(cache_in(tmp_path), key_of())
    os.chown(private(tmp_path), 12345, 12345)
    with pytest.raises(ConfigInvalid, match="user 12345, not to user 0"):
        read(cache_in(tmp_path), key_of())


@checks("reliability:D16")
@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_a_private_directory_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    """They may have planted anything in it."""
    put(cache_in(tmp_path), key_of())
    private(tmp_path).chmod(mode)
    with pytest.raises(ConfigInvalid, match=f"disk_cache='{tmp_path}'.*mode {mode:o}"):
        read(cache_in(tmp_path), key_of())


@checks("reliability:D13")
@pytest.mark.parametrize("dangling", [False, True])
def test_a_link_in_place_of_the_directory_is_refused(tmp_path: Path, dangling: bool) -> None:
    target = tmp_path / "target"
    if not dangling:
        target.mkdir()
    (tmp_path / "given").symlink_to(target)
    for path in (tmp_path / "given", tmp_path / "given" / "missing" / "deeper") if dangling else (tmp_path / "given",):
        with pytest.raises(ConfigInvalid, match="symbolic link"):
            put(cache_in(path), key_of())
    assert files_in(target) == []
    assert target.exists() != dangling


@checks("reliability:D13")
def test_a_link_in_place_of_the_private_directory_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    given = tmp_path / "given"
    given.mkdir()
    private(given).symlink_to(target)
    with pytest.raises(ConfigInvalid, match="symbolic link"):
        put(cache_in(given), key_of())
    assert files_in(target) == []


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "given").write_bytes(b"")
    with pytest.raises(ConfigInvalid, match="not a directory"):
        put(cache_in(tmp_path / "given"), key_of())


def test_links_above_the_directory_are_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    put(cache_in(tmp_path / "link" / "cache"), key_of())
    assert files_in(tmp_path / "disk") == [key_of().name]


@checks("reliability:D13")
def test_replacing_the_directory_while_it_is_used_moves_nothing(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    cache = cache_in(tmp_path / "given")
    put(cache, key_of(0))
    private(tmp_path / "given").rename(tmp_path / "moved")
    private(tmp_path / "given").symlink_to(victim)
    put(cache, key_of(1))
    assert read(cache, key_of(0)) == data_of(key_of(0))
    assert files_in(victim) == []
    assert len(files_in(tmp_path / "moved")) == 2


@checks("reliability:D12")
def test_a_directory_that_is_removed_is_made_again(tmp_path: Path) -> None:
    cache = cache_in(tmp_path / "given")
    put(cache, key_of(0))
    shutil.rmtree(tmp_path / "given")
    assert read(cache, key_of(0)) is None
    put(cache, key_of(1))
    assert files_in(tmp_path / "given") == [key_of(1).name]
    assert mode_of(tmp_path / "given") == 0o700
    assert cache.total_bytes == key_of(1).file_bytes


@checks("reliability:D19")
@pytest.mark.parametrize("operation", ["open", "make_directory", "change_mode", "status"])
def test_a_directory_that_cannot_be_used_is_an_os_error(tmp_path: Path, operation: str) -> None:
    for number in (errno.EACCES, errno.EPERM, errno.EROFS):
        with pytest.raises(OSError, match=os.strerror(number)):
            put(cache_in(tmp_path / str(number), calls=FailingCalls(failing(operation, number))), key_of())


@checks("reliability:D19")
@needs_root
def test_a_file_system_that_becomes_read_only(tmp_path: Path) -> None:
    mounted = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", tmp_path], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        cache = cache_in(tmp_path)
        put(cache, key_of(0))
        subprocess.run(["mount", "-o", "remount,ro", tmp_path], check=True)
        assert read(cache_in(tmp_path), key_of(0)) == data_of(key_of(0))
        with pytest.raises(OSError, match=os.strerror(errno.EROFS)):
            put(cache, key_of(1))
    finally:
        cache.close()
        subprocess.run(["umount", "-l", tmp_path], check=True)


@needs_proc
def test_no_descriptor_is_left_open_whatever_fails(tmp_path: Path) -> None:
    put(cache_in(tmp_path), key_of())
    assert descriptors_below(tmp_path) == []
    for path in (tmp_path, tmp_path / "new" / "deep"):
        for operation in (
            "open",
            "make_directory",
            "change_mode",
            "status",
            "lock",
            "read",
            "write",
            "close",
            "rename",
            "names",
        ):
            for put_or_read in (put, read):
                calls = FailingCalls(failing(operation, errno.EIO))
                try:
                    put_or_read(cache_in(path, calls=calls), key_of(7))
                except OSError:
                    continue
        shutil.rmtree(tmp_path / "new", ignore_errors=True)
    assert descriptors_below(tmp_path) == []


def test_closing_leaves_calls_under_way_alone(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    put(cache, key_of())
    found = cache.find(key_of())
    assert found is not None
    cache.close()
    assert piece_of(found, key_of(), 0) == data_of(key_of())
    for call in (put, read):
        with pytest.raises(OSError, match="closed"):
            call(cache, key_of())


@checks("reliability:D21", "reliability:K29")
def test_claims_of_killed_writers_are_removed_at_start(tmp_path: Path) -> None:
    """Those without a holder; a part of an entry that is left in one is written over by the next."""
    writer = cache_in(tmp_path)
    writer.look()
    writer.claim([key_of(1).name])
    left = [key_of(0).name + CLAIM, key_of(2).name + CLAIM]
    for name in (*left, "notes"):
        (private(tmp_path) / name).write_bytes(b"x" * 1000)
    assert put(writer, key_of(2))
    assert read(writer, key_of(2)) == data_of(key_of(2))
    cache_in(tmp_path).look()
    assert files_in(tmp_path) == sorted([key_of(1).name + CLAIM, key_of(2).name, "notes"])


class Between(StillCalls):
    """Something happens once, between the opening of a claim and its lock."""

    def __init__(self, happens: Callable[[], None]) -> None:
        self.happens: Callable[[], None] | None = happens

    def lock(self, descriptor: int, operation: int) -> None:  # type: ignore[override]
        happens, self.happens = self.happens, None
        if happens is not None:
            happens()
        super().lock(descriptor, operation)


def test_a_claim_is_of_the_file_that_has_the_name(tmp_path: Path) -> None:
    """Another process has finished the entry in the file that was opened: it is not written to."""
    other, key = cache_in(tmp_path), key_of()
    other.claim([key.name])

    def finish() -> None:
        assert put(other, key)
        file_of(tmp_path, key).unlink()

    ours = cache_in(tmp_path, calls=Between(finish))
    assert ours.claim([key.name]) == {key.name: False}
    assert cache_in(tmp_path).claim([key.name]) == {}
    assert put(ours, key)
    assert read(cache_in(tmp_path), key) == data_of(key)


def test_an_entry_that_is_made_before_the_claim_is_seen(tmp_path: Path) -> None:
    other, key = cache_in(tmp_path), key_of()

    def finish() -> None:
        put(other, key)

    ours = cache_in(tmp_path, calls=Between(finish))
    assert ours.claim([key.name]) == {key.name: True}
    assert key.name in ours
    assert files_in(tmp_path) == [key.name]


def test_a_forked_child_holds_no_claim_of_its_parent(tmp_path: Path) -> None:
    """While it lives, others can claim what the parent has given up by its end."""
    reading, writing = os.pipe()
    parent = os.fork()
    if parent == 0:
        cache = cache_in(tmp_path)
        cache.claim([key_of().name])
        child = os.fork()
        if child == 0:
            signal.pause()
        os.write(writing, str(child).encode())
        os._exit(0)
    os.waitpid(parent, 0)
    child = int(os.read(reading, 20))
    try:
        assert cache_in(tmp_path).claim([key_of().name]) == {key_of().name: False}
    finally:
        os.kill(child, signal.SIGKILL)
        os.close(reading)
        os.close(writing)


def test_space_is_that_of_the_file_system(tmp_path: Path) -> None:
    free, total = GuardedDirectory(str(tmp_path), SystemCalls()).space()
    assert 0 < free <= total
    assert total == shutil.disk_usage(tmp_path).total

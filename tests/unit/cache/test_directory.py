"""The directory of block files: private, entered through no link, created again when it is gone."""

import errno
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from aioprefetch.cache.directory import (
    ABANDONED_SECONDS,
    GuardedDirectory,
    SystemCalls,
    is_abandoned,
    is_temporary,
    temporary_name,
)
from aioprefetch.errors import ConfigInvalid
from aioprefetch.testing.conformance.suite import checks
from tests.benches.descriptors import descriptors_below, needs_proc
from tests.benches.failing_disk import (
    FailingCalls,
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


@checks("reliability:D18")
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


@checks("reliability:D16")
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


def abandoned(path: Path, name: str, *, seconds: float = 0.0, alive: bool = True) -> bool:
    """Whether a temporary file of that name and age is removed."""
    (path / name).write_bytes(b"")
    status = (path / name).stat()
    return is_abandoned(name, status, now=status.st_mtime + seconds, is_alive=lambda process: alive)


def test_temporary_files_are_recognised_by_name_owner_and_writer(tmp_path: Path) -> None:
    ours = temporary_name()
    of_this_pid = f".tmp-{os.getpid()}-00000000-{'0' * 16}"
    of_another = f".tmp-4194304-00000000-{'0' * 16}"
    assert all(map(is_temporary, (ours, of_this_pid, of_another)))
    assert not any(map(is_temporary, (".tmp-1", ours + "x", f".tmp-0-00000000-{'0' * 16}", key_of().name)))
    assert not abandoned(tmp_path, ours)
    assert abandoned(tmp_path, of_this_pid)  # Of a process that had the same number before.
    assert not abandoned(tmp_path, of_another)
    assert abandoned(tmp_path, of_another, alive=False)
    assert abandoned(tmp_path, of_another, seconds=ABANDONED_SECONDS + 1)
    assert abandoned(tmp_path, ours, seconds=-ABANDONED_SECONDS - 1)
    assert not abandoned(tmp_path, "other", alive=False)
    (tmp_path / "link").symlink_to("/nowhere")
    assert not is_abandoned(of_another, (tmp_path / "link").lstat(), now=0.0, is_alive=lambda process: False)


@checks("reliability:D21")
def test_temporary_files_of_killed_writers_are_removed_at_start(tmp_path: Path) -> None:
    cache_in(tmp_path).look()
    left = f".tmp-{os.getpid()}-00000000-{'0' * 16}"
    own = temporary_name()
    for name in (left, own, ".tmp-not-ours", "notes"):
        (private(tmp_path) / name).write_bytes(b"x")
    cache_in(tmp_path).look()
    assert files_in(tmp_path) == sorted([own, ".tmp-not-ours", "notes"])


def test_living_processes_are_recognised() -> None:
    calls = SystemCalls()
    assert calls.is_alive(os.getpid())
    assert calls.is_alive(1)
    assert not calls.is_alive(1 << 40)
    child = subprocess.Popen(["true"])
    child.wait()
    assert not calls.is_alive(child.pid)


def test_space_is_that_of_the_file_system(tmp_path: Path) -> None:
    free, total = GuardedDirectory(str(tmp_path), SystemCalls()).space()
    assert 0 < free <= total
    assert total == shutil.disk_usage(tmp_path).total

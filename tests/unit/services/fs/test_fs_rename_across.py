"""Renames from one file system to another: a copy, then the removal of the source, broken off at every point."""

import asyncio
import errno
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from aioprefetch import errors
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.fs import Fs
from aioprefetch.services.fs.accessor import FsAccessor
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import Metadata, RenameRequest, StatRequest
from tests.probes.descriptors import descriptors_below
from tests.profile import few_rows

DATA = bytes(range(250)) * 10
OLD = b"old"
LONG_AGO = 1_111_111_111_123_456_789
OTHER = Path("/dev/shm")  # Another file system, where there is one.
NEXT_TO = 222


def pretend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any two directories are of two file systems."""

    def refusing(call: Callable[..., None]) -> Callable[..., None]:
        def refused(one: Any, other: Any, *, src_dir_fd: int, dst_dir_fd: int, **more: Any) -> None:
            if not os.path.samestat(os.fstat(src_dir_fd), os.fstat(dst_dir_fd)):
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
            call(one, other, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd, **more)

        return refused

    monkeypatch.setattr(os, "rename", refusing(os.rename))
    monkeypatch.setattr(os, "link", refusing(os.link))


class Ends:
    """Two directories on two file systems, below one root."""

    def __init__(self, source: Path, target: Path, runtime: Runtime) -> None:
        self.source, self.target = source, target
        self.runtime = runtime
        self.accessor = self.made(follow_symlinks=False)

    def made(self, *, follow_symlinks: bool) -> FsAccessor:
        return FsAccessor(Fs("/", follow_symlinks=follow_symlinks), self.runtime, piece_bytes=1000)

    def put(self, data: bytes = DATA, *, mode: int = 0o640) -> None:
        """The source, as it is in all tests."""
        (self.source / "a").write_bytes(data)
        (self.source / "a").chmod(mode)
        os.utime(self.source / "a", ns=(LONG_AGO, LONG_AGO + NEXT_TO))

    async def rename(
        self, name: str = "a", target: str = "b", accessor: FsAccessor | None = None, **fields: Any
    ) -> Metadata:
        request = RenameRequest(path=str(self.source / name)[1:], target=str(self.target / target)[1:], **fields)
        return await (accessor or self.accessor).rename(request)

    def left(self) -> dict[str, bytes]:
        """What both directories hold, with hidden names."""
        files = (path for end in (self.source, self.target) for path in end.rglob("*") if path.is_file())
        return {f"{path.parent.name}/{path.name}": path.read_bytes() for path in files}

    def clear(self) -> None:
        for path in (*self.source.iterdir(), *self.target.iterdir()):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


@pytest.fixture(params=["real", "pretended"])
def ends(
    request: pytest.FixtureRequest, tmp_path: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Ends]:
    """Two directories, of two file systems where this machine has them, and of one that is taken for two."""
    (tmp_path / "source").mkdir()
    if request.param == "pretended":
        (tmp_path / "target").mkdir()
        pretend(monkeypatch)
        yield Ends(tmp_path / "source", tmp_path / "target", runtime)
        return
    if not OTHER.is_dir() or OTHER.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system")
    with tempfile.TemporaryDirectory(dir=OTHER) as folder:
        (Path(folder) / "target").mkdir()
        yield Ends(tmp_path / "source", Path(folder) / "target", runtime)


@pytest.mark.parametrize(
    ("size", "mode", "if_not_exists"),
    few_rows(product([0, 1, 1000, 2500], [0o600, 0o755, 0o444, 0o666], [False, True]), 5),
)
async def test_bytes_mode_and_times_come_along(ends: Ends, size: int, mode: int, if_not_exists: bool) -> None:
    ends.put(DATA[:size], mode=mode)
    if not if_not_exists:
        (ends.target / "b").write_bytes(OLD)
        (ends.target / "b").chmod(0o604)
    metadata = await ends.rename(if_not_exists=if_not_exists)
    assert ends.left() == {"target/b": DATA[:size]}
    status = (ends.target / "b").stat()
    assert (status.st_mode & 0o7777, status.st_mtime_ns) == (mode, LONG_AGO + NEXT_TO)
    assert status.st_atime_ns >= LONG_AGO
    assert metadata == await ends.accessor.stat(StatRequest(path=str(ends.target / "b")[1:]))
    assert descriptors_below(ends.source) == descriptors_below(ends.target) == []


async def test_rights_of_the_owner_do_not_come_along(ends: Ends) -> None:
    """Nothing becomes setuid for the user that runs this."""
    ends.put(mode=0o4755)
    await ends.rename(target="new/deep/b")
    assert (ends.target / "new" / "deep" / "b").stat().st_mode & 0o7777 == 0o755


@checks("reliability:W38")
async def test_all_is_on_the_device_before_the_source_goes(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ``fsync=`` says."""
    ends.put()
    calls: list[str] = []
    fsync, unlink, replace = os.fsync, os.unlink, os.replace

    def noted(name: str, call: Callable[..., None]) -> Callable[..., None]:
        def call_it(*arguments: Any, **more: Any) -> None:
            call(*arguments, **more)
            what = os.readlink(f"/proc/self/fd/{arguments[0]}") if name == "fsync" else str(arguments[0])
            calls.append(f"{name} {'hidden' if '.aioprefetch' in what else Path(what).name}")

        return call_it

    monkeypatch.setattr(os, "fsync", noted("fsync", fsync))
    monkeypatch.setattr(os, "unlink", noted("unlink", unlink))
    monkeypatch.setattr(os, "replace", noted("replace", replace))
    await ends.rename()
    assert calls == ["fsync hidden", "replace hidden", "fsync target", "unlink a", "fsync source"]


@checks("reliability:W29")
@pytest.mark.parametrize("follow_symlinks", [False, True])
@pytest.mark.parametrize("if_not_exists", [False, True])
@pytest.mark.parametrize("text", ["nowhere", "../file", "/etc/hostname"])
async def test_a_link_is_made_again(ends: Ends, follow_symlinks: bool, if_not_exists: bool, text: str) -> None:
    accessor = ends.made(follow_symlinks=follow_symlinks)
    (ends.source / "a").symlink_to(text)
    if not if_not_exists:
        (ends.target / "b").write_bytes(OLD)
    await ends.rename(accessor=accessor, if_not_exists=if_not_exists)
    assert os.listdir(ends.source) == []
    assert os.listdir(ends.target) == ["b"]
    assert os.readlink(ends.target / "b") == text


async def test_a_link_onto_the_file_it_leads_to(ends: Ends) -> None:
    (ends.target / "b").write_bytes(DATA)
    (ends.source / "a").symlink_to(ends.target / "b")
    with pytest.raises(errors.IsSameFile):
        await ends.rename()
    assert (ends.target / "b").read_bytes() == DATA


async def test_a_link_as_the_target(ends: Ends) -> None:
    ends.put()
    (ends.target / "kept").write_bytes(OLD)
    (ends.target / "b").symlink_to("kept")
    with pytest.raises(errors.InvalidPath, match="symbolic link"):
        await ends.rename()
    with pytest.raises(errors.AlreadyExists):
        await ends.rename(accessor=ends.made(follow_symlinks=True), if_not_exists=True)
    await ends.rename(accessor=ends.made(follow_symlinks=True))
    assert not (ends.target / "b").is_symlink()
    assert ends.left() == {"target/b": DATA, "target/kept": OLD}


async def test_conditions(ends: Ends) -> None:
    ends.put()
    (ends.target / "b").write_bytes(OLD)
    with pytest.raises(errors.AlreadyExists) as caught:
        await ends.rename(if_not_exists=True)
    assert (caught.value.operation, caught.value.path) == ("rename", str(ends.target / "b")[1:])
    with pytest.raises(errors.ConditionNotMatch):
        await ends.rename(if_match="another")
    assert ends.left() == {"source/a": DATA, "target/b": OLD}
    etag = (await ends.accessor.stat(StatRequest(path=str(ends.source / "a")[1:]))).etag
    await ends.rename(if_match=etag)
    assert ends.left() == {"target/b": DATA}


# --- changed meanwhile ------------------------------------------------------------------------------------------------


def overwrite(path: Path) -> None:
    path.write_bytes(b"newer, of another size")


def rewrite(path: Path) -> None:
    path.write_bytes(DATA[::-1])


def replace(path: Path) -> None:
    shutil.copy2(path, path.with_name("next"))
    os.utime(path.with_name("next"), ns=(LONG_AGO, LONG_AGO + NEXT_TO))
    path.with_name("next").replace(path)


def take_for_a_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("elsewhere")


@checks("reliability:W12")
@pytest.mark.parametrize("change", [overwrite, rewrite, replace, take_for_a_link])
@pytest.mark.parametrize("moment", ["begin", "end"])
async def test_a_source_that_is_changed_stays(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None], moment: str
) -> None:
    """Before its first byte is read or after the last: what was read is at the target, and the newer one stays."""
    ends.put()
    if moment == "begin" and change is take_for_a_link:
        return  # Then it is refused as a link.
    called = "utime" if moment == "end" else "fchmod"
    original = getattr(os, called)
    done: list[bool] = []

    def changing(*arguments: Any, **more: Any) -> None:
        if not done:
            done.append(True)
            monkeypatch.setattr(os, called, original)
            change(ends.source / "a")
        original(*arguments, **more)

    monkeypatch.setattr(os, called, changing)
    with pytest.raises(errors.ObjectChanged) as caught:
        await ends.rename()
    assert caught.value.operation == "rename"
    assert (ends.source / "a").is_symlink() or (ends.source / "a").read_bytes()
    if moment == "end":
        assert ends.left()["target/b"] == DATA


async def test_a_source_that_is_deleted_meanwhile(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target has its bytes."""
    ends.put()
    utime = os.utime

    def deleting(*arguments: Any, **more: Any) -> None:
        (ends.source / "a").unlink(missing_ok=True)
        utime(*arguments, **more)

    monkeypatch.setattr(os, "utime", deleting)
    with pytest.raises(errors.NotFound) as caught:
        await ends.rename()
    assert (caught.value.operation, caught.value.path) == ("rename", str(ends.source / "a")[1:])
    assert ends.left() == {"target/b": DATA}


# --- run again --------------------------------------------------------------------------------------------------------


def keep_both(ends: Ends, data: bytes = DATA) -> None:
    """As a run leaves it that was killed before it removed the source."""
    ends.put(data)
    shutil.copy(ends.source / "a", ends.target / "b")
    os.utime(ends.target / "b", ns=(LONG_AGO, LONG_AGO + NEXT_TO))


@checks("reliability:W37")
async def test_a_copy_of_its_own_is_recognised(ends: Ends) -> None:
    keep_both(ends)
    before = (ends.target / "b").stat().st_ino
    metadata = await ends.rename(if_not_exists=True)
    assert ends.left() == {"target/b": DATA}
    assert (ends.target / "b").stat().st_ino == before
    assert metadata == await ends.accessor.stat(StatRequest(path=str(ends.target / "b")[1:]))


@checks("reliability:W37")
@pytest.mark.parametrize("difference", ["bytes", "last byte", "size", "time", "mode"])
async def test_what_differs_is_no_copy_of_its_own(ends: Ends, difference: str) -> None:
    keep_both(ends)
    target = ends.target / "b"
    if difference in ("bytes", "last byte", "size"):
        changed = {"bytes": b"x" + DATA[1:], "last byte": DATA[:-1] + b"x", "size": DATA + b"x"}[difference]
        target.write_bytes(changed)
        os.utime(target, ns=(LONG_AGO, LONG_AGO + NEXT_TO))
    elif difference == "mode":
        target.chmod(0o600)
    else:
        os.utime(target, ns=(LONG_AGO, LONG_AGO))
    before = ends.left()
    with pytest.raises(errors.AlreadyExists):
        await ends.rename(if_not_exists=True)
    assert ends.left() == before


async def test_a_link_of_its_own_is_recognised(ends: Ends) -> None:
    (ends.source / "a").symlink_to("one")
    (ends.target / "b").symlink_to("one")
    (ends.target / "c").symlink_to("two")
    with pytest.raises(errors.InvalidPath):
        await ends.rename(target="c", if_not_exists=True)
    await ends.rename(if_not_exists=True)
    assert os.listdir(ends.source) == []
    assert os.readlink(ends.target / "b") == "one"


# --- broken off -------------------------------------------------------------------------------------------------------

CALLS = (
    "open",
    "link",
    "rename",
    "replace",
    "unlink",
    "symlink",
    "readlink",
    "mkdir",
    "fsync",
    "utime",
    "fchmod",
    "stat",
)


class Killed(BaseException):
    """The end of a process: nothing is cleaned up after it."""


class Breaker:
    """Breaks the ``number``-th system call: it fails once, or it and all later ones are those of a dead process.

    With ``after`` the call is done before that.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.number, self.calls, self.is_dead = -1, 0, False
        self.broken = ""
        self.kills = self.after = False
        for name in CALLS:
            monkeypatch.setattr(os, name, self._breaking(name, getattr(os, name)))

    def arm(self, number: int, *, kills: bool, after: bool) -> None:
        self.number, self.calls, self.is_dead = number, 0, False
        self.kills, self.after = kills, after

    def disarm(self) -> None:
        self.number, self.is_dead = -1, False

    @property
    def has_broken(self) -> bool:
        return self.calls > self.number

    def _breaking(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def broken(*arguments: Any, **more: Any) -> Any:
            if self.number < 0:
                return call(*arguments, **more)
            if self.is_dead:
                raise Killed
            number, self.calls = self.calls, self.calls + 1
            if number != self.number:
                return call(*arguments, **more)
            self.broken = name
            if self.after:
                result = call(*arguments, **more)
                if type(result) is int:
                    os.close(result)
            self.is_dead = self.kills
            raise Killed if self.kills else OSError(errno.EIO, os.strerror(errno.EIO))

        return broken


def put_file(ends: Ends) -> None:
    ends.put()


def put_link(ends: Ends) -> None:
    (ends.source / "a").symlink_to("text")


def is_there(path: Path) -> bool:
    """A link too, wherever it leads."""
    return os.path.lexists(path)


def is_whole(path: Path) -> bool:
    return os.readlink(path) == "text" if path.is_symlink() else path.exists() and path.read_bytes() == DATA


@checks("reliability:W36")
@pytest.mark.parametrize(
    ("put", "kills", "after", "if_not_exists"),
    few_rows(product([put_file, put_link], *[[False, True]] * 3), 3),  # With each pair of values.
)
async def test_broken_off_at_every_system_call(
    ends: Ends,
    monkeypatch: pytest.MonkeyPatch,
    put: Callable[[Ends], None],
    kills: bool,
    after: bool,
    if_not_exists: bool,
) -> None:
    """The object is whole under one of both names, or under both; the target is old or new; a further run ends it."""
    breaker = Breaker(monkeypatch)
    number = 0
    while True:
        ends.clear()
        put(ends)
        if not if_not_exists:
            (ends.target / "b").write_bytes(OLD)
        breaker.arm(number, kills=kills, after=after)
        failed = False
        try:
            await ends.rename(if_not_exists=if_not_exists)
        except (Killed, OSError, errors.Error):
            failed = True
        over = not breaker.has_broken
        breaker.disarm()
        source, target = ends.source / "a", ends.target / "b"
        assert is_whole(source) or is_whole(target), number
        assert is_there(target) or if_not_exists
        assert not is_there(target) or is_whole(target) or target.read_bytes() == OLD, number
        if not failed:
            assert not is_there(source)
        elif is_there(source):
            await ends.rename(if_not_exists=if_not_exists)
        assert not is_there(source), number
        assert is_whole(target), number
        if not (kills or after):
            assert os.listdir(ends.target) == ["b"] or breaker.broken == "unlink", number
            assert descriptors_below(ends.source) == descriptors_below(ends.target) == []
        if over:
            break
        number += 1
    assert number >= 8


async def cancelled_everywhere(ends: Ends, run: Callable[[], Awaitable[object]], turns_max: int) -> int:
    """Cancel after any number of turns; how many runs were ended before."""
    ended = 0
    for turns in range(turns_max):
        ends.clear()
        ends.put()
        task = asyncio.ensure_future(run())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        ended += not task.cancelled()
        left = ends.left()
        assert left, turns
        assert set(left) <= {"source/a", "target/b"}, turns
        assert set(left.values()) == {DATA}, turns
        assert descriptors_below(ends.source) == descriptors_below(ends.target) == []
        if left.keys() == {"source/a", "target/b"}:
            await run()
            assert ends.left() == {"target/b": DATA}
    return ended


@checks("reliability:W39")
@pytest.mark.parametrize("if_not_exists", [False, True])
async def test_cancelled_after_any_number_of_turns(ends: Ends, if_not_exists: bool) -> None:
    """The object is whole under one of both names or both, and nothing hidden is left."""
    assert await cancelled_everywhere(ends, lambda: ends.rename(if_not_exists=if_not_exists), 60) < 60


async def test_a_comparison_ends_when_its_caller_is_cancelled(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads no more than a piece, and the source stays."""
    data = bytes(9 << 20)
    keep_both(ends, data)
    loop = asyncio.get_running_loop()
    running = asyncio.ensure_future(ends.rename(if_not_exists=True))
    preadv = os.preadv
    read: list[int] = []

    def reading(*arguments: Any) -> int:
        count = preadv(*arguments)
        read.append(count)
        asyncio.run_coroutine_threadsafe(cancelled(), loop).result()
        return count

    async def cancelled() -> None:
        running.cancel()
        await asyncio.sleep(0)

    monkeypatch.setattr(os, "preadv", reading)
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len(read) == 2
    assert ends.left() == {"source/a": data, "target/b": data}

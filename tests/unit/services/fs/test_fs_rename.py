"""Renames within one file system: identity of files, links, conditions, and what is left of a run that was killed."""

import asyncio
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aioprefetch import errors
from aioprefetch.accessor.protocols import Accessor
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.fs import Fs
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import Metadata, RenameRequest, StatRequest

FOLLOWED = pytest.mark.parametrize("follow_symlinks", [False, True])
LONG_AGO = 1_111_111_111_123_456_789


@pytest.fixture
def following(root: Path, runtime: Runtime) -> Accessor:
    """The live service that follows links."""
    return Fs(str(root), follow_symlinks=True).build(runtime)


def made(root: Path, runtime: Runtime, *, follow_symlinks: bool) -> Accessor:
    return Fs(str(root), follow_symlinks=follow_symlinks).build(runtime)


async def rename(accessor: Accessor, path: str, target: str, **fields: Any) -> Metadata:
    return await accessor.rename(RenameRequest(path=path, target=target, **fields))


def names(root: Path) -> list[str]:
    """All below the root, directories too."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


async def test_a_file_keeps_all_but_its_name(
    accessor: Accessor, root: Path, runtime: Runtime, descriptors: Callable[[], list[str]]
) -> None:
    (root / "d").mkdir()
    (root / "d" / "key.pem").write_bytes(b"private")
    (root / "d" / "key.pem").chmod(0o600)
    os.utime(root / "d" / "key.pem", ns=(LONG_AGO, LONG_AGO))
    before = (root / "d" / "key.pem").stat()
    etag = (await accessor.stat(StatRequest(path="d/key.pem"))).etag
    metadata = await rename(accessor, "d/key.pem", "x/y/new.pem")
    after = (root / "x" / "y" / "new.pem").stat()
    assert (after.st_ino, after.st_mode, after.st_mtime_ns) == (before.st_ino, before.st_mode, LONG_AGO)
    assert metadata == await accessor.stat(StatRequest(path="x/y/new.pem"))
    assert (metadata.path, metadata.etag) == ("x/y/new.pem", etag)
    assert names(root) == ["d", "x", "x/y", "x/y/new.pem"]  # The directory that is empty now stays.
    assert descriptors() == []


async def test_a_target_is_replaced(accessor: Accessor, root: Path) -> None:
    (root / "a").write_bytes(b"new")
    (root / "b").write_bytes(b"old")
    await rename(accessor, "a", "//b")
    assert names(root) == ["b"]
    assert (root / "b").read_bytes() == b"new"


@FOLLOWED
async def test_what_cannot_be_renamed(root: Path, runtime: Runtime, follow_symlinks: bool) -> None:
    """The error has the path that it is about, and everything stays as it was."""
    accessor = made(root, runtime, follow_symlinks=follow_symlinks)
    (root / "a").write_bytes(b"a")
    (root / "d").mkdir()
    (root / "d" / "in").write_bytes(b"in")
    os.mkfifo(root / "fifo")
    before = names(root)
    for source, target, kind, path in (
        ("missing", "new/x", errors.NotFound, "missing"),
        ("no/such", "new/x", errors.NotFound, "no/such"),
        ("a/below", "new/x", errors.NotFound, "a/below"),
        ("d", "new/x", errors.IsADirectory, "d"),
        ("d/", "new/x", errors.IsADirectory, "d/"),
        ("", "new/x", errors.IsADirectory, ""),
        ("a", "d", errors.IsADirectory, "d"),
        ("a", "d/", errors.IsADirectory, "d/"),
        ("a", "", errors.IsADirectory, ""),
        ("a", "a/below", errors.NotADirectory, "a/below"),
        ("a", "d/in/below", errors.NotADirectory, "d/in/below"),
        ("fifo", "new/x", errors.InvalidPath, "fifo"),
        ("a", "fifo", errors.InvalidPath, "fifo"),
        ("a", "../out", errors.InvalidPath, "../out"),
        ("../out", "a", errors.InvalidPath, "../out"),
        ("a", ".aioprefetch-0123456789abcdef.tmp", errors.InvalidPath, ".aioprefetch-0123456789abcdef.tmp"),
        ("a", "n" * 300, errors.InvalidPath, "n" * 300),
    ):
        for if_not_exists in (False, True):
            with pytest.raises(kind) as caught:
                await rename(accessor, source, target, if_not_exists=if_not_exists)
            assert (caught.value.operation, caught.value.path) == ("rename", path)
            assert type(caught.value) is kind
    assert names(root) == before
    assert (root / "a").read_bytes() == b"a"


async def test_a_missing_root_has_no_file(tmp_path: Path, runtime: Runtime) -> None:
    accessor = Fs(str(tmp_path / "none")).build(runtime)
    with pytest.raises(errors.NotFound):
        await rename(accessor, "a", "b")
    assert not (tmp_path / "none").exists()


async def test_links_on_the_way(root: Path, accessor: Accessor, following: Accessor) -> None:
    """They are refused, or followed below the root."""
    (root / "real").mkdir()
    (root / "real" / "a").write_bytes(b"a")
    (root / "way").symlink_to("real")
    (root / "out").symlink_to(root.parent / "outside")
    for source, target in (("way/a", "b"), ("real/a", "way/b"), ("out/secret", "b"), ("real/a", "out/b")):
        with pytest.raises(errors.InvalidPath):
            await rename(accessor, source, target)
    for source, target in (("out/secret", "b"), ("real/a", "out/b")):
        with pytest.raises(errors.InvalidPath):
            await rename(following, source, target)
    await rename(following, "way/a", "b")
    await rename(following, "b", "way/c")
    assert names(root) == ["out", "real", "real/c", "way"]
    assert os.listdir(root.parent / "outside") == ["secret"]


# --- one file by two names --------------------------------------------------------------------------------------------


@checks("reliability:W19")
async def test_a_file_onto_itself(root: Path, accessor: Accessor, following: Accessor) -> None:
    """By every spelling of its one name; it stays."""
    (root / "mnt").mkdir()
    (root / "mnt" / "x").write_bytes(b"DATA")
    (root / "data").symlink_to("mnt")
    for live, source, target in (
        (accessor, "mnt/x", "mnt/x"),
        (accessor, "mnt/x", "/mnt//x"),
        (following, "mnt/x", "data/x"),
        (following, "data/x", "mnt/x"),
        (following, "data/x", "data/x"),
    ):
        for if_not_exists in (False, True):
            with pytest.raises(errors.IsSameFile) as caught:
                await rename(live, source, target, if_not_exists=if_not_exists)
            assert caught.value.operation == "rename"
    assert (root / "mnt" / "x").read_bytes() == b"DATA"


@checks("reliability:W19")
@pytest.mark.parametrize("target", ["b", "d/b", "A"])
@pytest.mark.parametrize("if_not_exists", [False, True])
async def test_hard_links(accessor: Accessor, root: Path, target: str, if_not_exists: bool) -> None:
    """The name of the source goes; a run that was killed between ``link`` and ``unlink`` is ended so too."""
    (root / "d").mkdir()
    (root / "a").write_bytes(b"DATA")
    os.link(root / "a", root / target)
    metadata = await rename(accessor, "a", target, if_not_exists=if_not_exists)
    assert metadata == await accessor.stat(StatRequest(path=target))
    assert [name for name in names(root) if name != "d"] == [target]
    assert (root / target).read_bytes() == b"DATA"


class FoldingDirectory:
    """Makes the names of one directory alike for the system calls of a rename, whatever the case of their letters."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self._folder = folder.stat()
        self._stat, self._rename, self._unlink = os.stat, os.rename, os.unlink
        monkeypatch.setattr(os, "stat", self.stat)
        monkeypatch.setattr(os, "rename", self.rename)
        monkeypatch.setattr(os, "unlink", self.unlink)

    def _entry(self, name: Any, directory: int | None) -> Any:
        if directory is None or not os.path.samestat(os.fstat(directory), self._folder):
            return name
        entries = os.listdir(f"/proc/self/fd/{directory}")
        return next((entry for entry in entries if entry.casefold() == name.casefold()), name)

    def stat(self, path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> os.stat_result:
        return self._stat(self._entry(path, dir_fd), dir_fd=dir_fd, follow_symlinks=follow_symlinks)

    def rename(self, one: Any, other: Any, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        self._rename(self._entry(one, src_dir_fd), other, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._unlink(self._entry(path, dir_fd), dir_fd=dir_fd)


@checks("reliability:W19")
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="lists directories by the descriptors in /proc")
@pytest.mark.parametrize("if_not_exists", [False, True])
async def test_another_case_of_a_name(
    accessor: Accessor, root: Path, monkeypatch: pytest.MonkeyPatch, if_not_exists: bool
) -> None:
    """Where ``a`` is found as ``A`` these are no two hard links: the file gets the new spelling."""
    (root / "A").write_bytes(b"DATA")
    os.link(root / "A", root / "other")  # The file has two links all the same.
    FoldingDirectory(monkeypatch, root)
    await rename(accessor, "A", "a", if_not_exists=if_not_exists)
    monkeypatch.undo()
    assert names(root) == ["a", "other"]
    assert (root / "a").read_bytes() == b"DATA"


# --- links ------------------------------------------------------------------------------------------------------------


@checks("reliability:W29")
@FOLLOWED
@pytest.mark.parametrize("if_not_exists", [False, True])
@pytest.mark.parametrize("text", ["file", "nowhere", "d", "/etc/hostname", "../outside/secret"])
async def test_a_link_moves_as_a_link(
    root: Path, runtime: Runtime, follow_symlinks: bool, if_not_exists: bool, text: str
) -> None:
    accessor = made(root, runtime, follow_symlinks=follow_symlinks)
    (root / "file").write_bytes(b"DATA")
    (root / "d").mkdir()
    (root / "link").symlink_to(text)
    assert await rename(accessor, "link", "x/moved", if_not_exists=if_not_exists) == Metadata(path="x/moved")
    assert names(root) == ["d", "file", "x", "x/moved"]
    assert os.readlink(root / "x" / "moved") == text
    assert (root / "file").read_bytes() == b"DATA"


@checks("reliability:W29")
@FOLLOWED
@pytest.mark.parametrize("if_not_exists", [False, True])
@pytest.mark.parametrize(
    ("source", "target"),
    [("link", "d/file"), ("second", "d/file"), ("second", "link"), ("by way", "d/file"), ("absolute", "d/file")],
)
async def test_a_link_onto_what_it_leads_to(
    root: Path, runtime: Runtime, follow_symlinks: bool, if_not_exists: bool, source: str, target: str
) -> None:
    """It would be the only copy that is lost, and the link would lead to itself."""
    accessor = made(root, runtime, follow_symlinks=follow_symlinks)
    (root / "d").mkdir()
    (root / "d" / "file").write_bytes(b"DATA")
    (root / "way").symlink_to("d")
    (root / "link").symlink_to("d/file")
    (root / "second").symlink_to("link")
    (root / "by way").symlink_to("way/../link")
    (root / "absolute").symlink_to(root / "way" / "file")
    before = names(root)
    with pytest.raises(errors.IsSameFile):
        await rename(accessor, source, target, if_not_exists=if_not_exists)
    assert names(root) == before
    assert (root / "d" / "file").read_bytes() == b"DATA"
    assert (root / "link").is_symlink()


@checks("reliability:W28")
async def test_a_link_as_the_target(root: Path, accessor: Accessor, following: Accessor) -> None:
    """It is refused, as writes refuse it, or replaced itself where links are followed; what it leads to stays."""
    (root / "file").write_bytes(b"kept")
    (root / "a").write_bytes(b"DATA")
    (root / "link").symlink_to("file")
    with pytest.raises(errors.InvalidPath, match="symbolic link") as caught:
        await rename(accessor, "a", "link")
    assert caught.value.path == "link"
    with pytest.raises(errors.AlreadyExists):
        await rename(following, "a", "link", if_not_exists=True)
    await rename(following, "a", "link")
    assert not (root / "link").is_symlink()
    assert {name: (root / name).read_bytes() for name in names(root)} == {"file": b"kept", "link": b"DATA"}


@checks("reliability:W19")
async def test_a_file_onto_a_link_to_it(root: Path, following: Accessor) -> None:
    """The link is replaced: the file is there, by that name."""
    (root / "file").write_bytes(b"DATA")
    (root / "link").symlink_to("file")
    await rename(following, "file", "link")
    assert names(root) == ["link"]
    assert (root / "link").read_bytes() == b"DATA"
    assert not (root / "link").is_symlink()


async def test_hard_links_of_a_link(root: Path, accessor: Accessor) -> None:
    (root / "link").symlink_to("nowhere")
    os.link(root / "link", root / "other", follow_symlinks=False)
    await rename(accessor, "link", "other")
    assert names(root) == ["other"]
    assert os.readlink(root / "other") == "nowhere"


async def test_a_link_that_leads_in_circles(root: Path, accessor: Accessor) -> None:
    (root / "circle").symlink_to("circle")
    (root / "a").write_bytes(b"a")
    await rename(accessor, "circle", "x")
    await rename(accessor, "x", "a")
    assert os.readlink(root / "a") == "circle"


# --- conditions -------------------------------------------------------------------------------------------------------


async def test_if_match(accessor: Accessor, root: Path) -> None:
    (root / "a").write_bytes(b"first")
    (root / "b").write_bytes(b"old")
    etag = (await accessor.stat(StatRequest(path="a"))).etag
    (root / "a").write_bytes(b"second")
    with pytest.raises(errors.ConditionNotMatch) as caught:
        await rename(accessor, "a", "b", if_match=etag)
    assert (caught.value.operation, caught.value.path) == ("rename", "a")
    assert {name: (root / name).read_bytes() for name in names(root)} == {"a": b"second", "b": b"old"}
    etag = (await accessor.stat(StatRequest(path="a"))).etag
    await rename(accessor, "a", "b", if_match=etag)
    await rename(accessor, "b", "c", if_match="*")
    assert (root / "c").read_bytes() == b"second"


async def test_if_match_of_a_link(root: Path, following: Accessor) -> None:
    """It is compared with the ETag that ``stat`` tells, that of the file; a link that leads to none has none."""
    (root / "file").write_bytes(b"DATA")
    (root / "link").symlink_to("file")
    (root / "broken").symlink_to("nowhere")
    etag = (await following.stat(StatRequest(path="link"))).etag
    with pytest.raises(errors.ConditionNotMatch):
        await rename(following, "link", "x", if_match="another")
    for condition in (etag, "*"):
        with pytest.raises(errors.ConditionNotMatch):
            await rename(following, "broken", "x", if_match=condition)
    await rename(following, "link", "x", if_match=etag)
    assert os.readlink(root / "x") == "file"


@checks("reliability:W16")
async def test_if_not_exists(accessor: Accessor, root: Path) -> None:
    (root / "a").write_bytes(b"new")
    (root / "b").write_bytes(b"old")
    with pytest.raises(errors.AlreadyExists) as caught:
        await rename(accessor, "a", "b", if_not_exists=True)
    assert (caught.value.operation, caught.value.path) == ("rename", "b")
    assert {name: (root / name).read_bytes() for name in names(root)} == {"a": b"new", "b": b"old"}
    await rename(accessor, "a", "c", if_not_exists=True)
    assert names(root) == ["b", "c"]


async def test_if_not_exists_takes_no_equal_file_for_its_own(accessor: Accessor, root: Path) -> None:
    """On one file system nothing was copied: what is there is another file, though all of it is equal."""
    for name in "ab":
        (root / name).write_bytes(b"equal")
        os.utime(root / name, ns=(LONG_AGO, LONG_AGO))
    with pytest.raises(errors.AlreadyExists):
        await rename(accessor, "a", "b", if_not_exists=True)
    assert names(root) == ["a", "b"]


async def test_if_not_exists_rests_on_link_alone(
    accessor: Accessor, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target appears after the last look: the link itself refuses."""
    (root / "a").write_bytes(b"ours")
    link = os.link

    def late(*arguments: Any, **more: Any) -> None:
        (root / "b").write_bytes(b"theirs")
        link(*arguments, **more)

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(errors.AlreadyExists):
        await rename(accessor, "a", "b", if_not_exists=True)
    assert {name: (root / name).read_bytes() for name in names(root)} == {"a": b"ours", "b": b"theirs"}


@checks("reliability:W12")
async def test_a_newer_file_at_the_source_stays(
    accessor: Accessor, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program replaces the source once it has its second name."""
    (root / "a").write_bytes(b"first")
    (root / "theirs").write_bytes(b"second")
    link = os.link

    def early(*arguments: Any, **more: Any) -> None:
        link(*arguments, **more)
        os.replace(root / "theirs", root / "a")

    monkeypatch.setattr(os, "link", early)
    await rename(accessor, "a", "b", if_not_exists=True)
    assert {name: (root / name).read_bytes() for name in names(root)} == {"a": b"second", "b": b"first"}


async def test_a_file_system_without_links_says_so(
    accessor: Accessor, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: Any, **more: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    (root / "a").write_bytes(b"a")
    with pytest.raises(errors.Unsupported, match="hard links") as caught:
        await rename(accessor, "a", "b", if_not_exists=True)
    assert caught.value.operation == "rename"
    assert names(root) == ["a"]
    await rename(accessor, "a", "b")


async def test_fsync_reaches_both_directories(root: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "a").write_bytes(b"a")
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    await rename(Fs(str(root)).build(runtime), "a", "d/b")
    assert synced == []
    await rename(Fs(str(root), fsync=True).build(runtime), "d/b", "e/c")
    assert synced == [(root / name).stat().st_ino for name in "ed"]


async def test_all_bits_of_the_mode_stay(accessor: Accessor, root: Path) -> None:
    """It is the same file."""
    (root / "a").write_bytes(b"a")
    (root / "a").chmod(0o4711)
    await rename(accessor, "a", "b")
    assert stat.S_IMODE((root / "b").stat().st_mode) == 0o4711


@pytest.mark.parametrize("if_not_exists", [False, True])
async def test_cancelled_after_any_number_of_turns(accessor: Accessor, root: Path, if_not_exists: bool) -> None:
    """The file is there under one of both names."""
    (root / "b").write_bytes(b"DATA")
    for turns in range(12):
        (root / "b").replace(root / "a")
        task = asyncio.ensure_future(rename(accessor, "a", "b", if_not_exists=if_not_exists))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        assert names(root) in (["a"], ["b"])
        (root / names(root)[0]).replace(root / "b")
        assert (root / "b").read_bytes() == b"DATA"

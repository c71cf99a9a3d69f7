"""Copies and deletions of files: one file by two names, modes, and conditions."""

import asyncio
import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aioprefetch import errors
from aioprefetch.accessor.protocols import Accessor
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.fs import Fs
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import CopyRequest, DeleteRequest, Metadata, StatRequest

LONG_AGO = 1_111_111_111_123_456_789
FOLLOWED = pytest.mark.parametrize("follow_symlinks", [False, True])


@pytest.fixture(params=[0o022, 0o077, 0o000])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """The umask of the process."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


async def copy(accessor: Accessor, path: str, target: str, **fields: Any) -> Metadata:
    return await accessor.copy(CopyRequest(path=path, target=target, **fields))


async def etag_of(accessor: Accessor, path: str) -> str:
    etag = (await accessor.stat(StatRequest(path=path))).etag
    assert etag is not None
    return etag


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


# --- copies -----------------------------------------------------------------------------------------------------------


@checks("reliability:W31")
@pytest.mark.parametrize("mode", [0o600, 0o644, 0o755, 0o444, 0o400, 0o6755, 0o1777])
@pytest.mark.parametrize("if_not_exists", [False, True])
async def test_a_copy_has_the_mode_of_its_source_less_the_umask(
    accessor: Accessor, root: Path, umask: int, mode: int, if_not_exists: bool
) -> None:
    (root / "a").write_bytes(b"DATA")
    (root / "a").chmod(mode)
    os.utime(root / "a", ns=(LONG_AGO, LONG_AGO))
    metadata = await copy(accessor, "a", "d/b", if_not_exists=if_not_exists)
    status = (root / "d" / "b").stat()
    assert stat.S_IMODE(status.st_mode) == mode & 0o777 & ~umask
    assert status.st_mtime_ns > LONG_AGO  # The time of the copy.
    assert metadata == await accessor.stat(StatRequest(path="d/b"))
    assert stat.S_IMODE((root / "a").stat().st_mode) == mode


@checks("reliability:W31")
@pytest.mark.parametrize("old", [0o600, 0o644, 0o755, 0o4777])
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
async def test_a_replaced_file_keeps_its_mode_less_what_the_source_forbids(
    accessor: Accessor, root: Path, umask: int, old: int, mode: int
) -> None:
    for name, permissions in (("a", mode), ("b", old)):
        (root / name).write_bytes(name.encode())
        (root / name).chmod(permissions)
    await copy(accessor, "a", "b")
    assert (root / "b").read_bytes() == b"a"
    assert stat.S_IMODE((root / "b").stat().st_mode) == old & mode & 0o777


@checks("reliability:W31")
async def test_only_its_owner_reads_a_copy_while_it_is_written(
    accessor: Accessor, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "a").write_bytes(b"DATA")
    modes: list[int] = []
    fchmod = os.fchmod

    def noted(descriptor: int, mode: int) -> None:
        modes.append(mode)
        fchmod(descriptor, mode)

    monkeypatch.setattr(os, "fchmod", noted)
    (root / "a").chmod(0o644)
    await copy(accessor, "a", "b")
    assert modes == [0o600, 0o644]


@checks("reliability:W19")
@FOLLOWED
@pytest.mark.parametrize("if_not_exists", [False, True])
async def test_a_file_onto_itself_by_another_name(
    root: Path, runtime: Runtime, follow_symlinks: bool, if_not_exists: bool
) -> None:
    """By the same name, a hard link, a link to it or a linked directory: nothing is touched."""
    accessor = Fs(str(root), follow_symlinks=follow_symlinks).build(runtime)
    (root / "d").mkdir()
    (root / "d" / "a").write_bytes(b"DATA")
    os.link(root / "d" / "a", root / "hard")
    (root / "link").symlink_to("d/a")
    (root / "way").symlink_to("d")
    before = (root / "d" / "a").stat()
    pairs = [("d/a", "d/a"), ("d/a", "/d//a"), ("d/a", "hard"), ("hard", "d/a")]
    pairs += [("d/a", "link"), ("link", "d/a"), ("way/a", "d/a"), ("hard", "way/a")] if follow_symlinks else []
    for source, target in pairs:
        with pytest.raises(errors.IsSameFile) as caught:
            await copy(accessor, source, target, if_not_exists=if_not_exists)
        assert caught.value.operation == "copy"
    after = (root / "d" / "a").stat()
    assert (after.st_ino, after.st_mtime_ns, after.st_nlink) == (before.st_ino, before.st_mtime_ns, 2)
    assert (root / "link").is_symlink()
    assert sorted(os.listdir(root)) == ["d", "hard", "link", "way"]


@checks("reliability:W16")
async def test_conditions_of_a_copy(accessor: Accessor, root: Path) -> None:
    (root / "a").write_bytes(b"first")
    (root / "b").write_bytes(b"old")
    first = await etag_of(accessor, "a")
    (root / "a").write_bytes(b"second")
    with pytest.raises(errors.ConditionNotMatch) as unmatched:
        await copy(accessor, "a", "b", if_match=first)
    assert (unmatched.value.operation, unmatched.value.path) == ("copy", "a")
    with pytest.raises(errors.AlreadyExists) as exists:
        await copy(accessor, "a", "b", if_not_exists=True)
    assert (exists.value.operation, exists.value.path) == ("copy", "b")
    with pytest.raises(errors.Unsupported):
        await copy(accessor, "a", "c", version="1")
    assert contents(root) == {"a": b"second", "b": b"old"}
    await copy(accessor, "a", "b", if_match=await etag_of(accessor, "a"))
    await copy(accessor, "a", "c", if_not_exists=True, if_match="*")
    assert contents(root) == dict.fromkeys("abc", b"second")


async def test_one_of_many_copies_finds_no_target(accessor: Accessor, root: Path) -> None:
    for number in range(10):
        (root / f"{number}").write_bytes(f"{number}".encode() * 100)
    outcomes = await asyncio.gather(
        *(copy(accessor, f"{number}", "one", if_not_exists=True) for number in range(10)), return_exceptions=True
    )
    winners = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, Metadata)]
    assert len(winners) == 1
    assert sum(isinstance(outcome, errors.AlreadyExists) for outcome in outcomes) == 9
    assert (root / "one").read_bytes() == f"{winners[0]}".encode() * 100


@checks("reliability:W17")
async def test_a_changed_file_stays_and_the_others_go(accessor: Accessor, root: Path) -> None:
    for name in "abcd":
        (root / name).write_bytes(name.encode())
    etags = {name: await etag_of(accessor, name) for name in "abc"}
    (root / "b").write_bytes(b"newer")
    paths = ("a", "b", "missing", "c", "d")
    with pytest.raises(errors.ConditionNotMatch) as caught:
        await accessor.delete(DeleteRequest(path="a", paths=paths, if_match={**etags, "missing": "x"}))
    assert (caught.value.operation, caught.value.path) == ("delete", "b")
    assert caught.value.context["failures"] == {"b": "ConditionNotMatch"}
    assert contents(root) == {"b": b"newer"}
    await accessor.delete(DeleteRequest(path="b", paths=("b",), if_match={"b": "*"}))
    assert contents(root) == {}


async def test_a_condition_on_what_has_no_etag(root: Path, runtime: Runtime) -> None:
    """A directory, and a link that leads to no file. That of a link is the ETag of its file, as ``stat`` tells it."""
    accessor = Fs(str(root), follow_symlinks=True).build(runtime)
    (root / "d").mkdir()
    (root / "file").write_bytes(b"DATA")
    (root / "link").symlink_to("file")
    (root / "broken").symlink_to("nowhere")
    for path in ("d/", "broken"):
        with pytest.raises(errors.ConditionNotMatch):
            await accessor.delete(DeleteRequest(path=path, paths=(path,), if_match={path: "*"}))
    for etag in ("another", await etag_of(accessor, "link")):
        with pytest.raises(errors.ConditionNotMatch) if etag == "another" else contextlib.nullcontext():
            await accessor.delete(DeleteRequest(path="link", paths=("link",), if_match={"link": etag}))
    assert sorted(os.listdir(root)) == ["broken", "d", "file"]


@checks("reliability:W09")
async def test_a_path_that_is_refused_stops_no_other(accessor: Accessor, root: Path) -> None:
    """A link, and a way through a link, are failures of their own paths."""
    (root / "d").mkdir()
    (root / "link").symlink_to("d")
    for name in "ab":
        (root / name).write_bytes(b"x")
    with pytest.raises(errors.InvalidPath) as caught:
        await accessor.delete(DeleteRequest(path="a", paths=("a", "link", "link/x", "b")))
    assert caught.value.context["failures"] == {"link": "InvalidPath", "link/x": "InvalidPath"}
    assert (caught.value.operation, caught.value.path) == ("delete", "link")
    assert sorted(os.listdir(root)) == ["d", "link"]

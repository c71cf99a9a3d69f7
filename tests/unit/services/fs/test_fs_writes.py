"""Writing: a file appears whole or not at all, conditions hold against others, directories come and go."""

import asyncio
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from aioprefetch import errors
from aioprefetch.accessor.protocols import Accessor
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.fs import Fs
from aioprefetch.services.fs.accessor import FsAccessor
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import (
    CopyRequest,
    CreateDirRequest,
    DeleteRequest,
    ListRequest,
    StatRequest,
    WriteRequest,
)
from tests.unit.services.fs.test_fs_reads import ODD_KEYS, read


def names(root: Path) -> list[str]:
    """Everything below the root, temporary files too."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


@pytest.mark.parametrize("data", [b"", b"12345", bytearray(b"12345"), memoryview(b"1-2-3-4-5")[::2]])
async def test_a_write_is_read_back_and_described(
    accessor: Accessor, root: Path, data: bytes | bytearray | memoryview
) -> None:
    written = await accessor.write(WriteRequest(path="a/b/k"), data)
    assert (root / "a" / "b" / "k").read_bytes() == bytes(data)
    assert written == await accessor.stat(StatRequest(path="a/b/k"))
    assert names(root) == ["a", "a/b", "a/b/k"]


@pytest.mark.parametrize("key", ODD_KEYS)
async def test_odd_keys_are_written_listed_and_read(accessor: Accessor, root: Path, key: str) -> None:
    await accessor.write(WriteRequest(path=key), b"x")
    assert (root / key).read_bytes() == b"x"
    assert (await accessor.stat(StatRequest(path=key))).path == key
    assert await read(accessor, key) == b"x"
    page = await accessor.list_page(ListRequest(path="", recursive=True))
    assert [entry.path for entry in page.entries] == [key]
    await accessor.delete(DeleteRequest(path=key, paths=(key,)))
    assert not (root / key).exists()


async def test_the_root_is_made_at_the_first_write(tmp_path: Path, runtime: Runtime) -> None:
    accessor = Fs(str(tmp_path / "x" / "y")).build(runtime)
    assert not (tmp_path / "x").exists()
    await accessor.write(WriteRequest(path="k"), b"1")
    assert (tmp_path / "x" / "y" / "k").read_bytes() == b"1"


async def test_a_written_file_has_the_mode_of_the_umask(accessor: Accessor, root: Path) -> None:
    """While it is written only its owner may read it."""
    before = os.umask(0o027)
    try:
        body = await accessor.open_write(WriteRequest(path="k"))
        (hidden,) = os.listdir(root)
        assert stat.S_IMODE((root / hidden).stat().st_mode) == 0o600
        await body.close()
    finally:
        os.umask(before)
    assert stat.S_IMODE((root / "k").stat().st_mode) == 0o640


async def test_nothing_appears_before_close_and_nothing_after_abort(accessor: Accessor, root: Path) -> None:
    (root / "k").write_bytes(b"old")
    body = await accessor.open_write(WriteRequest(path="k"))
    await body.write(b"new")
    assert (root / "k").read_bytes() == b"old"
    page = await accessor.list_page(ListRequest(path="", recursive=True))
    assert [entry.path for entry in page.entries] == ["k"]
    await body.abort()
    await body.abort()
    assert (root / "k").read_bytes() == b"old"
    assert names(root) == ["k"]
    with pytest.raises(errors.Closed):
        await body.write(b"more")


async def test_a_stream_of_chunks_is_one_file(root: Path, runtime: Runtime) -> None:
    accessor = FsAccessor(Fs(str(root)), runtime, piece_bytes=10)
    body = await accessor.open_write(WriteRequest(path="k"))
    for chunk in (b"1" * 25, b"", b"2" * 7):
        await body.write(chunk)
    metadata = await body.close()
    await body.abort()
    assert (root / "k").read_bytes() == b"1" * 25 + b"2" * 7
    assert metadata.size == 32


async def test_fsync_reaches_the_file_and_its_directory(
    root: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[bool] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(stat.S_ISDIR(os.fstat(descriptor).st_mode)))
    await Fs(str(root), fsync=True).build(runtime).write(WriteRequest(path="k"), b"x")
    await Fs(str(root)).build(runtime).write(WriteRequest(path="k"), b"x")
    assert synced == [False, True]


@checks("reliability:W34", "reliability:W35")
async def test_a_failed_write_leaves_nothing(
    accessor: Accessor, root: Path, monkeypatch: pytest.MonkeyPatch, descriptors: Callable[[], list[str]]
) -> None:
    """A full disk at the last moment: the error says so, the old file stands, no temporary file is left."""
    (root / "k").write_bytes(b"old")

    def full(*arguments: object, **more: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(errors.Unexpected, match="full") as caught:
        await accessor.write(WriteRequest(path="k"), b"new")
    assert (caught.value.status, caught.value.operation, caught.value.path) == ("permanent", "write", "k")
    assert names(root) == ["k"]
    assert (root / "k").read_bytes() == b"old"
    assert descriptors() == []


@checks("reliability:W15")
async def test_if_not_exists_has_one_winner(accessor: Accessor, root: Path) -> None:
    """Twenty writers at once: the file is one of theirs, whole, and the others hear of it."""
    outcomes = await asyncio.gather(
        *(accessor.write(WriteRequest(path="k", if_not_exists=True), f"{n:03}".encode() * 1000) for n in range(20)),
        return_exceptions=True,
    )
    winners = [number for number, outcome in enumerate(outcomes) if not isinstance(outcome, BaseException)]
    assert len(winners) == 1
    assert (root / "k").read_bytes() == f"{winners[0]:03}".encode() * 1000
    assert sum(isinstance(outcome, errors.AlreadyExists) for outcome in outcomes) == 19
    assert names(root) == ["k"]


@checks("reliability:W15")
async def test_if_not_exists_holds_against_another_process(accessor: Accessor, root: Path) -> None:
    """The file of another writer that comes after the first look is not replaced."""
    body = await accessor.open_write(WriteRequest(path="k", if_not_exists=True))
    (root / "k").write_bytes(b"theirs")
    with pytest.raises(errors.AlreadyExists):
        await body.close()
    await body.abort()
    assert (root / "k").read_bytes() == b"theirs"
    assert names(root) == ["k"]


async def test_if_not_exists_rests_on_link_alone(
    accessor: Accessor, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file appears after the last look too: the link itself refuses."""
    link = os.link

    def late(*arguments: object, **more: object) -> None:
        (root / "k").write_bytes(b"theirs")
        link(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(errors.AlreadyExists):
        await accessor.write(WriteRequest(path="k", if_not_exists=True), b"ours")
    assert (root / "k").read_bytes() == b"theirs"


async def test_a_file_system_without_links_says_so(
    accessor: Accessor, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: object, **more: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    with pytest.raises(errors.Unsupported, match="hard links"):
        await accessor.write(WriteRequest(path="k", if_not_exists=True), b"ours")
    assert names(root) == []


@checks("reliability:W15")
async def test_if_match_is_one_step_among_writers(accessor: Accessor, root: Path) -> None:
    """Of many that saw the same version one alone replaces it."""
    first = await accessor.write(WriteRequest(path="k"), b"1")
    requests = [WriteRequest(path="k", if_match=first.etag) for _ in range(10)]
    outcomes = await asyncio.gather(
        *(accessor.write(request, bytes(n + 2)) for n, request in enumerate(requests)), return_exceptions=True
    )
    assert sum(isinstance(outcome, errors.ConditionNotMatch) for outcome in outcomes) == 9
    now = (await accessor.stat(StatRequest(path="k"))).etag
    bodies = [await accessor.open_write(WriteRequest(path="k", if_match=now)) for _ in range(2)]
    await bodies[0].close()
    with pytest.raises(errors.ConditionNotMatch):
        await bodies[1].close()
    await bodies[1].abort()


@pytest.mark.parametrize("path", ["", "/", "d/", "d", "new/"])
async def test_a_directory_cannot_be_written(accessor: Accessor, root: Path, path: str) -> None:
    (root / "d").mkdir()
    with pytest.raises(errors.IsADirectory):
        await accessor.write(WriteRequest(path=path), b"x")
    assert names(root) == ["d"]


async def test_a_file_in_the_way_of_a_directory(accessor: Accessor, root: Path) -> None:
    (root / "f").write_bytes(b"")
    with pytest.raises(errors.NotADirectory):
        await accessor.write(WriteRequest(path="f/k"), b"x")
    with pytest.raises(errors.NotADirectory):
        await accessor.create_dir(CreateDirRequest(path="f/d/"))
    with pytest.raises(errors.AlreadyExists):
        await accessor.create_dir(CreateDirRequest(path="f/"))


async def test_names_of_files_being_written_are_reserved(accessor: Accessor) -> None:
    with pytest.raises(errors.InvalidPath, match="reserved"):
        await accessor.write(WriteRequest(path="d/.aioprefetch-0123456789abcdef.tmp"), b"x")


async def test_delete(accessor: Accessor, root: Path) -> None:
    """Files and empty directories; what is missing is no error; the rest says what to do."""
    (root / "d" / "empty").mkdir(parents=True)
    (root / "d" / "f").write_bytes(b"")
    gone = ("d/empty/", "missing", "missing/x", "missing/", "d/f/", "d/f/x")
    await accessor.delete(DeleteRequest(path=gone[0], paths=gone))
    assert names(root) == ["d", "d/f"]
    for path, words in (("d/", "not empty"), ("d", "directory"), ("", "root"), ("/", "root")):
        with pytest.raises(errors.IsADirectory, match=words) as caught:
            await accessor.delete(DeleteRequest(path=path, paths=(path,)))
        assert caught.value.path == path
    await accessor.delete(DeleteRequest(path="d/f", paths=("d/f", "d/")))
    assert names(root) == []


async def test_a_directory_of_directories_is_empty(accessor: Accessor, root: Path) -> None:
    """Unless something that is not listed is in it: then nothing of that goes."""
    (root / "d" / "a" / "b").mkdir(parents=True)
    (root / "d" / "c").mkdir()
    await accessor.delete(DeleteRequest(path="d/", paths=("d/",)))
    assert names(root) == []
    (root / "d" / "a").mkdir(parents=True)
    (root / "d" / "a" / "link").symlink_to("nowhere")
    with pytest.raises(errors.IsADirectory, match="not empty"):
        await accessor.delete(DeleteRequest(path="d/", paths=("d/",)))
    assert names(root) == ["d", "d/a", "d/a/link"]


async def test_many_paths_are_deleted_by_one_request(accessor: Accessor, root: Path) -> None:
    paths = tuple(f"{n}" for n in range(250))
    for path in paths:
        (root / path).write_bytes(b"")
    await accessor.delete(DeleteRequest(path="0", paths=paths))
    assert names(root) == []


@checks("reliability:W09")
async def test_an_error_in_a_batch_names_its_own_path(accessor: Accessor, root: Path) -> None:
    (root / "d").mkdir()
    with pytest.raises(errors.IsADirectory) as caught:
        await accessor.delete(DeleteRequest(path="a", paths=("a", "d", "b")))
    assert caught.value.path == "d"


async def test_copy(root: Path, runtime: Runtime) -> None:
    accessor = FsAccessor(Fs(str(root)), runtime, piece_bytes=1000)
    data = os.urandom(3500)
    (root / "a").write_bytes(data)
    (root / "d").mkdir()
    metadata = await accessor.copy(CopyRequest(path="a", target="x/y"))
    assert (root / "x" / "y").read_bytes() == (root / "a").read_bytes() == data
    assert metadata == await accessor.stat(StatRequest(path="x/y"))
    for source, target, kind in (
        ("a", "a", errors.IsSameFile),
        ("a", "/a", errors.IsSameFile),
        ("missing", "b", errors.NotFound),
        ("d", "b", errors.IsADirectory),
        ("d/", "b", errors.IsADirectory),
        ("a", "d", errors.IsADirectory),
        ("a", "d/", errors.IsADirectory),
    ):
        with pytest.raises(kind) as caught:
            await accessor.copy(CopyRequest(path=source, target=target))
        assert caught.value.operation == "copy"
        assert caught.value.path in (source, target)
    assert names(root) == ["a", "d", "x", "x/y"]

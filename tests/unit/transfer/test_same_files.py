"""A file that is named twice, and the rights of its copies."""

import os
from pathlib import Path

import pytest

import aioprefetch as ap
from aioprefetch import Operator
from aioprefetch.errors import IsSameFile, NotFound
from aioprefetch.testing.conformance.suite import checks
from tests.unit.transfer.trees import files_of, memory


@checks("reliability:W20")
async def test_a_file_is_not_uploaded_or_downloaded_onto_itself(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root/k").write_bytes(b"data")
    (tmp_path / "link").symlink_to("root")
    async with Operator.from_uri(tmp_path / "root") as op:
        for name in ("root/k", "link/k"):
            with pytest.raises(IsSameFile) as refused:
                await op.upload(tmp_path / name, "k")
            assert (refused.value.operation, refused.value.path) == ("upload", "k")
            with pytest.raises(IsSameFile) as refused:
                await op.download("k", tmp_path / name)
            assert (refused.value.operation, refused.value.path) == ("download", "k")
        with pytest.raises(NotFound):
            await op.download("none", tmp_path / "root/none")
        await op.upload(tmp_path / "root/k", "other")
        await op.download("k", tmp_path / "root/third")
    assert files_of(tmp_path / "root") == {"k": b"data", "other": b"data", "third": b"data"}


@checks("reliability:W31")
@pytest.mark.parametrize("verb", ["ap.copy", "op.copy", "directory", "move"])
async def test_a_copy_of_a_private_file_is_private(tmp_path: Path, verb: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/key").write_bytes(b"private")
    (tmp_path / "a/key").chmod(0o600)
    async with Operator.from_uri(tmp_path) as op:
        match verb:
            case "ap.copy":
                await ap.copy(tmp_path / "a/key", tmp_path / "b/key")
            case "op.copy":
                await op.copy("a/key", "b/key")
            case "directory":
                await ap.copy((op, "a/"), (op, "b/"))
            case "move":
                await op.move("a/", "b/")
    assert (tmp_path / "b/key").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "b/key").read_bytes() == b"private"


@checks("reliability:W19")
async def test_a_file_under_a_linked_directory_is_moved_onto_itself_by_no_verb(tmp_path: Path) -> None:
    (tmp_path / "mnt").mkdir()
    (tmp_path / "data").symlink_to("mnt")
    (tmp_path / "mnt/x").write_bytes(b"DATA")
    os.link(tmp_path / "mnt/x", tmp_path / "mnt/hard")
    async with Operator.from_uri(tmp_path, follow_symlinks=True) as op:
        for verb in (op.copy, op.move):
            with pytest.raises(IsSameFile):
                await verb("mnt/x", "data/x")
        with pytest.raises(IsSameFile):
            await ap.copy((op, "mnt/"), (op, "data/"))
        with pytest.raises(IsSameFile):
            await op.copy("mnt/x", "mnt/hard")
        await op.move("mnt/hard", "data/x")
    assert files_of(tmp_path) == {"mnt/x": b"DATA"}


@checks("reliability:W28")
async def test_a_link_below_the_destination_leads_no_copy_into_the_source(tmp_path: Path) -> None:
    for path in ("source/sub/f", "source/f"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(path.encode())
    (tmp_path / "target").mkdir()
    (tmp_path / "target/sub").symlink_to("../source")
    async with Operator.from_uri(tmp_path, follow_symlinks=True) as op:
        report = await ap.copy((op, "source/"), (op, "target/"))
        assert [failure.path for failure in report.failures] == ["source/sub/f"]
    assert (tmp_path / "source/f").read_bytes() == b"source/f"


async def test_an_upload_into_memory_asks_no_file(tmp_path: Path) -> None:
    (tmp_path / "k").write_bytes(b"data")
    async with memory() as op:
        await op.upload(tmp_path / "k", "k")
        await op.download("k", tmp_path / "k")
    assert files_of(tmp_path) == {"k": b"data"}


@checks("reliability:W29")
async def test_links_move_with_their_directory_and_what_is_no_file_stays(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/f").write_bytes(b"data")
    (tmp_path / "a/file").symlink_to("b/f")
    (tmp_path / "a/b/directory").symlink_to("../b")
    (tmp_path / "a/nowhere").symlink_to("none")
    async with Operator.from_uri(tmp_path) as op:
        await op.move("a/", "c/")
        assert not (tmp_path / "a").exists()
        assert (tmp_path / "c/file").read_bytes() == (tmp_path / "c/b/directory/f").read_bytes() == b"data"
        assert os.readlink(tmp_path / "c/nowhere") == "none"
        os.mkfifo(tmp_path / "c/b/fifo")
        await op.move("c/", "d/")
        assert [path.name for path in (tmp_path / "c").rglob("*")] == ["b", "fifo"]
        assert (tmp_path / "d/file").read_bytes() == b"data"

"""Symbolic links of local files: those that are named are followed, those below a directory are passed over."""

import logging
from pathlib import Path

import pytest

import aioprefetch as ap
from aioprefetch import Operator
from aioprefetch.errors import InvalidPath, IsSameFile, NotFound
from tests.unit.transfer.trees import memory, tree_of


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache as Hugging Face keeps it, beside links of other kinds."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "0a1b").write_bytes(b"weights")
    snapshot = tmp_path / "snapshots" / "main"
    snapshot.mkdir(parents=True)
    (snapshot / "model.bin").symlink_to("../../blobs/0a1b")
    (snapshot / "dangling").symlink_to("nowhere")
    (snapshot / "all").symlink_to("../../blobs")
    (snapshot / "README").write_bytes(b"text")
    (tmp_path / "current").symlink_to("snapshots/main")
    return tmp_path


async def test_a_link_that_is_named_is_copied_under_its_own_name(cache: Path) -> None:
    """Whichever way it is named; so is one in a directory that is a link itself."""
    async with memory() as op:
        link = cache / "snapshots" / "main" / "model.bin"
        places: tuple[str | Path, ...] = (link, str(link), f"file://{link}", cache / "current" / "model.bin")
        for number, place in enumerate(places):
            await ap.copy(place, (op, f"{number}/"))
            await ap.copy(place, (op, f"{number}/as"))
        assert await tree_of(op, "") == {
            f"{number}/{name}": b"weights" for number in range(4) for name in ("as", "model.bin")
        }
        with pytest.raises(IsSameFile):
            await ap.copy(link, cache / "blobs" / "0a1b")
        with pytest.raises(NotFound, match="nowhere"):
            await ap.copy(cache / "snapshots" / "main" / "dangling", (op, "x"))


def test_a_link_that_is_named_is_opened(cache: Path) -> None:
    for place in (cache / "current" / "model.bin", f"file://{cache}/current/model.bin"):
        with ap.sync.open(place) as file:
            assert file.read() == b"weights"
    with ap.sync.open(cache / "current" / "model.bin", "r") as text:
        assert text.read() == "weights"


async def test_a_link_as_a_target_stays_refused(cache: Path) -> None:
    """What it leads to is not replaced."""
    async with memory() as op:
        await op.write("k", b"new")
        with pytest.raises(InvalidPath, match="read the file that it leads to"):
            await ap.copy((op, "k"), cache / "current" / "model.bin")
    assert (cache / "blobs" / "0a1b").read_bytes() == b"weights"


async def test_links_below_a_directory_are_named_in_the_report(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without them: with a glob, those that it matches. An operator of the directory that is a link works."""
    async with memory() as op:
        report = await ap.copy(cache / "current", (op, "x/"))
        assert (report.copied, report.passed_over_count) == (1, 3)
        assert report.passed_over == tuple((name, "a symbolic link") for name in ("all", "dangling", "model.bin"))
        assert "passed_over=3" in repr(report)
        (logged,) = (record for record in caplog.records if record.name == "aioprefetch.copy")
        assert (logged.levelname, "passed over 3 below" in logged.getMessage()) == ("WARNING", True)
        assert (await ap.copy(cache / "current", (op, "y/"), glob="R*")).passed_over == ()
        with pytest.raises(NotFound, match=r"'model\.bin' is a symbolic link, and passed over"):
            await ap.copy(f"{cache}/current/*.bin", (op, "z/"))
        assert await tree_of(op, "") == {"x/README": b"text", "y/README": b"text"}
    async with Operator.from_uri(cache / "current") as op:
        assert await op.read("README") == b"text"
        assert [entry.path for entry in await op.list("").collect()] == ["README"]


async def test_an_upload_of_a_directory_logs_the_links(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with memory() as op:
        with caplog.at_level(logging.WARNING):
            await op.upload(cache / "current", "x/")
            assert "passed over 3 below" in caplog.text
            assert "such as 'all': a symbolic link" in caplog.text
            caplog.clear()
            await op.upload(cache / "blobs", "y/")
        assert caplog.text == ""


async def test_links_to_files_are_copied_where_the_root_holds_both(cache: Path) -> None:
    """With ``follow_symlinks``, page by page too. Links to directories, and those that lead nowhere or out, are not."""
    (cache / "snapshots" / "main" / "out").symlink_to(cache.parent)
    (cache / "snapshots" / "main" / "outfile").symlink_to("/etc/hostname")
    async with Operator.from_uri(cache, follow_symlinks=True) as files, memory() as op:
        report = await ap.copy((files, "snapshots/main/"), (op, "x"))
        assert (report.copied, report.passed_over_count, report.failed) == (2, 4, 0)
        assert await tree_of(op, "x/") == {"README": b"text", "model.bin": b"weights"}
        listed = {entry.path: entry for entry in await files.list("snapshots/main/").collect()}
        found = await files.stat("snapshots/main/model.bin")
        assert (found.size, found.etag) == (7, listed["snapshots/main/model.bin"].etag)


async def test_the_pages_of_a_listing_tell_all_links_once(tmp_path: Path) -> None:
    for number in range(2500):
        (tmp_path / f"{number:04}").symlink_to("nowhere")
    (tmp_path / "end").write_bytes(b"x")
    for number in range(1100):
        (tmp_path / f"file{number:04}").write_bytes(b"x")
    async with memory() as op:
        report = await ap.copy(tmp_path, (op, ""), dry_run=True)
        assert (report.copied, report.passed_over_count) == (1101, 2500)
        assert [path for path, _ in report.passed_over] == [f"{number:04}" for number in range(1000)]


def test_files_of_fsspec_follow_links(cache: Path) -> None:
    import fsspec

    fs = fsspec.filesystem("aioprefetch+file")
    assert fs.cat(str(cache / "current" / "model.bin")) == b"weights"
    assert sorted(Path(name).name for name in fs.ls(str(cache / "snapshots" / "main"), detail=False)) == [
        "README",
        "model.bin",
    ]
    strict = fsspec.filesystem("aioprefetch+file", follow_symlinks=False)
    with pytest.raises(InvalidPath):
        strict.cat(str(cache / "snapshots" / "main" / "model.bin"))

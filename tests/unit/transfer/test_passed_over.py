"""What a listing passes over is named, and what lies at the destination under its name stays."""

import os
import socket
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import aioprefetch as ap
from aioprefetch import Operator
from aioprefetch.errors import InvalidPath, PermissionDenied
from aioprefetch.local_files.files import partial_name
from aioprefetch.testing import FaultLayer, Injection
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import Capability
from tests.unit.transfer.test_extra import Listing, backwards
from tests.unit.transfer.trees import Tree, files_of, memory, put_tree, tree_of

PARTIAL = partial_name("0123456789abcdef")
LINK, SPECIAL, UNFINISHED = "a symbolic link", "a FIFO, socket or device", "a file that is being written"
# At the destination: under a name that is passed over, below it, beside it, and with it as a beginning.
THERE: Tree = {
    name: name.encode()
    for name in ("2025", "2025/a/report", "2025.old", "in/pipe", "in/pipe/x", "in/pipes", "old", PARTIAL, "in/2025/x")
}
STAY = {"2025", "2025/a/report", "in/pipe", "in/pipe/x", PARTIAL}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Files beside all that a listing passes over."""
    place = tmp_path / "source"
    (place / "in").mkdir(parents=True)
    (tmp_path / "archive").mkdir()
    for name in ("keep.csv", "in/keep.csv", PARTIAL):
        (place / name).write_bytes(b"k")
    (place / "2025").symlink_to(tmp_path / "archive")
    os.mkfifo(place / "in" / "pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        here = Path.cwd()
        os.chdir(place / "in")  # A path of a socket is short.
        try:
            bound.bind("socket")
        finally:
            os.chdir(here)
    return place


@checks("reliability:W30")
async def test_the_report_names_all_that_was_passed_over(source: Path) -> None:
    async with memory() as op:
        for how in ({}, {"dry_run": True}, {"delete_extra": True}):
            options: dict[str, Any] = how
            report = await ap.copy(source, (op, "x/"), **options)
            assert dict(report.passed_over) == {
                "2025": LINK,
                "in/pipe": SPECIAL,
                "in/socket": SPECIAL,
                PARTIAL: UNFINISHED,
            }
            assert report.passed_over_count == 4
        assert await tree_of(op, "x/") == {"keep.csv": b"k", "in/keep.csv": b"k"}


@checks("reliability:W30")
@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize("skip_same", [None, True, False])
async def test_what_has_its_name_or_lies_below_stays(source: Path, skip_same: bool | None, is_reversed: bool) -> None:
    """In whichever order the two sides list, and in a dry run too."""
    async with memory() as plain, Operator(ap.services.Fs(source)) as files:
        op = Listing(backwards).of(plain) if is_reversed else plain
        await put_tree(op, "dst/", THERE)
        how: Any = {"skip_same": skip_same, "delete_extra": True}
        plan = await ap.copy((files, ""), (op, "dst/"), **how, dry_run=True)
        assert {step.target for step in plan.steps if step.action == "delete"} == {
            f"dst/{name}" for name in THERE.keys() - STAY
        }
        report = await ap.copy((files, ""), (op, "dst/"), **how)
        assert (report.deleted, report.failures) == (len(THERE) - len(STAY), ())
        assert (await tree_of(op, "dst/")).keys() == STAY | {"keep.csv", "in/keep.csv"}


@pytest.mark.parametrize(("glob", "kept"), [("**/*", STAY), ("**/rep*", {"2025/a/report"}), ("*", {"2025", PARTIAL})])
async def test_where_a_glob_chose(source: Path, glob: str, kept: set[str]) -> None:
    """A directory that is passed over may hold what the glob matches, though it does not match itself."""
    (source / "report").write_bytes(b"r")
    async with memory() as op:
        await put_tree(op, "dst/", THERE)
        report = await ap.copy(source, (op, "dst/"), glob=glob, delete_extra=True)
        assert kept <= (await tree_of(op, "dst/")).keys()
        assert ("2025", LINK) in report.passed_over
        report = await ap.copy(f"{source}/{glob}", (op, "dst/"), delete_extra=True)
        assert kept <= (await tree_of(op, "dst/")).keys()


@checks("reliability:W30")
async def test_at_a_local_destination_too(source: Path, tmp_path: Path) -> None:
    """Where the place of a link is a directory of files."""
    out = tmp_path / "out"
    for name in ("2025/a/report", "in/pipe", "old/x"):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(b"1")
    report = await ap.copy(source, out, delete_extra=True)
    assert (report.deleted, report.copied) == (1, 2)
    assert files_of(out).keys() == {"2025/a/report", "in/pipe", "keep.csv", "in/keep.csv"}


async def test_names_that_files_fold_are_those_of_the_destination(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    (source / "LINK").symlink_to("nowhere")
    (tmp_path / "out" / "link").mkdir(parents=True)
    (tmp_path / "out" / "link" / "x").write_bytes(b"1")
    assert (await ap.copy(source, tmp_path / "out", delete_extra=True)).deleted == 0


async def test_links_that_are_followed_are_there(source: Path, tmp_path: Path) -> None:
    """Others are passed over: to directories, out of the root, to nowhere."""
    (source / "to a file").symlink_to("keep.csv")
    (source / "to nowhere").symlink_to("nothing")
    (source / "out").symlink_to(tmp_path)
    async with Operator.from_uri(source, follow_symlinks=True) as files, memory() as op:
        await put_tree(op, "dst/", {"to nowhere/x": b"1", "out/x": b"1", "to a file/x": b"1"})
        report = await ap.copy((files, ""), (op, "dst/"), delete_extra=True)
        assert {path for path, why in report.passed_over if why == LINK} == {"2025", "to nowhere", "out"}
        assert (await tree_of(op, "dst/")).keys() == {"to nowhere/x", "out/x", "to a file", "keep.csv", "in/keep.csv"}


@checks("reliability:W30")
async def test_a_key_that_no_file_can_have_deletes_nothing(tmp_path: Path) -> None:
    """It is a failure: what is at its place stays, as does all else."""
    async with memory() as op:
        await put_tree(op, "x/", {"a": b"1", "b//c": b"2", PARTIAL: b"3"})
        (tmp_path / "b").mkdir()
        (tmp_path / "b" / "old").write_bytes(b"1")
        for is_dry in (True, False):
            report = await ap.copy((op, "x/"), tmp_path, delete_extra=True, dry_run=is_dry)
            assert {failure.path for failure in report.failures} == {"x/b//c", f"x/{PARTIAL}"}
            assert {type(failure.error) for failure in report.failures} == {InvalidPath}
            assert report.deleted == 0
        assert files_of(tmp_path).keys() == {"a", "b/old"}


@checks("reliability:W32")
async def test_a_directory_that_cannot_be_listed_ends_the_run_and_deletes_nothing(source: Path) -> None:
    async with Operator(ap.services.Fs(source)) as plain, memory() as op:
        await put_tree(op, "dst/", THERE)
        refused = FaultLayer((Injection(operation="list", error=PermissionDenied),))
        files = plain.layer(refused, inside=ap.layers.ErrorContextLayer)
        with pytest.raises(PermissionDenied):
            await ap.copy((files, ""), (op, "dst/"), delete_extra=True)
        assert (await tree_of(op, "dst/")).keys() >= THERE.keys()


async def test_a_directory_that_becomes_a_link_meanwhile_is_passed_over(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the listing of its parent and its own."""
    scandir = os.scandir

    def swapping(descriptor: int) -> Any:
        found = list(scandir(descriptor))
        if not (source / "in").is_symlink():
            (source / "in").rename(tmp_path / "moved")
            (source / "in").symlink_to(tmp_path / "moved")
        return nullcontext(found)

    async with memory() as op:
        await put_tree(op, "dst/", THERE)
        monkeypatch.setattr(os, "scandir", swapping)
        report = await ap.copy(source, (op, "dst/"), delete_extra=True)
        assert ("in", LINK) in report.passed_over
        assert (await tree_of(op, "dst/")).keys() == {
            name for name in THERE if name.startswith(("in/", "2025/")) or name in STAY
        } | {"keep.csv"}


class Flat(ap.services.Fs):
    """Files of a service that lists one directory at a time."""

    @property
    def capability(self) -> Capability:
        return replace(super().capability, list_recursive=False)


async def test_the_walk_of_a_service_that_lists_one_level_names_them(source: Path) -> None:
    async with Operator(Flat(source)) as files, memory() as op:
        await put_tree(op, "dst/", THERE)
        report = await ap.copy((files, ""), (op, "dst/"), delete_extra=True)
        assert report.passed_over_count == 4
        assert (await tree_of(op, "dst/")).keys() >= STAY

"""``cp``, ``sync`` and ``rm``: what is where afterwards, and what they refuse."""

import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from aioprefetch.cli import main
from aioprefetch.errors import PermissionDenied
from aioprefetch.operator.operator import Operator
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.verbs.progress import CopyProgress, CopyReport, ProgressDisplay
from tests.unit.cli.commands import Bucket, lines, objects, run


def tree(folder: Path) -> dict[str, bytes]:
    """The files below a folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_cp_there_and_back(folder: Path, bucket: Bucket, tmp_path: Path) -> None:
    (report,) = objects("cp", "-r", "--json", folder, bucket.url("x/"))
    assert (report["copied"], report["failed"], report["bytes"]) == (3, 0, 2_560_006)
    assert bucket.paths() == ["x/a b.txt", "x/big", "x/inner/c"]
    assert run("cp", "-r", bucket.url("x"), tmp_path / "back").output == ""  # Quiet where no person looks.
    assert tree(tmp_path / "back") == tree(folder)
    (report,) = objects("cp", "--json", bucket.url("x/*"), bucket.url("x/**/c"), f"{tmp_path}/two/")
    assert (report["copied"], sorted(tree(tmp_path / "two"))) == (3, ["a b.txt", "big", "inner/c"])
    (report,) = objects("cp", "-r", "--json", "--glob", "*.txt", bucket.url("x/"), bucket.url("y/"))
    assert report["copied"] == 1
    assert bucket.paths()[-1] == "y/a b.txt"
    run("cp", bucket.url("x/a b.txt"), tmp_path)
    assert (tmp_path / "a b.txt").read_bytes() == b"hello\n"


class Bars(ProgressDisplay):
    """A display that keeps what is reported to it."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[str, object]] = []

    def open(self, name: str) -> "Bars":
        self.events.append(("open", name))
        return self

    def update(self, progress: CopyProgress) -> None:
        self.events.append(("bytes", progress.bytes))

    def close(self, error: BaseException | None = None) -> None:
        self.events.append(("close", error))


def test_each_place_has_one_bar(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also a directory without ``/`` at its end, and none where nothing is copied."""
    pytest.importorskip("rich")
    bars = Bars()
    monkeypatch.setattr("aioprefetch.progress.rich", lambda **options: bars)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    bucket.put(d__a=b"12", d__b=b"345")
    assert main(["cp", "-r", bucket.url("d"), str(tmp_path / "out")]) == 0
    assert [event for event in bars.events if event[0] != "bytes"] == [("open", bucket.url("d/")), ("close", None)]
    assert bars.events[-2] == ("bytes", 5)
    bars.events.clear()
    assert main(["cp", bucket.url("none"), str(tmp_path / "out")]) == 1
    assert main(["cp", "-q", bucket.url("d/a"), str(tmp_path / "out")]) == 0
    assert bars.events == []
    assert "2 objects copied" in capsys.readouterr().err


def test_cp_says_what_it_refuses(folder: Path, bucket: Bucket, tmp_path: Path) -> None:
    for arguments, code, message in (
        ((folder, tmp_path / "x"), 1, "it is a directory (IsADirectory); hint: -r takes what is below it"),
        ((f"{folder}/big", f"{folder}/big"), 1, "IsSameFile"),
        ((f"{folder}/big", f"{folder}/inner/c", tmp_path / "x"), 2, "several sources go into a directory"),
        ((bucket.url("none"), tmp_path / "x"), 1, "NotFound"),
        ((f"{folder}/big", f"{folder}/a b.txt/x"), 1, "'big' to 'x': a file stands where the path needs"),
        (("-r", f"{folder}/inner/", f"{folder}/a b.txt"), 1, "c to a b.txt/c: a file stands where the path needs"),
        (("--src-o", "x", f"{folder}/big", "y"), 2, "NAME=VALUE"),
        (("--src-o", "nothing=1", f"{folder}/big", "y"), 2, "unknown option 'nothing'"),
    ):
        result = run("cp", *arguments, code=code)
        assert message in result.stderr
        assert result.stdout == ""
    assert not (tmp_path / "x").exists()


@checks("reliability:W24")
@pytest.mark.parametrize(
    "arguments",
    [("a/x", "b/x"), ("-r", "a/", "b/"), ("a/*", "b/x"), ("-r", "a/", "b/x"), ("-r", "--glob", "*", "a/", "b/")],
)
def test_cp_copies_no_two_objects_to_one(bucket: Bucket, tmp_path: Path, arguments: Sequence[str]) -> None:
    bucket.put(a__x=b"1", b__x=b"2", b__y=b"3")
    options = [one for one in arguments if one[0] in "-*"]
    sources = [bucket.url(one) for one in arguments if one not in options]
    result = run("cp", *options, *sources, f"{tmp_path}/out/", code=2)
    assert f"{sources[0]} and {sources[1]} would both be copied to 'x' at the target" in result.stderr
    assert not (tmp_path / "out").exists()
    run("cp", *options, *sources[1:], f"{tmp_path}/out/")
    assert tree(tmp_path / "out")["x"] == b"2"


@checks("reliability:W10")
def test_one_failure_leaves_the_others(folder: Path, bucket: Bucket, tmp_path: Path) -> None:
    bucket.put(a=b"1", d__b=b"2")
    bucket.put(**{"d////c": b"no file has such a name"})
    result = run("cp", "-r", "--json", bucket.url(), tmp_path / "out", code=1)
    assert result.stderr.count("\n") == 1
    assert "InvalidPath" in result.stderr
    assert '"failed": 1' in result.stdout
    assert tree(tmp_path / "out") == {"a": b"1", "d/b": b"2"}
    result = run("cp", "--json", bucket.url("a"), bucket.url("none"), f"{tmp_path}/more/", code=1)
    assert "none" in result.stderr
    assert tree(tmp_path / "more") == {"a": b"1"}


def test_sync_copies_what_has_changed(folder: Path, bucket: Bucket) -> None:
    def copied(*arguments: object) -> tuple[int, int]:
        (report,) = objects("sync", "--json", *arguments)
        return report["copied"], report["skipped"]

    assert copied(folder, bucket.url("x")) == (3, 0)
    before = os.stat(folder / "a b.txt")
    for path in folder.rglob("*"):
        if path.is_file():
            os.utime(path, (before.st_mtime - 100, before.st_mtime - 100))
    assert copied(folder, bucket.url("x")) == (0, 3)
    (folder / "a b.txt").write_bytes(b"other")
    assert copied(folder, bucket.url("x")) == (1, 2)
    assert copied("--exact", bucket.url("x"), folder) == (0, 3)
    assert copied(f"{folder}/big", bucket.url("x/big")) == (0, 1)


def test_sync_deletes_what_only_the_destination_has(folder: Path, bucket: Bucket) -> None:
    run("sync", folder, bucket.url("x"))
    bucket.put(x__old=b"old", **{"x/inner/old.txt": b"older"})
    run("sync", folder, bucket.url("x"))
    assert "x/old" in bucket.paths()
    assert lines("sync", "--delete", "--dry-run", "--glob", "**/*.txt", folder, bucket.url("x")) == [
        f"delete {bucket.url('x/inner/old.txt')}"
    ]
    (report,) = objects("sync", "--json", "--delete", folder, bucket.url("x"))
    assert (report["copied"], report["skipped"], report["deleted"], report["failures"]) == (0, 3, 2, [])
    assert bucket.paths() == ["x/a b.txt", "x/big", "x/inner/c"]
    empty = folder / "empty"
    empty.mkdir()
    assert "has no objects" in run("sync", "--delete", f"{empty}/", bucket.url("x"), code=1).stderr
    assert len(bucket.paths()) == 3
    assert "is one object" in run("sync", "--delete", f"{folder}/big", bucket.url("x/big"), code=2).stderr


@checks("reliability:W33")
@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_sync_deletes_no_more_than_its_limit(folder: Path, bucket: Bucket, dry: list[str]) -> None:
    """It copies all, deletes nothing and fails. A dry run prints the steps, and fails too."""
    bucket.put(**{f"x__{number:02}": b"old" for number in range(12)})
    sync = ["sync", "--delete", *dry, folder, bucket.url("x/")]
    refused = run(*sync, code=1)
    assert refused.stderr == (
        f"aioprefetch: {bucket.url('x/')}: --delete would delete 12 of 12 objects, more than half of them and more than"
        " 10; nothing was deleted: --delete-max 12 allows these, --delete-max 1.0 any number (InvalidArgument)\n"
    )
    assert [line.split()[0] for line in refused.stdout.splitlines()] == (["copy"] * 3 + ["delete"] * 12 if dry else [])
    assert len(bucket.paths()) == (12 if dry else 15)
    for most in ("11", "0.7"):
        assert f"more than --delete-max {most};" in run(*sync, "--delete-max", most, code=1).stderr
    (report,) = objects(*sync, "--json", "--delete-max", "0", code=1)
    assert (report["copied"] + report["skipped"], report["deleted"]) == (3, 12 if dry else 0)
    assert [failure["kind"] for failure in report["failures"]] == ["InvalidArgument"]
    (report,) = objects(*sync, "--json", "--delete-max", "1.0")
    assert (report["deleted"], report["failures"]) == (12, [])
    assert len(bucket.paths()) == (12 if dry else 3)


@pytest.mark.parametrize("most", ["many", "-1", "2.5", "nan", "1e3"])
def test_a_limit_that_is_none_is_refused(folder: Path, bucket: Bucket, most: str) -> None:
    assert "a number of objects" in run("sync", "--delete-max", most, folder, bucket.url("x/"), code=2).stderr
    assert bucket.paths() == []


@checks("reliability:W30")
def test_what_is_passed_over_is_said_and_stays_at_the_destination(folder: Path, bucket: Bucket) -> None:
    (folder / "link").symlink_to("nowhere")
    os.mkfifo(folder / "pipe")
    bucket.put(**{"x/link/a": b"1", "x/pipe": b"2", "x/old": b"3"})
    (report,) = objects("sync", "--delete", "--json", folder, bucket.url("x/"))
    assert report["passed_over"] == [
        {"path": "link", "reason": "a symbolic link"},
        {"path": "pipe", "reason": "a FIFO, socket or device"},
    ]
    assert (report["passed_over_count"], report["deleted"]) == (2, 1)
    assert {"x/link/a", "x/pipe"} <= set(bucket.paths())
    assert "2 passed over, such as link: a symbolic link; hint: " in run("cp", "-r", folder, bucket.url("x/")).stderr


def test_a_dry_run_prints_what_would_be_done(folder: Path, bucket: Bucket, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert sorted(lines("cp", "-r", "--dry-run", folder, out)) == [
        f"copy {folder}/a b.txt -> {out}/a b.txt",
        f"copy {folder}/big -> {out}/big",
        f"copy {folder}/inner/c -> {out}/inner/c",
    ]
    (report,) = objects("cp", "--dry-run", "--json", f"{folder}/big", f"{folder}/*.txt", bucket.url("x/"))
    assert (report["copied"], report["bytes"]) == (2, 2_560_006 - (folder / "inner" / "c").stat().st_size)
    assert {(step["action"], step["source"], step["target"]) for step in report["steps"]} == {
        ("copy", f"{folder}/big", bucket.url("x/big")),
        ("copy", f"{folder}/a b.txt", bucket.url("x/a b.txt")),
    }
    assert (out.exists(), bucket.paths()) == (False, [])
    run("sync", folder, bucket.url("x"))
    assert lines("sync", "--dry-run", folder, bucket.url("x")) == []


def test_rm(folder: Path, bucket: Bucket) -> None:
    assert lines("rm", "--dry-run", f"{folder}/*", f"{folder}/b*") == [f"{folder}/a b.txt", f"{folder}/big"]
    assert "IsADirectory" in run("rm", folder, code=1).stderr
    assert run("rm", f"{folder}/*.txt").output == ""
    assert sorted(tree(folder)) == ["big", "inner/c"]
    run("rm", "-r", folder)
    assert not folder.exists()
    run("rm", folder, code=1)
    run("rm", "-f", folder)
    bucket.put(a=b"1", d__b=b"22", d__c=b"333", e__f=b"", e__g__h=b"")
    run("rm", bucket.url("d"), code=1)
    assert lines("rm", "-r", "--dry-run", bucket.url("d/*"), bucket.url("d/"), bucket.url("d/b")) == [
        bucket.url("d/b"),
        bucket.url("d/c"),
    ]
    overlapping = objects("rm", "--dry-run", "--json", bucket.url("d/*"), bucket.url("d/*"), bucket.url("a"))
    assert overlapping == [{"removed": 0, "found": 3, "bytes": 6, "failures": {}}]
    assert objects("rm", "--json", bucket.url("d/*")) == [{"removed": 2, "found": 2, "bytes": 5, "failures": {}}]
    run("rm", "-r", bucket.url("e"))
    assert bucket.paths() == ["a"]


@checks("reliability:W28")
@pytest.mark.parametrize("name", ["link", "to-folder"])
def test_rm_of_a_link_removes_nothing(folder: Path, tmp_path: Path, name: str) -> None:
    """Neither what it leads to nor the link; with a slash it is what it leads to."""
    (tmp_path / "link").symlink_to(folder / "big")
    (tmp_path / "to-folder").symlink_to(folder)
    before = tree(folder)
    for place in (tmp_path / name, f"file://{tmp_path}/{name}"):
        assert "it is a symbolic link" in run("rm", "-r", place, code=2).stderr
    assert tree(folder) == before
    run("rm", "-r", f"{tmp_path}/to-folder/")
    assert tree(folder) == {} if folder.exists() else True


@checks("reliability:W09")
def test_rm_goes_on_behind_a_place_that_fails(
    folder: Path, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure leaves the directory of its own place, and of no other."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "k").write_bytes(b"123")
    original = Operator.delete

    async def delete(self: Operator, paths: Sequence[str]) -> None:
        if self.info.url.endswith("/one"):
            raise PermissionDenied("refused", context={"failures": dict.fromkeys(paths, "PermissionDenied")})
        await original(self, paths)

    monkeypatch.setattr(Operator, "delete", delete)
    wrong = [f"{folder}/none", bucket.url("none")]
    (report,) = objects("rm", "-r", "--json", *wrong, tmp_path / "one", tmp_path / "two", code=1)
    assert (report["removed"], report["bytes"]) == (1, 3)
    assert set(report["failures"]) == {*wrong, f"{tmp_path}/one/k"}
    assert (tmp_path / "one" / "k").exists()
    assert not (tmp_path / "two").exists()
    result = run("rm", folder, f"{folder}/big", code=1)
    assert "hint: -r takes what is below it" in result.stderr
    assert not (folder / "big").exists()


def test_an_unexpected_failure_ends_the_other_copies(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = []

    async def copy(source: str, target: str, **options: object) -> CopyReport:
        if source == "fails":
            raise RuntimeError("unexpected")
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append(source)
        raise AssertionError

    monkeypatch.setattr("aioprefetch.cli.transfer.copy", copy)
    assert "RuntimeError: unexpected" in run("cp", "a", "b", "fails", f"{tmp_path}/", code=1).stderr
    assert sorted(ended) == ["a", "b"]


def test_rm_of_a_whole_store_needs_a_yes(bucket: Bucket, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    bucket.put(a=b"1", d__b=b"2")
    monkeypatch.setenv("HOME", str(folder))
    with monkeypatch.context() as patch:  # A mistake in what is tested here must not cost a machine its files.
        for name in ("delete", "delete_all"):
            patch.setattr(Operator, name, None)
        for place in (bucket.url(), bucket.url().rstrip("/"), bucket.url("**"), bucket.url("*"), "/", folder, "/**"):
            assert "--yes" in run("rm", "-r", place, code=2).stderr
    assert folder.exists()
    assert lines("rm", "-r", "--dry-run", bucket.url()) == [bucket.url("a"), bucket.url("d/b")]
    run("rm", "-r", "--yes", bucket.url())
    assert bucket.paths() == []


def test_cp_of_standard_input_and_output(bucket: Bucket, tmp_path: Path) -> None:
    content = bytes(range(256)) * 10_000
    (report,) = map(json.loads, run("cp", "--json", "-", bucket.url("d/k"), stdin=content).stdout.splitlines())
    assert (report["copied"], report["bytes"]) == (1, len(content))
    assert run("cp", bucket.url("d/k"), "-").stdout_bytes == content
    run("cp", "-", tmp_path / "new" / "k", stdin=content)
    assert (tmp_path / "new" / "k").read_bytes() == content
    result = run("cp", "-n", "-", tmp_path / "new" / "k", stdin=b"other")
    assert "1 object left as it was, because of -n" in result.stderr
    assert (tmp_path / "new" / "k").read_bytes() == content
    assert run("cp", f"{tmp_path}/new/*", bucket.url("d/*"), "-").stdout_bytes == content * 2
    assert "NotFound" in run("cp", bucket.url("none"), "-", code=1).stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-", "-"], "- is one SRC or DST alone"),
        (["-", "a", "b/"], "- is one SRC or DST alone"),
        (["-r", "-", "b"], "- is one SRC or DST alone"),
        (["--json", "a", "-"], "--json and -n are not for a copy to standard output"),
        (["-", "memory://test/"], "hint: name the object: memory://test/NAME"),
    ],
)
def test_cp_of_standard_input_says_what_it_refuses(arguments: Sequence[str], message: str) -> None:
    assert message in run("cp", *arguments, code=2).stderr


def test_names_in_the_json_of_a_dry_run_are_whole(folder: Path, tmp_path: Path) -> None:
    name = "line\nbreak\x1b[31m"
    (folder / name).touch()
    (report,) = objects("cp", "--dry-run", "--json", "--glob", "line*", "-r", folder, tmp_path / "out")
    assert [(step["source"], step["target"]) for step in report["steps"]] == [
        (f"{folder}/{name}", f"{tmp_path}/out/{name}")
    ]
    assert lines("cp", "--dry-run", "--glob", "line*", "-r", folder, tmp_path / "out") == [
        f"copy {folder}/line\\nbreak\\x1b[31m -> {tmp_path}/out/line\\nbreak\\x1b[31m"
    ]


def test_bytes_a_second(folder: Path, bucket: Bucket, tmp_path: Path) -> None:
    """2.5 MB at 5 MB a second take half a second, but for the burst; a high rate is not felt."""
    began = time.monotonic()
    (report,) = objects("cp", "-r", "--json", "--bwlimit", "5MB", folder, bucket.url("x/"))
    assert (report["copied"], time.monotonic() - began > 0.2) == (3, True)
    (report,) = objects("sync", "--json", "--bwlimit", "1GiB", bucket.url("x/"), tmp_path / "back")
    assert (report["copied"], tree(tmp_path / "back")) == (3, tree(folder))
    began = time.monotonic()
    assert run("cat", "--bwlimit", "5MB", bucket.url("x/big")).stdout_bytes == (folder / "big").read_bytes()
    assert time.monotonic() - began > 0.2
    run("cp", "--bwlimit", "1GiB", "-", bucket.url("y"), stdin=b"from a pipe")
    assert run("cp", "--bwlimit", "1GiB", bucket.url("y"), "-").stdout_bytes == b"from a pipe"
    for rate in ("0", "fast", "-1"):
        assert "bytes_per_second" in run("cat", "--bwlimit", rate, bucket.url("y"), code=2).stderr

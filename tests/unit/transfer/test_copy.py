"""aioprefetch.copy: what is copied, where it goes, what is refused, and what the report says."""

import asyncio
import io
import os
import threading
from pathlib import Path
from typing import Any

import pytest

import aioprefetch as ap
from aioprefetch import Operator
from aioprefetch.errors import (
    AlreadyExists,
    ConfigInvalid,
    InvalidArgument,
    InvalidPath,
    InvalidType,
    IsADirectory,
    IsSameFile,
    NotFound,
    Unsupported,
)
from aioprefetch.testing.conformance.suite import checks
from tests.unit.transfer.trees import TREE, files_of, memory, put_tree, tree_of, wait_for_a_tick

TOTAL = sum(map(len, TREE.values()))
OVER_HTTP = ap.Operator.from_uri("http://127.0.0.1:9/")


async def test_a_directory_goes_into_files_and_back(tmp_path: Path) -> None:
    """What is below it, under the same names."""
    async with memory() as op:
        await put_tree(op, "x/", TREE)
        await op.write("beside", b"not copied")
        down = await ap.copy((op, "x/"), tmp_path / "files")
        assert files_of(tmp_path / "files") == TREE
        up = await ap.copy(f"file://{tmp_path}/files", (op, "y"))
        assert await tree_of(op, "y/") == TREE
    for report in (down, up):
        assert (report.copied, report.skipped, report.failures, report.bytes) == (len(TREE), 0, (), TOTAL)
        assert report.objects == len(TREE)


async def test_between_two_stores_and_within_one(random_name: Any) -> None:
    first, second = random_name(), random_name()
    async with (
        ap.Operator.from_uri(f"memory://{first}") as op,
        ap.Operator.from_uri(f"memory://{second}/root") as other,
    ):
        await put_tree(op, "x/", TREE)
        await ap.copy(f"memory://{first}/x/", f"memory://{second}/root/y/")
        assert await tree_of(other, "y/") == TREE
        await ap.copy((op, "x/"), (op, "z/"))
        assert await tree_of(op, "z/") == TREE
        await ap.copy((op, ""), (other, "all/"))
        assert await tree_of(other, "all/x/") == await tree_of(other, "all/z/") == TREE


async def test_what_describes_an_object_goes_along() -> None:
    described: Any = {"content_type": "text/x", "cache_control": "no-store", "user_metadata": {"a": "b"}}
    async with memory() as op, memory(block_bytes=1 << 16) as other:
        await op.write("small", b"1", **described)
        await op.write("large", bytes(1 << 20), **described)
        for source, target in ((op, op), (op, other), (other, op)):
            for name in ("small", "large"):
                await ap.copy((source, name), (target, f"{name}-copy"))
                found = await target.stat(f"{name}-copy")
                assert {key: getattr(found, key) for key in described} == described
                await ap.copy((target, f"{name}-copy"), (target, name))


@pytest.mark.parametrize("size", [0, 1, (2 << 16) - 1, 2 << 16, (2 << 16) + 1, 1 << 20])
async def test_one_object_of_any_size(tmp_path: Path, size: int) -> None:
    data = bytes(range(251)) * (size // 251 + 1)
    data = data[:size]
    async with memory(block_bytes=1 << 16) as op, memory() as other:
        await op.write("d/k", data)
        for target in (tmp_path / "file", (other, "k"), (op, "copy")):
            report = await ap.copy((op, "d/k"), target)
            assert (report.copied, report.bytes) == (1, size)
        assert (tmp_path / "file").read_bytes() == await other.read("k") == await op.read("copy") == data
        await ap.copy(tmp_path / "file", (other, "back"))
        assert await other.read("back") == data


async def test_a_local_file_whose_blocks_are_asked_for_together(tmp_path: Path) -> None:
    """The reads of its blocks begin together, and each may find no open file yet."""
    data = bytes(range(251)) * 20_000
    (tmp_path / "file").write_bytes(data)
    async with memory() as other:
        for copy in range(20):
            async with Operator.from_uri(tmp_path, block_bytes=1 << 18) as files:  # Files were not read by it before.
                await ap.copy((files, "file"), (other, f"{copy}"))
            assert await other.read(f"{copy}") == data


async def test_one_object_goes_to_a_path_or_into_a_directory(tmp_path: Path) -> None:
    async with memory() as op:
        await op.write("d/k", b"bytes")
        (tmp_path / "there").mkdir()
        await ap.copy((op, "d/k"), tmp_path / "name")
        await ap.copy((op, "d/k"), f"{tmp_path}/new/")
        await ap.copy((op, "d/k"), tmp_path / "there")
        await ap.copy((op, "d/k"), tmp_path / "deep" / "er" / "name")
        await ap.copy((op, "d/k"), (op, "e/"))
        await ap.copy((op, "d/k"), (op, ""))
        assert await op.read("e/k") == await op.read("k") == b"bytes"
    assert sorted(files_of(tmp_path)) == ["deep/er/name", "name", "new/k", "there/k"]


@pytest.mark.parametrize(
    ("source", "glob", "copied"),
    [
        ("x/", "*.csv", {"a.csv"}),
        ("x/", "**/*.csv", {"a.csv", "b/c.csv"}),
        ("x", "b/*", {"b/c.csv", "b/empty"}),
        ("x/*.csv", None, {"a.csv"}),
        ("x/**/*.csv", None, {"a.csv", "b/c.csv"}),
        ("x/b/**", None, {"c.csv", "d/e.parquet", "empty"}),
        ("x/b*/*", None, {"b/c.csv", "b/empty", "b c/ü&+%20.txt"}),
        ("x/?", None, {"z"}),
        ("x/[yz]", None, {"z"}),
    ],
)
@pytest.mark.parametrize("place", ["memory", "files"])
async def test_a_glob(tmp_path: Path, place: str, source: str, glob: str | None, copied: set[str]) -> None:
    """In a place, or beside it; names begin behind the last slash before the first wildcard."""
    async with memory() as op, memory() as target:
        await put_tree(op, "x/", TREE)
        found: Any = (op, source)
        if place == "files":
            await ap.copy((op, ""), tmp_path)
            found = f"{tmp_path}/{source}"
        await ap.copy(found, (target, "t"), glob=glob)
        assert set(await tree_of(target, "t/")) == copied


async def test_names_with_wildcards_are_names_where_they_are_files(tmp_path: Path) -> None:
    (tmp_path / "a[1].csv").write_bytes(b"file")
    (tmp_path / "b*").mkdir()
    (tmp_path / "b*" / "k").write_bytes(b"in it")
    async with memory() as op:
        await ap.copy(tmp_path / "a[1].csv", (op, "k"))
        await ap.copy(tmp_path / "b*", (op, "d/"))
        assert await op.read("k") == b"file"
        assert await tree_of(op, "d/") == {"k": b"in it"}
        (tmp_path / "b*" / "k.csv").write_bytes(b"found")
        assert (await ap.copy(f"{tmp_path}/b[*]/*.csv", (op, "e/"))).copied == 1
        assert await tree_of(op, "e/") == {"k.csv": b"found"}
        await op.write("s/x[1]", b"object")
        await ap.copy((op, "s/x[[]1]"), (op, "t/"))
        assert await op.read("t/x[1]") == b"object"


async def test_what_cannot_be_copied_is_refused_by_name(tmp_path: Path) -> None:
    """Before anything is written."""
    (tmp_path / "f").write_bytes(b"file")
    async with memory() as op, memory() as other:
        await put_tree(op, "x/", TREE)
        cases: list[tuple[Any, Any, dict[str, Any], type[Exception], str]] = [
            ((op, "missing"), (other, "k"), {}, NotFound, "missing"),
            ((op, "missing/"), (other, "k"), {}, NotFound, "missing/"),
            (tmp_path / "missing", (other, "k"), {}, NotFound, "missing"),
            (f"{tmp_path}/missing/", (other, "k"), {}, NotFound, "no such directory"),
            ((op, "x"), (other, "k"), {}, IsADirectory, "x/ copies what is below it"),
            ((op, "x/*.zip"), (other, "k"), {}, NotFound, "no object matches"),
            ((op, "x/"), (other, "k"), {"glob": "*.zip"}, NotFound, "no object matches"),
            ((op, "x/"), (other, "k"), {"glob": "[a"}, InvalidArgument, "cannot be understood"),
            ((op, "x/"), (op, "x/y/"), {}, InvalidArgument, "lies inside"),
            ((op, ""), (op, "y/"), {}, InvalidArgument, "lies inside"),
            (tmp_path, tmp_path / "in", {}, InvalidArgument, "lies inside"),
            ((op, "x/"), (op, "x/"), {}, IsSameFile, "are the same"),
            ((op, "x/z"), (op, "x/z"), {}, IsSameFile, "are the same"),
            (tmp_path / "f", f"file://{tmp_path}/./f", {}, IsSameFile, "are the same"),
            ((op, "x/z"), (op, "x/"), {}, IsSameFile, "are the same"),
            ((op, "x/z"), (other, "k"), {"src_options": {"region": "r"}}, ConfigInvalid, "src_options"),
            ("nothing://a", (other, "k"), {}, ConfigInvalid, "unknown scheme"),
            ("memory://name/k", (other, "k"), {"src_options": {"reginon": 1}}, ConfigInvalid, "reginon"),
            (3, (other, "k"), {}, InvalidType, "src must be"),
            ((op, 3), (other, "k"), {}, InvalidType, "string"),
            ((other, "k"), (op,), {}, InvalidType, "dst must be"),
            ("", (other, "k"), {}, InvalidArgument, "src is empty"),
            (tmp_path / "f", Path("s3://bucket/k"), {}, ConfigInvalid, "'s3://bucket/k'"),
            ("s3:/bucket/k", tmp_path / "k", {}, ConfigInvalid, "'s3://bucket/k'"),
            ((op, "x/z"), (other, "k"), {"concurrency": 0}, ConfigInvalid, "concurrency"),
            ((op, "x/z"), (other, "k"), {"on_progress": 3}, InvalidType, "on_progress"),
            ((op, "x/z"), (other, "k"), {"skip_same": 1}, InvalidType, "skip_same"),
        ]
        for source, target, options, error, text in cases:
            with pytest.raises(error, match=text):
                await ap.copy(source, target, **options)
        assert await tree_of(other, "") == {}
        assert await tree_of(op, "x/") == TREE
    assert files_of(tmp_path) == {"f": b"file"}


async def test_a_glob_beside_its_destination() -> None:
    """A listing of one directory does not see what is copied below it."""
    async with memory() as op:
        await put_tree(op, "x/", TREE)
        await ap.copy((op, "x/*.csv"), (op, "x/copies/"))
        assert await tree_of(op, "x/copies/") == {"a.csv": TREE["a.csv"]}


async def test_a_directory_without_objects(tmp_path: Path) -> None:
    (tmp_path / "empty" / "in").mkdir(parents=True)
    async with memory() as op:
        assert await ap.copy(tmp_path / "empty", (op, "x/")) == ap.CopyReport()
        await op.create_dir("d/")
        assert (await ap.copy((op, "d/"), tmp_path / "out")).objects == 0


async def test_what_is_there_is_not_replaced_where_the_caller_says_so(tmp_path: Path) -> None:
    """One object: an error. Several: a failure for each, and the others are copied."""
    async with memory() as op, memory() as other:
        await put_tree(op, "x/", TREE)
        for target in ((other, "y/"), (op, "y/"), tmp_path):
            await ap.copy((op, "x/z"), target if isinstance(target, tuple) else f"{tmp_path}/")
            with pytest.raises(AlreadyExists):
                await ap.copy((op, "x/z"), target, overwrite=False)
            report = await ap.copy((op, "x/"), target, overwrite=False)
            assert (report.copied, report.skipped) == (len(TREE) - 1, 0)
            assert [(one.path, type(one.error)) for one in report.failures] == [("x/z", AlreadyExists)]
            with pytest.raises(AlreadyExists) as caught:
                report.raise_failures()
            assert caught.value.context["failures"] == {"x/z": "AlreadyExists"}
        assert await tree_of(other, "y/") == await tree_of(op, "y/") == TREE == files_of(tmp_path)


@checks("reliability:W25")
@pytest.mark.parametrize(
    "key",
    [
        *("a//b", "/a", "a/b//c", "a" * 256, ".aioprefetch-0123456789abcdef.part"),
        *("../b", "a/../b", "a/./b", "..", "c/..", "a\0b"),
    ],
)
async def test_keys_that_no_file_can_have_fail_alone(tmp_path: Path, key: str) -> None:
    """Another key would be the same file, or one outside. Stores have keys that no operator writes."""
    async with memory() as op:
        await op.write("x/a/b", b"right")
        assert isinstance(op.service, ap.services.Memory)
        op.service.store.put(ap.values.WriteRequest(path=f"x/{key}"), b"wrong")
        report = await ap.copy((op, "x/"), tmp_path / "out")
        assert [(one.path, type(one.error)) for one in report.failures] == [(f"x/{key}", InvalidPath)]
        assert report.copied == 1
    assert files_of(tmp_path / "out") == {"a/b": b"right"}


@checks("reliability:W25")
async def test_a_file_and_a_directory_of_one_name(tmp_path: Path) -> None:
    """Stores have both; of files there is the one that came first."""
    async with memory() as op:
        await put_tree(op, "x/", {"a": b"1", "a/b": b"2"})
        report = await ap.copy((op, "x/"), tmp_path / "out", concurrency=1)
    assert files_of(tmp_path / "out") == {"a": b"1"}
    assert [(one.path, one.error.kind) for one in report.failures] == [("x/a/b", "NotADirectory")]


@checks("reliability:W28")
async def test_links_below_the_destination_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "b").symlink_to(tmp_path / "outside")
    async with memory() as op:
        await put_tree(op, "x/", TREE)
        report = await ap.copy((op, "x/"), tmp_path / "out")
    assert files_of(tmp_path / "outside") == {}
    assert {failure.path for failure in report.failures} == {"x/b/c.csv", "x/b/d/e.parquet", "x/b/empty"}
    assert {type(failure.error) for failure in report.failures} == {InvalidPath}


async def test_the_destination_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    async with memory() as op:
        await put_tree(op, "x/", TREE)
        await ap.copy((op, "x/"), tmp_path / "link")
        await ap.copy((op, "x/"), f"{tmp_path}/link/deeper/")
    assert files_of(tmp_path / "disk") == {**TREE, **{f"deeper/{name}": data for name, data in TREE.items()}}


async def test_progress_adds_up(tmp_path: Path) -> None:
    """The total is unknown while the listing goes on; what a callback raises is its own affair."""
    seen: list[ap.CopyProgress] = []

    def on_progress(progress: ap.CopyProgress) -> None:
        seen.append(progress)
        raise ZeroDivisionError

    async with memory(block_bytes=1 << 16) as op:
        await put_tree(op, "x/", {**TREE, "large": bytes(20 << 20)})
        await ap.copy((op, "x/"), tmp_path, on_progress=on_progress)
        assert sum(one.step_bytes for one in seen) == seen[-1].bytes == seen[-1].total == TOTAL + (20 << 20)
        assert (seen[-1].objects, seen[-1].objects_total) == (len(TREE) + 1, len(TREE) + 1)
        assert [one.bytes for one in seen] == sorted(one.bytes for one in seen)
        assert max(one.step_bytes for one in seen) == 8 << 20  # A large object shows its steps.
        seen.clear()
        await ap.copy((op, "x/"), tmp_path, on_progress=on_progress, skip_same=True)
        assert (seen[-1].bytes, seen[-1].total, seen[-1].skipped) == (0, 0, len(TREE) + 1)


async def test_a_report_shows_what_it_is() -> None:
    async with memory() as op, memory() as other:
        await put_tree(op, "x/", {f"{number}": b"1" for number in range(5)})
        await put_tree(other, "y/", {f"{number}": b"2" for number in range(5)})
        report = await ap.copy((op, "x/"), (other, "y/"), overwrite=False)
    assert repr(report).startswith(
        "CopyReport(copied=0, skipped=0, failed=5, bytes=0, bytes_skipped=0, failures={'x/0'"
    )
    assert repr(report).count("AlreadyExists") == 3
    with pytest.raises(AttributeError):
        report.copied = 3  # type: ignore[misc]


async def test_the_operators_of_the_caller_stay_open(tmp_path: Path) -> None:
    async with memory() as op:
        await op.write("k", b"bytes")
        runtime = op.runtime()
        await ap.copy((op, "k"), tmp_path / "f")
        assert runtime.is_usable()
        assert op.runtime() is runtime


def test_without_a_loop(tmp_path: Path, random_name: Any) -> None:
    name = random_name()
    with ap.sync.BlockingOperator(ap.Operator.from_uri(f"memory://{name}")) as op:
        for path, data in TREE.items():
            op.write(f"x/{path}", data)
        wait_for_a_tick()
        report = ap.sync.copy(f"memory://{name}/x/", tmp_path / "out")
        assert report.copied == len(TREE)
        assert files_of(tmp_path / "out") == TREE
        assert ap.sync.copy(f"memory://{name}/x/", tmp_path / "out", skip_same=True).skipped == len(TREE)
        op.download("x/", tmp_path / "verb")
        assert files_of(tmp_path / "verb") == TREE
        assert op.read_at("x/z", 0, 4) == TREE["z"]
        (tmp_path / "verb" / "z").write_bytes(b"newer")
        op.upload(tmp_path / "verb", "x/")
        assert op.read_at("x/z", 0, 5) == b"newer"
        ap.sync.copy((op, "x/z"), (op, "copied"))
        assert op.read("copied") == b"newer"
        with pytest.raises(NotFound):
            ap.sync.copy((op.operator, "missing"), tmp_path / "out")


# --- directories by the verbs of an operator ------------------------------------------------------------------------


async def test_an_operator_downloads_and_uploads_directories(tmp_path: Path) -> None:
    counts: list[int] = []
    async with memory() as op:
        await put_tree(op, "x/", TREE)
        metadata = await op.download("x/", tmp_path / "out", on_progress=counts.append)
        assert (metadata.path, metadata.kind, metadata.size) == ("x/", "directory", TOTAL)
        assert sum(counts) == TOTAL
        assert files_of(tmp_path / "out") == TREE
        seen: list[int] = []
        uploaded = await op.upload(str(tmp_path / "out"), "y/", on_progress=seen.append)
        assert sum(seen) == uploaded.size
        assert (uploaded.kind, uploaded.size) == ("directory", TOTAL)
        assert await tree_of(op, "y/") == TREE


async def test_a_directory_that_fails_in_part_says_where(tmp_path: Path) -> None:
    async with memory() as op:
        await put_tree(op, "x/", {**TREE, "a//b": b"no file"})
        with pytest.raises(InvalidPath) as caught:
            await op.download("x/", tmp_path)
        assert caught.value.operation == "download"
        assert caught.value.context["failures"] == {"x/a//b": "InvalidPath"}
        assert files_of(tmp_path) == TREE
        for wrong in ("missing/", "x/z/"):
            with pytest.raises(NotFound) as missing:
                await op.download(wrong, tmp_path)
            assert missing.value.operation == "download"
        with pytest.raises(NotFound) as gone:
            await op.upload(tmp_path / "missing", "y/")
        assert gone.value.operation == "upload"
        with pytest.raises(InvalidArgument, match="content_type is an option for one object"):
            await op.upload(tmp_path, "y/", content_type="text/x")
        with pytest.raises(InvalidType):
            await op.download("x/", 3)  # type: ignore[arg-type]


@checks("reliability:W13")
async def test_a_local_file_that_changes_while_it_is_uploaded_is_no_object(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(20 << 20))
    reads = 0

    def written_to(descriptor: Any) -> os.stat_result:
        nonlocal reads
        status = stat_now(descriptor)
        reads += 1
        if reads == 1:  # At its beginning.
            with open(path, "ab") as file:
                file.write(b"more")
        return status

    stat_now = os.fstat
    async with memory() as op:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fstat", written_to)
            with pytest.raises(ap.ObjectChanged, match="while it was uploaded"):
                await op.upload(path, "k")
        assert not await op.exists("k")


async def test_a_directory_without_its_slash_is_hinted_at(tmp_path: Path) -> None:
    async with memory() as op:
        await op.write("d/k", b"1")
        with pytest.raises(NotFound, match="'d' is a directory: 'd/' downloads what is below it"):
            await op.download("d", tmp_path / "d")
        for verb, advice in ((op.copy, r"aioprefetch\.copy copies"), (op.move, "'d/' moves what is below it")):
            with pytest.raises(NotFound, match=f"'d' is a directory: {advice}"):
                await verb("d", "e")
        with pytest.raises(NotFound) as missing:
            await op.download("nothing", tmp_path / "d")
        assert "hint" not in missing.value.context


# --- a local file as an object --------------------------------------------------------------------------------------


async def test_a_local_file_goes_into_a_directory_under_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "file.csv").write_bytes(b"data")
    async with memory() as op:
        seen: list[int] = []
        metadata = await op.upload(tmp_path / "file.csv", "y/", content_type="text/csv", on_progress=seen.append)
        assert seen == [4]
        assert metadata.path == "y/file.csv"
        assert await tree_of(op, "") == {"y/file.csv": b"data"}
        assert (await op.stat("y/file.csv")).content_type == "text/csv"


async def test_a_local_file_that_cannot_be_read_is_an_error_of_ours(tmp_path: Path) -> None:
    async with memory() as op:
        with pytest.raises(IsADirectory, match="end the key with / to upload what is below") as directory:
            await op.upload(tmp_path, "k")
        assert (directory.value.operation, directory.value.path) == ("upload", str(tmp_path))
        with pytest.raises(NotFound) as missing:
            await op.upload(tmp_path / "missing", "k")
        assert (missing.value.operation, missing.value.path) == ("upload", f"{tmp_path}/missing")
        (tmp_path / "file").write_bytes(b"x")
        await op.write("there", b"y")
        with pytest.raises(AlreadyExists, match="upload 'there'"):
            await op.upload(tmp_path / "file", "there", if_not_exists=True)
        await op.delete("there")
        assert await tree_of(op, "") == {}


@checks("reliability:W42")
@pytest.mark.parametrize("begins_with", ["open", "read"])
async def test_a_file_whose_upload_is_cancelled_is_closed_by_the_thread_at_work(
    tmp_path: Path, begins_with: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"data")
    at_work, may_go_on, ended = threading.Event(), threading.Event(), threading.Event()
    opened: list[Any] = []

    class SlowFile(io.FileIO):
        def __init__(self, path: Any) -> None:
            if begins_with == "open":
                at_work.set()
                may_go_on.wait(10)
            super().__init__(path)
            opened.append(self)

        def read(self, size: int | None = -1, /) -> Any:
            at_work.set()
            may_go_on.wait(10)
            assert not self.closed
            return super().read(size)

        def close(self) -> None:
            super().close()
            ended.set()

    monkeypatch.setattr("aioprefetch.verbs.writer.io.FileIO", SlowFile)
    async with memory() as op:
        task = asyncio.create_task(op.upload(tmp_path / "file", "k"))
        await asyncio.to_thread(at_work.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not ended.is_set()
        may_go_on.set()
        assert await asyncio.to_thread(ended.wait, 10)
        assert [file.closed for file in opened] == [True]
        assert await tree_of(op, "") == {}


# --- readers that are kept ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [tuple, list])
def test_a_blocking_operator_reads_what_was_copied_to_it(kind: type) -> None:
    with ap.sync.BlockingOperator(memory()) as op:
        for path in ("k", "d/k"):
            op.write(path, b"older")
            assert op.read_at(path, 0, 5) == b"older"
        op.write("s/k", b"newer")
        ap.sync.copy(kind((op, "s/k")), kind((op, "k")))
        assert op.read_at("k", 0, 5) == b"newer"
        ap.sync.copy(kind((op, "s/")), kind((op, "d")))
        assert op.read_at("d/k", 0, 5) == b"newer"


# --- refused before a request ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop_at_failure", [False, True])
async def test_a_store_that_cannot_write_is_refused_before_anything_is_listed(stop_at_failure: bool) -> None:
    async with memory() as op, OVER_HTTP as http:
        await op.write("x/k", b"data")
        with pytest.raises(Unsupported, match="the http service does not support write") as refused:
            await ap.copy((op, "x/"), (http, "y/"), stop_at_failure=stop_at_failure)
        assert refused.value.operation == "copy"
        assert op.statistics["object_list_request"] == 0


async def test_two_globs_are_refused() -> None:
    async with memory() as op:
        await put_tree(op, "x/", TREE)
        with pytest.raises(InvalidArgument, match="src has a glob already; give glob= with a directory"):
            await ap.copy((op, "x/*.csv"), (op, "y/"), glob="*.csv")
        with pytest.raises(InvalidType, match="skip_same must be True, False, 'size' or None"):
            await ap.copy((op, "x/"), (op, "y/"), skip_same=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["t//z", "t/" + "n" * 256, "t/z/.aioprefetch-0123456789abcdef.part"])
async def test_the_error_of_a_name_that_no_file_can_have_names_the_source(tmp_path: Path, key: str) -> None:
    async with memory() as op:
        await op.write(key, b"data")
        report = await ap.copy((op, "t/"), tmp_path)
        (failure,) = report.failures
        assert isinstance(failure.error, InvalidPath)
        assert (failure.path, failure.error.path, failure.error.operation) == (key, key, "copy")


async def test_files_refuse_an_encoding_that_they_would_lose(tmp_path: Path) -> None:
    """Bytes that are compressed mean something else without it."""
    op = ap.Operator.from_uri(f"file://{tmp_path}")
    with pytest.raises(Unsupported, match="content_encoding='gzip'"):
        await op.write("k", b"data", content_encoding="gzip")
    await op.write("k", b"data", content_type="text/csv")
    assert files_of(tmp_path) == {"k": b"data"}

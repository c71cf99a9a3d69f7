"""``mv`` deletes what has been copied, if it is still that; a run that would write over what it reads is refused."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import aioprefetch as ap
from aioprefetch.accessor.protocols import Accessor
from aioprefetch.fsspec import AioPrefetchFileSystem, MemoryFileSystem
from aioprefetch.fsspec.tree import Tree
from aioprefetch.layers import ErrorContextLayer, Layer
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import CopyRequest, Metadata, WriteRequest
from tests.stores.verb_layer import VerbLayer
from tests.unit.fsspec.s3_words import Bucket


class Overwriting(VerbLayer):
    """Another client writes an object as soon as it is copied."""

    async def copy(self, inner: Accessor, request: CopyRequest) -> Metadata:
        copied = await inner.copy(request)
        await inner.write(WriteRequest(path=request.path), b"newer")
        return copied


@pytest.fixture
def overwritten(random_name: Callable[[], str]) -> Iterator[AioPrefetchFileSystem]:
    operator = ap.Operator.from_uri(f"memory://{random_name()}").layer(Overwriting(), inside=ErrorContextLayer)
    fs = AioPrefetchFileSystem(operator)
    fs.pipe({"d/a": b"old", "d/e/b": b"old too"})
    yield fs
    fs.close()


@checks("reliability:W12")
@pytest.mark.parametrize(
    ("source", "target"),
    [("d/a", "moved"), (["d/a", "d/e/b"], "to/"), ("d", "to"), ("d/*", "to/"), (["d", "none"], "to/")],
)
def test_what_was_overwritten_meanwhile_stays(
    overwritten: AioPrefetchFileSystem, source: str | list[str], target: str
) -> None:
    if source == ["d", "none"]:
        overwritten.pipe("none/x", b"old")
    with pytest.raises(ap.ObjectChanged, match="at its old place too"):
        overwritten.mv(source, target, recursive=source != "d/a")
    there = {path: overwritten.cat_file(path) for path in overwritten.find("")}
    assert there["d/a"] == b"newer"
    assert b"old" in there.values()


def over(bucket: Bucket, layer: Layer) -> AioPrefetchFileSystem:
    """A file system over the bucket, with a layer next to the store."""
    operator = bucket.fs.place_of(f"{bucket.name}/top").operator
    return AioPrefetchFileSystem(operator.layer(layer, inside=ErrorContextLayer))


@checks("reliability:W12")
def test_what_was_overwritten_meanwhile_stays_if_the_copy_is_placed(bucket: Bucket) -> None:
    fs = over(bucket, Overwriting())
    with pytest.raises(ap.ObjectChanged, match="at its old place too"):
        fs.mv("top", "moved", StorageClass="STANDARD_IA")
    assert fs.cat_file("top") == b"newer"
    fs.close()


class NothingCopied(VerbLayer):
    async def copy(self, inner: Accessor, request: CopyRequest) -> Metadata:
        return Metadata(path=request.target)


@checks("reliability:W02")
@pytest.mark.parametrize("placed", [{}, {"StorageClass": "STANDARD_IA"}])
def test_without_a_proof_nothing_is_deleted(bucket: Bucket, placed: dict[str, str]) -> None:
    fs = over(bucket, NothingCopied())
    with pytest.raises(ap.ProtocolError, match="the copy is not there"):
        fs.mv("top", "moved", **placed)
    assert fs.exists("top")
    fs.close()


@checks("reliability:W22")
@pytest.mark.parametrize("verb", ["cp", "mv"])
@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("o/b/", "o"),
        (["o/b/x", "o/z/x"], "o/all/"),
        (["o/b/x", "o/z/x"], ["o/1", "o/1"]),
        (["o/y", "o/z/x"], ["o/z/x", "o/1"]),
        (["o/b/", "o/z/"], "o/all/"),
    ],
)
def test_a_run_that_would_write_over_what_it_reads_is_refused(
    fs: AioPrefetchFileSystem, verb: str, source: str | list[str], target: str | list[str]
) -> None:
    tree = {"o/b/x": b"1", "o/b/b/x": b"2", "o/z/x": b"3", "o/y": b"4"}
    fs.pipe(tree)
    before = fs.find("")
    with pytest.raises(ap.InvalidArgument, match="would be"):
        getattr(fs, verb)(source, target, recursive=source == "o/b/" or source == ["o/b/", "o/z/"])
    assert fs.find("") == before
    assert fs.cat(list(tree)) == tree


@checks("reliability:W22")
@pytest.mark.parametrize("verb", ["cp", "mv"])
def test_a_directory_alone_is_not_what_a_run_reads(random_name: Callable[[], str], verb: str) -> None:
    fs = AioPrefetchFileSystem(ap.Operator.from_uri(f"memory://{random_name()}"))
    fs.pipe({"o/o": b"1", "o/x": b"2"})
    getattr(fs, verb)("o/", "", recursive=True)
    found = {path: fs.cat_file(path) for path in fs.find("") if path in ("o", "x", "o/x")}
    assert found == {"o": b"1", "x": b"2", **({"o/x": b"2"} if verb == "cp" else {})}
    fs.close()


@checks("reliability:W22")
def test_a_run_through_several_stores_is_refused_too(random_name: Callable[[], str]) -> None:
    fs = MemoryFileSystem()
    first, second, third = (f"{random_name()}" for _ in range(3))
    fs.pipe({f"{first}/x": b"1", f"{second}/y": b"2"})
    with pytest.raises(ap.InvalidArgument, match="which is to be copied itself"):
        fs.cp([f"{first}/x", f"{second}/y"], [f"{second}/y", f"{third}/z"])
    assert fs.cat_file(f"{second}/y") == b"2"
    fs.close()


@checks("reliability:W24")
def test_a_name_that_no_file_can_have_hides_no_other(fs: AioPrefetchFileSystem, tmp_path: Path) -> None:
    fs.pipe({"o/b/x": b"1", "o/z/x": b"3", "o/c": b"4"})
    with pytest.raises(ap.InvalidArgument, match="would be one object"):
        fs.get(["o/c", "o/b/x", "o/z/x"], [f"{tmp_path}/\0", f"{tmp_path}/x", f"{tmp_path}/x"])
    assert list(tmp_path.iterdir()) == []


@checks("reliability:W24")
def test_two_objects_get_no_one_file_and_two_files_no_one_object(fs: AioPrefetchFileSystem, tmp_path: Path) -> None:
    fs.pipe({"o/b/x": b"1", "o/z/x": b"3"})
    with pytest.raises(ap.InvalidArgument, match="would be one object"):
        fs.get(["o/b/x", "o/z/x"], f"{tmp_path}/all/")
    assert not (tmp_path / "all").exists()
    for name in ("b", "z"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_bytes(b"x")
    with pytest.raises(ap.InvalidArgument, match="would be one object"):
        fs.put([f"{tmp_path}/b/x", f"{tmp_path}/z/x"], "o/all/")
    assert not fs.exists("o/all")


def test_files_are_renamed(tmp_path: Path) -> None:
    """With their modes, and two names of one file are not taken for two files."""
    file = tmp_path / "private"
    file.write_bytes(b"secret")
    file.chmod(0o600)
    (tmp_path / "other").hardlink_to(file)
    fs = AioPrefetchFileSystem(ap.Operator.from_uri(tmp_path.as_uri()))
    fs.mv("private", "other")
    assert not file.exists()
    fs.mv("other", "d/moved")
    moved = tmp_path / "d" / "moved"
    assert (moved.read_bytes(), moved.stat().st_mode & 0o777) == (b"secret", 0o600)
    fs.mv("d", "e", recursive=True)
    assert (tmp_path / "e" / "moved").stat().st_mode & 0o777 == 0o600
    fs.close()


def test_a_directory_whose_name_the_run_writes_stays_a_directory(
    random_name: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked at before the run, and not again: then an object of the run would have its name."""
    fs = MemoryFileSystem(skip_instance_cache=True)
    top, looks = random_name(), list[bool]()
    is_object = Tree.is_object

    async def look(tree: Tree, name: str) -> bool:
        found = await is_object(tree, name)
        looks.extend([found] * (name == f"{top}/a/b"))
        return found

    monkeypatch.setattr(Tree, "is_object", look)
    fs.pipe_file(f"{top}/a/b/b", b"data")
    fs.cp(f"{top}/a/b/", f"{top}/a/", recursive=True)
    assert fs.find(top) == [f"{top}/a/b", f"{top}/a/b/b"]
    assert looks == [False]

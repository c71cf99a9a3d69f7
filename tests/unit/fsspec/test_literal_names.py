"""Verbs over names with wildcards: a name that is there is that name, and only what is not there is a pattern."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pytest

import aioprefetch as ap
from aioprefetch.accessor.protocols import Accessor
from aioprefetch.fsspec import AioPrefetchFileSystem, LocalFileSystem
from aioprefetch.testing import FaultLayer, Injection
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import ListPage, ListRequest
from tests.profile import in_turns
from tests.stores.verb_layer import VerbLayer
from tests.unit.fsspec.s3_words import Bucket

Tree = dict[str, bytes]

NAMES: Tree = {
    "data[1].csv": b"it",
    "data1.csv": b"other",
    "d[1]/x": b"in it",
    "d[1]/y/z": b"deep",
    "d1": b"beside",
    "q?": b"1",
    "qq": b"2",
}


class Folder:
    """A directory of a file system, with objects in it."""

    def __init__(self, fs: AioPrefetchFileSystem, root: str) -> None:
        self.fs, self.root = fs, root
        fs.pipe({self.of(name): data for name, data in NAMES.items()})

    def of(self, name: str) -> str:
        return f"{self.root}/{name}"

    def tree(self, below: str = "") -> Tree:
        """The objects below a prefix."""
        self.fs.invalidate_cache()
        names = self.fs.find(self.root)
        found = {name.removeprefix(f"{self.root}/"): self.fs.cat_file(name) for name in names}
        return {name.removeprefix(below): data for name, data in found.items() if name.startswith(below)}


@pytest.fixture(params=["memory", "operator", "file", "s3"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, random_name: Callable[[], str]) -> Iterator[Folder]:
    if request.param == "s3":
        bucket: Bucket = request.getfixturevalue("bucket")
        yield Folder(bucket.fs, f"{bucket.name}/here")
        return
    fs: AioPrefetchFileSystem
    if request.param == "file":
        fs, root = LocalFileSystem(), f"{tmp_path}/here"
    elif request.param == "operator":
        fs, root = AioPrefetchFileSystem(ap.Operator.from_uri(f"memory://{random_name()}")), "here"
    else:
        fs, root = fsspec.filesystem("aioprefetch+memory"), random_name()
    yield Folder(fs, root)
    fs.close()


def without(*names: str) -> Tree:
    return {name: data for name, data in NAMES.items() if name not in names}


@pytest.mark.parametrize(
    ("options", "in_list"),
    in_turns([{}, {"recursive": True}, {"recursive": True, "maxdepth": 1}], [False, True]),
)
class TestAnObject:
    """Given alone and in a list, with ``recursive`` and without."""

    @checks("reliability:W27")
    def test_is_read_and_removed(self, folder: Folder, options: Any, in_list: bool) -> None:
        for name in ("q?", "data[1].csv"):
            path = folder.of(name)
            found = folder.fs.cat([path] if in_list else path, recursive=bool(options))
            assert found == ({path: NAMES[name]} if in_list else NAMES[name])
            folder.fs.rm([path] if in_list else path, **options)
        assert folder.tree() == without("q?", "data[1].csv")

    @checks("reliability:W26")
    def test_is_copied_and_moved(self, folder: Folder, options: Any, in_list: bool) -> None:
        for name in ("q?", "data[1].csv"):
            path: Any = [folder.of(name)] if in_list else folder.of(name)
            folder.fs.cp(path, folder.of("into/"), **options)
            folder.fs.mv(path, folder.of("moved/"), **options)
        both = {name: NAMES[name] for name in ("q?", "data[1].csv")}
        assert folder.tree("into/") == folder.tree("moved/") == both
        kept = {name: data for name, data in folder.tree().items() if not name.startswith(("into/", "moved/"))}
        assert kept == without("q?", "data[1].csv")

    def test_is_got_and_put(self, folder: Folder, options: Any, in_list: bool, tmp_path: Path) -> None:
        for name in ("q?", "data[1].csv"):
            path: Any = [folder.of(name)] if in_list else folder.of(name)
            folder.fs.get(path, f"{tmp_path}/got/", **options)
        both = {name: NAMES[name] for name in ("q?", "data[1].csv")}
        assert {file.name: file.read_bytes() for file in (tmp_path / "got").iterdir()} == both
        (tmp_path / "got" / "data1.csv").write_bytes(b"matched by the one")
        (tmp_path / "got" / "qq").write_bytes(b"and by the other")
        for name in both:
            file: Any = f"{tmp_path}/got/{name}"
            folder.fs.put([file] if in_list else file, folder.of("put/"), **options)
        assert folder.tree("put/") == both


def test_an_object_gets_the_name_that_is_given(folder: Folder, tmp_path: Path) -> None:
    """As a plain name does: the target is a directory only where it ends with a slash, or is one."""
    fs = folder.fs
    fs.cp(folder.of("q?"), folder.of("copied"))
    fs.get(folder.of("q?"), f"{tmp_path}/got[1]")
    fs.put(f"{tmp_path}/got[1]", folder.of("put"))
    fs.mv(folder.of("q?"), folder.of("moved"))
    assert [folder.tree()[name] for name in ("copied", "put", "moved", "qq")] == [b"1", b"1", b"1", b"2"]
    assert "q?" not in folder.tree()


def test_a_directory_is_that_directory(folder: Folder, tmp_path: Path) -> None:
    fs, path = folder.fs, folder.of("d[1]")
    below = {"x": b"in it", "y/z": b"deep"}
    fs.cp(path, folder.of("copied"), recursive=True)
    fs.cp(f"{path}/", folder.of("copied again/"), recursive=True)
    fs.get(path, f"{tmp_path}/got[1]", recursive=True)
    (tmp_path / "got1").mkdir()
    fs.put(f"{tmp_path}/got[1]", folder.of("put"), recursive=True)
    for name in ("copied/", "copied again/", "put/"):
        assert folder.tree(name) == below
    assert fs.cat(path, recursive=True, on_error="omit") == {f"{path}/{name}": data for name, data in below.items()}
    with pytest.raises(IsADirectoryError):
        fs.mv(path, folder.of("moved"))
    fs.mv(path, folder.of("moved"), recursive=True)
    assert folder.tree("moved/") == below
    assert folder.tree("d") == {"1": b"beside", "ata[1].csv": b"it", "ata1.csv": b"other"}
    fs.cp(folder.of("moved"), path, recursive=True)
    with suppress(IsADirectoryError):
        fs.rm(path)  # It stays without ``recursive``, and so does what its name would match.
    assert folder.tree("d[1]/") == below
    assert folder.tree()["d1"] == b"beside"
    fs.rm(f"{path}/", recursive=True)
    assert folder.tree("d") == {"1": b"beside", "ata[1].csv": b"it", "ata1.csv": b"other"}


def test_without_the_name_it_is_a_pattern(folder: Folder) -> None:
    fs = folder.fs
    fs.rm([folder.of("data[1].csv"), folder.of("q?")])
    assert fs.cat(folder.of("data[1].csv")) == {folder.of("data1.csv"): b"other"}
    fs.mv(folder.of("q?"), folder.of("moved/"))
    fs.rm(folder.of("data[1].csv"))
    assert folder.tree() == {"d[1]/x": b"in it", "d[1]/y/z": b"deep", "d1": b"beside", "moved/qq": b"2"}
    with pytest.raises(FileNotFoundError):
        fs.rm(folder.of("data[1].csv"))


@checks("reliability:W27")
def test_a_listing_that_is_kept_does_not_decide(folder: Folder) -> None:
    """Another client has written the object, or deleted it, since."""
    fs, other = folder.fs, Folder(folder.fs, folder.of("other"))
    fs.rm(folder.of("q?"))
    fs.ls(folder.root)
    place = fs.place_of(folder.of("q?"))
    ap.sync.run(place.operator.write(place.key, b"by another"))
    fs.rm(folder.of("q?"))
    assert folder.tree()["qq"] == b"2"
    assert "q?" not in folder.tree()
    fs.ls(folder.root)
    place = fs.place_of(folder.of("data[1].csv"))
    ap.sync.run(place.operator.delete(place.key))
    assert fs.expand_path(folder.of("data[1].csv")) == [folder.of("data1.csv")]
    assert other.tree() == NAMES


def test_glob_takes_patterns_and_expand_path_names_first(folder: Folder) -> None:
    fs = folder.fs
    assert fs.glob(folder.of("data[1].csv")) == [folder.of("data1.csv")]
    assert fs.expand_path(folder.of("data[1].csv")) == [folder.of("data[1].csv")]
    assert fs.expand_path([folder.of("q?"), folder.of("data?.csv")]) == [folder.of("data1.csv"), folder.of("q?")]
    assert fs.expand_path(folder.of("d[1]"), recursive=True, maxdepth=1) == [
        folder.of(name) for name in ("d[1]", "d[1]/x", "d[1]/y")
    ]


@checks("reliability:W32")
def test_a_refusal_is_no_absence(random_name: Callable[[], str]) -> None:
    op = ap.Operator.from_uri(f"memory://{random_name()}")
    AioPrefetchFileSystem(op).pipe("data1.csv", b"other")
    refuse = FaultLayer((Injection(operation="stat", path="data[1].csv", error=ap.PermissionDenied, times=None),))
    fs = AioPrefetchFileSystem(op.layer(refuse, inside=ap.layers.ErrorContextLayer))
    for verb in (fs.rm, fs.cat, lambda path: fs.cp(path, "x"), lambda path: fs.mv(path, "x")):
        with pytest.raises(PermissionError):
            verb("data[1].csv")
    assert fs.find("") == ["data1.csv"]
    fs.close()


@checks("reliability:W28")
def test_a_link_that_leads_nowhere_is_removed_itself(tmp_path: Path) -> None:
    (tmp_path / "data[1].csv").symlink_to("nowhere")
    (tmp_path / "data1.csv").write_bytes(b"other")
    fs = LocalFileSystem()
    fs.rm(f"{tmp_path}/data[1].csv")
    assert [path.name for path in tmp_path.iterdir()] == ["data1.csv"]
    fs.close()


def test_a_wildcard_in_the_name_of_a_bucket_is_one_of_a_pattern(bucket: Bucket) -> None:
    assert bucket.fs.expand_path(f"?{bucket.name[1:]}/top") == [f"{bucket.name}/top"]


def test_a_name_without_wildcards_costs_no_request_more(bucket: Bucket) -> None:
    bucket.fs.rm(f"{bucket.name}/top")
    assert bucket.requests() == ["DELETE 204"]
    bucket.fs.expand_path(f"{bucket.name}/d/[a]")
    assert bucket.requests() == ["HEAD 404", "GET 200", "GET 200"]


class Hostile(VerbLayer):
    """Lists a name that leads out of its directory."""

    async def list_page(self, inner: Accessor, request: ListRequest) -> ListPage:
        page = await inner.list_page(request)
        return replace(page, entries=tuple(replace(entry, path="d[1]/../../evil/x") for entry in page.entries))


def test_a_name_that_leads_out_of_a_local_directory_is_refused(random_name: Callable[[], str], tmp_path: Path) -> None:
    op = ap.Operator.from_uri(f"memory://{random_name()}")
    fs = AioPrefetchFileSystem(op)
    fs.pipe("d[1]/..a", b"1")
    fs.get("d[1]", f"{tmp_path}/in/out", recursive=True)
    assert (tmp_path / "in" / "out" / "..a").read_bytes() == b"1"
    hostile = AioPrefetchFileSystem(op.layer(Hostile(), inside=ap.layers.ErrorContextLayer))
    with pytest.raises(ValueError, match="leads out"):
        hostile.get("d[1]", f"{tmp_path}/in/out", recursive=True)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    fs.close()
    hostile.close()

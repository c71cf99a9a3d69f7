"""Names that only a raw client writes, through the verbs of fsspec; and kept listings, which decide nothing."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aioprefetch.fsspec import AioPrefetchFileSystem
from aioprefetch.testing.conformance.suite import checks
from tests.stores.planted_keys import PlantedMemory

SITE = {"p/about/": b"page", "p/about/x": b"x", "p/deep/e/": b"", "p/i": b"i"}


@pytest.fixture
def planted(random_name: Callable[[], str]) -> PlantedMemory:
    return PlantedMemory(random_name())


@pytest.fixture
def fs(planted: PlantedMemory) -> Iterator[AioPrefetchFileSystem]:
    fs = AioPrefetchFileSystem(planted.operator)
    yield fs
    fs.close()


def test_an_object_whose_key_ends_with_a_slash(
    fs: AioPrefetchFileSystem, planted: PlantedMemory, tmp_path: Path
) -> None:
    planted.plant(SITE)
    assert fs.find("p") == ["p/about/", "p/about/x", "p/i"]
    assert fs.du("p") == 6
    assert (fs.info("p/about/")["size"], fs.info("p/about")["type"]) == (4, "directory")
    assert fs.cat("p/about/") == fs.open("p/about/").read() == b"page"
    fs.get_file("p/about/", f"{tmp_path}/page")
    assert (tmp_path / "page").read_bytes() == b"page"
    with pytest.raises(ValueError, match="no file can"):
        fs.get("p", f"{tmp_path}/all", recursive=True)
    assert (tmp_path / "all" / "i").read_bytes() == b"i"
    fs.mv("p", "q", recursive=True)
    assert planted.objects() == {key.replace("p/", "q/", 1): data for key, data in SITE.items()}
    fs.mv("q/about/", "single")
    fs.rm("q", recursive=True)
    assert planted.objects() == {"single": b"page"}


def test_markers_below_a_directory_go_with_it(fs: AioPrefetchFileSystem, planted: PlantedMemory) -> None:
    planted.plant({"d/x": b"1", "d/s/": b"", "d/s/t/": b"", "d/s/t/y": b"2"})
    fs.rm("d", recursive=True)
    assert planted.objects() == {}
    assert not fs.exists("d")


def test_what_lies_below_a_name_hides_no_object(
    fs: AioPrefetchFileSystem, planted: PlantedMemory, tmp_path: Path
) -> None:
    planted.plant({"d/a": b"object", "d/a/x": b"below"})
    fs.ls("d/a")
    assert (fs.isfile("d/a"), fs.isdir("d/a"), fs.info("d/a")["size"]) == (True, True, 6)
    for get in (fs.get_file, fs.get):
        fs.ls("d/a")
        get("d/a", f"{tmp_path}/o")
        assert (tmp_path / "o").read_bytes() == b"object"
    for copy in (fs.cp_file, fs.cp):
        fs.ls("d/a")
        copy("d/a", "copied")
        assert planted.objects()["copied"] == b"object"
    fs.ls("d/a")
    fs.mv("d/a", "moved")
    assert planted.objects() == {"d/a/x": b"below", "copied": b"object", "moved": b"object"}


@checks("reliability:W47")
def test_an_old_listing_decides_nothing(fs: AioPrefetchFileSystem, planted: PlantedMemory, tmp_path: Path) -> None:
    planted.plant({"d/a/x": b"below"})
    fs.ls("d")
    planted.operator.service.store.remove("d/a/x")  # type: ignore[attr-defined]
    planted.plant({"d/a": b"object"})
    fs.cp_file("d/a", "copied")
    fs.get_file("d/a", f"{tmp_path}/o")
    assert planted.objects() == {"d/a": b"object", "copied": b"object"}
    assert (tmp_path / "o").read_bytes() == b"object"


def test_an_object_that_could_not_be_got_is_no_directory_that_was(fs: AioPrefetchFileSystem, tmp_path: Path) -> None:
    fs.pipe({"o/k": b"object", "o/k/x": b"below"})
    (tmp_path / "there").mkdir()
    with pytest.raises(IsADirectoryError):
        fs.get_file("o/k", f"{tmp_path}/there")


@pytest.mark.parametrize("verb", ["cp", "mv"])
@pytest.mark.parametrize("is_listed", [False, True])
def test_a_copy_goes_into_a_directory_as_in_s3fs(fs: AioPrefetchFileSystem, verb: str, is_listed: bool) -> None:
    """Also beside an object of its name, and whether the directory above was listed or not."""
    fs.pipe({"o/x": b"old", "o/x/y": b"below", "o/k": b"new"})
    if is_listed:
        fs.ls("o")
    getattr(fs, verb)("o/k", "o/x")
    assert {path: fs.cat_file(path) for path in ("o/x", "o/x/k")} == {"o/x": b"old", "o/x/k": b"new"}


def test_a_change_is_in_the_listings_above_it_and_below_it(fs: AioPrefetchFileSystem) -> None:
    fs.pipe({"o/a/x": b"1", "o/a/b/c/y": b"2"})
    assert fs.ls("o", detail=False) == ["o/a"]
    assert fs.ls("o/a/b/c", detail=False) == ["o/a/b/c/y"]
    fs.pipe("o/new/d/e/z", b"3")
    assert fs.ls("o", detail=False) == ["o/a", "o/new"]
    fs.rm("o/a", recursive=True)
    assert not fs.exists("o/a/b/c/y")
    with pytest.raises(FileNotFoundError):
        fs.ls("o/a/b/c")


def test_names_with_dots_stop_nothing_else(fs: AioPrefetchFileSystem, planted: PlantedMemory, tmp_path: Path) -> None:
    names = {"t/a": b"1", "t/b/../c": b"2", "t/./x": b"3", "t/../../evil": b"4"}
    planted.plant(names)
    assert fs.find("t") == sorted(names)
    assert {name for name, _, _ in fs.walk("t")} >= {"t", "t/.", "t/.."}
    with pytest.raises(ValueError, match=r"leads out|segment"):
        fs.get("t", f"{tmp_path}/in/out", recursive=True)
    assert (tmp_path / "in" / "out" / "a").read_bytes() == b"1"
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    with pytest.raises(ValueError, match="segment"):
        fs.mv("t", "u", recursive=True)
    assert sorted(planted.objects()) == ["t/../../evil", "t/./x", "t/b/../c", "u/a"]
    fs.rm("t", recursive=True)
    assert sorted(planted.objects()) == ["u/a"]

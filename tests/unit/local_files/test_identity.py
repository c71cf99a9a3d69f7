"""What a path names: one file by several spellings, free names, and what lies around them."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from aioprefetch import errors
from aioprefetch.local_files.identity import local_identity
from aioprefetch.runtime.options import RuntimeOptions
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.fs import Fs
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import Identity


def own(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_dev, status.st_ino


def around(path: Path) -> tuple[tuple[int, int], ...]:
    return tuple(own(parent) for parent in reversed(path.parents))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree with all kinds of names in it."""
    root = (tmp_path / "root").resolve()
    (root / "d" / "e").mkdir(parents=True)
    (root / "d" / "a").write_bytes(b"a")
    os.link(root / "d" / "a", root / "hard")
    (root / "link").symlink_to("d/a")
    (root / "way").symlink_to("d")
    (root / "broken").symlink_to("nowhere")
    (root / "circle").symlink_to("circle")
    (root / "out").symlink_to(tmp_path)
    os.mkfifo(root / "fifo")
    return root


async def below(root: Path, path: str, *, follow_symlinks: bool = False) -> Identity:
    runtime = Runtime(RuntimeOptions())
    try:
        return await Fs(str(root), follow_symlinks=follow_symlinks).build(runtime).identity(path)
    finally:
        await runtime.aclose()


def test_what_exists(root: Path) -> None:
    for name, kind in (("d/a", "file"), ("d", "directory"), ("fifo", "other"), ("hard", "file")):
        identity = local_identity(f"{root}/{name}")
        assert identity == Identity(store=("file",), name=own(root / name), kind=kind, path=f"{root}/{name}")  # type: ignore[arg-type]
        assert identity.within == around(root / name)
    assert local_identity("/").kind == "directory"
    assert local_identity("/").within == ()


@checks("reliability:W20")
def test_one_file_by_several_names(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root / "d")
    names = (f"{root}/d/a", f"{root}/d//./a", f"{root}/way/a", f"{root}/way/../d/a", f"{root}/link", "a", "../link")
    for name in names:
        assert local_identity(name) == local_identity(f"{root}/d/a"), name
        assert local_identity(name).within == around(root / "d" / "a")
    assert local_identity(f"{root}/hard").name == own(root / "d" / "a")
    assert local_identity("../d/").name == local_identity(".").name == local_identity("../way").name == own(root / "d")
    assert local_identity(f"{root}/link/").kind == "file"


@checks("reliability:W20")
def test_a_link_that_is_not_followed_is_itself(root: Path) -> None:
    for name in ("link", "way", "broken", "circle"):
        identity = local_identity(f"{root}/{name}", follow=False)
        assert (identity.kind, identity.name, identity.path) == ("link", own(root / name), f"{root}/{name}")
    assert local_identity(f"{root}/way/e", follow=False).name == own(root / "d" / "e")
    assert local_identity(f"{root}/way/..", follow=False).name == own(root)
    assert local_identity(f"{root}/d/a", follow=False).kind == "file"


def test_free_names(root: Path) -> None:
    """By the nearest directory above them, through links to it."""
    for name in ("new", "d/new", "d/new/deep", "d/a/below", "hard/below/deep", "nowhere"):
        parent = root / "d" if name.startswith("d/") else root
        identity = local_identity(f"{root}/{name}")
        assert identity.kind == "none"
        assert identity.name == (*own(parent), *(root / name).relative_to(parent).parts)
        assert identity.within == around(parent / "x")
        assert identity.path == f"{root}/{name}"
    assert local_identity(f"{root}/way/new/x") == local_identity(f"{root}/d/new/x")
    assert local_identity(f"{root}/broken") == local_identity(f"{root}/nowhere")
    assert local_identity(f"{root}/new") != local_identity(f"{root}/d/new")
    assert local_identity(f"{root}/new/x") != local_identity(f"{root}/new/y")


def test_links_in_circles(root: Path) -> None:
    with pytest.raises(errors.InvalidPath):
        local_identity(f"{root}/circle/x")
    assert local_identity(f"{root}/circle").kind == "link"


@pytest.mark.parametrize("follow_symlinks", [False, True])
async def test_names_below_a_root(root: Path, follow_symlinks: bool) -> None:
    options: dict[str, Any] = {"follow_symlinks": follow_symlinks}
    for path, name in (
        ("", ""),
        ("/", ""),
        ("d", "d"),
        ("d/", "d"),
        ("/d//a", "d/a"),
        ("fifo", "fifo"),
        ("new/x", "new/x"),
    ):
        identity = await below(root, path, **options)
        assert identity == local_identity(f"{root}/{name}"), path
        assert identity.within == local_identity(f"{root}/{name}").within
    assert (await below(root, "")).kind == "directory"


async def test_links_below_a_root(root: Path, tmp_path: Path) -> None:
    """The root's own are followed, and those below it as the service follows them."""
    (tmp_path / "root of links").symlink_to(root)
    assert await below(tmp_path / "root of links", "d/a") == local_identity(f"{root}/d/a")
    for name in ("link", "way", "broken", "circle", "out"):
        identity = await below(root, name)
        assert (identity.kind, identity.name) == ("link", own(root / name))
    with pytest.raises(errors.InvalidPath) as caught:
        await below(root, "way/a")
    assert caught.value.path == "way/a"
    for name in ("way/a", "link"):
        assert await below(root, name, follow_symlinks=True) == local_identity(f"{root}/d/a")
    assert await below(root, "broken", follow_symlinks=True) == local_identity(f"{root}/nowhere")
    for name in ("out", "out/x"):
        with pytest.raises(errors.InvalidPath):
            await below(root, name, follow_symlinks=True)
    for path in ("../x", "d/../a", "a\0b"):
        with pytest.raises(errors.InvalidPath):
            await below(root, path)


async def test_a_root_that_does_not_exist_yet(tmp_path: Path) -> None:
    assert (await below(tmp_path / "new", "")).name == (*own(tmp_path), "new")
    assert (await below(tmp_path / "new", "x")).name == (*own(tmp_path), "new", "x")
    assert (await below(tmp_path / "new", "")).kind == "none"


# --- names that are folded --------------------------------------------------------------------------------------------


@pytest.fixture
def folding(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root, on a file system that takes names for one whatever the case of their letters."""
    lstat = os.lstat

    def spelled(path: str) -> str:
        """A path below the root as its directories have it."""
        if len(path) <= len(str(root)):
            return path
        above, name = os.path.split(path)
        above = spelled(above)
        entries = os.listdir(above) if os.path.isdir(above) else []
        return os.path.join(above, next((entry for entry in entries if entry.casefold() == name.casefold()), name))

    def folded(path: Any, **more: Any) -> os.stat_result:
        return lstat(spelled(os.fspath(path)), **more)

    scandir = os.scandir
    monkeypatch.setattr(os, "lstat", folded)
    monkeypatch.setattr(os, "scandir", lambda path: scandir(spelled(path)))
    return root


@pytest.mark.skipif(sys.platform == "darwin", reason="there the system tells")
def test_free_names_are_folded_where_the_file_system_folds_them(folding: Path) -> None:
    assert local_identity(f"{folding}/New/Ünï").name == (*own(folding), "new", "ünï")
    assert local_identity(f"{folding}/NEW/U\u0308NI\u0308") == local_identity(f"{folding}/new/ünï")
    assert local_identity(f"{folding}/D/A") == local_identity(f"{folding}/d/a")
    assert local_identity(f"{folding}/D/X") == local_identity(f"{folding}/d/x")
    assert local_identity(f"{folding}/d/e/X") == local_identity(f"{folding}/d/e/x")  # By the name of the empty one.


def test_names_are_as_they_are_elsewhere(root: Path) -> None:
    """Also where two names differ by case alone, and are of one file."""
    if local_identity(f"{root}/D").kind != "none":
        pytest.skip("this file system folds names")
    for letters in ("x", "X"):
        (root / "d" / letters).write_bytes(b"x")
    (root / "cased").mkdir()
    (root / "cased" / "a").write_bytes(b"a")
    os.link(root / "cased" / "a", root / "cased" / "A")
    for folder in ("d", "d/e", "cased", "."):
        assert local_identity(f"{root}/{folder}/New") != local_identity(f"{root}/{folder}/new")
        assert local_identity(f"{root}/{folder}/\u00fc") != local_identity(f"{root}/{folder}/u\u0308")


@pytest.mark.parametrize("answer", [0, 1])
def test_the_system_says_so_on_macos(root: Path, monkeypatch: pytest.MonkeyPatch, answer: int) -> None:
    asked: list[tuple[Any, int]] = []

    def pathconf(path: Any, name: int) -> int:
        asked.append((path, name))
        return answer

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(os, "pathconf", pathconf)
    assert (local_identity(f"{root}/New") == local_identity(f"{root}/new")) is (answer == 0)
    assert asked == [(str(root), 11)] * 2

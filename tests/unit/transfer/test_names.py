"""Keys that end with ``/`` and have bytes, and names that cannot be served; a raw client plants them."""

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

import aioprefetch as ap
from aioprefetch.accessor.protocols import Accessor
from aioprefetch.errors import InvalidPath, IsADirectory
from aioprefetch.layers import ErrorContextLayer
from aioprefetch.testing import CountingS3Server
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import Entry, ListPage, ListRequest
from tests.stores.planted_keys import Planted, PlantedBucket, PlantedMemory
from tests.stores.verb_layer import VerbLayer

SITE = {"p/": b"own", "p/about/": b"page", "p/about/x": b"x", "p/empty/": b"", "p/i": b"i"}
DOTTED = {"t/a": b"1", "t/b/../c": b"2", "t/./x": b"3", "t/d": b"4"}


@pytest.fixture(params=["memory", "s3"])
async def planted(
    request: pytest.FixtureRequest, s3_server: CountingS3Server, random_name: Callable[[], str]
) -> AsyncIterator[Planted]:
    store = PlantedMemory(random_name()) if request.param == "memory" else PlantedBucket(s3_server, random_name())
    async with store.operator:
        yield store


async def test_it_is_listed_found_and_read(planted: Planted) -> None:
    planted.plant(SITE)
    op = planted.operator
    found = {entry.path: (entry.kind, entry.size) async for entry in op.list("p/", recursive=True)}
    assert found == {
        "p/": ("file", 3),
        "p/about/": ("file", 4),
        "p/about/x": ("file", 1),
        "p/empty/": ("directory", None),
        "p/i": ("file", 1),
    }
    assert [entry.kind async for entry in op.list("p/about/")] == ["file", "file"]
    assert [entry.path async for entry in op.list("p/empty/")] == []
    assert (await op.stat("p/about/")).size == 4
    assert (await op.stat("p/empty/")).is_directory
    assert await op.read("p/about/", offset=1) == b"age"
    async with op.reader("p/about/") as reader:
        assert await reader.read() == b"page"
    for path in ("p/empty/", "p/none/"):
        with pytest.raises(IsADirectory):
            await op.read(path)
        with pytest.raises(IsADirectory):
            await op.copy(path, "copied")
    with pytest.raises(IsADirectory):
        await op.write("p/about/", b"no")
    await op.copy("p/about/", "copied")
    assert planted.objects() == {**SITE, "copied": b"page"}


async def test_it_is_copied_moved_and_deleted_with_its_directory(planted: Planted) -> None:
    planted.plant(SITE)
    op = planted.operator
    report = await ap.copy((op, "p/"), (op, "c/"))
    assert (report.copied, report.bytes) == (4, 9)
    await op.move("p/", "q/")
    moved = {key.replace("p/", "q/", 1): data for key, data in SITE.items()}
    copied = {key.replace("p/", "c/", 1): data for key, data in SITE.items() if data}
    assert planted.objects() == {**moved, **copied}
    await op.delete_all("q/")
    assert planted.objects() == copied


@checks("reliability:W25")
async def test_no_file_has_its_name(planted: Planted, tmp_path: Path) -> None:
    planted.plant(SITE)
    with pytest.raises(InvalidPath) as caught:
        await planted.operator.download("p/", tmp_path / "all")
    assert caught.value.context["failures"] == {"p/": "InvalidPath", "p/about/": "InvalidPath"}
    assert (tmp_path / "all" / "about" / "x").read_bytes() == b"x"
    planted.plant({"alone/": b"page"})
    await planted.operator.download("alone/", tmp_path / "page")
    assert (tmp_path / "page").read_bytes() == b"page"


class Stale(VerbLayer):
    """Its listings are of a time when each key with ``/`` at its end had no bytes."""

    async def list_page(self, inner: Accessor, request: ListRequest) -> ListPage:
        page = await inner.list_page(request)
        old = (Entry(path=e.path, kind="directory") if e.path.endswith("/") else e for e in page.entries)
        return replace(page, entries=tuple(old))


async def test_what_an_old_listing_says_of_a_size_deletes_nothing(planted: Planted) -> None:
    planted.plant(SITE)
    await planted.operator.layer(Stale(), inside=ErrorContextLayer).move("p/", "q/")
    found = planted.objects()
    assert {key: found.get(key) for key in ("p/", "p/about/")} == {"p/": b"own", "p/about/": b"page"}
    assert (found["q/i"], found["q/about/x"]) == (b"i", b"x")


async def test_names_with_dots_are_listed_and_deleted_with_the_others(planted: Planted) -> None:
    planted.plant(DOTTED)
    op = planted.operator
    assert [entry.path async for entry in op.list("t/", recursive=True)] == sorted(DOTTED)
    with pytest.raises(InvalidPath):
        await op.read("t/b/../c")
    with pytest.raises(InvalidPath) as caught:
        await op.delete(["t/./x", "t/\0", "t/a"])
    assert caught.value.context["failures"] == {"t/\0": "InvalidPath"}
    assert sorted(planted.objects()) == ["t/b/../c", "t/d"]
    await op.delete_all("t/")
    assert planted.objects() == {}


@checks("reliability:W25")
async def test_names_with_dots_keep_no_other_from_being_copied_and_moved(planted: Planted) -> None:
    planted.plant(DOTTED)
    op = planted.operator
    report = await ap.copy((op, "t/"), (op, "c/"))
    assert {failure.path for failure in report.failures} == {"t/b/../c", "t/./x"}
    with pytest.raises(InvalidPath) as caught:
        await op.move("t/", "u/")
    assert caught.value.context["failures"] == dict.fromkeys(["t/./x", "t/b/../c"], "InvalidPath")
    assert sorted(planted.objects()) == ["c/a", "c/d", "t/./x", "t/b/../c", "u/a", "u/d"]


@checks("reliability:W27")
async def test_a_dry_run_says_which_names_cannot_be_served(planted: Planted) -> None:
    planted.plant(DOTTED)
    report = await ap.copy((planted.operator, "t/"), (planted.operator, "c/"), dry_run=True)
    assert {failure.path for failure in report.failures} == {"t/b/../c", "t/./x"}


@checks("reliability:W27")
@pytest.mark.parametrize("moves", [True, False])
async def test_the_object_of_a_directory_has_no_name_in_the_root(planted: Planted, moves: bool) -> None:
    planted.plant({"p/": b"own", "p/x": b"x"})
    op = planted.operator
    if moves:
        with pytest.raises(InvalidPath) as caught:
            await op.move("p/", "")
        assert caught.value.path == "p/"
    else:
        report = await ap.copy((op, "p/"), (op, ""))
        assert [type(failure.error) for failure in report.failures] == [InvalidPath]
    assert planted.objects() == {"p/": b"own", "x": b"x", **({} if moves else {"p/x": b"x"})}


@checks("reliability:W27")
async def test_no_url_of_a_deletion_has_dots(s3_server: CountingS3Server, random_name: Callable[[], str]) -> None:
    store = PlantedBucket(s3_server, random_name())
    async with store.operator as op:
        store.plant({"c": b"stays", "t/../c": b"goes"})
        store.requests()
        await op.delete("t/../c")
        assert store.requests() == ["POST 200"]
    assert store.objects() == {"c": b"stays"}

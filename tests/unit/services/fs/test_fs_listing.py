"""Listing: the entries of a raw prefix in the order of their keys, page by page, as the memory service has them."""

import inspect
import os
from pathlib import Path
from typing import Any

import pytest

from aioprefetch import errors
from aioprefetch.accessor.protocols import Accessor
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.fs import Fs
from aioprefetch.services.fs.accessor import STAT_BATCH, SUSPENDED_SCANS_MAX
from aioprefetch.services.memory import Memory
from aioprefetch.values import DeleteRequest, Entry, ListRequest, StatRequest, WriteRequest

KEYS = ["a", "a-b", "a.txt", "a0", "b/1", "b/2/3", "b/2/4", "b-", "b0/x", "c/d/e/f", "Ä", "z z/+%"]
PREFIXES = ["", "a", "b", "b/", "b/2", "b/2/", "b/2/3", "c/", "c/d/e/f", "c/d/e/f/", "nothing", "nothing/x", "z"]


async def listed(accessor: Accessor, path: str, *, page: int | None = None, **fields: object) -> list[Entry]:
    """All entries, page by page."""
    entries: list[Entry] = []
    token = None
    while True:
        request = ListRequest(path=path, page_token=token, page_entries_max=page, **fields)  # type: ignore[arg-type]
        found = await accessor.list_page(request)
        entries += found.entries
        assert page is None or len(found.entries) <= page
        token = found.next_token
        if token is None:
            return entries


def paths(entries: list[Entry]) -> list[tuple[str, str, int | None]]:
    return [(entry.path, entry.kind, entry.size) for entry in entries]


@pytest.fixture
async def twins(accessor: Accessor, runtime: Runtime) -> tuple[Accessor, Accessor]:
    """The same objects in files and in memory."""
    memory = Memory().build(runtime)
    for key in KEYS:
        for one in (accessor, memory):
            await one.write(WriteRequest(path=key), key.encode())
    return accessor, memory


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("recursive", [False, True])
async def test_listings_are_those_of_the_memory_service(
    twins: tuple[Accessor, Accessor], prefix: str, recursive: bool
) -> None:
    """In content, order and folding, whatever the page."""
    files, memory = twins
    expected = paths(await listed(memory, prefix, recursive=recursive))
    for page in (None, 1, 3):
        assert paths(await listed(files, prefix, recursive=recursive, page=page)) == expected


@pytest.mark.parametrize("after", ["a", "a-b", "b", "b/", "b/1", "b/2/3", "b0", "c/d/", "zz", "Ä"])
@pytest.mark.parametrize("recursive", [False, True])
async def test_start_after_is_exclusive(twins: tuple[Accessor, Accessor], after: str, recursive: bool) -> None:
    files, memory = twins
    expected = paths(await listed(memory, "", recursive=recursive, start_after=after))
    assert paths(await listed(files, "", recursive=recursive, start_after=after, page=2)) == expected


async def test_entries_are_described_as_by_stat(twins: tuple[Accessor, Accessor]) -> None:
    files, _ = twins
    for entry in await listed(files, "", recursive=True):
        found = await files.stat(StatRequest(path=entry.path))
        assert (entry.size, entry.etag, entry.last_modified) == (found.size, found.etag, found.last_modified)


async def test_a_page_token_stands_for_itself(twins: tuple[Accessor, Accessor], root: Path, runtime: Runtime) -> None:
    """A listing goes on from its token in another runtime, or when many others came in between."""
    files, _ = twins
    whole = await listed(files, "", recursive=True)
    first = await files.list_page(ListRequest(path="", recursive=True, page_entries_max=4))
    other = Fs(str(root)).build(runtime)
    rest = await other.list_page(ListRequest(path="", recursive=True, page_token=first.next_token))
    assert [*first.entries, *rest.entries] == whole


async def test_a_suspended_listing_scans_a_directory_once(
    accessor: Accessor, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory of many pages is not read again for each of them."""
    for number in range(50):
        (root / f"{number:02}").write_bytes(b"")
    scans: list[int] = []
    scandir = os.scandir

    def counting(descriptor: int) -> Any:
        scans.append(1)
        return scandir(descriptor)

    monkeypatch.setattr(os, "scandir", counting)
    assert len(await listed(accessor, "", page=10)) == 50
    assert len(scans) == 1


async def test_suspended_listings_are_few(accessor: Accessor, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest listing that was left starts again from its token, without a gap; the latest goes on."""
    names = [f"{number:03}" for number in range(SUSPENDED_SCANS_MAX + 4)]
    for name in names:
        (root / name).write_bytes(b"")
    tokens = []
    for start in range(SUSPENDED_SCANS_MAX + 1):
        request = ListRequest(path="", start_after=names[start - 1] if start else None, page_entries_max=2)
        tokens.append((await accessor.list_page(request)).next_token)
    scans: list[int] = []
    scandir = os.scandir

    def counting(descriptor: int) -> Any:
        scans.append(1)
        return scandir(descriptor)

    monkeypatch.setattr(os, "scandir", counting)
    for start, scanned in ((len(tokens) - 1, 0), (0, 1)):
        rest = await accessor.list_page(ListRequest(path="", page_token=tokens[start]))
        assert [entry.path for entry in rest.entries] == names[start + 2 :]
        assert len(scans) == scanned


async def test_many_entries_in_one_directory(accessor: Accessor, root: Path) -> None:
    """More than are looked at in one go."""
    count = 2 * STAT_BATCH + 7
    for number in range(count):
        (root / f"{number:04}").write_bytes(b"x" * (number % 50))
    (root / "0020d").mkdir()
    (root / "0020d" / "x").write_bytes(b"")
    found = await listed(accessor, "", recursive=True)
    assert len(found) == count + 1
    assert [entry.path for entry in found] == sorted(entry.path for entry in found)


async def test_empty_directories(accessor: Accessor, root: Path) -> None:
    """They are entries of a recursive listing too, as markers are elsewhere; the listed one itself never is."""
    (root / "d" / "empty").mkdir(parents=True)
    (root / "d" / "f").write_bytes(b"")
    assert paths(await listed(accessor, "", recursive=True)) == [
        ("d/empty/", "directory", None),
        ("d/f", "file", 0),
    ]
    assert await listed(accessor, "d/empty/", recursive=True) == await listed(accessor, "d/empty/") == []
    assert paths(await listed(accessor, "d/emp", recursive=True)) == [("d/empty/", "directory", None)]
    assert paths(await listed(accessor, "", recursive=True, page=1)) == paths(
        await listed(accessor, "", recursive=True)
    )


@pytest.mark.parametrize("prefix", ["/b//2/", "//b/2/", "b/2//"])
async def test_slashes_of_a_prefix_collapse(twins: tuple[Accessor, Accessor], prefix: str) -> None:
    files, _ = twins
    assert [entry.path for entry in await listed(files, prefix)] == ["b/2/3", "b/2/4"]


async def test_a_missing_root_lists_as_empty(tmp_path: Path, runtime: Runtime) -> None:
    accessor = Fs(str(tmp_path / "nowhere")).build(runtime)
    assert await listed(accessor, "", recursive=True) == []
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("prefix", ["../", "a/../", "a/./b", "x\0/"])
async def test_prefixes_that_could_lead_out(accessor: Accessor, prefix: str) -> None:
    with pytest.raises(errors.InvalidPath) as caught:
        await accessor.list_page(ListRequest(path=prefix))
    assert caught.value.operation == "list"


async def test_names_with_leading_dots_are_a_prefix_like_any_other(accessor: Accessor, root: Path) -> None:
    (root / "..x").write_bytes(b"")
    assert [entry.path for entry in await listed(accessor, "..")] == ["..x"]


async def test_what_vanishes_during_a_listing_is_left_out(twins: tuple[Accessor, Accessor]) -> None:
    files, _ = twins
    first = await files.list_page(ListRequest(path="", recursive=True, page_entries_max=2))
    await files.delete(DeleteRequest(path="b/2/3", paths=("b/2/3", "b/2/4", "b/2/", "c/d/e/f")))
    rest = await files.list_page(ListRequest(path="", recursive=True, page_token=first.next_token))
    left = [key for key in sorted(KEYS) if not key.startswith(("b/2", "c/"))]
    assert [entry.path for entry in (*first.entries, *rest.entries) if not entry.is_directory] == left


async def test_a_deep_tree_needs_no_recursion(accessor: Accessor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directories on the way wait on a stack of their own, not on the interpreter's."""
    key = "/".join(["d"] * 60)
    await accessor.write(WriteRequest(path=key), b"x")
    depths: list[int] = []
    scandir = os.scandir

    def counting(descriptor: int) -> Any:
        depths.append(len(inspect.stack(0)))
        return scandir(descriptor)

    monkeypatch.setattr(os, "scandir", counting)
    assert [entry.path for entry in await listed(accessor, "", recursive=True)] == [key]
    assert (len(depths), max(depths)) == (60, min(depths))

"""A name that is there is that name, and no pattern: in every command, in a store as in local files."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import aioprefetch as ap
from aioprefetch import Operator
from aioprefetch.testing.conformance.suite import checks
from tests.profile import few
from tests.unit.cli.commands import Bucket, lines, objects, run
from tests.unit.transfer.trees import Tree, put_tree, tree_of

# Of each pair the first, as a pattern, matches the second.
PAIRS = {"data[1].csv": "data1.csv", "q?.txt": "qa.txt", "a*b": "a-b", "[!x]": "y", "**": "z/deep", "[": "other"}


class Place:
    """A directory, in a bucket or on disk, as a command names it."""

    def __init__(self, url: str) -> None:
        self.url = url

        self._root = url if "://" in url else Path(url)

    def put(self, tree: Tree) -> None:
        async def write() -> None:
            async with Operator.from_uri(self._root) as op:
                await put_tree(op, "", tree)

        asyncio.run(write())

    @property
    def tree(self) -> Tree:
        async def read() -> Tree:
            async with Operator.from_uri(self._root) as op:
                return await tree_of(op, "")

        return asyncio.run(read())


@pytest.fixture(params=["s3", "file"])
def place(request: pytest.FixtureRequest, bucket: Bucket, tmp_path: Path) -> Place:
    """With each name of the pairs as an object whose bytes are its name."""
    (tmp_path / "there").mkdir()
    made = Place(bucket.url("there/") if request.param == "s3" else f"{tmp_path}/there/")
    made.put({name: name.encode() for pair in PAIRS.items() for name in pair})
    return made


@checks("reliability:W26", "reliability:W27")
@pytest.mark.parametrize("name", few(PAIRS, lambda n, _: n % 3 == 0))
def test_the_object_of_the_name_is_what_each_command_takes(place: Place, name: str, tmp_path: Path) -> None:
    url = place.url + name
    before = place.tree
    assert run("cat", url).stdout_bytes == name.encode()
    assert run("cp", url, "-").stdout_bytes == name.encode()
    assert run("head", "--type", "text", url).stdout_bytes == name.encode()
    assert [entry["size"] for entry in objects("stat", "--json", url)] == [len(name)]
    assert lines("ls", url) == [url]
    assert [(sum_["size"], sum_["objects"]) for sum_ in objects("du", "--json", url)] == [(len(name), 1)]
    run("cp", url, tmp_path / "copied")
    assert (tmp_path / "copied").read_bytes() == name.encode()
    run("sync", url, f"{tmp_path}/synced/")
    assert [path.read_bytes() for path in (tmp_path / "synced").iterdir()] == [name.encode()]
    assert lines("rm", "--dry-run", url) == [url]
    run("rm", url)
    assert place.tree == {path: data for path, data in before.items() if path != name}


@pytest.mark.parametrize("name", few([name for name in PAIRS if name != "["], lambda n, _: n % 3 == 1))
def test_without_the_object_it_is_a_pattern_unless_the_command_says_literal(place: Place, name: str) -> None:
    run("rm", place.url + name)
    before = place.tree
    for command in (["cat"], ["stat"], ["ls"], ["du"], ["head"], ["rm"], ["rm", "-r"], ["cp", "-r"], ["sync"]):
        more = [f"{place.url}to/"] if command[0] in ("cp", "sync") else []
        shown = run(*command, "--literal", place.url + name, *more, code=1).output
        assert "NotFound" in shown or "nothing here" in shown
    assert place.tree == before
    run("rm", place.url + name)
    assert PAIRS[name] not in place.tree


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_directory_of_the_name(place: Place, tmp_path: Path, slash: str) -> None:
    """Its objects are meant, and never those that the pattern matches; without -r it is refused."""
    place.put({"d[1]/x": b"1", "d[1]/y/z": b"2", "d1": b"3"})
    url = f"{place.url}d[1]{slash}"
    before = place.tree
    for command in (["rm"], ["cp"], ["cat"]):
        more = [f"{tmp_path}/no/"] if command == ["cp"] else []
        assert "IsADirectory" in run(*command, url, *more, code=1).output
    assert place.tree == before
    assert lines("ls", url) == ["x", "y/"]
    assert [found["kind"] for found in objects("stat", "--json", url)] == ["directory"]
    assert [(sum_["size"], sum_["objects"]) for sum_ in objects("du", "--json", url)] == [(2, 2)]
    run("cp", "-r", url, f"{tmp_path}/copied/")
    run("sync", url, f"{tmp_path}/synced/")
    for copied in ("copied", "synced"):
        found = {str(p.relative_to(tmp_path / copied)) for p in (tmp_path / copied).rglob("*") if p.is_file()}
        assert found == {"x", "y/z"}
    run("rm", "-r", url)
    assert place.tree == {path: data for path, data in before.items() if not path.startswith("d[1]/")}


def test_a_listed_directory_ends_with_its_slash_and_may_be_a_pattern(place: Place) -> None:
    place.put({"e[1]/x": b"1", "e1/y": b"2"})
    assert lines("ls", f"{place.url}e[1]/") == ["x"]
    assert lines("ls", f"{place.url}e?/") == [f"{place.url}e1/"]


def test_names_that_are_printed_are_names_that_can_be_given(place: Place) -> None:
    for printed in lines("ls", "-R", place.url):
        assert run("cat", place.url + printed).stdout == printed


def test_several_places_are_looked_for_one_by_one(place: Place) -> None:
    run("rm", f"{place.url}data[1].csv", f"{place.url}q?.txt", f"{place.url}a[-]b")
    assert set(place.tree) == {name for pair in PAIRS.items() for name in pair} - {"data[1].csv", "q?.txt", "a-b"}


def test_a_bracketed_character_still_makes_a_name(place: Place) -> None:
    run("rm", f"{place.url}data[[]1].csv")
    assert "data[1].csv" not in place.tree
    assert "data1.csv" in place.tree


def test_one_request_asks_for_the_name_and_others_cost_none(bucket: Bucket) -> None:
    bucket.put(**{"data1.csv": b"1", "plain": b"2"})
    run("cat", bucket.url("plain"))
    assert (bucket.server.count("HEAD"), bucket.server.count("GET")) == (0, 1)
    bucket.server.reset()
    run("cat", bucket.url("data[1].csv"))
    assert bucket.server.count("HEAD") == 1
    bucket.server.reset()
    run("rm", "--literal", bucket.url("data[1].csv"), code=1)
    assert bucket.server.count("DELETE") == bucket.server.count("POST") == 0


@checks("reliability:W32")
def test_a_name_that_may_not_be_looked_at_is_an_error(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    stat: Callable[..., Any] = Operator.stat

    async def refused(self: Operator, path: str, **options: Any) -> Any:
        if "[" in path:
            raise ap.PermissionDenied("refused", operation="stat", path=path)
        return await stat(self, path, **options)

    monkeypatch.setattr(Operator, "stat", refused)
    before = place.tree
    for command in (["cat"], ["stat"], ["ls"], ["du"], ["head"], ["rm"], ["cp"], ["sync"]):
        more = [f"{place.url}to/"] if command[0] in ("cp", "sync") else []
        assert "PermissionDenied" in run(*command, f"{place.url}data[1].csv", *more, code=1).output
    assert place.tree == before


def test_a_whole_bucket_is_another_thing_than_an_object_of_this_name(bucket: Bucket) -> None:
    bucket.put(**{"*": b"1", "a": b"2"})
    run("rm", bucket.url("*"), code=2)
    run("rm", "--literal", bucket.url("*"))
    assert bucket.paths() == ["a"]


def test_the_head_of_a_table_whose_name_has_brackets(place: Place, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    for name, rows in (("t[1].parquet", 3), ("t1.parquet", 5)):
        parquet.write_table(pa.table({"n": list(range(rows))}), tmp_path / "table")
        place.put({name: (tmp_path / "table").read_bytes()})
    assert [len(shown["rows"]) for shown in objects("head", "--json", f"{place.url}t[1].parquet")] == [3]
    assert [len(shown["rows"]) for shown in objects("head", "--json", f"{place.url}t[[]1].parquet")] == [3]
    assert [len(shown["rows"]) for shown in objects("head", "--json", f"{place.url}t?.parquet")] == [5]

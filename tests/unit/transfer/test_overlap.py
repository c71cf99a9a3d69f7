"""A run never reads what it writes: where places overlap, that is refused before a byte is written."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

import aioprefetch as ap
from aioprefetch import Operator
from aioprefetch.accessor.protocols import Accessor
from aioprefetch.errors import InvalidArgument, IsSameFile
from aioprefetch.layers import ErrorContextLayer
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import Identity, ListPage, ListRequest
from tests.stores.verb_layer import VerbLayer
from tests.unit.transfer.trees import Tree, memory, put_tree, tree_of

Run = Callable[[Operator, str, str], Awaitable[object]]

RUNS: dict[str, Run] = {
    "copy": lambda op, source, target: ap.copy((op, source), (op, target)),
    "copy all": lambda op, source, target: ap.copy((op, source), (op, target), skip_same=False),
    "sync": lambda op, source, target: ap.copy((op, source), (op, target), skip_same=True),
    "dry run": lambda op, source, target: ap.copy((op, source), (op, target), dry_run=True),
    "move": lambda op, source, target: op.move(source, target),
}


@pytest.fixture(params=["memory", "files"])
def op(request: pytest.FixtureRequest, tmp_path: Path) -> Operator:
    return memory() if request.param == "memory" else Operator.from_uri(tmp_path)


@checks("reliability:W22")
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize(
    ("source", "target", "tree"),
    [
        ("a/b/", "a/", {"a/b/x": b"one", "a/b/b/x": b"two"}),
        ("a/b/", "a/", {"a/b/x/y": b"one", "a/b/b/x/y": b"two", "a/b/z": b"three"}),
        ("a/b/c/", "a/", {"a/b/c/x": b"one", "a/b/c/b/c/x": b"two"}),
        ("a/b/", "", {"a/b/x": b"one", "a/b/a/b/x": b"two"}),
        ("a/a/", "a/", {"a/a/x": b"one", "a/a/a/x": b"two"}),
    ],
)
async def test_a_target_that_is_a_source_is_refused(
    op: Operator, run: str, source: str, target: str, tree: Tree
) -> None:
    async with op:
        await put_tree(op, "", tree)
        with pytest.raises(InvalidArgument, match="to be copied itself") as refused:
            await RUNS[run](op, source, target)
        assert refused.value.operation == ("move" if run == "move" else "copy")
        assert await tree_of(op, "") == tree


async def test_a_glob_that_chooses_one_of_the_two_overlaps_nothing(op: Operator) -> None:
    tree = {"a/b/x.csv": b"one", "a/b/b/x.csv": b"two"}
    async with op:
        await put_tree(op, "", tree)
        await ap.copy((op, "a/b/"), (op, "a/"), glob="*.csv")
        assert await tree_of(op, "") == {**tree, "a/x.csv": b"one"}
        with pytest.raises(InvalidArgument, match="to be copied itself"):
            await ap.copy((op, "a/b/"), (op, "a/"), glob="**/*.csv")
        with pytest.raises(InvalidArgument, match="to be copied itself"):
            await ap.copy((op, "a/b/**/*.csv"), (op, "a/"))


async def test_a_pattern_reaches_no_deeper_than_its_wildcards(op: Operator) -> None:
    """A set of one character is this character, so what follows it is in one directory, and a target below is not."""
    async with op:
        await put_tree(op, "", {"a/b": b"one", "a/c/b": b"two"})
        await ap.copy((op, "[a]/[bx]"), (op, "a/d"))
        assert await tree_of(op, "") == {"a/b": b"one", "a/c/b": b"two", "a/d/b": b"one"}
        with pytest.raises(InvalidArgument):
            await ap.copy((op, "[a]/*/b"), (op, "a/d"))


@pytest.mark.parametrize("concurrency", [1, 32])
async def test_what_the_run_makes_below_its_source_is_no_source(op: Operator, concurrency: int) -> None:
    tree = {f"a/b/b/{number:02}": b"%d" % number for number in range(40)}
    moved = {f"a/b/{number:02}": b"%d" % number for number in range(40)}
    async with op:
        await put_tree(op, "", tree)
        report = await ap.copy((op, "a/b/"), (op, "a/"), concurrency=concurrency)
        assert report.copied == 40
        assert await tree_of(op, "") == {**tree, **moved}


class SmallPages(VerbLayer):
    """A store whose listings go on while a run writes."""

    async def list_page(self, inner: Accessor, request: ListRequest) -> ListPage:
        return await inner.list_page(replace(request, page_entries_max=2))


async def test_what_the_run_makes_is_no_source_where_its_listing_meets_it() -> None:
    """The names that are made come after those that are copied."""
    data = {f"x{number}": b"%d" % number for number in range(9)}
    async with memory() as plain:
        op = plain.layer(SmallPages(), inside=ErrorContextLayer)
        await put_tree(plain, "a/b/b/", data)
        report = await ap.copy((op, "a/b/"), (op, "a/"), concurrency=1)
        assert report.copied == 9
        assert await tree_of(plain, "a/b/b/") == data
        assert sorted(await tree_of(plain, "a/")) == sorted(
            f"{below}{name}" for below in ("b/", "b/b/") for name in data
        )


@checks("reliability:W22")
async def test_a_move_up_keeps_what_it_makes_below_its_source(op: Operator) -> None:
    async with op:
        await put_tree(op, "", {"a/b/b/x": b"one", "a/b/y": b"two"})
        await op.move("a/b/", "a/")
        assert await tree_of(op, "") == {"a/b/x": b"one", "a/y": b"two"}


@checks("reliability:W21", "reliability:W22")
async def test_places_under_two_roots_are_compared_whole(tmp_path: Path) -> None:
    (tmp_path / "a" / "b" / "b").mkdir(parents=True)
    (tmp_path / "a/b/x").write_bytes(b"one")
    (tmp_path / "a/b/b/x").write_bytes(b"two")
    async with Operator.from_uri(tmp_path) as outer, Operator.from_uri(tmp_path / "a/b") as inner:
        for source in ((inner, ""), tmp_path / "a/b", f"file://{tmp_path}/a/b/"):
            with pytest.raises(InvalidArgument, match="to be copied itself"):
                await ap.copy(source, (outer, "a/"))
            with pytest.raises(IsSameFile):
                await ap.copy(source, (outer, "a/b/"))
            with pytest.raises(InvalidArgument, match="lies inside"):
                await ap.copy(source, (outer, "a/b/c/"))
            with pytest.raises(InvalidArgument, match="would be deleted"):
                await ap.copy(source, (outer, "a/"), delete_extra=True)
        assert (tmp_path / "a/b/x").read_bytes() == b"one"


class FoldingLayer(VerbLayer):
    """A store that does not tell upper from lower case."""

    async def identity(self, inner: Accessor, path: str) -> Identity:
        return await inner.identity(path.casefold())


@checks("reliability:W24")
async def test_two_sources_of_one_target_are_refused_and_both_named() -> None:
    async with memory() as op, memory() as plain:
        folding = plain.layer(FoldingLayer())
        await put_tree(op, "x/", {"A/k": b"1", "a/K": b"2", "z": b"3"})
        with pytest.raises(InvalidArgument, match=r"'x/A/k' and 'x/a/K' would be one object"):
            await ap.copy((op, "x/"), (folding, "y/"))
        assert await tree_of(plain, "") == {}
        assert (await ap.copy((op, "x/"), (folding, "y/"), glob="A/*")).copied == 1
        assert (await ap.copy((op, "x/"), (plain, "y/"))).copied == 3
        with pytest.raises(IsSameFile):
            await folding.copy("y/z", "Y/Z")
        assert await plain.read("y/z") == b"3"
